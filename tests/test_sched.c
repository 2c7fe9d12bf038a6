/* The scheduler, simulated: tens of thousands of seeded arrivals, cancels, ends of sequence, KV
 * shortages, common beginnings and deaths of the group, with up to two steps in flight. The test
 * keeps what a rank keeps (slots, block tables, tokens, and what each KV position was computed
 * from) and what a client keeps (its tokens, its one end), and compares after every step. */
#include "engine/queue.h"
#include "engine/sched.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { SLOTS_MAX = 16, BLOCKS_MAX = 256, LEN_MAX = 200, LIVE_MAX = 64, VOCAB = 500, EOS = 2 };
enum { CLIENTS = 5, SALTS = 3, BLOCK = BACKEND_BLOCK_TOKENS };

/* What a client knows of its request. */
struct request {
    uint64_t id; /* 0: this entry is free */
    struct sequence *sequence;
    struct request_params params;
    int32_t prompt[LEN_MAX], prompt_len, budget; /* tokens it may get */
    int32_t got, slot;                           /* slot -1: none */
    int32_t cached, cancel_age;                  /* steps built since the cancel, -1: none */
    bool admitted, scheduled;                    /* had a slot; all prompt rows were in a step */
    bool preempted;                              /* gave way after that */
    int64_t since;                               /* step of its arrival */
};

/* What a rank knows of a slot. */
struct slot {
    bool open;
    uint64_t request, salt;
    int32_t prompt_len;
    int32_t table[LEN_MAX / BLOCK + 1], blocks;
    int32_t next; /* position of the next row */
    int32_t tokens[LEN_MAX], history, known;
    bool fresh; /* opened for the first time by the last step */
};

/* What the KV at each position of a block was computed from. */
struct content {
    uint64_t text[BLOCK]; /* hash of all tokens up to there */
    uint64_t salt;
};

/* A step in flight, as the ranks will answer it. */
struct answer {
    int32_t ids[SLOTS_MAX];
    uint64_t named[BLOCKS_MAX]; /* request that has the block in a row's table; ~0: several */
};

struct sim {
    struct sched_config config;
    struct sched *sched;
    struct step *step, *wire;
    char *message;
    struct token_event *events;
    struct request requests[LIVE_MAX];
    struct slot slots[SLOTS_MAX];
    struct content kv[BLOCKS_MAX];
    struct answer answers[SCHED_FLIGHTS];
    uint64_t built, answered;
    int32_t turns[CLIENTS][CLIENTS]; /* [d][c]: admissions of c since d had a turn */
    bool cancels, priorities;
    bool failed; /* to build, since the last step: closes may be of then */
    int32_t live;
    uint64_t next_id;
    int64_t accepted;
    int64_t steps, longest;
    int64_t ended[FINISH_ERROR + 1], multi_chunk, reused_slots, preempted, hits, overlaps, deaths;
};

static uint64_t seed;

static int32_t below(int32_t n) /* splitmix64 */
{
    uint64_t z = seed += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (int32_t)((z >> 33) % (uint64_t)n);
}

