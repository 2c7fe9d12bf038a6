/* The reader of GGUF files against files and values by the gguf package of llama.cpp's authors
 * (tests/make_gguf_corpus.py). What is wrong with a file is test_gguf_wrong.c's. */
#include "tests/gguf_image.h"

#define CORPUS TEST_DATA_DIR "/corpus/gguf/"
#define GOLDEN TEST_DATA_DIR "/corpus/gguf_values.f32"

/* ---- blocks ---- */

enum { ROWS = 2, WIDTH = 256 }; /* of each tensor of blocks.gguf */

static const enum gguf_block all_blocks[] = {
    GGUF_BLOCK_F32,  GGUF_BLOCK_F16,    GGUF_BLOCK_BF16,   GGUF_BLOCK_Q4_0,
    GGUF_BLOCK_Q4_1, GGUF_BLOCK_Q5_0,   GGUF_BLOCK_Q5_1,   GGUF_BLOCK_Q8_0,
    GGUF_BLOCK_Q2_K, GGUF_BLOCK_Q3_K,   GGUF_BLOCK_Q4_K,   GGUF_BLOCK_Q5_K,
    GGUF_BLOCK_Q6_K, GGUF_BLOCK_IQ4_NL, GGUF_BLOCK_IQ4_XS, GGUF_BLOCK_MXFP4,
};

/* Both rows at once and one after the other, from any alignment. */
static void check_values(const struct gguf *g, const struct gguf_tensor *t, const void *golden)
{
    uint8_t raw[ROWS * WIDTH * sizeof(float) + 1];
    float values[ROWS * WIDTH];
    assert_true(t->bytes < sizeof raw);
    for (size_t shift = 0; shift < 2; shift++) {
        memset(values, 0, sizeof values);
        read_rows(g, t, 0, ROWS, raw + shift);
        gguf_dequantize(t->block, raw + shift, ROWS * WIDTH, values);
        if (memcmp(values, golden, sizeof values) != 0)
            fail_msg("%s differs from the reference", t->name);
    }
    for (int64_t row = ROWS - 1; row >= 0; row--) {
        read_rows(g, t, row, 1, raw);
        gguf_dequantize(t->block, raw, WIDTH, values + row * WIDTH);
    }
    assert_memory_equal(values, golden, sizeof values);
}

