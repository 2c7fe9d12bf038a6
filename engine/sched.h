/* Scheduler: waiting and running sequences -> the next step. Pure: no clock, thread or I/O, so it
 * can be simulated. Not thread-safe: the engine thread's.
 *
 * A step holds one row for every running sequence that decodes, then prompt rows in turns
 * (engine/queue.h) until the row budget is used, or the time that streams have to give: with one
 * prompt to compute a step takes at most twice as long as its decodes alone would, and once more
 * for each further prompt, up to eight times.
 *
 * SCHED_FLIGHTS steps may be under way: the next one is built before the answer to the last is
 * there, so a row names its slot where its token is not known here. A row that had to see an answer
 * first would skip a step; while one must (its request has a guide, or guesses may follow what it
 * draws), no step is built ahead.
 *
 * A sequence whose last tokens stood somewhere in it before (engine/ngram.h) may have rows for what
 * followed there, besides its own: each is a guess, and each draws what comes after it. As long as
 * what is drawn is what was guessed, the next row is right, too. So a step yields several tokens,
 * and they are those that single steps would have drawn. Guesses get rows where they are likely
 * enough to yield more tokens in the time, by the measured costs, and while no prompt can have
 * any.
 *
 * Each sequence is in one home (struct step_limits): its blocks are of that home's pool, and those
 * who run short of blocks take them from others in it. It gets its home with its slot and keeps it
 * as long; a prompt that fills the rows of its home leaves those of other homes to whoever is next,
 * of the same client too.
 *
 * Of sample places a step has at least one for each slot. A prompt that is scored (prompt_logprobs)
 * takes one per row, so its chunks are as long as there are places left after the decodes. */
#ifndef TESSERA_ENGINE_SCHED_H
#define TESSERA_ENGINE_SCHED_H

#include "config/speculation.h"
#include "engine/costs.h"
#include "engine/engine.h"
#include "engine/sequence.h"
#include "engine/step.h"

enum { SCHED_FLIGHTS = 2 }; /* steps built and not committed */
enum { SCHED_LOSSES = 3 };  /* groups that may be lost over one request, before it is given up */

struct sched_config {
    struct step_limits limits;
    int32_t waiting_max; /* requests beside those that fill the slots */
    int32_t max_model_len;
    int32_t eos[8];
    int32_t eos_count;
    bool prefix_caching;
    struct speculation speculation;
    struct costs costs; /* all zero: no step is too long */
    uint64_t secret[2]; /* of the prefix cache's hash */
};

struct sched;
enum status sched_open(const struct sched_config *c, struct sched **out, struct err *err) MUST_USE;
void sched_close(struct sched *s);

/* Requests that have not ended: the caller keeps to it. */
int32_t sched_requests_max(const struct sched_config *c);
/* seq becomes the scheduler's. */
void sched_submit(struct sched *s, struct sequence *seq);
/* Unknown ids are ignored: the request has ended. */
void sched_cancel(struct sched *s, uint64_t id);
/* What time it is, for the events; no decision depends on it. */
void sched_set_time(struct sched *s, int64_t now_ns);
/* What steps take, once it is known. */
void sched_set_costs(struct sched *s, const struct costs *costs);
/* Fills the next step (cleared first); fewer than SCHED_FLIGHTS are in flight. False when there is
 * nothing to compute, or nothing before a step in flight is answered. Sequences that were cancelled
 * end here: their events are appended to `events`, *count says how many. */
bool sched_build(struct sched *s, struct step *step, struct token_event *events, int32_t *count);
/* Takes what came of the oldest step in flight, which is given again; appends one event per token,
 * scored or produced, and terminal event. Events borrow from the result. */
void sched_commit(struct sched *s, const struct step *step, const struct step_result *result,
                  struct token_event *events, int32_t *count);
/* The ranks are lost, and others will run the next step: steps in flight are forgotten, and all
 * that was computed is computed again, to the same tokens. A request that was in flight in
 * SCHED_LOSSES groups that were lost may be the reason: it ends with FINISH_ERROR. */
void sched_restart(struct sched *s, struct token_event *events, int32_t *count);
/* Ends everything with `reason`; steps in flight are forgotten, and so are all cached prefixes. */
void sched_end_all(struct sched *s, enum finish_reason reason, struct token_event *events,
                   int32_t *count);
/* Most events one call can produce. */
int32_t sched_events_max(const struct sched_config *c);

int32_t sched_in_flight(const struct sched *s); /* steps */
struct sched_stats {
    int32_t running, waiting;             /* sequences with and without a slot */
    int64_t waiting_tokens;               /* of the prompts that wait */
    uint64_t prompt_tokens;               /* of the prompts that were computed or found */
    uint64_t prefix_queries, prefix_hits; /* prompt tokens looked up, and found */
    uint64_t preemptions;
    uint64_t drafts, guesses;                  /* decodes that had guesses behind them, and those */
    uint64_t accepted[SPECULATION_TOKENS_MAX]; /* guesses that were right, by their place */
    int64_t blocks_used;                       /* of all homes */
    int32_t states_kept;                       /* as states_kept() */
};
struct sched_stats sched_stats(const struct sched *s);
/* For tests; states: NULL where no layer recurs or nothing is cached. */
const struct kv_pool *sched_kv(const struct sched *s, int32_t home);
const struct states *sched_states(const struct sched *s);

#endif
