/* The scheduler, simulated: tens of thousands of seeded arrivals, cancels, ends of sequence, KV
 * shortages, common beginnings and deaths of the group, with up to two steps in flight. The test
 * keeps what a rank keeps (slots, block tables, tokens, and what each KV position was computed
 * from) and what a client keeps (its tokens, its one end), and compares after every step. */
#ifndef TESSERA_TESTS_SCHED_SIM_H
#define TESSERA_TESTS_SCHED_SIM_H

#include "tests/sched_checks.h"

/* ---- the client's side ---- */

/* How the request must end with this token; FINISH_NONE: it goes on. */
static enum finish_reason wanted_finish(const struct request *r, int32_t token)
{
    if (token < 0)
        return FINISH_FAILED;
    if (r->params.guide && r->got + 1 == GUIDED)
        return FINISH_COMPLETE;
    if ((token == EOS || token == VOCAB - 1) && !r->params.ignore_eos)
        return FINISH_STOP;
    return r->got + 1 == r->budget ? FINISH_LENGTH : FINISH_NONE;
}

/* The logprob of the token at this position. */
static float logprob_of(uint64_t id, int32_t position)
{
    return -(float)(base_hash(base_hash(BASE_HASH_INIT, &id, sizeof id), &position, 4) % 1000) / 8;
}

/* `wanted` best were asked for, -1: no logprob. */
static void check_logprobs(const struct token_event *e, int32_t position, int32_t wanted)
{
    if (wanted < 0)
        return;
    assert_true(e->logprob == logprob_of(e->request, position));
    assert_int_equal(e->top_count, wanted);
    for (int32_t i = 0; i < wanted; i++)
        assert_int_equal(e->top[i].token, position + i);
}

static void take_token(const struct token_event *e, struct request *r)
{
    const int32_t token = token_of(r->id, r->got);
    assert_true(r->params.prompt_logprobs < 0 || r->scored == r->prompt_len);
    assert_int_equal(e->token, token);
    assert_int_equal(e->finish, wanted_finish(r, token));
    if (token >= 0)
        check_logprobs(e, r->prompt_len + r->got, r->params.logprobs);
    r->got++;
}

static bool gives_vectors(const struct sim *m)
{
    return m->config.limits.columns > 0;
}

