/* Every row of every table of fields, driven to its limits and past them; and the document made
 * from the rows, which must say the same. */
#include "config/buf.h"
#include "server/api/chat.h"
#include "server/api/messages.h"
#include "server/api/responses.h"
#include "server/api/completion.h"
#include "server/api/embedding.h"
#include "server/api/openapi.h"
#include "server/api/tokenize.h"
#include "tests/scratch.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define VOCAB 100

static const char *const model_names[] = {"demo"};
static struct completion_rules rules = {
    .model_names = model_names,
    .model_name_count = 1,
    .vocab = VOCAB,
    .max_model_len = 64,
    .has_tokenizer = true,
};

static int setup(void **state)
{
    (void)state;
    rules.defaults = model_config_no_defaults();
    return 0;
}

/* A kind of request: its rows, and a body that is good but for one field. */
struct kind {
    const char *name;
    const char *rest[2]; /* members that a good body has besides the field; NULL: no more */
    struct field_set (*fields)(int32_t vocab);
    enum status (*parse)(const char *text, size_t n, struct api_error *e);
};

static enum status parse_completion(const char *text, size_t n, struct api_error *e)
{
    struct completion_request r;
    enum status st = completion_parse(text, n, &rules, &r, e);
    if (st == OK)
        completion_free(&r);
    return st;
}

static enum status parse_chat(const char *text, size_t n, struct api_error *e)
{
    struct chat_request r;
    enum status st = chat_parse(text, n, &rules, &r, e);
    if (st == OK)
        chat_free(&r);
    return st;
}

static enum status parse_responses(const char *text, size_t n, struct api_error *e)
{
    struct chat_request r;
    enum status st = responses_parse(text, n, &rules, &r, e);
    if (st == OK)
        chat_free(&r);
    return st;
}

static enum status parse_messages(const char *text, size_t n, struct api_error *e)
{
    struct chat_request r;
    enum status st = messages_parse(text, n, &rules, &r, e);
    if (st == OK)
        chat_free(&r);
    return st;
}

static enum status parse_count(const char *text, size_t n, struct api_error *e)
{
    struct chat_request r;
    enum status st = messages_parse_count(text, n, &rules, &r, e);
    if (st == OK)
        chat_free(&r);
    return st;
}

static enum status parse_text(const char *text, size_t n, struct api_error *e)
{
    struct tokenize_request r;
    enum status st = tokenize_parse(text, n, &rules, &r, e);
    if (st == OK)
        tokenize_free(&r);
    return st;
}

static enum status parse_ids(const char *text, size_t n, struct api_error *e)
{
    struct detokenize_request r;
    enum status st = tokenize_parse_ids(text, n, &rules, &r, e);
    if (st == OK)
        tokenize_free_ids(&r);
    return st;
}

#define COLUMNS 768 /* of a vector */

static enum status parse_embedding(const char *text, size_t n, struct api_error *e)
{
    struct completion_rules with = rules;
    struct completion_request r;
    with.columns = COLUMNS;
    enum status st = embedding_parse(text, n, &with, &r, e);
    if (st == OK)
        completion_free(&r);
    return st;
}

static struct field_set vector_fields(int32_t vocab)
{
    CHECK(vocab == rules.vocab);
    return embedding_fields(&rules);
}

#define MESSAGES "\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]"

static const struct kind kinds[] = {
    {"completion", {"\"prompt\": [1]"}, completion_fields, parse_completion},
    {"chat", {MESSAGES}, chat_fields, parse_chat},
    {"responses", {"\"input\": \"a\""}, responses_fields, parse_responses},
    {"messages", {MESSAGES, "\"max_tokens\": 9"}, messages_fields, parse_messages},
    {"count", {MESSAGES}, messages_count_fields, parse_count},
    {"tokenize", {"\"prompt\": \"a\""}, tokenize_fields, parse_text},
    {"detokenize", {"\"tokens\": [1]"}, tokenize_id_fields, parse_ids},
    {"embedding", {"\"input\": [1]"}, vector_fields, parse_embedding},
};

