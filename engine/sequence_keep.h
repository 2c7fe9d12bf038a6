/* What a sequence has kept of its states (states.h), for models with layers that recur; part of the
 * sequence, so the scheduler's. States are kept where another text is likely to go on from:
 *
 *   branch   where it leaves a text that is in the KV cache, further than any state is found: who
 *            begins like both finds one there. Until it is computed it is promised, so that who
 *            comes meanwhile waits for it, not for the same rows;
 *   tail     near the end of its prompt, before what a chat template puts in front of an answer,
 *            which is not there when the answer has become a part of the next prompt;
 *   answer   the last end of a block of its answer, in one place that goes along.
 *
 * The first two only where many rows lie between them and another state. (Which states of a hybrid
 * model are worth their memory is the question of arXiv 2411.19379; branches and ends are what it
 * keeps.) */
#ifndef TESSERA_ENGINE_SEQUENCE_KEEP_H
#define TESSERA_ENGINE_SEQUENCE_KEEP_H

#include "engine/states.h"

struct sequence;

enum sequence_keep_kind { KEEP_BRANCH, KEEP_TAIL, KEEP_ANSWER, KEEP_COUNT };

/* At the end of which of the sequence's blocks, -1: none is to be kept; in which place, which is
 * the sequence's own, -1: in none yet. */
struct sequence_keep {
    int32_t block, place;
    bool computed; /* a row has it, in a step that may be in flight */
};

void sequence_keep_init(struct sequence *q);
/* Of its first `found` blocks, which are findable and written in its table, how many have a state
 * behind them that a step before this one computes; that is the one it is to begin with. *young:
 * there is one further on, but not yet. */
int32_t sequence_keep_recall(struct sequence *q, const struct states *s, int32_t found,
                             uint64_t step, bool *young);
/* It begins with `count` of those: plans what else is to be kept. */
void sequence_keep_plan(struct sequence *q, struct states *s, int32_t found, int32_t count,
                        uint64_t step);
/* The place for the state after its row at this position, which draws its next token or not; -1:
 * it is not kept. step: the number of the one that is built, as of the others here. */
int32_t sequence_keep_row(struct sequence *q, struct states *s, int32_t position, bool draws,
                          uint64_t step);
/* What its block `index` holds, of which it waits to be told, is findable now, as block `block`: so
 * is the state behind it, which step number `step` or an earlier one computes. */
void sequence_keep_publish(struct sequence *q, struct states *s, int32_t index, int32_t block,
                           uint64_t step);
/* Is it to be told of that block? */
bool sequence_keep_waits(const struct sequence *q, int32_t index);
/* Gives its places back; states that are findable stay so. */
void sequence_keep_release(struct sequence *q, struct states *s);

#endif
