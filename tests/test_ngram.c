/* Guesses against a search of every place that there is, and what --speculative-config takes. */
#include "engine/ngram.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static uint64_t seed;

static int32_t below(int32_t n) /* splitmix64 */
{
    uint64_t z = seed += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (int32_t)((z >> 33) % (uint64_t)n);
}

static struct ngram *open_ngram(struct speculation s, int32_t capacity)
{
    struct ngram *n = NULL;
    struct err err;
    assert_int_equal(ngram_open(&s, capacity, NULL, 0, &n, &err), OK);
    return n;
}

/* Equal tokens before two places, at most `longest`. */
static int32_t equal_before(const int32_t *tokens, int32_t a, int32_t b, int32_t longest)
{
    int32_t n = 0;
    while (n < longest && n < a && tokens[a - 1 - n] == tokens[b - 1 - n])
        n++;
    return n;
}

/* The latest of the places that are most alike to the end; of the latest 16 that are at all. 0:
 * there is none. */
static int32_t find_place(const int32_t *tokens, int32_t length, const struct speculation *s)
{
    int32_t best = 0, place = 0, seen = 0;
    for (int32_t at = length - 1; at >= s->shortest && seen < 16; at--) {
        const int32_t equal = equal_before(tokens, at, length, s->longest);
        if (equal < s->shortest)
            continue;
        seen++;
        if (equal > best) {
            best = equal;
            place = at;
        }
    }
    return place;
}

static void check_against_search(const struct speculation *s, int32_t letters)
{
    enum { LENGTH = 600 };
    int32_t tokens[LENGTH], guesses = 0;
    struct ngram *n = open_ngram(*s, LENGTH);
    for (int32_t length = 1; length <= LENGTH; length++) {
        const bool copies = length > 20 && below(8) > 0;
        const int32_t distance = length / 40 % 2 ? 7 : 13;
        tokens[length - 1] = copies ? tokens[length - 1 - distance] : below(letters);
        if (below(5) == 0)
            continue; /* several at once */
        ngram_follow(n, tokens, length);
        const int32_t place = find_place(tokens, length, s);
        assert_true((ngram_chance(n, 0) > 0) == (place > 0));
        for (int32_t i = 0; i < 40; i++) {
            const int32_t at = place > 0 ? place + i % (length - place) : 0;
            assert_int_equal(ngram_guess(n, i), place > 0 ? tokens[at] : -1);
        }
        guesses += place > 0;
    }
    assert_true(guesses > 20);
    ngram_free(n);
}

static void test_guesses(void **state)
{
    (void)state;
    static const struct speculation rules[] = {
        {7, 1, 1}, {7, 1, 4}, {7, 2, 8}, {7, 3, 16}, {7, 5, 5}};
    for (size_t i = 0; i < ARRAY_LEN(rules); i++)
        for (int32_t letters = 2; letters <= 2000; letters *= 10) {
            seed = 100 * i + (uint64_t)letters;
            check_against_search(&rules[i], letters);
        }
}

/* Guesses that keep coming true become likely, and those that do not, unlikely; by how much of the
 * text before was alike. */
static void test_chances(void **state)
{
    (void)state;
    enum { LENGTH = 400 };
    int32_t tokens[LENGTH];
    struct ngram *n = open_ngram((struct speculation){7, 2, 4}, LENGTH);
    for (int32_t length = 1; length <= LENGTH; length++) { /* goes round */
        tokens[length - 1] = length % 10;
        ngram_follow(n, tokens, length);
    }
    assert_true(ngram_chance(n, 0) > 0.99 && ngram_chance(n, 5) > 0.99);
    ngram_free(n);

    /* after two that were there, one that was not */
    n = open_ngram((struct speculation){7, 2, 4}, LENGTH);
    for (int32_t length = 1; length <= LENGTH; length++) {
        tokens[length - 1] = length % 3 == 0 ? 1000 + length : length % 3;
        ngram_follow(n, tokens, length);
        if (length > 5 && length % 3 == 2)
            assert_int_equal(ngram_guess(n, 0), 1000 + length - 2);
        if (length > LENGTH - 3 && length % 3 == 2)
            assert_true(ngram_chance(n, 0) > 0 && ngram_chance(n, 0) < 0.01);
    }
    ngram_free(n);
}

