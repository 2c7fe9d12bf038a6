/* DESIGN: slots[] holds the running sequences, a singly linked list the waiting ones. A step is
 * built from the state alone and committed before the next one is built, except for the tokens
 * themselves: a decode row names its slot and the rank knows the token, so building never needs the
 * answer. Blocks of an ended sequence are free at once because the step that named them has been
 * answered. */
#include "engine/sched.h"

#include "engine/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sched {
    struct sched_config config;
    struct kv_pool *kv;
    struct sequence **slots; /* [limits.slots], NULL = free */
    int32_t *order;          /* slots in order of admission */
    int32_t running;
    struct sequence *head, **tail; /* waiting */
    int32_t waiting;
    int32_t *closed; /* slots to close with the next step */
    int32_t closed_count;
    int64_t now_ns;
};

enum status sched_sequence(const struct sched_config *c, const struct request_params *params,
                           const int32_t *prompt, int32_t prompt_len, struct sequence **out,
                           struct err *err)
{
    if (prompt_len < 1 || prompt_len + (params->max_tokens > 0) > c->max_model_len)
        return base_fail(err, ERR_INPUT,
                         "This model's maximum context length is %d tokens. However, your prompt "
                         "has %d.",
                         c->max_model_len, prompt_len);
    if (params->max_tokens < 0)
        return base_fail(err, ERR_INPUT, "max_tokens is %d, expected at least 0",
                         params->max_tokens);
    for (int32_t i = 0; i < prompt_len; i++) /* a rank refuses the whole step for one bad id */
        if (prompt[i] < 0 || prompt[i] >= c->limits.vocab)
            return base_fail(err, ERR_INPUT, "token id %d of the prompt is outside 0..%d",
                             prompt[i], c->limits.vocab - 1);
    int32_t room = c->max_model_len - prompt_len;
    int32_t answer = params->max_tokens < room ? params->max_tokens : room;
    int32_t blocks = kv_blocks_for(prompt_len + answer);
    if (blocks > c->limits.blocks)
        return base_fail(err, ERR_INPUT, "the request needs %d KV blocks, the cache has %d", blocks,
                         c->limits.blocks);
    struct sample_rules *rules = NULL;
    enum status st =
        request_rules(params, prompt_len, c->eos, c->eos_count, c->limits.vocab, &rules, err);
    if (st != OK)
        return st;
    struct sequence *s = calloc(1, sizeof *s);
    if (s) {
        s->rules = rules;
        s->tokens = calloc((size_t)(prompt_len + answer), sizeof *s->tokens);
        s->blocks = calloc((size_t)blocks, sizeof *s->blocks);
    }
    if (!s || !s->tokens || !s->blocks) {
        if (!s)
            free(rules);
        sched_sequence_free(s);
        return base_fail(err, ERR_NOMEM, "no memory for a request of %d tokens", prompt_len);
    }
    memcpy(s->tokens, prompt, (size_t)prompt_len * sizeof *prompt);
    s->params = *params;
    s->params.max_tokens = answer;
    s->params.bias = NULL;
    s->params.stop_ids = s->params.bad_ids = s->params.bad_ends = NULL;
    s->prompt_len = s->length = prompt_len;
    s->block_limit = blocks;
    s->slot = -1;
    *out = s;
    return OK;
}

void sched_sequence_free(struct sequence *s)
{
    if (!s)
        return;
    free(s->rules);
    free(s->tokens);
    free(s->blocks);
    free(s);
}

enum status sched_open(const struct sched_config *c, struct sched **out, struct err *err)
{
    enum status st = OK;
    const size_t slots = (size_t)c->limits.slots;
    struct sched *s = calloc(1, sizeof *s);
    if (!s)
        return base_fail(err, ERR_NOMEM, "scheduler: no memory");
    s->config = *c;
    s->tail = &s->head;
    s->slots = calloc(slots, sizeof *s->slots);
    s->order = calloc(slots, sizeof *s->order);
    s->closed = calloc(slots, sizeof *s->closed);
    if (!s->slots || !s->order || !s->closed)
        st = base_fail(err, ERR_NOMEM, "scheduler: no memory for %zu slots", slots);
    if (st == OK)
        st = kv_open(c->limits.blocks, &s->kv, err);
    if (st != OK) {
        sched_close(s);
        return st;
    }
    *out = s;
    return OK;
}

void sched_close(struct sched *s)
{
    if (!s)
        return;
    for (int32_t i = 0; s->slots && i < s->config.limits.slots; i++)
        sched_sequence_free(s->slots[i]);
    while (s->head) {
        struct sequence *next = s->head->next;
        sched_sequence_free(s->head);
        s->head = next;
    }
    free(s->slots);
    free(s->order);
    free(s->closed);
    kv_close(s->kv);
    free(s);
}

