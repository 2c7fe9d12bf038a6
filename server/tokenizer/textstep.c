/* DESIGN: depth first. A step hands each piece to the next step as soon as it is found, so there
 * are no lists of pieces, and a step that changes a text needs one buffer whatever their number. */
#include "server/tokenizer/textstep.h"

#include "config/utf8.h"
#include "server/tokenizer/nfc.h"

#include <string.h>

struct run {
    const struct textsteps *steps;
    struct textstep_work *work;
    textstep_sink *sink;
    void *ctx;
    struct err *err;
};

void textstep_free(struct textsteps *s)
{
    for (int32_t i = 0; i < s->count; i++)
        regex_close(s->steps[i].regex);
    s->count = 0;
}

void textstep_work_init(struct textstep_work *w, struct regex_work *regex)
{
    w->regex = regex;
    for (size_t i = 0; i < ARRAY_LEN(w->texts); i++)
        buf_init(&w->texts[i], TEXTSTEP_BYTES_MAX);
}

void textstep_work_free(struct textstep_work *w)
{
    for (size_t i = 0; i < ARRAY_LEN(w->texts); i++)
        buf_free(&w->texts[i]);
}

static enum status run_from(const struct run *r, int32_t i, const char *text, size_t n, bool first);

/* What step i has written goes on. */
static enum status run_changed(const struct run *r, int32_t i, bool first)
{
    const struct buf *b = &r->work->texts[i];
    if (b->failed)
        return base_fail(r->err, ERR_NOMEM, "tokenizer: no memory for a changed text");
    return run_from(r, i + 1, b->data, b->len, first);
}

static bool prepends(const struct textstep *s, const char *text, size_t n, bool first)
{
    if (s->when == PREPEND_ALWAYS)
        return true;
    if (n >= s->content_len && memcmp(text, s->content, s->content_len) == 0)
        return false;
    return first || s->when == PREPEND_WHERE_ABSENT;
}

static enum status prepend(const struct run *r, int32_t i, const char *text, size_t n, bool first)
{
    const struct textstep *s = &r->steps->steps[i];
    struct buf *b = &r->work->texts[i];
    if (!prepends(s, text, n, first))
        return run_from(r, i + 1, text, n, first);
    buf_clear(b);
    buf_add(b, s->content, s->content_len);
    buf_add(b, text, n);
    return run_changed(r, i, first);
}

static enum status compose(const struct run *r, int32_t i, const char *text, size_t n, bool first)
{
    struct buf *b = &r->work->texts[i];
    if (!nfc_may_change(text, n))
        return run_from(r, i + 1, text, n, first);
    buf_clear(b);
    enum status st = nfc_add(b, text, n, r->err);
    return st == OK ? run_changed(r, i, first) : st;
}

/* The matches of a text, in order. An empty one does not follow at once on another match. */
struct matches {
    size_t from, last_end;
    bool any;
};

static enum status next_match(const struct run *r, const struct textstep *s, const char *text,
                              size_t n, struct matches *m, struct regex_match *out, bool *found)
{
    for (;;) {
        *found = false;
        if (m->from > n)
            return OK;
        enum status st = regex_find(s->regex, r->work->regex, text, n, m->from, out, found, r->err);
        if (st != OK || !*found)
            return st;
        if (out->end > out->begin || !m->any || out->end != m->last_end)
            break;
        size_t k = utf8_char(text + m->from, n - m->from);
        m->from += k ? k : 1;
    }
    m->from = m->last_end = out->end;
    m->any = true;
    return OK;
}

static enum status replace(const struct run *r, int32_t i, const char *text, size_t n, bool first)
{
    const struct textstep *s = &r->steps->steps[i];
    struct buf *b = &r->work->texts[i];
    struct matches m = {0};
    struct regex_match match;
    size_t done = 0;
    buf_clear(b);
    for (;;) {
        bool found;
        enum status st = next_match(r, s, text, n, &m, &match, &found);
        if (st != OK)
            return st;
        if (!found)
            break;
        buf_add(b, text + done, match.begin - done);
        buf_add(b, s->content, s->content_len);
        done = match.end;
    }
    buf_add(b, text + done, n - done);
    return run_changed(r, i, first);
}

/* Pieces are held back until it is known that nothing joins them. */
struct splitter {
    const struct run *run;
    int32_t step;
    const char *text;
    bool first, was_match;
    size_t begin, end; /* held; nothing when equal */
};

static enum status let_go(struct splitter *s)
{
    return run_from(s->run, s->step + 1, s->text + s->begin, s->end - s->begin,
                    s->first && s->begin == 0);
}

static bool joins(enum textstep_behavior behavior, bool was_match, bool is_match)
{
    switch (behavior) {
    case SPLIT_PREVIOUS:
        return is_match && !was_match;
    case SPLIT_NEXT:
        return !is_match && was_match;
    case SPLIT_CONTIGUOUS:
        return is_match == was_match;
    case SPLIT_ISOLATED:
    case SPLIT_REMOVED:
        break;
    }
    return false;
}

static enum status add_part(struct splitter *s, size_t begin, size_t end, bool is_match)
{
    const struct textstep *step = &s->run->steps->steps[s->step];
    enum status st = OK;
    is_match = is_match != step->invert;
    if (!joins(step->behavior, s->was_match, is_match)) {
        st = let_go(s);
        s->begin = step->behavior == SPLIT_REMOVED && is_match ? end : begin;
    }
    s->end = end;
    s->was_match = is_match;
    return st;
}

static enum status split(const struct run *r, int32_t i, const char *text, size_t n, bool first)
{
    struct splitter s = {.run = r, .step = i, .text = text, .first = first};
    struct matches m = {0};
    struct regex_match match;
    size_t done = 0;
    enum status st = OK;
    for (;;) {
        bool found;
        TRY(next_match(r, &r->steps->steps[i], text, n, &m, &match, &found));
        if (!found)
            break;
        if (match.begin > done)
            TRY(add_part(&s, done, match.begin, false));
        TRY(add_part(&s, match.begin, match.end, true));
        done = match.end;
    }
    if (done < n)
        TRY(add_part(&s, done, n, false));
    st = let_go(&s);
out:
    return st;
}

static enum status run_from(const struct run *r, int32_t i, const char *text, size_t n, bool first)
{
    if (n == 0)
        return OK;
    if (i == r->steps->count)
        return r->sink(r->ctx, text, n, first, r->err);
    switch (r->steps->steps[i].kind) {
    case TEXTSTEP_PREPEND:
        return prepend(r, i, text, n, first);
    case TEXTSTEP_REPLACE:
        return replace(r, i, text, n, first);
    case TEXTSTEP_NFC:
        return compose(r, i, text, n, first);
    case TEXTSTEP_SPLIT:
        break;
    }
    return split(r, i, text, n, first);
}

enum status textstep_run(const struct textsteps *s, struct textstep_work *w, const char *text,
                         size_t n, bool first, textstep_sink *sink, void *ctx, struct err *err)
{
    const struct run r = {.steps = s, .work = w, .sink = sink, .ctx = ctx, .err = err};
    return run_from(&r, 0, text, n, first);
}
