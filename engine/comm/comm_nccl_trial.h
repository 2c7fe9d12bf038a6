/* What a way of adding up over the ranks is worth on this machine, found out at start: whether its
 * sums are near the truth and the same bits on all ranks, and what they take. All ranks call the
 * same functions in the same order, and learn the same from them. One thread (the rank's); errors
 * are those of the exchange between the ranks, which end the opening. */
#ifndef TESSERA_ENGINE_COMM_COMM_NCCL_TRIAL_H
#define TESSERA_ENGINE_COMM_COMM_NCCL_TRIAL_H

#include "engine/comm/comm.h"

/* Enqueues dst[n] = the sum of the ranks' src[n] in the order of the backend; false: cannot. */
struct comm_way {
    bool (*sum)(void *arg, float *dst, const float *src, size_t n);
    void *arg;
};

struct comm_trial;

/* Sums of up to `space` elements; everything is borrowed. ERR_NOMEM. */
enum status comm_trial_open(struct comm *bootstrap, struct backend *b, size_t space,
                            struct comm_trial **out, struct err *err) MUST_USE;
void comm_trial_close(struct comm_trial *t); /* NULL is fine */

/* Device memory for the sums that follow: [2][space], overwritten by them. */
void comm_trial_use(struct comm_trial *t, float *memory);

struct comm *comm_trial_bootstrap(struct comm_trial *t);
struct backend *comm_trial_backend(struct comm_trial *t);

/* *all: every rank could do what this one could if `mine`. */
enum status comm_trial_agree(struct comm_trial *t, bool mine, bool *all, struct err *err) MUST_USE;
/* *same: all ranks say the same word. */
enum status comm_trial_same(struct comm_trial *t, uint32_t word, bool *same,
                            struct err *err) MUST_USE;
/* Sums of odd sizes up to `most`, compared with fp64, and bit for bit between the ranks, which must
 * all draw the same token. */
enum status comm_trial_check(struct comm_trial *t, const struct comm_way *way, size_t most,
                             bool *good, struct err *err) MUST_USE;

/* Elements: a row or two, some decodes, a batch of them, part of a prompt. The first is cut to what
 * there is space for. */
#define COMM_TRIAL_SIZES 4
struct comm_times {
    size_t n[COMM_TRIAL_SIZES]; /* 0: not timed, nor what follows */
    uint32_t ns[COMM_TRIAL_SIZES];
};
/* Of sums up to `most`, as the first rank has them. */
enum status comm_trial_time(struct comm_trial *t, const struct comm_way *way, size_t most,
                            struct comm_times *out, struct err *err) MUST_USE;
/* ": 16 KiB 5.1 us (9.0 WORD), 64 KiB ..." into text[n]; `other` beside ours. */
void comm_times_tell(const struct comm_times *ours, const struct comm_times *other,
                     const char *word, char *text, size_t n);

#endif
