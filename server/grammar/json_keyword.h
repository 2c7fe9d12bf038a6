/* The keywords of a JSON Schema: which it has, which types it is about, where a reference leads,
 * whether alternatives exclude one another. Pure. */
#ifndef TESSERA_SERVER_GRAMMAR_JSON_KEYWORD_H
#define TESSERA_SERVER_GRAMMAR_JSON_KEYWORD_H

#include "config/jdoc.h"

enum json_type {
    JSON_OBJECT = 1,
    JSON_ARRAY = 2,
    JSON_STRING = 4,
    JSON_INTEGER = 8,
    JSON_NUMBER = 16,
    JSON_TRUTH = 32,
    JSON_NOTHING = 64,
    JSON_ANY_TYPE = 127,
};

struct json_keywords {
    const char *leading; /* $ref, const, enum, anyOf, oneOf, allOf or not: what it is; NULL */
    uint32_t types;      /* enum json_type; by `type`, else by what other keywords are about */
    bool typed, others;  /* it has `type`; it has keywords that are about some type */
};

/* ERR_INPUT: v is no object, or has a keyword that is not supported, alone or beside another. */
enum status json_keywords_read(const struct jdoc *v, struct json_keywords *out,
                               struct err *err) MUST_USE;
/* The types that a value is of: an integer is a number, too. */
uint32_t json_types_of_value(const struct jdoc *v);
/* What "#/..." names in the document (RFC 6901); NULL: nothing, or it is no such reference. */
const struct jdoc *json_ref(const struct jdoc *root, const struct jdoc *ref);
/* Looking through a document, which ends after so many comparisons. */
struct json_search {
    const struct jdoc *root;
    int32_t left;
};
struct json_search json_search(const struct jdoc *root);
enum { JSON_ALTERNATIVES_MAX = 64 };
/* Can no value fulfil two of the schemas, up to so many of them? By their types, their constants,
 * or a required member of both with other constants. False: *a and *b are two of which it is not
 * known. */
bool json_are_apart(struct json_search *s, const struct jdoc *schemas, size_t *a, size_t *b);
/* Does the schema allow objects only? */
bool json_is_object(struct json_search *s, const struct jdoc *schema);

#endif
