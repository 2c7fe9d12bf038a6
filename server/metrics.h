/* What /metrics shows: the front end's own measurements, and the engine's snapshot as text. */
#ifndef TESSERA_SERVER_METRICS_H
#define TESSERA_SERVER_METRICS_H

#include "config/buf.h"
#include "engine/engine.h"

/* What is measured; the table of metrics.c names it. */
enum metrics_what {
    METRICS_FIRST_TOKEN, /* from the arrival of the request */
    METRICS_INTER_TOKEN, /* between two tokens of a choice */
    METRICS_END_TO_END,  /* from arrival to the end of a choice: e2e = queue + inference + rest */
    METRICS_QUEUE,       /* from arrival to admission */
    METRICS_PREFILL,     /* from admission to the first token */
    METRICS_DECODE,      /* from the first to the last token */
    METRICS_INFERENCE,   /* prefill and decode */
    METRICS_PER_TOKEN,   /* decode / (tokens - 1) */
    METRICS_PROMPT_TOKENS,
    METRICS_GENERATION_TOKENS,
    METRICS_MAX_TOKENS,
    METRICS_N, /* of a request; all others are of a choice */
    METRICS_WHAT_COUNT
};

/* A choice that has ended. Times as of base_now_ns(); 0: it did not come to that. */
struct metrics_choice {
    int64_t arrived_ns, admitted_ns, first_token_ns, last_token_ns, ended_ns;
    int32_t prompt_tokens, tokens, max_tokens;
};

enum metrics_end { METRICS_STOP, METRICS_LENGTH, METRICS_ABORT, METRICS_ERROR, METRICS_END_COUNT };

struct metrics;

/* All functions: any thread; one short lock. */
enum status metrics_open(struct metrics **out, struct err *err) MUST_USE;
void metrics_close(struct metrics *m); /* NULL is fine */
void metrics_observe(struct metrics *m, enum metrics_what what, double value);
void metrics_observe_choice(struct metrics *m, const struct metrics_choice *c);
/* Seconds in the queue of the choice that ended last, of those that ran. */
double metrics_last_wait(struct metrics *m);
void metrics_count_end(struct metrics *m, enum metrics_end how);
/* An HTTP answer, by its status. */
void metrics_count_answer(struct metrics *m, int32_t status);
/* Prometheus text, version 0.0.4. engine NULL: not loaded yet. ready: as /readyz has it. */
void metrics_write(struct metrics *m, const struct engine_metrics *engine, bool ready,
                   const char *model, struct buf *out);

#endif