/* The model: token k of request id; about 1 in 80 ends the sequence, 1 in 2000 fails. */
static int32_t token_of(uint64_t id, int32_t k)
{
    uint64_t h = base_hash(base_hash(BASE_HASH_INIT, &id, sizeof id), &k, sizeof k);
    if (h % 2000 == 1)
        return -1;
    return h % 80 == 0 ? EOS : 3 + (int32_t)(h % (VOCAB - 3));
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

/* ---- the client's side ---- */

/* How the request must end with this token; FINISH_NONE: it goes on. */
static enum finish_reason wanted_finish(const struct request *r, int32_t token)
{
    if (token < 0)
        return FINISH_ERROR;
    if ((token == EOS || token == VOCAB - 1) && !r->params.ignore_eos)
        return FINISH_STOP;
    return r->got + 1 == r->budget ? FINISH_LENGTH : FINISH_NONE;
}

static void take_event(struct sim *m, const struct token_event *e)
{
    struct request *r = find(m, e->request);
    assert_non_null(r); /* NULL: an event after the end */
    assert_ptr_equal(e->user, r);
    if (e->finish == FINISH_CANCELLED) {
        assert_int_equal(e->token, -1);
        assert_true(r->cancel_age >= 0);
    } else {
        assert_true(r->admitted && r->cancel_age < 0);
        int32_t token = token_of(r->id, r->got);
        assert_int_equal(e->token, token);
        assert_int_equal(e->finish, wanted_finish(r, token));
        assert_int_equal(e->cached, r->cached);
        r->got++;
    }
    m->ended[e->finish]++;
    if (e->finish == FINISH_NONE)
        return;
    int64_t age = m->steps - r->since;
    m->longest = age > m->longest ? age : m->longest;
    r->id = 0;
    m->live--;
}

/* Half of the prompts begin like others do. */
static void make_prompt(struct request *r, int32_t len_max)
{
    const int32_t family = below(8);
    r->prompt_len =
        below(3) == 0 ? 1 + below(len_max - 1) : 1 + below(20 < len_max ? 20 : len_max - 1);
    const int32_t common = family < 4 ? r->prompt_len - below(4) * below(10) : 0;
    for (int32_t i = 0; i < r->prompt_len; i++)
        r->prompt[i] =
            (i < common ? family * 31 + i : (int32_t)((r->id * 7 + (uint64_t)i))) % VOCAB;
}

static void make_params(struct sim *m, struct request *r)
{
    const int32_t len_max = m->config.max_model_len;
    r->params = request_params_default();
    r->params.max_tokens = below(6) == 0 ? 1 : 1 + below(below(3) == 0 ? 2 * len_max : 30);
    r->params.ignore_eos = below(3) == 0;
    r->params.seed = r->id * 1000003;
    r->params.client = (uint64_t)(below(3) ? 0 : below(CLIENTS)); /* the first has most */
    r->params.cache_salt = (uint64_t)below(SALTS) << 40;
    if (m->priorities)
        r->params.priority = below(3) - 1;
}

static void arrive(struct sim *m)
{
    struct request *r = find(m, 0);
    struct sequence *s = NULL;
    struct err err;
    if (!r)
        return;
    *r = (struct request){.id = ++m->next_id, .slot = -1, .cancel_age = -1, .since = m->steps};
    make_prompt(r, m->config.max_model_len);
    make_params(m, r);
    int32_t room = m->config.max_model_len - r->prompt_len;
    r->budget = r->params.max_tokens < room ? r->params.max_tokens : room;
    enum status st = sched_sequence(&m->config, &r->params, r->prompt, r->prompt_len, &s, &err);
    if (kv_blocks_for(r->prompt_len + r->budget) > m->config.limits.blocks) {
        assert_int_equal(st, ERR_INPUT);
        r->id = 0;
        return;
    }
    assert_int_equal(st, OK);
    s->id = r->id;
    s->user = r;
    r->sequence = s;
    bool room_to_wait = sched_stats(m->sched).waiting < m->config.waiting_max;
    assert_int_equal(sched_submit(m->sched, s), room_to_wait);
    if (!room_to_wait) {
        sched_sequence_free(s);
        r->id = 0;
        return;
    }
    m->live++;
    m->accepted++;
    for (int32_t i = 0; i < LIVE_MAX; i++) {
        const struct request *o = &m->requests[i];
        if (o->id && o != r && !o->scheduled && o->params.client == r->params.client)
            return;
    }
    memset(m->turns[r->params.client], 0, sizeof m->turns[0]); /* it comes anew */
}

static void cancel_some(struct sim *m)
{
    struct request *r = &m->requests[below(LIVE_MAX)];
    sched_cancel(m->sched, m->next_id + 17); /* unknown */
    if (!r->id || !m->cancels)
        return;
    sched_cancel(m->sched, r->id);
    if (below(2))
        sched_cancel(m->sched, r->id);
    if (r->cancel_age < 0)
        r->cancel_age = 0;
}

/* ---- the rank's side ---- */

static void apply_closes(struct sim *m, const struct step *s)
{
    for (int32_t i = 0; i < s->closes; i++) {
        struct slot *t = &m->slots[s->close[i]];
        assert_true(t->open); /* closed once */
        t->open = false;
        struct request *r = find(m, t->request);
        if (!r || r->slot != s->close[i])
            continue; /* it has ended */
        m->preempted++;
        r->slot = -1;
        r->preempted = r->scheduled;
        bool behind = false; /* somebody's that runs on */
        for (int32_t j = 0; j < m->config.limits.slots; j++) {
            const struct request *o = m->slots[j].open ? find(m, m->slots[j].request) : NULL;
            behind = behind || (o && o->slot == j && before(o, r));
        }
        assert_true(behind || m->failed);
    }
}

/* The first of its client's, and nobody who gave way waits. */
static void check_admission(struct sim *m, const struct request *r)
{
    for (int32_t i = 0; i < LIVE_MAX; i++) {
        const struct request *o = &m->requests[i];
        if (!o->id || o == r)
            continue;
        assert_false(o->preempted);
        if (!o->admitted && o->params.client == r->params.client)
            assert_true(before(r, o));
    }
}

static void apply_opens(struct sim *m, const struct step *s)
{
    for (int32_t i = 0; i < m->config.limits.slots; i++)
        m->slots[i].fresh = false;
    for (int32_t i = 0; i < s->opens; i++) {
        const struct step_open *o = &s->open[i];
        struct slot *t = &m->slots[o->slot];
        struct request *r = NULL;
        for (int32_t j = 0; j < LIVE_MAX; j++)
            if (m->requests[j].id && m->requests[j].params.seed == o->params.seed)
                r = &m->requests[j];
        assert_non_null(r);
        assert_false(t->open); /* never reopened before it was closed */
        assert_int_equal(r->slot, -1);
        assert_int_equal(o->history, r->prompt_len + r->got); /* all that is known */
        assert_memory_equal(o->tokens, r->prompt, (size_t)r->prompt_len * sizeof *o->tokens);
        for (int32_t k = 0; k < r->got; k++)
            assert_int_equal(o->tokens[r->prompt_len + k], token_of(r->id, k));
        if (!r->admitted)
            check_admission(m, r);
        m->reused_slots += t->request != 0;
        *t = (struct slot){.open = true,
                           .request = r->id,
                           .salt = r->params.cache_salt,
                           .prompt_len = r->prompt_len,
                           .history = o->history,
                           .known = o->history,
                           .next = -1,
                           .fresh = !r->admitted};
        memcpy(t->tokens, o->tokens, (size_t)o->history * sizeof *o->tokens);
        r->slot = o->slot;
        r->preempted = false;
        r->admitted = true;
    }
}

static void apply_appends(struct sim *m, const struct step *s)
{
    for (int32_t i = 0; i < s->appends; i++) {
        const struct step_append *a = &s->append[i];
        struct slot *t = &m->slots[a->slot];
        assert_true(t->open);
        assert_int_equal(a->index, t->blocks);
        assert_in_range(a->block, 0, m->config.limits.blocks - 1);
        t->table[t->blocks++] = a->block;
    }
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
        if (!m->config.prefix_caching) /* else it may wait for its prefix and keep its turn */
            assert_true(*seen <= 1);
    }
}

