/* DESIGN: text waits in `pending` until it is known what it is: an end that may become a mark, or a
 * call until its object is whole. A call goes out in one piece, because only a whole object is
 * known to be one; half a call that turns out to be text could not be taken back. Each byte is
 * looked at a bounded number of times, whatever pieces it comes in: an object is scanned once, and
 * all else that waits is short. */
#include "server/answer/answer.h"

#include "server/answer/call.h"

#include <stdlib.h>
#include <string.h>

#define BYTES_MAX ((size_t)1 << 30)
#define BLANKS_MAX 256 /* white space that waits for what follows it; more of it is content */

static const char think[] = "<think>", think_end[] = "</think>";
static const char call_id[] = "[CALL_ID]", args[] = "[ARGS]"; /* between a name and arguments */

static const struct syntax {
    const char *name;
    const char *open, *close;   /* close: may be missing after the last call; NULL: there is none */
    const char *before, *after; /* around the name of a call that is begun for the model, */
    const char *end, *last;     /* behind its arguments and behind the last call, */
    const char *again;          /* and between `end` and the next name; NULL: one call only */
    bool leads;                 /* only where the content begins; `open` may be missing */
    bool varied;                /* objects in a list, too, or a name and its arguments */
} syntaxes[] = {
    [ANSWER_CALLS_NONE] = {.name = "none"},
    [ANSWER_CALLS_HERMES] = {.name = "hermes",
                             .open = "<tool_call>",
                             .close = "</tool_call>",
                             .before = "<tool_call>\n{\"name\": \"",
                             .after = "\", \"arguments\":",
                             .end = "}",
                             .last = "\n</tool_call>",
                             .again = "\n</tool_call>\n<tool_call>\n{\"name\": \""},
    [ANSWER_CALLS_LLAMA3] = {.name = "llama3_json",
                             .open = "<|python_tag|>",
                             .before = "{\"name\": \"",
                             .after = "\", \"parameters\":",
                             .end = "}",
                             .last = "",
                             .leads = true},
    [ANSWER_CALLS_MISTRAL] = {.name = "mistral",
                              .open = "[TOOL_CALLS]",
                              .before = "[TOOL_CALLS][{\"name\": \"",
                              .after = "\", \"arguments\":",
                              .end = "}",
                              .last = "]",
                              .again = ", {\"name\": \"",
                              .varied = true},
    [ANSWER_CALLS_MISTRAL_ARGS] = {.name = "mistral",
                                   .open = "[TOOL_CALLS]",
                                   .before = "[TOOL_CALLS]",
                                   .after = "[ARGS]",
                                   .end = "",
                                   .last = "",
                                   .again = "[TOOL_CALLS]",
                                   .varied = true},
};

enum state {
    BEGINNING, /* nothing but white space has come */
    REASONING,
    REASONED, /* between reasoning and content */
    LEADING,  /* where the content begins */
    CONTENT,
    MARKED,  /* `at` is where a call seems to begin, `value` behind its mark */
    VALUE,   /* its object is being read */
    CLOSING, /* behind it */
    PLAIN,   /* the rest is content */
};

struct item {
    size_t name, name_len, arguments, arguments_len; /* in `texts` */
};

struct answer {
    struct answer_form form;
    const struct syntax *syntax;
    enum state state;
    uint64_t key;
    bool finished, reasoned, failed, in_list;
    bool bare; /* calls have no mark */

    struct buf pending;
    size_t at; /* what is before it in pending is done with */
    size_t value;
    size_t begun; /* so much of pending the prompt has said */
    struct call_scan scan;
    char name[CALL_NAME_BYTES_MAX + 1]; /* "": the object has it */

    struct buf content, reasoning, texts;
    struct item items[ANSWER_CALLS_MAX]; /* since the last clear */
    int32_t count, total;
};

/* ---- forms ---- */

const char *answer_calls_name(enum answer_calls calls)
{
    return syntaxes[calls].name;
}

bool answer_calls_named(const char *name, enum answer_calls *out)
{
    for (size_t i = 0; i < ARRAY_LEN(syntaxes); i++)
        if (strcmp(name, syntaxes[i].name) == 0) {
            *out = (enum answer_calls)i;
            return true;
        }
    return false;
}

