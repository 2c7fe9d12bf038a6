/* DESIGN: text waits in `pending` until it is known what it is: an end that may become a mark, or a
 * call until its object is whole. Half a call that turns out to be text could not be taken back.
 * Each byte is looked at a bounded number of times, whatever pieces it comes in: an object is
 * scanned once, and all else that waits is short. */
#include "server/answer/answer.h"

#include "server/answer/answer_state.h"

#include <stdlib.h>
#include <string.h>

#define BYTES_MAX ((size_t)1 << 30)

/* ---- text ---- */

static size_t skip_lines(const struct answer *a, size_t i)
{
    while (i < a->pending.len && *answer_text_at(a, i) == '\n')
        i++;
    return i;
}

bool answer_may_be(const struct answer *a, size_t i, const char *mark)
{
    static const char lost[] = "\xef\xbf\xbd";
    size_t n = a->pending.len - i;
    if (n > strlen(lost) && memcmp(answer_text_at(a, a->pending.len - strlen(lost)), lost, 3) == 0)
        n -= strlen(lost);
    return mark && mark_match(answer_text_at(a, i), n, mark, false) == MARK_PERHAPS;
}

enum mark_match answer_match(const struct answer *a, size_t i, const char *mark)
{
    const enum mark_match m =
        mark_match(answer_text_at(a, i), a->pending.len - i, mark, a->finished);
    return m == MARK_NO && !a->finished && answer_may_be(a, i, mark) ? MARK_PERHAPS : m;
}

#define MARKS 3 /* that are looked for at a time */

/* Where one of these begins or may begin, which; else the end. Any may be NULL: it is nowhere. */
static size_t find(const struct answer *a, const char *const marks[MARKS], enum mark_match *found,
                   int *which)
{
    for (size_t i = a->at; i < a->pending.len; i++) {
        *found = MARK_NO;
        for (int k = 0; k < MARKS && *found != MARK_YES; k++) {
            if (!marks[k] || *answer_text_at(a, i) != marks[k][0])
                continue;
            const enum mark_match m = answer_match(a, i, marks[k]);
            *found = m == MARK_NO ? *found : m;
            *which = k;
        }
        if (*found != MARK_NO)
            return i;
    }
    *found = MARK_NO;
    return a->pending.len;
}

void answer_add_text(struct answer *a, enum answer_kind kind, const char *text, size_t n)
{
    if (kind != ANSWER_REASONING || !a->form.drop_reasoning)
        parts_add_text(&a->parts, kind, text, n);
}

/* Everything up to `end` goes out, but for newlines there if a mark may follow them. */
static void give_text(struct answer *a, enum answer_kind kind, size_t end, bool mark_may_follow)
{
    const size_t last = end;
    while (mark_may_follow && end > a->at && last - end < ANSWER_BLANKS_MAX &&
           *answer_text_at(a, end - 1) == '\n')
        end--;
    answer_add_text(a, kind, answer_text_at(a, a->at), end - a->at);
    a->at = end;
}

/* ---- what is around them ---- */

static bool thinks_anywhere(const struct answer *a)
{
    return a->form.reasoning && a->thought->again && !a->form.guided;
}

/* At its mark. */
static bool begin_reasoning(struct answer *a, size_t i)
{
    a->at = i + strlen(a->thought->begin);
    a->reasoned = a->labelled = a->inside = false;
    a->breaks = a->said[HARMONY_REASONING];
    a->state = REASONING;
    return true;
}

static bool read_beginning(struct answer *a)
{
    const size_t i = answer_skip_space(a, a->at);
    const bool near = i - a->at <= ANSWER_BLANKS_MAX;
    const enum mark_match m =
        a->form.reasoning && near ? answer_match(a, i, a->thought->begin) : MARK_NO;
    if (m == MARK_PERHAPS)
        return false;
    if (m == MARK_YES)
        return begin_reasoning(a, i);
    a->state = LEADING;
    return true;
}

/* The line behind the mark, if it is there. False: more text will tell. */
static bool read_label(struct answer *a)
{
    const char *label = a->thought->label;
    const size_t end = a->at + (label ? strlen(label) : 0);
    if (a->labelled || !label)
        return true;
    enum mark_match m = answer_match(a, a->at, label);
    if (m == MARK_YES && end < a->pending.len && *answer_text_at(a, end) != '\n')
        m = answer_match(a, end, a->thought->end);
    else if (m == MARK_YES && end == a->pending.len && !a->finished)
        m = MARK_PERHAPS;
    if (m == MARK_PERHAPS)
        return false;
    a->labelled = true;
    if (m == MARK_YES)
        a->at = skip_lines(a, end);
    else if (a->finished && answer_may_be(a, a->at, label)) /* it is cut off */
        a->at = a->pending.len;
    return true;
}

