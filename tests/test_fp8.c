/* F8_E4M3 from the ground up: codes, rows that are quantised, and what config.json says of them.
 * What a whole model does with it is tests/blackbox/test_fp8.py's. */
#include "config/model_config.h"
#include "kernels/numerics.h"
#include "weights/fp8.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* OCP 8-bit floating point, E4M3: (-1)^s 2^(e - 7) (1 + m / 8), 2^-6 m / 8 where e is 0. */
static double e4m3(unsigned c)
{
    const int e = (int)(c >> 3 & 15), m = (int)(c & 7);
    const double v = e == 0 ? ldexp(m, -9) : ldexp(8 + m, e - 10);
    return (c & 0x7f) == 0x7f ? NAN : c & 0x80 ? -v : v;
}

/* The nearest value, even codes win ties; NaN beyond the tie with what would be 480. */
static void check_e4m3(float x)
{
    const uint8_t got = dtype_to_e4m3(x);
    const double a = fabs((double)x);
    unsigned best = 0;
    for (unsigned c = 1; c < 0x7f; c++) {
        const double was = fabs(a - e4m3(best)), now = fabs(a - e4m3(c));
        if (now < was || (now == was && c % 2 == 0))
            best = c;
    }
    if (a > 464)
        best = 0x7f;
    assert_int_equal(got, best | (signbit((double)x) ? 0x80u : 0));
}

static void test_e4m3(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 256; c++) {
        const uint8_t code = (uint8_t)c;
        const double want = e4m3(c);
        const float got = dtype_load(&code, DTYPE_F8_E4M3, 0);
        assert_true(isnan(want) ? isnan(got) : (double)got == want);
        if (isnan(want))
            continue;
        assert_int_equal(dtype_to_e4m3(got), c);
        const float tie = (float)((want + e4m3(c + 1)) / 2);
        if (isnan(tie))
            continue;
        check_e4m3(tie);
        check_e4m3(nextafterf(tie, 0));
        check_e4m3(nextafterf(tie, INFINITY));
    }
    check_e4m3(464);
    check_e4m3(nextafterf(464, INFINITY));
    check_e4m3(-1e30f);
    assert_int_equal(dtype_to_e4m3(NAN) & 0x7f, 0x7f);
    for (int n = 0; n < 20000; n++)
        check_e4m3((float)ldexp((double)(int32_t)numerics_mix((uint64_t)n), -23 - n % 24));
}

/* Codes are the nearest of element / scale, the scale is max / 448, and parts are parts. */
static void test_rows(void **state)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    (void)state;
    for (size_t d = 0; d < ARRAY_LEN(dtypes); d++) {
        for (int64_t n = 1; n < 70; n += 4) {
            float row[70], largest = 0, scale;
            uint8_t codes[70], part[70];
            for (int64_t i = 0; i < n; i++) {
                dtype_store(row, dtypes[d], (size_t)i,
                            (float)(int32_t)numerics_mix((uint64_t)(n * 100 + i)) * 0x1p-40f);
                largest = fmaxf(largest, fabsf(dtype_load(row, dtypes[d], (size_t)i)));
            }
            assert_true(fp8_scale(row, dtypes[d], n, &scale));
            assert_true(scale == largest / 448.0f);
            fp8_quantize(codes, row, dtypes[d], (struct span){0, n}, scale);
            for (int64_t i = 0; i < n; i++) {
                const float x = dtype_load(row, dtypes[d], (size_t)i) / scale;
                check_e4m3(x);
                assert_int_equal(codes[i], dtype_to_e4m3(x));
            }
            fp8_quantize(part, row, dtypes[d], (struct span){n / 3, n}, scale);
            assert_memory_equal(part, codes + n / 3, (size_t)(n - n / 3));
        }
    }
}

static void test_bad_rows(void **state)
{
    (void)state;
    float row[20] = {0}, scale;
    uint8_t codes[20];
    assert_true(fp8_scale(row, DTYPE_F32, 20, &scale) && scale == FLT_MIN);
    row[3] = FLT_MIN / 16; /* a scale that is not subnormal */
    assert_true(fp8_scale(row, DTYPE_F32, 20, &scale) && scale == FLT_MIN);
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY, 0x1p110f};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        row[17] = bad[i];
        assert_false(fp8_scale(row, DTYPE_F32, 20, &scale));
    }
    memset(codes, 0x7e, sizeof codes);
    assert_true(fp8_finite(codes, 20));
    codes[19] = 0xff;
    assert_false(fp8_finite(codes, 20));
    assert_true(fp8_finite(codes, 19));
}

/* What a quantization_config says; the black-box tests refuse the wrong ones. */
static void check_quant(const char *quant, int32_t rows, int32_t cols, bool inverse)
{
    struct model_config m;
    struct err err;
    char text[1024];
    snprintf(text, sizeof text,
             "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":1,"
             "\"num_attention_heads\":4,\"intermediate_size\":8,\"vocab_size\":9,"
             "\"quantization_config\":%s}",
             quant);
    if (model_config_parse(text, strlen(text), "config.json", &m, &err) != OK)
        fail_msg("%s", err.text);
    assert_int_equal(m.quant.kind, QUANT_FILE);
    assert_int_equal(m.quant.rows, rows);
    assert_int_equal(m.quant.cols, cols);
    assert_int_equal(m.quant.inverse, inverse);
    const struct quant_config before = m.quant;
    assert_int_equal(model_config_quantize(&m, DTYPE_F8_E4M3, false, &err), OK);
    assert_memory_equal(&before, &m.quant, sizeof before);
}

#define GROUP(strategy)                                                                            \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\",\"config_groups\":{"  \
    "\"group_0\":{\"weights\":{\"num_bits\":8,\"type\":\"float\",\"strategy\":" strategy "}}}}"

static void test_quant(void **state)
{
    (void)state;
    check_quant("{\"quant_method\":\"fp8\",\"weight_block_size\":[128,64]}", 128, 64, true);
    check_quant("{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\"}", 0, 0, false);
    check_quant(GROUP("\"channel\""), 1, 0, false);
    check_quant(GROUP("\"tensor\""), 0, 0, false);
    check_quant(GROUP("\"block\",\"block_structure\":[16,32]"), 16, 32, false);
    struct err err;
    struct model_config m = {.quant.kind = QUANT_NONE};
    assert_int_equal(model_config_quantize(&m, DTYPE_F8_E4M3, false, &err), OK);
    assert_int_equal(m.quant.kind, QUANT_LOAD);
    assert_int_equal(m.quant.rows, 1);
    assert_int_equal(m.quant.cols, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_bad_rows),
        cmocka_unit_test(test_quant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
