/* /v1/embeddings: the request at and beyond every limit, what a vector goes through before it is
 * written, and what goes back, read by jdoc and strtof again. */
#include "config/buf.h"
#include "server/api/embedding.h"
#include "tests/scratch.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { COLUMNS = 8, CONTEXT = 64 };

static const char *const model_names[] = {"demo", "other/name"};
static const struct completion_rules rules = {
    .model_names = model_names,
    .model_name_count = 2,
    .vocab = 100,
    .max_model_len = CONTEXT,
    .has_tokenizer = true,
    .columns = COLUMNS,
    .normalizes = true,
    .defaults = {NAN, NAN, NAN, NAN, -1},
    .salt_key = 7,
};

static enum status parse_with(const char *text, const struct completion_rules *with,
                              struct completion_request *r, struct api_error *e)
{
    struct completion_request before;
    memset(r, 0x5a, sizeof *r);
    memcpy(&before, r, sizeof before);
    memset(e, 0, sizeof *e);
    enum status st = embedding_parse(text, strlen(text), with, r, e);
    if (st != OK) {
        assert_memory_equal(r, &before, sizeof before); /* untouched */
        assert_true(e->http_status >= 400);
        assert_true(e->message[0] != '\0');
    }
    return st;
}

/* "input" and one field with a value; OK or the error. */
static enum status parse_field(const char *name, const char *value, struct completion_request *r,
                               struct api_error *e)
{
    char text[512];
    snprintf(text, sizeof text, "{\"input\": [1], \"%s\": %s}", name, value);
    return parse_with(text, &rules, r, e);
}

static struct completion_request must_parse(const char *text)
{
    struct completion_request r;
    struct api_error e;
    if (parse_with(text, &rules, &r, &e) != OK)
        fail_msg("%s: %s", text, e.message);
    return r;
}

static void accept(const char *name, const char *value)
{
    struct completion_request r;
    struct api_error e;
    if (parse_field(name, value, &r, &e) != OK)
        fail_msg("%s = %s refused: %s", name, value, e.message);
    completion_free(&r);
}

static void check_refusal(const struct api_error *e, const char *name, const char *words)
{
    if (e->http_status != 400 || strcmp(e->param, name) != 0 || !strstr(e->message, name) ||
        !strstr(e->message, words))
        fail_msg("%s: %d, param %s: %s", name, e->http_status, e->param, e->message);
    assert_string_equal(e->type, "invalid_request_error");
}

/* The message must name the field, and hold words. */
static void refuse(const char *name, const char *value, const char *words)
{
    struct completion_request r;
    struct api_error e;
    if (parse_field(name, value, &r, &e) == OK)
        fail_msg("%s = %s accepted", name, value);
    check_refusal(&e, name, words);
}

static void refuse_input(const char *value, const char *words)
{
    struct completion_request r;
    struct api_error e;
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_printf(&b, "{\"input\": %s}", value);
    assert_false(b.failed);
    if (parse_with(b.data, &rules, &r, &e) == OK)
        fail_msg("input = %.60s accepted", value);
    check_refusal(&e, "input", words);
    buf_free(&b);
}

/* "[item,item,...]"; until the next call. */
static const char *list_of(const char *item, int count)
{
    static struct buf b;
    buf_free(&b);
    buf_init(&b, 1 << 20);
    for (int i = 0; i < count; i++)
        buf_printf(&b, "%c%s", i ? ',' : '[', item);
    buf_puts(&b, "]");
    assert_false(b.failed);
    return b.data;
}

/* ---- the request ---- */

static void test_inputs(void **state)
{
    (void)state;
    struct completion_request r = must_parse("{\"input\": \"a text\"}");
    assert_int_equal(r.prompt_count, 1);
    assert_int_equal(r.prompts[0].text.len, 6);
    assert_string_equal(r.prompts[0].text.bytes, "a text");
    completion_free(&r);
    r = must_parse("{\"input\": [\"a\", \"bc\"]}");
    assert_int_equal(r.prompt_count, 2);
    assert_string_equal(r.prompts[0].text.bytes, "a");
    assert_string_equal(r.prompts[1].text.bytes, "bc");
    completion_free(&r);
    r = must_parse("{\"input\": [4, 5, 99]}");
    assert_int_equal(r.prompt_count, 1);
    assert_int_equal(r.prompts[0].count, 3);
    assert_int_equal(r.prompts[0].ids[2], 99);
    completion_free(&r);
    r = must_parse("{\"input\": [[4], [5, 6]]}");
    assert_int_equal(r.prompt_count, 2);
    assert_int_equal(r.prompts[0].ids[0], 4);
    assert_int_equal(r.prompts[1].count, 2);
    assert_int_equal(r.prompts[1].ids[1], 6);
    completion_free(&r);
}

