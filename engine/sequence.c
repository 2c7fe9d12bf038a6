/* DESIGN: a sequence is made before it is known whether there is room for it in the queue, on the
 * thread that submits it, so that the engine thread allocates nothing. */
#include "engine/sequence.h"

#include "engine/request.h"
#include "engine/sched.h"

#include <stdlib.h>
#include <string.h>

/* Does it fit the context and the cache? *answer: tokens it may produce. */
static enum status check(const struct sched_config *c, const struct request_params *params,
                         const int32_t *prompt, int32_t prompt_len, int32_t *answer,
                         struct err *err)
{
    if (prompt_len < 1 || prompt_len + (params->max_tokens > 0) > c->max_model_len)
        return base_fail(err, ERR_INPUT,
                         "This model's maximum context length is %d tokens. However, your prompt "
                         "has %d.",
                         c->max_model_len, prompt_len);
    if (params->pooled != (c->limits.columns > 0) || (params->pooled && params->max_tokens > 0))
        return base_fail(err, ERR_INPUT, "this model gives %s",
                         c->limits.columns > 0 ? "vectors, no tokens" : "tokens, no vectors");
    if (params->max_tokens < 0)
        return base_fail(err, ERR_INPUT, "max_tokens is %d, expected at least 0",
                         params->max_tokens);
    for (int32_t i = 0; i < prompt_len; i++) /* a rank refuses the whole step for one bad id */
        if (prompt[i] < 0 || prompt[i] >= c->limits.vocab)
            return base_fail(err, ERR_INPUT, "token id %d of the prompt is outside 0..%d",
                             prompt[i], c->limits.vocab - 1);
    for (int32_t i = 0; i < params->prediction_count; i++)
        if (params->prediction[i] < 0 || params->prediction[i] >= c->limits.vocab)
            return base_fail(err, ERR_INPUT, "token id %d of the prediction is outside 0..%d",
                             params->prediction[i], c->limits.vocab - 1);
    const int32_t marks[] = {params->reasoning_begin, params->reasoning_end, params->reasoning_gap};
    bool known = !params->guide || guide_vocab(params->guide) == c->limits.vocab;
    for (size_t i = 0; i < ARRAY_LEN(marks); i++)
        known = known && marks[i] >= -1 && marks[i] < c->limits.vocab;
    if (!known)
        return base_fail(err, ERR_INPUT, "the request is not guided by the tokens of this model");
    const int32_t room = c->max_model_len - prompt_len;
    *answer = params->max_tokens < room ? params->max_tokens : room;
    const int64_t need =
        kv_groups_need(&c->limits.groups, prompt_len + *answer, c->limits.home_rows);
    if (need > c->limits.blocks)
        return base_fail(err, ERR_INPUT, "the request needs %lld KV blocks, %s has %d",
                         (long long)need, c->limits.homes > 1 ? "a home of the cache" : "the cache",
                         c->limits.blocks);
    return OK;
}

enum status sequence_open(const struct sched_config *c, const struct request_params *params,
                          const int32_t *prompt, int32_t prompt_len, struct sequence **out,
                          struct err *err)
{
    enum status st = OK;
    int32_t answer = 0;
    struct sequence *q = calloc(1, sizeof *q);
    if (!q)
        return base_fail(err, ERR_NOMEM, "no memory for a request");
    TRY(check(c, params, prompt, prompt_len, &answer, err));
    TRY(request_rules(params, prompt_len, c->eos, c->eos_count, c->limits.vocab, &q->rules, err));
    q->tokens = calloc((size_t)(prompt_len + answer), sizeof *q->tokens);
    q->groups = c->limits.groups;
    q->block_cols = kv_blocks_for(prompt_len + answer);
    q->blocks =
        calloc((size_t)kv_groups_count(&q->groups) * (size_t)q->block_cols, sizeof *q->blocks);
    if (!q->tokens || !q->blocks) {
        st = base_fail(err, ERR_NOMEM, "no memory for a request of %d tokens", prompt_len);
        goto out;
    }
    memcpy(q->tokens, prompt, (size_t)prompt_len * sizeof *prompt);
    if (c->speculation.tokens > 0 && answer > 1) {
        TRY(ngram_open(&c->speculation, prompt_len + answer, params->prediction,
                       params->prediction_count, &q->ngram, err));
        ngram_follow(q->ngram, q->tokens, prompt_len);
    }
    q->params = *params;
    q->params.max_tokens = answer;
    q->params.guide = params->guide ? guide_ref(params->guide) : NULL;
    q->params.bias = NULL;
    q->params.prediction = NULL;
    q->params.stop_ids = q->params.bad_ids = q->params.bad_ends = NULL;
    q->prompt_len = q->length = prompt_len;
    q->scored = q->told = 1; /* nothing comes before the first */
    q->guided = params->is_reasoning && params->reasoning_end >= 0 ? -1 : prompt_len;
    q->slot = -1;
    sequence_keep_init(q);
    *out = q;
    q = NULL;
out:
    sequence_free(q);
    return st;
}