/* One field with a value, in an otherwise good body. */
static enum status parse_value(const struct kind *k, const struct field *row, const char *value,
                               struct api_error *e)
{
    char text[1024], key[72];
    memset(e, 0, sizeof *e);
    snprintf(key, sizeof key, "\"%s\"", row->name);
    int n = snprintf(text, sizeof text, "{%s: %s", key, value);
    for (size_t i = 0; i < ARRAY_LEN(k->rest) && k->rest[i]; i++)
        if (strncmp(k->rest[i], key, strlen(key)) != 0) /* it is the field that a body needs */
            n += snprintf(text + n, sizeof text - (size_t)n, ", %s", k->rest[i]);
    snprintf(text + n, sizeof text - (size_t)n, "}");
    return k->parse(text, strlen(text), e);
}

static void refused(const struct kind *k, const struct field *row, const char *value)
{
    struct api_error e;
    if (parse_value(k, row, value, &e) != ERR_INPUT)
        fail_msg("%s: %s = %s is accepted", k->name, row->name, value);
    if (e.http_status != 400 || !e.message[0])
        fail_msg("%s: %s = %s: status %d", k->name, row->name, value, e.http_status);
    bool json = e.code && strcmp(e.code, "invalid_json") == 0;
    if (!json &&
        (strncmp(e.param, row->name, strlen(row->name)) != 0 || !strstr(e.message, row->name)))
        fail_msg("%s: %s = %s: param \"%s\": %s", k->name, row->name, value, e.param, e.message);
}

/* Of itself; that it does not go with another field may be. */
static void accepted(const struct kind *k, const struct field *row, const char *value)
{
    struct api_error e;
    if (parse_value(k, row, value, &e) == OK)
        return;
    static const char *const together[] = {"at most max_tokens", "equal to n",
                                           "-1 or at least 1",   "prompt is missing",
                                           "give only one",      "top_logprobs needs"};
    for (size_t i = 0; i < ARRAY_LEN(together); i++)
        if (strstr(e.message, together[i]))
            return;
    fail_msg("%s: %s = %s is refused: %s", k->name, row->name, value, e.message);
}

/* Wrong for a row of any kind but the one that takes it. */
static void drive_types(const struct kind *k, const struct field *row)
{
    static const struct {
        const char *value;
        int kinds; /* that take it */
    } cases[] = {
        {"true", 1 << FIELD_BOOL},
        {"\"1\"", 1 << FIELD_STRING | 1 << FIELD_STRINGS | 1 << FIELD_PROMPT},
        {"[]", 1 << FIELD_STRINGS | 1 << FIELD_TOKENS | 1 << FIELD_ARRAY | 1 << FIELD_OBJECTS},
        {"{}", 1 << FIELD_BIAS | 1 << FIELD_OBJECT | 1 << FIELD_MAP},
        {"1", 1 << FIELD_INT | 1 << FIELD_NUMBER},
        {"[[[]]]", 1 << FIELD_ARRAY},
        {"[1.5]", 1 << FIELD_ARRAY},
        {"[100]", 1 << FIELD_ARRAY}, /* VOCAB: no token */
        {"[-1]", 1 << FIELD_ARRAY},
    };
    static const char *const never[] = {"NaN", "Infinity", "-Infinity", "1e400", "-1e400", "nan"};
    for (size_t i = 0; i < ARRAY_LEN(never); i++)
        refused(k, row, never[i]);
    if (row->required)
        refused(k, row, "null");
    else
        accepted(k, row, "null");
    if (row->kind == FIELD_ANY || row->use == FIELD_IGNORED)
        return;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        if (!(cases[i].kinds & 1 << row->kind))
            refused(k, row, cases[i].value);
}