bool answer_form_parts(const struct answer_form *f)
{
    return f->reasoning || f->calls != ANSWER_CALLS_NONE;
}

void answer_form_marks(const struct answer_form *f, const char *marks[ANSWER_MARKS_MAX])
{
    const struct syntax *s = &syntaxes[f->calls];
    const char *const all[] = {s->open,
                               s->close,
                               s->varied ? args : NULL,
                               s->varied ? call_id : NULL,
                               f->reasoning ? think : NULL,
                               f->reasoning ? think_end : NULL};
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (all[i])
            marks[n++] = all[i];
    while (n < ANSWER_MARKS_MAX)
        marks[n++] = NULL;
}

void answer_form_begin(const struct answer_form *f, const char *name, struct buf *out)
{
    const struct syntax *syntax = &syntaxes[f->calls];
    buf_puts(out, syntax->before);
    buf_puts(out, name);
    buf_puts(out, *name ? syntax->after : "");
}

struct answer_words answer_form_words(const struct answer_form *f)
{
    const struct syntax *s = &syntaxes[f->calls];
    return (struct answer_words){.before = s->before,
                                 .after = s->after,
                                 .end = s->end,
                                 .close = s->last,
                                 .may_stay_open = s->last[0] != ']',
                                 .again = s->again};
}

static bool contains(const char *text, size_t n, const char *part)
{
    return memmem(text, n, part, strlen(part)) != NULL;
}

enum answer_calls answer_calls_of_template(const char *text, size_t n)
{
    /* other formats between the same tags: Qwen3-Coder's, GLM's */
    if (contains(text, n, "<function=") || contains(text, n, "<arg_key>"))
        return ANSWER_CALLS_NONE;
    if (contains(text, n, "<tool_call>"))
        return ANSWER_CALLS_HERMES;
    if (contains(text, n, "[TOOL_CALLS]"))
        return contains(text, n, args) ? ANSWER_CALLS_MISTRAL_ARGS : ANSWER_CALLS_MISTRAL;
    if (contains(text, n, "{\"name\": function name, \"parameters\""))
        return ANSWER_CALLS_LLAMA3;
    return ANSWER_CALLS_NONE;
}

bool answer_reasoning_of_template(const char *text, size_t n)
{
    return contains(text, n, think) || contains(text, n, think_end);
}

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

enum match { MATCH_NO, MATCH_YES, MATCH_PERHAPS };

/* PERHAPS: the text ends before the mark does. */
static enum match match(const struct answer *a, size_t i, const char *mark)
{
    const size_t n = strlen(mark), left = a->pending.len - i;
    if (left >= n)
        return memcmp(text_at(a, i), mark, n) == 0 ? MATCH_YES : MATCH_NO;
    if (a->finished || memcmp(text_at(a, i), mark, left) != 0)
        return MATCH_NO;
    return MATCH_PERHAPS;
}

/* Where the mark begins or may begin; else the end. */
static size_t find(const struct answer *a, const char *mark, enum match *found)
{
    for (size_t i = a->at; i < a->pending.len; i++) {
        const char *next = memchr(text_at(a, i), mark[0], a->pending.len - i);
        if (!next)
            break;
        i = (size_t)(next - a->pending.data);
        *found = match(a, i, mark);
        if (*found != MATCH_NO)
            return i;
    }
    *found = MATCH_NO;
    return a->pending.len;
}

/* Everything up to `end` goes out, but for newlines there if a mark may follow them. */
static void give_text(struct answer *a, struct buf *out, size_t end, bool mark_may_follow)
{
    const size_t last = end;
    while (mark_may_follow && end > a->at && last - end < BLANKS_MAX &&
           *text_at(a, end - 1) == '\n')
        end--;
    buf_add(out, text_at(a, a->at), end - a->at);
    a->at = end;
}

/* ---- calls ---- */

/* What seemed to be a call is content, as far as the model wrote it. */
static bool give_up(struct answer *a, size_t end)
{
    if (a->begun > a->at)
        a->at = a->begun < end ? a->begun : end;
    buf_add(&a->content, text_at(a, a->at), end - a->at);
    a->at = end;
    a->in_list = false;
    a->state = a->syntax->leads ? PLAIN : CONTENT;
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
    struct item *item = &a->items[a->count];
    if (a->form.one_call && a->total > 0)
        return;
    item->name = a->texts.len;
    item->name_len = strlen(call->name);
    buf_add(&a->texts, call->name, item->name_len);
    item->arguments = a->texts.len;
    item->arguments_len = call->arguments_len;
    buf_add(&a->texts, call->arguments, call->arguments_len);
    a->count++;
    a->total++;
}