void sequence_free(struct sequence *q)
{
    if (!q)
        return;
    guide_unref(q->params.guide);
    ngram_free(q->ngram);
    free(q->rules);
    free(q->tokens);
    free(q->blocks);
    free(q);
}

bool sequence_before(const struct sequence *a, const struct sequence *b)
{
    if (a->params.priority != b->params.priority)
        return a->params.priority < b->params.priority;
    return a->arrival < b->arrival;
}

bool sequence_is_scored(const struct sequence *q)
{
    return q->params.prompt_logprobs >= 0;
}

/* ---- its guide ---- */

/* Has the answer begun with the token that begins reasoning? It may do so once. */
static bool may_reason(const struct sequence *q)
{
    return q->params.reasoning_begin >= 0 && q->params.reasoning_end >= 0 &&
           q->guided == q->prompt_len;
}

/* Has its reasoning just ended? */
static bool may_have_gap(const struct sequence *q)
{
    return q->params.reasoning_gap >= 0 && q->guided > q->prompt_len &&
           q->tokens[q->guided - 1] == q->params.reasoning_end;
}

static bool may_begin_reasoning(const struct sequence *q)
{
    return may_reason(q) && q->length == q->prompt_len;
}

static bool may_skip_gap(const struct sequence *q)
{
    return may_have_gap(q) && q->length == q->guided;
}

enum finish_reason sequence_follow(struct sequence *q)
{
    const int32_t token = q->tokens[q->length - 1];
    if (!q->params.guide)
        return FINISH_NONE;
    if (q->guided < 0) {
        if (token == q->params.reasoning_end)
            q->guided = q->length;
        return FINISH_NONE;
    }
    if (may_reason(q) && q->length == q->prompt_len + 1 && token == q->params.reasoning_begin) {
        q->guided = -1;
        return FINISH_NONE;
    }
    if (may_have_gap(q) && q->length == q->guided + 1 && token == q->params.reasoning_gap) {
        q->guided = q->length;
        return FINISH_NONE;
    }
    switch (guide_move(q->params.guide, &q->place, q->tokens + q->guided, q->length - q->guided)) {
    case GUIDE_OPEN:
        return FINISH_NONE;
    case GUIDE_COMPLETE:
        return FINISH_COMPLETE;
    case GUIDE_LOST:
        break;
    }
    return FINISH_FAILED;
}

static void allow(uint32_t *mask, int32_t token)
{
    mask[token / 32] |= 1u << (token % 32);
}

/* The first of `bans`, which are the end tokens, then the stop ids, that ends the text. */
static int32_t first_end(const struct sequence *q)
{
    return q->params.ignore_eos ? q->rules->bans - q->params.stop_id_count : 0;
}

bool sequence_mask(struct sequence *q, int32_t guesses, uint32_t *mask, int32_t words)
{
    const struct sample_rules *r = q->rules;
    struct guide_place ahead, *place = &q->place;
    bool whole = false;
    if (!q->params.guide || q->guided < 0)
        return false;
    if (guesses > 0) { /* they may be wrong */
        ahead = q->place;
        place = &ahead;
    }
    const uint32_t *text = guide_mask(q->params.guide, place, q->tokens + q->guided,
                                      q->length + guesses - q->guided, &whole);
    if (text)
        memcpy(mask, text, (size_t)words * sizeof *mask);
    else
        memset(mask, 0, (size_t)words * sizeof *mask);
    for (int32_t i = first_end(q); whole && i < r->bans; i++)
        allow(mask, r->ban[i]);
    if (guesses == 0 && may_begin_reasoning(q))
        allow(mask, q->params.reasoning_begin);
    if (guesses == 0 && may_skip_gap(q))
        allow(mask, q->params.reasoning_gap);
    return true;
}

/* As sampling has it (kernels/numerics.h), of the next token. */
static bool is_forbidden(const struct sequence *q, int32_t token)
{
    const struct sample_rules *r = q->rules;
    const int32_t produced = q->length - q->prompt_len;
    for (int32_t i = 0; produced < r->min_tokens && i < r->bans; i++)
        if (r->ban[i] == token)
            return true;
    for (int32_t i = 0, begin = 0; i < r->bads; begin = r->bad_end[i++]) {
        const int32_t before = r->bad_end[i] - begin - 1;
        if (r->bad[begin + before] == token && before <= produced &&
            memcmp(r->bad + begin, q->tokens + q->length - before,
                   (size_t)before * sizeof *q->tokens) == 0)
            return true;
    }
    return false;
}

