/* The engine as the server sees it: tokens in, tokens out. Owns the engine thread, which owns
 * scheduler, KV blocks and links. All functions are safe from any thread. */
#ifndef TESSERA_ENGINE_ENGINE_H
#define TESSERA_ENGINE_ENGINE_H

#include "config/base.h"
#include "config/speculation.h"
#include "engine/comm/comm.h"
#include "engine/parallel/mesh.h"

enum finish_reason {
    FINISH_NONE,
    FINISH_STOP,     /* an end-of-sequence token (counted, carried by the event) */
    FINISH_LENGTH,   /* max_tokens or the context is used up */
    FINISH_COMPLETE, /* its guide lets nothing follow; the event's token belongs to the text */
    FINISH_CANCELLED,
    FINISH_FAILED, /* this request's logits are not finite, or nothing may be drawn from them */
    FINISH_ERROR,  /* the group is lost for good, or often while it ran this */
};

#define ENGINE_LOGPROBS_MAX 20
#define ENGINE_BIAS_MAX 300
#define ENGINE_STOP_IDS_MAX 64
#define ENGINE_BAD_IDS_MAX 256 /* over all bad words of a request */

struct guide;

/* Validated by the server before submission; the engine only checks. Arrays are copied. Fields that
 * ask for nothing: zero, but for top_p and repetition_penalty (1), logprobs, prompt_logprobs (-1):
 * request_params_default sets them. Order of transforms: kernels/numerics.h. */
struct request_params {
    bool pooled;        /* a vector of the prompt is wanted, and no token: max_tokens is 0 */
    int32_t max_tokens; /* >= 0; the engine cuts it to the context; 0 computes the prompt only */
    int32_t min_tokens; /* until as many are produced: no end token, no stop id */
    float temperature;  /* 0 = greedy */
    float top_p, min_p;
    int32_t top_k;
    float presence_penalty, frequency_penalty; /* over produced tokens */
    float repetition_penalty;                  /* over prompt and produced tokens */
    uint64_t seed; /* always set: the server draws one when the client gave none */
    int32_t choice;
    bool ignore_eos;
    int32_t logprobs;        /* of each produced token, and of this many best ones; -1: none */
    int32_t prompt_logprobs; /* the same of each prompt token but the first */
    const struct token_bias *bias; /* -100..100 */
    int32_t bias_count;
    const int32_t *stop_ids; /* tokens that end the request as an end token does */
    int32_t stop_id_count;
    const int32_t *bad_ids;  /* words that may not be produced, one after the other, */
    const int32_t *bad_ends; /* [bad_count] and where each ends in bad_ids */
    int32_t bad_count;
    const int32_t *prediction; /* what the answer may say, for guesses (ngram.h) */
    int32_t prediction_count;
    int32_t priority;    /* lower runs first; 0 unless asked */
    uint64_t client;     /* whose request: turns are shared fairly between clients */
    uint64_t cache_salt; /* requests share cached prefixes only where this is equal */
    /* Which texts the answer may be (engine/grammar/guide.h); NULL: any. The engine takes a
     * reference of its own. End tokens and stop ids are possible where the text is whole. What is
     * between the tokens reasoning_begin, with which the answer may begin, and reasoning_end is not
     * guided, nor a reasoning_gap behind it; is_reasoning: the prompt has begun it. -1: the model
     * has no such token. */
    struct guide *guide;
    int32_t reasoning_begin, reasoning_end, reasoning_gap;
    bool is_reasoning;
};
static inline struct request_params request_params_default(void)
{
    return (struct request_params){.max_tokens = 16,
                                   .temperature = 1,
                                   .top_p = 1,
                                   .repetition_penalty = 1,
                                   .logprobs = -1,
                                   .prompt_logprobs = -1,
                                   .reasoning_begin = -1,
                                   .reasoning_end = -1,
                                   .reasoning_gap = -1};
}

/* One per produced token, one per scored prompt token (prompt_logprobs) before those, and exactly
 * one terminal event (finish != FINISH_NONE) per request. */
