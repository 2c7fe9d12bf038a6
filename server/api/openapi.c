/* DESIGN: request bodies come from the tables that check them; answers are a table here, which the
 * tests hold real answers against. */
#include "server/api/openapi.h"

#include "server/api/chat.h"
#include "server/api/embedding.h"
#include "server/api/messages.h"
#include "server/api/responses.h"
#include "server/api/tokenize.h"

#include <string.h>

#define REF(name) "{\"$ref\":\"#/components/schemas/" name "\"}"
#define LIST(item) "{\"type\":\"array\",\"items\":" item "}"

#define BYTES                                                                                      \
    "{\"type\":[\"array\",\"null\"],\"items\":{\"type\":\"integer\",\"minimum\":0,"                \
    "\"maximum\":255}}"

#define ITEM_STATUS "{\"enum\":[\"completed\",\"incomplete\"]}"

static const char string[] = "{\"type\":\"string\"}";
static const char string_or_null[] = "{\"type\":[\"string\",\"null\"]}";
static const char count[] = "{\"type\":\"integer\",\"minimum\":0}";
static const char counts[] = LIST("{\"type\":\"integer\",\"minimum\":0}");

/* What answers are made of. Rows of one schema follow each other; what is not required is there
 * only when it was asked for. */
static const struct property {
    const char *schema, *name, *type;
    bool required;
} properties[] = {
    {"Error", "error", REF("ErrorBody"), true},
    {"ErrorBody", "message", string, true},
    {"ErrorBody", "type", string, true},
    {"ErrorBody", "param", string_or_null, true},
    {"ErrorBody", "code", string_or_null, true},
    {"AnthropicError", "type", "{\"const\":\"error\"}", true},
    {"AnthropicError", "error", REF("AnthropicErrorBody"), true},
    {"AnthropicError", "request_id", string, true},
    {"AnthropicErrorBody", "type", string, true},
    {"AnthropicErrorBody", "message", string, true},
    {"UsageDetails", "cached_tokens", count, true},
    {"Usage", "prompt_tokens", count, true},
    {"Usage", "completion_tokens", count, true},
    {"Usage", "total_tokens", count, true},
    {"Usage", "prompt_tokens_details", REF("UsageDetails"), true},
    {"Logprobs", "tokens", LIST("{\"type\":\"string\"}"), true},
    {"Logprobs", "token_logprobs", LIST("{\"type\":[\"number\",\"null\"],\"maximum\":0}"), true},
    {"Logprobs", "top_logprobs",
     LIST("{\"type\":[\"object\",\"null\"],\"additionalProperties\":{\"type\":\"number\","
          "\"maximum\":0}}"),
     true},
    {"Logprobs", "text_offset", counts, true},
    {"Choice", "index", count, true},
    {"Choice", "text", string, true},
    {"Choice", "logprobs", "{\"anyOf\":[{\"type\":\"null\"}," REF("Logprobs") "]}", true},
    {"Choice", "finish_reason", "{\"enum\":[\"stop\",\"length\"]}", true},
    {"Choice", "stop_reason", "{\"type\":[\"string\",\"integer\",\"null\"]}", true},
    {"Choice", "prompt_logprobs", LIST("{\"type\":[\"object\",\"null\"]}"), false},
    {"Choice", "token_ids", counts, false},
    {"Choice", "prompt_token_ids", counts, false},
    {"Completion", "id", string, true},
    {"Completion", "object", "{\"const\":\"text_completion\"}", true},
    {"Completion", "created", count, true},
    {"Completion", "model", string, true},
    {"Completion", "system_fingerprint", string, true},
    {"Completion", "choices", LIST(REF("Choice")), true},
    {"Completion", "usage", REF("Usage"), true},
    {"Embedding", "object", "{\"const\":\"embedding\"}", true},
    {"Embedding", "index", count, true},
    {"Embedding", "embedding",
     "{\"anyOf\":[{\"type\":\"string\"}," LIST("{\"type\":\"number\"}") "]}", true},
    {"Embeddings", "id", string, true},
    {"Embeddings", "object", "{\"const\":\"list\"}", true},
    {"Embeddings", "created", count, true},
    {"Embeddings", "model", string, true},
    {"Embeddings", "system_fingerprint", string, true},
    {"Embeddings", "data", LIST(REF("Embedding")), true},
    {"Embeddings", "usage", REF("Usage"), true},
    {"ChatTopLogprob", "token", string, true},
    {"ChatTopLogprob", "logprob", "{\"type\":\"number\",\"maximum\":0}", true},
    {"ChatTopLogprob", "bytes", BYTES, true},
    {"ChatLogprob", "token", string, true},
    {"ChatLogprob", "logprob", "{\"type\":\"number\",\"maximum\":0}", true},
    {"ChatLogprob", "bytes", BYTES, true},
    {"ChatLogprob", "top_logprobs", LIST(REF("ChatTopLogprob")), true},
    {"ChatLogprobs", "content", LIST(REF("ChatLogprob")), true},
    {"ChatMessage", "role", "{\"const\":\"assistant\"}", true},
    {"ChatMessage", "content", string, true},
    {"ChatMessage", "refusal", "{\"type\":\"null\"}", true},
    {"ChatChoice", "index", count, true},
    {"ChatChoice", "message", REF("ChatMessage"), true},
    {"ChatChoice", "logprobs", "{\"anyOf\":[{\"type\":\"null\"}," REF("ChatLogprobs") "]}", true},
    {"ChatChoice", "finish_reason", "{\"enum\":[\"stop\",\"length\"]}", true},
    {"ChatChoice", "stop_reason", "{\"type\":[\"string\",\"integer\",\"null\"]}", true},
    {"ChatChoice", "token_ids", counts, false},
    {"ChatCompletion", "id", string, true},
    {"ChatCompletion", "object", "{\"const\":\"chat.completion\"}", true},
    {"ChatCompletion", "created", count, true},
    {"ChatCompletion", "model", string, true},
    {"ChatCompletion", "system_fingerprint", string, true},
    {"ChatCompletion", "prompt_token_ids", counts, false},
    {"ChatCompletion", "prompt_logprobs", LIST("{\"type\":[\"object\",\"null\"]}"), false},
    {"ChatCompletion", "choices", LIST(REF("ChatChoice")), true},
    {"ChatCompletion", "usage", REF("Usage"), true},
    {"ResponseTopLogprob", "token", string, true},
    {"ResponseTopLogprob", "logprob", "{\"type\":\"number\",\"maximum\":0}", true},
    {"ResponseTopLogprob", "bytes", counts, true},
    {"ResponseLogprob", "token", string, true},
    {"ResponseLogprob", "logprob", "{\"type\":\"number\",\"maximum\":0}", true},
    {"ResponseLogprob", "bytes", counts, true},
    {"ResponseLogprob", "top_logprobs", LIST(REF("ResponseTopLogprob")), true},
    {"ResponseText", "type", "{\"const\":\"output_text\"}", true},
    {"ResponseText", "text", string, true},
    {"ResponseText", "annotations", "{\"type\":\"array\",\"maxItems\":0}", true},
    {"ResponseText", "logprobs", LIST(REF("ResponseLogprob")), true},
    {"ResponseMessage", "id", string, true},
    {"ResponseMessage", "type", "{\"const\":\"message\"}", true},
    {"ResponseMessage", "status", ITEM_STATUS, true},
    {"ResponseMessage", "role", "{\"const\":\"assistant\"}", true},
    {"ResponseMessage", "content", LIST(REF("ResponseText")), true},
    {"ResponseThought", "type", "{\"const\":\"reasoning_text\"}", true},
    {"ResponseThought", "text", string, true},
    {"ResponseReasoning", "id", string, true},
    {"ResponseReasoning", "type", "{\"const\":\"reasoning\"}", true},
    {"ResponseReasoning", "status", ITEM_STATUS, true},
    {"ResponseReasoning", "summary", "{\"type\":\"array\",\"maxItems\":0}", true},
    {"ResponseReasoning", "content", LIST(REF("ResponseThought")), true},
    {"ResponseCall", "id", string, true},
    {"ResponseCall", "type", "{\"const\":\"function_call\"}", true},
    {"ResponseCall", "status", ITEM_STATUS, true},
    {"ResponseCall", "call_id", string, true},
    {"ResponseCall", "name", string, true},
    {"ResponseCall", "arguments", string, true},
    {"ResponseOutputDetails", "reasoning_tokens", count, true},
    {"ResponseInputDetails", "cached_tokens", count, true},
    {"ResponseInputDetails", "cache_write_tokens", count, true},
    {"ResponseUsage", "input_tokens", count, true},
    {"ResponseUsage", "input_tokens_details", REF("ResponseInputDetails"), true},
    {"ResponseUsage", "output_tokens", count, true},
    {"ResponseUsage", "output_tokens_details", REF("ResponseOutputDetails"), true},
    {"ResponseUsage", "total_tokens", count, true},
    {"ResponseIncomplete", "reason", "{\"const\":\"max_output_tokens\"}", true},
    {"ResponseFormat", "type", "{\"enum\":[\"text\",\"json_object\",\"json_schema\"]}", true},
    {"ResponseTextConfig", "format", REF("ResponseFormat"), true},
    {"ResponseEffort", "effort", string_or_null, true},
    {"ResponseEffort", "summary", "{\"type\":\"null\"}", true},
    {"ResponseTool", "type", "{\"const\":\"function\"}", true},
    {"ResponseTool", "name", string, true},
    {"Response", "id", string, true},
    {"Response", "object", "{\"const\":\"response\"}", true},
    {"Response", "created_at", count, true},
    {"Response", "model", string, true},
    {"Response", "status", "{\"enum\":[\"completed\",\"incomplete\"]}", true},
    {"Response", "incomplete_details",
     "{\"anyOf\":[{\"type\":\"null\"}," REF("ResponseIncomplete") "]}", true},
    {"Response", "error", "{\"type\":\"null\"}", true},
    {"Response", "output",
     LIST("{\"anyOf\":[" REF("ResponseMessage") "," REF("ResponseReasoning") "," REF(
         "ResponseCall") "]}"),
     true},
    {"Response", "usage", REF("ResponseUsage"), true},
    {"Response", "instructions", string_or_null, true},
    {"Response", "metadata", "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}}",
     true},
    {"Response", "max_output_tokens", "{\"type\":[\"integer\",\"null\"],\"minimum\":1}", true},
    {"Response", "temperature", "{\"type\":\"number\",\"minimum\":0,\"maximum\":2}", true},
    {"Response", "top_p", "{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}", true},
    {"Response", "top_logprobs", count, true},
    {"Response", "parallel_tool_calls", "{\"type\":\"boolean\"}", true},
    {"Response", "tools", LIST(REF("ResponseTool")), true},
    {"Response", "tool_choice", "{\"type\":[\"string\",\"object\"]}", true},
    {"Response", "text", REF("ResponseTextConfig"), true},
    {"Response", "reasoning", REF("ResponseEffort"), true},
    {"Response", "truncation", "{\"const\":\"disabled\"}", true},
    {"Response", "store", "{\"const\":false}", true},
    {"Response", "background", "{\"const\":false}", true},
    {"Response", "previous_response_id", "{\"type\":\"null\"}", true},
    {"Response", "user", "{\"type\":\"null\"}", true},
    {"MessageText", "type", "{\"const\":\"text\"}", true},
    {"MessageText", "text", string, true},
    {"MessageThinking", "type", "{\"const\":\"thinking\"}", true},
    {"MessageThinking", "thinking", string, true},
    {"MessageThinking", "signature", "{\"const\":\"\"}", true},
    {"MessageToolUse", "type", "{\"const\":\"tool_use\"}", true},
    {"MessageToolUse", "id", string, true},
    {"MessageToolUse", "name", string, true},
    {"MessageToolUse", "input", "{\"type\":\"object\"}", true},
    {"MessageOutputDetails", "thinking_tokens", count, true},
    {"MessageUsage", "input_tokens", count, true},
    {"MessageUsage", "cache_creation_input_tokens", "{\"const\":0}", true},
    {"MessageUsage", "cache_read_input_tokens", count, true},
    {"MessageUsage", "output_tokens", count, true},
    {"MessageUsage", "output_tokens_details", REF("MessageOutputDetails"), false},
    {"Message", "id", string, true},
    {"Message", "type", "{\"const\":\"message\"}", true},
    {"Message", "role", "{\"const\":\"assistant\"}", true},
    {"Message", "model", string, true},
    {"Message", "content",
     LIST("{\"anyOf\":[" REF("MessageText") "," REF("MessageThinking") "," REF(
         "MessageToolUse") "]}"),
     true},
    {"Message", "stop_reason",
     "{\"enum\":[\"end_turn\",\"max_tokens\",\"stop_sequence\",\"tool_use\","
     "\"model_context_window_exceeded\"]}",
     true},
    {"Message", "stop_sequence", string_or_null, true},
    {"Message", "usage", REF("MessageUsage"), true},
    {"MessageTokens", "input_tokens", count, true},
    {"Model", "id", string, true},
    {"Model", "object", "{\"const\":\"model\"}", true},
    {"Model", "created", count, true},
    {"Model", "owned_by", string, true},
    {"Model", "root", string, true},
    {"Model", "parent", string_or_null, true},
    {"Model", "max_model_len", count, true},
    {"Models", "object", "{\"const\":\"list\"}", true},
    {"Models", "data", LIST(REF("Model")), true},
    {"Tokens", "count", count, true},
    {"Tokens", "max_model_len", count, true},
    {"Tokens", "tokens", counts, true},
    {"Tokens", "token_strs", "{\"type\":[\"array\",\"null\"],\"items\":{\"type\":\"string\"}}",
     true},
    {"Text", "prompt", string, true},
    {"Text", "content", string, true},
    {"TokenizerInfo", "tokenizer_class", string, true},
    {"TokenizerInfo", "bos_token", string_or_null, true},
    {"TokenizerInfo", "eos_token", string_or_null, true},
    {"TokenizerInfo", "chat_template", string_or_null, true},
    {"Status", "status", string, true},
    {"Startup", "phase", string, true},
    {"Startup", "bytes_done", count, true},
    {"Startup", "bytes_total", count, true},
    {"Startup", "ranks_done", count, true},
    {"Startup", "ranks", count, true},
    {"Startup", "elapsed_seconds", "{\"type\":\"number\",\"minimum\":0}", true},
    {"Startup", "eta_seconds", "{\"type\":[\"number\",\"null\"],\"minimum\":0}", true},
    {"Version", "version", string, true},
};