static void drive_int(const struct kind *k, const struct field *row)
{
    const int64_t max = row->to_columns ? COLUMNS : row->int_max;
    char text[64];
    snprintf(text, sizeof text, "%" PRId64, row->int_min);
    accepted(k, row, text);
    snprintf(text, sizeof text, "%" PRId64, max);
    accepted(k, row, text);
    accepted(k, row, "1.0");
    refused(k, row, "1.5");
    refused(k, row, "9223372036854775808");
    refused(k, row, "1e300");
    if (max == INT64_MAX)
        return;
    snprintf(text, sizeof text, "%" PRId64, row->int_min - 1);
    refused(k, row, text);
    snprintf(text, sizeof text, "%" PRId64, max + 1);
    refused(k, row, text);
    refused(k, row, "2147483648");
    refused(k, row, "9223372036854775807");
}

static void drive_number(const struct kind *k, const struct field *row)
{
    static const char *const large[] = {"2147483648", "9223372036854775807", "1e300", "-1e300"};
    char text[64];
    snprintf(text, sizeof text, "%.17g", row->min);
    (row->above_min ? refused : accepted)(k, row, text);
    snprintf(text, sizeof text, "%.17g", row->max);
    accepted(k, row, text);
    snprintf(text, sizeof text, "%.17g", nextafter(row->min, -HUGE_VAL));
    refused(k, row, text);
    snprintf(text, sizeof text, "%.17g", nextafter(row->max, HUGE_VAL));
    refused(k, row, text);
    for (size_t i = 0; i < ARRAY_LEN(large); i++)
        refused(k, row, large[i]);
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        const struct kind *k = &kinds[i];
        const struct field_set set = k->fields(VOCAB);
        const struct field *row;
        for (size_t f = 0; (row = field_at(&set, f)); f++) {
            drive_types(k, row);
            if (row->use == FIELD_USED && row->kind == FIELD_INT)
                drive_int(k, row);
            if (row->use == FIELD_USED && row->kind == FIELD_NUMBER)
                drive_number(k, row);
        }
    }
}

/* ---- the document ---- */

static struct jdoc *document(void)
{
    struct buf b;
    struct err err = {""};
    struct jdoc *doc = NULL;
    buf_init(&b, 1 << 20);
    openapi_write(&rules, "1.2.3", &b);
    assert_false(b.failed);
    if (jdoc_parse(b.data, b.len, &jdoc_limits_file, "openapi", &doc, &err) != OK)
        fail_msg("%s", err.text);
    buf_free(&b);
    return doc;
}

static const struct jdoc *walk(const struct jdoc *v, const char *const *path, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        v = jdoc_get(v, path[i]);
        if (!v)
            fail_msg("no %s in the document", path[i]);
    }
    return v;
}

static const struct jdoc *properties_of(const struct jdoc *doc, const char *path)
{
    const char *const steps[] = {"paths",       path,        "post",
                                 "requestBody", "content",   "application/json",
                                 "schema",      "properties"};
    return walk(doc, steps, ARRAY_LEN(steps));
}

/* By the contract, not by the table. */
static void test_document_limits(void **state)
{
    static const struct {
        const char *field, *key;
        double value;
    } wanted[] = {
        {"max_tokens", "minimum", 0},
        {"max_tokens", "default", 16},
        {"n", "minimum", 1},
        {"n", "maximum", 128},
        {"n", "default", 1},
        {"temperature", "minimum", 0},
        {"temperature", "maximum", 2},
        {"temperature", "default", 1},
        {"top_p", "exclusiveMinimum", 0},
        {"top_p", "maximum", 1},
        {"presence_penalty", "minimum", -2},
        {"frequency_penalty", "maximum", 2},
        {"repetition_penalty", "default", 1},
        {"repetition_penalty", "exclusiveMinimum", 0},
        {"logprobs", "maximum", 20},
        {"seed", "maximum", 9223372036854775807.0},
        {"logit_bias", "maxProperties", 300},
        {"top_k", "minimum", -1},
    };
    struct jdoc *doc = document();
    (void)state;
    const struct jdoc *properties = properties_of(doc, "/v1/completions");
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        const char *const steps[] = {wanted[i].field, wanted[i].key};
        const struct jdoc *v = walk(properties, steps, 2);
        if (jdoc_number(v) != wanted[i].value)
            fail_msg("%s: %s is %g", wanted[i].field, wanted[i].key, jdoc_number(v));
    }
    assert_null(jdoc_get(jdoc_get(properties, "seed"), "default"));
    assert_null(jdoc_get(jdoc_get(properties, "logprobs"), "default"));
    jdoc_close(doc);
}