struct token_event {
    uint64_t request;
    void *user;    /* as given at submission */
    int32_t token; /* -1: none (cancelled, error, nothing was to be produced) */
    enum finish_reason finish;
    bool stuck;     /* FINISH_FAILED: of what its guide lets follow, its rules forbid every token */
    bool prompt;    /* `token` is a scored prompt token; they come in order, from the second */
    int32_t cached; /* prompt tokens whose KV was found in the prefix cache */
    int32_t right, wrong; /* guesses so far that were what was drawn, and that were not */
    int64_t admitted_ns;  /* base_now_ns() when its work began; 0: it never did */
    float logprob;        /* of token under the raw model distribution; <= 0; when asked for */
    int32_t top_count;    /* 0: none asked for */
    const struct token_top *top; /* descending, ties to the lowest id; valid during the call */
    /* [columns] of a request that is pooled, with its terminal event FINISH_STOP: the hidden state
     * of the last prompt token behind the last norm; valid during the call. NULL: none */
    const float *vector;
    int32_t columns;
};

/* Called on the engine thread, once per step with all its events. Must not block and must not call
 * the engine except engine_cancel. */
typedef void engine_sink(void *ctx, const struct token_event *events, int32_t count);

struct engine;

/* Puts a request into the bounded mailbox; the prompt is copied. ERR_LIMIT: as many requests as may
 * run and wait are there, or too many prompt tokens wait (HTTP 429). ERR_INPUT: does not fit the
 * context or the KV cache at all. ERR_COMM: the group is lost (503). */
enum status engine_submit(struct engine *e, const struct request_params *params,
                          const int32_t *prompt, int32_t prompt_len, void *user, uint64_t *id,
                          struct err *err) MUST_USE;
/* ERR_LIMIT when not even the smallest request would be taken now, so that an overloaded server can
 * refuse a request before it reads it. Takes no lock. */
enum status engine_check_room(const struct engine *e, struct err *err) MUST_USE;
/* The request ends with FINISH_CANCELLED within two steps, unless it has ended already. */
void engine_cancel(struct engine *e, uint64_t id);

/* What a rank received in collectives of one kind. */
struct engine_traffic {
    uint64_t calls, bytes, nanoseconds;
};

/* Upper bounds of the buckets below, ascending; one more bucket holds what is above them. */
enum { ENGINE_STEP_BOUNDS = 15, ENGINE_ROW_BOUNDS = 13 };
extern const double engine_step_bounds[ENGINE_STEP_BOUNDS]; /* seconds */
extern const double engine_row_bounds[ENGINE_ROW_BOUNDS];

/* A consistent snapshot; costs one short lock that the step loop never holds while it works. */
#define ENGINE_RANKS_MAX COMM_RANKS_MAX
struct engine_metrics {
    int32_t running, waiting; /* requests */
    double kv_usage;          /* 0..1; blocks that are only kept for their content are free */
    int64_t kv_blocks, kv_blocks_used; /* of all homes */
    int32_t block_tokens;
    enum dtype kv_dtype;
    uint64_t prompt_tokens, generation_tokens;
    int32_t states, states_kept;               /* places of states (states.h), and those with one */
    uint64_t prefix_queries, prefix_hits;      /* prompt tokens looked up in the cache, and found */
    uint64_t restarts;                         /* groups that took the place of a lost one */
    uint64_t preemptions;                      /* times a request gave its blocks to others */
    uint64_t drafts, guesses;                  /* decodes with guesses behind them, and those */
    uint64_t accepted[SPECULATION_TOKENS_MAX]; /* guesses that were right, by their place */
    int32_t speculation;                       /* most guesses of a row; 0: none are made */
    uint64_t finished[FINISH_ERROR + 1];
    uint64_t steps, step_rows;                     /* steps answered, and the rows in them */
    double step_seconds;                           /* sum over steps */
    uint64_t step_buckets[ENGINE_STEP_BOUNDS + 1]; /* not cumulative */
    uint64_t row_buckets[ENGINE_ROW_BOUNDS + 1];
    uint64_t sampler_fallbacks; /* rows that the distributed sampler could not decide */
    uint64_t replays;           /* steps that a rank ran as one recorded piece */
    int32_t ranks;
    char group[1 + MESH_AXES_MAX][16]; /* all ranks, then those along each axis; "": none */
    struct {
        bool up;
        uint64_t weight_bytes, read_bytes;
        struct engine_traffic comm[COMM_OP_COUNT]; /* of the first group */
        struct engine_traffic axis[MESH_AXES_MAX][COMM_OP_COUNT];
    } rank[ENGINE_RANKS_MAX];
};
void engine_metrics(const struct engine *e, struct engine_metrics *out);
/* For how many seconds neither a rank nor the engine has made progress although there is work; 0:
 * there is nothing to do. Takes no lock. */
double engine_stalled_s(const struct engine *e);

#endif
