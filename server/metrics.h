/* What /metrics shows: the front end's own measurements, and the engine's snapshot as text. */
#ifndef TESSERA_SERVER_METRICS_H
#define TESSERA_SERVER_METRICS_H

#include "config/buf.h"
#include "engine/engine.h"

enum metrics_time {
    METRICS_FIRST_TOKEN, /* from the arrival of the request */
    METRICS_INTER_TOKEN, /* between two tokens of a choice */
    METRICS_END_TO_END,  /* from arrival to the end of a choice */
    METRICS_TIME_COUNT
};

enum metrics_end { METRICS_STOP, METRICS_LENGTH, METRICS_ABORT, METRICS_ERROR, METRICS_END_COUNT };

struct metrics;

/* All functions: any thread; one short lock. */
enum status metrics_open(struct metrics **out, struct err *err) MUST_USE;
void metrics_close(struct metrics *m); /* NULL is fine */
void metrics_observe(struct metrics *m, enum metrics_time what, double seconds);
void metrics_count_end(struct metrics *m, enum metrics_end how);
/* Prometheus text, version 0.0.4. engine NULL: not loaded yet. */
void metrics_write(struct metrics *m, const struct engine_metrics *engine, const char *model,
                   struct buf *out);

#endif
