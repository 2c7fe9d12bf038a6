#include "server/grammar/structure.h"

#include "server/answer/harmony.h"
#include "server/grammar/json_keyword.h"
#include "server/grammar/json_schema.h"
#include "server/grammar/pattern.h"

#include <string.h>

enum { CHOICES_MAX = 1024, SPELLED_BYTES_MAX = 96 };

bool structure_is_none(const struct structure *s)
{
    return s->kind == STRUCTURE_NONE && !s->begun;
}

/* Is the answer, or may it be, a call? */
static bool has_calls(const struct structure *s)
{
    return s->tools && s->form.calls != ANSWER_CALLS_NONE;
}

void structure_key(const struct structure *s, struct buf *out)
{
    const struct answer_form *f = &s->form;
    buf_printf(out, "%d %d %d ", (int)s->kind, s->begun, has_calls(s));
    if (f->harmony)
        buf_printf(out, "%d %d %d ", f->reasoning, f->reasoning_open, f->content_open);
    if (s->value)
        jdoc_write(s->value, out);
    if (!has_calls(s))
        return;
    buf_printf(out, " %d %d %s ", (int)s->form.calls, s->form.one_call, s->begun ? s->name : "");
    jdoc_write(s->tools, out);
}

/* ---- marks ---- */

/* A control token stands behind ANSWER_CONTROL: so it may come where the form has it, and nowhere
 * else. */
static int32_t control(struct grammar *g, const char *mark, int32_t next)
{
    return grammar_range(g, (uint8_t)ANSWER_CONTROL, (uint8_t)ANSWER_CONTROL,
                         grammar_text(g, mark, strlen(mark), next));
}

/* The words of a form, whose marks may be control tokens or text; only the former, where the form
 * says so. */
static int32_t spell(const struct structure *s, struct grammar *g, const char *words, int32_t next)
{
    const size_t n = strlen(words);
    const char *marks[ANSWER_MARKS_MAX];
    int32_t from[SPELLED_BYTES_MAX + 1]; /* the node that goes on with words + i */
    answer_form_marks(&s->form, marks);
    CHECK(n <= SPELLED_BYTES_MAX);
    from[n] = next;
    for (size_t i = n; i-- > 0;) {
        from[i] = grammar_text(g, words + i, 1, from[i + 1]);
        for (size_t m = 0; marks[m]; m++) {
            const size_t len = strlen(marks[m]);
            if (strncmp(words + i, marks[m], len) != 0)
                continue;
            const int32_t mark = control(g, marks[m], from[i + len]);
            from[i] = s->form.controls ? mark : grammar_either(g, from[i], mark);
        }
    }
    return from[0];
}

/* In the harmony format: what the text is, if the model says so, and its beginning. */
static int32_t spell_type(const struct structure *s, struct grammar *g, int32_t next)
{
    static const char *const types[] = {" json", HARMONY_CONSTRAIN "json",
                                        " " HARMONY_CONSTRAIN "json"};
    const int32_t body = spell(s, g, HARMONY_MESSAGE, next);
    int32_t all = body;
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        all = grammar_either(g, all, spell(s, g, types[i], body));
    return all;
}

/* ---- calls of tools ---- */

/* Its name, when it can be called; else NULL. */
static const char *name_of(const struct jdoc *function)
{
    const struct jdoc *name = jdoc_member(function, "name", JDOC_STRING);
    return name && call_is_name(jdoc_string(name), jdoc_string_len(name)) ? jdoc_string(name)
                                                                          : NULL;
}

/* In a grammar of its own, because one that has become too large is of no use any more. */
static enum status try_schema(const struct jdoc *schema, struct err *why)
{
    struct json_text t;
    int32_t rule;
    struct grammar *g = grammar_new();
    struct json_search search = json_search(schema);
    if (!g)
        return base_fail(why, ERR_NOMEM, "no memory for a grammar");
    json_text_open(&t, g);
    enum status st = json_schema_build(&t, schema, &rule, why);
    if (st == OK)
        st = grammar_check(g, why);
    if (st == OK && !json_is_object(&search, schema))
        st = base_fail(why, ERR_INPUT, "its parameters are not those of an object");
    grammar_free(g);
    return st;
}

/* The rule of a tool's arguments. Parameters that cannot be kept to are an object at least, unless
 * the tool is "strict". */
static enum status build_arguments(const struct json_text *t, const struct jdoc *function,
                                   int32_t *rule, struct err *err)
{
    const struct jdoc *parameters = jdoc_get_value(function, "parameters");
    const struct jdoc *strict = jdoc_get_value(function, "strict");
    struct err why;
    *rule = t->object;
    if (!parameters || (jdoc_type(parameters) == JDOC_OBJECT && jdoc_size(parameters) == 0))
        return OK;
    enum status st = try_schema(parameters, &why);
    if (st == OK)
        st = json_schema_build(t, parameters, rule, &why);
    if (st != ERR_INPUT)
        return st == OK ? OK : base_fail(err, st, "%s", why.text);
    if (strict && jdoc_type(strict) == JDOC_BOOL && jdoc_bool(strict))
        return base_fail(err, ERR_INPUT, "tool %.64s: %.360s", name_of(function), why.text);
    *rule = t->object;
    return OK;
}

