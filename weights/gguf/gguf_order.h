/* Where the rows of a checkpoint's tensor are in a GGUF file that has them in another order: those
 * of layers that recur, by their heads. llama.cpp has what is of one kind together, and value heads
 * in turns of their key heads; a checkpoint has what is of one key head together. */
#ifndef TESSERA_WEIGHTS_GGUF_GGUF_ORDER_H
#define TESSERA_WEIGHTS_GGUF_GGUF_ORDER_H

#include "config/model_config.h"

#define GGUF_ORDER_PARTS 4

/* Strands of rows that follow each other in the file, and of which each gives `unit` rows whenever
 * it is its turn. */
struct gguf_order_part {
    int64_t from; /* where the first strand begins in the file; the others follow */
    int64_t strands, unit;
};

/* Rows, or columns, or values of a vector. */
struct gguf_order {
    int64_t still; /* so many come first, and are where they were */
    int64_t turns; /* of every strand; 0: all are where they were */
    struct gguf_order_part parts[GGUF_ORDER_PARTS]; /* in their order within a turn */
};

enum gguf_order_kind {
    GGUF_ORDER_NONE,
    GGUF_ORDER_VALUES,      /* one of each value head */
    GGUF_ORDER_VALUE_ROWS,  /* value_dim of each value head */
    GGUF_ORDER_CHANNELS,    /* queries and keys, which stay; then the same */
    GGUF_ORDER_VALUE_COLS,  /* value_dim columns of each value head: from the file's to ours */
    GGUF_ORDER_BY_KEY_HEAD, /* of two tensors, the second behind the first: queries, keys and
                               values; gates. In the checkpoint by key head */
};

/* r: with keys and values. */
struct gguf_order gguf_order_of(enum gguf_order_kind kind, const struct recurrent_config *r);
/* The rows that an order is about, of those it moves and those that stay; 0: of any number. */
int64_t gguf_order_rows(const struct gguf_order *o);
/* Where row i is; *run: so many, from it on, follow each other there, too. i is below
 * gguf_order_rows where that is not 0. */
int64_t gguf_order_at(const struct gguf_order *o, int64_t i, int64_t *run);

#endif
