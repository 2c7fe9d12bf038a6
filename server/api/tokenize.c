/* DESIGN: the same rows and the same checks as a completion's, with two small targets. */
#include "server/api/tokenize.h"

#include "server/api/body.h"

#include <stddef.h>
#include <stdlib.h>

struct raw {
    struct field_string model, prompt, content;
    const struct jdoc *tokens;
    struct conversation_fields conversation;
    bool add_special_tokens, parse_special, return_token_strs;
};

/* As conversation_defaults has them. */
static const struct raw defaults = {.conversation = {.add_generation_prompt = true},
                                    .add_special_tokens = true,
                                    .parse_special = true};

#define AT(member) .offset = offsetof(struct raw, member)
#define TEXT_BYTES_MAX (4 << 20)

static const struct field text_rows[] = {
    {.name = "model", .kind = FIELD_STRING, .int_max = 1024, AT(model)},
    {.name = "prompt", .kind = FIELD_STRING, .int_max = TEXT_BYTES_MAX, AT(prompt)},
    {.name = "content", .kind = FIELD_STRING, .int_max = TEXT_BYTES_MAX, AT(content)},
    {.name = "add_special_tokens", .kind = FIELD_BOOL, AT(add_special_tokens)},
    {.name = "add_special", .kind = FIELD_BOOL, AT(add_special_tokens)},
    {.name = "parse_special", .kind = FIELD_BOOL, AT(parse_special)},
    {.name = "return_token_strs", .kind = FIELD_BOOL, AT(return_token_strs)},
    {.name = "with_pieces", .kind = FIELD_BOOL, .use = FIELD_UNSUPPORTED},
    CONVERSATION_MESSAGES(false, conversation.messages),
};

static const struct field id_rows[] = {
    {.name = "model", .kind = FIELD_STRING, .int_max = 1024, AT(model)},
    {.name = "tokens",
     .kind = FIELD_TOKENS,
     .int_max = TOKENIZE_IDS_MAX,
     .required = true,
     AT(tokens)},
};

struct field_set tokenize_fields(int32_t vocab)
{
    return (struct field_set){
        .parts = {{text_rows, ARRAY_LEN(text_rows), 0},
                  conversation_rows(offsetof(struct raw, conversation))},
        .vocab = vocab,
    };
}

struct field_set tokenize_id_fields(int32_t vocab)
{
    return (struct field_set){.parts = {{id_rows, ARRAY_LEN(id_rows), 0}}, .vocab = vocab};
}

void tokenize_schema(int32_t vocab, struct buf *out)
{
    const struct field_set set = tokenize_fields(vocab);
    field_schema(&set, &defaults, out);
}

void tokenize_id_schema(int32_t vocab, struct buf *out)
{
    const struct field_set set = tokenize_id_fields(vocab);
    field_schema(&set, &defaults, out);
}

/* A text under one of its two names, or messages. */
static enum status check_source(const struct raw *raw, const struct jdoc *doc, struct api_error *e)
{
    const struct field_rows more = conversation_rows(0);
    const int given = (raw->prompt.bytes != NULL) + (raw->content.bytes != NULL) +
                      (raw->conversation.messages != NULL);
    if (given == 0)
        return api_error_field(e, "prompt", "prompt is missing, or messages");
    if (given > 1)
        return api_error_field(e, raw->prompt.bytes ? "prompt" : "content",
                               "prompt, content and messages are all a text: give only one");
    if (raw->conversation.messages && !raw->parse_special)
        return api_error_field(e, "parse_special", "parse_special goes with a text only");
    for (size_t i = 0; i < more.count && !raw->conversation.messages; i++)
        if (more.rows[i].use == FIELD_USED && jdoc_get_value(doc, more.rows[i].name))
            return api_error_field(e, more.rows[i].name, "%s goes with messages only",
                                   more.rows[i].name);
    return OK;
}