/* Its own, and no token; nothing where a number of it is not finite. */
static void take_vector(const struct token_event *e, const struct request *r)
{
    float wanted[COLUMNS];
    bool finite = true;
    vector_of(r->id, text_of(0, r->prompt, r->prompt_len - 1), wanted);
    for (int32_t i = 0; i < COLUMNS; i++)
        finite = finite && isfinite(wanted[i]);
    assert_int_equal(e->token, -1);
    assert_false(e->prompt);
    assert_int_equal(e->finish, finite ? FINISH_STOP : FINISH_FAILED);
    assert_int_equal(e->columns, finite ? COLUMNS : 0);
    assert_int_equal(e->vector != NULL, finite);
    if (finite)
        assert_memory_equal(e->vector, wanted, sizeof wanted);
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
        assert_int_equal(e->cached, r->cached);
        if (gives_vectors(m)) {
            take_vector(e, r);
        } else if (e->prompt) {
            assert_int_equal(e->token, r->prompt[r->scored]);
            check_logprobs(e, r->scored++, r->params.prompt_logprobs);
        } else if (r->budget > 0) {
            take_token(e, r);
        } else { /* all it wanted was its prompt */
            assert_int_equal(e->token, -1);
            assert_int_equal(e->finish, FINISH_LENGTH);
            assert_true(r->params.prompt_logprobs < 0 || r->scored == r->prompt_len);
        }
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
static void make_prompt(const struct sim *m, struct request *r)
{
    const int32_t len_max = m->config.max_model_len;
    const int32_t family = below(8);
    r->prompt_len = below(m->config.limits.recurs ? 2 : 3) == 0
                        ? 1 + below(len_max - 1)
                        : 1 + below(20 < len_max ? 20 : len_max - 1);
    if (gives_vectors(m) && below(10) == 0)
        r->prompt_len = len_max; /* nothing comes after it */
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
    r->params.max_tokens *= below(12) > 0;
    r->params.ignore_eos = below(3) == 0;
    r->params.logprobs = below(4) == 0 ? below(TOP_MAX + 1) : -1;
    r->params.prompt_logprobs = below(8) == 0 ? below(TOP_MAX + 1) : -1;
    r->params.seed = r->id * 1000003;
    r->params.client = (uint64_t)(below(3) ? 0 : below(CLIENTS)); /* the first has most */
    r->params.cache_salt = (uint64_t)below(SALTS) << 40;
    if (m->priorities)
        r->params.priority = below(3) - 1;
    if (is_guided(r->id))
        r->params.guide = m->guided.guide;
    if (gives_vectors(m)) {
        r->params.pooled = true;
        r->params.max_tokens = 0;
        r->params.logprobs = r->params.prompt_logprobs = -1;
        r->params.guide = NULL;
    }
}

static void arrive(struct sim *m)
{
    struct request *r = find(m, 0);
    struct sequence *s = NULL;
    struct err err;
    if (!r)
        return;
    *r = (struct request){.id = ++m->next_id,
                          .scored = 1,
                          .slot = -1,
                          .home = -1,
                          .cancel_age = -1,
                          .since = m->steps};
    make_prompt(m, r);
    make_params(m, r);
    int32_t room = m->config.max_model_len - r->prompt_len;
    r->budget = r->params.max_tokens < room ? r->params.max_tokens : room;
    enum status st = sequence_open(&m->config, &r->params, r->prompt, r->prompt_len, &s, &err);
    if (kv_groups_need(&m->config.limits.groups, r->prompt_len + r->budget,
                       m->config.limits.home_rows) > m->config.limits.blocks) {
        assert_int_equal(st, ERR_INPUT);
        r->id = 0;
        return;
    }
    assert_int_equal(st, OK);
    s->id = r->id;
    s->user = r;
    r->sequence = s;
    const struct sched_stats now = sched_stats(m->sched);
    assert_int_equal(now.running + now.waiting, m->live);
    if (m->live == sched_requests_max(&m->config)) {
        sequence_free(s);
        r->id = 0;
        return;
    }
    sched_submit(m->sched, s);
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
        r->left = m->built + 1;
        bool behind = false; /* somebody's who runs on in this home */
        for (int32_t j = 0; j < m->config.limits.slots; j++) {
            const struct request *o = m->slots[j].open ? find(m, m->slots[j].request) : NULL;
            behind = behind || (o && o->slot == j && m->slots[j].home == t->home && before(o, r));
        }
        assert_true(behind || m->failed);
    }
}

/* May r have been admitted before o gave way, by the same step? That was to a prompt whose turn
 * came later, in another home: in r's there were blocks for all. */
static bool came_before(struct sim *m, const struct request *r, const struct request *o)
{
    bool prompts = false;
    for (int32_t i = 0; i < m->config.limits.slots; i++) {
        const struct slot *t = &m->slots[i];
        const struct request *p = t->open && t->home == o->home ? find(m, t->request) : NULL;
        prompts = prompts || (p && p->slot == i && t->next < t->history && before(p, o));
    }
    return prompts && !m->failed && o->left == m->built + 1 && o->home != r->home;
}

/* The first of its client's, and nobody who gave way waits. */
static void check_admission(struct sim *m, const struct request *r)
{
    for (int32_t i = 0; i < LIVE_MAX; i++) {
        const struct request *o = &m->requests[i];
        if (!o->id || o == r)
            continue;
        assert_true(!o->preempted || came_before(m, r, o));
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
        m->reused_slots += t->request != 0;
        m->moved += r->home >= 0 && r->home != o->home;
        r->home = o->home;
        if (!r->admitted)
            check_admission(m, r);
        *t = (struct slot){.open = true,
                           .request = r->id,
                           .salt = r->params.cache_salt,
                           .home = o->home,
                           .prompt_len = r->prompt_len,
                           .history = o->history,
                           .known = o->history,
                           .next = -1,
                           .unsure = -1,
                           .first = !r->admitted,
                           .fresh = !r->admitted};
        memcpy(t->tokens, o->tokens, (size_t)o->history * sizeof *o->tokens);
        if (o->state >= 0)
            t->made = m->kept[o->state];
        m->recalls += o->state >= 0;
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
        assert_in_range(a->group, 0, kv_groups_count(&m->config.limits.groups) - 1);
        if (a->group < m->config.limits.groups.keep || t->blocks[a->group] > 0)
            assert_int_equal(a->index, t->blocks[a->group]);
        assert_in_range(a->block, 0, m->config.limits.blocks - 1);
        t->table[a->group][a->index] = a->block;
        t->blocks[a->group] = a->index + 1;
    }
}