/* One row: the position before it must hold what its own tokens make of it. */
static void run_row(struct sim *m, struct slot *t, int32_t position)
{
    uint64_t text = BASE_HASH_INIT;
    for (int32_t p = 0; p <= position; p++) {
        struct content *c = &m->kv[t->table[p / BLOCK]];
        text = base_hash(text, &t->tokens[p], sizeof t->tokens[p]);
        if (p == position) {
            assert_int_equal(kv_owners(sched_kv(m->sched), t->table[p / BLOCK]), 1);
            c->text[p % BLOCK] = text;
            c->salt = t->salt;
        }
        assert_true(c->text[p % BLOCK] == text);
        assert_true(c->salt == t->salt); /* nobody else's, even if it were equal */
    }
}

/* Rows of one sequence, [first, end). */
static void run_group(struct sim *m, const struct step *s, int32_t first, int32_t end)
{
    struct slot *t = &m->slots[s->slot[first]];
    struct request *r = find(m, t->request);
    assert_true(t->open);
    if (t->next < 0) { /* what is skipped was found */
        t->next = s->position[first];
        m->hits += t->next > 0;
        if (r && t->fresh)
            r->cached = t->next;
        assert_int_equal(t->next % BLOCK, 0);
        assert_int_equal(t->blocks >= t->next / BLOCK, true);
        assert_true(m->config.prefix_caching || t->next == 0);
    }
    for (int32_t i = first; i < end; i++) {
        int32_t position = s->position[i];
        assert_int_equal(position, t->next++);
        assert_true(position < t->known);
        assert_true(position / BLOCK < t->blocks);
        /* what the rank sampled it is not told, and it knows only the last */
        bool from_slot = position >= t->history;
        assert_true(position == t->known - 1 || !from_slot);
        assert_int_equal(s->token[i], from_slot ? STEP_TOKEN_FROM_SLOT : t->tokens[position]);
        run_row(m, t, position);
    }
    m->multi_chunk += s->position[first] > 0 && t->next < t->known;
    if (r && t->next == t->known)
        r->scheduled = true;
    if (s->position[first] < t->history)
        count_turn(m, t);
}

