/* Objects as grammars: members in order, some of them optional, then others by other names. */
#ifndef TESSERA_SERVER_GRAMMAR_JSON_OBJECT_H
#define TESSERA_SERVER_GRAMMAR_JSON_OBJECT_H

#include "server/grammar/json_text.h"

struct json_member {
    const char *name;
    bool required;
    int32_t rule; /* of its value */
};

/* The members in their order, then any number of others, whose values are of rule `other` (< 0:
 * none) and whose names have no escapes and are none of the members'. Ends in GRAMMAR_END. */
enum status json_object_build(const struct json_text *t, const struct json_member *members,
                              int32_t count, int32_t other, int32_t *first,
                              struct err *err) MUST_USE;

#endif