static void test_refused_inputs(void **state)
{
    (void)state;
    struct completion_request r;
    struct api_error e;
    refuse_input("\"\"", "empty");
    refuse_input("[]", "empty");
    refuse_input("[\"a\", \"\"]", "empty");
    refuse_input("[[1], []]", "empty");
    refuse_input("[\"a\", 1]", "mix");
    refuse_input("[[1], \"a\"]", "mix");
    refuse_input("[[1], 2]", "mix");
    refuse_input("[1, \"a\"]", "\"a\"");
    refuse_input("[[1, \"a\"]]", "\"a\"");
    refuse_input("[100]", "99");
    refuse_input("[-1]", "-1");
    refuse_input("7", "7");
    refuse_input("{}", "object");
    refuse_input("[{}]", "object");
    refuse_input("null", "missing");
    refuse_input(list_of("\"a\"", 2049), "2048");
    refuse_input(list_of("[1]", 2049), "2048");
    char text[1 << 14];
    snprintf(text, sizeof text, "{\"input\": %s}", list_of("\"a\"", 2048));
    r = must_parse(text);
    assert_int_equal(r.prompt_count, 2048);
    completion_free(&r);
    assert_int_equal(parse_with("{}", &rules, &r, &e), ERR_INPUT);
    check_refusal(&e, "input", "missing");
    struct completion_rules with = rules;
    with.has_tokenizer = false;
    assert_int_equal(parse_with("{\"input\": \"a\"}", &with, &r, &e), ERR_INPUT);
    check_refusal(&e, "input", "without a tokenizer");
    /* no more at once than can ever wait */
    with = rules;
    with.choices_max = 2;
    assert_int_equal(parse_with("{\"input\": [[1], [2], [3]]}", &with, &r, &e), ERR_INPUT);
    check_refusal(&e, "input", "input asks for 3 answers at once, this server takes at most 2");
    assert_int_equal(parse_with("{\"input\": [[1], [2]]}", &with, &r, &e), OK);
    completion_free(&r);
}

static void test_defaults(void **state)
{
    (void)state;
    struct completion_request r = must_parse("{\"input\": [1]}");
    assert_string_equal(r.source, "input");
    assert_int_equal(r.n, 1);
    assert_int_equal(r.vector.dimensions, 0);
    assert_true(r.vector.normalize);
    assert_false(r.vector.base64);
    assert_int_equal(r.truncate, 0);
    assert_true(r.add_special_tokens && r.parse_special);
    assert_false(r.stream || r.echo);
    assert_int_equal(r.logprobs, -1);
    assert_int_equal(r.prompt_logprobs, -1);
    assert_true(r.params.pooled);
    assert_int_equal(r.params.max_tokens, 0);
    assert_int_equal(r.params.priority, 0);
    assert_true(r.params.cache_salt == 0);
    assert_int_equal(r.unknown.count, 0);
    completion_free(&r);
    struct completion_rules with = rules;
    struct api_error e;
    with.normalizes = false; /* as the model was published */
    assert_int_equal(parse_with("{\"input\": [1]}", &with, &r, &e), OK);
    assert_false(r.vector.normalize);
    completion_free(&r);
    assert_int_equal(parse_with("{\"input\": [1], \"normalize\": true}", &with, &r, &e), OK);
    assert_true(r.vector.normalize);
    completion_free(&r);
}

