/* DESIGN: a tree that is walked: templates are short and rendered once per request. Parse and
 * render each have an arena; nothing else is allocated but the text. */
#include "server/template/jinja.h"

#include "server/template/jinja_parse.h"
#include "server/template/jinja_run.h"

#include <stdlib.h>
#include <string.h>

#define PARSE_MEMORY_MAX (128u << 20)

/* The text with LF for every line end, and without the last one. */
static enum status copy_text(struct jinja *t, const char *text, size_t n, struct err *err)
{
    char *copy = jinja_arena_take(&t->arena, n + 1);
    if (!copy)
        return base_fail(err, ERR_NOMEM, "%s: no memory for the template", t->where);
    for (size_t i = 0; i < n; i++) {
        const bool cr = text[i] == '\r';
        copy[t->n++] = cr ? '\n' : text[i];
        i += cr && i + 1 < n && text[i + 1] == '\n';
    }
    if (t->n > 0 && copy[t->n - 1] == '\n')
        t->n--;
    t->text = copy;
    return OK;
}

static enum status copy_name(struct jinja *t, const char *where, struct err *err)
{
    const size_t n = strlen(where) + 1;
    char *copy = jinja_arena_take(&t->arena, n);
    if (!copy)
        return base_fail(err, ERR_NOMEM, "%s: no memory for the template", where);
    memcpy(copy, where, n);
    t->where = copy;
    return OK;
}

enum status jinja_open(const char *text, size_t n, const char *where, struct jinja **out,
                       struct err *err)
{
    enum status st = OK;
    if (n > JINJA_BYTES_MAX)
        return base_fail(err, ERR_MODEL, "%s: a template of %zu bytes, at most %u are read", where,
                         n, JINJA_BYTES_MAX);
    struct jinja *t = calloc(1, sizeof *t);
    if (!t)
        return base_fail(err, ERR_NOMEM, "%s: no memory for the template", where);
    jinja_arena_init(&t->arena, PARSE_MEMORY_MAX);
    TRY(copy_name(t, where, err));
    TRY(copy_text(t, text, n, err));
    TRY(jinja_parse(t, err));
    *out = t;
    t = NULL;
out:
    jinja_close(t);
    return st;
}

void jinja_close(struct jinja *t)
{
    if (t)
        jinja_arena_free(&t->arena);
    free(t);
}

static enum status read_vars(struct run *r, const struct jdoc *v, bool foreign, struct dict *out)
{
    struct value object;
    enum status st = OK;
    if (jdoc_type(v) != JDOC_OBJECT)
        return base_fail(r->err, ERR_INPUT, "%s: its variables must be an object", r->t->where);
    TRY(jinja_from_json(r, v, foreign, 0, &object));
    *out = *object.dict;
out:
    return st;
}

enum status jinja_render(const struct jinja *t, const struct jdoc *vars, const struct jdoc *own,
                         size_t bytes_max, struct jinja_text *out, struct err *err)
{
    struct jinja_text text;
    struct run r = {.t = t, .text = &text, .err = err};
    enum status st = OK;
    buf_init(&text.bytes, bytes_max);
    buf_init(&text.foreign, bytes_max);
    jinja_arena_init(&r.arena, RUN_MEMORY_MAX);
    TRY(read_vars(&r, vars, true, &r.vars));
    if (own)
        TRY(read_vars(&r, own, false, &r.own));
    TRY(jinja_push_scope(&r, NULL));
    TRY(jinja_exec(&r, t->body));
    *out = text;
out:
    jinja_arena_free(&r.arena);
    if (st != OK)
        jinja_text_free(&text);
    return st;
}

void jinja_text_free(struct jinja_text *t)
{
    buf_free(&t->bytes);
    buf_free(&t->foreign);
}