/* Blocks that rows write belong to them alone, in this step and in the one before it if that is not
 * answered yet. */
static void check_named(struct sim *m, const struct step *s, struct answer *a)
{
    const struct answer *other = &m->answers[(m->built + 1) % SCHED_FLIGHTS];
    memset(a->named, 0, sizeof a->named);
    for (int32_t i = 0; i < s->rows; i++) {
        const struct slot *t = &m->slots[s->slot[i]];
        for (int32_t b = 0; b <= s->position[i] / BLOCK; b++) {
            uint64_t *by = &a->named[t->table[b]];
            *by = *by == 0 || *by == t->request ? t->request : ~0ull;
        }
    }
    for (int32_t i = 0; i < s->rows; i++) {
        const struct slot *t = &m->slots[s->slot[i]];
        int32_t block = t->table[s->position[i] / BLOCK];
        assert_true(a->named[block] == t->request);
        if (m->built > m->answered)
            assert_true(other->named[block] == 0 || other->named[block] == t->request);
    }
}

static void run_step(struct sim *m, const struct step *s)
{
    struct answer *a = &m->answers[m->built % SCHED_FLIGHTS];
    assert_true(s->rows > 0 && s->rows <= m->config.limits.rows);
    apply_closes(m, s);
    apply_opens(m, s);
    apply_appends(m, s);
    for (int32_t i = 0, end; i < s->rows; i = end) {
        end = i + 1;
        while (end < s->rows && s->slot[end] == s->slot[i])
            end++;
        run_group(m, s, i, end);
    }
    check_named(m, s, a);
    for (int32_t i = 0; i < s->samples; i++) {
        struct slot *t = &m->slots[s->slot[s->sample[i]]];
        assert_int_equal(s->position[s->sample[i]], t->known - 1);
        a->ids[i] = token_of(t->request, t->known - t->prompt_len);
        assert_true(t->known < LEN_MAX);
        t->tokens[t->known++] = a->ids[i] < 0 ? 0 : a->ids[i];
    }
    m->overlaps += m->built > m->answered;
    m->built++;
    m->steps++;
}

/* Blocks have as many owners as there are sequences with them; those that leave own theirs until
 * the steps in flight are answered. */
static void check_blocks(struct sim *m)
{
    int32_t owners[BLOCKS_MAX] = {0};
    const struct kv_pool *kv = sched_kv(m->sched);
    const struct sched_stats stats = sched_stats(m->sched);
    kv_check(kv);
    for (int32_t i = 0; i < LIVE_MAX; i++) {
        const struct request *r = &m->requests[i];
        for (int32_t b = 0; r->id && b < r->sequence->block_count; b++)
            owners[r->sequence->blocks[b]]++;
    }
    for (int32_t b = 0; b < m->config.limits.blocks; b++) {
        assert_true(kv_owners(kv, b) >= owners[b]);
        if (m->built == m->answered)
            assert_int_equal(kv_owners(kv, b), owners[b]);
    }
    assert_int_equal(stats.running + stats.waiting, m->live);
    assert_int_equal(sched_in_flight(m->sched), m->built - m->answered);
}

static void take_events(struct sim *m, int32_t count)
{
    assert_true(count <= sched_events_max(&m->config));
    for (int32_t i = 0; i < count; i++)
        take_event(m, &m->events[i]);
}

/* False: nothing to build. */
static bool build(struct sim *m)
{
    struct err err;
    int32_t count;
    bool work = sched_build(m->sched, m->step, m->events, &count);
    for (int32_t i = 0; i < LIVE_MAX; i++)
        m->requests[i].cancel_age += m->requests[i].cancel_age >= 0;
    take_events(m, count);
    for (int32_t i = 0; i < LIVE_MAX; i++) /* a cancel ends with the next step that is built */
        assert_true(!m->requests[i].id || m->requests[i].cancel_age < 0);
    if (work) {
        size_t n = step_encode(m->step, m->message);
        if (step_decode(m->wire, m->message, n, &err) != OK)
            fail_msg("%s", err.text);
        run_step(m, m->wire);
    } else if (m->built == m->answered) {
        assert_int_equal(m->live, 0); /* never idle with work */
    }
    m->failed = !work;
    check_blocks(m);
    return work;
}

