/* Words of integers, against formulas of the three forms that share no code with the loader's, and
 * what config.json says of them. Whole checkpoints are tests/blackbox/test_packed.py's. */
#include "weights/packed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 40, COLS = 232, GROUPS_MAX = 8 };

struct matrix {
    struct local_weight w;
    int32_t bits, zero_min, zero_max;
};

static struct matrix matrix_of(enum quant_form form, enum dtype code, int32_t cols, bool more)
{
    struct matrix m = {.bits = code == DTYPE_I8 ? 8 : 4};
    m.w.quant = (struct quant_config){.kind = QUANT_FILE, .form = form, .code = code, .rows = 1};
    m.w.quant.cols = cols;
    m.w.quant.zero_more = more;
    m.zero_min = code != DTYPE_U4 ? 1 << (m.bits - 1) : 0;
    m.zero_max = code != DTYPE_U4 ? m.zero_min : 15;
    return m;
}

static int32_t group_of(const struct matrix *m, int32_t k)
{
    return m->w.quant.cols > 0 ? k / m->w.quant.cols : 0;
}

static int32_t code_of(const struct matrix *m, int32_t n, int32_t k)
{
    return (n * 7 + k * 11 + n * k % 5) % (1 << m->bits);
}

static int32_t zero_of(const struct matrix *m, int32_t n, int32_t group)
{
    return m->zero_min + (n * 3 + group * 5) % (m->zero_max - m->zero_min + 1);
}

static float scale_of(int32_t n, int32_t group)
{
    return dtype_from_f16((uint16_t)(0x2000 + n * 37 + group * 811)); /* 2^-7 and more */
}

static void put_bits(uint32_t *word, int32_t bits, int32_t place, int32_t value)
{
    *word |= (uint32_t)value << bits * place;
}

/* Whole tensors, by the definitions in weights/packed.h. */
struct tensors {
    uint32_t codes[ROWS * COLS / 4], zeros[ROWS * GROUPS_MAX];
    uint16_t scales[ROWS * GROUPS_MAX];
};

