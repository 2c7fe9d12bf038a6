/* DESIGN: what the model's files say (its special tokens) and what a client says go to the template
 * apart, so that each byte of the text is known to be one's or the other's. A template of the model
 * that we do not understand is no reason not to serve completions; one that the operator names is
 * checked at the start. */
#include "server/chat_template.h"

#include "config/file.h"
#include "server/answer/harmony.h"
#include "server/template/jinja_value.h" /* white space as templates see it */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES_MAX ((size_t)16 << 20) /* of a conversation, four times a request's body */

struct chat_template {
    const struct tokenizer *tokenizer;
    struct jinja *jinja; /* NULL: there is a problem */
    struct jinja *tools; /* for conversations with tools; NULL: the same, or there is a problem */
    struct jdoc *own;    /* variables */
    struct answer_form form;
    char problem[400], tools_problem[400];
};

/* ---- opening ---- */

/* {"bos_token": "<s>", ...}: of the special tokens those that the model has. */
static enum status read_own(const struct jdoc *info, struct jdoc **out, struct err *err)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    const char *separator = "{";
    struct buf text;
    enum status st = OK;
    buf_init(&text, 1 << 20);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const struct jdoc *v = jdoc_get(info, names[i]);
        if (v && jdoc_type(v) == JDOC_OBJECT)
            v = jdoc_get(v, "content");
        if (!v || jdoc_type(v) != JDOC_STRING)
            continue;
        buf_printf(&text, "%s\"%s\":", separator, names[i]);
        buf_json(&text, jdoc_string(v), jdoc_string_len(v));
        separator = ",";
    }
    buf_puts(&text, *separator == '{' ? "{}" : "}");
    if (text.failed)
        st = base_fail(err, ERR_NOMEM, "chat template: no memory");
    else
        st = jdoc_parse(text.data, text.len, &jdoc_limits_file, "special tokens", out, err);
    buf_free(&text);
    return st;
}

static enum status open_text(struct chat_template *t, const char *text, size_t n, const char *name,
                             struct err *err)
{
    t->form = answer_form_of_template(text, n);
    return jinja_open(text, n, name, &t->jinja, err);
}

/* Clients read what the template says of itself, and learn the file's name, but not its folder. */
static enum status open_file(struct chat_template *t, const char *path, struct err *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const struct file_spec f = {.path = path,
                                .what = "--chat-template ",
                                .bytes_max = JINJA_BYTES_MAX,
                                .failure = ERR_USAGE,
                                .pipes = true};
    char *text = NULL;
    size_t n = 0;
    enum status st = OK;
    struct err why = {""};
    TRY(file_read(&f, &text, &n, err));
    st = open_text(t, text, n, name, &why);
    if (st != OK)
        st = base_fail(err, st == ERR_NOMEM ? st : ERR_USAGE, "--chat-template %.*s%s",
                       (int)(name - path), path, why.text);
out:
    free(text);
    return st;
}

/* Of models that have one for tools apart. */
static enum status open_tools(struct chat_template *t, const struct jdoc *info, struct err *err)
{
    struct err why = {""};
    const struct jdoc *text = jdoc_get(info, "tool_use_template");
    if (!text || jdoc_type(text) != JDOC_STRING)
        return OK;
    const char *source = jdoc_string(text);
    const size_t n = jdoc_string_len(text);
    const enum status st = jinja_open(source, n, "tool_use", &t->tools, &why);
    if (st == ERR_NOMEM) {
        *err = why;
        return st;
    }
    const struct answer_form form = answer_form_of_template(source, n);
    t->form.calls = form.calls;
    t->form.harmony = form.harmony;
    t->form.reasoning |= form.reasoning;
    t->form.thoughts = form.reasoning ? form.thoughts : t->form.thoughts;
    if (st != OK)
        snprintf(t->tools_problem, sizeof t->tools_problem,
                 "this model's chat template for tools cannot be used: %.240s; give another with "
                 "--chat-template",
                 why.text);
    return OK;
}

static enum status open_own(struct chat_template *t, const struct jdoc *info, struct err *err)
{
    struct err why = {""};
    const struct jdoc *text = jdoc_get(info, "chat_template");
    if (!text || jdoc_type(text) != JDOC_STRING) {
        snprintf(t->problem, sizeof t->problem,
                 "this model has no chat template: give one with --chat-template");
        return OK;
    }
    enum status st = open_text(t, jdoc_string(text), jdoc_string_len(text), "chat_template", &why);
    if (st == ERR_NOMEM) {
        *err = why;
        return st;
    }
    if (st != OK)
        snprintf(t->problem, sizeof t->problem,
                 "this model's chat template cannot be used: %.240s; give another with "
                 "--chat-template",
                 why.text);
    return open_tools(t, info, err);
}

