/* The two shapes of logprobs, read by jdoc again: parallel arrays, equal floats, clashes, infinity.
 */
#include "server/api/logprobs.h"

#include "config/jdoc.h"
#include "tests/scratch.h"

#include <math.h>
#include <string.h>

#define BYTE_ID 3 /* of byte 0 in the corpus tokenizer */

static int setup(void **state)
{
    struct err err = {""};
    struct tokenizer *t = NULL;
    if (tokenizer_open(TEST_DATA_DIR "/corpus/tokenizer/bytes", 400, &t, &err) != OK)
        return -1;
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    tokenizer_close(*state);
    return 0;
}

static struct jdoc *read_back(struct buf *b)
{
    struct err err = {""};
    struct jdoc *doc = NULL;
    if (jdoc_parse(b->data, b->len, &jdoc_limits_file, "logprobs", &doc, &err) != OK)
        fail_msg("%s: %s", err.text, b->data);
    buf_free(b);
    return doc;
}

static struct jdoc *write_legacy(const struct logprobs *const *lists, int32_t count, int32_t k,
                                 const struct logprobs_names *names)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    logprobs_write(lists, count, k, names, &b);
    return read_back(&b);
}

static const struct jdoc *cell(const struct jdoc *doc, const char *column, size_t i)
{
    const struct jdoc *array = jdoc_get(doc, column);
    assert_non_null(array);
    assert_true(i < jdoc_size(array));
    return jdoc_at(array, i);
}

static double number_of(const struct jdoc *dict, const char *key)
{
    const struct jdoc *v = jdoc_get(dict, key);
    if (!v)
        fail_msg("no key %s", key);
    return jdoc_number(v);
}

static void test_legacy(void **state)
{
    const struct logprobs_names names = {.tokenizer = *state};
    const struct token_top top[] = {{BYTE_ID + 'b', -0.1F}, {BYTE_ID + 'a', -2.7182817F}};
    struct logprobs prompt, answer;
    logprobs_init(&prompt, 1 << 20);
    logprobs_init(&answer, 1 << 20);
    logprobs_add(&prompt, 1, 0); /* the first has nothing before it */
    logprobs_add(&answer, BYTE_ID + 'a', 3);
    logprobs_score(&answer, 0, -2.7182817F, top, 2);
    logprobs_add(&answer, BYTE_ID + 'c', 4);
    logprobs_score(&answer, 1, -INFINITY, top, 2);
    const struct logprobs *const lists[] = {&prompt, &answer};
    struct jdoc *doc = write_legacy(lists, 2, 2, &names);
    assert_int_equal(jdoc_size(doc), 4);
    assert_string_equal(jdoc_string(cell(doc, "tokens", 0)), "<s>");
    assert_string_equal(jdoc_string(cell(doc, "tokens", 1)), "a");
    assert_int_equal(jdoc_type(cell(doc, "token_logprobs", 0)), JDOC_NULL);
    assert_int_equal(jdoc_type(cell(doc, "top_logprobs", 0)), JDOC_NULL);
    assert_true((float)jdoc_number(cell(doc, "token_logprobs", 1)) == -2.7182817F);
    const struct jdoc *dict = cell(doc, "top_logprobs", 1);
    assert_int_equal(jdoc_size(dict), 2);
    assert_true(number_of(dict, "a") == jdoc_number(cell(doc, "token_logprobs", 1)));
    assert_true((float)number_of(dict, "b") == -0.1F);
    dict = cell(doc, "top_logprobs", 2); /* the token itself is there beyond k */
    assert_int_equal(jdoc_size(dict), 3);
    assert_true(number_of(dict, "c") == -9999.0);
    assert_int_equal(jdoc_int(cell(doc, "text_offset", 2)), 4);
    jdoc_close(doc);
    doc = write_legacy(lists + 1, 1, 0, &names);
    assert_int_equal(jdoc_size(cell(doc, "top_logprobs", 0)), 1);
    assert_true((float)number_of(cell(doc, "top_logprobs", 0), "a") == -2.7182817F);
    jdoc_close(doc);
    logprobs_free(&prompt);
    logprobs_free(&answer);
}

/* Every float reads back as itself, and as a float. */
static void test_floats(void **state)
{
    static const float values[] = {0,     -0.0F,    -1,          -1e-30F,     -3.4e38F,
                                   -0.1F, -1.5e-7F, -9998.9995F, -1.0000001F, -12.345678F};
    const struct logprobs_names names = {.as_ids = true, .tokenizer = *state};
    struct logprobs l;
    logprobs_init(&l, 1 << 20);
    for (int32_t i = 0; i < (int32_t)ARRAY_LEN(values); i++) {
        logprobs_add(&l, i, 0);
        logprobs_score(&l, i, values[i], NULL, 0);
    }
    const struct logprobs *const lists[] = {&l};
    struct jdoc *doc = write_legacy(lists, 1, 5, &names);
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        const struct jdoc *v = cell(doc, "token_logprobs", i);
        float wanted = values[i] > -9999 ? values[i] : -9999;
        assert_int_equal(jdoc_type(v), JDOC_REAL);
        assert_true((float)jdoc_number(v) == wanted);
    }
    assert_string_equal(jdoc_string(cell(doc, "tokens", 7)), "token_id:7");
    jdoc_close(doc);
    logprobs_free(&l);
}