static void test_document_is_whole(void **state)
{
    static const char *const paths[] = {"/v1/completions",
                                        "/v1/chat/completions",
                                        "/v1/responses",
                                        "/v1/messages",
                                        "/v1/messages/count_tokens",
                                        "/tokenize",
                                        "/detokenize",
                                        "/v1/embeddings"};
    struct jdoc *doc = document();
    (void)state;
    assert_string_equal(jdoc_string(jdoc_get(doc, "openapi")), "3.1.0");
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        const struct field_set set = kinds[i].fields(VOCAB);
        const struct jdoc *properties = properties_of(doc, paths[i]);
        size_t f = 0;
        for (const struct field *row; (row = field_at(&set, f)); f++)
            assert_non_null(jdoc_get(properties, row->name));
        assert_int_equal(jdoc_size(properties), f);
        const char *const steps[] = {"paths", paths[i], "post", "responses", "429", "content"};
        walk(doc, steps, ARRAY_LEN(steps));
    }
    jdoc_close(doc);
}

/* What the model's generation_config.json says is the default that the document shows. */
static void test_document_defaults(void **state)
{
    (void)state;
    rules.defaults.temperature = 0.5F;
    rules.defaults.top_k = 40;
    struct jdoc *doc = document();
    const struct jdoc *properties = properties_of(doc, "/v1/completions");
    assert_true(jdoc_number(jdoc_get(jdoc_get(properties, "temperature"), "default")) == 0.5);
    assert_int_equal(jdoc_int(jdoc_get(jdoc_get(properties, "top_k"), "default")), 40);
    jdoc_close(doc);
}

/* As many prompts as the server takes at once, not as many as any server might. */
static void test_schema_of_prompts(void **state)
{
    static const int32_t cases[][2] = {
        {0, COMPLETION_PROMPTS_MAX}, {250, 250}, {5000, COMPLETION_PROMPTS_MAX}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        rules.choices_max = cases[i][0];
        struct jdoc *doc = document();
        const struct jdoc *ways =
            jdoc_get(jdoc_get(properties_of(doc, "/v1/completions"), "prompt"), "anyOf");
        for (size_t k = 2; k < 4; k++)
            assert_int_equal(jdoc_int(jdoc_get(jdoc_at(ways, k), "maxItems")), cases[i][1]);
        jdoc_close(doc);
    }
    rules.choices_max = 0;
}

/* ---- bounds of several fields together ---- */

static enum status parse_at(const char *text, const struct completion_rules *with,
                            struct completion_request *r, struct api_error *e)
{
    memset(e, 0, sizeof *e);
    return completion_parse(text, strlen(text), with, r, e);
}

static void test_choices_of_a_request(void **state)
{
    struct completion_rules few = rules;
    struct completion_request r;
    struct api_error e;
    (void)state;
    few.choices_max = 6;
    assert_int_equal(parse_at("{\"prompt\": [[1], [2]], \"n\": 3}", &few, &r, &e), OK);
    completion_free(&r);
    assert_int_equal(parse_at("{\"prompt\": [[1], [2]], \"n\": 4}", &few, &r, &e), ERR_INPUT);
    assert_string_equal(e.param, "n");
    assert_non_null(strstr(e.message, "8 answers at once, this server takes at most 6 "
                                      "(--max-num-seqs and --max-num-queued-reqs)"));
    const char *seven = "{\"prompt\": [[1], [2], [3], [4], [5], [6], [7]]}";
    assert_int_equal(parse_at(seven, &few, &r, &e), ERR_INPUT);
    assert_string_equal(e.param, "prompt");
}

