/* Private to config/options*.c: the table of options, and what finds and sets one of its rows. */
#ifndef TESSERA_CONFIG_OPTIONS_ROWS_H
#define TESSERA_CONFIG_OPTIONS_ROWS_H

#include "config/config_file.h"
#include "config/options.h"

#include <stddef.h>

#define OPTIONS_ROWS_ALL (~0) /* every command */
/* Those that ask a server, which they may start with options behind "--". */
#define OPTIONS_ROWS_WITH_URL (COMMAND_BENCH | COMMAND_BATCH | COMMAND_COMPLETE | COMMAND_CHAT)

enum options_kind { INT32, INT64, BYTES, NUMBER, STRING, CHOICE, FLAG };

struct options_row {
    const char *name, *alias;
    int commands; /* bits of enum command */
    enum options_kind kind;
    size_t offset; /* in struct options */
    double min, max;
    const char *fallback; /* parsed like a value; NULL: stays zero */
    const char *choices;  /* CHOICE: "a|b|c" */
    const char *help;
};
extern const struct options_row options_rows[];
extern const size_t options_rows_count;

/* Parses a value into the row's place in o. ERR_USAGE names option, value and what is wanted. */
enum status options_rows_set(const struct options_row *r, const char *value, struct options *o,
                             struct err *err) MUST_USE;
/* The row with this long name: that of the command, else any other but internal ones; NULL. */
const struct options_row *options_rows_find(enum command command, const char *name);
/* The option of these commands whose name is most like the word, and in *equal another one that is
 * as much; NULL when none is (options_unknown.c). */
const char *options_rows_nearest(int commands, const char *word, const char **equal);
/* The flag that "no-NAME" turns off, as only the command line can say it, and in *meant what NAME
 * has to be elsewhere for that; NULL: there is none of these commands. */
const struct options_row *options_rows_negated(int commands, const char *name, const char *value,
                                               const char **meant);
/* ERR_USAGE for a word of the command line, or a key of a file, that is no option of the command:
 * with what to do instead of an option of other servers, or the nearest name. */
enum status options_unknown_argument(enum command command, const char *arg,
                                     struct err *err) MUST_USE;
enum status options_unknown_key(enum command command, const char *path,
                                const struct config_entry *e, struct err *err) MUST_USE;

/* Sets what TESSERA_... variables say (options_environment.c). Not for internal options. */
enum status options_rows_environment(struct options *o, struct err *err) MUST_USE;
/* "serve", "plan", ...; NULL: no such command (options_help.c). */
const char *options_rows_command(enum command command);
enum command options_rows_command_named(const char *name); /* 0: none */

#endif