/* What an operation may answer besides 200. */
enum {
    BAD = 1,
    UNKNOWN = 2,
    BODY = 4,
    BUSY = 8,
    TOKENIZER = 16,
    READY = 32,
    MODEL_PATH = 64,
    PROGRESS = 128,  /* 503 with the same schema as 200 */
    VALUES = 256,    /* of the model, not finite */
    ANTHROPIC = 512, /* in the form that Anthropic's clients read */
    WHOLE = 1024     /* never a stream */
};

static const struct operation {
    const char *path, *method, *id, *summary, *answer; /* schema; NULL: plain text */
    int may;
} operations[] = {
    {"/v1/completions", "post", "complete", "Continues prompts", "Completion",
     BAD | UNKNOWN | BODY | BUSY | READY | VALUES},
    {"/v1/chat/completions", "post", "chat", "Answers a conversation", "ChatCompletion",
     BAD | UNKNOWN | BODY | BUSY | READY | VALUES},
    {"/v1/responses", "post", "respond", "Answers a conversation, as items", "Response",
     BAD | UNKNOWN | BODY | BUSY | READY | VALUES},
    {"/v1/messages", "post", "message", "Answers a conversation, as Anthropic's API has it",
     "Message", BAD | UNKNOWN | BODY | BUSY | READY | VALUES | ANTHROPIC},
    {"/v1/messages/count_tokens", "post", "countTokens", "Counts the tokens of such a request",
     "MessageTokens", BAD | UNKNOWN | BODY | BUSY | ANTHROPIC},
    {"/v1/embeddings", "post", "embed", "A vector of each input, with --runner pooling",
     "Embeddings", BAD | UNKNOWN | BODY | BUSY | READY | VALUES | WHOLE},
    {"/tokenize", "post", "tokenize", "Text to token ids", "Tokens",
     BAD | UNKNOWN | BODY | BUSY | TOKENIZER},
    {"/detokenize", "post", "detokenize", "Token ids to text", "Text",
     BAD | UNKNOWN | BODY | BUSY | TOKENIZER},
    {"/tokenizer_info", "get", "tokenizerInfo", "tokenizer_config.json", "TokenizerInfo",
     TOKENIZER},
    {"/v1/models", "get", "listModels", "What is served", "Models", 0},
    {"/v1/models/{model}", "get", "getModel", "One of them", "Model", UNKNOWN | MODEL_PATH},
    {"/health", "get", "health", "200 when requests are welcome", "Status", READY},
    {"/readyz", "get", "ready", "200 when requests are welcome", "Status", READY},
    {"/startupz", "get", "startup", "How far it has loaded; 200 once it has been ready", "Startup",
     PROGRESS},
    {"/livez", "get", "live", "200 while the server runs", "Status", 0},
    {"/version", "get", "version", "Version of the server", "Version", 0},
    {"/metrics", "get", "metrics", "Counters for Prometheus", NULL, 0},
};