static void test_blocks(void **state)
{
    (void)state;
    size_t n = 0;
    bool seen[GGUF_BLOCK_MXFP4 + 1] = {false};
    struct gguf *g = open_good(CORPUS "blocks.gguf");
    unsigned char *golden = scratch_read(GOLDEN, &n);
    assert_int_equal(gguf_tensor_count(g), ARRAY_LEN(all_blocks));
    assert_int_equal(n, ARRAY_LEN(all_blocks) * ROWS * WIDTH * sizeof(float));
    for (int32_t i = 0; i < gguf_tensor_count(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        assert_true(t->ndim == 2 && t->shape[0] == ROWS && t->shape[1] == WIDTH && t->file == 0);
        assert_string_equal(gguf_block_info((uint32_t)t->block)->name, t->name);
        assert_ptr_equal(gguf_find_tensor(g, t->name), t);
        check_values(g, t, golden + (size_t)i * ROWS * WIDTH * sizeof(float));
        seen[t->block] = true;
    }
    for (size_t i = 0; i < ARRAY_LEN(all_blocks); i++)
        assert_true(seen[all_blocks[i]]);
    free(golden);
    gguf_close(g);
}

static void test_block_names(void **state)
{
    (void)state;
    int32_t known = 0;
    for (uint32_t type = 0; type < 100; type++)
        known += gguf_block_info(type) != NULL;
    assert_int_equal(known, ARRAY_LEN(all_blocks));
    assert_string_equal(gguf_block_name(GGUF_BLOCK_Q4_K), "Q4_K");
    assert_string_equal(gguf_block_name(16), "IQ2_XXS");
    assert_string_equal(gguf_block_name(4), "?");
    assert_string_equal(gguf_block_name(UINT32_MAX), "?");
    assert_null(gguf_block_info(UINT32_MAX));
}

/* ---- keys ---- */

static int64_t int_of(const struct gguf *g, const char *key)
{
    int64_t v = 0;
    if (!gguf_int(gguf_get(g, key), &v))
        fail_msg("%s is no integer", key);
    return v;
}

static double number_of(const struct gguf *g, const char *key)
{
    double v = 0;
    if (!gguf_number(gguf_get(g, key), &v))
        fail_msg("%s is no number", key);
    return v;
}

static void check_ints(const struct gguf *g, const char *type, int64_t low, int64_t high)
{
    char key[64];
    int64_t v = 0;
    snprintf(key, sizeof key, "low.%s", type);
    assert_true(int_of(g, key) == low);
    assert_true(number_of(g, key) == (double)low);
    snprintf(key, sizeof key, "high.%s", type);
    assert_true(int_of(g, key) == high);
    snprintf(key, sizeof key, "array.%s", type);
    const struct gguf_value *array = gguf_get(g, key);
    assert_int_equal(gguf_array_size(array), 3);
    for (size_t i = 0; i < 3; i++)
        assert_true(gguf_array_int(array, i, &v) && v == (i == 1 ? high : low));
    assert_false(gguf_array_int(array, 3, &v));
    assert_false(gguf_int(array, &v));
}

static void test_integers(void **state)
{
    (void)state;
    int64_t v = 5;
    struct gguf *g = open_good(CORPUS "keys.gguf");
    check_ints(g, "UINT8", 0, UINT8_MAX);
    check_ints(g, "INT8", INT8_MIN, INT8_MAX);
    check_ints(g, "UINT16", 0, UINT16_MAX);
    check_ints(g, "INT16", INT16_MIN, INT16_MAX);
    check_ints(g, "UINT32", 0, UINT32_MAX);
    check_ints(g, "INT32", INT32_MIN, INT32_MAX);
    check_ints(g, "INT64", INT64_MIN, INT64_MAX);
    assert_true(int_of(g, "low.UINT64") == INT64_MAX);
    assert_false(gguf_int(gguf_get(g, "high.UINT64"), &v)); /* does not fit */
    assert_false(gguf_array_int(gguf_get(g, "array.UINT64"), 1, &v));
    assert_false(gguf_int(gguf_get(g, "low.FLOAT32"), &v));
    assert_false(gguf_int(gguf_get(g, "high.BOOL"), &v));
    assert_false(gguf_int(gguf_get(g, "text.1"), &v));
    assert_false(gguf_int(gguf_get(g, "gone"), &v));
    assert_false(gguf_int(gguf_get(g, "low.UINT"), &v)); /* the beginning of a key */
    assert_true(v == 5);
    assert_true(number_of(g, "high.UINT64") == 0x1p64);
    gguf_close(g);
}

static void test_reals_and_truth(void **state)
{
    (void)state;
    double d = 5;
    int64_t v = 5;
    bool b = false;
    struct gguf *g = open_good(CORPUS "keys.gguf");
    assert_true(number_of(g, "low.FLOAT32") == -0.15625);
    assert_true(number_of(g, "high.FLOAT32") == (double)3.0e38f);
    assert_true(number_of(g, "low.FLOAT64") == 0.1);
    assert_true(number_of(g, "high.FLOAT64") == -1.7e308);
    assert_true(gguf_array_number(gguf_get(g, "array.FLOAT64"), 2, &d) && d == 0.1);
    assert_true(gguf_array_number(gguf_get(g, "array.FLOAT32"), 0, &d) && d == -0.15625);
    assert_true(gguf_array_number(gguf_get(g, "array.INT8"), 0, &d) && d == -128);
    assert_false(gguf_array_number(gguf_get(g, "array.INT8"), 3, &d));
    assert_false(gguf_array_number(gguf_get(g, "array.STRING"), 0, &d));
    assert_false(gguf_number(gguf_get(g, "low.BOOL"), &d));
    assert_false(gguf_number(NULL, &d));
    assert_true(gguf_bool(gguf_get(g, "low.BOOL"), &b) && b);
    assert_true(gguf_bool(gguf_get(g, "high.BOOL"), &b) && !b);
    assert_false(gguf_bool(gguf_get(g, "low.UINT8"), &b));
    assert_false(gguf_bool(gguf_get(g, "array.BOOL"), &b));
    assert_true(gguf_array_int(gguf_get(g, "array.BOOL"), 0, &v) && v == 1);
    assert_true(gguf_array_int(gguf_get(g, "array.BOOL"), 1, &v) && v == 0);
    gguf_close(g);
}

static void test_texts(void **state)
{
    static const struct gguf_string texts[] = {
        {"", 0}, {"a", 1}, {"\xc4\xa0token \xe2\x96\x81", 11}, {"nul\0inside", 10}};
    (void)state;
    struct gguf_string s = {"", 0};
    struct gguf *g = open_good(CORPUS "keys.gguf");
    const struct gguf_value *array = gguf_get(g, "array.STRING");
    assert_int_equal(gguf_array_size(array), ARRAY_LEN(texts) + 1);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        char key[16];
        snprintf(key, sizeof key, "text.%zu", i);
        assert_true(gguf_text(gguf_get(g, key), &s) && s.n == texts[i].n);
        assert_memory_equal(s.bytes, texts[i].bytes, s.n);
        assert_true(gguf_array_text(array, i, &s) && s.n == texts[i].n);
        assert_memory_equal(s.bytes, texts[i].bytes, s.n);
    }
    assert_true(gguf_array_text(array, ARRAY_LEN(texts), &s) && s.n == 300 && s.bytes[299] == 'x');
    assert_false(gguf_array_text(array, ARRAY_LEN(texts) + 1, &s));
    assert_false(gguf_array_text(gguf_get(g, "array.INT8"), 0, &s));
    assert_false(gguf_array_text(gguf_get(g, "text.1"), 0, &s));
    assert_false(gguf_text(array, &s));
    assert_false(gguf_text(gguf_get(g, "low.INT8"), &s));
    assert_false(gguf_text(NULL, &s));
    assert_int_equal(gguf_array_size(NULL), 0);
    assert_int_equal(gguf_array_size(gguf_get(g, "text.1")), 0);
    gguf_close(g);
}

