/* DESIGN: a table with a lock. Grammars are made outside of it, on the thread of the request; the
 * vocabulary's tree, which all of them need, under it, by whoever needs it first. What nobody uses
 * gives way to what is new, the longest unused first; while all are in use, there is no room for
 * another. */
#include "server/guides.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    char *key; /* NULL: free */
    size_t key_len;
    struct guide *guide;
    uint64_t used; /* when, by the table's clock */
};

struct guides {
    const struct tokenizer *tokenizer;
    int32_t vocab;
    char marks[ANSWER_MARKS_MAX][32]; /* of the model's answers, each behind ANSWER_CONTROL */
    pthread_mutex_t lock;             /* guards what follows */
    struct vocabulary *vocabulary;
    struct entry entries[GUIDES_MAX];
    uint64_t clock;
};

/* ---- tokens ---- */

/* As grammars have the control token; NULL: it is no mark. */
static const char *mark_of(const struct guides *g, struct token_view v)
{
    for (size_t i = 0; g->marks[i][0]; i++)
        if (strlen(g->marks[i] + 1) == (size_t)v.len &&
            memcmp(g->marks[i] + 1, v.text, (size_t)v.len) == 0)
            return g->marks[i];
    return NULL;
}

/* What is no part of any text, nobody may choose. */
static const char *text_of(const void *ctx, int32_t id, int32_t *n)
{
    const struct guides *g = ctx;
    const struct token_view v = tokenizer_view(g->tokenizer, id);
    const char *mark = v.kind == TOKEN_HIDDEN ? mark_of(g, v) : NULL;
    const bool text = v.kind != TOKEN_HIDDEN && !memchr(v.text, ANSWER_CONTROL, (size_t)v.len);
    *n = mark ? (int32_t)strlen(mark) : text ? v.len : 0;
    return mark ? mark : v.text;
}

/* Reasoning has no grammar but in the harmony format. */
static void set_marks(struct guides *g, const struct answer_form *form)
{
    const struct answer_form f = {.calls = form->calls, .harmony = form->harmony};
    const char *marks[ANSWER_MARKS_MAX];
    answer_form_marks(&f, marks);
    for (size_t i = 0; marks[i]; i++)
        snprintf(g->marks[i], sizeof g->marks[i], "%c%s", ANSWER_CONTROL, marks[i]);
}

int32_t guides_token(struct guides *g, const char *text)
{
    const size_t n = strlen(text);
    for (int32_t id = 0; g->tokenizer && id < g->vocab; id++) {
        const struct token_view v = tokenizer_view(g->tokenizer, id);
        if ((size_t)v.len == n && memcmp(v.text, text, n) == 0)
            return id;
    }
    return -1;
}

bool guides_has_controls(const struct guides *g)
{
    bool all = g->marks[0][0] != '\0';
    for (size_t i = 0; g->marks[i][0]; i++) {
        bool has = false;
        for (int32_t id = 0; g->tokenizer && id < g->vocab && !has; id++) {
            const struct token_view v = tokenizer_view(g->tokenizer, id);
            has = v.kind == TOKEN_HIDDEN && mark_of(g, v) == g->marks[i];
        }
        all = all && has;
    }
    return all;
}

static enum status need_vocabulary(struct guides *g, struct err *err)
{
    if (g->vocabulary)
        return OK;
    return vocabulary_open(g->vocab, text_of, g, &g->vocabulary, err);
}

/* ---- opening ---- */

enum status guides_open(const struct tokenizer *t, int32_t vocab, const struct answer_form *form,
                        struct guides **out, struct err *err)
{
    struct guides *g = calloc(1, sizeof *g);
    if (!g)
        return base_fail(err, ERR_NOMEM, "no memory for grammars");
    g->tokenizer = t;
    g->vocab = vocab;
    set_marks(g, form);
    pthread_mutex_init(&g->lock, NULL);
    *out = g;
    return OK;
}