static void make(const struct matrix *m, struct tensors *t)
{
    static const int32_t awq[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const int32_t p = 32 / m->bits, groups = group_of(m, COLS - 1) + 1;
    const enum quant_form form = m->w.quant.form;
    memset(t, 0, sizeof *t);
    for (int32_t n = 0; n < ROWS; n++) {
        for (int32_t k = 0; k < COLS; k++) {
            const int32_t q = code_of(m, n, k);
            if (form == QUANT_PACKED)
                put_bits(&t->codes[n * (COLS / p) + k / p], m->bits, k % p, q);
            else if (form == QUANT_GPTQ)
                put_bits(&t->codes[k / p * ROWS + n], m->bits, k % p, q);
            else
                put_bits(&t->codes[k * (ROWS / p) + n / p], m->bits, awq[n % p], q);
        }
        for (int32_t g = 0; g < groups; g++) {
            const int32_t z = zero_of(m, n, g);
            const bool packed = form == QUANT_PACKED;
            const int32_t place = form == QUANT_AWQ ? awq[n % p] : n % p;
            t->scales[packed ? n * groups + g : g * ROWS + n] = dtype_to_f16(scale_of(n, g));
            put_bits(&t->zeros[packed ? n / p * groups + g : g * (ROWS / p) + n / p], m->bits,
                     place, z);
        }
    }
    const uint32_t ones = m->bits == 4 ? 0x11111111u : 0x01010101u; /* words are less one */
    for (size_t i = 0; m->w.quant.zero_more && i < ARRAY_LEN(t->zeros); i++)
        t->zeros[i] -= ones;
}

/* A rectangle of a tensor as the loader reads it. */
static void *cut(const struct tensor_slice *part, const void *tensor, size_t size)
{
    const size_t cols = (size_t)span_len(part->cols), rows = (size_t)span_len(part->rows);
    char *out = malloc(rows * cols * size + 1);
    assert_non_null(out);
    for (size_t r = 0; r < rows; r++)
        memcpy(out + r * cols * size,
               (const char *)tensor + (((size_t)part->rows.begin + r) * (size_t)part->shape[1] +
                                       (size_t)part->cols.begin) *
                                          size,
               cols * size);
    return out;
}

static struct packed_rows rows_of(const struct matrix *m, const struct tensors *t, struct span rows,
                                  struct span cols)
{
    struct tensor_slice s = {.tensor = "x.weight", .shape = {ROWS, COLS}, .ndim = 2}, part;
    s.rows = rows;
    s.cols = cols;
    struct packed_rows p = {.weight = &m->w, .slice = s, .scales_type = DTYPE_F16};
    assert_true(packed_part(&m->w, &s, PACKED_CODES, &part));
    p.codes = cut(&part, t->codes, sizeof *p.codes);
    assert_true(packed_part(&m->w, &s, PACKED_SCALES, &part));
    p.scales = cut(&part, t->scales, sizeof(uint16_t));
    if (packed_part(&m->w, &s, PACKED_ZEROS, &part))
        p.zeros = cut(&part, t->zeros, sizeof *p.zeros);
    return p;
}

static void rows_free(struct packed_rows *p)
{
    free((void *)(uintptr_t)p->codes);
    free((void *)(uintptr_t)p->zeros);
    free((void *)(uintptr_t)p->scales);
}

static void check_row(const struct matrix *m, const struct packed_rows *p, int32_t n)
{
    int8_t codes[COLS];
    float scales[COLS / BACKEND_GROUP + 2], values[COLS];
    const struct span cols = p->slice.cols;
    assert_int_equal(packed_codes(p, n, codes, scales), PACKED_SOUND);
    assert_int_equal(packed_values(p, n, values), PACKED_SOUND);
    for (int32_t k = (int32_t)cols.begin; k < cols.end; k++) {
        const int32_t i = k - (int32_t)cols.begin, g = group_of(m, k);
        const int32_t run = k / BACKEND_GROUP - (int32_t)cols.begin / BACKEND_GROUP;
        const int32_t wanted = code_of(m, n, k) - zero_of(m, n, g);
        assert_int_equal(codes[i], wanted);
        assert_true(scales[run] == scale_of(n, g));
        assert_true((double)values[i] == (double)scale_of(n, g) * wanted);
    }
}

static const struct {
    enum quant_form form;
    enum dtype code;
    int32_t cols;
    bool more;
} forms[] = {{QUANT_PACKED, DTYPE_I4, 128, false}, {QUANT_PACKED, DTYPE_U4, 32, false},
             {QUANT_PACKED, DTYPE_I8, 64, false},  {QUANT_PACKED, DTYPE_U4, 0, false},
             {QUANT_GPTQ, DTYPE_I4, 128, true},    {QUANT_GPTQ, DTYPE_U4, 64, true},
             {QUANT_GPTQ, DTYPE_U4, 32, false},    {QUANT_GPTQ, DTYPE_I8, 0, true},
             {QUANT_AWQ, DTYPE_U4, 64, false},     {QUANT_AWQ, DTYPE_U4, 128, false}};

/* Every form, cut anywhere: within words, within groups. */
static void test_rows(void **state)
{
    (void)state;
    static struct tensors t;
    for (size_t f = 0; f < ARRAY_LEN(forms); f++) {
        const struct matrix m =
            matrix_of(forms[f].form, forms[f].code, forms[f].cols, forms[f].more);
        make(&m, &t);
        for (int32_t begin = 0; begin < COLS; begin += 1 + begin % 23) {
            for (int32_t end = begin + 1; end <= COLS; end += 1 + end % 37) {
                const struct span rows = {begin % 9, ROWS - end % 5};
                struct packed_rows p = rows_of(&m, &t, rows, (struct span){begin, end});
                for (int32_t n = (int32_t)rows.begin; n < rows.end; n += 3)
                    check_row(&m, &p, n);
                rows_free(&p);
            }
        }
    }
}

/* Names, shapes and rectangles; sizes that are no multiple of a word. */
static void test_parts(void **state)
{
    (void)state;
    static const struct {
        enum quant_form form;
        enum packed_part part;
        const char *name;
        int64_t shape[2], rows[2], cols[2];
    } cases[] = {{QUANT_PACKED, PACKED_CODES, "a.weight_packed", {37, 13}, {9, 20}, {3, 9}},
                 {QUANT_PACKED, PACKED_SCALES, "a.weight_scale", {37, 4}, {9, 20}, {0, 3}},
                 {QUANT_PACKED, PACKED_ZEROS, "a.weight_zero_point", {5, 4}, {1, 3}, {0, 3}},
                 {QUANT_PACKED, PACKED_ORDER, "a.weight_g_idx", {1, 101}, {0, 1}, {30, 65}},
                 {QUANT_PACKED, PACKED_SHAPE, "a.weight_shape", {1, 2}, {0, 1}, {0, 2}},
                 {QUANT_GPTQ, PACKED_CODES, "a.qweight", {13, 37}, {3, 9}, {9, 20}},
                 {QUANT_GPTQ, PACKED_SCALES, "a.scales", {4, 37}, {0, 3}, {9, 20}},
                 {QUANT_GPTQ, PACKED_ZEROS, "a.qzeros", {4, 5}, {0, 3}, {1, 3}},
                 {QUANT_GPTQ, PACKED_ORDER, "a.g_idx", {1, 101}, {0, 1}, {30, 65}},
                 {QUANT_GPTQ, PACKED_BIAS, "a.bias", {1, 37}, {0, 1}, {9, 20}},
                 {QUANT_AWQ, PACKED_CODES, "a.qweight", {101, 5}, {30, 65}, {1, 3}},
                 {QUANT_AWQ, PACKED_ZEROS, "a.qzeros", {4, 5}, {0, 3}, {1, 3}}};
    struct tensor_slice s = {.tensor = "a.weight", .shape = {37, 101}, .rows = {9, 20}}, part;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct matrix m = matrix_of(cases[i].form, DTYPE_U4, 32, false);
        s.cols = (struct span){30, 65};
        assert_true(packed_part(&m.w, &s, cases[i].part, &part));
        assert_string_equal(part.tensor, cases[i].name);
        assert_memory_equal(part.shape, cases[i].shape, sizeof part.shape);
        assert_true(part.rows.begin == cases[i].rows[0] && part.rows.end == cases[i].rows[1]);
        assert_true(part.cols.begin == cases[i].cols[0] && part.cols.end == cases[i].cols[1]);
        s.cols = (struct span){40, 40};
        assert_true(packed_part(&m.w, &s, cases[i].part, &part));
        assert_true(span_len(part.rows) * span_len(part.cols) == 0);
        assert_int_equal(packed_fits(&m.w, &s), cases[i].form == QUANT_PACKED);
    }
    const struct matrix plain = matrix_of(QUANT_PACKED, DTYPE_I4, 32, false);
    const struct matrix awq = matrix_of(QUANT_AWQ, DTYPE_U4, 32, false);
    assert_false(packed_part(&plain.w, &s, PACKED_ZEROS, &part));
    assert_false(packed_part(&awq.w, &s, PACKED_ORDER, &part));
    assert_false(packed_part(&awq.w, &s, PACKED_SHAPE, &part));
    assert_true(packed_is_source(&plain.w));
    assert_false(packed_is_source(&(struct local_weight){.quant.kind = QUANT_FILE}));
}

