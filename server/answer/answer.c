/* DESIGN: text waits in `pending` until it is known what it is: an end that may become a mark, or a
 * call until its object is whole. A call goes out in one piece, because only a whole object is
 * known to be one; half a call that turns out to be text could not be taken back. Each byte is
 * looked at a bounded number of times, whatever pieces it comes in: an object is scanned once, and
 * all else that waits is short. */
#include "server/answer/answer.h"

#include "server/answer/call_tags.h"
#include "server/answer/harmony.h"
#include "server/answer/parts.h"

#include <stdlib.h>
#include <string.h>

#define BYTES_MAX ((size_t)1 << 30)
#define BLANKS_MAX 256 /* white space that waits for what follows it; more of it is content */

enum state {
    BEGINNING, /* nothing but white space has come */
    REASONING,
    REASONED, /* between reasoning and content */
    LEADING,  /* where the content begins */
    CONTENT,
    MARKED,  /* `at` is where a call seems to begin, `value` behind its mark */
    VALUE,   /* its object is being read */
    TAGGED,  /* or its name and arguments, from `value` on */
    CLOSING, /* behind it */
    PLAIN,   /* the rest is content */
    /* of the harmony format */
    HEADING,   /* a message begins at `at` */
    BODY,      /* its text: reasoning or content */
    ADDRESSED, /* it is to a tool: `at` is where it begins, `value` behind its header */
    ENDING,    /* the tool has its arguments */
};

struct answer {
    struct answer_form form;
    const struct answer_syntax *syntax;
    enum state state;
    uint64_t key;
    bool finished, whole, reasoned, failed, in_list;
    bool forced;                    /* the prompt has begun a call, and nothing else may come */
    bool cut;                       /* the last call is not whole */
    bool headed;                    /* since the last clear */
    bool bare;                      /* calls have no mark */
    bool said[HARMONY_CONTENT + 1]; /* by kind: some of it has come */
    enum harmony_kind kind;         /* of the BODY: REASONING or CONTENT, */
    bool breaks;                    /* which is a new line of what was said */

    struct buf pending;
    size_t at; /* what is before it in pending is done with */
    size_t value;
    size_t begun; /* so much of pending the prompt has said */
    struct call_scan scan;
    struct call_tags_reader tags;
    char name[CALL_NAME_BYTES_MAX + 1]; /* "": the object has it */

    struct parts parts; /* since the last clear */
    int32_t total;      /* of calls */
};

/* ---- text ---- */

static const char *text_at(const struct answer *a, size_t i)
{
    return a->pending.data + i;
}

static size_t skip_space(const struct answer *a, size_t i)
{
    while (i < a->pending.len && call_is_space(*text_at(a, i)))
        i++;
    return i;
}

static size_t skip_lines(const struct answer *a, size_t i)
{
    while (i < a->pending.len && *text_at(a, i) == '\n')
        i++;
    return i;
}

/* Does the text end within the mark? Even if no more comes; within a character of it, too, in whose
 * place there is U+FFFD then. */
static bool may_be(const struct answer *a, size_t i, const char *mark)
{
    static const char lost[] = "\xef\xbf\xbd";
    size_t n = a->pending.len - i;
    if (n > strlen(lost) && memcmp(text_at(a, a->pending.len - strlen(lost)), lost, 3) == 0)
        n -= strlen(lost);
    return mark && mark_match(text_at(a, i), n, mark, false) == MARK_PERHAPS;
}

static enum mark_match match(const struct answer *a, size_t i, const char *mark)
{
    const enum mark_match m = mark_match(text_at(a, i), a->pending.len - i, mark, a->finished);
    return m == MARK_NO && !a->finished && may_be(a, i, mark) ? MARK_PERHAPS : m;
}

/* Where the mark begins or may begin; else the end. */
static size_t find(const struct answer *a, const char *mark, enum mark_match *found)
{
    for (size_t i = a->at; i < a->pending.len; i++) {
        const char *next = memchr(text_at(a, i), mark[0], a->pending.len - i);
        if (!next)
            break;
        i = (size_t)(next - a->pending.data);
        *found = match(a, i, mark);
        if (*found != MARK_NO)
            return i;
    }
    *found = MARK_NO;
    return a->pending.len;
}

static void add_text(struct answer *a, enum answer_kind kind, const char *text, size_t n)
{
    if (kind != ANSWER_REASONING || !a->form.drop_reasoning)
        parts_add_text(&a->parts, kind, text, n);
}