static bool read_reasoning(struct answer *a)
{
    enum mark_match m;
    int which = 0;
    const char *const marks[MARKS] = {a->thought->end, a->thought->again ? a->syntax->open : NULL};
    if (!a->reasoned)
        a->at = skip_lines(a, a->at);
    if (!read_label(a))
        return false;
    const size_t end = find(a, marks, &m, &which);
    if (end > a->at && !a->reasoned) {
        answer_add_text(a, ANSWER_REASONING, "\n", a->breaks);
        a->reasoned = a->said[HARMONY_REASONING] = true;
    }
    give_text(a, ANSWER_REASONING, end, m == MARK_YES || !a->finished);
    if (m != MARK_YES)
        return false;
    a->inside = which > 0;
    a->at = end + (a->inside ? 0 : strlen(a->thought->end));
    a->state = a->inside ? CONTENT : REASONED;
    return true;
}

static bool read_reasoned(struct answer *a)
{
    a->at = skip_lines(a, a->at);
    if (a->at == a->pending.len)
        return false;
    const enum mark_match m =
        thinks_anywhere(a) ? answer_match(a, a->at, a->thought->begin) : MARK_NO;
    if (m == MARK_YES)
        return begin_reasoning(a, a->at);
    a->state = m == MARK_NO ? LEADING : a->state;
    return m == MARK_NO;
}

static bool read_leading(struct answer *a)
{
    if (!a->syntax->leads) {
        a->state = a->syntax->open || thinks_anywhere(a) ? CONTENT : PLAIN;
        return true;
    }
    const size_t i = answer_skip_space(a, a->at);
    const enum mark_match m =
        i - a->at <= ANSWER_BLANKS_MAX ? answer_match(a, i, a->syntax->open) : MARK_NO;
    if (m == MARK_PERHAPS)
        return false;
    if (m == MARK_YES)
        return answer_call_begin(a, i);
    a->bare = true;
    if (i - a->at <= ANSWER_BLANKS_MAX && *answer_text_at(a, i) == '{')
        return answer_call_begin_value(a, i);
    a->state = PLAIN;
    return true;
}

static bool read_content(struct answer *a)
{
    enum mark_match m;
    int which = 0;
    const char *const marks[MARKS] = {a->syntax->open,
                                      thinks_anywhere(a) ? a->thought->again : NULL,
                                      a->inside ? a->thought->end : NULL};
    const size_t end = find(a, marks, &m, &which);
    give_text(a, ANSWER_CONTENT, end, m == MARK_YES ? which == 0 : !a->finished);
    if (m != MARK_YES)
        return false;
    if (which == 2) { /* of the thought that a call has ended */
        a->at = end + strlen(a->thought->end);
        a->inside = false;
        return true;
    }
    return which == 1 ? begin_reasoning(a, end) : answer_call_begin(a, end);
}

static bool read_plain(struct answer *a)
{
    answer_add_text(a, ANSWER_CONTENT, answer_text_at(a, a->at), a->pending.len - a->at);
    a->at = a->pending.len;
    return false;
}

static void read_all(struct answer *a)
{
    static bool (*const readers[])(struct answer * a) = {
        [BEGINNING] = read_beginning,
        [REASONING] = read_reasoning,
        [REASONED] = read_reasoned,
        [LEADING] = read_leading,
        [CONTENT] = read_content,
        [MARKED] = answer_call_read_marked,
        [VALUE] = answer_call_read_value,
        [TAGGED] = answer_call_read_tagged,
        [LOOSE] = answer_call_read_loose,
        [CLOSING] = answer_call_read_closing,
        [PLAIN] = read_plain,
        [HEADING] = answer_message_read_heading,
        [BODY] = answer_message_read_body,
        [ADDRESSED] = answer_message_read_addressed,
        [ENDING] = answer_message_read_ending,
    };
    while (a->at < a->pending.len && readers[a->state](a))
        ;
    a->value -= a->value > a->at ? a->at : a->value;
    a->begun -= a->begun > a->at ? a->at : a->begun;
    buf_consume(&a->pending, a->at);
    a->at = 0;
}