static void test_scores_of_a_request(void **state)
{
    static const struct {
        const char *fields;
        int32_t tokens; /* of each of two prompts: the most that is answered */
        const char *param;
    } cases[] = {
        {"\"echo\": true, \"logprobs\": 0", 1 << 21, "logprobs"},
        {"\"echo\": true, \"logprobs\": 3, \"n\": 2", 1 << 18, "logprobs"},
        {"\"prompt_logprobs\": 7", 1 << 18, "prompt_logprobs"},
        {"\"logprobs\": 20", INT32_MAX - 1, NULL}, /* of the answer alone */
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct completion_request r;
        struct api_error e;
        char text[128];
        snprintf(text, sizeof text, "{\"prompt\": [[1], [2]], %s}", cases[i].fields);
        assert_int_equal(parse_at(text, &rules, &r, &e), OK);
        r.prompts[0].count = r.prompts[1].count = cases[i].tokens;
        assert_int_equal(completion_prompt_check_scores(&r, &e), OK);
        r.prompts[1].count++;
        enum status st = completion_prompt_check_scores(&r, &e);
        assert_int_equal(st, cases[i].param ? ERR_INPUT : OK);
        if (cases[i].param)
            assert_string_equal(e.param, cases[i].param);
        completion_free(&r);
    }
}

/* ---- /tokenize and /detokenize ---- */

static void test_tokenize_forms(void **state)
{
    static const struct {
        const char *text, *param; /* NULL: good */
    } cases[] = {
        {"{\"prompt\": \"a\"}", NULL},
        {"{\"content\": \"a\", \"add_special\": false}", NULL},
        {"{\"prompt\": \"\"}", NULL},
        {"{\"prompt\": \"a\", \"content\": \"a\"}", "prompt"},
        {"{}", "prompt"},
        {"{\"prompt\": [\"a\"]}", "prompt"},
        {"{\"messages\": []}", "messages"},
        {"{\"prompt\": \"a\", \"with_pieces\": true}", "with_pieces"},
        {"{\"prompt\": \"a\", \"model\": \"other\"}", "model"},
    };
    struct tokenize_request r;
    struct api_error e;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        memset(&e, 0, sizeof e);
        enum status st = tokenize_parse(cases[i].text, strlen(cases[i].text), &rules, &r, &e);
        assert_int_equal(st, cases[i].param ? ERR_INPUT : OK);
        if (cases[i].param)
            assert_string_equal(e.param, cases[i].param);
        else
            tokenize_free(&r);
    }
    const char *text = "{\"content\": \"ab\", \"add_special\": false, \"return_token_strs\": true}";
    assert_int_equal(tokenize_parse(text, strlen(text), &rules, &r, &e), OK);
    assert_int_equal(r.text.len, 2);
    assert_true(!r.add_special_tokens && r.parse_special && r.return_token_strs);
    tokenize_free(&r);
}

static void test_detokenize_forms(void **state)
{
    struct detokenize_request r;
    struct api_error e = {0};
    (void)state;
    const char *text = "{\"tokens\": [1, 99.0]}";
    assert_int_equal(tokenize_parse_ids(text, strlen(text), &rules, &r, &e), OK);
    assert_int_equal(r.count, 2);
    assert_int_equal(r.ids[1], 99);
    tokenize_free_ids(&r);
    text = "{\"tokens\": []}";
    assert_int_equal(tokenize_parse_ids(text, strlen(text), &rules, &r, &e), OK);
    assert_int_equal(r.count, 0);
    tokenize_free_ids(&r);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup(f, setup)
    const struct CMUnitTest tests[] = {
        TEST(test_rows),
        TEST(test_document_limits),
        TEST(test_document_is_whole),
        TEST(test_document_defaults),
        TEST(test_schema_of_prompts),
        TEST(test_choices_of_a_request),
        TEST(test_scores_of_a_request),
        TEST(test_tokenize_forms),
        TEST(test_detokenize_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
