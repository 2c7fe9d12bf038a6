/* Queue: the sequences whose prompts are not wholly computed, in turns. Links what its caller owns.
 * Not thread-safe: the engine thread's.
 *
 * Each client has a line, ordered by priority, then arrival; the sequence that is being computed
 * stays at its head. Clients stand in a ring: who has had a turn goes to its end, so that between
 * two turns of one client every other client has at most one. A head that lets the next of its line
 * go on (QUEUE_NEXT) leaves the line and keeps a place of its own in the ring: it is computed in
 * one home, and they can be in others. Sequences that gave way to others stand before the ring, in
 * a line of their own. */
#ifndef TESSERA_ENGINE_QUEUE_H
#define TESSERA_ENGINE_QUEUE_H

#include "engine/sequence.h"

struct queue;

/* Room for so many different clients at once. */
enum status queue_open(int32_t clients, struct queue **out, struct err *err) MUST_USE;
void queue_close(struct queue *q);
/* How many are in it. */
int32_t queue_count(const struct queue *q);

/* Into its client's line. */
void queue_push(struct queue *q, struct sequence *s);
/* Into the line before the ring. */
void queue_return(struct queue *q, struct sequence *s);
/* Out of whichever line it is in. */
void queue_remove(struct queue *q, struct sequence *s);

enum queue_turn {
    QUEUE_STOP,  /* no turns for anybody any more */
    QUEUE_PASS,  /* not now; its turn is kept */
    QUEUE_NEXT,  /* no more in these rounds, but the next of its line can have a turn */
    QUEUE_TAKEN, /* had its turn and stays at the head of its line */
    QUEUE_DONE,  /* had its turn and leaves the queue */
};
/* May push and return others, but not remove. */
typedef enum queue_turn queue_offer(void *ctx, struct sequence *s);

/* Offers turns to the heads of all lines, round after round, until each passes or one stops. In the
 * line before the ring those with a slot have turns whoever is before them. */
void queue_turns(struct queue *q, queue_offer *offer, void *ctx);

#endif
