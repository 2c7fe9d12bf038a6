#include "server/answer/parts.h"

#include <string.h>

/* A part is a span of all that came of its kind: bytes of a text, or one call of the list. */
struct span {
    enum answer_kind kind;
    size_t begin, end;
};

void parts_init(struct parts *p, size_t bytes_max)
{
    buf_init(&p->content, bytes_max);
    buf_init(&p->reasoning, bytes_max);
    buf_init(&p->calls, bytes_max);
    buf_init(&p->order, bytes_max);
    p->count = 0;
}

void parts_free(struct parts *p)
{
    buf_free(&p->content);
    buf_free(&p->reasoning);
    buf_free(&p->calls);
    buf_free(&p->order);
}

void parts_clear(struct parts *p)
{
    buf_clear(&p->content);
    buf_clear(&p->reasoning);
    buf_clear(&p->calls);
    buf_clear(&p->order);
    p->count = 0;
}

bool parts_failed(const struct parts *p)
{
    return p->content.failed || p->reasoning.failed || p->calls.failed || p->order.failed;
}

static struct span *span_at(const struct parts *p, int32_t i)
{
    return (struct span *)(void *)p->order.data + i;
}

static void add_span(struct parts *p, enum answer_kind kind, size_t begin, size_t end)
{
    const int32_t count = parts_count(p);
    struct span *last = count > 0 ? span_at(p, count - 1) : NULL;
    if (last && last->kind == kind && kind != ANSWER_CALL)
        last->end = end;
    else if (end > begin)
        buf_add(&p->order, &(struct span){kind, begin, end}, sizeof(struct span));
}

/* Marks that are control tokens and turned out to be text are their letters. */
void parts_add_text(struct parts *p, enum answer_kind kind, const char *text, size_t n)
{
    struct buf *out = kind == ANSWER_REASONING ? &p->reasoning : &p->content;
    const size_t begin = out->len;
    const char *control;
    while ((control = n > 0 ? memchr(text, ANSWER_CONTROL, n) : NULL)) {
        buf_add(out, text, (size_t)(control - text));
        n -= (size_t)(control - text) + 1;
        text = control + 1;
    }
    buf_add(out, text, n);
    add_span(p, kind, begin, out->len);
}

void parts_add_call(struct parts *p, const char *name, const char *arguments, size_t n)
{
    struct parts_call *call = &p->list[p->count];
    call->name = p->calls.len;
    call->name_len = strlen(name);
    buf_add(&p->calls, name, call->name_len);
    call->arguments = p->calls.len;
    call->arguments_len = n;
    buf_add(&p->calls, arguments, n);
    add_span(p, ANSWER_CALL, (size_t)p->count, (size_t)p->count + 1);
    p->count++;
}

struct answer_call parts_call(const struct parts *p, int32_t i)
{
    const struct parts_call *call = &p->list[i];
    return (struct answer_call){
        .name = p->calls.data + call->name,
        .arguments = p->calls.data + call->arguments,
        .name_len = call->name_len,
        .arguments_len = call->arguments_len,
    };
}

int32_t parts_count(const struct parts *p)
{
    return (int32_t)(p->order.len / sizeof(struct span));
}

struct answer_part parts_at(const struct parts *p, int32_t i)
{
    const struct span *s = span_at(p, i);
    const struct buf *text = s->kind == ANSWER_REASONING ? &p->reasoning : &p->content;
    if (s->kind == ANSWER_CALL)
        return (struct answer_part){.kind = s->kind, .call = (int32_t)s->begin};
    return (struct answer_part){
        .kind = s->kind, .text = text->data + s->begin, .len = s->end - s->begin};
}