/* Scales that are no numbers, and zeros of which config.json says that there are none. */
static void test_faults(void **state)
{
    (void)state;
    static struct tensors t;
    static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e00}; /* infinities, and a NaN */
    int8_t codes[COLS];
    float scales[COLS / BACKEND_GROUP + 2], values[COLS];
    const struct span rows = {3, 11}, cols = {70, 190};
    for (size_t i = 0; i < 5; i++) {
        const struct matrix m = matrix_of(QUANT_GPTQ, DTYPE_I4, 64, true);
        make(&m, &t);
        if (i < 3)
            t.scales[2 * ROWS + 7] = bad[i];
        else
            t.zeros[2 * (ROWS / 8)] ^= (i == 3 ? 0x2u : 0x1u) << 28; /* of output 7 */
        struct packed_rows p = rows_of(&m, &t, rows, cols);
        const enum packed_fault fault = i < 3 ? PACKED_BAD_SCALE : PACKED_BAD_ZERO;
        assert_int_equal(packed_codes(&p, 7, codes, scales), fault);
        assert_int_equal(packed_values(&p, 7, values), fault);
        check_row(&m, &p, 6);
        check_row(&m, &p, 8);
        rows_free(&p);
    }
}

/* Symmetric, as version 2 has them, in a file that says that it is of version 1. */
static void test_second_version(void **state)
{
    (void)state;
    static struct tensors t;
    const struct matrix m = matrix_of(QUANT_GPTQ, DTYPE_I4, 64, true);
    make(&m, &t);
    for (size_t i = 0; i < ARRAY_LEN(t.zeros); i++)
        t.zeros[i] = 0x88888888u;
    struct packed_rows p = rows_of(&m, &t, (struct span){3, 11}, (struct span){70, 190});
    for (int32_t row = 3; row < 11; row++)
        check_row(&m, &p, row);
    rows_free(&p);
}

