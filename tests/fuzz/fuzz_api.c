/* Arbitrary bytes as the body of every POST route. What was accepted must lie within every limit;
 * what was refused must make an error that is JSON. */
#include "config/buf.h"
#include "server/api/chat.h"
#include "server/api/completion.h"
#include "server/api/embedding.h"
#include "server/api/messages.h"
#include "server/api/responses.h"
#include "server/api/tokenize.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 1000
#define CONTEXT 4096
#define COLUMNS 64

static void check_accepted(const struct completion_request *r, bool has_tokenizer)
{
    CHECK(r->prompt_count >= 1);
    CHECK(r->prompt_count <= COMPLETION_PROMPTS_MAX);
    CHECK(r->n >= 1);
    CHECK(r->n <= COMPLETION_N_MAX);
    CHECK(r->params.max_tokens >= 0);
    CHECK(r->params.temperature >= 0);
    CHECK(r->params.temperature <= 2);
    CHECK(r->params.top_p > 0);
    CHECK(r->params.top_p <= 1);
    CHECK(r->params.min_p >= 0);
    CHECK(r->params.min_p <= 1);
    CHECK(r->params.top_k >= 0);
    CHECK(r->params.min_tokens >= 0);
    CHECK(r->fills_context || r->params.min_tokens <= r->params.max_tokens);
    CHECK(r->params.logprobs >= -1 && r->params.logprobs <= ENGINE_LOGPROBS_MAX);
    CHECK(r->params.prompt_logprobs >= -1 && r->params.prompt_logprobs <= ENGINE_LOGPROBS_MAX);
    CHECK(fabsf(r->params.presence_penalty) <= 2 && fabsf(r->params.frequency_penalty) <= 2);
    CHECK(r->params.repetition_penalty > 0 && r->params.repetition_penalty <= 100);
    for (int32_t i = 0; i < r->params.bias_count; i++)
        CHECK(r->bias[i].token >= 0 && r->bias[i].token < VOCAB && fabsf(r->bias[i].value) <= 100);
    for (int32_t i = 0; i < r->params.stop_id_count; i++)
        CHECK(r->stop_ids[i] >= 0 && r->stop_ids[i] < VOCAB);
    CHECK(r->stop_count >= 0);
    CHECK(r->stop_count <= COMPLETION_STOP_MAX);
    CHECK(has_tokenizer || r->stop_count == 0);
    for (int32_t i = 0; i < r->stop_count; i++) {
        CHECK(r->stop[i].len >= 1);
        CHECK(r->stop[i].len <= FIELD_WORD_BYTES_MAX);
    }
}

static void check_prompts(const struct completion_request *r, bool has_tokenizer)
{
    struct api_error e = {0};
    for (int32_t i = 0; i < r->prompt_count; i++) {
        const struct completion_prompt *p = &r->prompts[i];
        CHECK((p->text.bytes != NULL) != (p->ids != NULL));
        CHECK(has_tokenizer || !p->text.bytes);
        CHECK(!p->text.bytes || p->text.bytes[p->text.len] == '\0');
        for (int32_t k = 0; k < p->count; k++)
            CHECK(p->ids[k] >= 0 && p->ids[k] < VOCAB);
        struct completion_prompt copy = *p;
        if (copy.ids && completion_prompt_fit(r, &copy, CONTEXT, &e) == OK)
            CHECK((int64_t)copy.count + r->params.max_tokens <= CONTEXT);
    }
}

static void check_refused(enum status st, const struct api_error *e)
{
    struct buf b;
    struct jdoc *doc = NULL;
    struct err err = {""};
    CHECK(st == ERR_INPUT || st == ERR_NOMEM);
    CHECK(e->http_status == 400 || e->http_status == 404 || st == ERR_NOMEM);
    buf_init(&b, 1 << 16);
    for (int form = 0; form < 2; form++) {
        if (form == 0)
            api_error_write(e, &b);
        else
            api_error_write_anthropic(e, "r", &b);
        CHECK(!b.failed);
        CHECK(jdoc_parse(b.data, b.len, &jdoc_limits_request, "error", &doc, &err) == OK);
        jdoc_close(doc);
        buf_clear(&b);
    }
    buf_free(&b);
}

static void run_completion(const char *text, size_t n, const struct completion_rules *rules)
{
    struct completion_request r;
    struct api_error e = {0};
    enum status st = completion_parse(text, n, rules, &r, &e);
    if (st != OK) {
        check_refused(st, &e);
        return;
    }
    check_accepted(&r, rules->has_tokenizer);
    check_prompts(&r, rules->has_tokenizer);
    completion_forget_text(&r);
    completion_free(&r);
}

/* What a request for vectors has beside its prompts. */
static void run_embedding(const char *text, size_t n, const struct completion_rules *rules)
{
    struct completion_request r;
    struct api_error e = {0};
    enum status st = embedding_parse(text, n, rules, &r, &e);
    if (st != OK) {
        check_refused(st, &e);
        return;
    }
    check_accepted(&r, rules->has_tokenizer);
    check_prompts(&r, rules->has_tokenizer);
    CHECK(r.params.pooled && r.params.max_tokens == 0);
    CHECK(r.truncate >= -1);
    CHECK(r.vector.dimensions >= 0 && r.vector.dimensions <= rules->columns);
    completion_forget_text(&r);
    completion_free(&r);
}