/* One row in one group of layers: the positions that it sees must hold what its own tokens make of
 * them there. */
static void run_row(struct sim *m, struct slot *t, int32_t group, int32_t position)
{
    uint64_t text = base_hash(BASE_HASH_INIT, &group, sizeof group);
    for (int32_t p = 0; p <= position; p++) { /* as text_of */
        const int32_t block = t->table[group][p / BLOCK];
        struct content *c = &m->kv[t->home][block];
        text = base_hash(text, &t->tokens[p], sizeof t->tokens[p]);
        if (p < first_seen(m, group, position))
            continue;
        if (p == position) {
            assert_int_equal(kv_owners(sched_kv(m->sched, t->home), block), 1);
            c->text[p % BLOCK] = text;
            c->salt = t->salt;
        }
        assert_true(c->text[p % BLOCK] == text);
        assert_true(c->salt == t->salt); /* nobody else's, even if it were equal */
    }
}

/* A row in layers that recur: what they remember has to be of the tokens before it. */
static void run_recurrent_row(struct sim *m, struct slot *t, int32_t position, int32_t keep)
{
    if (!m->config.limits.recurs)
        return;
    assert_int_equal(t->made.position, position);
    uint64_t text = base_hash(BASE_HASH_INIT, &t->salt, sizeof t->salt);
    for (int32_t p = 0; position > 0 && p < position; p++)
        text = base_hash(text, &t->tokens[p], sizeof t->tokens[p]);
    assert_true(position == 0 || t->made.text == text);
    t->made.text = base_hash(text, &t->tokens[position], sizeof t->tokens[position]);
    t->made.position++;
    if (keep < 0)
        return;
    assert_in_range(keep, 0, m->config.limits.states - 1);
    assert_int_equal(t->made.position % BLOCK, 0);
    assert_false(m->kept_now[keep]); /* by another row of the step */
    m->kept_now[keep] = true;
    m->kept[keep] = t->made;
    m->keeps++;
}

/* No guess beyond what is asked for, nor beside the rows of a prompt, nor while a step is in flight
 * that draws what they follow. */
static void check_guesses(struct sim *m, const struct step *s, const struct slot *t,
                          const struct request *r)
{
    m->guesses += t->guesses;
    if (t->guesses == 0)
        return;
    assert_true(t->guesses <= m->config.speculation.tokens);
    assert_true(t->next < t->prompt_len + r->budget);
    assert_int_equal(t->known, r->prompt_len + r->got);
    m->guided_guesses += r->params.guide ? t->guesses : 0;
    for (int32_t i = 0; i < s->rows && s->closes == 0; i++) /* nobody gave way in between */
        assert_true(s->position[i] >= m->slots[s->slot[i]].history);
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
        if (r && t->first)
            r->cached = t->next;
        assert_int_equal(t->next % BLOCK, 0);
        assert_true(t->next == 0 || t->blocks[0] >= t->next / BLOCK);
        assert_true(t->next == 0 ||
                    (m->config.prefix_caching && !(r && r->params.prompt_logprobs >= 0)));
    }
    for (int32_t i = first; i < end; i++) {
        int32_t position = s->position[i];
        assert_int_equal(position, t->next++);
        for (int32_t g = 0; g < kv_groups_count(&m->config.limits.groups); g++)
            assert_true(position / BLOCK < t->blocks[g]);
        if (position >= t->known) { /* a guess, behind the last token */
            assert_true(i > first && s->position[first] == t->known - 1);
            t->guesses++;
        } else if (s->token[i] == STEP_TOKEN_FROM_SLOT) { /* drawn by the step in flight */
            assert_int_equal(position, t->known - 1);
            assert_int_not_equal(position, t->unsure); /* which the history has, too */
            assert_true(!r || position == r->prompt_len + r->got);
        } else if (position != t->unsure) {
            assert_int_equal(s->token[i], t->tokens[position]);
        }
        if (s->token[i] >= 0)
            t->tokens[position] = s->token[i];
        for (int32_t g = 0; g < kv_groups_count(&m->config.limits.groups); g++)
            run_row(m, t, g, position);
        run_recurrent_row(m, t, position, s->keep[i]);
    }
    m->multi_chunk += s->position[first] > 0 && t->next < t->known;
    check_guesses(m, s, t, r);
    if (r && t->next >= t->known)
        r->scheduled = true;
    if (r)
        r->named = m->built + 1;
    if (s->position[first] < t->history)
        count_turn(m, t);
}

