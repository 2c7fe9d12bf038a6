/* Loader: this rank's slices from the checkpoint into its weights arena.
 * Each rank reads only its own bytes, with pread into staging buffers (never a mapping of the file:
 * a truncated file must be an error, not a SIGBUS). Coverage is counted: every row of every local
 * weight is written exactly once, else ERR_MODEL. */
#ifndef TESSERA_WEIGHTS_LOADER_H
#define TESSERA_WEIGHTS_LOADER_H

#include "weights/checkpoint.h"

#include <stdatomic.h>

/* Opened local weights, in the order of their local_weight. */
struct loaded {
    struct weight **linear; /* [count], NULL for vectors */
    const float **vector;   /* [count], NULL for linears */
    int32_t count;
};

/* Shared progress, written with relaxed atomics while loading; may be NULL. */
#define LOADER_READERS_MAX 8 /* more threads than these are not watched */
struct load_progress {
    _Atomic uint64_t bytes_done;
    _Atomic uint64_t reading[LOADER_READERS_MAX]; /* the read a thread is in; 0: in none */
};
/* A word of `reading`, and back: the file's number and the offset in it, below 2^48. */
uint64_t loader_place(int32_t file, uint64_t offset);
void loader_place_of(uint64_t word, int32_t *file, uint64_t *offset);

/* Opens handles over `arena` (placement_layout's size, zeroed) without filling them. */
enum status loader_open(struct backend *b, const struct local_weight *weights, int32_t count,
                        void *arena, struct loaded *out, struct err *err) MUST_USE;
void loader_close(struct backend *b, struct loaded *l);

/* Fills them from the checkpoint, on the backend's threads. *read_bytes: bytes read from files. */
enum status loader_fill(struct backend *b, const struct checkpoint *c,
                        const struct local_weight *weights, struct loaded *l, int32_t rank,
                        struct load_progress *progress, uint64_t *read_bytes,
                        struct err *err) MUST_USE;
/* Fills them with the values of weights/synth.h instead: --load-format dummy. `rules` as there. */
struct synth_rules;
enum status loader_fill_dummy(struct backend *b, const struct synth_rules *rules,
                              const struct local_weight *weights, struct loaded *l,
                              struct load_progress *progress, struct err *err) MUST_USE;

#endif
