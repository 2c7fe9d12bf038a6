/* DESIGN: a place is the number of tokens before it. Places with the same `shortest` tokens before
 * them, by their hash, are a chain from the latest to the first; of the latest CANDIDATES the one
 * with most equal tokens is taken, and of those that have as many the latest. */
#include "engine/ngram.h"

#include <stdlib.h>

enum { CANDIDATES = 16, HEAD_BITS_MAX = 16 };
#define MEMORY 8.0 /* of how often guesses come true: weight of the past against one more */

struct ngram {
    struct speculation rules;
    int32_t capacity, length; /* of tokens, with the text before */
    int32_t offset;           /* of that text */
    int32_t from, match; /* the guess: what stands there, after so many equal tokens; 0: none */
    double chance[SPECULATION_GRAM_MAX + 1]; /* by equal tokens */
    int32_t head_bits;
    int32_t *tokens; /* [capacity] */
    int32_t *head;   /* [1 << head_bits] the latest place of a hash; 0: none */
    int32_t *before; /* [capacity + 1] the place before, of the same hash */
};

enum status ngram_open(const struct speculation *s, int32_t capacity, const int32_t *before,
                       int32_t before_count, struct ngram **out, struct err *err)
{
    struct ngram *n = calloc(1, sizeof *n);
    if (!n)
        return base_fail(err, ERR_NOMEM, "no memory for n-grams");
    n->rules = *s;
    n->capacity = capacity + before_count;
    for (int32_t i = 1; i <= s->longest; i++)
        n->chance[i] = 1 - 1.0 / (i + 1);
    while (n->head_bits < HEAD_BITS_MAX && 1 << n->head_bits < n->capacity)
        n->head_bits++;
    n->tokens = calloc((size_t)n->capacity + 1, sizeof *n->tokens);
    n->head = calloc((size_t)1 << n->head_bits, sizeof *n->head);
    n->before = calloc((size_t)n->capacity + 1, sizeof *n->before);
    if (!n->tokens || !n->head || !n->before) {
        ngram_free(n);
        return base_fail(err, ERR_NOMEM, "no memory for n-grams of %d tokens", capacity);
    }
    ngram_follow(n, before, before_count);
    n->offset = before_count;
    *out = n;
    return OK;
}

void ngram_free(struct ngram *n)
{
    if (!n)
        return;
    free(n->tokens);
    free(n->head);
    free(n->before);
    free(n);
}

/* Of the shortest n-gram before a place. */
static int32_t *head_of(struct ngram *n, int32_t place)
{
    const size_t bytes = (size_t)n->rules.shortest * sizeof *n->tokens;
    const uint64_t hash = base_hash(BASE_HASH_INIT, n->tokens + place - n->rules.shortest, bytes);
    /* the high bits of a product know all of it */
    return &n->head[(hash * UINT64_C(0x9e3779b97f4a7c15)) >> (63 - n->head_bits) >> 1];
}

/* How many tokens before two places are equal, up to the longest; a < b. */
static int32_t equal_before(const struct ngram *n, int32_t a, int32_t b)
{
    const int32_t *tokens = n->tokens;
    int32_t equal = 0;
    while (equal < n->rules.longest && equal < a && tokens[a - 1 - equal] == tokens[b - 1 - equal])
        equal++;
    return equal;
}

static void look_up(struct ngram *n, int32_t place)
{
    n->match = 0;
    for (int32_t i = 0, at = *head_of(n, place); i < CANDIDATES && at > 0; i++) {
        const int32_t equal = equal_before(n, at, place);
        if (equal >= n->rules.shortest && equal > n->match) {
            n->match = equal;
            n->from = at;
        }
        if (equal == n->rules.longest)
            break;
        at = n->before[at];
    }
}

static void remember(struct ngram *n, int32_t place)
{
    int32_t *head = head_of(n, place);
    n->before[place] = *head;
    *head = place;
}

void ngram_follow(struct ngram *n, const int32_t *tokens, int32_t length)
{
    const int32_t end = n->offset + length;
    CHECK(end <= n->capacity);
    if (n->match > 0 && end == n->length + 1) {
        const double right = n->tokens[n->from] == tokens[length - 1];
        n->chance[n->match] += (right - n->chance[n->match]) / MEMORY;
    }
    while (n->length < end) {
        n->tokens[n->length] = tokens[n->length - n->offset];
        if (++n->length < n->rules.shortest)
            continue;
        if (n->length == end)
            look_up(n, n->length);
        remember(n, n->length);
    }
}

int32_t ngram_guess(const struct ngram *n, int32_t i)
{
    /* beyond the end it repeats what it has just guessed, as a text that goes round does */
    return n->match > 0 ? n->tokens[n->from + i % (n->length - n->from)] : -1;
}

double ngram_chance(const struct ngram *n, int32_t i)
{
    if (n->match == 0)
        return 0;
    const int32_t equal = n->match + i;
    return n->chance[equal < n->rules.longest ? equal : n->rules.longest];
}
