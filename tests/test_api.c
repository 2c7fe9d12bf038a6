/* The request of /v1/completions at and beyond every limit, and what goes back, read by jdoc again.
 */
#include "config/buf.h"
#include "config/utf8.h"
#include "server/api/completion.h"
#include "server/api/completion_reply.h"
#include "server/api/field.h"
#include "tests/scratch.h"

#include <math.h>
#include <string.h>

static const char *const model_names[] = {"demo", "other/name"};
static const struct completion_rules rules = {
    .model_names = model_names,
    .model_name_count = 2,
    .vocab = 100,
    .max_model_len = 64,
    .has_tokenizer = true,
    .defaults = {NAN, NAN, NAN, NAN, -1},
};

static enum status parse_with(const char *text, const struct completion_rules *with,
                              struct completion_request *r, struct api_error *e)
{
    struct completion_request before;
    memset(r, 0x5a, sizeof *r);
    memcpy(&before, r, sizeof before);
    memset(e, 0, sizeof *e);
    enum status st = completion_parse(text, strlen(text), with, r, e);
    if (st != OK) {
        assert_memory_equal(r, &before, sizeof before); /* untouched */
        assert_true(e->http_status >= 400);
        assert_true(e->message[0] != '\0');
    }
    return st;
}

/* "prompt" and one field with a value; OK or the error. */
static enum status parse_field(const char *name, const char *value, struct completion_request *r,
                               struct api_error *e)
{
    char text[512];
    snprintf(text, sizeof text, "{\"prompt\": [1], \"%s\": %s}", name, value);
    return parse_with(text, &rules, r, e);
}

static void accept(const char *name, const char *value)
{
    struct completion_request r;
    struct api_error e;
    if (parse_field(name, value, &r, &e) != OK)
        fail_msg("%s = %s refused: %s", name, value, e.message);
    completion_free(&r);
}

/* The message must name the field, and hold words. */
static void refuse(const char *name, const char *value, const char *code, const char *words)
{
    struct completion_request r;
    struct api_error e;
    if (parse_field(name, value, &r, &e) == OK)
        fail_msg("%s = %s accepted", name, value);
    if (e.http_status != 400 || strcmp(e.param, name) != 0 || !strstr(e.message, name) ||
        !strstr(e.message, words))
        fail_msg("%s = %s: %d, param %s: %s", name, value, e.http_status, e.param, e.message);
    assert_string_equal(e.type, "invalid_request_error");
    if (code)
        assert_string_equal(e.code, code);
    else
        assert_null(e.code);
}

/* ---- the table ---- */

struct range {
    const char *name, *below, *min, *max, *above;
    bool whole;
};

static const struct range ranges[] = {
    {"max_tokens", "-1", "0", "2147483647", "2147483648", true},
    {"n", "0", "1", "128", "129", true},
    {"top_k", "-2", "-1", "2147483647", "2147483648", true},
    {"seed", NULL, "-9223372036854775808", "9223372036854775807", NULL, true},
    {"temperature", "-0.001", "0", "2", "2.001", false},
    {"top_p", "0", "1e-9", "1", "1.001", false},
    {"min_p", "-0.001", "0", "1", "1.001", false},
    {"presence_penalty", "-2.001", "-2", "2", "2.001", false},
    {"frequency_penalty", "-2.001", "-2", "2", "2.001", false},
    {"repetition_penalty", "0", "0.001", "100", "100.001", false},
    {"logprobs", "-1", "0", "20", "21", true},
    {"prompt_logprobs", "-1", "0", "20", "21", true},
    {"min_tokens", "-1", "0", "16", "2147483648", true},
    {"truncate_prompt_tokens", "-2", "-1", "2147483647", "2147483648", true},
    {"priority", "-2147483649", "-2147483648", "2147483647", "2147483648", true},
};

