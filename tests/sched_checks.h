/* What the simulation of the scheduler knows, and what must hold after every step of it: whose turn
 * it was, who is in which home, who owns which block, how long a step takes. */
#ifndef TESSERA_TESTS_SCHED_CHECKS_H
#define TESSERA_TESTS_SCHED_CHECKS_H

#include "engine/sched.h"
#include "tests/guided.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { SLOTS_MAX = 16, BLOCKS_MAX = 256, LEN_MAX = 200, LIVE_MAX = 64, VOCAB = 500, EOS = 2 };
enum {
    GROUPS_MAX = KV_GROUPS_MAX,
    HOMES_MAX = 8,
    GUESSES_MAX = 7,
    SAMPLES_MAX = SLOTS_MAX + GUESSES_MAX
};
enum { STATES_MAX = 64 };
enum { GUIDED = 12 }; /* tokens that a guided request gets, if nothing ends it */
enum { COLUMNS = 3 }; /* of vectors, where the run is of those */
enum { CLIENTS = 5, SALTS = 3, TOP_MAX = 2, BLOCK = BACKEND_BLOCK_TOKENS };

/* What a client knows of its request. */
struct request {
    uint64_t id; /* 0: this entry is free */
    struct sequence *sequence;
    struct request_params params;
    int32_t prompt[LEN_MAX], prompt_len, budget; /* tokens it may get */
    int32_t got, scored;                         /* tokens, and prompt tokens with the first */
    int32_t slot, home;                          /* -1: none; none yet */
    int32_t cached, cancel_age;                  /* steps built since the cancel, -1: none */
    bool admitted, scheduled;                    /* had a slot; all prompt rows were in a step */
    bool preempted;                              /* gave way after that, */
    uint64_t left;                               /* in that many steps built */
    int64_t since;                               /* step of its arrival */
    uint64_t named;                              /* steps built when the last one named it */
    int32_t losses;                              /* restarts while a step in flight named it */
};

/* A state, which is of all tokens before a position. */
struct made {
    uint64_t text;
    int32_t position;
};

/* What a rank knows of a slot. */
struct slot {
    bool open;
    uint64_t request, salt;
    int32_t home, prompt_len;
    int32_t table[GROUPS_MAX][LEN_MAX / BLOCK + 1], blocks[GROUPS_MAX]; /* and those it was given */
    int32_t next; /* position of the next row */
    int32_t tokens[LEN_MAX], history, known;
    int32_t guesses;   /* rows of guesses in this step */
    int32_t unsure;    /* where the history has a guess that was wrong, or none; -1: nowhere */
    bool first, fresh; /* opened for the first time, and that by the last step */
    struct made made;  /* what layers that recur remember after its rows */
};

/* What the KV at each position of a block was computed from. */
struct content {
    uint64_t text[BLOCK]; /* hash of all tokens up to there */
    uint64_t salt;
};

/* A step in flight, as the ranks will answer it. */
struct answer {
    int32_t ids[SAMPLES_MAX];
    float logprob[SAMPLES_MAX];
    struct token_top best[SAMPLES_MAX * TOP_MAX];
    float vector[SAMPLES_MAX * COLUMNS];
    /* request that has the block in a row's table; ~0: several */
    uint64_t named[HOMES_MAX][BLOCKS_MAX];
};

struct sim {
    struct sched_config config;
    struct sched *sched;
    struct step *steps_built[SCHED_FLIGHTS], *wire;
    struct guided guided;
    char *message;
    struct token_event *events;
    struct request requests[LIVE_MAX];
    struct slot slots[SLOTS_MAX];
    struct content kv[HOMES_MAX][BLOCKS_MAX];
    struct made kept[STATES_MAX];
    bool kept_now[STATES_MAX]; /* by the step that is run */
    struct answer answers[SCHED_FLIGHTS];
    uint64_t built, answered;
    int32_t turns[CLIENTS][CLIENTS]; /* [d][c]: admissions of c since d had a turn */
    bool had_turn[CLIENTS];          /* in the last step */
    int32_t home_rows[HOMES_MAX];    /* of the last step */
    bool cancels, priorities;
    bool failed; /* to build, since the last step: closes may be of then */
    int32_t live;
    uint64_t next_id;
    int64_t accepted;
    int64_t steps, longest;
    int64_t ended[FINISH_ERROR + 1], multi_chunk, reused_slots, preempted, hits, overlaps, deaths,
        restarts, given_up, scores, limited, filled, moved, balanced, masks, guesses, right,
        guided_guesses, recalls, keeps;
};