static bool read_value(struct answer *a)
{
    struct call call = {.name = ""};
    const char *text = text_at(a, a->value);
    if (!call_scan(&a->scan, text, a->pending.len - a->value))
        return a->finished && give_up(a, a->pending.len);
    const size_t end = a->value + a->scan.at;
    memcpy(call.name, a->name, sizeof a->name);
    const enum call_kind kind = a->name[0] ? CALL_ARGUMENTS : a->bare ? CALL_BARE : CALL_TAGGED;
    const enum status st = call_read(&a->scan, text, kind, &call);
    a->failed |= st == ERR_NOMEM;
    if (st != OK || a->total == ANSWER_CALLS_MAX)
        return give_up(a, end);
    add_call(a, &call);
    a->at = end;
    a->state = CLOSING;
    return true;
}

static size_t skip_name(const struct answer *a, size_t i)
{
    while (i < a->pending.len && call_is_name_byte(*text_at(a, i)))
        i++;
    return i;
}

/* name[CALL_ID]id[ARGS]{...}, where either mark may be missing. */
static bool read_name(struct answer *a, size_t begin)
{
    const size_t end = skip_name(a, begin);
    if (end == begin || end - begin > CALL_NAME_BYTES_MAX)
        return give_up(a, a->value);
    size_t i = skip_space(a, end);
    enum match m = match(a, i, call_id);
    if (m == MATCH_YES)
        i = skip_name(a, i + strlen(call_id));
    if (m != MATCH_PERHAPS)
        m = match(a, i, args);
    if (m == MATCH_YES)
        i = skip_space(a, i + strlen(args));
    if (i - end > BLANKS_MAX)
        return give_up(a, a->value);
    if (i == a->pending.len || m == MATCH_PERHAPS)
        return a->finished && give_up(a, a->value);
    if (*text_at(a, i) != '{')
        return give_up(a, a->value);
    memcpy(a->name, text_at(a, begin), end - begin);
    a->name[end - begin] = '\0';
    return begin_value(a, i);
}

static bool read_marked(struct answer *a)
{
    const size_t i = skip_space(a, a->value);
    if (i - a->value > BLANKS_MAX)
        return give_up(a, a->value);
    if (i == a->pending.len)
        return a->finished && give_up(a, i);
    const char c = *text_at(a, i);
    if (c == '{')
        return begin_value(a, i);
    if (c == '[' && a->syntax->varied && !a->in_list) {
        a->in_list = true;
        a->value = i + 1;
        return true;
    }
    return a->syntax->varied && !a->in_list ? read_name(a, i) : give_up(a, a->value);
}

static bool begin_mark(struct answer *a, size_t i)
{
    a->value = i + strlen(a->syntax->open);
    a->name[0] = '\0';
    a->state = MARKED;
    return true;
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
    const enum match close = a->syntax->close ? match(a, i, a->syntax->close) : MATCH_NO,
                     open = match(a, i, a->syntax->open);
    if (close == MATCH_PERHAPS || open == MATCH_PERHAPS)
        return false;
    if (close == MATCH_YES) {
        a->at += strlen(a->syntax->close);
    } else if (open == MATCH_YES) {
        a->in_list = false;
        begin_mark(a, i);
    } else if (*text_at(a, i) == '{' && (a->in_list || a->syntax->leads)) {
        begin_value(a, i);
    } else if (*text_at(a, i) == ']' && a->in_list) {
        a->in_list = false;
        a->at++;
    } else {
        give_up(a, i);
    }
    return true;
}

/* ---- what is around them ---- */

static bool read_beginning(struct answer *a)
{
    const size_t i = skip_space(a, a->at);
    const bool near = i - a->at <= BLANKS_MAX;
    const enum match m = a->form.reasoning && near ? match(a, i, think) : MATCH_NO;
    if (m == MATCH_PERHAPS)
        return false;
    a->state = m == MATCH_YES ? REASONING : LEADING;
    if (m == MATCH_YES)
        a->at = i + strlen(think);
    return true;
}