static void test_fields(void **state)
{
    (void)state;
    struct completion_request r =
        must_parse("{\"input\": [1], \"encoding_format\": \"base64\", \"dimensions\": 3, "
                   "\"truncate_prompt_tokens\": 5, \"normalize\": false, \"priority\": -2, "
                   "\"add_special_tokens\": false, \"parse_special\": false, \"user\": \"u\", "
                   "\"cache_salt\": \"s\", \"model\": \"other/name\", \"frobnicate\": {}}");
    assert_true(r.vector.base64);
    assert_int_equal(r.vector.dimensions, 3);
    assert_false(r.vector.normalize || r.add_special_tokens || r.parse_special);
    assert_int_equal(r.truncate, 5);
    assert_int_equal(r.params.priority, -2);
    assert_true(r.params.cache_salt == base_hash(rules.salt_key, "s", 1));
    assert_int_equal(r.unknown.count, 1);
    assert_string_equal(r.unknown.names[0], "frobnicate");
    completion_free(&r);
    r = must_parse("{\"input\": [1], \"truncate_prompt_tokens\": -1}");
    assert_int_equal(r.truncate, -1);
    completion_free(&r);
    accept("dimensions", "1");
    accept("dimensions", "8");
    accept("dimensions", "null");
    refuse("dimensions", "0", "0");
    refuse("dimensions", "-1", "-1");
    refuse("dimensions", "9", "between 1 and 8, got 9");
    refuse("dimensions", "1.5", "whole");
    refuse("dimensions", "\"8\"", "\"8\"");
    accept("truncate_prompt_tokens", "null");
    accept("truncate_prompt_tokens", "1");
    accept("truncate_prompt_tokens", "2147483647");
    refuse("truncate_prompt_tokens", "0", "-1 or at least 1, got 0");
    refuse("truncate_prompt_tokens", "-2", "-2");
    refuse("truncate_prompt_tokens", "2147483648", "2147483648");
    accept("encoding_format", "\"float\"");
    accept("encoding_format", "null");
    refuse("encoding_format", "\"int8\"", "float");
    refuse("encoding_format", "1", "1");
    static const char *const booleans[] = {"normalize", "add_special_tokens", "parse_special"};
    for (size_t i = 0; i < ARRAY_LEN(booleans); i++) {
        accept(booleans[i], "true");
        accept(booleans[i], "null");
        refuse(booleans[i], "1", "boolean");
    }
    refuse("cache_salt", "\"\"", "1 to 64");
    refuse("messages", "[{\"role\": \"user\", \"content\": \"a\"}]", "not supported");
    refuse("model", "1", "string");
}

static void test_other_refusals(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "{", "[]", "null", "{\"input\": [1], \"input\": [2]}"};
    struct completion_request r;
    struct api_error e;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        assert_int_equal(parse_with(texts[i], &rules, &r, &e), ERR_INPUT);
        assert_string_equal(e.code, "invalid_json");
    }
    assert_int_equal(parse_field("model", "\"another\"", &r, &e), ERR_INPUT);
    assert_int_equal(e.http_status, 404);
    assert_string_equal(e.code, "model_not_found");
    assert_string_equal(e.param, "model");
}

/* Of a text's ids the first stay, and what was added behind them. */
static void test_truncation(void **state)
{
    (void)state;
    enum { IDS = 20 };
    static const struct {
        int32_t truncate, after, context, kept,
            first; /* first: of those kept, from the beginning */
    } cases[] = {
        {5, 0, 64, 5, 5},    {5, 1, 64, 5, 4},    {5, 2, 64, 5, 3},    {5, 4, 64, 5, 1},
        {5, 5, 64, 5, 0},    {5, 6, 64, 5, 0},    {1, 0, 64, 1, 1},    {1, 1, 64, 1, 0},
        {-1, 1, 16, 16, 15}, {-1, 0, 20, 20, 20}, {20, 1, 64, 20, 20}, {99, 1, 64, 20, 20},
        {0, 1, 64, 20, 20},  {0, 1, 20, 20, 20},
    };
    struct api_error e = {0};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct completion_request r = {
            .source = "input", .truncate = cases[i].truncate, .params.pooled = true};
        int32_t ids[IDS];
        for (int32_t k = 0; k < IDS; k++)
            ids[k] = k;
        struct completion_prompt p = {.ids = ids, .count = IDS, .after = cases[i].after};
        assert_int_equal(completion_prompt_fit(&r, &p, cases[i].context, &e), OK);
        assert_int_equal(p.count, cases[i].kept);
        for (int32_t k = 0; k < p.count; k++) {
            const int32_t wanted = k < cases[i].first ? k : IDS - p.count + k;
            if (ids[k] != wanted)
                fail_msg("case %zu: id %d is %d, expected %d", i, k, ids[k], wanted);
        }
    }
    /* what does not fit is told in words that say what helps */
    const struct completion_request all = {.source = "input", .params.pooled = true},
                                    many = {
                                        .source = "input", .truncate = 17, .params.pooled = true};
    int32_t ids[IDS] = {0};
    struct completion_prompt p = {.ids = ids, .count = IDS};
    assert_int_equal(completion_prompt_fit(&all, &p, IDS - 1, &e), ERR_INPUT);
    assert_string_equal(e.code, "context_length_exceeded");
    assert_string_equal(e.param, "input");
    assert_non_null(strstr(e.message, "maximum context length is 19 tokens. However, you requested "
                                      "20 tokens in the input."));
    assert_non_null(strstr(e.message, "truncate_prompt_tokens"));
    assert_int_equal(completion_prompt_fit(&many, &p, 16, &e), ERR_INPUT);
    assert_non_null(strstr(e.message, "17 tokens"));
}