/* Of a guided request: any token but the end ones, and only once its last token is known. */
static void check_mask(struct sim *m, const struct step *s, const struct slot *t, int32_t i)
{
    const struct request *r = find(m, t->request);
    const int32_t words = sample_mask_words(VOCAB), mask = s->mask[i];
    if (!r) /* it has ended since */
        return;
    assert_int_equal(mask >= 0, r->params.guide != NULL);
    if (mask < 0)
        return;
    for (int32_t id = (int32_t)(m->masks % 32); id < VOCAB; id += 32)
        assert_true(s->masks[mask * words + id / 32] >> (id % 32) & 1);
    assert_in_range(t->known - t->prompt_len - r->got, 0, t->guesses);
    m->masks++;
}

/* The next token is drawn where a guess may stand. The history is not written, and where the guess
 * is wrong, or there is none, the client has to say the token. */
static void take_guess(struct sim *m, struct slot *t, int32_t token)
{
    const bool right = t->known < t->next && t->tokens[t->known] == token;
    m->right += right;
    if (!right) {
        t->unsure = t->known;
        t->next = t->known;
    }
    t->known++;
}

/* The vector of the whole prompt, from what its last row left in the first group of layers. */
static void run_pooled(struct sim *m, const struct step *s, struct answer *a, int32_t i)
{
    const struct slot *t = &m->slots[s->slot[s->sample[i]]];
    const int32_t position = s->position[s->sample[i]];
    const struct content *c = &m->kv[t->home][t->table[0][position / BLOCK]];
    assert_int_equal(position, t->prompt_len - 1);
    assert_int_equal(s->target[i], t->tokens[position]);
    assert_int_equal(s->top[i], -1);
    a->ids[i] = s->target[i];
    vector_of(t->request, c->text[position % BLOCK], &a->vector[i * COLUMNS]);
}

/* The next token is drawn, or scored: the one the prompt has there. */
static void run_sample(struct sim *m, const struct step *s, struct answer *a, int32_t i)
{
    struct slot *t = &m->slots[s->slot[s->sample[i]]];
    const int32_t next = s->position[s->sample[i]] + 1, stride = step_stride(s);
    a->ids[i] = s->target[i];
    a->logprob[i] = logprob_of(t->request, next);
    for (int32_t k = 0; k < s->top[i]; k++)
        a->best[i * stride + k] = (struct token_top){next + k, a->logprob[i]};
    if (s->target[i] >= 0) {
        assert_true(next < t->prompt_len);
        assert_int_equal(s->target[i], t->tokens[next]);
        m->scores++;
        return;
    }
    if (next > t->next) { /* behind a wrong guess */
        assert_int_equal(s->target[i], STEP_TARGET_CHECK);
        a->ids[i] = 3 + next % (VOCAB - 4);
        return;
    }
    assert_int_equal(next, t->known);
    assert_true(t->known < LEN_MAX);
    check_mask(m, s, t, i);
    a->ids[i] = token_of(t->request, t->known - t->prompt_len);
    if (s->target[i] == STEP_TARGET_CHECK)
        take_guess(m, t, a->ids[i]);
    else
        t->tokens[t->known++] = a->ids[i] < 0 ? 0 : a->ids[i];
}

