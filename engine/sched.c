/* DESIGN: slots[] holds the running sequences, a singly linked list the waiting ones. A step is
 * built from the state alone and committed before the next one is built, except for the tokens
 * themselves: a decode row names its slot and the rank knows the token, so building never needs the
 * answer. Blocks of an ended sequence are free at once because the step that named them has been
 * answered. */
#include "engine/sched.h"

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
    if (prompt_len < 1 || prompt_len >= c->max_model_len)
        return base_fail(err, ERR_INPUT,
                         "This model's maximum context length is %d tokens. However, your prompt "
                         "has %d.",
                         c->max_model_len, prompt_len);
    if (params->max_tokens < 1)
        return base_fail(err, ERR_INPUT, "max_tokens is %d, expected at least 1",
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
    struct sequence *s = calloc(1, sizeof *s);
    if (s) {
        s->tokens = calloc((size_t)(prompt_len + answer), sizeof *s->tokens);
        s->blocks = calloc((size_t)blocks, sizeof *s->blocks);
    }
    if (!s || !s->tokens || !s->blocks) {
        sched_sequence_free(s);
        return base_fail(err, ERR_NOMEM, "no memory for a request of %d tokens", prompt_len);
    }
    memcpy(s->tokens, prompt, (size_t)prompt_len * sizeof *prompt);
    s->params = *params;
    s->params.max_tokens = answer;
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
        .params = {q->params.temperature, q->params.top_p, q->params.min_p, q->params.top_k,
                   q->params.seed, q->params.choice},
    };
    return true;
}

/* Adds rows for positions [computed, computed + n); the last one samples when it ends the known
 * tokens. */
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
    }
    if (q->computed == q->length)
        step->sample[step->samples++] = step->rows - 1;
    q->in_flight = true;
}

static int32_t min32(int32_t a, int32_t b)
{
    return a < b ? a : b;
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
        int32_t n = min32(q->length - q->computed, budget);
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
    for (int32_t i = 0; i < s->config.eos_count && !q->params.ignore_eos; i++)
        if (token == s->config.eos[i])
            return FINISH_STOP;
    return q->length - q->prompt_len >= q->params.max_tokens ? FINISH_LENGTH : FINISH_NONE;
}

void sched_commit(struct sched *s, const struct step *step, const int32_t *ids,
                  struct token_event *events, int32_t *count)
{
    *count = 0;
    for (int32_t i = 0; i < s->running; i++)
        s->slots[s->order[i]]->in_flight = false;
    for (int32_t i = 0; i < step->samples; i++) {
        struct sequence *q = s->slots[step->slot[step->sample[i]]];
        if (q->cancelled)
            continue; /* ends when the next step is built */
        if (ids[i] < 0) {
            emit(q, -1, FINISH_ERROR, events, count);
            retire(s, q);
            continue;
        }
        q->tokens[q->length++] = ids[i];
        enum finish_reason finish = finish_of(s, q, ids[i]);
        emit(q, ids[i], finish, events, count);
        if (finish != FINISH_NONE)
            retire(s, q);
    }
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
    return c->limits.slots + c->waiting_max;
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