/* ---- the vector ---- */

static double length_of(const float *v, int32_t n)
{
    double squares = 0;
    for (int32_t i = 0; i < n; i++)
        squares += (double)v[i] * (double)v[i];
    return sqrt(squares);
}

static void test_finish(void **state)
{
    (void)state;
    static const float from[4] = {3, 0, -4, 12};
    static const struct {
        int32_t dimensions, kept;
        bool normalize;
        float wanted[4];
    } cases[] = {
        {0, 4, false, {3, 0, -4, 12}},
        {2, 2, false, {3, 0}},
        {4, 4, false, {3, 0, -4, 12}},
        {9, 4, false, {3, 0, -4, 12}},
        {0, 4, true, {3.f / 13, 0, -4.f / 13, 12.f / 13}},
        {3, 3, true, {3.f / 5, 0, -4.f / 5}}, /* of what is left */
        {1, 1, true, {1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct completion_vector wanted = {.dimensions = cases[i].dimensions,
                                                 .normalize = cases[i].normalize};
        float v[4];
        memcpy(v, from, sizeof v);
        assert_int_equal(embedding_finish(&wanted, v, 4), cases[i].kept);
        for (int32_t k = 0; k < cases[i].kept; k++)
            if (v[k] != cases[i].wanted[k])
                fail_msg("case %zu: number %d is %.9g", i, k, (double)v[k]);
    }
    const struct completion_vector unit = {.normalize = true};
    float zero[3] = {0, -0.f, 0};
    assert_int_equal(embedding_finish(&unit, zero, 3), 3);
    assert_true(zero[0] == 0 && zero[1] == 0 && zero[2] == 0); /* not NaN */
    /* whose squares are no floats */
    static const float scales[] = {FLT_MAX, 1e30f, 1e-30f, FLT_TRUE_MIN};
    for (size_t i = 0; i < ARRAY_LEN(scales); i++) {
        float v[3] = {scales[i], -scales[i], scales[i]};
        assert_int_equal(embedding_finish(&unit, v, 3), 3);
        assert_true(fabs(length_of(v, 3) - 1) < 1e-6);
        assert_true(v[0] == -v[1]);
    }
}

/* ---- what goes back ---- */

static const struct completion_meta meta = {
    .id = "embd-1", .created = 1700000000, .model = "de\"mo", .fingerprint = "tessera-x"};

/* The answer with two vectors of so many numbers, or the same one as base64. */
static struct jdoc *reply_of(const float *v, int32_t columns, bool base64, struct buf *b)
{
    struct buf text;
    buf_init(&text, 1 << 16);
    embedding_write(&(struct completion_vector){.base64 = base64}, v, columns, &text);
    struct completion_choice choice = {.index = 4, .text = text.data, .text_len = text.len};
    const struct completion_usage usage = {
        .prompt_tokens = 30, .cached_tokens = 16, .reasoning_tokens = -1};
    struct jdoc *doc = NULL;
    struct err err = {""};
    buf_init(b, 1 << 20);
    embedding_reply.begin(&meta, &choice, b);
    embedding_reply.choice(&meta, &choice, b);
    buf_puts(b, ",");
    choice.index = 5;
    embedding_reply.choice(&meta, &choice, b);
    embedding_reply.end(&usage, b);
    assert_false(b->failed || text.failed);
    buf_free(&text);
    if (jdoc_parse(b->data, b->len, &jdoc_limits_file, "answer", &doc, &err) != OK)
        fail_msg("%s: %.*s", err.text, (int)b->len, b->data);
    return doc;
}

static void assert_text(const struct jdoc *object, const char *key, const char *wanted)
{
    assert_string_equal(jdoc_string(jdoc_get(object, key)), wanted);
}

static void test_reply(void **state)
{
    (void)state;
    static const float v[] = {0.25f, -1};
    struct buf b;
    struct jdoc *doc = reply_of(v, 2, false, &b);
    const struct jdoc *data = jdoc_get(doc, "data"), *usage = jdoc_get(doc, "usage");
    assert_text(doc, "id", "embd-1");
    assert_text(doc, "object", "list");
    assert_text(doc, "model", "de\"mo");
    assert_text(doc, "system_fingerprint", "tessera-x");
    assert_int_equal(jdoc_int(jdoc_get(doc, "created")), 1700000000);
    assert_string_equal(embedding_reply.id_prefix, "embd-");
    assert_int_equal(jdoc_size(data), 2);
    for (size_t i = 0; i < 2; i++) {
        const struct jdoc *item = jdoc_at(data, i), *list = jdoc_get(item, "embedding");
        assert_text(item, "object", "embedding");
        assert_int_equal(jdoc_int(jdoc_get(item, "index")), 4 + i);
        assert_int_equal(jdoc_size(list), 2);
        assert_true(jdoc_number(jdoc_at(list, 0)) == 0.25);
        assert_true(jdoc_number(jdoc_at(list, 1)) == -1);
    }
    assert_int_equal(jdoc_int(jdoc_get(usage, "prompt_tokens")), 30);
    assert_int_equal(jdoc_int(jdoc_get(usage, "completion_tokens")), 0);
    assert_int_equal(jdoc_int(jdoc_get(usage, "total_tokens")), 30);
    usage = jdoc_get(usage, "prompt_tokens_details");
    assert_int_equal(jdoc_int(jdoc_get(usage, "cached_tokens")), 16);
    jdoc_close(doc);
    buf_free(&b);
}

/* A client that reads floats has the same ones, to the bit. */
static void test_floats(void **state)
{
    (void)state;
    enum { MANY = 4000 };
    /* the first takes all nine digits */
    static const float odd[] = {0x1.f48002p9f,  0,       -0.f,         1.f / 3,       FLT_MAX,
                                -FLT_MAX,       FLT_MIN, FLT_TRUE_MIN, -FLT_TRUE_MIN, FLT_EPSILON,
                                0x1.fffffep23f, 0.1f,    1e-7f};
    static float v[MANY];
    uint32_t bits = 1;
    for (size_t i = 0; i < MANY; i++, bits = bits * 1664525u + 1013904223u) {
        memcpy(&v[i], &bits, sizeof v[i]);
        if (i < ARRAY_LEN(odd) || !isfinite(v[i]))
            v[i] = i < ARRAY_LEN(odd) ? odd[i] : 0;
    }
    struct buf b;
    struct jdoc *doc = reply_of(v, MANY, false, &b);
    const char *at = strstr(b.data, "\"embedding\":[");
    assert_non_null(at);
    at += strlen("\"embedding\":");
    for (size_t i = 0; i < MANY; i++) {
        char *end;
        assert_int_equal(*at, i ? ',' : '[');
        const float back = strtof(at + 1, &end);
        if (memcmp(&back, &v[i], sizeof back) != 0)
            fail_msg("%a became %.*s", (double)v[i], (int)(end - at - 1), at + 1);
        at = end;
    }
    assert_int_equal(*at, ']');
    jdoc_close(doc);
    buf_free(&b);
}

/* Of base64.b64encode(numpy.array(v, "<f4")): every form of an end, and every kind of digit. */
static void test_base64(void **state)
{
    (void)state;
    static const struct {
        int32_t count;
        float v[3];
        const char *wanted;
    } cases[] = {
        {0, {0}, ""},
        {1, {1}, "AACAPw=="},
        {2, {1, -2}, "AACAPwAAAMA="},
        {3, {1, -2, 0.5f}, "AACAPwAAAMAAAAA/"},
        {1, {0x1.fddff6p-2f}, "++/+Pg=="}, /* fb ef fe 3e */
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf b;
        struct jdoc *doc = reply_of(cases[i].v, cases[i].count, true, &b);
        for (size_t k = 0; k < 2; k++)
            assert_text(jdoc_at(jdoc_get(doc, "data"), k), "embedding", cases[i].wanted);
        jdoc_close(doc);
        buf_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inputs),         cmocka_unit_test(test_refused_inputs),
        cmocka_unit_test(test_defaults),       cmocka_unit_test(test_fields),
        cmocka_unit_test(test_other_refusals), cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_finish),         cmocka_unit_test(test_reply),
        cmocka_unit_test(test_floats),         cmocka_unit_test(test_base64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
