/* What the probes say: where the server is in its life, how far it has loaded, whether its ranks
 * move. The main thread writes, any thread reads; atomics only, so that no load, lock or engine
 * can delay an answer. */
#ifndef TESSERA_SERVER_HEALTH_H
#define TESSERA_SERVER_HEALTH_H

#include "config/buf.h"
#include "engine/engine.h"
#include "server/api/api_error.h"

#include <stdatomic.h>

enum health_phase {
    HEALTH_STARTING, /* reading headers, binding the port */
    HEALTH_LOADING,
    HEALTH_WARMING, /* all weights are read, not all ranks have said that they are ready */
    HEALTH_READY,
    HEALTH_RECOVERING, /* ranks were lost and start again; requests are taken, and wait */
    HEALTH_DRAINING,
    HEALTH_LOST,
};

struct health {
    _Atomic int phase;
    _Atomic uint64_t bytes_done, bytes_total;         /* of the checkpoint, over all ranks */
    _Atomic int32_t ranks_done, ranks;                /* whose weights are read */
    _Atomic int64_t started_ns, loading_ns, ready_ns; /* 0: not yet */
    double stall_s; /* without progress for so long, the ranks count as hung; immutable */
};

void health_init(struct health *h, double stall_s);
/* Phases only go forward, but from recovering to ready: a server that is lost does not become one
 * that drains. */
void health_enter(struct health *h, enum health_phase phase);
enum health_phase health_phase(const struct health *h);
const char *health_phase_name(enum health_phase phase);
void health_progress(struct health *h, uint64_t bytes_done, int32_t ranks_done);

/* OK: requests are welcome. Else ERR_INPUT with the 503 to send in *e. */
enum status health_check(const struct health *h, struct api_error *e) MUST_USE;
/* As health_check, and there are ranks, and they move or have nothing to do. */
enum status health_check_ready(const struct health *h, const struct engine *engine,
                               struct api_error *e) MUST_USE;
bool health_stalled(const struct health *h, const struct engine *engine); /* NULL: no */

/* "loading weights: 1.2 GiB of 2.0 GiB, 1 of 2 ranks done, 0.4 s left" into buf; returns buf. */
const char *health_text(const struct health *h, char *buf, size_t cap);
/* The same as an object. */
void health_json(const struct health *h, struct buf *out);

#endif