/* Does the template take these messages, and show the text that is sought in them? */
static bool shows(const struct jinja *template, const struct jdoc *own, const char *messages,
                  const char *sought)
{
    struct jinja_text text;
    struct jdoc *vars = NULL;
    struct err ignored;
    struct buf b;
    buf_init(&b, 4096);
    buf_printf(&b, "{\"messages\":[%s],\"add_generation_prompt\":true}", messages);
    bool takes =
        !b.failed && jdoc_parse(b.data, b.len, &jdoc_limits_config, "probe", &vars, &ignored) == OK;
    takes = takes && jinja_render(template, vars, own, TEXT_BYTES_MAX, &text, &ignored) == OK;
    if (takes) {
        takes = !*sought || (text.bytes.len > 0 &&
                             memmem(text.bytes.data, text.bytes.len, sought, strlen(sought)));
        jinja_text_free(&text);
    }
    if (vars)
        jdoc_close(vars);
    buf_free(&b);
    return takes;
}

/* Can a message that calls a tool have this content? */
static bool takes_content(const struct chat_template *t, const char *content)
{
    char messages[512];
    snprintf(messages, sizeof messages,
             "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":%s,"
             "\"tool_calls\":[{\"id\":\"abcdefghi\",\"type\":\"function\",\"function\":{\"name\":"
             "\"f\",\"arguments\":{}}}]},{\"role\":\"tool\",\"tool_call_id\":\"abcdefghi\","
             "\"content\":\"b\"}",
             content);
    return shows(t->tools ? t->tools : t->jinja, t->own, messages, "");
}

/* Where Mistral's templates look for thoughts: some know no field for them, only parts. Asked is
 * the template of conversations, behind whose last question no thought is left out. */
static void find_thoughts(struct chat_template *t)
{
    static const char parts[] =
        "[{\"type\":\"thinking\",\"thinking\":\"IN_PARTS\",\"closed\":true},"
        "{\"type\":\"text\",\"text\":\"b\"}]";
    static const char user[] = "{\"role\":\"user\",\"content\":\"a\"}";
    char in_field[320], in_parts[320], in_system[320], marked[32];
    /* with its mark, since what takes no list may show it as such */
    snprintf(marked, sizeof marked, "%sIN_PARTS", answer_thought(t->form.thoughts)->begin);
    snprintf(in_field, sizeof in_field,
             "%s,{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"IN_FIELD\","
             "\"reasoning\":\"IN_FIELD\",\"thinking\":\"IN_FIELD\"},%s",
             user, user);
    snprintf(in_parts, sizeof in_parts, "%s,{\"role\":\"assistant\",\"content\":%s},%s", user,
             parts, user);
    snprintf(in_system, sizeof in_system, "{\"role\":\"system\",\"content\":%s},%s", parts, user);
    t->form.thought_parts =
        !shows(t->jinja, t->own, in_field, "IN_FIELD") && shows(t->jinja, t->own, in_parts, marked);
    t->form.system_thoughts = shows(t->jinja, t->own, in_system, marked);
}

enum status chat_template_open(const struct tokenizer *t, const char *file,
                               struct chat_template **out, struct err *err)
{
    const char *text = tokenizer_info(t);
    struct jdoc *info = NULL;
    enum status st = OK;
    struct chat_template *c = calloc(1, sizeof *c);
    if (!c)
        return base_fail(err, ERR_NOMEM, "chat template: no memory");
    c->tokenizer = t;
    TRY(jdoc_parse(text, strlen(text), &jdoc_limits_tokenizer, "tokenizer_config.json", &info,
                   err));
    TRY(read_own(info, &c->own, err));
    TRY(file ? open_file(c, file, err) : open_own(c, info, err));
    c->form.no_null = c->jinja && !takes_content(c, "null") && takes_content(c, "\"\"");
    if (c->jinja && c->form.thoughts == ANSWER_THOUGHTS_MISTRAL)
        find_thoughts(c);
    *out = c;
    c = NULL;
out:
    chat_template_close(c);
    if (info)
        jdoc_close(info);
    return st;
}

void chat_template_close(struct chat_template *t)
{
    if (!t)
        return;
    if (t->jinja)
        jinja_close(t->jinja);
    if (t->tools)
        jinja_close(t->tools);
    if (t->own)
        jdoc_close(t->own);
    free(t);
}

const char *chat_template_problem(const struct chat_template *t)
{
    return t->jinja ? NULL : t->problem;
}

struct answer_form chat_template_form(const struct chat_template *t)
{
    return t->form;
}

/* ---- use ---- */

/* Do the client, or else the template, write this there? */
static bool is_mark(const struct jinja_text *text, size_t at, const char *mark, size_t n,
                    bool foreign)
{
    if (at + n > text->bytes.len || memcmp(text->bytes.data + at, mark, n) != 0)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((text->foreign.data[at + i] != 0) != foreign)
            return false;
    return true;
}

/* Cuts at the last mark. A template that has trimmed the mark's own space would have trimmed the
 * spaces before it, had it not been there; where it writes one there itself they stay, as with
 * transformers. */
static enum status cut_at_mark(struct jinja_text *text, const char *mark, struct api_error *e)
{
    const size_t n = strlen(mark) - 1;
    size_t at = text->bytes.len;
    while (at > 0 && !is_mark(text, at - 1, mark, n, true))
        at--;
    if (at == 0)
        return api_error_field(e, "continue_final_message",
                               "continue_final_message is not possible: the chat template leaves "
                               "out the end of the last message");
    at--;
    if (at + n == text->bytes.len || text->bytes.data[at + n] != mark[n])
        for (size_t k; (k = jinja_space_before(text->bytes.data, at)) > 0;)
            at -= k;
    text->bytes.len = text->foreign.len = at;
    text->bytes.data[at] = '\0';
    return OK;
}

