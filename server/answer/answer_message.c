/* DESIGN: harmony.c reads headers and finds ends; here is what becomes of a message by its header:
 * reasoning, content, or a call, which answer_call.c reads. */
#include "server/answer/answer_state.h"

#include <string.h>

static struct harmony_text harmony_from(const struct answer *a, size_t i)
{
    return (struct harmony_text){answer_text_at(a, i), a->pending.len - i, a->form.controls,
                                 a->finished, a->form.guided};
}

static bool begin_body(struct answer *a, const struct harmony_header *h)
{
    a->kind = a->form.reasoning ? h->kind : HARMONY_CONTENT;
    a->breaks = a->said[a->kind];
    a->state = BODY;
    if (a->form.guided && h->final) {
        answer_add_text(a, ANSWER_CONTENT, "\n", a->breaks);
        a->state = PLAIN;
    }
    return true;
}

static bool begin_message(struct answer *a, const struct harmony_header *h)
{
    const size_t body = a->at + h->len;
    if (h->kind != HARMONY_CUT && h->name[0] && a->form.calls != ANSWER_CALLS_NONE) {
        memcpy(a->name, h->name, sizeof a->name);
        a->value = body;
        a->state = ADDRESSED;
        return true;
    }
    a->at = body;
    a->headed = true;
    return h->kind == HARMONY_CUT || begin_body(a, h);
}

bool answer_message_read_heading(struct answer *a)
{
    struct harmony_header h;
    struct harmony_text text = harmony_from(a, a->at);
    const enum mark_match m = harmony_read_header(&text, true, &h);
    if (m == MARK_PERHAPS)
        return false;
    text.finished = false;
    if (m == MARK_NO && a->forced && harmony_read_header(&text, true, &h) == MARK_PERHAPS)
        a->at = a->pending.len; /* within a mark that is letters */
    return m == MARK_YES ? begin_message(a, &h)
                         : answer_call_give_up(a, a->begun > a->at ? a->begun : a->at);
}

/* Messages that become one text are lines of it. */
bool answer_message_read_body(struct answer *a)
{
    const enum answer_kind kind = a->kind == HARMONY_REASONING ? ANSWER_REASONING : ANSWER_CONTENT;
    size_t end, next;
    const struct harmony_text text = harmony_from(a, a->at);
    const enum mark_match m = harmony_find_end(&text, &end, &next);
    if (end > 0) {
        answer_add_text(a, kind, "\n", a->breaks);
        answer_add_text(a, kind, text.bytes, end);
        a->said[a->kind] = true;
        a->breaks = false;
    }
    a->at += m == MARK_YES ? next : end;
    a->state = m == MARK_YES ? HEADING : BODY;
    return m == MARK_YES;
}

/* A message to a tool is a call if it is an object; or nothing, where there are no arguments, which
 * the model has to have ended. */
bool answer_message_read_addressed(struct answer *a)
{
    struct call call = {.arguments = "{}", .arguments_len = 2};
    const size_t i = answer_skip_space(a, a->value), left = a->pending.len - i;
    size_t end = 0, next = 0;
    if (i - a->value > ANSWER_BLANKS_MAX)
        return answer_call_give_up(a, a->value);
    if (left == 0 && !a->finished)
        return false;
    if (left > 0 && *answer_text_at(a, i) == '{')
        return answer_call_begin_value(a, i);
    if (left == 0 && a->forced)
        return answer_call_give_cut(a, true);
    struct harmony_text text = harmony_from(a, i);
    text.by_end = false; /* the whole call is guided, or nothing of it */
    const enum mark_match m =
        left == 0 ? (a->whole ? MARK_YES : MARK_NO) : harmony_find_end(&text, &end, &next);
    if (m == MARK_PERHAPS && end == 0)
        return false;
    if (m != MARK_YES || end > 0 || a->total == ANSWER_CALLS_MAX)
        return answer_call_give_up(a, a->value);
    memcpy(call.name, a->name, sizeof a->name);
    answer_call_add(a, &call);
    a->at = i + next;
    a->state = HEADING;
    return true;
}

/* What may stand behind its arguments is text, as is that of any message. */
bool answer_message_read_ending(struct answer *a)
{
    a->at = answer_skip_space(a, a->at);
    return a->at < a->pending.len && answer_call_give_up(a, a->at);
}
