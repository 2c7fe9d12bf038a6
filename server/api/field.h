/* The validation of request fields: one row per field says its type, its range and whether it is
 * honoured; one function applies the rows, another writes them as a JSON schema. What a row does
 * not allow cannot reach the engine. Pure. */
#ifndef TESSERA_SERVER_API_FIELD_H
#define TESSERA_SERVER_API_FIELD_H

#include "config/base.h"
#include "config/buf.h"
#include "config/jdoc.h"
#include "server/api/api_error.h"

#define FIELD_WORD_BYTES_MAX 256 /* of one of FIELD_STRINGS */
#define FIELD_UNKNOWN_MAX 4

enum field_kind {
    FIELD_INT,     /* int_min..int_max, integral floats are accepted; stored as int64_t */
    FIELD_NUMBER,  /* finite, min..max; stored as double */
    FIELD_BOOL,    /* stored as bool */
    FIELD_STRING,  /* int_min..int_max bytes; stored as struct field_string */
    FIELD_CHOICE,  /* one of `choices`; stored as struct field_string */
    FIELD_STRINGS, /* a string, or up to int_max of them; stored as const struct jdoc * */
    FIELD_TOKENS,  /* up to int_max token ids; stored as const struct jdoc * */
    FIELD_BIAS,    /* up to int_max of "token id": number in min..max; as const struct jdoc * */
    FIELD_PROMPT,  /* checked by completion_prompt; stored as const struct jdoc * */
    FIELD_ARRAY,   /* any; stored as const struct jdoc * */
    FIELD_OBJECT,  /* its members go by rows of their own, into the same target; not stored */
    FIELD_OBJECTS, /* int_min..int_max of them, whose members go by rows: field_apply_item; stored
                      as const struct jdoc * */
    FIELD_MAP,     /* up to int_max members of any names; stored as const struct jdoc * */
    FIELD_ANY,     /* any; stored as const struct jdoc * */
};

enum field_use {
    FIELD_USED,        /* stored */
    FIELD_IGNORED,     /* has no effect on the answer; any value is fine */
    FIELD_UNSUPPORTED, /* 400 unless absent, null or neutral */
};

/* Borrowed from the document; may hold NULs, and ends with one. */
struct field_string {
    const char *bytes; /* NULL: absent */
    size_t len;
};
bool field_string_is(const struct field_string *s, const char *text);

struct field {
    const char *name;
    enum field_kind kind;
    enum field_use use;
    int64_t int_min, int_max;
    bool to_columns; /* FIELD_INT: not int_max, but as many as the model's vectors have */
    double min, max;
    bool above_min; /* min itself is refused */
    bool required;
    bool no_default; /* absent means something that no value says */
    /* FIELD_UNSUPPORTED: the value that asks for nothing. Numbers and booleans: this one (NaN:
     * there is none). Arrays and objects: the empty one. Strings: this one, NULL the empty one. */
    double neutral;
    const char *neutral_text;
    const char *why; /* and what to do instead; NULL: "leave it out" */
    /* FIELD_USED: where in the target. The target holds the default already. */
    size_t offset;
    /* FIELD_OBJECT, FIELD_OBJECTS */
    const struct field *members;
    size_t member_count;
    const char *choices; /* FIELD_CHOICE: "a|b|c" */
    const char *schema;  /* FIELD_ANY: what is checked elsewhere, as members of a JSON schema */
};

#define FIELD_PARTS_MAX 3

/* Rows that several kinds of requests may have. */
struct field_rows {
    const struct field *rows;
    size_t count, base; /* base: where in the target the rows' own target begins */
};

/* The fields of one kind of request. */
struct field_set {
    struct field_rows parts[FIELD_PARTS_MAX];
    int32_t vocab;       /* token ids are below it */
    int32_t columns;     /* of vectors */
    int32_t prompts_max; /* of FIELD_PROMPT, where that is less than the row says; 0: it is not */
};

/* Names that no row has: ignored, and worth one line in the log. */
struct field_unknown {
    char names[FIELD_UNKNOWN_MAX][48];
    int32_t count;
};

/* All rows of a set in order: NULL after the last. */
const struct field *field_at(const struct field_set *set, size_t i);
/* The largest number that a FIELD_INT may be. */
static inline int64_t field_int_max(const struct field_set *set, const struct field *row)
{
    return row->to_columns ? set->columns : row->int_max;
}
/* Checks every member of object (null: absent) against its row and stores it into target, which
 * holds the defaults. ERR_INPUT with the field's name, its value and the limit in *e. */
enum status field_apply(const struct field_set *set, const struct jdoc *object, void *target,
                        struct field_unknown *unknown, struct api_error *e) MUST_USE;
/* The same for item i of FIELD_OBJECTS, which has been checked to be one; errors begin with the
 * path of the item. */
enum status field_apply_item(const struct field *row, const struct jdoc *array, size_t i,
                             void *target, struct field_unknown *unknown,
                             struct api_error *e) MUST_USE;
/* The set as a JSON schema of an object; defaults is a target nothing was applied to. */
void field_schema(const struct field_set *set, const void *defaults, struct buf *out);

/* ---- for what rows cannot say ---- */

/* Checks an array of up to max ids and, unless ids is NULL, copies them. */
enum status field_tokens(const char *name, const struct jdoc *array, int64_t max, int32_t vocab,
                         int32_t *ids, struct api_error *e) MUST_USE;
/* A token id written as the key of an object; false unless it is one below vocab. */
bool field_token_key(const char *key, int32_t vocab, int32_t *id) MUST_USE;
/* 400 about a value of the wrong type. */
enum status field_wrong_type(const char *name, const struct jdoc *v, const char *wanted,
                             struct api_error *e);
/* Puts "outer[i]." in front of an error's field and message. */
void field_prefix(struct api_error *e, const char *outer, size_t i);
/* 400 with code unsupported_parameter. */
enum status field_unsupported(const char *name, const struct jdoc *value, struct api_error *e);
/* The value as a client would write it, cut to cap bytes; returns text. */
const char *field_text(const struct jdoc *v, char *text, size_t cap);

#endif