static enum status refuse(enum status st, const struct err *err, struct api_error *e)
{
    if (st == ERR_INPUT || st == ERR_LIMIT)
        return api_error_field(
            e, "messages", "messages do not go with the model's chat template: %.240s", err->text);
    if (st == ERR_MODEL) /* whatever the messages are */
        return api_error_field(e, "messages",
                               "this model's chat template cannot be used: %.240s; give another "
                               "with --chat-template",
                               err->text);
    api_error_from_status(e, st, err);
    return st;
}

enum status chat_template_render(const struct chat_template *t, const struct conversation *c,
                                 struct jinja_text *out, struct api_error *e)
{
    struct err err = {""};
    struct jinja_text text;
    if (!t)
        return api_error_field(e, "messages", "messages: this model came without a tokenizer");
    if (!t->jinja)
        return api_error_field(e, "messages", "%s", t->problem);
    const struct jdoc *tools = jdoc_get_value(c->vars, "tools");
    if (tools && t->tools_problem[0])
        return api_error_field(e, "tools", "%s", t->tools_problem);
    enum status st = jinja_render(tools && t->tools ? t->tools : t->jinja, c->vars, t->own,
                                  TEXT_BYTES_MAX, &text, &err);
    if (st != OK)
        return refuse(st, &err, e);
    if (c->mark)
        st = cut_at_mark(&text, c->mark, e);
    if (st == OK)
        *out = text;
    else
        jinja_text_free(&text);
    return st;
}

/* Before `end`; written by the template, or by a client who is to be continued. */
static bool ends_with(const struct jinja_text *text, size_t end, const char *mark, bool goes_on)
{
    const size_t n = strlen(mark);
    return end >= n && (is_mark(text, end - n, mark, n, false) ||
                        (goes_on && is_mark(text, end - n, mark, n, true)));
}

static bool opens_reasoning(const struct jinja_text *text, const struct answer_thought *thought,
                            bool goes_on)
{
    size_t end = text->bytes.len;
    while (end > 0 && text->bytes.data[end - 1] == '\n')
        end--;
    if (thought->label && ends_with(text, end, thought->label, goes_on))
        end -= strlen(thought->label);
    return ends_with(text, end, thought->begin, goes_on);
}

static bool ends_message(const struct jinja_text *text, size_t at)
{
    static const char *const marks[] = {HARMONY_END, HARMONY_RETURN, HARMONY_CALL};
    for (size_t i = 0; i < ARRAY_LEN(marks); i++)
        if (is_mark(text, at, marks[i], strlen(marks[i]), false))
            return true;
    return false;
}

/* The last message, if it has a header and no end. */
static void find_open_message(const struct jinja_text *text, struct answer_form *form)
{
    const size_t n = strlen(HARMONY_START);
    struct harmony_header h;
    size_t at = text->bytes.len;
    while (at > 0 && !is_mark(text, at - 1, HARMONY_START, n, false))
        at--;
    if (at == 0)
        return;
    at--;
    const struct harmony_text message = {.bytes = text->bytes.data + at, .n = text->bytes.len - at};
    if (harmony_read_header(&message, false, &h) != MARK_YES)
        return;
    for (at += h.len; at < text->bytes.len; at++)
        if (ends_message(text, at))
            return;
    form->reasoning_open = !h.name[0] && h.kind == HARMONY_REASONING;
    form->content_open = !h.name[0] && h.kind == HARMONY_CONTENT;
}

void chat_template_find_open(const struct jinja_text *text, bool goes_on, struct answer_form *form)
{
    form->reasoning_open = form->content_open = false;
    if (form->harmony)
        find_open_message(text, form);
    else
        form->reasoning_open = opens_reasoning(text, answer_thought(form->thoughts), goes_on);
}

void chat_template_add(struct jinja_text *text, const char *more, size_t n)
{
    const size_t before = text->foreign.len;
    buf_add(&text->bytes, more, n);
    buf_add(&text->foreign, more, n);
    text->bytes.failed |= text->foreign.failed;
    if (!text->bytes.failed)
        memset(text->foreign.data + before, 0, n);
}

enum status chat_template_encode(const struct chat_template *t, const struct jinja_text *text,
                                 bool special, int32_t **ids, int32_t *count, struct api_error *e)
{
    struct err err = {""};
    if (text->bytes.failed)
        return api_error_no_memory(e);
    const struct tokenizer_text marked = {.bytes = text->bytes.data ? text->bytes.data : "",
                                          .foreign = text->foreign.data ? text->foreign.data : "",
                                          .n = text->bytes.len};
    enum status st = tokenizer_encode_marked(t->tokenizer, &marked, special, ids, count, &err);
    if (st == ERR_INPUT)
        return api_error_field(e, "messages", "messages: %s", err.text);
    if (st != OK)
        api_error_from_status(e, st, &err);
    return st;
}