/* Everything up to `end` goes out, but for newlines there if a mark may follow them. */
static void give_text(struct answer *a, enum answer_kind kind, size_t end, bool mark_may_follow)
{
    const size_t last = end;
    while (mark_may_follow && end > a->at && last - end < BLANKS_MAX &&
           *text_at(a, end - 1) == '\n')
        end--;
    add_text(a, kind, text_at(a, a->at), end - a->at);
    a->at = end;
}

/* ---- calls ---- */

/* What seemed to be a call is content, as far as the model wrote it; in the harmony format it is a
 * message like others, whose header is no content, of which each is a line, and goes on. */
static bool give_up(struct answer *a, size_t end)
{
    if (a->form.harmony && (a->state == ADDRESSED || a->state == VALUE))
        a->at = a->value < end ? a->value : end;
    if (a->begun > a->at)
        a->at = a->begun < end ? a->begun : end;
    a->breaks = a->form.harmony && a->said[HARMONY_CONTENT];
    if (end > a->at) {
        add_text(a, ANSWER_CONTENT, "\n", a->breaks);
        a->said[HARMONY_CONTENT] = true;
        a->breaks = false;
    }
    add_text(a, ANSWER_CONTENT, text_at(a, a->at), end - a->at);
    a->at = end;
    a->in_list = false;
    a->kind = HARMONY_CONTENT;
    a->state = a->form.harmony ? BODY : a->syntax->leads ? PLAIN : CONTENT;
    return true;
}

static bool begin_value(struct answer *a, size_t i)
{
    a->value = i;
    a->scan = (struct call_scan){0};
    a->state = VALUE;
    return true;
}

static void add_call(struct answer *a, const struct call *call)
{
    if (a->form.one_call && a->total > 0)
        return;
    parts_add_call(&a->parts, call->name, call->arguments, call->arguments_len);
    a->total++;
}

/* The answer ends within what waits. Where the prompt has begun it, the rest would be no text to
 * anybody: it is a call as far as it goes, or nothing before its name is known. named: it is, and
 * the arguments are from a->value on. */
static bool give_cut(struct answer *a, bool named)
{
    const struct answer_syntax *s = a->syntax;
    struct call call = {.name = ""};
    const char *text = text_at(a, a->value);
    const size_t n = a->pending.len - a->value;
    if (!a->forced)
        return give_up(a, a->pending.len);
    memcpy(call.name, a->name, sizeof a->name);
    const enum call_end end = named
                                  ? call_read_cut_arguments(text, n, &call)
                                  : call_read_cut(text, n, strchr(s->before, '{'), s->after, &call);
    const int32_t most = a->form.one_call ? 1 : ANSWER_CALLS_MAX;
    if (end != CALL_NAMELESS && a->total < most) {
        add_call(a, &call);
        a->cut = end == CALL_CUT;
    }
    a->at = a->pending.len;
    return true;
}

