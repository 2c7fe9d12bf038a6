/* The names that members may have, by the keyword propertyNames. */
#ifndef TESSERA_SERVER_GRAMMAR_JSON_NAMES_H
#define TESSERA_SERVER_GRAMMAR_JSON_NAMES_H

#include "server/grammar/json_scope.h"

struct json_names {
    enum {
        JSON_NAMES_ANY,
        JSON_NAMES_LISTED,  /* those of `values` that are strings */
        JSON_NAMES_WRITTEN, /* by the keywords about strings of `schema` */
    } kind;
    const struct jdoc *schema, *values; /* one value or a list; NULL: no name is allowed */
    int32_t rule;                       /* of a name that is written, with its quotes */
};

/* Of propertyNames, which may be NULL: any. ERR_INPUT: it is not supported. */
enum status json_names_read(struct json_scope *s, const struct jdoc *property_names,
                            struct json_names *out, struct err *err) MUST_USE;
/* Name number i of those that are listed, in its order; NULL: that value is none. *end: there are
 * no more. */
const char *json_names_listed(const struct json_names *names, size_t i, bool *end);
/* ERR_INPUT: the member's name is not allowed. */
enum status json_names_check(struct json_scope *s, const struct json_names *names, const char *name,
                             struct err *err) MUST_USE;

#endif
