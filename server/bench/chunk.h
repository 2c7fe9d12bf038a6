/* What one JSON object of an OpenAI-style stream says about tokens. Made for untrusted bytes, once
 * per token: no allocation, no tree, no recursion deeper than the format. It is lenient (what it
 * does not need it only skips), because peers differ. */
#ifndef TESSERA_SERVER_BENCH_CHUNK_H
#define TESSERA_SERVER_BENCH_CHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chunk {
    int64_t tokens; /* of all choices: token_ids counted where present, else 1 for any text */
    bool finished;  /* a finish_reason came */
    bool is_error;  /* an "error" member that is not null */
    int64_t prompt_tokens, completion_tokens; /* of "usage"; -1: not given */
};

/* False when the bytes are not a JSON object as far as they were read; *out untouched then. */
bool chunk_read(const char *json, size_t n, struct chunk *out);

#endif
