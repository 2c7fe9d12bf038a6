/* DESIGN: a call goes out in one piece, because only a whole object is known to be one; what turns
 * out to be none is text again. Where formats are alike they share a reader, and the syntax says
 * what differs. */
#include "server/answer/answer_state.h"

#include <string.h>

bool answer_call_give_up(struct answer *a, size_t end)
{
    /* what a thought goes on with, unless a whole call has ended it */
    const bool thought = a->inside && a->state != CLOSING;
    const enum answer_kind kind = thought ? ANSWER_REASONING : ANSWER_CONTENT;
    if (a->form.harmony && (a->state == ADDRESSED || a->state == VALUE))
        a->at = a->value < end ? a->value : end;
    if (a->begun > a->at)
        a->at = a->begun < end ? a->begun : end;
    a->breaks = a->form.harmony && a->said[HARMONY_CONTENT];
    if (end > a->at) {
        answer_add_text(a, ANSWER_CONTENT, "\n", a->breaks);
        a->said[HARMONY_CONTENT] = true;
        a->breaks = false;
    }
    answer_add_text(a, kind, answer_text_at(a, a->at), end - a->at);
    a->at = end;
    a->in_list = false;
    a->kind = HARMONY_CONTENT;
    a->state = a->form.harmony ? BODY : a->syntax->leads ? PLAIN : thought ? REASONING : CONTENT;
    return true;
}

bool answer_call_begin_value(struct answer *a, size_t i)
{
    a->value = i;
    a->scan = (struct call_scan){0};
    a->state = VALUE;
    return true;
}

void answer_call_add(struct answer *a, const struct call *call)
{
    if (a->form.one_call && a->total > 0)
        return;
    parts_add_call(&a->parts, call->name, call->arguments, call->arguments_len);
    a->total++;
}

bool answer_call_give_cut(struct answer *a, bool named)
{
    const struct answer_syntax *s = a->syntax;
    struct call call = {.name = ""};
    const char *text = answer_text_at(a, a->value);
    const size_t n = a->pending.len - a->value;
    if (!a->forced)
        return answer_call_give_up(a, a->pending.len);
    memcpy(call.name, a->name, sizeof a->name);
    const enum call_end end = named
                                  ? call_read_cut_arguments(text, n, &call)
                                  : call_read_cut(text, n, strchr(s->before, '{'), s->after, &call);
    const int32_t most = a->form.one_call ? 1 : ANSWER_CALLS_MAX;
    if (end != CALL_NAMELESS && a->total < most) {
        answer_call_add(a, &call);
        a->cut = end == CALL_CUT;
    }
    a->at = a->pending.len;
    return true;
}

bool answer_call_read_value(struct answer *a)
{
    struct call call = {.name = ""};
    const char *text = answer_text_at(a, a->value);
    if (!call_scan(&a->scan, text, a->pending.len - a->value))
        return a->finished && answer_call_give_cut(a, a->name[0] != '\0');
    const size_t end = a->value + a->scan.at;
    memcpy(call.name, a->name, sizeof a->name);
    const enum call_kind kind = a->name[0] ? CALL_ARGUMENTS : a->bare ? CALL_BARE : CALL_TAGGED;
    const enum status st = call_read(&a->scan, text, kind, &call);
    a->failed |= st == ERR_NOMEM;
    if (st != OK || a->total == ANSWER_CALLS_MAX)
        return answer_call_give_up(a, end);
    answer_call_add(a, &call);
    a->at = end;
    a->state = a->form.harmony ? ENDING : CLOSING;
    return true;
}

/* Of a reader that has the name, and the arguments apart, up to `end`. */
static bool give_read(struct answer *a, const char name[CALL_NAME_BYTES_MAX + 1],
                      const struct buf *arguments, size_t end)
{
    struct call call = {.name = ""};
    memcpy(call.name, name, sizeof call.name);
    call.arguments = arguments->data;
    call.arguments_len = arguments->len;
    answer_call_add(a, &call);
    a->at = end;
    a->state = CLOSING;
    return true;
}

static bool begin_tags(struct answer *a)
{
    struct buf arguments = a->tags.arguments;
    buf_clear(&arguments);
    a->tags = (struct call_tags_reader){.arguments = arguments};
    a->state = TAGGED;
    return true;
}

bool answer_call_read_tagged(struct answer *a)
{
    struct call_tags_reader *r = &a->tags;
    const struct call_tags_text how = {a->syntax->tags, a->syntax->close, a->form.types,
                                       a->form.types_len, a->finished && a->whole};
    const enum mark_match m =
        call_tags_read(r, &how, answer_text_at(a, a->value), a->pending.len - a->value);
    if (m == MARK_PERHAPS)
        return a->finished && answer_call_give_up(a, a->pending.len);
    a->failed |= r->no_memory || r->arguments.failed;
    if (m == MARK_NO || a->total == ANSWER_CALLS_MAX || r->arguments.failed)
        return answer_call_give_up(a, a->value + r->at);
    return give_read(a, r->name, &r->arguments, a->value + r->at);
}

