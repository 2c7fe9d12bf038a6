/* The engine as the server sees it: tokens in, tokens out. Owns the engine thread, which owns
 * scheduler, KV blocks and links. All functions are safe from any thread. */
#ifndef TESSERA_ENGINE_ENGINE_H
#define TESSERA_ENGINE_ENGINE_H

#include "config/base.h"
#include "engine/comm/comm.h"

enum finish_reason {
    FINISH_NONE,
    FINISH_STOP,   /* an end-of-sequence token (counted, carried by the event) */
    FINISH_LENGTH, /* max_tokens or the context is used up */
    FINISH_CANCELLED,
    FINISH_ERROR, /* the group is lost or the row failed */
};

/* Validated by the server before submission; the engine only checks. */
struct request_params {
    int32_t max_tokens; /* >= 1; the engine cuts it to the context */
    float temperature;  /* 0 = greedy */
    float top_p, min_p;
    int32_t top_k;
    uint64_t seed; /* always set: the server draws one when the client gave none */
    int32_t choice;
    bool ignore_eos;
};

/* One per produced token, and exactly one terminal event (finish != FINISH_NONE) per request. */
struct token_event {
    uint64_t request;
    void *user;    /* as given at submission */
    int32_t token; /* -1: none (cancelled, error) */
    enum finish_reason finish;
};

/* Called on the engine thread, once per step with all its events. Must not block and must not call
 * the engine except engine_cancel. */
typedef void engine_sink(void *ctx, const struct token_event *events, int32_t count);

struct engine;

/* Puts a request into the bounded mailbox; the prompt is copied. ERR_LIMIT: mailbox and waiting
 * queue are full (HTTP 429). ERR_INPUT: does not fit the context or the KV cache at all.
 * ERR_COMM: the group is lost (503). */
enum status engine_submit(struct engine *e, const struct request_params *params,
                          const int32_t *prompt, int32_t prompt_len, void *user, uint64_t *id,
                          struct err *err) MUST_USE;
/* The request ends with FINISH_CANCELLED within two steps, unless it has ended already. */
void engine_cancel(struct engine *e, uint64_t id);

/* A consistent snapshot; costs one short lock that the step loop never holds while it works. */
#define ENGINE_RANKS_MAX COMM_RANKS_MAX
struct engine_metrics {
    int32_t running, waiting; /* requests */
    double kv_usage;          /* 0..1 */
    int32_t kv_blocks, kv_blocks_used, block_tokens;
    uint64_t prompt_tokens, generation_tokens;
    uint64_t finished[FINISH_ERROR + 1];
    uint64_t steps, step_rows; /* steps answered, and the rows in them */
    double step_seconds;       /* sum over steps */
    uint64_t step_buckets[16]; /* steps no slower than engine_step_bounds[i] (not cumulative) */
    int32_t ranks;
    struct {
        bool up;
        uint64_t weight_bytes, read_bytes;
        struct {
            uint64_t calls, bytes, nanoseconds;
        } comm[COMM_OP_COUNT];
    } rank[ENGINE_RANKS_MAX];
};
extern const double engine_step_bounds[15]; /* seconds, ascending; the 16th bucket is +Inf */
void engine_metrics(const struct engine *e, struct engine_metrics *out);

#endif