bool sched_submit(struct sched *s, struct sequence *seq)
{
    if (s->waiting >= s->config.waiting_max)
        return false;
    seq->next = NULL;
    *s->tail = seq;
    s->tail = &seq->next;
    s->waiting++;
    return true;
}

void sched_set_time(struct sched *s, int64_t now_ns)
{
    s->now_ns = now_ns;
}

void sched_cancel(struct sched *s, uint64_t id)
{
    for (struct sequence *q = s->head; q; q = q->next)
        if (q->id == id)
            q->cancelled = true;
    for (int32_t i = 0; i < s->running; i++)
        if (s->slots[s->order[i]]->id == id)
            s->slots[s->order[i]]->cancelled = true;
}

static void emit(const struct sequence *q, int32_t token, enum finish_reason finish,
                 struct token_event *events, int32_t *count)
{
    events[(*count)++] = (struct token_event){.request = q->id,
                                              .user = q->user,
                                              .token = token,
                                              .finish = finish,
                                              .admitted_ns = q->admitted_ns};
}

/* Takes a running sequence out; its slot is closed with the next step. */
static void retire(struct sched *s, struct sequence *q)
{
    int32_t i = 0;
    while (s->order[i] != q->slot)
        i++;
    memmove(&s->order[i], &s->order[i + 1], (size_t)(--s->running - i) * sizeof *s->order);
    s->slots[q->slot] = NULL;
    s->closed[s->closed_count++] = q->slot;
    kv_release(s->kv, q->blocks, q->block_count, q->block_limit - q->block_count);
    sched_sequence_free(q);
}

static void end_cancelled(struct sched *s, struct token_event *events, int32_t *count)
{
    struct sequence **at = &s->head;
    while (*at) {
        struct sequence *q = *at;
        if (!q->cancelled) {
            at = &q->next;
            continue;
        }
        emit(q, -1, FINISH_CANCELLED, events, count);
        *at = q->next;
        s->waiting--;
        sched_sequence_free(q);
    }
    s->tail = at;
    for (int32_t i = s->running - 1; i >= 0; i--) {
        struct sequence *q = s->slots[s->order[i]];
        if (!q->cancelled)
            continue;
        emit(q, -1, FINISH_CANCELLED, events, count);
        retire(s, q);
    }
}

static int32_t free_slot(const struct sched *s)
{
    for (int32_t i = 0; i < s->config.limits.slots; i++)
        if (!s->slots[i])
            return i;
    return -1;
}

/* Moves the first waiting sequence into a slot; false when slot or blocks are lacking. */
static bool admit(struct sched *s, struct step *step)
{
    struct sequence *q = s->head;
    int32_t slot = q ? free_slot(s) : -1;
    if (slot < 0 || !kv_reserve(s->kv, q->block_limit))
        return false;
    s->head = q->next;
    if (!s->head)
        s->tail = &s->head;
    s->waiting--;
    q->next = NULL;
    q->slot = slot;
    q->admitted_ns = s->now_ns;
    s->slots[slot] = q;
    s->order[s->running++] = slot;
    step->open[step->opens++] = (struct step_open){
        .slot = slot,
        .history = q->length,
        .tokens = q->tokens,
        .params = request_draw(&q->params),
        .rules = *q->rules,
    };
    return true;
}

static void add_sample(struct step *step, int32_t target, int32_t top)
{
    step->sample[step->samples] = step->rows - 1;
    step->target[step->samples] = target;
    step->top[step->samples++] = top;
}

static bool is_scored(const struct sequence *q)
{
    return q->params.prompt_logprobs >= 0;
}

/* Adds rows for positions [computed, computed + n); the last one samples when it ends the known
 * tokens, and those before it in the prompt are scored when that is asked. */
static void add_rows(struct sched *s, struct sequence *q, int32_t n, struct step *step)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t position = q->computed++, row = step->rows++;
        if (position / BACKEND_BLOCK_TOKENS == q->block_count) {
            int32_t block = kv_take(s->kv);
            step->append[step->appends++] = (struct step_append){q->slot, q->block_count, block};
            q->blocks[q->block_count++] = block;
        }
        step->slot[row] = q->slot;
        step->position[row] = position;
        /* what the rank sampled itself it need not be told */
        step->token[row] = position >= q->prompt_len ? STEP_TOKEN_FROM_SLOT : q->tokens[position];
        if (is_scored(q) && position + 1 < q->prompt_len)
            add_sample(step, q->tokens[position + 1], q->params.prompt_logprobs);
    }
    if (q->computed == q->length && q->params.max_tokens > 0)
        add_sample(step, STEP_TARGET_SAMPLE, q->params.logprobs);
    q->in_flight = true;
}

static int32_t min32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Rows that q can add within `budget` rows and the sample places the step has left. */
static int32_t rows_for(const struct sched *s, const struct sequence *q, const struct step *step,
                        int32_t budget)
{
    const int32_t left = q->length - q->computed, places = s->config.limits.slots - step->samples;
    const int32_t n = min32(left, budget);
    if (is_scored(q))
        return min32(n, places);
    return n == left && places == 0 ? n - 1 : n;
}