static size_t skip_name(const struct answer *a, size_t i)
{
    while (i < a->pending.len && call_is_name_byte(*answer_text_at(a, i)))
        i++;
    return i;
}

/* Before its arguments; the name is whole if more has come than it, or the prompt has said it. */
static bool give_cut_name(struct answer *a, size_t begin, size_t end)
{
    const bool whole = end > begin && (end < a->pending.len || end == a->begun);
    memcpy(a->name, answer_text_at(a, begin), end - begin);
    a->name[whole ? end - begin : 0] = '\0';
    a->value = a->pending.len;
    return answer_call_give_cut(a, whole);
}

/* name[CALL_ID]id[ARGS]{...}, where either mark may be missing. */
static bool read_name(struct answer *a, size_t begin)
{
    const size_t end = skip_name(a, begin);
    if (end == begin || end - begin > CALL_NAME_BYTES_MAX)
        return answer_call_give_up(a, a->value);
    size_t i = answer_skip_space(a, end);
    enum mark_match m = answer_match(a, i, ANSWER_CALL_ID);
    if (m == MARK_YES)
        i = skip_name(a, i + strlen(ANSWER_CALL_ID));
    if (m != MARK_PERHAPS)
        m = answer_match(a, i, ANSWER_ARGS);
    if (m == MARK_YES)
        i = answer_skip_space(a, i + strlen(ANSWER_ARGS));
    if (i - end > ANSWER_BLANKS_MAX)
        return answer_call_give_up(a, a->value);
    if (a->forced && a->finished && (i == a->pending.len || answer_may_be(a, i, ANSWER_ARGS)))
        return give_cut_name(a, begin, end);
    if (i == a->pending.len || m == MARK_PERHAPS)
        return a->finished && answer_call_give_up(a, a->value);
    if (*answer_text_at(a, i) != '{')
        return answer_call_give_up(a, a->value);
    memcpy(a->name, answer_text_at(a, begin), end - begin);
    a->name[end - begin] = '\0';
    return answer_call_begin_value(a, i);
}

/* The next of several calls, from its first mark on. */
static bool read_framed(struct answer *a, size_t i)
{
    const struct answer_frame *f = a->syntax->frame;
    enum mark_match m = answer_match(a, i, f->name);
    const size_t begin = i + strlen(f->name), end = m == MARK_YES ? skip_name(a, begin) : i;
    if (m == MARK_YES &&
        (end - begin > CALL_NAME_BYTES_MAX || (end == begin && end < a->pending.len)))
        return answer_call_give_up(a, a->value);
    if (m == MARK_YES && a->forced && a->finished &&
        (end == a->pending.len || answer_may_be(a, end, f->arguments)))
        return give_cut_name(a, begin, end);
    if (m == MARK_YES)
        m = answer_match(a, end, f->arguments);
    if (m == MARK_PERHAPS || answer_may_be(a, end, m == MARK_NO ? f->name : NULL))
        return a->finished && answer_call_give_cut(a, false);
    i = m == MARK_YES ? answer_skip_space(a, end + strlen(f->arguments)) : i;
    if (m != MARK_YES || (i < a->pending.len && *answer_text_at(a, i) != '{'))
        return answer_call_give_up(a, a->value);
    memcpy(a->name, answer_text_at(a, begin), end - begin);
    a->name[end - begin] = '\0';
    if (i < a->pending.len)
        return answer_call_begin_value(a, i);
    a->value = a->finished ? i : a->value;
    return a->finished && answer_call_give_cut(a, true);
}

static bool begin_loose(struct answer *a, size_t i)
{
    struct buf arguments = a->gemma.arguments;
    buf_clear(&arguments);
    a->gemma = (struct call_gemma_reader){.arguments = arguments};
    a->value = i;
    a->state = LOOSE;
    return true;
}

/* call:NAME{...}; what has to be a call is held to JSON. */
static bool read_called(struct answer *a, size_t i)
{
    const enum mark_match m = answer_match(a, i, CALL_GEMMA_BEFORE);
    const size_t begin = i + strlen(CALL_GEMMA_BEFORE);
    if (m == MARK_PERHAPS)
        return false;
    if (m == MARK_NO)
        return a->forced && a->finished && answer_may_be(a, i, CALL_GEMMA_BEFORE)
                   ? answer_call_give_cut(a, false)
                   : answer_call_give_up(a, a->value);
    const size_t end = skip_name(a, begin), brace = answer_skip_space(a, end);
    if (end - begin > CALL_NAME_BYTES_MAX || brace - end > ANSWER_BLANKS_MAX)
        return answer_call_give_up(a, a->value);
    if (brace == a->pending.len && a->finished && a->forced)
        return give_cut_name(a, begin, end);
    if (brace == a->pending.len && !a->finished)
        return false;
    if (end == begin || brace == a->pending.len || *answer_text_at(a, brace) != '{')
        return answer_call_give_up(a, a->value);
    memcpy(a->name, answer_text_at(a, begin), end - begin);
    a->name[end - begin] = '\0';
    return a->forced ? answer_call_begin_value(a, brace) : begin_loose(a, brace);
}

