/* DESIGN: a place is taken when a row is about to fill it; only a promise takes it before. What is
 * put down under a block is not the sequence's any more, but for the place of its answer, which it
 * fills again. */
#include "engine/sequence_keep.h"

#include "engine/sequence.h"

#define LEAST_BLOCKS 4 /* between a state of a prompt and the one before it */
#define TAIL_TOKENS 8  /* that may follow the tail: a role, and what opens or skips reasoning */

void sequence_keep_init(struct sequence *q)
{
    q->recall = -1;
    for (int i = 0; i < KEEP_COUNT; i++)
        q->keep[i] = (struct sequence_keep){-1, -1, false};
}

int32_t sequence_keep_recall(struct sequence *q, const struct states *s, int32_t found,
                             uint64_t step, bool *young)
{
    for (int32_t count = found; count > 0; count--) {
        uint64_t of = 0;
        const int32_t place = states_find(s, q->blocks[count - 1], &of);
        if (place >= 0 && of < step) {
            q->recall = place;
            return count;
        }
        *young = *young || place >= 0;
    }
    return 0;
}

void sequence_keep_plan(struct sequence *q, struct states *s, int32_t found, int32_t count,
                        uint64_t step)
{
    struct sequence_keep *branch = &q->keep[KEEP_BRANCH];
    const int32_t tail = (q->length - TAIL_TOKENS) / BACKEND_BLOCK_TOKENS;
    if (q->recall >= 0)
        states_touch(s, q->recall);
    if (found - count >= LEAST_BLOCKS) {
        branch->place = states_take(s, step);
        branch->block = branch->place < 0 ? -1 : found - 1;
    }
    if (branch->place >= 0)
        states_put(s, branch->place, q->blocks[found - 1], STATES_PROMISED);
    if (tail - (branch->place >= 0 ? found : count) >= LEAST_BLOCKS)
        q->keep[KEEP_TAIL].block = tail - 1;
}

/* The place of its answer goes along, or it gets one where that leaves enough for prompts. */
static void move_answer(struct sequence *q, struct states *s, int32_t index)
{
    struct sequence_keep *k = &q->keep[KEEP_ANSWER];
    if (k->place >= 0)
        states_forget(s, k->place);
    k->block = k->place >= 0 || states_have_room(s) ? index : -1;
}

int32_t sequence_keep_row(struct sequence *q, struct states *s, int32_t position, bool draws,
                          uint64_t step)
{
    const int32_t index = position / BACKEND_BLOCK_TOKENS;
    if ((position + 1) % BACKEND_BLOCK_TOKENS != 0)
        return -1;
    if (draws)
        move_answer(q, s, index);
    for (int i = 0; i < KEEP_COUNT; i++) {
        struct sequence_keep *k = &q->keep[i];
        if (k->block != index)
            continue;
        if (k->place < 0)
            k->place = states_take(s, step);
        k->computed = true;
        return k->place;
    }
    return -1;
}

bool sequence_keep_waits(const struct sequence *q, int32_t index)
{
    bool waits = false;
    for (int i = 0; i < KEEP_COUNT; i++)
        waits = waits || (q->keep[i].block == index && q->keep[i].computed);
    return waits;
}

void sequence_keep_publish(struct sequence *q, struct states *s, int32_t index, int32_t block,
                           uint64_t step)
{
    for (int i = 0; i < KEEP_COUNT; i++) {
        struct sequence_keep *k = &q->keep[i];
        if (k->block != index)
            continue;
        if (k->place >= 0)
            states_put(s, k->place, block, step);
        if (k->place >= 0 && i != KEEP_ANSWER) {
            states_release(s, k->place);
            k->place = -1;
        }
        k->block = -1;
        k->computed = false;
    }
}

void sequence_keep_release(struct sequence *q, struct states *s)
{
    for (int i = 0; i < KEEP_COUNT; i++) {
        const struct sequence_keep *k = &q->keep[i];
        if (k->place >= 0 && k->block >= 0)
            states_forget(s, k->place);
        if (k->place >= 0)
            states_release(s, k->place);
    }
    sequence_keep_init(q);
}