/* One call from the tool's name on, or from its arguments where the name is given, then `tail`.
 * channel: of a harmony message, where the name comes before it. */
static enum status build_call(const struct structure *s, const struct json_text *t,
                              const char *channel, const char *name, int32_t tail, int32_t *first,
                              struct err *err)
{
    enum status st = OK;
    *first = GRAMMAR_NEVER;
    for (size_t i = 0; i < jdoc_size(s->tools); i++) {
        const struct jdoc *function = jdoc_member(jdoc_at(s->tools, i), "function", JDOC_OBJECT);
        const char *own = name_of(function);
        int32_t rule;
        if (!own || (*name && strcmp(own, name) != 0))
            continue;
        TRY(build_arguments(t, function, &rule, err));
        int32_t way = grammar_call(t->g, t->space, grammar_call(t->g, rule, tail));
        if (!*name) {
            way = s->form.harmony ? spell(s, t->g, channel, spell_type(s, t->g, way))
                                  : spell(s, t->g, answer_syntax(s->form.calls)->after, way);
            way = grammar_text(t->g, own, strlen(own), way);
        }
        *first = grammar_either(t->g, *first, way);
    }
out:
    return st;
}

/* What may follow the arguments of a call: its end, and other calls from their names on. */
static int32_t tail_of(const struct structure *s, struct grammar *g,
                       const struct answer_syntax *words, bool one_call, int32_t names)
{
    int32_t all = words->may_stay_open ? GRAMMAR_END : GRAMMAR_NEVER;
    if (*words->last && !(one_call && words->may_stay_open))
        all = grammar_either(g, all, spell(s, g, words->last, GRAMMAR_END));
    if (!one_call && words->again)
        all = grammar_either(g, all, spell(s, g, words->again, names));
    return spell(s, g, words->end, all);
}

static enum status build_calls(const struct structure *s, const struct json_text *t, int32_t *first,
                               struct err *err)
{
    enum status st = OK;
    struct grammar *g = t->g;
    const struct answer_syntax *words = answer_syntax(s->form.calls);
    const int32_t names = grammar_rule(g), tail = grammar_rule(g);
    const int32_t end = grammar_call(g, tail, GRAMMAR_END);
    const bool named = s->begun && *s->name; /* other tools do not matter: it is one call */
    int32_t call;
    TRY(build_call(s, t, "", named ? s->name : "", end, &call, err));
    grammar_define(g, names, named ? GRAMMAR_NEVER : call);
    const int32_t more = grammar_call(g, names, GRAMMAR_END);
    grammar_define(g, tail, tail_of(s, g, words, named || s->form.one_call, more));
    *first = call;
    if (s->begun)
        goto out;
    *first = spell(s, g, words->before, call);
    if (words->or_before) {
        TRY(build_call(s, t, HARMONY_CHANNEL "commentary", "", end, &call, err));
        *first = grammar_either(g, *first, spell(s, g, words->or_before, call));
    }
out:
    return st;
}

/* ---- all else ---- */

static enum status build_choices(struct grammar *g, const struct jdoc *list, int32_t *first,
                                 struct err *err)
{
    if (jdoc_type(list) != JDOC_ARRAY || jdoc_size(list) < 1 || jdoc_size(list) > CHOICES_MAX)
        return base_fail(err, ERR_INPUT, "it must be a list of 1 to %d texts", CHOICES_MAX);
    *first = GRAMMAR_NEVER;
    for (size_t i = 0; i < jdoc_size(list); i++) {
        const struct jdoc *v = jdoc_at(list, i);
        if (jdoc_type(v) != JDOC_STRING || jdoc_string_len(v) == 0)
            return base_fail(err, ERR_INPUT, "number %zu must be a text that is not empty", i);
        *first = grammar_either(g, *first,
                                grammar_text(g, jdoc_string(v), jdoc_string_len(v), GRAMMAR_END));
    }
    return OK;
}

static enum status build_content(const struct structure *s, const struct json_text *t,
                                 int32_t *first, struct err *err)
{
    int32_t rule;
    enum status st = OK;
    *first = GRAMMAR_NEVER;
    switch (s->kind) {
    case STRUCTURE_NONE:
        break;
    case STRUCTURE_OBJECT:
        *first = grammar_call(t->g, t->object, GRAMMAR_END);
        break;
    case STRUCTURE_SCHEMA:
        TRY(json_schema_build(t, s->value, &rule, err));
        *first = grammar_call(t->g, rule, GRAMMAR_END);
        break;
    case STRUCTURE_PATTERN:
        TRY(pattern_build(t->g, jdoc_string(s->value), jdoc_string_len(s->value), PATTERN_TEXT,
                          true, GRAMMAR_END, first, err));
        break;
    case STRUCTURE_CHOICES:
        TRY(build_choices(t->g, s->value, first, err));
        break;
    }
out:
    return st;
}

