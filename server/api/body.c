/* DESIGN: the parser refuses an integer beyond 64 bits without saying where; a second look at the
 * text, only then, finds the field, because that is the one thing the client needs to know. Where
 * such a field may have them, they are made reals by a point, each for itself, in a copy of the
 * text: all other integers stay what they are. */
#include "server/api/body.h"

#include "config/buf.h"

#include <stdio.h>
#include <string.h>

/* A walk through JSON that is well formed, but for integers that are too long. */
struct walk {
    const char *text;
    size_t n, at;
    int32_t depth;
    size_t key, key_len; /* of the member at the top that `at` is in */
    size_t begin, end;   /* the last number */
};

static void walk_string(struct walk *w)
{
    const size_t start = ++w->at;
    for (; w->at < w->n && w->text[w->at] != '"'; w->at++)
        w->at += w->text[w->at] == '\\';
    if (w->depth == 1 && w->at < w->n) {
        w->key_len = w->at - start;
        w->key = start;
    }
}

/* To the next integer beyond 64 bits; false when there is none. */
static bool next_huge(struct walk *w)
{
    for (; w->at < w->n; w->at++) {
        const char c = w->text[w->at];
        if (c == '"') {
            walk_string(w);
        } else if (c == '{' || c == '[') {
            w->depth++;
        } else if (c == '}' || c == ']') {
            w->depth--;
        } else if (c == '-' || (c >= '0' && c <= '9')) {
            w->begin = w->at;
            while (w->at < w->n && w->text[w->at] && strchr("0123456789+-.eE", w->text[w->at]))
                w->at++;
            w->end = w->at--;
            if (jdoc_is_huge(w->text + w->begin, w->end - w->begin) && w->key_len > 0) {
                w->at++;
                return true;
            }
        }
    }
    return false;
}

static bool is_among(const char *name, const char *const *fields)
{
    for (; fields && *fields; fields++)
        if (strcmp(name, *fields) == 0)
            return true;
    return false;
}

/* The text with points behind them. ERR_INPUT: they are elsewhere, too. *changed is how many. */
static enum status make_reals(const char *text, size_t n, const char *const *fields,
                              struct buf *out, size_t *changed, struct api_error *e)
{
    struct walk w = {.text = text, .n = n};
    size_t done = 0;
    char name[48];
    for (*changed = 0; next_huge(&w); ++*changed) {
        snprintf(name, sizeof name, "%.*s",
                 (int)(w.key_len < sizeof name ? w.key_len : sizeof name - 1), text + w.key);
        if (!is_among(name, fields)) {
            api_error_field(e, name, "%s has an integer of more than 64 bits", name);
            e->is_quoted = true; /* any member's, at any depth */
            return ERR_INPUT;
        }
        buf_add(out, text + done, w.end - done);
        buf_puts(out, ".0");
        done = w.end;
    }
    buf_add(out, text + done, n - done);
    return out->failed ? ERR_NOMEM : OK;
}

static enum status parse(const char *text, size_t n, const char *const *fields, struct jdoc **doc,
                         struct api_error *e)
{
    struct err err = {""};
    struct jdoc *found = NULL;
    struct buf reals;
    size_t changed;
    buf_init(&reals, jdoc_limits_request.bytes_max + 2 * jdoc_limits_request.tokens_max);
    enum status st = jdoc_parse(text, n, &jdoc_limits_request, "request body", &found, &err);
    if (st == ERR_INPUT) {
        TRY(make_reals(text, n, fields, &reals, &changed, e));
        st = ERR_INPUT;
        if (changed > 0)
            st = jdoc_parse(reals.data, reals.len, &jdoc_limits_request, "request body", &found,
                            &err);
    }
    if (st == ERR_INPUT)
        TRY(api_error_set(e, 400, "invalid_json", "%s", err.text));
    if (st == OK && jdoc_type(found) != JDOC_OBJECT) {
        st = api_error_set(e, 400, "invalid_json", "request body: expected a JSON object, got %s",
                           jdoc_type_name(jdoc_type(found)));
        jdoc_close(found);
    } else if (st == OK) {
        *doc = found;
    }
out:
    if (st != OK && st != ERR_INPUT)
        api_error_from_status(e, st, &err);
    buf_free(&reals);
    return st;
}

enum status body_parse(const char *text, size_t n, struct jdoc **doc, struct api_error *e)
{
    return parse(text, n, NULL, doc, e);
}

enum status body_parse_big(const char *text, size_t n, const char *const *fields, struct jdoc **doc,
                           struct api_error *e)
{
    return parse(text, n, fields, doc, e);
}
