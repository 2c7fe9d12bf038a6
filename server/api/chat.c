/* DESIGN: a chat request is a completion request whose prompt is a conversation: sampling.c and
 * conversation.c have the rows of both halves, and what follows the prompt knows only the first.
 * Where it is not known how the model writes calls, tools are refused unless it may not call them.
 */
#include "server/api/chat.h"

#include "server/answer/call_types.h"
#include "server/api/body.h"
#include "server/api/prediction.h"
#include "server/api/tool_choice.h"

#include <stdlib.h>

#define AT(member) .offset = offsetof(struct chat_values, member)
#include "server/api/field_row.h"

static const struct field rows[] = {
    CONVERSATION_MESSAGES(true, conversation.messages),
    {.name = "max_tokens",
     .kind = FIELD_INT,
     .int_min = 1,
     .int_max = INT32_MAX,
     .no_default = true,
     AT(sampling.max_tokens)},
    OPTIONAL_INT(max_completion_tokens, 1, INT32_MAX),
    BOOL(logprobs),
    OPTIONAL_INT(top_logprobs, 0, ENGINE_LOGPROBS_MAX),
    BOOL(add_special_tokens),
    BOOL(include_reasoning),
    BOOL(parallel_tool_calls),
    {.name = "tool_choice",
     .kind = FIELD_ANY,
     .schema = "\"type\":[\"string\",\"object\",\"null\"]",
     AT(tool_choice)},
    {.name = "modalities",
     .kind = FIELD_ANY,
     .schema = "\"enum\":[null,[\"text\"]]",
     AT(modalities)},
    {.name = "prediction", .kind = FIELD_ANY, .schema = PREDICTION_SCHEMA, AT(prediction)},
    UNSUPPORTED(echo, FIELD_BOOL, 0),
    UNSUPPORTED(functions, FIELD_ARRAY, 0),
    UNSUPPORTED(function_call, FIELD_ANY, NAN),
    UNSUPPORTED(audio, FIELD_ANY, NAN),
    UNSUPPORTED(web_search_options, FIELD_ANY, NAN),
    IGNORED(verbosity),
};

struct field_set chat_fields(int32_t vocab)
{
    return (struct field_set){
        .parts = {{rows, ARRAY_LEN(rows), 0},
                  sampling_rows(offsetof(struct chat_values, sampling)),
                  conversation_rows(offsetof(struct chat_values, conversation))},
        .vocab = vocab,
    };
}

struct chat_values chat_defaults(const struct generation_defaults *d)
{
    struct chat_values raw = {
        .sampling = sampling_defaults(d),
        .conversation = conversation_defaults(),
        .max_completion_tokens = -1,
        .top_logprobs = -1,
        .include_reasoning = true,
        .parallel_tool_calls = true,
    };
    raw.sampling.max_tokens = -1;
    return raw;
}

void chat_schema(const struct completion_rules *rules, struct buf *out)
{
    const struct field_set set = chat_fields(rules->vocab);
    const struct chat_values raw = chat_defaults(&rules->defaults);
    field_schema(&set, &raw, out);
}

/* ---- what rows cannot say ---- */

static enum status check_modalities(const struct jdoc *v, struct api_error *e)
{
    if (!v)
        return OK;
    if (jdoc_type(v) != JDOC_ARRAY)
        return field_wrong_type("modalities", v, "a list", e);
    for (size_t i = 0; i < jdoc_size(v); i++) {
        const struct jdoc *item = jdoc_at(v, i);
        if (jdoc_type(item) != JDOC_STRING ||
            !field_string_is(&(struct field_string){jdoc_string(item), jdoc_string_len(item)},
                             "text"))
            return field_unsupported("modalities", item, e);
    }
    return OK;
}

static enum status check_together(const struct chat_values *raw,
                                  const struct completion_rules *rules, struct tool_choice *choice,
                                  struct api_error *e)
{
    enum status st = OK;
    if (raw->top_logprobs > 0 && !raw->logprobs)
        return api_error_field(e, "top_logprobs", "top_logprobs needs \"logprobs\": true");
    TRY(check_modalities(raw->modalities, e));
    TRY(tool_choice_read(raw->tool_choice, raw->conversation.tools, rules->answer.calls, choice,
                         e));
out:
    return st;
}

/* ---- the request ---- */

/* Of both names the newer one counts; of neither, the answer may fill the context. A prompt must
 * leave room for one token at least. */
static bool set_max_tokens(struct chat_values *raw)
{
    if (raw->max_completion_tokens > 0)
        raw->sampling.max_tokens = raw->max_completion_tokens;
    if (raw->sampling.max_tokens > 0)
        return false;
    raw->sampling.max_tokens = INT32_MAX;
    return true;
}

static enum status convert(const struct chat_values *raw, const struct completion_rules *rules,
                           bool fills_context, struct completion_request *r, struct api_error *e)
{
    enum status st = sampling_convert(&raw->sampling, rules, r, e);
    if (st != OK)
        return st;
    r->fills_context = fills_context;
    if (fills_context)
        r->params.max_tokens = 1;
    r->logprobs = raw->logprobs ? (int32_t)(raw->top_logprobs > 0 ? raw->top_logprobs : 0) : -1;
    r->params.logprobs = r->logprobs;
    r->add_special_tokens = raw->add_special_tokens;
    r->parse_special = true; /* of bad words alone: messages have none */
    r->prompts = calloc(1, sizeof *r->prompts);
    if (!r->prompts)
        return ERR_NOMEM;
    r->prompt_count = 1;
    return completion_check_choices(r, rules, e);
}