static void write_error_schema(int may, bool in_head, struct buf *out)
{
    if (!(may & ANTHROPIC))
        buf_puts(out, REF("Error"));
    else if (in_head)
        buf_puts(out, "{\"anyOf\":[" REF("AnthropicError") "," REF("Error") "]}");
    else
        buf_puts(out, REF("AnthropicError"));
}

static void write_errors(int may, struct buf *out)
{
    static const struct {
        int flag;
        const char *status, *meaning;
        bool in_head; /* may be found before there is a path */
    } errors[] = {
        {BAD, "400", "A field is wrong: its name, its value and the limit", true},
        {UNKNOWN, "404", "No such model", false},
        {BODY, "411", "The length of the body is not said", true},
        {BODY, "413", "The body is too large", false},
        {BODY, "415", "The body is compressed, or not JSON", true},
        {BUSY, "429", "Too many requests wait; Retry-After says when to come back", false},
        {VALUES, "500", "The model computed NaN or infinity", false},
        {TOKENIZER, "501", "The model came without a tokenizer", false},
        {BUSY | READY, "503", "Loading, draining, out of memory, or a rank is lost", false},
    };
    for (size_t i = 0; i < ARRAY_LEN(errors); i++)
        if (may & errors[i].flag) {
            buf_printf(out,
                       ",\"%s\":{\"description\":\"%s\",\"content\":{\"application/json\":"
                       "{\"schema\":",
                       errors[i].status, errors[i].meaning);
            write_error_schema(may, errors[i].in_head, out);
            buf_puts(out, "}}}");
        }
}