void guides_close(struct guides *g)
{
    if (!g)
        return;
    for (int32_t i = 0; i < GUIDES_MAX; i++) {
        free(g->entries[i].key);
        guide_unref(g->entries[i].guide);
    }
    vocabulary_close(g->vocabulary);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* ---- the table, under its lock ---- */

static struct entry *find(struct guides *g, const struct buf *key)
{
    for (int32_t i = 0; i < GUIDES_MAX; i++) {
        struct entry *e = &g->entries[i];
        if (e->key && e->key_len == key->len && memcmp(e->key, key->data, key->len) == 0)
            return e;
    }
    return NULL;
}

/* One that is free, or whose guide nobody has but us; NULL: there is none. */
static struct entry *find_room(struct guides *g)
{
    struct entry *best = NULL;
    for (int32_t i = 0; i < GUIDES_MAX; i++) {
        struct entry *e = &g->entries[i];
        if (!e->key)
            return e;
        if (!guide_is_shared(e->guide) && (!best || e->used < best->used))
            best = e;
    }
    return best;
}

static struct guide *use(struct guides *g, struct entry *e)
{
    e->used = ++g->clock;
    return guide_ref(e->guide);
}

/* Takes *key and *guide over, unless another thread was faster or there is no room. */
static enum status keep(struct guides *g, struct buf *key, struct guide **guide, struct guide **out,
                        struct err *err)
{
    struct entry *e = find(g, key);
    if (!e) {
        e = find_room(g);
        if (!e)
            return base_fail(err, ERR_LIMIT,
                             "%d different structures are in use already, try again later",
                             GUIDES_MAX);
        free(e->key);
        guide_unref(e->guide);
        *e = (struct entry){.guide = *guide};
        e->key = buf_take(key, &e->key_len);
        *guide = NULL;
        if (!e->key) {
            guide_unref(e->guide);
            e->guide = NULL;
            return base_fail(err, ERR_NOMEM, "no memory for a grammar");
        }
    }
    *out = use(g, e);
    return OK;
}

/* ---- on the thread of a request ---- */

static enum status make(struct guides *g, const struct structure *s, struct buf *key,
                        struct guide **out, struct err *err)
{
    enum status st = OK;
    struct grammar *grammar = NULL;
    struct guide *guide = NULL;
    TRY(structure_build(s, &grammar, err));
    TRY(guide_open(grammar, g->vocabulary, &guide, err));
    pthread_mutex_lock(&g->lock);
    st = keep(g, key, &guide, out, err);
    pthread_mutex_unlock(&g->lock);
out:
    guide_unref(guide);
    return st;
}

static enum status get(struct guides *g, const struct structure *s, struct buf *key,
                       struct guide **out, struct err *err)
{
    structure_key(s, key);
    if (key->no_memory)
        return base_fail(err, ERR_NOMEM, "no memory for a grammar");
    if (key->failed)
        return base_fail(err, ERR_INPUT, "it is too large (at most %d bytes)",
                         GUIDES_KEY_BYTES_MAX);
    pthread_mutex_lock(&g->lock);
    const enum status st = need_vocabulary(g, err);
    struct entry *known = st == OK ? find(g, key) : NULL;
    if (known)
        *out = use(g, known);
    pthread_mutex_unlock(&g->lock);
    return st != OK || known ? st : make(g, s, key, out, err);
}

enum status guides_get(struct guides *g, const struct structure *s, struct guide **out,
                       struct api_error *e)
{
    struct err err = {""};
    struct buf key;
    if (!g->tokenizer)
        return api_error_field(e, s->field, "%s needs text: this model came without a tokenizer",
                               s->field);
    buf_init(&key, GUIDES_KEY_BYTES_MAX);
    const enum status st = get(g, s, &key, out, &err);
    buf_free(&key);
    if (st == ERR_INPUT)
        return api_error_field(e, s->field, "%s: %s", s->field, err.text);
    if (st != OK)
        api_error_from_status(e, st, &err);
    return st;
}