/* What is predicted is guessed as if it had been said. */
static void test_prediction(void **state)
{
    (void)state;
    static const int32_t predicted[] = {5, 6, 7, 8, 9, 10}, said[] = {1, 2, 5, 6, 7};
    const struct speculation rules = {7, 2, 4};
    struct ngram *n = NULL;
    struct err err;
    assert_int_equal(ngram_open(&rules, 8, predicted, 6, &n, &err), OK);
    ngram_follow(n, said, 2);
    assert_int_equal(ngram_guess(n, 0), -1);
    ngram_follow(n, said, 4);
    assert_int_equal(ngram_guess(n, 0), 7);
    ngram_follow(n, said, 5);
    for (int32_t i = 0; i < 3; i++)
        assert_int_equal(ngram_guess(n, i), 8 + i);
    assert_int_equal(ngram_guess(n, 3), 1); /* the tokens stand one after the other */
    ngram_free(n);
}

/* A text that one n-gram fills costs no more than any other. */
static void test_one_token_again_and_again(void **state)
{
    (void)state;
    enum { LENGTH = 200000 };
    static int32_t tokens[LENGTH];
    struct ngram *n = open_ngram((struct speculation){31, 1, 16}, LENGTH);
    for (int32_t length = 1; length <= LENGTH; length++)
        ngram_follow(n, tokens, length);
    assert_int_equal(ngram_guess(n, 30), 0);
    assert_true(ngram_chance(n, 30) > 0.99);
    ngram_free(n);
}

static void check_parse(const char *text, int32_t tokens, int32_t shortest, int32_t longest)
{
    struct speculation s = {-1, -1, -1};
    struct err err;
    if (speculation_parse(text, &s, &err) != OK)
        fail_msg("%s: %s", text, err.text);
    assert_int_equal(s.tokens, tokens);
    assert_int_equal(s.shortest, shortest);
    assert_int_equal(s.longest, longest);
}

static void test_config(void **state)
{
    (void)state;
    check_parse("none", 0, 0, 0);
    check_parse("ngram", 7, 2, 8);
    check_parse("{}", 7, 2, 8);
    check_parse(
        " {\"method\": \"ngram\", \"num_speculative_tokens\": 31, \"prompt_lookup_min\": 1, "
        "\"prompt_lookup_max\": 16}",
        31, 1, 16);
    check_parse("{\"prompt_lookup_min\": 9}", 7, 9, 9);
    check_parse("{\"prompt_lookup_max\": 1}", 7, 1, 1);
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"eagle", "expected none, ngram or a JSON object"},
        {"", "expected none, ngram or a JSON object"},
        {"{\"method\": \"eagle\"}", "method is \"eagle\", expected \"ngram\""},
        {"{\"method\": 1}", "method is an integer, expected \"ngram\""},
        {"{\"num_speculative_token\": 5}", "did you mean num_speculative_tokens?"},
        {"{\"num_speculative_tokens\": 0}",
         "num_speculative_tokens: expected a whole number from 1 to 31"},
        {"{\"num_speculative_tokens\": 32}", "from 1 to 31"},
        {"{\"num_speculative_tokens\": 1.5}", "from 1 to 31"},
        {"{\"num_speculative_tokens\": \"5\"}", "from 1 to 31"},
        {"{\"prompt_lookup_max\": null}", "from 1 to 16"},
        {"{\"prompt_lookup_min\": 5, \"prompt_lookup_max\": 4}", "prompt_lookup_min 5 is above"},
        {"{\"method\": \"ngram\"", "--speculative-config"},
        {"{\"method\": \"ngram\"} x", "--speculative-config"},
    };
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct speculation s = {5, 5, 5};
        struct err err;
        assert_int_equal(speculation_parse(wrong[i].text, &s, &err), ERR_USAGE);
        if (!strstr(err.text, wrong[i].says))
            fail_msg("%s: %s", wrong[i].text, err.text);
        assert_int_equal(s.tokens, 5);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guesses),    cmocka_unit_test(test_chances),
        cmocka_unit_test(test_prediction), cmocka_unit_test(test_one_token_again_and_again),
        cmocka_unit_test(test_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
