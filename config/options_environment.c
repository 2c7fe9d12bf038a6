/* Options from the environment: TESSERA_MAX_MODEL_LEN for --max-model-len. */
#include "config/options_rows.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "TESSERA_"
enum { VARIABLE_MAX = 64 };

static void variable_of(const struct options_row *r, char out[VARIABLE_MAX])
{
    const int n = snprintf(out, VARIABLE_MAX, PREFIX "%s", r->name);
    for (int i = 0; i < n; i++)
        out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

/* Kubernetes tells every pod where each service of its namespace is. Of one called "tessera", or
 * "tessera-SOMETHING", the variables look like ours, and TESSERA_PORT is one: tcp://10.0.0.1:8000.
 */
static bool is_service_link(const char *name, const char *value)
{
    static const char *const names[] = {PREFIX "*SERVICE_HOST", PREFIX "*SERVICE_PORT*",
                                        PREFIX "*PORT_[0-9]*_TCP*", PREFIX "*PORT_[0-9]*_UDP*",
                                        PREFIX "*PORT_[0-9]*_SCTP*"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (fnmatch(names[i], name, 0) == 0)
            return true;
    return fnmatch(PREFIX "*PORT", name, 0) == 0 && strstr(value, "://");
}

enum status options_rows_environment(struct options *o, struct err *err)
{
    for (size_t i = 0; i < options_rows_count; i++) {
        const struct options_row *r = &options_rows[i];
        if (!(r->commands & (int)o->command) || o->command == COMMAND_RANK)
            continue;
        char name[VARIABLE_MAX];
        variable_of(r, name);
        const char *value = getenv(name);
        struct err why;
        if (value && !is_service_link(name, value) && options_rows_set(r, value, o, &why) != OK)
            return base_fail(err, ERR_USAGE, "%s: %.400s", name, why.text);
    }
    return OK;
}

/* Of an option of any of these commands? */
static bool is_variable(int commands, const char *name)
{
    char known[VARIABLE_MAX];
    for (size_t i = 0; i < options_rows_count; i++) {
        variable_of(&options_rows[i], known);
        if (options_rows[i].commands & commands & ~COMMAND_RANK && strcmp(known, name) == 0)
            return true;
    }
    return false;
}

/* "; did you mean TESSERA_PORT?" into hint, or nothing where no name is much like it. */
static void suggest(const char *unknown, const char *value, char *hint, size_t cap)
{
    char word[VARIABLE_MAX] = "";
    const char *c = unknown + strlen(PREFIX);
    for (size_t i = 0; i + 1 < sizeof word && c[i]; i++)
        word[i] = c[i] == '_' ? '-' : (char)tolower((unsigned char)c[i]);
    char name[VARIABLE_MAX];
    const char *equal, *meant;
    const struct options_row *r = options_rows_negated(OPTIONS_ROWS_ALL, word, value, &meant);
    if (r) {
        variable_of(r, name);
        snprintf(hint, cap, "; did you mean %s=%s?", name, meant);
        return;
    }
    const char *near = options_rows_nearest(OPTIONS_ROWS_ALL & ~COMMAND_RANK, word, &equal);
    hint[0] = '\0';
    if (!near)
        return;
    variable_of(options_rows_find(0, near), name);
    snprintf(hint, cap, "; did you mean %s?", name);
}

static void warn_of(enum command command, const char *name, const char *value)
{
    char hint[VARIABLE_MAX + 30];
    const bool any = is_variable(OPTIONS_ROWS_ALL, name);
    if (is_service_link(name, value)) {
        if (any)
            base_log(LOG_WARN,
                     "%.100s=%.80s is how Kubernetes announces a service and no option: ignored; "
                     "enableServiceLinks: false in the pod's spec turns it off",
                     name, value);
    } else if (!any) {
        suggest(name, value, hint, sizeof hint);
        base_log(LOG_WARN, "%.100s in the environment is no option: ignored%s", name, hint);
    } else if (command == COMMAND_SERVE && !is_variable(COMMAND_SERVE, name)) {
        base_log(LOG_WARN,
                 "%.100s in the environment is no option of serve, but of other commands: ignored",
                 name);
    }
}

void options_warn_environment(enum command command)
{
    for (char **e = environ; *e; e++) {
        char name[256];
        const size_t n = strcspn(*e, "=");
        if (strncmp(*e, PREFIX, strlen(PREFIX)) != 0 || (*e)[n] == '\0')
            continue;
        snprintf(name, sizeof name, "%.*s", (int)n, *e);
        if (command == COMMAND_SERVE && strcmp(name, PREFIX "API_KEY") == 0)
            continue; /* access_open stops for it, or says why not */
        warn_of(command, name, *e + n + 1);
    }
}