static void test_ranges(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(ranges); i++) {
        const struct range *r = &ranges[i];
        accept(r->name, r->min);
        accept(r->name, r->max);
        accept(r->name, "null");
        accept(r->name, "1.0");
        if (r->below)
            refuse(r->name, r->below, NULL, r->below);
        if (r->above)
            refuse(r->name, r->above, NULL, r->above);
        if (r->above) {
            refuse(r->name, "9223372036854775807", NULL, "9223372036854775807");
            refuse(r->name, "1e300", NULL, "1e+300");
        }
        refuse(r->name, "9223372036854775808", NULL, "64 bits");
        refuse(r->name, "\"1\"", NULL, "\"1\"");
        refuse(r->name, "[]", NULL, "array");
        refuse(r->name, "{}", NULL, "object");
        refuse(r->name, "true", NULL, "true");
        if (r->whole)
            refuse(r->name, "1.5", NULL, "whole");
    }
}

static void test_not_numbers(void **state)
{
    static const char *const texts[] = {"NaN", "Infinity", "-Infinity", "1e999", "01", "+1", "0x1"};
    struct completion_request r;
    struct api_error e;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        assert_int_equal(parse_field("temperature", texts[i], &r, &e), ERR_INPUT);
        assert_int_equal(e.http_status, 400);
        assert_string_equal(e.code, "invalid_json");
    }
    accept("temperature", "-0.0");
    accept("max_tokens", "-0");
}

static void test_booleans(void **state)
{
    static const char *const fields[] = {"stream",
                                         "ignore_eos",
                                         "return_token_ids",
                                         "add_special_tokens",
                                         "echo",
                                         "skip_special_tokens",
                                         "include_stop_str_in_output",
                                         "return_tokens_as_token_ids"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        accept(fields[i], "true");
        accept(fields[i], "false");
        accept(fields[i], "null");
        refuse(fields[i], "1", NULL, "boolean");
        refuse(fields[i], "\"true\"", NULL, "boolean");
    }
}

/* What asks for nothing is fine, what asks for something is refused by name. */
static void test_unsupported(void **state)
{
    static const struct {
        const char *name, *neutral, *other;
    } fields[] = {
        {"suffix", "\"\"", "\"x\""},
        {"allowed_token_ids", "[]", "[1]"},
        {"best_of", "1", "2"},
        {"guided_grammar", "\"\"", "\"root ::= a\""},
        {"use_beam_search", "false", "true"},
        {"length_penalty", "1.0", "2"},
        {"prompt_embeds", NULL, "\"aaaa\""},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        accept(fields[i].name, "null");
        if (fields[i].neutral)
            accept(fields[i].name, fields[i].neutral);
        refuse(fields[i].name, fields[i].other, "unsupported_parameter", "supported");
    }
    accept("user", "\"me\"");
    accept("metadata", "{\"a\": [1]}");
}

/* ---- forms ---- */

static void test_defaults(void **state)
{
    struct completion_rules with = rules;
    struct completion_request r;
    struct api_error e;
    (void)state;
    assert_int_equal(parse_with("{\"prompt\": \"x\"}", &rules, &r, &e), OK);
    assert_int_equal(r.params.max_tokens, 16);
    assert_int_equal(r.n, 1);
    assert_true(r.params.temperature == 1 && r.params.top_p == 1 && r.params.min_p == 0);
    assert_int_equal(r.params.top_k, 0);
    assert_false(r.has_seed || r.stream || r.include_usage || r.params.ignore_eos ||
                 r.return_token_ids);
    assert_true(r.add_special_tokens);
    assert_int_equal(r.stop_count, 0);
    completion_free(&r);
    with.defaults = (struct generation_defaults){0.5F, 0.25F, 0.125F, 1.5F, 7};
    assert_int_equal(parse_with("{\"prompt\": \"x\"}", &with, &r, &e), OK);
    assert_true(r.params.temperature == 0.5F && r.params.top_p == 0.25F && r.params.top_k == 7);
    assert_true(r.params.min_p == 0.125F && r.params.repetition_penalty == 1.5F);
    completion_free(&r);
    const char *all = "{\"prompt\": \"x\", \"temperature\": 0, \"top_p\": 0.75, \"top_k\": -1, "
                      "\"seed\": -1, \"n\": 8.0, \"model\": \"demo\"}";
    assert_int_equal(parse_with(all, &with, &r, &e), OK);
    assert_true(r.params.temperature == 0 && r.params.top_p == 0.75F && r.params.top_k == 0 &&
                r.n == 8);
    assert_true(r.has_seed && r.params.seed == UINT64_MAX);
    completion_free(&r);
}