enum status tokenize_parse(const char *text, size_t n, const struct completion_rules *rules,
                           struct tokenize_request *out, struct api_error *e)
{
    enum status st = OK;
    const struct field_set set = tokenize_fields(rules->vocab);
    struct tokenize_request r = {0};
    struct raw raw = defaults;
    TRY(body_parse(text, n, &r.doc, e));
    TRY(field_apply(&set, r.doc, &raw, &r.unknown, e));
    TRY(completion_check_model(rules, &raw.model, e));
    TRY(check_source(&raw, r.doc, e));
    raw.conversation.harmony = rules->answer.harmony;
    raw.conversation.no_null = rules->answer.no_null;
    raw.conversation.thought_parts = rules->answer.thought_parts;
    raw.conversation.system_thoughts = rules->answer.system_thoughts;
    if (raw.conversation.messages)
        TRY(conversation_make(&raw.conversation, r.doc, &r.conversation, e));
    r.text = raw.prompt.bytes ? raw.prompt : raw.content;
    r.add_special_tokens = raw.add_special_tokens;
    if (raw.conversation.messages) /* templates write them */
        r.add_special_tokens &=
            jdoc_get_value(r.doc, "add_special_tokens") || jdoc_get_value(r.doc, "add_special");
    r.parse_special = raw.parse_special;
    r.return_token_strs = raw.return_token_strs;
    *out = r;
    return OK;
out:
    tokenize_free(&r);
    return st;
}

void tokenize_free(struct tokenize_request *r)
{
    if (r->doc)
        jdoc_close(r->doc);
    conversation_free(&r->conversation);
    *r = (struct tokenize_request){0};
}

enum status tokenize_parse_ids(const char *text, size_t n, const struct completion_rules *rules,
                               struct detokenize_request *out, struct api_error *e)
{
    enum status st = OK;
    const struct field_set set = tokenize_id_fields(rules->vocab);
    struct detokenize_request r = {0};
    struct raw raw = defaults;
    struct jdoc *doc = NULL;
    TRY(body_parse(text, n, &doc, e));
    TRY(field_apply(&set, doc, &raw, &r.unknown, e));
    TRY(completion_check_model(rules, &raw.model, e));
    r.count = (int32_t)jdoc_size(raw.tokens);
    r.ids = r.count > 0 ? malloc((size_t)r.count * sizeof *r.ids) : NULL;
    if (r.count > 0 && !r.ids) {
        st = api_error_no_memory(e);
        goto out;
    }
    TRY(field_tokens("tokens", raw.tokens, TOKENIZE_IDS_MAX, rules->vocab, r.ids, e));
    *out = r;
    r.ids = NULL;
out:
    free(r.ids);
    if (doc)
        jdoc_close(doc);
    return st;
}

void tokenize_free_ids(struct detokenize_request *r)
{
    free(r->ids);
    *r = (struct detokenize_request){0};
}

void tokenize_reply(const int32_t *ids, int32_t count, int32_t max_model_len,
                    const struct logprobs_names *names, struct buf *out)
{
    buf_printf(out, "{\"count\":%d,\"max_model_len\":%d,\"tokens\":[", count, max_model_len);
    for (int32_t i = 0; i < count; i++)
        buf_printf(out, i ? ",%d" : "%d", ids[i]);
    buf_puts(out, "],\"token_strs\":");
    if (!names) {
        buf_puts(out, "null}");
        return;
    }
    buf_puts(out, "[");
    for (int32_t i = 0; i < count; i++) {
        buf_puts(out, i ? "," : "");
        logprobs_write_name(names, ids[i], out);
    }
    buf_puts(out, "]}");
}

/* Under the names of both dialects. */
void tokenize_reply_text(const char *text, size_t n, struct buf *out)
{
    buf_puts(out, "{\"prompt\":");
    buf_json(out, text, n);
    buf_puts(out, ",\"content\":");
    buf_json(out, text, n);
    buf_puts(out, "}");
}