bool sequence_is_stuck(struct sequence *q)
{
    const struct sample_rules *r = q->rules;
    bool whole = false;
    if (!q->params.guide || q->guided < 0 ||
        (may_begin_reasoning(q) && !is_forbidden(q, q->params.reasoning_begin)) ||
        (may_skip_gap(q) && !is_forbidden(q, q->params.reasoning_gap)))
        return false;
    const uint32_t *text = guide_mask(q->params.guide, &q->place, q->tokens + q->guided,
                                      q->length - q->guided, &whole);
    for (int32_t i = first_end(q); whole && i < r->bans; i++)
        if (!is_forbidden(q, r->ban[i]))
            return false;
    for (int32_t i = 0; text && i < guide_vocab(q->params.guide); i++)
        if ((text[i / 32] >> (i % 32) & 1) != 0 && !is_forbidden(q, i))
            return false;
    return true;
}

/* None where a token may come that the guide does not know, and no end token. */
int32_t sequence_allowed(const struct sequence *q, int32_t guesses)
{
    bool whole;
    if (!q->params.guide)
        return guesses;
    if (q->guided < 0 || may_begin_reasoning(q) || may_skip_gap(q))
        return 0;
    struct guide_place ahead = q->place;
    for (int32_t i = 0; i < guesses; i++) {
        const int32_t token = q->tokens[q->length + i];
        const uint32_t *mask = guide_mask(q->params.guide, &ahead, q->tokens + q->guided,
                                          q->length + i - q->guided, &whole);
        if (!mask || !(mask[token / 32] >> (token % 32) & 1))
            return i;
    }
    return guesses;
}

/* ---- its blocks ---- */

static int32_t *block_at(const struct sequence *q, int32_t group, int32_t index)
{
    CHECK(index < q->block_cols);
    return &q->blocks[(ptrdiff_t)group * q->block_cols + index];
}

int32_t sequence_block(const struct sequence *q, int32_t group, int32_t index)
{
    const bool has = index < q->block_count && (group < q->groups.keep || index >= q->gone);
    return has ? *block_at(q, group, index) : -1;
}

int32_t sequence_blocks(const struct sequence *q)
{
    return q->groups.keep * q->block_count + q->groups.slide * (q->block_count - q->gone);
}

int32_t sequence_wants(const struct sequence *q, int32_t rows)
{
    const int32_t left = q->length - q->computed;
    const int64_t need = kv_groups_need(&q->groups, q->length, left < rows ? left : rows);
    return (int32_t)need - sequence_blocks(q);
}

bool sequence_grow(struct sequence *q, struct kv_pool *kv)
{
    const int32_t groups = kv_groups_count(&q->groups);
    if (kv_free(kv) < groups)
        return false;
    for (int32_t g = 0; g < groups; g++)
        *block_at(q, g, q->block_count) = kv_take(kv);
    q->block_count++;
    return true;
}

void sequence_slide(struct sequence *q, struct kv_pool *kv)
{
    const int32_t first = kv_groups_first(&q->groups, q->computed);
    for (; q->gone < first; q->gone++)
        for (int32_t g = q->groups.keep; g < kv_groups_count(&q->groups); g++)
            kv_release(kv, block_at(q, g, q->gone), 1);
}

/* Of a block of the first group, which follows the one with the name `before`. */
static struct kv_key key_of(const struct sequence *q, int32_t block, uint64_t before)
{
    struct kv_key key = {.salt = q->params.cache_salt, .before = before};
    memcpy(key.tokens, q->tokens + (size_t)block * BACKEND_BLOCK_TOKENS, sizeof key.tokens);
    return key;
}

/* Of the block of another group that has the same positions as the one with that name. */
static struct kv_key key_beside(const struct sequence *q, int32_t group, uint64_t name)
{
    return (struct kv_key){.salt = q->params.cache_salt, .before = name, .tokens = {-group}};
}

void sequence_publish(struct sequence *q, struct kv_pool *kv, struct states *states, uint64_t step)
{
    const int32_t known = q->computed < q->length ? q->computed : q->length;
    for (; q->published < known / BACKEND_BLOCK_TOKENS; q->published++) {
        const struct kv_key key = key_of(q, q->published, q->chain);
        CHECK(q->published >= q->gone);
        q->chain = kv_publish(kv, *block_at(q, 0, q->published), &key, step);
        if (states && sequence_keep_waits(q, q->published))
            sequence_keep_publish(q, states, q->published, kv_find(kv, &key), step);
        for (int32_t g = 1; g < kv_groups_count(&q->groups); g++) {
            const struct kv_key beside = key_beside(q, g, q->chain);
            (void)kv_publish(kv, *block_at(q, g, q->published), &beside, step);
        }
    }
}

