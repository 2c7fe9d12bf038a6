/* What the parts of the loader share. Private to weights/. */
#ifndef TESSERA_WEIGHTS_LOADER_JOB_H
#define TESSERA_WEIGHTS_LOADER_JOB_H

#include "weights/loader.h"

struct item {
    int32_t weight;
    struct span rows; /* of the local weight; of a vector: elements */
};

struct job {
    struct backend *backend;
    const struct checkpoint *c;      /* NULL: dummy values */
    const struct synth_rules *rules; /* when c is NULL */
    const struct local_weight *weights;
    struct loaded *l;
    int32_t rank;
    struct load_progress *progress;

    struct item *items;
    struct fp8_scales *scales; /* [weights][slices_max], of those quantised in the file */
    size_t slices_max;         /* of a weight */
    int64_t item_count;
    size_t staging_bytes;
    _Atomic int64_t *written; /* rows per weight */
    _Atomic int64_t next;
    _Atomic int32_t workers;
    _Atomic uint64_t read_bytes;
    _Atomic bool failed; /* st and *err are whole when the threads have ended */
    enum status st;
    struct err *err;
};

/* What one thread has of its own. */
struct worker {
    char *staging;
    _Atomic uint64_t *reading; /* NULL: nobody watches */
};

/* A rectangle of a tensor into `to`, in the type of checkpoint_type. */
enum status loader_read(struct job *j, const struct checkpoint_tensor *t, struct span rows,
                        struct span cols, void *to, const struct worker *own,
                        struct err *err) MUST_USE;
/* Rows of values into a weight, from its row `at` on, that begin `stride` bytes apart. */
void loader_put(struct job *j, int32_t weight, int64_t at, int64_t rows, const void *values,
                enum dtype dtype, size_t stride, const struct worker *own);
/* So many bytes were read. */
void loader_count(struct job *j, uint64_t bytes);

/* Rows of one slice, of the tensor, into the weight from its row `at` on; all of this for one form
 * of weights whose scales are read with their codes. */
enum status loader_blocks_fill(struct job *j, int32_t weight, const struct tensor_slice *s,
                               struct span rows, int64_t at, const struct worker *own,
                               struct err *err) MUST_USE;
size_t loader_blocks_row_bytes(const struct local_weight *w); /* of a row in staging */
enum status loader_packed_fill(struct job *j, int32_t weight, const struct tensor_slice *s,
                               struct span rows, int64_t at, const struct worker *own,
                               struct err *err) MUST_USE;
size_t loader_packed_bytes(const struct local_weight *w, size_t rows); /* of rows in staging */
/* Are a weight's matrices of the shape, and their columns in the order, that we take them for, and
 * without a bias that the model has not? */
enum status loader_packed_check(struct job *j, const struct local_weight *w,
                                struct err *err) MUST_USE;

#endif
