/* DESIGN: the handler only takes the body; the worker turns it into a request that is ready to be
 * submitted, or into the one error that says why not. What finds the engine full is refused before
 * that, unread: many times what a server can take must not keep it from what it has taken. What
 * kind of request it is makes a difference only between the body and the ids of its prompts. */
#include "server/job_start.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- on a request worker ---- */

static enum status judge(const char *field, enum status st, const struct err *err,
                         struct api_error *e)
{
    if (st == ERR_INPUT)
        return api_error_field(e, field, "%s: %s", field, err->text);
    if (st != OK)
        api_error_from_status(e, st, err);
    return st;
}

enum status job_start_encode(const struct job *j, const char *field, const char *text, size_t n,
                             bool special, int32_t **ids, int32_t *count, struct api_error *e)
{
    struct err err = {""};
    const struct tokenizer *t = j->service->tokenizer;
    return judge(field, tokenizer_encode(t, text, n, special, ids, count, &err), &err, e);
}

enum status job_start_encode_named(const struct job *j, const char *field, const char *text,
                                   size_t n, bool special, int32_t **ids, int32_t *count,
                                   struct api_error *e)
{
    struct err err = {""};
    const struct tokenizer *t = j->service->tokenizer;
    enum status st = tokenizer_encode_named(t, text, n, special, ids, count, &err);
    if (st == OK && *count == 0) {
        free(*ids);
        *ids = NULL;
        st = base_fail(&err, ERR_INPUT, "no tokens in it");
    }
    return judge(field, st, &err, e);
}

/* Of a bad word, in tokens. */
struct spelling {
    int32_t *ids;
    int32_t count;
};

static enum status spell(const struct job *j, const char *text, size_t n, struct spelling *out,
                         struct api_error *e)
{
    return job_start_encode(j, "bad_words", text, n, false, &out->ids, &out->count, e);
}

static bool ends_with(const struct spelling *s, const struct spelling *end)
{
    return s->count >= end->count && memcmp(s->ids + s->count - end->count, end->ids,
                                            (size_t)end->count * sizeof *end->ids) == 0;
}

/* The control tokens that the word names: forbidding its letters would not keep the model from
 * them. letters: its spelling without such tokens. */
static enum status forbid_named(struct job *j, const char *text, size_t n,
                                const struct spelling *letters, struct api_error *e)
{
    struct err err = {""};
    struct spelling s = {NULL, 0};
    if (!j->request.parse_special)
        return OK;
    enum status st =
        tokenizer_encode_named(j->service->tokenizer, text, n, false, &s.ids, &s.count, &err);
    TRY(judge("bad_words", st, &err, e));
    if (s.count > 0 && !(s.count == letters->count && ends_with(&s, letters)))
        st = completion_forbid(&j->request, s.ids, s.count, e);
out:
    free(s.ids);
    return st;
}

/* A bad word has up to three spellings in tokens: by itself, which for SentencePiece is after a
 * space; after a space, where that is another one; and inside a text, which is what it adds to the
 * tokens of a line break; and a fourth where control tokens are in it. All are forbidden. */
static enum status forbid(struct job *j, const struct field_string *word, struct api_error *e)
{
    enum status st = OK;
    char text[FIELD_WORD_BYTES_MAX + 2] = "\n";
    struct spelling whole = {NULL, 0}, line = {NULL, 0}, inside = {NULL, 0}, spaced = {NULL, 0};
    size_t spaces = strspn(word->bytes, " ");
    if (spaces == word->len)
        spaces = 0;
    size_t n = word->len - spaces;
    memcpy(text + 1, word->bytes + spaces, n);
    TRY(spell(j, text + 1, n, &whole, e));
    TRY(completion_forbid(&j->request, whole.ids, whole.count, e));
    TRY(forbid_named(j, text + 1, n, &whole, e));
    TRY(spell(j, text, 1, &line, e));
    TRY(spell(j, text, n + 1, &inside, e));
    const int32_t count = inside.count - line.count;
    const bool begins =
        count > 0 && memcmp(inside.ids, line.ids, (size_t)line.count * sizeof *line.ids) == 0;
    if (begins && !(count == whole.count && ends_with(&inside, &whole)))
        TRY(completion_forbid(&j->request, inside.ids + line.count, count, e));
    text[0] = ' ';
    TRY(spell(j, text, n + 1, &spaced, e));
    if (!ends_with(&spaced, &whole)) /* else it ends with what is forbidden already */
        st = completion_forbid(&j->request, spaced.ids, spaced.count, e);
out:
    free(whole.ids);
    free(line.ids);
    free(inside.ids);
    free(spaced.ids);
    return st;
}

