/* Starting and stopping the engine: for serve.c and tests; all others need engine.h only. */
#ifndef TESSERA_ENGINE_ENGINE_THREAD_H
#define TESSERA_ENGINE_ENGINE_THREAD_H

#include "engine/board.h"
#include "engine/engine.h"
#include "engine/link.h"
#include "engine/sched.h"

/* The ranks that run the steps, all of one start. */
struct engine_group {
    uint32_t epoch;
    struct link_set *links;
    const struct board *board;
};

/* Everything borrowed must outlive the engine, but for the group, which may be lost and replaced:
 *
 *   on_lost (or whoever else finds out)  ->  engine_pause  ->  engine_resume, or engine_lost
 */
struct engine_config {
    struct sched_config sched; /* the secret is drawn by engine_open, */
    bool measure_costs;        /* sched.costs by a few steps before the first request */
    int64_t queued_tokens_max; /* prompt tokens that wait, beside sched.waiting_max requests */
    int32_t ranks;
    enum dtype kv_dtype; /* told to metrics */
    struct engine_group group;
    double step_timeout; /* seconds without progress of any layer */
    engine_sink *sink;
    void *sink_ctx;
    /* On the engine thread, once for each loss. The requests wait from then on. NULL: a loss is
     * final, as engine_lost says. */
    void (*on_lost)(void *ctx);
    void *on_lost_ctx;
};

/* Starts the engine thread; the ranks are ready. */
enum status engine_open(const struct engine_config *config, struct engine **out,
                        struct err *err) MUST_USE;
/* The ranks are lost: once this returns the engine uses them no more, and requests wait; new ones
 * are taken as long as the queue has room. Not on the engine thread. */
void engine_pause(struct engine *e);
/* Other ranks, as many and with as much memory, are ready: all that was running is computed again,
 * to the same tokens, and goes on. After engine_pause. */
void engine_resume(struct engine *e, const struct engine_group *group);
/* The ranks are lost for good: every request ends with FINISH_ERROR. Any thread. */
void engine_lost(struct engine *e);
/* Ends what runs (FINISH_CANCELLED) and joins the thread; submissions fail from now on. */
void engine_stop(struct engine *e);
/* Stops and frees; NULL is fine. Nobody may call the engine any more. */
void engine_close(struct engine *e);

#endif