/* What can be shared, as it is looked up. */
struct lookup {
    const struct kv_pool *kv;
    uint64_t step; /* whose blocks cannot be, and is there one of them? */
    bool young;
};

/* The last token at least is left to compute. */
static int32_t shared_max(const struct sequence *q)
{
    return (q->length - 1) / BACKEND_BLOCK_TOKENS;
}

static bool look_up(struct lookup *l, const struct kv_key *key, int32_t *block)
{
    *block = kv_find(l->kv, key);
    const bool young = *block >= 0 && kv_stamp(l->kv, *block) == l->step;
    l->young = l->young || young;
    return *block >= 0 && !young;
}

/* The blocks of these positions in groups [from, to), none of them the first. */
static bool look_beside(struct lookup *l, const struct sequence *q, int32_t index, int32_t from,
                        int32_t to)
{
    const uint64_t name = kv_name(l->kv, *block_at(q, 0, index));
    for (int32_t g = from; g < to; g++) {
        const struct kv_key key = key_beside(q, g, name);
        if (!look_up(l, &key, block_at(q, g, index)))
            return false;
    }
    return true;
}

/* How many blocks of each group q can begin with; they are written where they would be. Groups that
 * slide need have those only that the row behind them sees. */
static int32_t look_ahead(struct lookup *l, const struct sequence *q)
{
    const int32_t keep = q->groups.keep > 0 ? q->groups.keep : 1;
    int32_t end = 0;
    for (uint64_t before = 0; end < shared_max(q); end++) {
        const struct kv_key key = key_of(q, end, before);
        if (!look_up(l, &key, block_at(q, 0, end)) || !look_beside(l, q, end, 1, keep))
            break;
        before = kv_name(l->kv, *block_at(q, 0, end));
    }
    for (int32_t i = end - 1; i >= kv_groups_first(&q->groups, end * BACKEND_BLOCK_TOKENS); i--)
        if (!look_beside(l, q, i, keep, kv_groups_count(&q->groups)))
            end = i;
    return end;
}

/* Those that look_ahead found are q's, `count` in each group; it does not own them yet. */
static void begin_with(struct sequence *q, int32_t count)
{
    q->block_count = q->published = count;
    q->computed = count * BACKEND_BLOCK_TOKENS;
    q->gone = kv_groups_first(&q->groups, q->computed);
}

int32_t sequence_find(struct sequence *q, const struct kv_pool *kv, int32_t *owned)
{
    struct lookup l = {.kv = kv};
    begin_with(q, look_ahead(&l, q));
    const int32_t found = sequence_blocks(q);
    *owned = 0;
    for (int32_t i = 0; i < q->block_count; i++)
        for (int32_t g = 0; g < kv_groups_count(&q->groups); g++)
            *owned += sequence_block(q, g, i) >= 0 && kv_owners(kv, *block_at(q, g, i)) > 0;
    begin_with(q, 0);
    return found;
}

bool sequence_share(struct sequence *q, struct kv_pool *kv, struct states *states, uint64_t step)
{
    struct lookup l = {.kv = kv, .step = step};
    const int32_t found = look_ahead(&l, q);
    const int32_t count = states ? sequence_keep_recall(q, states, found, step, &l.young) : found;
    if (l.young && q->deferrals++ < kv_blocks_for(q->length)) {
        q->recall = -1;
        return false;
    }
    if (states)
        sequence_keep_plan(q, states, found, count, step);
    begin_with(q, count);
    q->chain = count > 0 ? kv_name(kv, *block_at(q, 0, count - 1)) : 0;
    for (int32_t i = 0; i < count; i++)
        for (int32_t g = 0; g < kv_groups_count(&q->groups); g++)
            if (sequence_block(q, g, i) >= 0)
                kv_share(kv, *block_at(q, g, i));
    return true;
}

/* From the end, which counts as used longer ago. */
void sequence_release(struct sequence *q, struct kv_pool *kv, struct states *states)
{
    if (states)
        sequence_keep_release(q, states);

    for (int32_t i = q->block_count - 1; i >= 0; i--)
        for (int32_t g = kv_groups_count(&q->groups) - 1; g >= 0; g--)
            if (sequence_block(q, g, i) >= 0)
                kv_release(kv, block_at(q, g, i), 1);
    begin_with(q, 0);
    q->chain = 0;
}
