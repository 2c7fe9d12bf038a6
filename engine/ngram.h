/* N-grams: where the last tokens of a sequence stood before, and so what may follow them now. What
 * quotes, corrects or repeats says much of it a second time (prompt lookup decoding, A. Saxena
 * 2023; the search is that of LZ77 compressors). One owner at a time, as its sequence. */
#ifndef TESSERA_ENGINE_NGRAM_H
#define TESSERA_ENGINE_NGRAM_H

#include "config/speculation.h"

struct ngram;

/* For up to `capacity` tokens. before: a text that it may say, too, [before_count], copied; places
 * in it come before all others. */
enum status ngram_open(const struct speculation *s, int32_t capacity, const int32_t *before,
                       int32_t before_count, struct ngram **out, struct err *err) MUST_USE;
void ngram_free(struct ngram *n);

/* tokens[0, length) are known; those known before are the same. Of a single new one it is counted
 * whether it had been guessed. Time does not depend on the length, but for new tokens. */
void ngram_follow(struct ngram *n, const int32_t *tokens, int32_t length);
/* The token guessed for position length + i, i >= 0; -1: there is no guess at all. */
int32_t ngram_guess(const struct ngram *n, int32_t i);
/* How likely it is that guess i is right, if all before are: as often as the next token was right
 * after places that were as much alike. 0: there is no guess. */
double ngram_chance(const struct ngram *n, int32_t i);

#endif