bool sched_build(struct sched *s, struct step *step, struct token_event *events, int32_t *count)
{
    *count = 0;
    step_clear(step);
    end_cancelled(s, events, count);
    memcpy(step->close, s->closed, (size_t)s->closed_count * sizeof *s->closed);
    step->closes = s->closed_count;
    int32_t budget = s->config.limits.rows;
    for (int32_t i = 0; i < s->running && budget > 0; i++) { /* decodes first */
        struct sequence *q = s->slots[s->order[i]];
        if (q->length - q->computed != 1)
            continue;
        add_rows(s, q, 1, step);
        budget--;
    }
    for (int32_t i = 0; budget > 0; i++) { /* then prompts, in order of arrival */
        if (i == s->running && !admit(s, step))
            break;
        struct sequence *q = s->slots[s->order[i]];
        if (q->in_flight)
            continue;
        int32_t n = rows_for(s, q, step, budget);
        if (n == 0)
            continue;
        add_rows(s, q, n, step);
        budget -= n;
    }
    if (step->rows == 0)
        return false; /* closes wait for the next step that computes */
    s->closed_count = 0;
    return true;
}

static enum finish_reason finish_of(const struct sched *s, const struct sequence *q, int32_t token)
{
    /* the bans are the end tokens, then the stop ids */
    for (int32_t i = q->params.ignore_eos ? s->config.eos_count : 0; i < q->rules->bans; i++)
        if (token == q->rules->ban[i])
            return FINISH_STOP;
    return q->length - q->prompt_len >= q->params.max_tokens ? FINISH_LENGTH : FINISH_NONE;
}

/* Sample i of the step, of sequence q: its event, and its token when it was drawn. */
static enum finish_reason take(const struct sched *s, struct sequence *q, const struct step *step,
                               const struct step_result *result, int32_t i,
                               struct token_event *events, int32_t *count)
{
    const bool drawn = step->target[i] < 0, wanted = step->top[i] >= 0;
    const int32_t token = result->ids[i];
    if (token < 0 || (wanted && isnan(result->logprob[i]))) {
        emit(q, -1, FINISH_ERROR, events, count);
        return FINISH_ERROR;
    }
    if (drawn)
        q->tokens[q->length++] = token;
    emit(q, token, drawn ? finish_of(s, q, token) : FINISH_NONE, events, count);
    struct token_event *e = &events[*count - 1];
    e->prompt = !drawn;
    if (wanted) {
        e->logprob = result->logprob[i];
        e->top_count = step->top[i];
        e->top = result->best + (ptrdiff_t)i * result->stride;
    }
    return e->finish;
}

/* Ends what wanted no token once its prompt is computed. */
static void end_computed(struct sched *s, struct token_event *events, int32_t *count)
{
    for (int32_t i = s->running - 1; i >= 0; i--) {
        struct sequence *q = s->slots[s->order[i]];
        if (q->cancelled || q->params.max_tokens > 0 || q->computed < q->prompt_len)
            continue;
        emit(q, -1, FINISH_LENGTH, events, count);
        retire(s, q);
    }
}

void sched_commit(struct sched *s, const struct step *step, const struct step_result *result,
                  struct token_event *events, int32_t *count)
{
    *count = 0;
    for (int32_t i = 0; i < s->running; i++)
        s->slots[s->order[i]]->in_flight = false;
    for (int32_t i = 0; i < step->samples; i++) {
        struct sequence *q = s->slots[step->slot[step->sample[i]]];
        if (!q || q->cancelled) /* ended by an earlier row; ends when the next step is built */
            continue;
        if (take(s, q, step, result, i, events, count) != FINISH_NONE)
            retire(s, q);
    }
    end_computed(s, events, count);
}

void sched_end_all(struct sched *s, enum finish_reason reason, struct token_event *events,
                   int32_t *count)
{
    *count = 0;
    while (s->running > 0) {
        struct sequence *q = s->slots[s->order[s->running - 1]];
        emit(q, -1, reason, events, count);
        retire(s, q);
    }
    while (s->head) {
        struct sequence *q = s->head;
        emit(q, -1, reason, events, count);
        s->head = q->next;
        s->waiting--;
        sched_sequence_free(q);
    }
    s->tail = &s->head;
    s->closed_count = 0;
}

int32_t sched_events_max(const struct sched_config *c)
{
    return 2 * c->limits.slots + c->waiting_max;
}

int32_t sched_running(const struct sched *s)
{
    return s->running;
}

int32_t sched_waiting(const struct sched *s)
{
    return s->waiting;
}

const struct kv_pool *sched_kv(const struct sched *s)
{
    return s->kv;
}
