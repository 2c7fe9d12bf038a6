/* Private to config/options*.c: the table of options, and what finds and sets one of its rows. */
#ifndef TESSERA_CONFIG_OPTIONS_ROWS_H
#define TESSERA_CONFIG_OPTIONS_ROWS_H

#include "config/options.h"

#include <stddef.h>

#define OPTIONS_ROWS_ALL (~0) /* every command */

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
/* The option of these commands whose name is most like the word; NULL when none is much like it. */
const char *options_rows_nearest(int commands, const char *word);

/* Sets what TESSERA_... variables say (options_environment.c). Not for internal options. */
enum status options_rows_environment(struct options *o, struct err *err) MUST_USE;
/* "serve", "plan", ...; NULL: no such command (options_help.c). */
const char *options_rows_command(enum command command);
enum command options_rows_command_named(const char *name); /* 0: none */

#endif