/* ---- tensors ---- */

static void test_tensors(void **state)
{
    (void)state;
    float v[30];
    uint16_t h[4];
    struct err err = {{0}};
    struct gguf *g = open_good(CORPUS "keys.gguf");
    assert_string_equal(gguf_path(g), CORPUS "keys.gguf");
    assert_int_equal(gguf_tensor_count(g), 3);
    const struct gguf_tensor *cube = gguf_find_tensor(g, "cube");
    assert_true(cube->ndim == 3 && cube->shape[0] == 2 && cube->shape[1] == 3);
    assert_true(cube->shape[2] == 5 && cube->offset % 64 == 0 && cube->bytes == sizeof v);
    read_rows(g, cube, 4, 2, v);
    for (int32_t i = 0; i < 10; i++)
        assert_true(v[i] == (float)(20 + i));
    read_rows(g, cube, 6, 0, v);
    assert_int_equal(gguf_read_rows(g, cube, 4, 3, v, &err), ERR_INTERNAL);
    assert_int_equal(gguf_read_rows(g, cube, -1, 1, v, &err), ERR_INTERNAL);
    assert_int_equal(gguf_read_rows(g, cube, 7, 0, v, &err), ERR_INTERNAL);
    const struct gguf_tensor *scalar = gguf_tensor_at(g, 0);
    assert_string_equal(scalar->name, "scalar");
    read_rows(g, scalar, 0, 1, v);
    assert_true(v[0] == 7 && scalar->bytes == sizeof *v);
    read_rows(g, gguf_find_tensor(g, "last"), 0, 1, h);
    assert_int_equal(h[3], 0x4200);
    assert_null(gguf_find_tensor(g, "cub"));
    assert_null(gguf_find_tensor(g, "cubes"));
    gguf_close(g);
}

/* ---- split models ---- */

