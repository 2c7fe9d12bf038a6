/* Rows of MXFP4, by the tables of OCP Microscaling Formats 1.0. Whole checkpoints are
 * tests/blackbox/test_gpt_oss.py's. */
#include "kernels/numerics.h"
#include "weights/mxfp4.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { GROUPS = 5, WIDTH = GROUPS * MXFP4_GROUP };

/* Table 5.3.3: sign, two bits of exponent with bias 1, one of mantissa. */
static double e2m1(unsigned code)
{
    const int exponent = (int)(code >> 1 & 3), mantissa = (int)(code & 1);
    const double size = exponent == 0 ? 0.5 * mantissa : ldexp(1 + 0.5 * mantissa, exponent - 1);
    return code & 8 ? -size : size;
}

static unsigned code_of(const uint8_t *blocks, int64_t i)
{
    return i % 2 == 0 ? blocks[i / 2] & 15u : blocks[i / 2] >> 4;
}

/* All codes in every group, beside any scale. */
static void fill(uint8_t *blocks, uint8_t *exponents)
{
    for (int32_t i = 0; i < WIDTH / 2; i++)
        blocks[i] = (uint8_t)(i * 37 + 11);
    for (int32_t g = 0; g < GROUPS; g++)
        exponents[g] = (uint8_t[]){127, 2, 251, 120, 130}[g];
}

static void check_cols(const uint8_t *blocks, const uint8_t *exponents, struct span cols)
{
    int8_t codes[WIDTH];
    float scales[GROUPS], values[WIDTH];
    const struct span groups = mxfp4_groups(cols);
    const uint8_t *from = blocks + groups.begin * MXFP4_BLOCK;
    assert_true(mxfp4_codes(codes, scales, from, exponents + groups.begin, cols));
    assert_true(mxfp4_values(values, from, exponents + groups.begin, cols));
    for (int64_t i = cols.begin; i < cols.end; i++) {
        const int64_t g = i / MXFP4_GROUP;
        const double meant = ldexp(e2m1(code_of(blocks, i)), exponents[g] - 127);
        const double got = (double)codes[i - cols.begin] * (double)scales[g - groups.begin];
        assert_true(got == meant && (double)values[i - cols.begin] == meant);
    }
}

static void test_rows(void **state)
{
    (void)state;
    uint8_t blocks[WIDTH / 2], exponents[GROUPS];
    fill(blocks, exponents);
    for (int64_t begin = 0; begin < WIDTH; begin += 1 + begin % 7)
        for (int64_t end = begin; end <= WIDTH; end += 1 + end % 13)
            check_cols(blocks, exponents, (struct span){begin, end});
}

static void test_slices(void **state)
{
    (void)state;
    struct tensor_slice s = {.shape = {640, 96}, .rows = {5, 9}, .cols = {31, 33}};
    const struct tensor_slice bytes = mxfp4_bytes(&s);
    assert_int_equal(bytes.shape[1], 48);
    assert_true(bytes.rows.begin == 5 && bytes.rows.end == 9);
    assert_true(bytes.cols.begin == 0 && bytes.cols.end == 32);
    s.cols = (struct span){64, 96};
    assert_true(mxfp4_groups(s.cols).begin == 2 && mxfp4_groups(s.cols).end == 3);
    s.cols = (struct span){40, 40};
    assert_true(span_len(mxfp4_bytes(&s).cols) == 0);
}

/* NaN, what is too large for fp32, and powers of two that no normal number of bf16 is half of, but
 * beside zeros. */
static void test_bad_scales(void **state)
{
    (void)state;
    static const struct span cols = {3, WIDTH};
    uint8_t blocks[WIDTH / 2], exponents[GROUPS];
    int8_t codes[WIDTH];
    float scales[GROUPS], values[WIDTH];
    for (int bad = 0; bad < 5; bad++)
        for (int zeros = 0; zeros < 2; zeros++) {
            fill(blocks, exponents);
            exponents[3] = (uint8_t[]){255, 252, 254, 0, 1}[bad];
            if (zeros)
                memset(blocks + 3 * MXFP4_BLOCK, 0x08, MXFP4_BLOCK);
            const bool fine = zeros && bad > 2;
            assert_int_equal(mxfp4_codes(codes, scales, blocks, exponents, cols), fine);
            assert_int_equal(mxfp4_values(values, blocks, exponents, cols), fine);
            assert_true(!fine || (scales[3] >= 0x1p-126f && values[3 * MXFP4_GROUP] == 0));
        }
}

/* What synthetic weights become: a power of two that holds the largest, and the nearest code. */
static void test_quantize(void **state)
{
    (void)state;
    static const struct span all = {0, WIDTH}, part = {37, 130}, read = {32, WIDTH};
    float row[WIDTH], scales[GROUPS], again[GROUPS];
    int8_t codes[WIDTH], mine[WIDTH];
    for (int32_t i = 0; i < WIDTH; i++)
        row[i] = ldexpf((float)(numerics_bits(7, i) >> 40) * 0x1p-23f - 1, i / MXFP4_GROUP - 3);
    memset(row + MXFP4_GROUP, 0, MXFP4_GROUP * sizeof *row);
    assert_true(mxfp4_quantize(codes, scales, row, DTYPE_F32, all, all));
    for (int32_t i = 0; i < WIDTH; i++) {
        const double scale = (double)scales[i / MXFP4_GROUP],
                     off = codes[i] * scale - (double)row[i];
        double least = INFINITY;
        for (unsigned code = 0; code < 16; code++)
            least = fmin(least, fabs(2 * e2m1(code) * scale - (double)row[i]));
        assert_true(fabs(off) == least);
        assert_true(fabs((double)row[i]) <= 16 * scale);
    }
    assert_true(mxfp4_quantize(mine, again, row + read.begin, DTYPE_F32, read, part));
    assert_memory_equal(mine, codes + part.begin, (size_t)span_len(part));
    assert_memory_equal(again, scales + 1, 4 * sizeof *scales);
    row[70] = NAN;
    assert_false(mxfp4_quantize(codes, scales, row, DTYPE_F32, all, all));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_slices),
                                       cmocka_unit_test(test_bad_scales),
                                       cmocka_unit_test(test_quantize)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
