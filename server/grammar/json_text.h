/* The words of JSON (RFC 8259) as grammars. They are a part of what JSON allows, in which a model
 * cannot lose itself: white space is at most a space, or a line feed and an indentation, and never
 * before a comma or a colon; numbers have as many digits as a double or an int64 can tell apart;
 * strings have no NUL and no lone surrogates. */
#ifndef TESSERA_SERVER_GRAMMAR_JSON_TEXT_H
#define TESSERA_SERVER_GRAMMAR_JSON_TEXT_H

#include "engine/grammar/grammar.h"

enum {
    JSON_TEXT_SPACES_MAX = 20, /* of an indentation, or */
    JSON_TEXT_TABS_MAX = 10,
    JSON_TEXT_DIGITS_MAX = 18,
    JSON_TEXT_FRACTION_MAX = 17,
};

/* Rules of one grammar; to be called. */
struct json_text {
    struct grammar *g;
    int32_t space;     /* that may be between words: nothing, too */
    int32_t character; /* of a string, as JSON writes it */
    int32_t string, number, integer, value, object;
};

/* Declares and defines them. g is borrowed. */
void json_text_open(struct json_text *t, struct grammar *g);

/* `text` and the space that may follow it. */
int32_t json_text_word(const struct json_text *t, const char *text, int32_t next);
/* A member's name as JSON writes it, and the colon. */
int32_t json_text_name(const struct json_text *t, const char *name, int32_t next);
/* A digit. */
int32_t json_text_digit(const struct json_text *t, int32_t next);
/* A character that stands in a string as it is, of lo..hi. */
int32_t json_text_plain(const struct json_text *t, uint32_t lo, uint32_t hi, int32_t next);

#endif