/* ---- messages of the harmony format ---- */

/* One character, but for a and b, of which a is not the greater one. */
static int32_t any_but(struct grammar *g, uint32_t a, uint32_t b, int32_t next)
{
    int32_t all = grammar_either(g, grammar_chars(g, 1, a - 1, next),
                                 grammar_chars(g, b + 1, 0x10ffff, next));
    if (b > a + 1)
        all = grammar_either(g, all, grammar_chars(g, a + 1, b - 1, next));
    return all;
}

/* The text of a message, its end, and what begins the next one. Where letters are marks, those that
 * spell the end are the end: at[i] has read i of them. */
static int32_t build_text(const struct structure *s, struct grammar *g, int32_t next)
{
    static const char end[] = HARMONY_END;
    enum { N = sizeof end - 1 };
    int32_t at[N + 1];
    const int32_t after = spell(s, g, HARMONY_START "assistant", next);
    const int32_t marked = control(g, end, after);
    if (s->form.controls) {
        const int32_t text = grammar_fork(g);
        grammar_fork_set(g, text, grammar_chars(g, 1, 0x10ffff, text), marked);
        return text;
    }
    for (int i = 0; i < N; i++)
        at[i] = grammar_fork(g);
    at[N] = after;
    for (int i = 0; i < N; i++) {
        const uint32_t begin = (uint8_t)end[0], c = (uint8_t)end[i];
        const int32_t other = any_but(g, c < begin ? c : begin, c < begin ? begin : c, at[0]);
        int32_t more = grammar_range(g, (uint8_t)c, (uint8_t)c, at[i + 1]);
        if (c != begin)
            more = grammar_either(g, more, grammar_range(g, (uint8_t)begin, (uint8_t)begin, at[1]));
        grammar_fork_set(g, at[i], grammar_either(g, other, more), marked);
    }
    return at[0];
}

/* A message of the channel, and what comes then. */
static int32_t build_message(const struct structure *s, struct grammar *g, const char *header,
                             int32_t next)
{
    return spell(s, g, header, build_text(s, g, next));
}

/* What may come before the content, or calls: reasoning as long as the model likes, and, where only
 * calls follow, what it tells the user of them. */
static int32_t build_before(const struct structure *s, struct grammar *g, int32_t begin, bool tells)
{
    int32_t all = GRAMMAR_NEVER;
    if (s->form.reasoning)
        all = build_message(s, g, HARMONY_CHANNEL "analysis" HARMONY_MESSAGE, begin);
    if (tells)
        all = grammar_either(
            g, all, build_message(s, g, HARMONY_CHANNEL "commentary" HARMONY_MESSAGE, begin));
    return all;
}

/* The content is in the final message. */
static int32_t build_messages(const struct structure *s, struct grammar *g, int32_t content,
                              int32_t calls)
{
    if (s->begun)
        return calls;
    if (s->form.content_open)
        return content;
    const int32_t final = spell(s, g, HARMONY_CHANNEL "final", spell_type(s, g, content));
    const int32_t begin = grammar_fork(g);
    int32_t before = build_before(s, g, begin, false);
    if (calls != GRAMMAR_NEVER) {
        const int32_t told = grammar_fork(g);
        grammar_fork_set(g, told, build_before(s, g, told, true), calls);
        before = grammar_either(
            g, before, build_message(s, g, HARMONY_CHANNEL "commentary" HARMONY_MESSAGE, told));
    }
    grammar_fork_set(g, begin, before, grammar_either(g, final, calls));
    if (!s->form.reasoning_open)
        return begin;
    return s->form.reasoning ? build_text(s, g, begin)
                             : spell(s, g, HARMONY_END HARMONY_START "assistant", begin);
}

enum status structure_build(const struct structure *s, struct grammar **out, struct err *err)
{
    enum status st = OK;
    int32_t content, calls = GRAMMAR_NEVER;
    struct json_text t;
    struct grammar *g = grammar_new();
    if (!g)
        return base_fail(err, ERR_NOMEM, "no memory for a grammar");
    json_text_open(&t, g);
    const int32_t all = grammar_rule(g);
    TRY(build_content(s, &t, &content, err));
    if (has_calls(s))
        TRY(build_calls(s, &t, &calls, err));
    grammar_define(g, all,
                   s->form.harmony ? build_messages(s, g, content, calls)
                                   : grammar_either(g, content, calls));
    TRY(grammar_close_rules(g, all, err));
    *out = g;
    g = NULL;
out:
    grammar_free(g);
    return st;
}