static void commit(struct sim *m)
{
    int32_t count;
    sched_commit(m->sched, m->answers[m->answered++ % SCHED_FLIGHTS].ids, m->events, &count);
    take_events(m, count);
    check_blocks(m);
}

/* Builds or commits, whatever is possible. False: nothing is left. */
static bool advance(struct sim *m)
{
    const uint64_t flights = m->built - m->answered;
    if (flights < SCHED_FLIGHTS && (flights == 0 || below(4) > 0) && build(m))
        return true;
    if (flights == 0)
        return false;
    while (below(60) == 0)
        cancel_some(m); /* while the steps are in flight */
    commit(m);
    return true;
}

/* The group dies: all ends, and what the KV cache holds is lost. */
static void die(struct sim *m)
{
    int32_t count;
    m->deaths++;
    sched_end_all(m->sched, FINISH_ERROR, m->events, &count);
    assert_int_equal(count, m->live);
    for (int32_t i = 0; i < count; i++) {
        struct request *r = find(m, m->events[i].request);
        assert_non_null(r);
        assert_int_equal(m->events[i].finish, FINISH_ERROR);
        assert_int_equal(m->events[i].token, -1);
        r->id = 0;
    }
    m->live = 0;
    m->answered = m->built;
    memset(m->slots, 0, sizeof m->slots);
    memset(m->kv, 0, sizeof m->kv);
    check_blocks(m);
    assert_int_equal(kv_used(sched_kv(m->sched)) + kv_kept(sched_kv(m->sched)), 0);
    sched_end_all(m->sched, FINISH_ERROR, m->events, &count);
    assert_int_equal(count, 0);
}

/* ---- runs ---- */

struct setting {
    int32_t slots, rows, blocks, len, waiting;
    bool caching, priorities;
};

static struct sim *sim_open(const struct setting *c)
{
    struct sim *m = calloc(1, sizeof *m);
    struct err err;
    assert_non_null(m);
    m->config = (struct sched_config){
        .limits = {.slots = c->slots,
                   .rows = c->rows,
                   .table_cols = kv_blocks_for(c->len),
                   .vocab = VOCAB,
                   .blocks = c->blocks,
                   .history_max = c->len},
        .waiting_max = c->waiting,
        .max_model_len = c->len,
        .eos = {VOCAB - 1, EOS},
        .eos_count = 2,
        .prefix_caching = c->caching,
        .secret = {1, 2},
    };
    m->cancels = true;
    m->priorities = c->priorities;
    assert_int_equal(sched_open(&m->config, &m->sched, &err), OK);
    assert_int_equal(step_open_new(&m->config.limits, &m->step, &err), OK);
    assert_int_equal(step_open_new(&m->config.limits, &m->wire, &err), OK);
    m->message = malloc(step_bytes_max(&m->config.limits));
    m->events = calloc((size_t)sched_events_max(&m->config), sizeof *m->events);
    return m;
}

static void sim_close(struct sim *m)
{
    sched_close(m->sched);
    step_free(m->step);
    step_free(m->wire);
    free(m->message);
    free(m->events);
    free(m);
}

static const struct setting settings[] = {
    {8, 64, 256, 160, 48, true, false},  /* room for all */
    {8, 8, 256, 160, 48, true, false},   /* as many rows as slots */
    {1, 1, 12, 160, 10, true, false},    /* one of each */
    {16, 40, 24, 160, 40, true, false},  /* short of blocks */
    {16, 40, 24, 160, 40, false, false}, /* the same without the prefix cache */
    {4, 16, 9, 160, 8, true, true},      /* some never fit, the queue overflows */
    {3, 200, 256, 33, 30, true, true},   /* short contexts, a prompt in one step */
    {16, 17, 64, 48, 48, false, true},   /* hardly more rows than slots */
    {16, 64, 40, 160, 48, true, true},   /* priorities, and short of blocks */
    {16, 40, 13, 200, 40, true, false},  /* the longest request fills the cache */
    {16, 40, 13, 200, 40, false, true},  /* likewise */
};

