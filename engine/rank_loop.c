/* DESIGN: the front end sends a step while the one before runs. Where launching one only enqueues
 * it, that happens as soon as it is here, so the device goes from step to step without waiting for
 * the host; else each step is answered before the next is read. */
#include "engine/rank_loop.h"

#include "engine/group.h"
#include "engine/link.h"

#include <stdlib.h>
#include <string.h>

enum status rank_loop_answer(const struct options *o, uint32_t epoch, uint64_t seq,
                             const struct step_result *result, enum status status,
                             const struct err *text, struct err *err)
{
    struct step_answer head = {
        .magic = STEP_ANSWER_MAGIC,
        .epoch = epoch,
        .seq = seq,
        .hash = step_hash(result->ids, result->count),
        .rank = o->rank,
        .status = (int32_t)status,
        .text_bytes = status == OK ? 0 : (int32_t)strnlen(text->text, sizeof text->text - 1),
    };
    if (o->rank == 0)
        step_answer_counts(&head, result);
    return link_answer(GROUP_FD_LINK, &head, result, text->text, err);
}

enum status rank_loop_report(const struct options *o, const struct board_rank *board,
                             struct err *err)
{
    return o->remote ? link_report(GROUP_FD_LINK, board, true, err) : OK;
}

/* Where steps come from. */
struct feed {
    struct step *step; /* the last one, or the word to stop */
    void *message;
    size_t cap;
    uint64_t last_seq;
};

/* A step that was launched, or could not be. */
struct flight {
    uint32_t epoch;
    uint64_t seq;
    enum status launched;
    struct err failure;
};

static enum status take(struct rank *r, struct feed *f, struct flight *out, struct err *err)
{
    enum status st = OK;
    struct step *step = f->step;
    size_t n;
    TRY(link_receive(GROUP_FD_LINK, f->message, f->cap, &n, err));
    TRY(step_decode(step, f->message, n, err));
    if (step->stop)
        goto out;
    if (step->seq != f->last_seq + 1) {
        st = base_fail(err, ERR_COMM, "step %llu after %llu", (unsigned long long)step->seq,
                       (unsigned long long)f->last_seq);
        goto out;
    }
    f->last_seq = step->seq;
    *out = (struct flight){.epoch = step->epoch, .seq = step->seq};
    out->launched = rank_launch(r, step, NULL, &out->failure);
out:
    return st;
}

static enum status finish(struct rank *r, const struct options *o, const struct board_rank *board,
                          struct flight *f, struct err *err)
{
    struct step_result result = {0};
    enum status ran = f->launched, st = OK;
    if (ran == OK)
        ran = rank_land(r, &result, &f->failure);
    TRY(rank_loop_report(o, board, err));
    st = rank_loop_answer(o, f->epoch, f->seq, &result, ran, &f->failure, err);
out:
    return st;
}

/* Waits for what is first: the next message, or the landing of the oldest step. */
static bool is_next_first(const struct rank *r)
{
    while (!rank_landed(r))
        if (link_waits(GROUP_FD_LINK))
            return true;
    return false;
}

enum status rank_loop(struct rank *r, const struct options *o, const struct board_rank *board,
                      const struct step_limits *limits, struct err *err)
{
    enum status st = OK;
    struct flight flights[BACKEND_FLIGHTS];
    const uint64_t most = rank_flies(r) ? BACKEND_FLIGHTS : 1;
    uint64_t taken = 0, answered = 0;
    struct feed f = {.cap = step_bytes_max(limits)};
    f.message = malloc(f.cap);
    if (!f.message)
        return base_fail(err, ERR_NOMEM, "rank: no memory for a step message");
    TRY(step_open_new(limits, &f.step, err));
    for (;;) {
        while (!f.step->stop && taken - answered < most &&
               (taken == answered || is_next_first(r))) {
            TRY(take(r, &f, &flights[taken % BACKEND_FLIGHTS], err));
            taken += !f.step->stop;
        }
        if (taken == answered)
            break;
        TRY(finish(r, o, board, &flights[answered++ % BACKEND_FLIGHTS], err));
    }
out:
    step_free(f.step);
    free(f.message);
    return st;
}
