/* Speculation: what --speculative-config says. Tokens are guessed ahead of the model, which then
 * checks several in one step: those it would have drawn itself are kept. */
#ifndef TESSERA_CONFIG_SPECULATION_H
#define TESSERA_CONFIG_SPECULATION_H

#include "config/base.h"

enum {
    SPECULATION_TOKENS_MAX = 31,
    SPECULATION_GRAM_MAX = 16,
};

/* Names of vLLM: num_speculative_tokens, prompt_lookup_min, prompt_lookup_max. */
struct speculation {
    int32_t tokens;            /* most guesses of a sequence in one step; 0: nothing is guessed */
    int32_t shortest, longest; /* n-grams that are looked up; 1 <= shortest <= longest */
};

/* text: "none", "ngram", or a JSON object, {"method": "ngram", "num_speculative_tokens": 7,
 * "prompt_lookup_min": 2, "prompt_lookup_max": 8}, of which each member may be left out. ERR_USAGE
 * names the member, what it is and what is wanted. */
enum status speculation_parse(const char *text, struct speculation *out, struct err *err) MUST_USE;

#endif