static uint64_t seed;

static int32_t below(int32_t n) /* splitmix64 */
{
    uint64_t z = seed += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (int32_t)((z >> 33) % (uint64_t)n);
}

/* Few, since no step is built ahead while one of them runs. */
static bool is_guided(uint64_t id)
{
    return id % 64 == 5;
}

/* The model: token k of request id; about 1 in 80 ends the sequence unless that is guided, 1 in
 * 2000 fails. One in three says the same again and again, but for every eleventh token. */
static int32_t token_of(uint64_t id, int32_t k)
{
    if ((id % 3 == 1 || is_guided(id)) && k % 11 != 10)
        k %= 4 + (int32_t)(id % 5);
    uint64_t h = base_hash(base_hash(BASE_HASH_INIT, &id, sizeof id), &k, sizeof k);
    if (h % 2000 == 1)
        return -1;
    if (is_guided(id))
        return 3 + (int32_t)(h % (VOCAB - 4));
    return h % 80 == 0 ? EOS : 3 + (int32_t)(h % (VOCAB - 3));
}

/* The hash of all tokens up to `position`, as a group of layers holds it there. */
static uint64_t text_of(int32_t group, const int32_t *tokens, int32_t position)
{
    uint64_t text = base_hash(BASE_HASH_INIT, &group, sizeof group);
    for (int32_t p = 0; p <= position; p++)
        text = base_hash(text, &tokens[p], sizeof tokens[p]);
    return text;
}

/* The model, where it gives vectors: of what was computed at the last token. One in fifty each
 * has a number that is none, or none that is finite. */
static void vector_of(uint64_t id, uint64_t text, float out[COLUMNS])
{
    for (int32_t i = 0; i < COLUMNS; i++)
        out[i] = (float)(text >> 20 * i & 0xfffff);
    if (id % 50 == 7)
        out[id % COLUMNS] = NAN;
    if (id % 50 == 9)
        out[id % COLUMNS] = id % 2 ? INFINITY : -INFINITY;
}

static struct request *find(struct sim *m, uint64_t id)
{
    for (int32_t i = 0; i < LIVE_MAX; i++)
        if (m->requests[i].id == id)
            return &m->requests[i];
    return NULL;
}

static bool before(const struct request *a, const struct request *b)
{
    if (a->params.priority != b->params.priority)
        return a->params.priority < b->params.priority;
    return a->id < b->id;
}

/* ---- turns ---- */

static void check_turns(struct sim *m, int32_t waits)
{
    for (int32_t c = 0; c < CLIENTS; c++)
        if (!m->config.prefix_caching) /* else it may wait for its prefix and keep its turn */
            assert_true(m->turns[waits][c] <= 1);
}

/* A client's turn: each other client that waits has seen at most one more admission of it. */
static void count_turn(struct sim *m, const struct slot *t)
{
    struct request *r = find(m, t->request);
    uint64_t c = r ? r->params.client : 0;
    if (!r)
        return; /* cancelled in flight */
    memset(m->turns[c], 0, sizeof m->turns[c]);
    for (int32_t i = 0; i < LIVE_MAX && t->fresh; i++) {
        const struct request *o = &m->requests[i];
        if (!o->id || o->admitted || o->params.client == c)
            continue;
        int32_t *seen = &m->turns[o->params.client][c];
        if (*seen < 0)
            continue; /* counted for this turn */
        *seen = -1 - *seen;
    }
    for (int32_t d = 0; d < CLIENTS; d++) {
        int32_t *seen = &m->turns[d][c];
        if (*seen >= 0)
            continue;
        *seen = -*seen;
        if (m->config.limits.homes == 1)
            check_turns(m, d);
    }
    m->had_turn[c] = true;
}

