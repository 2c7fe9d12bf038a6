/* Starting and stopping the engine: for serve.c and tests; the server proper needs engine.h only.
 */
#ifndef TESSERA_ENGINE_ENGINE_THREAD_H
#define TESSERA_ENGINE_ENGINE_THREAD_H

#include "engine/board.h"
#include "engine/engine.h"
#include "engine/link.h"
#include "engine/sched.h"

/* Everything borrowed must outlive the engine. */
struct engine_config {
    struct sched_config sched; /* the secret is drawn by engine_open, */
    bool measure_costs;        /* sched.costs by a few steps before the first request */
    int64_t queued_tokens_max; /* prompt tokens that wait, beside sched.waiting_max requests */
    int32_t ranks;
    uint32_t epoch;
    struct link_set *links;
    const struct board *board;
    double step_timeout; /* seconds without progress of any layer */
    engine_sink *sink;
    void *sink_ctx;
    void (*on_lost)(void *ctx); /* on the engine thread, once; may be NULL */
    void *on_lost_ctx;
};

/* Starts the engine thread; the ranks are ready. */
enum status engine_open(const struct engine_config *config, struct engine **out,
                        struct err *err) MUST_USE;
/* The group is lost: every request ends with FINISH_ERROR. Any thread. */
void engine_lost(struct engine *e);
/* Ends what runs (FINISH_CANCELLED) and joins the thread; submissions fail from now on. */
void engine_stop(struct engine *e);
/* Stops and frees; NULL is fine. Nobody may call the engine any more. */
void engine_close(struct engine *e);

#endif
