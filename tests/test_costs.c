/* Costs of steps between and beyond the measured points. Measuring is tested with the engine. */
#include "engine/costs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void test_lines(void **state)
{
    (void)state;
    const struct costs c = {
        .count = 4, .rows = {1, 2, 4, 8}, .seconds = {10, 10, 12, 20}, .per_key = 0.5};
    const struct {
        int32_t rows;
        int64_t keys;
        double seconds;
    } cases[] = {{1, 0, 10}, {2, 0, 10},  {3, 0, 11},    {4, 0, 12},  {5, 0, 14},
                 {8, 0, 20}, {16, 0, 36}, {108, 0, 220}, {1, 10, 15}, {16, 1000000, 500036}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_true(costs_of(&c, cases[i].rows, cases[i].keys) == cases[i].seconds);
}

static void test_few_points(void **state)
{
    (void)state;
    const struct costs none = {0}, one = {.count = 1, .rows = {1}, .seconds = {3}, .per_key = 1};
    assert_true(costs_of(&none, 100, 100) == 0);
    assert_true(costs_of(&one, 100, 2) == 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_few_points),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