static void test_prompts(void **state)
{
    static const struct {
        const char *text;
        int32_t count, ids; /* of the first */
    } good[] = {
        {"\"one\"", 1, 0},     {"[\"one\", \"two\"]", 2, 0},
        {"[5, 6.0, 7]", 1, 3}, {"[[5, 6], [7]]", 2, 2},
        {"[0, 99]", 1, 2},
    };
    static const char *const bad[] = {
        "null",       "7",
        "true",       "{}",
        "\"\"",       "[]",
        "[[]]",       "[\"\"]",
        "[-1]",       "[100]",
        "[1.5]",      "[1, null]",
        "[\"a\", 1]", "[1, \"a\"]",
        "[[1], 2]",   "[[1], \"a\"]",
        "[null]",     "[{}]",
        "[[\"a\"]]",  "[true]",
        "[1e300]",    "[1099511627776]",
    };
    struct completion_request r;
    struct api_error e;
    char text[256];
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        snprintf(text, sizeof text, "{\"prompt\": %s}", good[i].text);
        assert_int_equal(parse_with(text, &rules, &r, &e), OK);
        assert_int_equal(r.prompt_count, good[i].count);
        assert_int_equal(r.prompts[0].count, good[i].ids);
        assert_true((r.prompts[0].text.bytes != NULL) == (good[i].ids == 0));
        completion_forget_text(&r);
        assert_null(r.prompts[0].text.bytes);
        completion_free(&r);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        snprintf(text, sizeof text, "{\"prompt\": %s}", bad[i]);
        if (parse_with(text, &rules, &r, &e) == OK)
            fail_msg("prompt %s accepted", bad[i]);
        assert_string_equal(e.param, "prompt");
    }
    assert_int_equal(parse_with("{}", &rules, &r, &e), ERR_INPUT);
    assert_string_equal(e.param, "prompt");
}