static void test_simulation(void **state)
{
    (void)state;
    int64_t arrivals = 0, ended[FINISH_ERROR + 1] = {0};
    struct sim sum = {0};
    for (size_t c = 0; c < ARRAY_LEN(settings); c++) {
        seed = 1000 + c;
        struct sim *m = sim_open(&settings[c]);
        while (m->accepted < 3000) {
            /* bursts, then quiet until nothing is left now and then */
            for (int32_t n = below(200) == 0 ? 40 : below(4) - 1; n > 0; n--)
                arrive(m);
            if (below(20) == 0)
                cancel_some(m);
            for (int32_t n = below(8); n >= 0; n--)
                advance(m);
            while (below(400) == 0 && advance(m))
                continue;
            if (below(1000) == 0)
                die(m);
        }
        while (advance(m))
            continue;
        assert_int_equal(m->live, 0);
        assert_int_equal(kv_used(sched_kv(m->sched)), 0);
        /* Of those live at once, each can be ahead of a request once, with all its rows, and one
         * row a step is made at least; those that give way are computed twice. */
        if (!settings[c].priorities)
            assert_true(m->longest < 2 * LIVE_MAX * LEN_MAX);
        arrivals += m->accepted;
        for (int32_t i = 0; i <= FINISH_ERROR; i++)
            ended[i] += m->ended[i];
        sum.multi_chunk += m->multi_chunk;
        sum.reused_slots += m->reused_slots;
        sum.preempted += m->preempted;
        sum.hits += m->hits;
        sum.overlaps += m->overlaps;
        sum.deaths += m->deaths;
        sim_close(m);
    }
    assert_true(arrivals >= 30000); /* and the cases that matter did occur */
    for (int32_t i = 0; i <= FINISH_ERROR; i++)
        assert_true(ended[i] > 50);
    assert_true(sum.multi_chunk > 1000 && sum.reused_slots > 10000 && sum.preempted > 300);
    assert_true(sum.hits > 800 && sum.overlaps > 100000 && sum.deaths > 50);
}

/* A lost group or a stop: whatever the state, everything ends once and nothing is kept. */
static void test_end_all(void **state)
{
    (void)state;
    for (int32_t round = 0; round < 300; round++) {
        seed = (uint64_t)round;
        struct sim *m = sim_open(&settings[round % (int32_t)ARRAY_LEN(settings)]);
        for (int32_t i = below(30); i >= 0; i--) {
            arrive(m);
            if (below(2))
                advance(m);
        }
        die(m);
        sim_close(m);
    }
}

/* Freed by sched_close, for the leak sanitizer. */
static void test_close_with_work(void **state)
{
    (void)state;
    struct sim *m = sim_open(&settings[5]);
    seed = 5;
    for (int32_t i = 0; i < 12; i++)
        arrive(m);
    build(m);
    assert_true(sched_stats(m->sched).running > 0 && sched_stats(m->sched).waiting > 0);
    sim_close(m);
    sched_close(NULL);
    sched_sequence_free(NULL);
}

/* ---- particular cases ---- */

static void submit(struct sim *m, int32_t prompt_len, int32_t max_tokens, uint64_t client,
                   int32_t first_token)
{
    struct request *r = find(m, 0);
    struct sequence *s;
    struct err err;
    *r = (struct request){.id = ++m->next_id, .slot = -1, .cancel_age = -1};
    r->params = request_params_default();
    r->params.max_tokens = r->budget = max_tokens;
    r->params.ignore_eos = true;
    r->params.client = client;
    r->params.seed = r->id;
    r->prompt_len = prompt_len;
    for (int32_t i = 0; i < prompt_len; i++)
        r->prompt[i] = (first_token + i) % VOCAB;
    assert_int_equal(sched_sequence(&m->config, &r->params, r->prompt, prompt_len, &s, &err), OK);
    s->id = r->id;
    s->user = r;
    r->sequence = s;
    assert_true(sched_submit(m->sched, s));
    m->live++;
}

/* Four equal prompts at once: the first is computed, the others share its six full blocks with the
 * next step and compute only the rest. */