/* ---- config.json ---- */

static enum status parse(const char *quant, struct model_config *m, struct err *err)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":1,"
             "\"num_attention_heads\":4,\"intermediate_size\":8,\"vocab_size\":9,"
             "\"quantization_config\":{%s}}",
             quant);
    return model_config_parse(text, strlen(text), "config.json", m, err);
}

#define PACKED(weights)                                                                            \
    "\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{"    \
    "\"group_0\":{\"weights\":{" weights "}}}"
#define GROUP "\"type\":\"int\",\"strategy\":\"group\",\"group_size\":128,"
#define GPTQ "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":"
#define AWQ "\"quant_method\":\"awq\",\"version\":\"GEMM\","

static void test_config(void **state)
{
    (void)state;
    static const struct {
        const char *quant;
        enum quant_form form;
        enum dtype code;
        int32_t cols, more;
    } good[] = {
        {PACKED(GROUP "\"num_bits\":4"), QUANT_PACKED, DTYPE_I4, 128, 0},
        {PACKED(GROUP "\"num_bits\":4") ",\"sparsity_config\":{\"format\":\"dense\"}", QUANT_PACKED,
         DTYPE_I4, 128, 0},
        {PACKED(GROUP "\"num_bits\":4,\"symmetric\":false"), QUANT_PACKED, DTYPE_U4, 128, 0},
        {PACKED(GROUP "\"num_bits\":8,\"actorder\":\"static\""), QUANT_PACKED, DTYPE_I8, 128, 0},
        {PACKED("\"type\":\"int\",\"strategy\":\"channel\",\"num_bits\":4"), QUANT_PACKED, DTYPE_I4,
         0, 0},
        {GPTQ "128", QUANT_GPTQ, DTYPE_I4, 128, 1},
        {GPTQ "32,\"sym\":false", QUANT_GPTQ, DTYPE_U4, 32, 1},
        {GPTQ "128,\"desc_act\":true,\"static_groups\":true", QUANT_GPTQ, DTYPE_I4, 128, 1},
        {GPTQ "-1,\"desc_act\":true,\"checkpoint_format\":\"gptq_v2\",\"dynamic\":{}", QUANT_GPTQ,
         DTYPE_I4, 0, 0},
        {AWQ "\"w_bit\":4,\"q_group_size\":64", QUANT_AWQ, DTYPE_U4, 64, 0},
        {AWQ "\"bits\":4,\"group_size\":-1", QUANT_AWQ, DTYPE_U4, 0, 0}};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct model_config m;
        struct err err;
        if (parse(good[i].quant, &m, &err) != OK)
            fail_msg("%s", err.text);
        assert_int_equal(m.quant.form, good[i].form);
        assert_int_equal(m.quant.code, good[i].code);
        assert_int_equal(m.quant.cols, good[i].cols);
        assert_int_equal(m.quant.zero_more, good[i].more);
        const bool eight = good[i].code == DTYPE_I8;
        assert_string_equal(model_config_codes(&m), eight ? "int8" : "int4");
        assert_int_equal(model_config_quantize(&m, eight ? DTYPE_I8 : DTYPE_I4, false, &err), OK);
        assert_int_equal(m.quant.code, good[i].code);
        assert_int_equal(model_config_quantize(&m, DTYPE_F8_E4M3, false, &err), ERR_USAGE);
        assert_int_equal(model_config_quantize(&m, DTYPE_F32, true, &err), OK);
        assert_null(model_config_codes(&m));
    }
}

