/* DESIGN: a place and its block name each other, and the place has the name of the block's content
 * (kv.h), which is never used again: so that a block is forgotten needs no message. Places are few,
 * since states are large: the one to take is looked for among all. */
#include "engine/states.h"

#include <stdlib.h>

struct place {
    int32_t block; /* whose end it is; -1: of none */
    bool owned;
    uint64_t name; /* of that block's content */
    uint64_t step; /* that computes it */
    uint64_t used; /* when, of all uses */
};

struct states {
    const struct kv_pool *kv;
    int32_t places, blocks, owned, kept;
    uint64_t uses;
    struct place *place;
    int32_t *of_block; /* [blocks] its place; -1: none */
};

enum status states_open(int32_t places, const struct kv_pool *kv, int32_t blocks,
                        struct states **out, struct err *err)
{
    struct states *s = calloc(1, sizeof *s);
    if (s) {
        s->kv = kv;
        s->places = places;
        s->blocks = blocks;
        s->place = calloc((size_t)places + 1, sizeof *s->place);
        s->of_block = calloc((size_t)blocks, sizeof *s->of_block);
    }
    if (!s || !s->place || !s->of_block) {
        states_close(s);
        return base_fail(err, ERR_NOMEM, "states: no memory for %d places", places);
    }
    for (int32_t i = 0; i < places; i++)
        s->place[i].block = -1;
    for (int32_t i = 0; i < blocks; i++)
        s->of_block[i] = -1;
    *out = s;
    return OK;
}

void states_close(struct states *s)
{
    if (!s)
        return;
    free(s->place);
    free(s->of_block);
    free(s);
}

static struct place *at(const struct states *s, int32_t place)
{
    CHECK(place >= 0);
    CHECK(place < s->places);
    return &s->place[place];
}

/* Does its block still have the content it had? */
static bool is_findable(const struct states *s, const struct place *p)
{
    return p->block >= 0 && kv_name(s->kv, p->block) == p->name;
}

static bool is_there(const struct states *s, const struct place *p)
{
    return is_findable(s, p) && p->step != STATES_PROMISED;
}

static void forget(struct states *s, struct place *p)
{
    if (p->block >= 0)
        s->of_block[p->block] = -1;
    s->kept -= p->block >= 0;
    p->block = -1;
}

int32_t states_take(struct states *s, uint64_t step)
{
    int32_t best = -1;
    uint64_t age = UINT64_MAX;
    for (int32_t i = 0; i < s->places; i++) {
        const struct place *p = &s->place[i];
        const uint64_t used = is_findable(s, p) ? p->used : 0;
        if (!p->owned && p->step != step && used < age) {
            best = i;
            age = used;
        }
    }
    if (best < 0)
        return -1;
    forget(s, &s->place[best]);
    s->place[best].owned = true;
    s->owned++;
    return best;
}

void states_release(struct states *s, int32_t place)
{
    struct place *p = at(s, place);
    CHECK(p->owned);
    p->owned = false;
    s->owned--;
}

void states_put(struct states *s, int32_t place, int32_t block, uint64_t step)
{
    struct place *p = at(s, place);
    CHECK(p->owned);
    CHECK(kv_name(s->kv, block) != 0);
    const int32_t other = s->of_block[block];
    p->step = step; /* which fills it in any case: no other row of that step may */
    if (other >= 0 && other != place && is_there(s, &s->place[other]))
        return;
    if (other >= 0)
        forget(s, &s->place[other]);
    forget(s, p);
    s->of_block[block] = place;
    s->kept++;
    p->block = block;
    p->name = kv_name(s->kv, block);
    states_touch(s, place);
}

void states_forget(struct states *s, int32_t place)
{
    CHECK(at(s, place)->owned);
    forget(s, at(s, place));
}

void states_forget_all(struct states *s)
{
    for (int32_t i = 0; i < s->places; i++)
        forget(s, &s->place[i]);
}

int32_t states_find(const struct states *s, int32_t block, uint64_t *step)
{
    CHECK(block >= 0);
    CHECK(block < s->blocks);
    const int32_t place = s->of_block[block];
    if (place < 0 || !is_findable(s, &s->place[place]))
        return -1;
    *step = s->place[place].step;
    return place;
}

void states_touch(struct states *s, int32_t place)
{
    at(s, place)->used = ++s->uses;
}

int32_t states_owned(const struct states *s)
{
    return s->owned;
}

bool states_have_room(const struct states *s)
{
    return 2 * (s->owned + 1) <= s->places;
}

int32_t states_kept(const struct states *s)
{
    return s->kept;
}

void states_check(const struct states *s)
{
    int32_t owned = 0, kept = 0;
    for (int32_t i = 0; i < s->places; i++) {
        const struct place *p = &s->place[i];
        owned += p->owned;
        kept += p->block >= 0;
        CHECK(p->block < 0 || s->of_block[p->block] == i);
        CHECK(!is_findable(s, p) || p->step != STATES_PROMISED || p->owned);
    }
    for (int32_t b = 0; b < s->blocks; b++)
        CHECK(s->of_block[b] < 0 || s->place[s->of_block[b]].block == b);
    CHECK(owned == s->owned);
    CHECK(kept == s->kept);
}
