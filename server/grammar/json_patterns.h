/* Members whose names match regular expressions: the keyword patternProperties. Names that match
 * two of them are those of both, so these have to say the same, or to be told apart by what stands
 * behind their ^. */
#ifndef TESSERA_SERVER_GRAMMAR_JSON_PATTERNS_H
#define TESSERA_SERVER_GRAMMAR_JSON_PATTERNS_H

#include "server/grammar/json_scope.h"

enum { JSON_PATTERNS_MAX = 16 };

struct json_patterns {
    struct {
        const char *text; /* borrowed */
        const struct jdoc *schema;
        int32_t value; /* the rule of a value, for the caller to set */
    } list[JSON_PATTERNS_MAX];
    int32_t count;
    int8_t *of_required; /* by the place in `required`: which of them its name matches; -1: none */
};

/* Of the schema of an object, whose other keywords are of the right types. To be closed either way.
 * ERR_INPUT: a name that is one of `properties` matches, too. */
enum status json_patterns_open(struct json_scope *s, const struct jdoc *object,
                               struct json_patterns *out, struct err *err) MUST_USE;
void json_patterns_close(struct json_patterns *p);
/* The rule of a member that one of them is about. */
enum status json_patterns_build(struct json_scope *s, const struct json_patterns *p, int32_t *rule,
                                struct err *err) MUST_USE;

#endif