/* Rows in order of homes do not say who was first: whose turn was in this step has seen nobody
 * since.
 */
static void settle_turns(struct sim *m)
{
    for (int32_t d = 0; d < CLIENTS; d++) {
        if (m->had_turn[d])
            memset(m->turns[d], 0, sizeof m->turns[d]);
        check_turns(m, d);
    }
}

/* ---- blocks ---- */

/* The first position that a row sees. */
static int32_t first_seen(const struct sim *m, int32_t group, int32_t position)
{
    const struct kv_groups *g = &m->config.limits.groups;
    const bool all = group < g->keep || position < g->window;
    return all ? 0 : position - g->window + 1;
}

/* Blocks that rows write belong to them alone, in this step and in the one before it if that is not
 * answered yet. What slid out of a window may be another's at once: ranks run steps in order. */
static void check_named(struct sim *m, const struct step *s, struct answer *a)
{
    const struct answer *other = &m->answers[(m->built + 1) % SCHED_FLIGHTS];
    const int32_t groups = kv_groups_count(&m->config.limits.groups);
    memset(a->named, 0, sizeof a->named);
    for (int32_t i = 0; i < s->rows * groups; i++) {
        const struct slot *t = &m->slots[s->slot[i / groups]];
        const int32_t position = s->position[i / groups], g = i % groups;
        for (int32_t b = first_seen(m, g, position) / BLOCK; b <= position / BLOCK; b++) {
            uint64_t *by = &a->named[t->home][t->table[g][b]];
            *by = *by == 0 || *by == t->request ? t->request : ~0ull;
        }
    }
    for (int32_t i = 0; i < s->rows * groups; i++) {
        const struct slot *t = &m->slots[s->slot[i / groups]];
        const int32_t block = t->table[i % groups][s->position[i / groups] / BLOCK];
        assert_true(a->named[t->home][block] == t->request);
        const uint64_t by = other->named[t->home][block];
        if (m->built > m->answered && m->config.limits.groups.slide == 0)
            assert_true(by == 0 || by == t->request);
    }
}

/* One owner more for each block of q; returns how many had none. */
static int32_t count_owned(const struct sim *m, const struct sequence *q,
                           int32_t owners[BLOCKS_MAX])
{
    int32_t first = 0, all = 0;
    for (int32_t g = 0; g < kv_groups_count(&m->config.limits.groups); g++)
        for (int32_t b = 0; b < q->block_count; b++) {
            const int32_t block = sequence_block(q, g, b);
            all += block >= 0;
            first += block >= 0 && owners[block]++ == 0;
        }
    assert_int_equal(all, sequence_blocks(q));
    return first;
}

/* Blocks have as many owners as there are sequences with them; those that leave own theirs until
 * the steps in flight are answered. */
static void check_blocks_of(struct sim *m, int32_t home)
{
    int32_t owners[BLOCKS_MAX] = {0};
    const struct kv_pool *kv = sched_kv(m->sched, home);
    kv_check(kv);
    for (int32_t i = 0; i < LIVE_MAX; i++) {
        const struct request *r = &m->requests[i];
        if (r->id && r->sequence->home == home)
            count_owned(m, r->sequence, owners);
    }
    for (int32_t b = 0; b < m->config.limits.blocks; b++) {
        assert_true(kv_owners(kv, b) >= owners[b]);
        if (m->built == m->answered)
            assert_int_equal(kv_owners(kv, b), owners[b]);
    }
}

static void check_blocks(struct sim *m)
{
    const struct sched_stats stats = sched_stats(m->sched);
    int64_t used = 0;
    for (int32_t i = 0; i < m->config.limits.homes; i++) {
        check_blocks_of(m, i);
        used += kv_used(sched_kv(m->sched, i));
    }
    if (sched_states(m->sched))
        states_check(sched_states(m->sched));
    assert_int_equal(stats.blocks_used, used);
    assert_int_equal(stats.running + stats.waiting, m->live);
    assert_int_equal(sched_in_flight(m->sched), m->built - m->answered);
}