/* Every message has a role and a content, and templates get each variable once. Instructions are
 * one message more. parts: a content may be a list of them. */
static void check_conversation(const struct conversation *c, size_t messages_max, bool parts)
{
    const struct jdoc *messages = jdoc_get(c->vars, "messages");
    CHECK(jdoc_size(messages) >= 1 && jdoc_size(messages) <= messages_max + 1);
    for (size_t i = 0; i < jdoc_size(messages); i++) {
        const struct jdoc *m = jdoc_at(messages, i), *content = jdoc_get(m, "content");
        CHECK(jdoc_type(jdoc_get(m, "role")) == JDOC_STRING);
        CHECK(jdoc_type(content) == JDOC_STRING || jdoc_get(m, "tool_calls") ||
              (parts && jdoc_type(content) == JDOC_ARRAY && jdoc_size(content) > 0));
    }
    CHECK(jdoc_type(jdoc_get(c->vars, "add_generation_prompt")) == JDOC_BOOL);
    CHECK(!c->mark || !jdoc_bool(jdoc_get(c->vars, "add_generation_prompt")));
}

/* What the answer says again of the request is members of an object, each with a comma in front. */
static void check_repeated(const struct buf *repeated)
{
    struct buf b;
    struct jdoc *doc = NULL;
    struct err err = {""};
    CHECK(!repeated->failed && repeated->len > 0);
    buf_init(&b, (size_t)128 << 20);
    buf_puts(&b, "{\"id\":1");
    buf_add(&b, repeated->data, repeated->len);
    buf_puts(&b, "}");
    CHECK(jdoc_parse(b.data, b.len, &jdoc_limits_call, "repeated", &doc, &err) == OK ||
          strstr(err.text, "NUL"));
    jdoc_close(doc);
    buf_free(&b);
}

typedef enum status parser(const char *text, size_t n, const struct completion_rules *rules,
                           struct chat_request *out, struct api_error *e);

static void run_chat(parser *parse, const char *text, size_t n,
                     const struct completion_rules *rules)
{
    struct chat_request r;
    struct api_error e = {0};
    enum status st = parse(text, n, rules, &r, &e);
    if (st != OK) {
        check_refused(st, &e);
        return;
    }
    check_accepted(&r.completion, rules->has_tokenizer);
    CHECK(r.completion.prompt_count == 1 && r.completion.params.max_tokens >= 1);
    CHECK(!r.completion.answer_begin.failed);
    /* each result of a tool is a message of its own */
    const bool blocks = parse == messages_parse || parse == messages_parse_count;
    check_conversation(&r.conversation,
                       (size_t)CONVERSATION_MESSAGES_MAX * (blocks ? CONVERSATION_PARTS_MAX : 1),
                       rules->answer.thought_parts);
    if (parse == responses_parse)
        check_repeated(&r.completion.repeated);
    chat_free(&r);
}

static void run_tokenize(const char *text, size_t n, const struct completion_rules *rules)
{
    struct tokenize_request r;
    struct api_error e = {0};
    enum status st = tokenize_parse(text, n, rules, &r, &e);
    if (st != OK) {
        check_refused(st, &e);
        return;
    }
    CHECK(!r.text.bytes != !r.conversation.vars);
    CHECK(!r.text.bytes || r.text.bytes[r.text.len] == '\0');
    if (r.conversation.vars)
        check_conversation(&r.conversation, CONVERSATION_MESSAGES_MAX, false);
    tokenize_free(&r);
}

static void run_detokenize(const char *text, size_t n, const struct completion_rules *rules)
{
    struct detokenize_request r;
    struct api_error e = {0};
    enum status st = tokenize_parse_ids(text, n, rules, &r, &e);
    if (st != OK) {
        check_refused(st, &e);
        return;
    }
    for (int32_t i = 0; i < r.count; i++)
        CHECK(r.ids[i] >= 0 && r.ids[i] < VOCAB);
    tokenize_free_ids(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"demo"};
    struct completion_rules rules = {
        .model_names = names,
        .model_name_count = 1,
        .vocab = VOCAB,
        .max_model_len = CONTEXT,
        .has_tokenizer = true,
        .answer = {.calls = ANSWER_CALLS_HERMES},
        .defaults = model_config_no_defaults(),
    };
    char *copy = malloc(size ? size : 1); /* exactly as long, so that the sanitizer sees its end */
    if (!copy)
        return 0;
    if (size > 0)
        memcpy(copy, data, size);
    run_completion(copy, size, &rules);
    run_chat(chat_parse, copy, size, &rules);
    run_chat(responses_parse, copy, size, &rules);
    run_chat(messages_parse, copy, size, &rules);
    run_chat(messages_parse_count, copy, size, &rules);
    run_tokenize(copy, size, &rules);
    run_detokenize(copy, size, &rules);
    rules.answer.thought_parts = rules.answer.system_thoughts = true;
    run_chat(chat_parse, copy, size, &rules);
    run_chat(messages_parse, copy, size, &rules);
    rules.columns = COLUMNS;
    run_embedding(copy, size, &rules);
    rules.has_tokenizer = false;
    run_embedding(copy, size, &rules);
    rules.columns = 0;
    run_completion(copy, size, &rules);
    free(copy);
    return 0;
}