static void write_request(const char *path, const struct completion_rules *rules, struct buf *out)
{
    buf_puts(out, ",\"requestBody\":{\"required\":true,\"content\":{\"application/json\":"
                  "{\"schema\":");
    if (strcmp(path, "/tokenize") == 0)
        tokenize_schema(rules->vocab, out);
    else if (strcmp(path, "/detokenize") == 0)
        tokenize_id_schema(rules->vocab, out);
    else if (strcmp(path, "/v1/chat/completions") == 0)
        chat_schema(rules, out);
    else if (strcmp(path, "/v1/responses") == 0)
        responses_schema(rules, out);
    else if (strcmp(path, "/v1/messages") == 0)
        messages_schema(rules, out);
    else if (strcmp(path, "/v1/messages/count_tokens") == 0)
        messages_count_schema(rules, out);
    else if (strcmp(path, "/v1/embeddings") == 0)
        embedding_schema(rules, out);
    else
        completion_schema(rules, out);
    buf_puts(out, "}}}");
}

static void write_operation(const struct operation *o, const struct completion_rules *rules,
                            struct buf *out)
{
    buf_printf(out, "\"%s\":{\"%s\":{\"operationId\":\"%s\",\"summary\":\"%s\"", o->path, o->method,
               o->id, o->summary);
    if (o->may & MODEL_PATH)
        buf_puts(out, ",\"parameters\":[{\"name\":\"model\",\"in\":\"path\",\"required\":true,"
                      "\"schema\":{\"type\":\"string\"}}]");
    if (o->may & BODY)
        write_request(o->path, rules, out);
    buf_puts(out, ",\"responses\":{\"200\":{\"description\":\"Done\",\"content\":{");
    if (o->answer)
        buf_printf(out, "\"application/json\":{\"schema\":" REF("%s") "}", o->answer);
    else
        buf_printf(out, "\"text/plain\":{\"schema\":%s}", string);
    if (o->may & READY && o->may & BODY && !(o->may & WHOLE))
        buf_puts(out, ",\"text/event-stream\":{}");
    buf_puts(out, "}}");
    if (o->may & PROGRESS)
        buf_printf(out,
                   ",\"503\":{\"description\":\"Loading, or a rank is lost\",\"content\":{"
                   "\"application/json\":{\"schema\":" REF("%s") "}}}",
                   o->answer);
    write_errors(o->may, out);
    buf_puts(out, "}}}");
}