/* ---- a step ---- */

/* What the scheduler is told that a step takes with so many rows in each home. */
static double cost(int32_t rows, int64_t keys)
{
    return 8 + rows + (double)keys / 64;
}

/* What a step takes, of all its rows or only of those that decode: what its fullest home does. */
static double cost_of_step(const struct sim *m, const struct step *s, bool decodes_only)
{
    int32_t rows[HOMES_MAX] = {0}, most_rows = 0;
    int64_t keys[HOMES_MAX] = {0}, most_keys = 0;
    for (int32_t i = 0; i < s->rows; i++) {
        const int32_t home = m->slots[s->slot[i]].home;
        if (decodes_only && s->position[i] < m->slots[s->slot[i]].history)
            continue;
        keys[home] += s->position[i];
        most_keys = keys[home] > most_keys ? keys[home] : most_keys;
        most_rows = ++rows[home] > most_rows ? rows[home] : most_rows;
    }
    return cost(most_rows, most_keys);
}

/* Each prompt makes a step with decodes take longer by their time at most; but one row is always
 * taken. */
static void check_cost(struct sim *m, const struct step *s)
{
    int32_t decodes = 0, guesses = 0;
    for (int32_t i = 0; i < s->rows; i++)
        decodes += s->position[i] >= m->slots[s->slot[i]].history;
    for (int32_t i = 0; i < m->config.limits.slots; i++)
        guesses += m->slots[i].guesses;
    if (m->config.costs.count == 0 || decodes == 0 || s->rows <= decodes + 1)
        return;
    const int32_t others =
        (m->live < m->config.limits.slots ? m->live : m->config.limits.slots) - decodes + guesses;
    assert_true(cost_of_step(m, s, false) <=
                (1 + (others < 7 ? others : 7)) * cost_of_step(m, s, true));
    m->limited += s->rows < m->config.limits.rows;
}

/* Rows ascend by home, and no home has more of them, or more sequences, than it may. */
static void check_homes(struct sim *m, const struct step *s)
{
    const struct step_limits *l = &m->config.limits;
    int32_t open[HOMES_MAX] = {0}, homes = 0;
    memset(m->home_rows, 0, sizeof m->home_rows);
    for (int32_t i = 0; i < s->rows; i++) {
        const int32_t home = m->slots[s->slot[i]].home;
        assert_true(i == 0 || home >= m->slots[s->slot[i - 1]].home);
        homes += m->home_rows[home] == 0;
        assert_true(++m->home_rows[home] <= l->home_rows);
    }
    for (int32_t i = 0; i < l->slots; i++)
        if (m->slots[i].open)
            assert_true(++open[m->slots[i].home] <= l->home_rows);
    m->filled += homes == l->homes;
}

/* Is every block of this home that is owned one of somebody who runs? */
static bool nobody_leaves(const struct sim *m, int32_t home)
{
    int32_t owners[BLOCKS_MAX] = {0}, count = 0;
    for (int32_t i = 0; i < LIVE_MAX; i++) {
        const struct sequence *o = m->requests[i].id ? m->requests[i].sequence : NULL;
        if (o && o->slot >= 0 && o->home == home)
            count += count_owned(m, o, owners);
    }
    return count == kv_used(sched_kv(m->sched, home));
}

/* Whoever can decode has a row; else its home is full, and either some of it is on its way back or
 * nobody there is behind it who could give way. */
static void check_decodes(struct sim *m)
{
    for (int32_t i = 0; i < m->config.limits.slots; i++) {
        const struct slot *t = &m->slots[i];
        const struct request *r = t->open ? find(m, t->request) : NULL;
        if (!r || r->slot != i || t->known == t->history || t->next >= t->known ||
            t->known - t->prompt_len == r->budget)
            continue;
        assert_true(kv_free(sched_kv(m->sched, t->home)) <
                    kv_groups_count(&m->config.limits.groups));
        for (int32_t j = 0; j < LIVE_MAX && nobody_leaves(m, t->home); j++) {
            const struct request *o = &m->requests[j];
            if (o->id && o->sequence->slot >= 0 && o->sequence->home == t->home)
                assert_true(!before(r, o) || o->named == m->built + 1);
        }
    }
}