/* A list of count copies of value in brackets. */
static const char *repeat(const char *value, int count)
{
    static char text[65536];
    size_t n = 0;
    for (int i = 0; i < count; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", i ? ", " : "[", value);
    snprintf(text + n, sizeof text - n, "]");
    return text;
}

static void test_many_prompts(void **state)
{
    struct completion_request r;
    struct api_error e;
    char text[70000];
    (void)state;
    const int most = COMPLETION_PROMPTS_MAX;
    for (int count = most; count <= most + 1; count++) {
        snprintf(text, sizeof text, "{\"prompt\": %s}", repeat("\"a\"", count));
        enum status st = parse_with(text, &rules, &r, &e);
        assert_int_equal(st, count == most ? OK : ERR_INPUT);
        if (st == OK)
            completion_free(&r);
        else
            assert_non_null(strstr(e.message, "2048"));
    }
}

static void test_stop(void **state)
{
    struct completion_request r;
    struct api_error e;
    char text[600], word[300];
    (void)state;
    accept("stop", "null");
    accept("stop", "[]");
    accept("stop", repeat("\"a\"", 16));
    refuse("stop", repeat("\"a\"", 17), NULL, "16");
    refuse("stop", "\"\"", NULL, "1 to 256");
    refuse("stop", "[\"a\", 1]", NULL, "string");
    refuse("stop", "5", NULL, "string");
    memset(word, 'x', sizeof word);
    for (int n = 256; n <= 257; n++) {
        snprintf(text, sizeof text, "\"%.*s\"", n, word);
        if (n == 256)
            accept("stop", text);
        else
            refuse("stop", text, NULL, "256");
    }
    assert_int_equal(parse_field("stop", "[\"a\\n\", \"b\"]", &r, &e), OK);
    assert_int_equal(r.stop_count, 2);
    assert_int_equal(r.stop[0].len, 2);
    assert_memory_equal(r.stop[0].bytes, "a\n", 2);
    completion_free(&r);
}

static void test_stream_options(void **state)
{
    struct completion_request r;
    struct api_error e;
    (void)state;
    const char *good =
        "{\"prompt\": [1], \"stream\": true, \"stream_options\": {\"include_usage\": "
        "true, \"include_obfuscation\": false, \"continuous_usage_stats\": true}}";
    assert_int_equal(parse_with(good, &rules, &r, &e), OK);
    assert_true(r.stream && r.include_usage && r.continuous_usage);
    completion_free(&r);
    refuse("stream_options", "{\"include_usage\": true}", NULL, "stream");
    accept("stream_options", "null");
    const char *bad =
        "{\"prompt\": [1], \"stream\": true, \"stream_options\": {\"include_usage\": 1}}";
    assert_int_equal(parse_with(bad, &rules, &r, &e), ERR_INPUT);
    assert_string_equal(e.param, "stream_options");
}

static void test_no_tokenizer(void **state)
{
    struct completion_rules with = rules;
    struct completion_request r;
    struct api_error e;
    (void)state;
    with.has_tokenizer = false;
    assert_int_equal(parse_with("{\"prompt\": \"x\"}", &with, &r, &e), ERR_INPUT);
    assert_string_equal(e.param, "prompt");
    assert_int_equal(parse_with("{\"prompt\": [1], \"stop\": \"x\"}", &with, &r, &e), ERR_INPUT);
    assert_string_equal(e.param, "stop");
}

static void test_model(void **state)
{
    struct completion_request r;
    struct api_error e;
    (void)state;
    accept("model", "\"demo\"");
    accept("model", "null");
    refuse("model", "1", NULL, "string");
    assert_int_equal(parse_field("model", "\"other\"", &r, &e), ERR_INPUT);
    assert_int_equal(e.http_status, 404);
    assert_string_equal(e.code, "model_not_found");
    assert_non_null(strstr(e.message, "other"));
    assert_non_null(strstr(e.message, "demo"));
}

static void test_unknown_fields(void **state)
{
    struct completion_request r;
    struct api_error e;
    (void)state;
    assert_int_equal(parse_field("frobnicate", "{\"a\": [1, 2]}", &r, &e), OK);
    assert_int_equal(r.unknown.count, 1);
    assert_string_equal(r.unknown.names[0], "frobnicate");
    completion_free(&r);
    assert_int_equal(
        parse_with("{\"prompt\": [1], \"a\": 1, \"b\": 1, \"c\": 1, \"d\": 1, \"e\": 1}", &rules,
                   &r, &e),
        OK);
    assert_int_equal(r.unknown.count, FIELD_UNKNOWN_MAX);
    completion_free(&r);
}

static void test_not_requests(void **state)
{
    static const char *const texts[] = {"",
                                        "{",
                                        "null",
                                        "[]",
                                        "\"x\"",
                                        "{} x",
                                        "{\"prompt\": \"\\ud800\"}",
                                        "{\"prompt\": \"\xff\"}",
                                        "{\"prompt\": \"a\", \"prompt\": 1}"};
    struct completion_request r;
    struct api_error e;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        assert_int_equal(parse_with(texts[i], &rules, &r, &e), ERR_INPUT);
        assert_string_equal(e.code, "invalid_json");
    }
}

static enum status fit(const struct completion_request *r, int32_t tokens, struct api_error *e)
{
    struct completion_prompt p = {.count = tokens};
    return completion_prompt_fit(r, &p, 64, e);
}

static void test_length(void **state)
{
    struct completion_request r = {.source = "prompt", .params.max_tokens = 10};
    struct api_error e = {0};
    (void)state;
    assert_int_equal(fit(&r, 54, &e), OK);
    assert_int_equal(fit(&r, 55, &e), ERR_INPUT);
    assert_string_equal(e.code, "context_length_exceeded");
    static const char wanted[] = "This model's maximum context length is 64 tokens. However, you "
                                 "requested 65 tokens (55 in the prompt, 10 for the completion)";
    assert_memory_equal(e.message, wanted, strlen(wanted));
    assert_string_equal(e.param, "max_tokens");
    assert_int_equal(fit(&r, 63, &e), ERR_INPUT);
    assert_string_equal(e.param, "max_tokens");
    assert_int_equal(fit(&r, 64, &e), ERR_INPUT); /* no answer fits */
    assert_string_equal(e.param, "prompt");
    r.params.max_tokens = INT32_MAX;
    assert_int_equal(fit(&r, 1, &e), ERR_INPUT);
    assert_non_null(strstr(e.message, "2147483648"));
    r.params.max_tokens = 0;
    assert_int_equal(fit(&r, 64, &e), OK); /* it is only scored */
    assert_int_equal(fit(&r, 65, &e), ERR_INPUT);
    assert_string_equal(e.param, "prompt");
    assert_int_equal(completion_prompt_fit_text(&r, 64, 64, &e), OK);
    assert_int_equal(completion_prompt_fit_text(&r, 65, 64, &e), ERR_INPUT);
    assert_string_equal(e.code, "context_length_exceeded");
}

/* The last tokens stay. */
static void test_truncation(void **state)
{
    static const struct {
        int32_t truncate, answer, kept;
    } cases[] = {{3, 10, 3}, {60, 4, 60}, {100, 1, 63}, {-1, 10, 54}, {-1, 0, 63}, {0, 1, 63}};
    struct api_error e = {0};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct completion_request r = {.truncate = cases[i].truncate,
                                             .params.max_tokens = cases[i].answer};
        int32_t ids[63];
        for (int32_t k = 0; k < 63; k++)
            ids[k] = k;
        struct completion_prompt p = {.ids = ids, .count = 63};
        assert_int_equal(completion_prompt_fit(&r, &p, 64, &e), OK);
        assert_int_equal(p.count, cases[i].kept);
        assert_int_equal(p.ids[0], 63 - cases[i].kept);
        assert_int_equal(p.ids[p.count - 1], 62);
    }
    const struct completion_request r = {.truncate = 100};
    assert_int_equal(completion_prompt_fit_text(&r, 1000, 64, &e), OK);
}