static const char *const part_names[] = {"split-00001-of-00003.gguf", "split-00002-of-00003.gguf",
                                         "split-00003-of-00003.gguf"};

static void check_split(const char *path)
{
    float v[6];
    struct gguf *g = open_good(path);
    assert_non_null(strstr(gguf_path(g), part_names[0]));
    assert_int_equal(int_of(g, "test.number"), 5); /* which only the first part has */
    assert_int_equal(gguf_tensor_count(g), 5);
    for (int32_t i = 0; i < 5; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        assert_true(t->name[0] == 't' && t->name[1] == '0' + i && t->file == i / 2);
        assert_ptr_equal(gguf_find_tensor(g, t->name), t);
        read_rows(g, t, 0, 2, v);
        assert_true(v[0] == (float)i && v[5] == (float)i);
    }
    gguf_close(g);
}

/* The model's parts as they are, into the scratch directory. */
static void copy_parts(void)
{
    for (size_t i = 0; i < ARRAY_LEN(part_names); i++) {
        char path[PATH_MAX];
        size_t n = 0;
        snprintf(path, sizeof path, CORPUS "%s", part_names[i]);
        unsigned char *bytes = scratch_read(path, &n);
        scratch_write(scratch_path(part_names[i]), bytes, n);
        free(bytes);
    }
}

/* Replaces a byte of a part, counted from a text that comes once. */
static void patch_part(int32_t part, const char *text, size_t at, uint8_t v)
{
    size_t n = 0;
    const char *path = scratch_path(part_names[part]);
    unsigned char *bytes = scratch_read(path, &n);
    unsigned char *found = memmem(bytes, n, text, strlen(text));
    assert_non_null(found);
    found[at] = v;
    scratch_write(path, bytes, n);
    free(bytes);
}

static void test_split(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(part_names); i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, CORPUS "%s", part_names[i]);
        check_split(path);
    }
}

static const struct {
    int32_t part;
    const char *text;
    size_t at; /* behind the text's first letter */
    uint8_t v;
    const char *words;
} wrong_parts[] = {
    {1, "split.no", 12, 2, "expected part 2 of 3 (split.no, split.count), found part 3 of 3"},
    {1, "split.no", 12, 3, "split.no is 3, expected 0 to 2"},
    {1, "split.count", 15, 4, "expected part 2 of 3 (split.no, split.count), found part 2 of 4"},
    {0, "split.count", 15, 4, "its name is expected to end in -00001-of-00004.gguf"},
    {0, "split.count", 16, 3, "one of 771 files, at most 512"},
    {0, "split.no", 8, GGUF_I16, NULL},
    {2, "split.count", 11, GGUF_I16, NULL},
    {0, "split.tensors.count", 23, 6,
     "expected 6 tensors in its parts (split.tensors.count), found 5"},
    {1, "t3", 1, '1', "comes twice"},
    {2, "GGUF", 3, 'X', "00003-of-00003.gguf: expected a GGUF file"},
};

static void test_wrong_parts(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrong_parts); i++) {
        copy_parts();
        patch_part(wrong_parts[i].part, wrong_parts[i].text, wrong_parts[i].at, wrong_parts[i].v);
        if (wrong_parts[i].words)
            open_bad(scratch_path(part_names[0]), ERR_MODEL, wrong_parts[i].words);
        else
            check_split(scratch_path(part_names[0]));
    }
}

static void test_missing_part(void **state)
{
    (void)state;
    copy_parts();
    assert_int_equal(rename(scratch_path(part_names[1]), scratch_path("other.gguf")), 0);
    open_bad(scratch_path(part_names[2]), ERR_MODEL, "split-00002-of-00003.gguf: No such file");
    open_bad(scratch_path("other.gguf"), ERR_MODEL,
             "part 2 of 3, so its name is expected to end in");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),       cmocka_unit_test(test_block_names),
        cmocka_unit_test(test_integers),     cmocka_unit_test(test_reals_and_truth),
        cmocka_unit_test(test_texts),        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_split),        cmocka_unit_test(test_wrong_parts),
        cmocka_unit_test(test_missing_part),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