static void test_bad_config(void **state)
{
    (void)state;
    static const struct {
        const char *quant, *wanted;
    } bad[] = {
        {PACKED(GROUP "\"num_bits\":3"), "num_bits is 3, expected 4, or 8"},
        {PACKED(GROUP "\"num_bits\":8,\"symmetric\":false"), "symmetric is false, expected true"},
        {PACKED(GROUP "\"num_bits\":4,\"actorder\":\"group\""), "actorder is \"group\", expected"},
        {PACKED(GROUP "\"num_bits\":4,\"actorder\":true"), "actorder is true, expected"},
        {PACKED("\"type\":\"float\",\"strategy\":\"channel\",\"num_bits\":4"), "expected \"int\""},
        {PACKED("\"type\":\"int\",\"strategy\":\"tensor\",\"num_bits\":4"),
         "strategy is \"tensor\""},
        {PACKED(GROUP "\"num_bits\":4") ",\"transform_config\":{\"a\":1}", "transform_config is"},
        {PACKED(GROUP "\"num_bits\":4") ",\"sparsity_config\":{\"format\":\"x\"}",
         "format is \"x\", expected \"dense\""},
        {PACKED(GROUP "\"num_bits\":4") ",\"sparsity_config\":1", "sparsity_config is 1"},
        {GPTQ "16", "group_size is 16, expected a multiple of 32, or -1"},
        {GPTQ "0", "group_size is 0, expected"},
        {GPTQ "null", "group_size is null, expected"},
        {GPTQ "128,\"static_groups\":1", "static_groups is 1"},
        {GPTQ "128,\"desc_act\":true,\"static_groups\":false", "desc_act is true, expected false"},
        {GPTQ "128,\"desc_act\":true", "desc_act is true, expected false: columns in the order"},
        {GPTQ "128,\"checkpoint_format\":\"marlin\"", "checkpoint_format is \"marlin\", expected"},
        {GPTQ "128,\"is_marlin_format\":true", "is_marlin_format is true"},
        {GPTQ "128,\"lm_head\":true", "lm_head is true, expected false"},
        {GPTQ "128,\"dynamic\":{\"-:x\":{},\"+:y\":{}}", "expected null, or rules"},
        {"\"quant_method\":\"gptq\",\"group_size\":128", "bits is missing"},
        {"\"quant_method\":\"gptq\",\"group_size\":128,\"bits\":8,\"sym\":false",
         "sym is false, expected true (with 8 bits)"},
        {AWQ "\"bits\":8,\"group_size\":64", "bits is 8, expected 4"},
        {AWQ "\"bits\":4,\"group_size\":64,\"zero_point\":false", "zero_point is false"},
        {"\"quant_method\":\"awq\",\"version\":\"gemv\",\"bits\":4,\"group_size\":64",
         "version is \"gemv\", expected \"gemm\""},
        {"\"quant_method\":\"bitsandbytes\"", "\"gptq\", \"awq\" or \"mxfp4\""}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct model_config m;
        struct err err = {""};
        assert_int_equal(parse(bad[i].quant, &m, &err), ERR_MODEL);
        if (!strstr(err.text, bad[i].wanted))
            fail_msg("\"%s\" is not in \"%s\"", bad[i].wanted, err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),   cmocka_unit_test(test_parts),
        cmocka_unit_test(test_faults), cmocka_unit_test(test_second_version),
        cmocka_unit_test(test_config), cmocka_unit_test(test_bad_config)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