static void test_lists_of_tokens(void **state)
{
    struct completion_request r;
    struct api_error e;
    (void)state;
    accept("stop_token_ids", "[]");
    accept("stop_token_ids", repeat("7", 64));
    refuse("stop_token_ids", repeat("7", 65), NULL, "64");
    refuse("stop_token_ids", "[100]", NULL, "99");
    refuse("stop_token_ids", "[-1]", NULL, "-1");
    refuse("stop_token_ids", "[1.5]", NULL, "1.5");
    refuse("stop_token_ids", "7", NULL, "list");
    accept("logit_bias", "{}");
    refuse("logit_bias", "[]", NULL, "object");
    refuse("logit_bias", "{\"100\": 1}", NULL, "99");
    refuse("logit_bias", "{\"-1\": 1}", NULL, "-1");
    refuse("logit_bias", "{\"07\": 1}", NULL, "07");
    refuse("logit_bias", "{\"x\": 1}", NULL, "x");
    refuse("logit_bias", "{\"\": 1}", NULL, "99");
    refuse("logit_bias", "{\"1\": 100.5}", NULL, "100.5");
    refuse("logit_bias", "{\"1\": \"1\"}", NULL, "number");
    accept("bad_words", "[\"a\", \"b\"]");
    refuse("bad_words", repeat("\"a\"", 65), NULL, "64");
    refuse("bad_words", "[\"\"]", NULL, "1 to 256");
    assert_int_equal(parse_field("logit_bias", "{\"1\": -100, \"99\": 2.5}", &r, &e), OK);
    struct request_params p = completion_params(&r);
    assert_int_equal(p.bias_count, 2);
    assert_int_equal(p.bias[1].token, 99);
    assert_true(p.bias[0].value == -100 && p.bias[1].value == 2.5F);
    completion_free(&r);
    assert_int_equal(parse_field("stop_token_ids", "[4, 5.0]", &r, &e), OK);
    p = completion_params(&r);
    assert_int_equal(p.stop_id_count, 2);
    assert_int_equal(p.stop_ids[1], 5);
    completion_free(&r);
}