/* Where rows, sample places and a block are left over and nobody just gave way: whoever has a slot
 * and tokens to compute has a row. */
static void check_prompts(struct sim *m, const struct step *s)
{
    const struct step_limits *l = &m->config.limits;
    bool named[SLOTS_MAX] = {false};
    if (m->config.costs.count > 0 || s->rows == l->rows || s->samples == l->samples ||
        s->closes > 0)
        return;
    for (int32_t i = 0; i < s->rows; i++)
        named[s->slot[i]] = true;
    for (int32_t i = 0; i < l->slots; i++) {
        const struct slot *t = &m->slots[i];
        const struct request *r = t->open ? find(m, t->request) : NULL;
        const struct kv_pool *kv = sched_kv(m->sched, t->home);
        if (r && r->slot == i && t->next < t->history && m->home_rows[t->home] < l->home_rows &&
            kv_free(kv) >= kv_groups_count(&l->groups))
            assert_true(named[i]);
    }
}

/* Blocks that a sequence may have at once, until so many positions are computed. */
static int32_t most_blocks(const struct sim *m, int32_t positions)
{
    const struct kv_groups *g = &m->config.limits.groups;
    const int32_t all = (positions + BLOCK - 1) / BLOCK;
    int32_t most = 0; /* of a group that slides, wherever the rows begin in a block */
    for (int32_t i = 0; i < BLOCK; i++) {
        const int32_t seen = i + g->window - 1 + m->config.limits.home_rows;
        most = (seen + BLOCK - 1) / BLOCK > most ? (seen + BLOCK - 1) / BLOCK : most;
    }
    return g->keep * all + g->slide * (most < all ? most : all);
}

/* Is there a home with a row, a place and blocks left for it, whatever those that run may need? */
static bool can_run(const struct sim *m, const struct request *r)
{
    const struct step_limits *l = &m->config.limits;
    for (int32_t h = 0; h < l->homes; h++) {
        const struct kv_pool *kv = sched_kv(m->sched, h);
        int32_t running = 0, wanted = most_blocks(m, r->sequence->length);
        for (int32_t i = 0; i < LIVE_MAX; i++) {
            const struct sequence *o = m->requests[i].id ? m->requests[i].sequence : NULL;
            if (!o || o->slot < 0 || o->home != h)
                continue;
            const int32_t more = most_blocks(m, o->length) - sequence_blocks(o);
            running++;
            wanted += kv_groups_count(&l->groups) + (more > 0 ? more : 0);
        }
        if (m->home_rows[h] < l->home_rows && running < l->home_rows && wanted <= kv_free(kv))
            return true;
    }
    return false;
}

/* With rows, slots and sample places left over: the first of some client's that wait does not fit
 * any home, or all wait behind those of their own. */
static void check_balance(struct sim *m, const struct step *s)
{
    const struct step_limits *l = &m->config.limits;
    const struct request *first[CLIENTS] = {NULL};
    bool busy[CLIENTS] = {false}, could = false;
    if (m->config.prefix_caching || m->config.costs.count > 0 || s->rows == l->rows ||
        s->samples == l->samples || sched_stats(m->sched).running == l->slots)
        return;
    for (int32_t i = 0; i < LIVE_MAX; i++) {
        const struct request *r = &m->requests[i];
        const uint64_t c = r->params.client;
        if (r->id && r->admitted && r->slot < 0)
            return; /* it gave way, and has precedence */
        if (r->id && r->admitted)
            busy[c] = busy[c] || !r->scheduled;
        else if (r->id && (!first[c] || before(r, first[c])))
            first[c] = r;
    }
    for (int32_t c = 0; c < CLIENTS; c++) {
        if (first[c] && !can_run(m, first[c]))
            return;
        could = could || (first[c] && !busy[c]);
    }
    assert_false(could);
    m->balanced++;
}

#endif