static enum status open_stops(struct job *j, struct err *err)
{
    const char *strings[COMPLETION_STOP_MAX];
    size_t lens[COMPLETION_STOP_MAX];
    for (int32_t i = 0; i < j->request.stop_count; i++) {
        strings[i] = j->request.stop[i].bytes;
        lens[i] = j->request.stop[i].len;
    }
    return stop_set_open(strings, lens, j->request.stop_count, &j->stops, err);
}

/* Where the answer may reason first, that is free: between tokens that the engine knows, or as the
 * grammar of harmony's messages has it. */
static enum status guide(struct job *j, struct api_error *e)
{
    struct completion_request *q = &j->request;
    struct guides *guides = j->service->guides;
    if (structure_is_none(&q->structure))
        return OK;
    q->answer.guided = q->structure.kind != STRUCTURE_NONE;
    q->structure.form = q->answer;
    if (q->answer.reasoning && !q->answer.harmony && !q->structure.begun) {
        q->params.reasoning_begin = j->service->reasoning_begin;
        q->params.reasoning_end = j->service->reasoning_end;
        q->params.reasoning_gap = j->service->reasoning_gap;
        q->params.is_reasoning = q->answer.reasoning_open;
        if (j->service->reasoning_end < 0) /* no token ends it: the answer begins with its form */
            q->answer.reasoning_open = false;
    }
    return guides_get(guides, &q->structure, &q->params.guide, e);
}

/* From bytes to a request that is ready to be submitted. */
static enum status prepare(struct job *j, struct api_error *e)
{
    struct err err = {""};
    enum status st = OK;
    TRY(service_check(j->service, e));
    TRY(j->kind->parse(j, e));
    buf_free(&j->body);
    service_log_unknown(j->service, &j->request.unknown);
    TRY(j->kind->encode(j, e));
    TRY(completion_prompt_check_scores(&j->request, e));
    TRY(completion_check_tokens(&j->request, &j->service->rules, e));
    TRY(guide(j, e));
    for (int32_t i = 0; i < j->request.bad_word_count; i++)
        TRY(forbid(j, &j->request.bad_words[i], e));
    st = open_stops(j, &err);
    if (st != OK)
        api_error_from_status(e, st, &err);
    completion_forget_text(&j->request);
out:
    return st;
}

static void fail(struct job *j, const struct api_error *e)
{
    pthread_mutex_lock(&j->lock);
    job_fail(j, e);
    job_unlock(j);
}

/* While it waited for a worker. */
static bool has_left(struct job *j)
{
    pthread_mutex_lock(&j->lock);
    const bool left = j->over;
    job_unlock(j);
    return left;
}

static void run(struct work *w)
{
    struct job *j = (struct job *)(void *)((char *)w - offsetof(struct job, work));
    struct api_error e = {0};
    if (has_left(j)) {
        job_release(j);
        return;
    }
    if (prepare(j, &e) == OK)
        job_submit(j);
    else
        fail(j, &e);
    job_release(j);
}

/* ---- on an HTTP thread ---- */

/* A model makes texts or vectors. */
static enum status check_kind(const struct service *s, const struct job_kind *kind,
                              struct api_error *e)
{
    if (kind->pools == (s->rules.columns > 0))
        return OK;
    return api_error_set(e, 400, "unsupported_model", "%s",
                         kind->pools ? "this server makes texts, no vectors: one that is started "
                                       "with --runner pooling does"
                                     : "this server makes vectors of texts, no texts (--runner "
                                       "pooling): POST /v1/embeddings");
}

void job_start(struct service *s, const struct job_kind *kind, struct http_request *r)
{
    struct api_error e = {0};
    if (check_kind(s, kind, &e) != OK || service_check(s, &e) != OK ||
        service_check_room(s, &e) != OK) {
        http_reply_error(r, &e);
        return;
    }
    struct job *j = job_open(s, kind, r);
    if (!j) {
        api_error_no_memory(&e);
        http_reply_error(r, &e);
        return;
    }
    j->work.run = run;
    j->work.bytes = j->body.cap;
    if (!request_worker_push(s->worker, &j->work)) {
        service_refuse(s, &e);
        fail(j, &e);
        job_release(j);
    }
}