/* Fields that go together, or do not. */
static void test_together(void **state)
{
    static const struct {
        const char *fields, *param;
    } bad[] = {
        {"\"min_tokens\": 5, \"max_tokens\": 4", "min_tokens"},
        {"\"prompt_logprobs\": 1, \"stream\": true", "prompt_logprobs"},
        {"\"truncate_prompt_tokens\": 0", "truncate_prompt_tokens"},
        {"\"cache_salt\": \"\"", "cache_salt"},
        {"\"response_format\": {}", "response_format"},
        {"\"response_format\": {\"type\": 1}", "response_format"},
    };
    struct completion_request r;
    struct api_error e;
    char text[256];
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        snprintf(text, sizeof text, "{\"prompt\": [1], %s}", bad[i].fields);
        assert_int_equal(parse_with(text, &rules, &r, &e), ERR_INPUT);
        assert_string_equal(e.param, bad[i].param);
    }
    const char *good = "{\"prompt\": [1], \"echo\": true, \"logprobs\": 2, \"prompt_logprobs\": 1, "
                       "\"min_tokens\": 4, \"max_tokens\": 4, \"cache_salt\": \"a\", "
                       "\"model\": \"other/name\", \"best_of\": 3, \"n\": 3}";
    assert_int_equal(parse_with(good, &rules, &r, &e), OK);
    assert_int_equal(r.params.prompt_logprobs, 2); /* the longer of the two lists */
    assert_int_equal(r.prompt_logprobs, 1);
    assert_true(r.params.cache_salt != 0);
    completion_free(&r);
}

static void test_forbidden_words(void **state)
{
    static const int32_t ids[ENGINE_BAD_IDS_MAX] = {7, 8, 9};
    static struct completion_request r;
    struct api_error e = {0};
    (void)state;
    assert_int_equal(completion_forbid(&r, ids, 2, &e), OK);
    assert_int_equal(completion_forbid(&r, ids, ENGINE_BAD_IDS_MAX - 1, &e), ERR_INPUT);
    assert_string_equal(e.param, "bad_words");
    assert_int_equal(completion_forbid(&r, ids, ENGINE_BAD_IDS_MAX - 2, &e), OK);
    struct request_params p = completion_params(&r);
    assert_int_equal(p.bad_count, 2);
    assert_int_equal(p.bad_ends[0], 2);
    assert_int_equal(p.bad_ends[1], ENGINE_BAD_IDS_MAX);
    assert_int_equal(p.bad_ids[2], 7);
}

/* ---- what goes back ---- */

static const struct completion_meta meta = {
    .id = "cmpl-1", .created = 1700000000, .model = "de\"mo", .fingerprint = "tessera-x"};

static struct jdoc *read_back(const char *text, size_t n)
{
    struct err err = {""};
    struct jdoc *doc = NULL;
    if (jdoc_parse(text, n, &jdoc_limits_file, "answer", &doc, &err) != OK)
        fail_msg("%s: %.*s", err.text, (int)n, text);
    return doc;
}

/* The object of the frame at *at, which moves on; NULL for [DONE]. */
static struct jdoc *next_frame(const char **at)
{
    assert_memory_equal(*at, "data: ", 6);
    const char *text = *at + 6, *end = strstr(text, "\n\n");
    assert_non_null(end);
    *at = end + 2;
    if (strncmp(text, "[DONE]", 6) == 0)
        return NULL;
    assert_null(memchr(text, '\n', (size_t)(end - text)));
    return read_back(text, (size_t)(end - text));
}

static void assert_text(const struct jdoc *object, const char *key, const char *wanted)
{
    assert_string_equal(jdoc_string(jdoc_get(object, key)), wanted);
}

static const struct jdoc *only_choice(const struct jdoc *doc)
{
    assert_text(doc, "id", "cmpl-1");
    assert_text(doc, "object", "text_completion");
    assert_text(doc, "model", "de\"mo");
    assert_text(doc, "system_fingerprint", "tessera-x");
    assert_int_equal(jdoc_int(jdoc_get(doc, "created")), 1700000000);
    assert_int_equal(jdoc_size(jdoc_get(doc, "choices")), 1);
    return jdoc_at(jdoc_get(doc, "choices"), 0);
}