static bool read_value(struct answer *a)
{
    struct call call = {.name = ""};
    const char *text = text_at(a, a->value);
    if (!call_scan(&a->scan, text, a->pending.len - a->value))
        return a->finished && give_cut(a, a->name[0] != '\0');
    const size_t end = a->value + a->scan.at;
    memcpy(call.name, a->name, sizeof a->name);
    const enum call_kind kind = a->name[0] ? CALL_ARGUMENTS : a->bare ? CALL_BARE : CALL_TAGGED;
    const enum status st = call_read(&a->scan, text, kind, &call);
    a->failed |= st == ERR_NOMEM;
    if (st != OK || a->total == ANSWER_CALLS_MAX)
        return give_up(a, end);
    add_call(a, &call);
    a->at = end;
    a->state = a->form.harmony ? ENDING : CLOSING;
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

static bool read_tagged(struct answer *a)
{
    struct call call = {.name = ""};
    struct call_tags_reader *r = &a->tags;
    const struct call_tags_text how = {a->syntax->tags, a->syntax->close, a->form.types,
                                       a->form.types_len, a->finished && a->whole};
    const enum mark_match m =
        call_tags_read(r, &how, text_at(a, a->value), a->pending.len - a->value);
    if (m == MARK_PERHAPS)
        return a->finished && give_up(a, a->pending.len);
    a->failed |= r->no_memory || r->arguments.failed;
    if (m == MARK_NO || a->total == ANSWER_CALLS_MAX || r->arguments.failed)
        return give_up(a, a->value + r->at);
    memcpy(call.name, r->name, sizeof call.name);
    call.arguments = r->arguments.data;
    call.arguments_len = r->arguments.len;
    add_call(a, &call);
    a->at = a->value + r->at;
    a->state = CLOSING;
    return true;
}

static size_t skip_name(const struct answer *a, size_t i)
{
    while (i < a->pending.len && call_is_name_byte(*text_at(a, i)))
        i++;
    return i;
}

/* Before its arguments; the name is whole if more has come than it. */
static bool give_cut_name(struct answer *a, size_t begin, size_t end)
{
    const bool whole = end < a->pending.len;
    memcpy(a->name, text_at(a, begin), end - begin);
    a->name[whole ? end - begin : 0] = '\0';
    a->value = a->pending.len;
    return give_cut(a, whole);
}

/* name[CALL_ID]id[ARGS]{...}, where either mark may be missing. */
static bool read_name(struct answer *a, size_t begin)
{
    const size_t end = skip_name(a, begin);
    if (end == begin || end - begin > CALL_NAME_BYTES_MAX)
        return give_up(a, a->value);
    size_t i = skip_space(a, end);
    enum mark_match m = match(a, i, ANSWER_CALL_ID);
    if (m == MARK_YES)
        i = skip_name(a, i + strlen(ANSWER_CALL_ID));
    if (m != MARK_PERHAPS)
        m = match(a, i, ANSWER_ARGS);
    if (m == MARK_YES)
        i = skip_space(a, i + strlen(ANSWER_ARGS));
    if (i - end > BLANKS_MAX)
        return give_up(a, a->value);
    if (a->forced && a->finished && (i == a->pending.len || may_be(a, i, ANSWER_ARGS)))
        return give_cut_name(a, begin, end);
    if (i == a->pending.len || m == MARK_PERHAPS)
        return a->finished && give_up(a, a->value);
    if (*text_at(a, i) != '{')
        return give_up(a, a->value);
    memcpy(a->name, text_at(a, begin), end - begin);
    a->name[end - begin] = '\0';
    return begin_value(a, i);
}

/* The next of several calls, from its first mark on. */
static bool read_framed(struct answer *a, size_t i)
{
    const struct answer_frame *f = a->syntax->frame;
    enum mark_match m = match(a, i, f->name);
    const size_t begin = i + strlen(f->name), end = m == MARK_YES ? skip_name(a, begin) : i;
    if (m == MARK_YES &&
        (end - begin > CALL_NAME_BYTES_MAX || (end == begin && end < a->pending.len)))
        return give_up(a, a->value);
    if (m == MARK_YES && a->forced && a->finished &&
        (end == a->pending.len || may_be(a, end, f->arguments)))
        return give_cut_name(a, begin, end);
    if (m == MARK_YES)
        m = match(a, end, f->arguments);
    if (m == MARK_PERHAPS || may_be(a, end, m == MARK_NO ? f->name : NULL))
        return a->finished && give_cut(a, false);
    i = m == MARK_YES ? skip_space(a, end + strlen(f->arguments)) : i;
    if (m != MARK_YES || (i < a->pending.len && *text_at(a, i) != '{'))
        return give_up(a, a->value);
    memcpy(a->name, text_at(a, begin), end - begin);
    a->name[end - begin] = '\0';
    if (i < a->pending.len)
        return begin_value(a, i);
    a->value = a->finished ? i : a->value;
    return a->finished && give_cut(a, true);
}

static bool read_marked(struct answer *a)
{
    const size_t i = skip_space(a, a->value);
    if (i - a->value > BLANKS_MAX)
        return give_up(a, a->value);
    if (i == a->pending.len)
        return a->finished && give_cut(a, false);
    const char c = *text_at(a, i);
    if (c == '{')
        return begin_value(a, i);
    if (c == '[' && a->syntax->varied && !a->in_list) {
        a->in_list = true;
        a->value = i + 1;
        return true;
    }
    if (a->syntax->tags)
        return begin_tags(a);
    if (a->syntax->frame)
        return read_framed(a, i);
    return a->syntax->varied && !a->in_list ? read_name(a, i) : give_up(a, a->value);
}

static bool begin_mark(struct answer *a, size_t i)
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
    const enum mark_match fence = *f->fence ? match(a, i, f->fence) : MARK_NO;
    const size_t at = i + (fence == MARK_YES ? strlen(f->fence) : 0);
    const enum mark_match end = match(a, at, f->end), next = match(a, i, f->begin);
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

/* What may stand behind its arguments is text, as is that of any message. */
static bool read_ending(struct answer *a)
{
    a->at = skip_space(a, a->at);
    return a->at < a->pending.len && give_up(a, a->at);
}

/* Does the text end within what ends a frame, or begins the next? */
static bool is_frame_end(const struct answer *a, size_t i)
{
    const struct answer_frame *f = a->syntax->frame;
    const size_t fence = f ? strlen(f->fence) : 0;
    const bool fenced = f && fence > 0 && match(a, i, f->fence) == MARK_YES;
    return f && (may_be(a, i, f->begin) || may_be(a, fenced ? i + fence : i, f->end) ||
                 (fence > 0 && may_be(a, i, f->fence)));
}

static bool read_closing(struct answer *a)
{
    const char separator = a->syntax->leads ? ';' : a->in_list ? ',' : ' ';
    size_t i = a->at;
    while (i < a->pending.len && (call_is_space(*text_at(a, i)) || *text_at(a, i) == separator))
        i++;
    a->at = i;
    if (i == a->pending.len)
        return false;
    const enum mark_match frame = a->syntax->frame ? read_frame_end(a, i) : MARK_NO;
    if (frame == MARK_YES || (frame == MARK_PERHAPS && !a->finished))
        return frame == MARK_YES;
    const struct call_tags *tags = a->syntax->tags;
    const enum mark_match close = a->syntax->close ? match(a, i, a->syntax->close) : MARK_NO,
                          open = match(a, i, a->syntax->open),
                          more = tags && tags->several ? match(a, i, tags->name) : MARK_NO;
    if (close == MARK_PERHAPS || open == MARK_PERHAPS || more == MARK_PERHAPS)
        return false;
    if (close == MARK_YES) {
        a->at += strlen(a->syntax->close);
    } else if (open == MARK_YES) {
        a->in_list = false;
        begin_mark(a, i);
    } else if (more == MARK_YES) {
        a->value = i;
        begin_tags(a);
    } else if (*text_at(a, i) == '{' && (a->in_list || a->syntax->leads)) {
        begin_value(a, i);
    } else if (*text_at(a, i) == ']' && a->in_list) {
        a->in_list = false;
        a->at++;
    } else if (a->forced && (may_be(a, i, a->syntax->close) || may_be(a, i, a->syntax->open) ||
                             is_frame_end(a, i))) {
        a->at = a->pending.len; /* more calls, or their end, which the answer's has cut off */
    } else {
        give_up(a, i);
    }
    return true;
}

/* ---- messages of the harmony format ---- */

static struct harmony_text harmony_from(const struct answer *a, size_t i)
{
    return (struct harmony_text){text_at(a, i), a->pending.len - i, a->form.controls, a->finished,
                                 a->form.guided};
}

static bool begin_body(struct answer *a, const struct harmony_header *h)
{
    a->kind = a->form.reasoning ? h->kind : HARMONY_CONTENT;
    a->breaks = a->said[a->kind];
    a->state = BODY;
    if (a->form.guided && h->final) {
        add_text(a, ANSWER_CONTENT, "\n", a->breaks);
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

static bool read_heading(struct answer *a)
{
    struct harmony_header h;
    struct harmony_text text = harmony_from(a, a->at);
    const enum mark_match m = harmony_read_header(&text, true, &h);
    if (m == MARK_PERHAPS)
        return false;
    text.finished = false;
    if (m == MARK_NO && a->forced && harmony_read_header(&text, true, &h) == MARK_PERHAPS)
        a->at = a->pending.len; /* within a mark that is letters */
    return m == MARK_YES ? begin_message(a, &h) : give_up(a, a->begun > a->at ? a->begun : a->at);
}

/* Messages that become one text are lines of it. */
static bool read_body(struct answer *a)
{
    const enum answer_kind kind = a->kind == HARMONY_REASONING ? ANSWER_REASONING : ANSWER_CONTENT;
    size_t end, next;
    const struct harmony_text text = harmony_from(a, a->at);
    const enum mark_match m = harmony_find_end(&text, &end, &next);
    if (end > 0) {
        add_text(a, kind, "\n", a->breaks);
        add_text(a, kind, text.bytes, end);
        a->said[a->kind] = true;
        a->breaks = false;
    }
    a->at += m == MARK_YES ? next : end;
    a->state = m == MARK_YES ? HEADING : BODY;
    return m == MARK_YES;
}

/* A message to a tool is a call if it is an object; or nothing, where there are no arguments, which
 * the model has to have ended. */
static bool read_addressed(struct answer *a)
{
    struct call call = {.arguments = "{}", .arguments_len = 2};
    const size_t i = skip_space(a, a->value), left = a->pending.len - i;
    size_t end = 0, next = 0;
    if (i - a->value > BLANKS_MAX)
        return give_up(a, a->value);
    if (left == 0 && !a->finished)
        return false;
    if (left > 0 && *text_at(a, i) == '{')
        return begin_value(a, i);
    if (left == 0 && a->forced)
        return give_cut(a, true);
    struct harmony_text text = harmony_from(a, i);
    text.by_end = false; /* the whole call is guided, or nothing of it */
    const enum mark_match m =
        left == 0 ? (a->whole ? MARK_YES : MARK_NO) : harmony_find_end(&text, &end, &next);
    if (m == MARK_PERHAPS && end == 0)
        return false;
    if (m != MARK_YES || end > 0 || a->total == ANSWER_CALLS_MAX)
        return give_up(a, a->value);
    memcpy(call.name, a->name, sizeof a->name);
    add_call(a, &call);
    a->at = i + next;
    a->state = HEADING;
    return true;
}

/* ---- what is around them ---- */

static bool read_beginning(struct answer *a)
{
    const size_t i = skip_space(a, a->at);
    const bool near = i - a->at <= BLANKS_MAX;
    const enum mark_match m = a->form.reasoning && near ? match(a, i, ANSWER_THINK) : MARK_NO;
    if (m == MARK_PERHAPS)
        return false;
    a->state = m == MARK_YES ? REASONING : LEADING;
    if (m == MARK_YES)
        a->at = i + strlen(ANSWER_THINK);
    return true;
}

static bool read_reasoning(struct answer *a)
{
    enum mark_match m;
    if (!a->reasoned)
        a->at = skip_lines(a, a->at);
    const size_t end = find(a, ANSWER_THINK_END, &m);
    a->reasoned |= end > a->at;
    give_text(a, ANSWER_REASONING, end, m == MARK_YES || !a->finished);
    if (m != MARK_YES)
        return false;
    a->at = end + strlen(ANSWER_THINK_END);
    a->state = REASONED;
    return true;
}

static bool read_reasoned(struct answer *a)
{
    a->at = skip_lines(a, a->at);
    if (a->at == a->pending.len)
        return false;
    a->state = LEADING;
    return true;
}

static bool read_leading(struct answer *a)
{
    if (!a->syntax->leads) {
        a->state = a->syntax->open ? CONTENT : PLAIN;
        return true;
    }
    const size_t i = skip_space(a, a->at);
    const enum mark_match m = i - a->at <= BLANKS_MAX ? match(a, i, a->syntax->open) : MARK_NO;
    if (m == MARK_PERHAPS)
        return false;
    if (m == MARK_YES)
        return begin_mark(a, i);
    a->bare = true;
    if (i - a->at <= BLANKS_MAX && *text_at(a, i) == '{')
        return begin_value(a, i);
    a->state = PLAIN;
    return true;
}

static bool read_content(struct answer *a)
{
    enum mark_match m;
    const size_t end = find(a, a->syntax->open, &m);
    give_text(a, ANSWER_CONTENT, end, m == MARK_YES || !a->finished);
    return m == MARK_YES && begin_mark(a, end);
}

static bool read_plain(struct answer *a)
{
    add_text(a, ANSWER_CONTENT, text_at(a, a->at), a->pending.len - a->at);
    a->at = a->pending.len;
    return false;
}

static void read_all(struct answer *a)
{
    static bool (*const readers[])(struct answer * a) = {
        [BEGINNING] = read_beginning, [REASONING] = read_reasoning, [REASONED] = read_reasoned,
        [LEADING] = read_leading,     [CONTENT] = read_content,     [MARKED] = read_marked,
        [VALUE] = read_value,         [TAGGED] = read_tagged,       [CLOSING] = read_closing,
        [PLAIN] = read_plain,         [HEADING] = read_heading,     [BODY] = read_body,
        [ADDRESSED] = read_addressed, [ENDING] = read_ending,
    };
    while (a->at < a->pending.len && readers[a->state](a))
        ;
    a->value -= a->value > a->at ? a->at : a->value;
    a->begun -= a->begun > a->at ? a->at : a->begun;
    buf_consume(&a->pending, a->at);
    a->at = 0;
}

/* ---- one answer ---- */

static enum state first_state(struct answer *a)
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
    a->key = key;
    a->state = first_state(a);
    buf_init(&a->pending, BYTES_MAX);
    buf_init(&a->tags.arguments, BYTES_MAX);
    parts_init(&a->parts, BYTES_MAX);
    return a;
}

void answer_close(struct answer *a)
{
    if (!a)
        return;
    buf_free(&a->pending);
    buf_free(&a->tags.arguments);
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
