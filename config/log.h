/* The log: one line per event on stderr, as text for people, JSON for machines, or with the
 * journal's priorities where stderr is the journal. Text has the time of day on a terminal, the
 * date with it elsewhere, and neither in the journal, which adds its own. Thread-safe. A line is
 * written whole or dropped and counted: a log that nobody reads must not stop the server. */
#ifndef TESSERA_CONFIG_LOG_H
#define TESSERA_CONFIG_LOG_H

#include "config/base.h"

#define LOG_FORMATS "text|json"
#define LOG_LEVELS "error|warning|info|debug"

/* A number, unless text is set. Keys and texts are short; what is long goes into the message. */
struct log_field {
    const char *key, *text;
    double number;
};

/* Words of LOG_FORMATS and LOG_LEVELS; NULL: text, info. Once, before other threads start. */
void log_setup(const char *format, const char *level);
void log_level(enum log_level level);
/* Are lines of that level written? For what costs something to find out. */
bool log_shows(enum log_level level);

/* Control bytes are masked or escaped, and in JSON what is not UTF-8 becomes U+FFFD: nobody's text
 * can forge a line. What does not fit is cut from the message. */
void log_event(enum log_level level, const char *message, const struct log_field *fields,
               size_t count);
/* The line a command ends with when it fails: "tessera: MESSAGE", or an error in JSON. */
void log_failure(const char *message);
/* Lines that could not be written. */
uint64_t log_dropped(void);

#endif
