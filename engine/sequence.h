/* Sequence: one request on its way through the engine, and what it holds of the KV cache. Not
 * thread-safe: whoever owns it. The engine makes it, the scheduler owns it from sched_submit until
 * its terminal event is collected, and frees it. */
#ifndef TESSERA_ENGINE_SEQUENCE_H
#define TESSERA_ENGINE_SEQUENCE_H

#include "engine/engine.h"
#include "engine/grammar/guide.h"
#include "engine/kv.h"
#include "engine/kv_groups.h"
#include "engine/ngram.h"
#include "engine/sequence_keep.h"

struct sched_config;

struct sequence {
    uint64_t id;
    void *user;
    struct request_params params; /* its arrays are in rules */
    struct sample_rules *rules;
    int32_t *tokens; /* prompt, then what was sampled, then guesses; of prompt_len + max_tokens */
    int32_t prompt_len, length;
    int32_t pending;      /* tokens sampled by steps in flight */
    struct ngram *ngram;  /* of its tokens; NULL: none are guessed */
    int32_t draft;        /* guesses that it has rows for in the step being built, */
    int32_t checking;     /* and those in flight that nothing is known of yet */
    int32_t checked;      /* those of the same step that were right */
    int32_t right, wrong; /* of all its guesses */
    int32_t scored;       /* prompt tokens whose logprobs are known or in flight, where asked for */
    int32_t told;         /* ... and whose events have been sent */
    int32_t computed;     /* positions whose KV is in the cache or in a step in flight */
    int32_t cached;       /* prompt tokens found in the prefix cache when it first got a slot */
    int32_t slot;         /* -1: none */
    int32_t home;         /* whose blocks it has; chosen anew with each slot */
    struct kv_groups groups;
    int32_t *blocks;     /* [groups, block_cols] */
    int32_t block_cols;  /* for all its tokens */
    int32_t block_count; /* that it has in each group; */
    int32_t gone;        /* but of those that slide none of the first */
    int32_t published;   /* its first blocks that others can find in the prefix cache, */
    uint64_t chain;      /* and the name of the last of these (kv.h) */
    struct sequence_keep keep[KEEP_COUNT];
    int32_t recall;           /* place of the state that it begins with; -1: it begins with none */
    uint64_t arrival, step;   /* number in order of arrival; of the last step with rows of it */
    int64_t admitted_ns;      /* the scheduler's time then; 0: not yet */
    int32_t flights;          /* steps in flight that name it */
    int32_t deferrals;        /* steps it waited for another to compute its prefix */
    struct guide_place place; /* of params.guide, of which it has a reference, */
    int32_t guided;           /* and the first of `tokens` that it guides; -1: it is reasoning */
    int32_t losses;           /* rank groups that were lost while steps in flight named it */
    bool queued, returned;    /* in a line of the queue; in the one before the ring (queue.h) */
    bool admitted, preempted, leaving, cancelled, ended;
    struct sequence *next;          /* in the mailbox or its line */
    struct sequence *older, *newer; /* among all sequences */
};

/* Room for prompt and answer; params and prompt are checked and copied, and max_tokens is cut to
 * the context. ERR_INPUT says what is out of range. */
enum status sequence_open(const struct sched_config *c, const struct request_params *params,
                          const int32_t *prompt, int32_t prompt_len, struct sequence **out,
                          struct err *err) MUST_USE;
void sequence_free(struct sequence *q);

/* True when a comes before b: by priority, then arrival. */
bool sequence_before(const struct sequence *a, const struct sequence *b);
/* Are its prompt tokens to be scored? */
bool sequence_is_scored(const struct sequence *q);

/* Its last token is new: does its guide let more follow? FINISH_NONE, FINISH_COMPLETE, or
 * FINISH_FAILED: the token is none that its mask had. */
enum finish_reason sequence_follow(struct sequence *q);
/* Which tokens may come next, by its guide, after so many guesses; false: any. mask:
 * [sample_mask_words(vocab)]; all zero when there is none. */
bool sequence_mask(struct sequence *q, int32_t guesses, uint32_t *mask, int32_t words);
/* Does its guide let no token follow that its rules (bans, bad words) do not forbid? */
bool sequence_is_stuck(struct sequence *q);
/* How many of the guesses behind its tokens its guide lets follow. */
int32_t sequence_allowed(const struct sequence *q, int32_t guesses);
/* ---- its blocks; in each group they are numbered by what positions they have. states: of models
 * with layers that recur, else NULL ---- */

/* -1: it has none there. */
int32_t sequence_block(const struct sequence *q, int32_t group, int32_t index);
/* How many it has, in all groups. */
int32_t sequence_blocks(const struct sequence *q);
/* How many more it takes until all its tokens are computed, up to `rows` of them in a step. */
int32_t sequence_wants(const struct sequence *q, int32_t rows);
/* One more in each group. False: too few are free. */
bool sequence_grow(struct sequence *q, struct kv_pool *kv);
/* Gives those back that no row from `computed` on sees. */
void sequence_slide(struct sequence *q, struct kv_pool *kv);
/* Makes the blocks findable that are full of known tokens, as computed by step number `step`. They
 * can be shared from the next step on, answered or not: the ranks run steps in order. */
void sequence_publish(struct sequence *q, struct kv_pool *kv, struct states *states, uint64_t step);
/* How many findable blocks, of all groups, sequence_share would share; *owned: those of them that
 * others own now. q has none. */
int32_t sequence_find(struct sequence *q, const struct kv_pool *kv, int32_t *owned);
/* Shares the findable blocks q, which has none, can begin with: of groups that slide those that its
 * next row sees, with states those before the last one. The last token at least is left to compute,
 * for its logits, and a partly equal block is left too. False: more could be shared that step
 * `step` itself computes, for another, or that is promised, and q had better wait for the step
 * after. No more waits are granted than q has blocks, so it ends. */
bool sequence_share(struct sequence *q, struct kv_pool *kv, struct states *states, uint64_t step);
/* Gives all blocks and places back. */
void sequence_release(struct sequence *q, struct kv_pool *kv, struct states *states);

#endif