/* One schema: the rows from i on that have its name. Returns where the next begins. */
static size_t write_schema(size_t i, struct buf *out)
{
    const char *name = properties[i].schema;
    const char *separator = "";
    size_t end = i;
    buf_printf(out, "\"%s\":{\"type\":\"object\",\"properties\":{", name);
    for (; end < ARRAY_LEN(properties) && strcmp(properties[end].schema, name) == 0; end++)
        buf_printf(out, "%s\"%s\":%s", end > i ? "," : "", properties[end].name,
                   properties[end].type);
    buf_puts(out, "},\"required\":[");
    for (; i < end; i++) {
        if (!properties[i].required)
            continue;
        buf_printf(out, "%s\"%s\"", separator, properties[i].name);
        separator = ",";
    }
    buf_puts(out, "]}");
    return end;
}

void openapi_write(const struct completion_rules *rules, const char *version, struct buf *out)
{
    buf_puts(out, "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"Tessera\",\"version\":");
    buf_json(out, version, strlen(version));
    buf_puts(out, "},\"paths\":{");
    for (size_t i = 0; i < ARRAY_LEN(operations); i++) {
        buf_puts(out, i ? "," : "");
        write_operation(&operations[i], rules, out);
    }
    buf_puts(out, "},\"components\":{\"schemas\":{");
    for (size_t i = 0; i < ARRAY_LEN(properties);) {
        buf_puts(out, i ? "," : "");
        i = write_schema(i, out);
    }
    buf_puts(out, "}}}");
}
