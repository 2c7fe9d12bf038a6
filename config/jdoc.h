/* The one door to jansson: bounded JSON in, typed access with errors that name the path.
 * Values are borrowed from their document and valid until jdoc_close of the root. */
#ifndef TESSERA_CONFIG_JDOC_H
#define TESSERA_CONFIG_JDOC_H

#include "config/base.h"
#include "config/buf.h"

#define JDOC_REQUEST_BYTES_MAX (4 << 20) /* of what a user says; no body may be larger */

struct jdoc; /* any JSON value */

enum jdoc_type { JDOC_NULL, JDOC_BOOL, JDOC_INT, JDOC_REAL, JDOC_STRING, JDOC_ARRAY, JDOC_OBJECT };

/* Checked before jansson sees a byte, because a small text can become a large tree:
 * bytes, nesting, and structural tokens (brackets, commas, colons). */
struct jdoc_limits {
    size_t bytes_max;
    int32_t depth_max;
    size_t tokens_max;
    bool nul;     /* "\\u0000" may stand in strings, but never in keys */
    bool big;     /* integers beyond int64_t are read, as reals */
    bool repeats; /* of two members with one name the last counts; else they are refused */
};
extern const struct jdoc_limits jdoc_limits_request; /* 4 MiB, 64, 200 000, NUL: what a user says */
extern const struct jdoc_limits jdoc_limits_call;    /* the same, whatever models say */
extern const struct jdoc_limits jdoc_limits_config;  /* the same without NUL: names and numbers */
extern const struct jdoc_limits jdoc_limits_file;    /* 100 MB, 64, 20 million, no NUL */
extern const struct jdoc_limits jdoc_limits_tokenizer; /* the same with any size of integers */

/* A number's text: digits alone, with or without a sign, and beyond int64_t? */
bool jdoc_is_huge(const char *number, size_t n);
/* Strict: one value, valid UTF-8, no duplicate keys unless the limits say so. `where` names the
 * text in messages. */
enum status jdoc_parse(const char *text, size_t n, const struct jdoc_limits *limits,
                       const char *where, struct jdoc **out, struct err *err) MUST_USE;
enum status jdoc_load(const char *path, struct jdoc **out, struct err *err) MUST_USE;
void jdoc_close(struct jdoc *root);

enum jdoc_type jdoc_type(const struct jdoc *v);
const char *jdoc_type_name(enum jdoc_type t);
/* Object member, NULL when absent. An explicit null is returned as a value of type JDOC_NULL. */
const struct jdoc *jdoc_get(const struct jdoc *object, const char *key);
/* As jdoc_get, but null counts as absent. */
const struct jdoc *jdoc_get_value(const struct jdoc *object, const char *key);
/* The member if it is of that type; NULL: it is not, or what it was looked for in is no object, or
 * NULL. So that a path can be followed in text from anywhere. */
const struct jdoc *jdoc_member(const struct jdoc *in, const char *key, enum jdoc_type type);
size_t jdoc_size(const struct jdoc *array_or_object);
const struct jdoc *jdoc_at(const struct jdoc *array, size_t i);
/* Members of an object in file order: start with iter = NULL, until NULL comes back. */
void *jdoc_iter(const struct jdoc *object, void *iter, const char **key, const struct jdoc **value);

/* As JSON text without spaces; b->failed when it could not be. */
void jdoc_write(const struct jdoc *v, struct buf *out);

bool jdoc_bool(const struct jdoc *v);   /* of JDOC_BOOL */
int64_t jdoc_int(const struct jdoc *v); /* of JDOC_INT */
/* An integer, or a real with an integral value that int64_t holds, as 192.0. */
bool jdoc_whole(const struct jdoc *v, int64_t *out);
double jdoc_number(const struct jdoc *v); /* of JDOC_INT or JDOC_REAL */
const char *jdoc_string(const struct jdoc *v);
size_t jdoc_string_len(const struct jdoc *v);

#endif
