/* The scheduler as its parts know it: sched.c takes requests and answers in, sched_build.c makes
 * the steps, sched_draft.c says how many guesses they check. Nobody else's. */
#ifndef TESSERA_ENGINE_SCHED_STATE_H
#define TESSERA_ENGINE_SCHED_STATE_H

#include "engine/queue.h"
#include "engine/sched.h"

/* What a step in flight will answer to. */
struct sched_flight {
    struct sequence **samples; /* [samples] whose each sample is */
    struct sequence **named;   /* [slots] who has rows in it */
    int32_t named_count;
};

/* A row of the step being built. */
struct sched_row {
    struct sequence *seq;
    int32_t position, token;
    int32_t keep; /* place of the state after it; -1: none */
    bool sampled;
    int32_t target, top; /* of its sample */
};

/* One home of KV, and who is there. */
struct sched_home {
    struct kv_pool *kv;
    struct sched_row *rows; /* [limits.home_rows] */
    int32_t row_count;      /* in the step being built, */
    int64_t keys;           /* and the positions before them that they attend to, */
    int32_t drafted;        /* and guesses that are to have rows in it */
    int32_t running;        /* sequences with a slot */
    int32_t leaving;        /* those whose blocks return when a step in flight is answered */
};

struct sched {
    struct sched_config config;
    struct sched_home *homes; /* [limits.homes] */
    struct states *states; /* of the one home; NULL: no layer recurs, or nothing is to be found */
    struct queue *queue;
    struct sequence *oldest, *newest; /* all there are */
    struct sequence **slots;          /* [limits.slots], NULL = free */
    int32_t *order;                   /* slots, the first to be served first */
    int32_t *closed;                  /* slots to close with the next step */
    int32_t closed_count;
    struct sched_flight flights[SCHED_FLIGHTS];
    int32_t in_flight;
    uint64_t arrivals, steps; /* so far; the step being built is number `steps` */
    int64_t now_ns;           /* for the events */
    int32_t preempted;        /* sequences that gave way and have no place yet */
    int32_t cancelled;        /* sequences to end with the next step */
    struct sched_stats stats;
    struct step *step; /* during sched_build: the one being built, */
    int32_t decodes;   /* its rows that are no prompt's, */
    int32_t most_rows; /* those of the home that has most, */
    int64_t most_keys; /* likewise, */
    double seconds;    /* how long it may take, */
    bool admitting;    /* and whether it may still take in others */
};

/* q gets a place: it does not wait any more. */
void sched_wait_end(struct sched *s, const struct sequence *q);
/* What q has computed can be found by others, where that is wanted. */
void sched_publish(struct sched *s, struct sequence *q);
/* It gives its blocks to others and is computed again later, from all its tokens. Sampling is keyed
 * by position and kernels give one row the same bits in any step, so its text does not change. */
void sched_give_way(struct sched *s, struct sequence *q);
/* Tokens that a sequence, which runs, still has to draw; 0 while its prompt is not computed. */
int32_t sched_to_draw(const struct sequence *q);
/* Sets `draft` of all that run: how many guesses are worth a row each in the next step, if it has
 * nothing but decodes. */
void sched_plan_drafts(struct sched *s);
void sched_end_cancelled(struct sched *s, struct token_event *events, int32_t *count);

#endif
