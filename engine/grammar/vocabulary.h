/* Vocabulary: the bytes of every token that has text, as a tree in which tokens that begin alike
 * share their beginning, so that what may follow is found without asking each token by itself.
 * Immutable once open: any thread may use it. */
#ifndef TESSERA_ENGINE_GRAMMAR_VOCABULARY_H
#define TESSERA_ENGINE_GRAMMAR_VOCABULARY_H

#include "config/base.h"

enum { VOCABULARY_TOKEN_BYTES_MAX = 1024 }; /* longer ones are left out */

/* A byte on the way to a token. The tree is stored depth first: what begins with this node's bytes
 * follows it, up to `end`. */
struct vocabulary_node {
    int32_t end;
    int32_t token;  /* the first that ends here; -1: none does */
    uint16_t depth; /* bytes up to here, this one included */
    uint8_t byte;
};

struct vocabulary;
/* The text of a token; *n = 0 for one that has none (control tokens). Valid until the next call. */
typedef const char *vocabulary_text(const void *ctx, int32_t id, int32_t *n);

enum status vocabulary_open(int32_t vocab, vocabulary_text *text, const void *ctx,
                            struct vocabulary **out, struct err *err) MUST_USE;
void vocabulary_close(struct vocabulary *v); /* NULL is fine */

int32_t vocabulary_count(const struct vocabulary *v); /* V, tokens without text included */
const struct vocabulary_node *vocabulary_nodes(const struct vocabulary *v, int32_t *count);
/* The next token with the same text; -1: there is none. */
int32_t vocabulary_same(const struct vocabulary *v, int32_t token);
/* Its bytes; *n = 0: it has no text, or is left out. */
const char *vocabulary_bytes(const struct vocabulary *v, int32_t token, int32_t *n);

#endif