bool answer_call_read_loose(struct answer *a)
{
    struct call_gemma_reader *r = &a->gemma;
    const struct call_gemma_tool tool = {a->name, a->form.types, a->form.types_len};
    const enum mark_match m =
        call_gemma_read(r, &tool, answer_text_at(a, a->value), a->pending.len - a->value);
    a->failed |= r->no_memory || r->arguments.failed;
    if (m == MARK_PERHAPS)
        return a->finished && answer_call_give_up(a, a->pending.len);
    if (m == MARK_NO || a->total == ANSWER_CALLS_MAX)
        return answer_call_give_up(a, a->value + r->at);
    return give_read(a, a->name, &r->arguments, a->value + r->at);
}

bool answer_call_read_marked(struct answer *a)
{
    const size_t i = answer_skip_space(a, a->value);
    if (i - a->value > ANSWER_BLANKS_MAX)
        return answer_call_give_up(a, a->value);
    if (i == a->pending.len)
        return a->finished && answer_call_give_cut(a, false);
    const char c = *answer_text_at(a, i);
    if (c == '{')
        return answer_call_begin_value(a, i);
    if (c == '[' && a->syntax->varied && !a->in_list) {
        a->in_list = true;
        a->value = i + 1;
        return true;
    }
    if (a->syntax->tags)
        return begin_tags(a);
    if (a->syntax->frame)
        return read_framed(a, i);
    if (a->syntax->quote)
        return read_called(a, i);
    return a->syntax->varied && !a->in_list ? read_name(a, i) : answer_call_give_up(a, a->value);
}

bool answer_call_begin(struct answer *a, size_t i)
{
    a->value = i + strlen(a->syntax->open);
    a->name[0] = '\0';
    a->state = MARKED;
    return true;
}

/* Of several in frames: what ends one, or the next one. NO: it is neither. */
static enum mark_match read_frame_end(struct answer *a, size_t i)
{
    const struct answer_frame *f = a->syntax->frame;
    const enum mark_match fence = *f->fence ? answer_match(a, i, f->fence) : MARK_NO;
    const size_t at = i + (fence == MARK_YES ? strlen(f->fence) : 0);
    const enum mark_match end = answer_match(a, at, f->end), next = answer_match(a, i, f->begin);
    if (end == MARK_YES)
        a->at = at + strlen(f->end);
    if (next == MARK_YES) {
        a->name[0] = '\0';
        a->value = i;
        a->state = MARKED;
    }
    if (end == MARK_YES || next == MARK_YES)
        return MARK_YES;
    return fence == MARK_PERHAPS || end == MARK_PERHAPS || next == MARK_PERHAPS ? MARK_PERHAPS
                                                                                : MARK_NO;
}

/* Does the text end within what ends a frame, or begins the next? */
static bool is_frame_end(const struct answer *a, size_t i)
{
    const struct answer_frame *f = a->syntax->frame;
    const size_t fence = f ? strlen(f->fence) : 0;
    const bool fenced = f && fence > 0 && answer_match(a, i, f->fence) == MARK_YES;
    return f &&
           (answer_may_be(a, i, f->begin) || answer_may_be(a, fenced ? i + fence : i, f->end) ||
            (fence > 0 && answer_may_be(a, i, f->fence)));
}

bool answer_call_read_closing(struct answer *a)
{
    const char separator = a->syntax->leads ? ';' : a->in_list ? ',' : ' ';
    size_t i = a->at;
    while (i < a->pending.len &&
           (call_is_space(*answer_text_at(a, i)) || *answer_text_at(a, i) == separator))
        i++;
    a->at = i;
    if (i == a->pending.len)
        return false;
    const enum mark_match frame = a->syntax->frame ? read_frame_end(a, i) : MARK_NO;
    if (frame == MARK_YES || (frame == MARK_PERHAPS && !a->finished))
        return frame == MARK_YES;
    const struct call_tags *tags = a->syntax->tags;
    const enum mark_match close = a->syntax->close ? answer_match(a, i, a->syntax->close) : MARK_NO,
                          open = answer_match(a, i, a->syntax->open),
                          more = tags && tags->several ? answer_match(a, i, tags->name) : MARK_NO;
    if (close == MARK_PERHAPS || open == MARK_PERHAPS || more == MARK_PERHAPS)
        return false;
    if (close == MARK_YES) {
        a->at += strlen(a->syntax->close);
    } else if (open == MARK_YES) {
        a->in_list = false;
        answer_call_begin(a, i);
    } else if (more == MARK_YES) {
        a->value = i;
        begin_tags(a);
    } else if (*answer_text_at(a, i) == '{' && (a->in_list || a->syntax->leads)) {
        answer_call_begin_value(a, i);
    } else if (*answer_text_at(a, i) == ']' && a->in_list) {
        a->in_list = false;
        a->at++;
    } else if (a->forced && (answer_may_be(a, i, a->syntax->close) ||
                             answer_may_be(a, i, a->syntax->open) || is_frame_end(a, i))) {
        a->at = a->pending.len; /* more calls, or their end, which the answer's has cut off */
    } else {
        answer_call_give_up(a, i);
    }
    return true;
}