static void test_equal_prompts(void **state)
{
    (void)state;
    struct sim *m = sim_open(&(struct setting){8, 150, 256, 160, 48, true, false});
    for (int32_t i = 0; i < 4; i++)
        submit(m, 100, 4, 0, 3);
    assert_true(build(m));
    assert_int_equal(m->wire->rows, 100);
    assert_true(build(m)); /* while the first is in flight */
    assert_int_equal(m->wire->rows, 1 + 3 * (100 - 96));
    assert_int_equal(m->wire->samples, 4);
    commit(m);
    commit(m);
    assert_int_equal(sched_stats(m->sched).prefix_queries, 400);
    assert_int_equal(sched_stats(m->sched).prefix_hits, 3 * 96);
    assert_int_equal(kv_used(sched_kv(m->sched)), 7 + 3);
    while (advance(m))
        continue;
    /* all is kept: six shared blocks; of the last, not full, nothing */
    assert_int_equal(kv_kept(sched_kv(m->sched)), 6);
    submit(m, 96, 1, 0, 3); /* one token at least is computed */
    assert_true(build(m));
    assert_int_equal(m->wire->rows, 16);
    sim_close(m);
}

/* Fifty requests of one client, then one of another: it is the next to be admitted. */
static void test_clients_take_turns(void **state)
{
    (void)state;
    struct sim *m = sim_open(&(struct setting){2, 16, 256, 160, 200, false, false});
    for (int32_t i = 0; i < 50; i++)
        submit(m, 16, 3, 1, i);
    for (int32_t i = 0; i < 3; i++) {
        assert_true(build(m));
        commit(m);
    }
    submit(m, 16, 3, 2, 99);
    submit(m, 16, 3, 2, 98);
    uint64_t first = m->next_id - 1, order[4];
    for (int32_t n = 0; n < 4;) {
        assert_true(build(m));
        for (int32_t i = 0; i < m->wire->opens; i++)
            order[n++] = m->wire->open[i].params.seed;
        commit(m);
    }
    assert_true((order[0] == first) + (order[1] == first) == 1);
    assert_true((order[2] == first + 1) + (order[3] == first + 1) == 1);
    sim_close(m);
}

/* A long prompt of one client shares the row budget by turns with a short one of another. */
static void test_long_prompt_shares_rows(void **state)
{
    (void)state;
    struct sim *m = sim_open(&(struct setting){4, 16, 256, 160, 20, false, false});
    submit(m, 150, 1, 1, 3);
    assert_true(build(m));
    submit(m, 16, 1, 2, 7);
    commit(m);
    assert_true(build(m));
    commit(m);
    assert_true(build(m)); /* at the end of the ring it came, and there is one before it */
    assert_int_equal(m->wire->opens, 1);
    assert_int_equal(m->wire->samples, 1);
    sim_close(m);
}

static void test_refused_sequences(void **state)
{
    (void)state;
    struct sim *m = sim_open(&settings[5]); /* 9 blocks of 16, contexts of 160 */
    int32_t prompt[LEN_MAX] = {0};
    const struct {
        int32_t prompt_len, max_tokens, token;
        const char *wanted; /* NULL: taken */
    } cases[] = {
        {0, 1, 0, "This model's maximum context length is 160 tokens."},
        {160, 1, 0, "This model's maximum context length is 160 tokens."},
        {-1, 1, 0, "This model's maximum context length is 160 tokens."},
        {159, 1, 0, "needs 10 KV blocks, the cache has 9"},
        {144, 1, 0, "needs 10 KV blocks, the cache has 9"},
        {143, 1, 0, NULL},
        {1, 1000000, 0, "needs 10 KV blocks"}, /* cut to the context */
        {100, INT32_MAX, 0, "needs 10 KV blocks"},
        {5, 0, 0, "max_tokens"},
        {5, -3, 0, "max_tokens"},
        {5, 1, -1, "token id -1"},
        {5, 1, VOCAB, "token id 500"},
        {5, 1, VOCAB - 1, NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct request_params p = request_params_default();
        p.max_tokens = cases[i].max_tokens;
        struct sequence *s = NULL;
        struct err err = {""};
        prompt[4] = cases[i].token;
        enum status st = sched_sequence(&m->config, &p, prompt, cases[i].prompt_len, &s, &err);
        if (st != (cases[i].wanted ? ERR_INPUT : OK))
            fail_msg("case %zu: status %d %s", i, st, err.text);
        if (cases[i].wanted && !strstr(err.text, cases[i].wanted))
            fail_msg("case %zu: \"%s\"", i, err.text);
        sched_sequence_free(s);
    }
    sim_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulation),         cmocka_unit_test(test_end_all),
        cmocka_unit_test(test_close_with_work),    cmocka_unit_test(test_equal_prompts),
        cmocka_unit_test(test_clients_take_turns), cmocka_unit_test(test_long_prompt_shares_rows),
        cmocka_unit_test(test_refused_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