/* Whether reasoning is open already, the prompt will tell. */
static void set_answer(const struct chat_values *raw, const struct completion_rules *rules,
                       const struct tool_choice *choice, struct completion_request *r)
{
    r->answer = rules->answer;
    if (!choice->calls)
        r->answer.calls = ANSWER_CALLS_NONE;
    r->answer.drop_reasoning = !raw->include_reasoning;
    r->answer.one_call = !raw->parallel_tool_calls || *choice->name;
    buf_init(&r->answer_begin, ANSWER_BEGIN_BYTES_MAX);
    buf_init(&r->call_types, SIZE_MAX);
    buf_init(&r->prediction, SIZE_MAX);
    const struct answer_syntax *syntax = answer_syntax(r->answer.calls);
    if (syntax->tags || syntax->quote)
        call_types_add(raw->conversation.tools, &r->call_types);
    r->answer.types = r->call_types.data;
    r->answer.types_len = r->call_types.len;
    if (choice->required)
        answer_form_begin(&r->answer, choice->name, &r->answer_begin);
}

/* Where the answer may be calls of tools, its structure is that of content or calls; where it has
 * to be calls, that of calls. */
static enum status set_structure(const struct chat_values *raw, const struct tool_choice *choice,
                                 struct completion_request *r, struct api_error *e)
{
    struct structure *s = &r->structure;
    if (choice->required && s->kind != STRUCTURE_NONE)
        return api_error_field(e, "tool_choice",
                               "tool_choice and %s cannot both say what the answer is", s->field);
    if (!choice->calls)
        return OK;
    s->tools = raw->conversation.tools;
    s->begun = choice->required;
    s->name = choice->name;
    if (s->begun)
        s->field = "tool_choice";
    return OK;
}

enum status chat_make(struct chat_values *values, const struct completion_rules *rules,
                      struct chat_request *r, struct api_error *e)
{
    enum status st = OK;
    struct completion_request *q = &r->completion;
    const bool fills_context = set_max_tokens(values);
    struct tool_choice choice;
    TRY(check_together(values, rules, &choice, e));
    TRY(sampling_check(&values->sampling, q->doc, rules, e));
    TRY(convert(values, rules, fills_context, q, e));
    set_answer(values, rules, &choice, q);
    if (q->answer_begin.failed || q->call_types.failed) {
        st = ERR_NOMEM;
        goto out;
    }
    TRY(prediction_read(values->prediction, &q->prediction, e));
    TRY(set_structure(values, &choice, q, e));
    values->conversation.harmony = rules->answer.harmony;
    values->conversation.no_null = rules->answer.no_null;
    values->conversation.thought_parts = rules->answer.thought_parts;
    values->conversation.system_thoughts = rules->answer.system_thoughts;
    st = conversation_make(&values->conversation, q->doc, &r->conversation, e);
out:
    return st;
}

enum status chat_parse_form(const struct chat_form *form, void *values, const char *text, size_t n,
                            const struct completion_rules *rules, struct chat_request *out,
                            struct api_error *e)
{
    enum status st = OK;
    const struct field_set set = form->fields(rules->vocab);
    struct chat_request r = {.completion = {.source = form->source}};
    TRY(form->big ? body_parse_big(text, n, form->big, &r.completion.doc, e)
                  : body_parse(text, n, &r.completion.doc, e));
    TRY(field_apply(&set, r.completion.doc, values, &r.completion.unknown, e));
    TRY(form->make(values, rules, &r, e));
    *out = r;
    return OK;
out:
    chat_free(&r);
    if (st == ERR_NOMEM)
        api_error_no_memory(e);
    return st;
}

static enum status make(void *values, const struct completion_rules *rules, struct chat_request *r,
                        struct api_error *e)
{
    return chat_make(values, rules, r, e);
}

enum status chat_parse(const char *text, size_t n, const struct completion_rules *rules,
                       struct chat_request *out, struct api_error *e)
{
    static const struct chat_form form = {"messages", false, chat_fields, make};
    struct chat_values values = chat_defaults(&rules->defaults);
    return chat_parse_form(&form, &values, text, n, rules, out, e);
}

void chat_free(struct chat_request *r)
{
    completion_free(&r->completion);
    conversation_free(&r->conversation);
}

/* ---- tools of other forms ---- */

enum status chat_take_tools(const struct buf *text, struct completion_request *q,
                            struct chat_values *values, struct api_error *e)
{
    /* as they came, and room for what is written around them */
    static const struct jdoc_limits limits = {
        .bytes_max = CHAT_TOOLS_BYTES_MAX, .depth_max = 96, .tokens_max = 1000000, .nul = true};
    struct err err = {""};
    const enum status st =
        text->failed ? ERR_NOMEM
                     : jdoc_parse(text->data, text->len, &limits, "tools", &q->own_tools, &err);
    if (st == ERR_INPUT)
        return api_error_field(e, "tools", "%.400s", err.text);
    if (st != OK)
        return st;
    values->conversation.tools = jdoc_get_value(q->own_tools, "tools");
    values->tool_choice = jdoc_get_value(q->own_tools, "tool_choice");
    return OK;
}
