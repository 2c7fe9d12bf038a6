/* Kept states, for models with layers that recur: what these remember at the end of a block of a
 * text, in one of so many places, so that another text which begins alike need not be computed
 * before. Where a state is found says the KV pool, whose findable blocks are texts: a place belongs
 * to a block, and is worth nothing once that one is forgotten. Integers only; not thread-safe: the
 * engine thread's. */
#ifndef TESSERA_ENGINE_STATES_H
#define TESSERA_ENGINE_STATES_H

#include "engine/kv.h"

/* Of what is to be computed, but is in no step yet. */
#define STATES_PROMISED UINT64_MAX

struct states;

/* `blocks`: of the pool, which is borrowed. */
enum status states_open(int32_t places, const struct kv_pool *kv, int32_t blocks,
                        struct states **out, struct err *err) MUST_USE;
void states_close(struct states *s);

/* A place for one owner, to be filled by step number `step` or a later one: one whose state nobody
 * finds, else the one not used for longest. -1: all have owners, or are filled by that step, in
 * which no two rows fill one. Nobody finds there what was in it. */
int32_t states_take(struct states *s, uint64_t step);
/* The owner lets go; the state stays findable, if it is. */
void states_release(struct states *s, int32_t place);
/* From now on an owned place is the state at the end of a findable block; the step with that number
 * computes it; unless there is another that is more than promised, which stays the one. */
void states_put(struct states *s, int32_t place, int32_t block, uint64_t step);
/* What is in an owned place is not what it was any more, or not yet. */
void states_forget(struct states *s, int32_t place);
/* All states are lost. */
void states_forget_all(struct states *s);
/* The place with the state at the end of a block, *step the one that computes it; -1: none. */
int32_t states_find(const struct states *s, int32_t block, uint64_t *step);
/* It is of use: others go before it. */
void states_touch(struct states *s, int32_t place);

int32_t states_owned(const struct states *s);
/* May one more be owned, and half of the places have no owner? */
bool states_have_room(const struct states *s);
/* Places that have a state, be it of a block that is forgotten. */
int32_t states_kept(const struct states *s);
/* Aborts when the books do not balance; tests call it after every step. */
void states_check(const struct states *s);

#endif