static void test_response(void **state)
{
    static const int32_t ids[] = {4, 5}, prompt[] = {9};
    const struct completion_choice choice = {
        .index = 3,
        .text = "a\"\n\x01\xf0\x9f\xa6\x8a",
        .text_len = 8,
        .finish_reason = "stop",
        .logprobs_top = -1,
        .stop_token = -1,
        .stop_reason = "\n\n",
        .stop_reason_len = 2,
        .with_token_ids = true,
        .token_ids = ids,
        .token_count = 2,
        .prompt_ids = prompt,
        .prompt_count = 1,
    };
    const struct completion_usage usage = {3, 4, 2, .reasoning_tokens = -1};
    struct buf b;
    (void)state;
    buf_init(&b, 1 << 16);
    completion_reply.begin(&meta, &choice, &b);
    completion_reply.choice(&meta, &choice, &b);
    completion_reply.end(&usage, &b);
    struct jdoc *doc = read_back(b.data, b.len);
    const struct jdoc *c = only_choice(doc), *u = jdoc_get(doc, "usage");
    assert_int_equal(jdoc_int(jdoc_get(c, "index")), 3);
    assert_text(c, "text", "a\"\n\x01\xf0\x9f\xa6\x8a");
    assert_text(c, "finish_reason", "stop");
    assert_text(c, "stop_reason", "\n\n");
    assert_int_equal(jdoc_type(jdoc_get(c, "logprobs")), JDOC_NULL);
    assert_int_equal(jdoc_int(jdoc_at(jdoc_get(c, "token_ids"), 1)), 5);
    assert_int_equal(jdoc_int(jdoc_at(jdoc_get(c, "prompt_token_ids"), 0)), 9);
    assert_int_equal(jdoc_int(jdoc_get(u, "prompt_tokens")), 3);
    assert_int_equal(jdoc_int(jdoc_get(u, "completion_tokens")), 4);
    assert_int_equal(jdoc_int(jdoc_get(u, "total_tokens")), 7);
    u = jdoc_get(u, "prompt_tokens_details");
    assert_int_equal(jdoc_int(jdoc_get(u, "cached_tokens")), 2);
    jdoc_close(doc);
    buf_free(&b);
}

static void test_frames(void **state)
{
    const struct completion_choice going = {
        .text = "x", .text_len = 1, .stop_token = -1, .logprobs_top = -1};
    const struct completion_choice last = {
        .index = 1, .finish_reason = "stop", .stop_token = 7, .logprobs_top = -1};
    const struct completion_usage usage = {3, 4, 2, .reasoning_tokens = -1};
    struct api_error e = {0};
    struct buf b;
    (void)state;
    api_error_set(&e, 503, "rank_lost", "gone");
    buf_init(&b, 1 << 16);
    completion_reply.chunk(&meta, &going, false, NULL, &b);
    completion_reply.chunk(&meta, &last, true, NULL, &b);
    completion_reply.chunk(&meta, &last, true, &usage, &b);
    completion_reply.usage(&meta, &usage, &b);
    completion_reply_error(&e, &b);
    completion_reply_done(&b);
    const char *at = b.data;
    struct jdoc *doc = next_frame(&at);
    assert_text(only_choice(doc), "text", "x");
    assert_int_equal(jdoc_type(jdoc_get(only_choice(doc), "finish_reason")), JDOC_NULL);
    assert_null(jdoc_get(only_choice(doc), "token_ids"));
    assert_null(jdoc_get(doc, "usage"));
    jdoc_close(doc);
    doc = next_frame(&at);
    assert_text(only_choice(doc), "text", "");
    assert_text(only_choice(doc), "finish_reason", "stop");
    assert_int_equal(jdoc_int(jdoc_get(only_choice(doc), "stop_reason")), 7);
    assert_int_equal(jdoc_type(jdoc_get(doc, "usage")), JDOC_NULL);
    jdoc_close(doc);
    doc = next_frame(&at);
    assert_int_equal(jdoc_int(jdoc_get(jdoc_get(doc, "usage"), "completion_tokens")), 4);
    jdoc_close(doc);
    doc = next_frame(&at);
    assert_int_equal(jdoc_size(jdoc_get(doc, "choices")), 0);
    assert_int_equal(jdoc_int(jdoc_get(jdoc_get(doc, "usage"), "total_tokens")), 7);
    jdoc_close(doc);
    doc = next_frame(&at);
    assert_text(jdoc_get(doc, "error"), "code", "rank_lost");
    assert_null(jdoc_get(doc, "choices"));
    jdoc_close(doc);
    assert_null(next_frame(&at));
    assert_string_equal(at, "");
    buf_free(&b);
}

