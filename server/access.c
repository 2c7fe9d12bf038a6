/* DESIGN: a model server on an open port is used by strangers within hours, so the unsafe start
 * must be asked for by name. Keys come in files only: a command line is read by everyone on the
 * machine, an environment by every child. */
#include "server/access.h"

#include "config/config_file.h"
#include "server/http/http_cors.h"
#include "server/http/http_host.h"
#include "server/http/http_listen.h"
#include "server/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where the unit's SetCredential= has put it because there is no key file. Any other file without a
 * key is refused: somebody meant it to have one. */
#define NO_KEY_FILE "# no key file"

static bool says_no_key_file(const char *path)
{
    char line[sizeof NO_KEY_FILE + 2] = ""; /* with its newline, and one more */
    FILE *f = fopen(path, "re");
    const size_t n = f ? fread(line, 1, sizeof line - 1, f) : 0;
    if (f)
        fclose(f);
    line[n > 0 && line[n - 1] == '\n' ? n - 1 : n] = '\0';
    return strcmp(line, NO_KEY_FILE) == 0;
}

/* systemd's LoadCredential=api-keys:FILE. Its files are the service's alone, although access lists
 * make their group bits look otherwise. */
static bool find_credential(char *path, size_t cap)
{
    const char *directory = getenv("CREDENTIALS_DIRECTORY");
    if (!directory)
        return false;
    int n = snprintf(path, cap, "%s/api-keys", directory);
    return n > 0 && (size_t)n < cap && access(path, F_OK) == 0 && !says_no_key_file(path);
}

/* Who hands credentials to the server may believe that keys are among them. */
static void warn_of_no_key(void)
{
    if (getenv("CREDENTIALS_DIRECTORY"))
        base_log(LOG_WARN, "no key is wanted: CREDENTIALS_DIRECTORY holds no api-keys, so anyone "
                           "who reaches this server may use it");
}

/* Where somebody has put a key that serve would not look at; NULL: nowhere. */
static const char *unused_key(const struct options *o)
{
    static const char *const variables[] = {"TESSERA_API_KEY", "VLLM_API_KEY"};
    for (size_t i = 0; i < ARRAY_LEN(variables); i++) {
        const char *value = getenv(variables[i]);
        if (value && *value)
            return variables[i];
    }
    for (int32_t i = 0; o->file && i < o->file->count; i++)
        if (strcmp(o->file->entries[i].key, "api-key") == 0)
            return "api-key in the file of --config";
    return NULL;
}

/* Who set a key believes that the server wants it. */
static enum status check_unused_key(const struct options *o, const char *file, struct err *err)
{
    const char *place = unused_key(o);
    if (place && file)
        base_log(LOG_WARN, "%s is ignored: keys come from %.200s", place, file);
    if (!place || file)
        return OK;
    return base_fail(err, ERR_USAGE,
                     "%s is not where serve reads keys: put the key into a file of mode 600 and "
                     "give --api-key-file FILE, or unset it",
                     place);
}

const char *access_key_file(const struct options *o, char *path, size_t cap)
{
    if (o->api_key_file)
        return o->api_key_file;
    return find_credential(path, cap) ? path : NULL;
}

enum status access_open(const struct options *o, struct keys **keys, struct err *err)
{
    char credential[4096];
    const char *file = access_key_file(o, credential, sizeof credential);
    enum status st = http_cors_check(o->cors_origins, err);
    if (st == OK)
        st = http_host_check(o->allowed_hosts, err);
    if (st == OK)
        st = http_listen_check(o->host, err);
    if (st == OK)
        st = check_unused_key(o, file, err);
    if (st != OK)
        return st;
    if (file && o->insecure_no_auth)
        return base_fail(err, ERR_USAGE,
                         "--insecure-no-auth and the key file %.200s exclude each other", file);
    if (file)
        return keys_open(file, file == credential, keys, err);
    if (!o->insecure_no_auth && !http_listen_is_loopback(o->host))
        return base_fail(err, ERR_USAGE,
                         "--host %.100s can be reached by others: give --api-key-file FILE, or say "
                         "--insecure-no-auth if anyone may use this server",
                         o->host);
    warn_of_no_key();
    return OK;
}

const char *access_hosts(const struct options *o, const struct keys *keys)
{
    if (o->allowed_hosts || keys || !http_listen_is_loopback(o->host))
        return o->allowed_hosts;
    return HTTP_HOST_LOCAL;
}

struct http_limits access_limits(const struct options *o)
{
    return (struct http_limits){
        .connections = o->max_connections,
        .header_bytes = (size_t)o->http.header_bytes,
        .target_bytes = (size_t)o->http.target_bytes,
        .headers = o->http.headers,
        .body_bytes = (size_t)o->http.body_bytes,
        .bodies_bytes = (size_t)o->http.bodies_bytes,
        .unsent_bytes = (size_t)o->http.unsent_bytes,
        .output_bytes = (size_t)o->http.output_bytes,
        .header_s = o->http.header_timeout,
        .body_s = o->http.body_timeout,
        .send_s = o->http.send_timeout,
        .idle_s = o->http.idle_timeout,
    };
}