/* ---- one answer ---- */

static enum answer_state first_state(struct answer *a)
{
    const struct answer_form *f = &a->form;
    const bool reasons = f->reasoning && f->reasoning_open;
    a->kind = reasons ? HARMONY_REASONING : HARMONY_CONTENT;
    if (f->harmony && f->content_open && f->guided)
        return PLAIN;
    if (f->harmony)
        return f->reasoning_open || f->content_open ? BODY : HEADING;
    return reasons ? REASONING : BEGINNING;
}

struct answer *answer_open(const struct answer_form *form, uint64_t key)
{
    struct answer *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->form = *form;
    a->syntax = answer_syntax(form->calls);
    a->thought = answer_thought(form->thoughts);
    a->key = key;
    a->state = first_state(a);
    buf_init(&a->pending, BYTES_MAX);
    buf_init(&a->tags.arguments, BYTES_MAX);
    buf_init(&a->gemma.arguments, BYTES_MAX);
    parts_init(&a->parts, BYTES_MAX);
    return a;
}

void answer_close(struct answer *a)
{
    if (!a)
        return;
    buf_free(&a->pending);
    buf_free(&a->tags.arguments);
    buf_free(&a->gemma.arguments);
    parts_free(&a->parts);
    free(a);
}

void answer_push(struct answer *a, const char *text, size_t n)
{
    if (n == 0)
        return;
    buf_add(&a->pending, text, n);
    if (!a->pending.failed)
        read_all(a);
}

/* Bytes of the mark that the text begins with; 0: none. */
static size_t mark_length(const char *const marks[ANSWER_MARKS_MAX], const char *text, size_t n)
{
    for (size_t i = 0; marks[i]; i++)
        if (mark_match(text, n, marks[i], true) == MARK_YES)
            return strlen(marks[i]);
    return 0;
}

void answer_begin(struct answer *a, const char *text, size_t n)
{
    const char *marks[ANSWER_MARKS_MAX], control = ANSWER_CONTROL;
    struct buf all;
    answer_form_marks(&a->form, marks);
    buf_init(&all, 2 * ANSWER_BEGIN_BYTES_MAX);
    for (size_t i = 0, len; i < n; i += len) {
        len = mark_length(marks, text + i, n - i);
        buf_add(&all, &control, a->form.controls && len > 0);
        len = len > 0 ? len : 1;
        buf_add(&all, text + i, len);
    }
    a->failed |= all.failed;
    a->begun = all.len;
    a->forced = all.len > 0;
    answer_push(a, all.data, all.len);
    buf_free(&all);
}

void answer_finish(struct answer *a, bool whole)
{
    a->finished = true;
    a->whole = whole;
    if (!a->pending.failed)
        read_all(a);
}

bool answer_failed(const struct answer *a)
{
    return a->failed || a->pending.failed || parts_failed(&a->parts);
}

const struct buf *answer_content(const struct answer *a)
{
    return &a->parts.content;
}

const struct buf *answer_reasoning(const struct answer *a)
{
    return &a->parts.reasoning;
}

int32_t answer_call_count(const struct answer *a)
{
    return a->parts.count;
}

/* Different for each call of each answer, as long as keys differ. */
static void write_id(uint64_t key, int32_t index, char *out)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    uint64_t x = key + (uint64_t)index;
    for (int i = 0; i < ANSWER_ID_BYTES; i++, x /= 62)
        out[i] = letters[x % 62];
    out[ANSWER_ID_BYTES] = '\0';
}

struct answer_call answer_call(const struct answer *a, int32_t i)
{
    struct answer_call call = parts_call(&a->parts, i);
    call.index = a->total - a->parts.count + i;
    call.cut = a->cut && i == a->parts.count - 1;
    write_id(a->key, call.index, call.id);
    return call;
}

int32_t answer_part_count(const struct answer *a)
{
    return parts_count(&a->parts);
}

struct answer_part answer_part(const struct answer *a, int32_t i)
{
    return parts_at(&a->parts, i);
}

void answer_clear(struct answer *a)
{
    parts_clear(&a->parts);
    a->headed = false;
}

bool answer_headed(const struct answer *a)
{
    return a->headed;
}

int32_t answer_calls_total(const struct answer *a)
{
    return a->cut ? 0 : a->total;
}

bool answer_reasons(const struct answer *a)
{
    return a->state == REASONING || (a->state == BODY && a->kind == HARMONY_REASONING);
}