static void check_error(enum status st, int32_t http_status, const char *type, const char *code,
                        bool retry)
{
    struct api_error e = {0};
    struct err err = {"why \xff\n"};
    struct buf b;
    buf_init(&b, 4096);
    api_error_from_status(&e, st, &err);
    assert_int_equal(e.http_status, http_status);
    assert_int_equal(e.retry_after_s > 0, retry);
    api_error_write(&e, &b);
    struct jdoc *doc = read_back(b.data, b.len);
    const struct jdoc *o = jdoc_get(doc, "error");
    assert_int_equal(jdoc_size(o), 4);
    assert_text(o, "type", type);
    if (code)
        assert_text(o, "code", code);
    else
        assert_int_equal(jdoc_type(jdoc_get(o, "code")), JDOC_NULL);
    assert_int_equal(jdoc_type(jdoc_get(o, "param")), JDOC_NULL);
    jdoc_close(doc);
    buf_free(&b);
}

static void test_errors(void **state)
{
    (void)state;
    check_error(ERR_INPUT, 400, "invalid_request_error", NULL, false);
    check_error(ERR_LIMIT, 429, "rate_limit_error", "queue_full", true);
    check_error(ERR_COMM, 503, "unavailable", "rank_lost", true);
    check_error(ERR_NOMEM, 503, "unavailable", "out_of_memory", true);
    check_error(ERR_INTERNAL, 500, "server_error", "internal", false);
}

static void test_utf8(void **state)
{
    static const struct {
        const char *text;
        size_t n, whole;
        bool prefix;
    } cases[] = {
        {"a", 1, 1, false},
        {"\x80", 1, 0, false},
        {"\xc3", 1, 0, true},
        {"\xc3\xa9", 2, 2, false},
        {"\xc0\x80", 2, 0, false},
        {"\xc1", 1, 0, false},
        {"\xe0\x80", 2, 0, false},
        {"\xe0\xa0", 2, 0, true},
        {"\xed\xa0", 2, 0, false},
        {"\xed\x9f\xbf", 3, 3, false},
        {"\xf0\x8f", 2, 0, false},
        {"\xf0\x90\x80", 3, 0, true},
        {"\xf4\x90", 2, 0, false},
        {"\xf4\x8f\xbf\xbf", 4, 4, false},
        {"\xf5", 1, 0, false},
        {"\xe4\xbd"
         "A",
         3, 0, false},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(utf8_char(cases[i].text, cases[i].n), cases[i].whole);
        assert_int_equal(utf8_is_prefix(cases[i].text, cases[i].n), cases[i].prefix);
    }
    assert_int_equal(utf8_char("", 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),         cmocka_unit_test(test_not_numbers),
        cmocka_unit_test(test_booleans),       cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_defaults),       cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_many_prompts),   cmocka_unit_test(test_stop),
        cmocka_unit_test(test_stream_options), cmocka_unit_test(test_no_tokenizer),
        cmocka_unit_test(test_model),          cmocka_unit_test(test_unknown_fields),
        cmocka_unit_test(test_not_requests),   cmocka_unit_test(test_length),
        cmocka_unit_test(test_truncation),     cmocka_unit_test(test_lists_of_tokens),
        cmocka_unit_test(test_together),       cmocka_unit_test(test_forbidden_words),
        cmocka_unit_test(test_response),       cmocka_unit_test(test_frames),
        cmocka_unit_test(test_errors),         cmocka_unit_test(test_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