static void run_step(struct sim *m, const struct step *s)
{
    struct answer *a = &m->answers[m->built % SCHED_FLIGHTS];
    assert_true(s->rows > 0 && s->rows <= m->config.limits.rows);
    apply_closes(m, s);
    apply_opens(m, s);
    apply_appends(m, s);
    check_homes(m, s);
    memset(m->had_turn, 0, sizeof m->had_turn);
    memset(m->kept_now, 0, sizeof m->kept_now);
    for (int32_t i = 0; i < m->config.limits.slots; i++)
        m->slots[i].guesses = 0;
    for (int32_t i = 0, end; i < s->rows; i = end) {
        end = i + 1;
        while (end < s->rows && s->slot[end] == s->slot[i])
            end++;
        run_group(m, s, i, end);
    }
    if (m->config.limits.homes > 1)
        settle_turns(m);
    check_decodes(m);
    check_prompts(m, s);
    check_balance(m, s);
    check_named(m, s, a);
    check_cost(m, s);
    for (int32_t i = 0; i < s->samples; i++)
        (gives_vectors(m) ? run_pooled : run_sample)(m, s, a, i);
    m->overlaps += m->built > m->answered;
    m->built++;
    m->steps++;
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
    struct step *step = m->steps_built[m->built % SCHED_FLIGHTS];
    bool work = sched_build(m->sched, step, m->events, &count);
    for (int32_t i = 0; i < LIVE_MAX; i++)
        m->requests[i].cancel_age += m->requests[i].cancel_age >= 0;
    take_events(m, count);
    for (int32_t i = 0; i < LIVE_MAX; i++) /* a cancel ends with the next step that is built */
        assert_true(!m->requests[i].id || m->requests[i].cancel_age < 0);
    if (work) {
        size_t n = step_encode(step, m->message);
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
    const uint64_t n = m->answered++ % SCHED_FLIGHTS;
    const struct answer *a = &m->answers[n];
    const struct step *s = m->steps_built[n];
    const int32_t stride = step_stride(s);
    const struct step_result result = {.count = s->samples,
                                       .ids = a->ids,
                                       .logprob = stride >= 0 ? a->logprob : NULL,
                                       .best = a->best,
                                       .stride = stride,
                                       .vector = gives_vectors(m) ? a->vector : NULL,
                                       .columns = m->config.limits.columns};
    sched_commit(m->sched, s, &result, m->events, &count);
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

/* Nothing is in flight, and nobody knows anything of slots and KV. */
static void forget_ranks(struct sim *m)
{
    m->answered = m->built;
    memset(m->slots, 0, sizeof m->slots);
    memset(m->kv, 0, sizeof m->kv);
    memset(m->kept, 0, sizeof m->kept);
    memset(m->answers, 0, sizeof m->answers);
    check_blocks(m);
    for (int32_t i = 0; i < m->config.limits.homes; i++)
        assert_int_equal(kv_used(sched_kv(m->sched, i)) + kv_kept(sched_kv(m->sched, i)), 0);
}

/* The group dies, and another takes its place: all go on, but those it has died of too often. */
static void outlive(struct sim *m)
{
    int32_t count, given_up = 0;
    m->restarts++;
    sched_restart(m->sched, m->events, &count);
    for (int32_t i = 0; i < LIVE_MAX; i++) {
        struct request *r = &m->requests[i];
        r->losses += r->id && r->named > m->answered;
        if (r->slot >= 0)
            r->preempted = r->scheduled;
        r->slot = -1;
    }
    for (int32_t i = 0; i < count; i++) {
        struct request *r = find(m, m->events[i].request);
        assert_non_null(r);
        assert_int_equal(m->events[i].finish, FINISH_ERROR);
        assert_int_equal(r->losses, SCHED_LOSSES);
        r->id = 0;
        m->live--;
        given_up++;
    }
    for (int32_t i = 0; i < LIVE_MAX; i++)
        assert_true(!m->requests[i].id || m->requests[i].losses < SCHED_LOSSES);
    m->given_up += given_up;
    forget_ranks(m);
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
    forget_ranks(m);
    sched_end_all(m->sched, FINISH_ERROR, m->events, &count);
    assert_int_equal(count, 0);
}

/* ---- runs ---- */

struct setting {
    int32_t slots, rows, blocks, len, waiting;
    bool caching, priorities, costs;
    int32_t guesses;
    struct kv_groups groups; /* none: one that keeps all */
};

static struct kv_groups groups_of(const struct setting *c)
{
    return kv_groups_count(&c->groups) > 0 ? c->groups : (struct kv_groups){.keep = 1};
}

/* The blocks are divided among the homes, but the longest request still fits where it did. */
static int32_t blocks_each(const struct setting *c, int32_t homes)
{
    const struct kv_groups groups = groups_of(c);
    const int32_t longest = (int32_t)kv_groups_need(&groups, c->len, (c->rows + homes - 1) / homes),
                  least = c->blocks < longest ? c->blocks : longest;
    return c->blocks / homes > least ? c->blocks / homes : least;
}

static int32_t samples_of(const struct setting *c)
{
    const int32_t most = c->slots > c->guesses ? c->slots : 1 + c->guesses;
    return most < c->rows ? most : c->rows;
}

/* columns: of vectors, 0: of tokens; states: kept ones of layers that recur, -1: none does. */
static struct sim *sim_open_with(const struct setting *c, int32_t homes, int32_t columns,
                                 int32_t states)
{
    struct sim *m = calloc(1, sizeof *m);
    struct err err;
    assert_non_null(m);
    m->config = (struct sched_config){
        .limits = {.slots = c->slots,
                   .samples = samples_of(c),
                   .rows = c->rows,
                   .table_cols = kv_blocks_for(c->len),
                   .vocab = VOCAB,
                   .blocks = blocks_each(c, homes),
                   .groups = groups_of(c),
                   .history_max = c->len,
                   .homes = homes,
                   .home_rows = (c->rows + homes - 1) / homes,
                   .columns = columns,
                   .recurs = states >= 0,
                   .states = states > 0 ? states : 0},
        .waiting_max = c->waiting,
        .max_model_len = c->len,
        .eos = {VOCAB - 1, EOS},
        .eos_count = 2,
        .prefix_caching = c->caching,
        .speculation = {c->guesses, 1 + c->guesses % 2, 4},
        .secret = {1, 2},
    };
    if (c->costs)
        m->config.costs = (struct costs){.count = 2,
                                         .rows = {1, 2},
                                         .seconds = {cost(1, 0), cost(2, 0)},
                                         .per_key = cost(0, 1) - cost(0, 0)};
    m->cancels = true;
    m->priorities = c->priorities;
    assert_int_equal(sched_open(&m->config, &m->sched, &err), OK);
    for (int32_t i = 0; i < SCHED_FLIGHTS; i++)
        assert_int_equal(step_open_new(&m->config.limits, &m->steps_built[i], &err), OK);
    assert_int_equal(step_open_new(&m->config.limits, &m->wire, &err), OK);
    guided_open(&m->guided, VOCAB, GUIDED);
    m->message = malloc(step_bytes_max(&m->config.limits));
    m->events = calloc((size_t)sched_events_max(&m->config), sizeof *m->events);
    return m;
}

static inline struct sim *sim_open_pooled(const struct setting *c, int32_t homes, int32_t columns)
{
    return sim_open_with(c, homes, columns, -1);
}

/* Of tokens. */
static inline struct sim *sim_open(const struct setting *c, int32_t homes)
{
    return sim_open_with(c, homes, 0, -1);
}

static void sim_close(struct sim *m)
{
    sched_close(m->sched);
    guided_close(&m->guided);
    for (int32_t i = 0; i < SCHED_FLIGHTS; i++)
        step_free(m->steps_built[i]);
    step_free(m->wire);
    free(m->message);
    free(m->events);
    free(m);
}

#endif