static bool read_reasoning(struct answer *a)
{
    enum match m;
    if (!a->reasoned)
        a->at = skip_lines(a, a->at);
    const size_t end = find(a, think_end, &m);
    a->reasoned |= end > a->at;
    give_text(a, &a->reasoning, end, m == MATCH_YES || !a->finished);
    if (m != MATCH_YES)
        return false;
    a->at = end + strlen(think_end);
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
    const enum match m = i - a->at <= BLANKS_MAX ? match(a, i, a->syntax->open) : MATCH_NO;
    if (m == MATCH_PERHAPS)
        return false;
    if (m == MATCH_YES)
        return begin_mark(a, i);
    a->bare = true;
    if (i - a->at <= BLANKS_MAX && *text_at(a, i) == '{')
        return begin_value(a, i);
    a->state = PLAIN;
    return true;
}

static bool read_content(struct answer *a)
{
    enum match m;
    const size_t end = find(a, a->syntax->open, &m);
    give_text(a, &a->content, end, m == MATCH_YES || !a->finished);
    return m == MATCH_YES && begin_mark(a, end);
}

static bool read_plain(struct answer *a)
{
    buf_add(&a->content, text_at(a, a->at), a->pending.len - a->at);
    a->at = a->pending.len;
    return false;
}

static void read_all(struct answer *a)
{
    static bool (*const readers[])(struct answer * a) = {
        [BEGINNING] = read_beginning, [REASONING] = read_reasoning, [REASONED] = read_reasoned,
        [LEADING] = read_leading,     [CONTENT] = read_content,     [MARKED] = read_marked,
        [VALUE] = read_value,         [CLOSING] = read_closing,     [PLAIN] = read_plain,
    };
    while (a->at < a->pending.len && readers[a->state](a))
        ;
    a->value -= a->value > a->at ? a->at : a->value;
    a->begun -= a->begun > a->at ? a->at : a->begun;
    buf_consume(&a->pending, a->at);
    a->at = 0;
    if (a->form.drop_reasoning)
        buf_clear(&a->reasoning);
}

/* ---- one answer ---- */

struct answer *answer_open(const struct answer_form *form, uint64_t key)
{
    struct answer *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->form = *form;
    a->syntax = &syntaxes[form->calls];
    a->key = key;
    a->state = form->reasoning && form->reasoning_open ? REASONING : BEGINNING;
    buf_init(&a->pending, BYTES_MAX);
    buf_init(&a->content, BYTES_MAX);
    buf_init(&a->reasoning, BYTES_MAX);
    buf_init(&a->texts, BYTES_MAX);
    return a;
}

void answer_close(struct answer *a)
{
    if (!a)
        return;
    buf_free(&a->pending);
    buf_free(&a->content);
    buf_free(&a->reasoning);
    buf_free(&a->texts);
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

void answer_begin(struct answer *a, const char *text, size_t n)
{
    a->begun = n;
    answer_push(a, text, n);
}

void answer_finish(struct answer *a)
{
    a->finished = true;
    if (!a->pending.failed)
        read_all(a);
}

bool answer_failed(const struct answer *a)
{
    return a->failed || a->pending.failed || a->content.failed || a->reasoning.failed ||
           a->texts.failed;
}

const struct buf *answer_content(const struct answer *a)
{
    return &a->content;
}

const struct buf *answer_reasoning(const struct answer *a)
{
    return &a->reasoning;
}

int32_t answer_call_count(const struct answer *a)
{
    return a->count;
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
    const struct item *item = &a->items[i];
    struct answer_call call = {
        .index = a->total - a->count + i,
        .name = a->texts.data + item->name,
        .arguments = a->texts.data + item->arguments,
        .name_len = item->name_len,
        .arguments_len = item->arguments_len,
    };
    write_id(a->key, call.index, call.id);
    return call;
}

void answer_clear(struct answer *a)
{
    buf_clear(&a->content);
    buf_clear(&a->reasoning);
    buf_clear(&a->texts);
    a->count = 0;
}

int32_t answer_calls_total(const struct answer *a)
{
    return a->total;
}

bool answer_reasons(const struct answer *a)
{
    return a->state == REASONING;
}