/* Of two tokens with one text the larger value stays; bytes that are no text have names. */
static void test_names(void **state)
{
    const struct tokenizer *t = *state;
    const struct logprobs_names names = {.tokenizer = t}, none = {.tokenizer = NULL};
    int32_t *ids = NULL, count = 0;
    struct err err = {""};
    struct logprobs l;
    char no_piece[32];
    assert_int_equal(tokenizer_encode(t, "e", 1, false, &ids, &count, &err), OK);
    struct token_view last = tokenizer_view(t, ids[count - 1]);
    assert_true(last.kind == TOKEN_TEXT && last.len == 1 && last.text[0] == 'e');
    const struct token_top top[] = {
        {ids[count - 1], -0.5F}, {BYTE_ID + 'e', -1}, {tokenizer_count(t), -2}};
    logprobs_init(&l, 1 << 20);
    logprobs_add(&l, BYTE_ID + 0xe2, 0);
    logprobs_score(&l, 0, -3, top, 3);
    logprobs_add(&l, BYTE_ID + 'e', 0);
    logprobs_score(&l, 1, -1, top, 3);
    const struct logprobs *const lists[] = {&l};
    struct jdoc *doc = write_legacy(lists, 1, 3, &names);
    assert_string_equal(jdoc_string(cell(doc, "tokens", 0)), "bytes:\\xe2");
    const struct jdoc *dict = cell(doc, "top_logprobs", 0);
    assert_int_equal(jdoc_size(dict), 3);
    assert_true(number_of(dict, "e") == -0.5);
    snprintf(no_piece, sizeof no_piece, "token_id:%d", tokenizer_count(t));
    assert_true(number_of(dict, no_piece) == -2);
    assert_true(number_of(dict, "bytes:\\xe2") == -3);
    assert_true(jdoc_number(cell(doc, "token_logprobs", 1)) == -1);
    jdoc_close(doc);
    doc = write_legacy(lists, 1, 3, &none);
    assert_int_equal(jdoc_size(cell(doc, "top_logprobs", 0)), 4);
    jdoc_close(doc);
    logprobs_free(&l);
    free(ids);
}

static void test_prompt_logprobs(void **state)
{
    const struct logprobs_names names = {.tokenizer = *state};
    const struct token_top top[] = {{BYTE_ID + 'b', -0.5F}, {BYTE_ID + 'a', -1}};
    struct logprobs l;
    struct buf b;
    logprobs_init(&l, 1 << 20);
    buf_init(&b, 1 << 20);
    for (int32_t i = 0; i < 3; i++)
        logprobs_add(&l, i ? BYTE_ID + 'a' : 1, 0);
    logprobs_score(&l, 1, -1, top, 2);
    logprobs_score(&l, 2, -1, top, 2);
    logprobs_write_prompt(&l, 1, &names, &b);
    struct jdoc *doc = read_back(&b);
    assert_int_equal(jdoc_size(doc), 3);
    assert_int_equal(jdoc_type(jdoc_at(doc, 0)), JDOC_NULL);
    const struct jdoc *dict = jdoc_at(doc, 2);
    assert_int_equal(jdoc_size(dict), 2);
    assert_string_equal(jdoc_string(jdoc_get(jdoc_get(dict, "100"), "decoded_token")), "a");
    assert_int_equal(jdoc_type(jdoc_get(jdoc_get(dict, "100"), "rank")), JDOC_NULL);
    assert_int_equal(jdoc_int(jdoc_get(jdoc_get(dict, "101"), "rank")), 1);
    assert_true(number_of(jdoc_get(dict, "101"), "logprob") == -0.5);
    jdoc_close(doc);
    logprobs_free(&l);
}

static void test_no_room(void **state)
{
    struct logprobs l;
    (void)state;
    logprobs_init(&l, 30);
    logprobs_add(&l, 1, 0);
    assert_false(logprobs_failed(&l));
    logprobs_add(&l, 2, 0);
    assert_true(logprobs_failed(&l));
    logprobs_score(&l, 1, -1, NULL, 0); /* no harm */
    assert_int_equal(logprobs_count(&l), 1);
    logprobs_free(&l);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {TEST(test_legacy), TEST(test_floats), TEST(test_names),
                                       TEST(test_prompt_logprobs), TEST(test_no_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
