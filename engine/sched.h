/* Scheduler: waiting and running sequences -> the next step. Pure: no clock, thread or I/O, so it
 * can be simulated. Not thread-safe: the engine thread's.
 *
 * A step holds one row for every running sequence that decodes, then prompt chunks in order of
 * arrival until the row budget is used. A sequence is admitted when a slot and all the blocks it
 * can ever need are free; admission is first come, first served, so nobody starves.
 *
 * A step has as many sample places as slots. A prompt that is scored (prompt_logprobs) takes one
 * per row, so its chunks are as long as there are places left after the decodes. */
#ifndef TESSERA_ENGINE_SCHED_H
#define TESSERA_ENGINE_SCHED_H

#include "engine/engine.h"
#include "engine/kv.h"
#include "engine/step.h"

struct sched_config {
    struct step_limits limits;
    int32_t waiting_max;
    int32_t max_model_len;
    int32_t eos[8];
    int32_t eos_count;
};

/* One request on its way through the engine. The engine allocates it; the scheduler owns it from
 * sched_submit until the step's events are collected, and frees it. */
struct sequence {
    uint64_t id;
    void *user;
    struct request_params params; /* its arrays are in rules */
    struct sample_rules *rules;
    int32_t *tokens; /* prompt, then what was sampled; capacity prompt_len + max_tokens */
    int32_t prompt_len, length;
    int32_t computed; /* positions whose KV is in the cache (or in the step in flight) */
    int32_t slot;     /* -1 while waiting */
    int32_t *blocks;
    int32_t block_count, block_limit; /* taken, and taken + reserved */
    bool cancelled, in_flight;
    int64_t admitted_ns; /* the scheduler's time then; 0: not yet */
    struct sequence *next;
};

/* Allocates a sequence with room for prompt and answer; max_tokens is cut to the context. */
enum status sched_sequence(const struct sched_config *c, const struct request_params *params,
                           const int32_t *prompt, int32_t prompt_len, struct sequence **out,
                           struct err *err) MUST_USE;
void sched_sequence_free(struct sequence *s);

struct sched;
enum status sched_open(const struct sched_config *c, struct sched **out, struct err *err) MUST_USE;
void sched_close(struct sched *s);

/* s becomes the scheduler's. False (still the caller's) when the waiting list is full. */
bool sched_submit(struct sched *s, struct sequence *seq) MUST_USE;
/* Unknown ids are ignored: the request has ended. */
void sched_cancel(struct sched *s, uint64_t id);
/* What time it is, for the events; no decision depends on it. */
void sched_set_time(struct sched *s, int64_t now_ns);
/* Fills the next step (cleared first). False when there is nothing to compute. Waiting sequences
 * that were cancelled end here: their events are appended to `events` (room for waiting_max +
 * slots), *count says how many. */
bool sched_build(struct sched *s, struct step *step, struct token_event *events, int32_t *count);
/* Takes what came of the step built last; appends one event per token, scored or produced, and
 * terminal event. Events borrow from the result. */
void sched_commit(struct sched *s, const struct step *step, const struct step_result *result,
                  struct token_event *events, int32_t *count);
/* Ends everything with `reason`; the step in flight, if any, is forgotten. */
void sched_end_all(struct sched *s, enum finish_reason reason, struct token_event *events,
                   int32_t *count);
/* Most events one call can produce. */
int32_t sched_events_max(const struct sched_config *c);

int32_t sched_running(const struct sched *s);
int32_t sched_waiting(const struct sched *s);
const struct kv_pool *sched_kv(const struct sched *s);

#endif
