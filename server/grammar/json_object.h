/* Objects as grammars: members in order, some of them optional, then others by other names. */
#ifndef TESSERA_SERVER_GRAMMAR_JSON_OBJECT_H
#define TESSERA_SERVER_GRAMMAR_JSON_OBJECT_H

#include "server/grammar/json_text.h"

struct json_member {
    const char *name;
    bool required;
    int32_t rule; /* of its value */
};

struct json_members {
    const struct json_member *list;
    int32_t count;
    int32_t other;    /* the rule of a member by another name, with its name; < 0: none */
    int64_t min, max; /* how many in all; max < 0: any number */
};

/* The rule of a member with a value of this rule, whose name has no escapes and is none of the
 * members'. */
enum status json_object_other(const struct json_text *t, const struct json_member *members,
                              int32_t count, int32_t value, int32_t *rule,
                              struct err *err) MUST_USE;
/* The members in their order, then any number of others, as they are written: a name that is there
 * twice counts twice. Ends in GRAMMAR_END. */
enum status json_object_build(const struct json_text *t, const struct json_members *m,
                              int32_t *first, struct err *err) MUST_USE;

#endif
