/* Arrays as grammars. Pure. */
#ifndef TESSERA_SERVER_GRAMMAR_JSON_ARRAY_H
#define TESSERA_SERVER_GRAMMAR_JSON_ARRAY_H

#include "server/grammar/json_text.h"

struct json_elements {
    int64_t min, max;      /* how many; max < 0: any number */
    int64_t prefix_count;  /* the first ones, by rules of their own; */
    const int32_t *prefix; /* [prefix_count] */
    int32_t item;          /* the rule of all others */
};

/* Ends in GRAMMAR_END. */
int32_t json_array_build(const struct json_text *t, const struct json_elements *e);

#endif
