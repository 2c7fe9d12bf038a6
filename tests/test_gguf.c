/* The reader of GGUF files against files and values by the gguf package of llama.cpp's authors
 * (tests/make_gguf_corpus.py), and against a small file that is wrong in one place after the other.
 */
#include "tests/scratch.h"
#include "weights/gguf/gguf.h"

#include <math.h>
#include <string.h>

#define CORPUS TEST_DATA_DIR "/corpus/gguf/"
#define GOLDEN TEST_DATA_DIR "/corpus/gguf_values.f32"

static struct gguf *open_good(const char *path)
{
    struct gguf *g = NULL;
    struct err err = {{0}};
    if (gguf_open(path, &g, &err) != OK)
        fail_msg("%s", err.text);
    return g;
}

static void open_bad(const char *path, enum status wanted, const char *words)
{
    struct gguf *g = NULL;
    struct err err = {{0}};
    const enum status st = gguf_open(path, &g, &err);
    assert_null(g);
    if (st != wanted || !strstr(err.text, words))
        fail_msg("expected %d and \"%s\", found %d: %s", (int)wanted, words, (int)st, err.text);
}

static void read_rows(const struct gguf *g, const struct gguf_tensor *t, int64_t first,
                      int64_t count, void *dst)
{
    struct err err = {{0}};
    if (gguf_read_rows(g, t, first, count, dst, &err) != OK)
        fail_msg("%s", err.text);
}

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

/* ---- a small file, good or wrong in one place ---- */

struct image {
    char *bytes;
    size_t n, room;
};

static void put(struct image *m, const void *bytes, size_t n)
{
    if (m->n + n > m->room) {
        m->room = 2 * (m->n + n);
        m->bytes = realloc(m->bytes, m->room);
        assert_non_null(m->bytes);
    }
    memcpy(m->bytes + m->n, bytes, n);
    m->n += n;
}

static void put_int(struct image *m, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++, v >>= 8)
        put(m, &(char){(char)(v & 255)}, 1);
}

static void put_text(struct image *m, const char *text)
{
    put_int(m, strlen(text), 8);
    put(m, text, strlen(text));
}

/* Places of the small file. */
enum place {
    MAGIC,
    VERSION,
    TENSORS,
    KEYS,
    ALIGNMENT_TYPE,
    ALIGNMENT,
    TRUTH_KEY,
    TRUTH_TYPE,
    TRUTH,
    LIST_KEY_SIZE,
    LIST_KEY,
    LIST_TYPE,
    LIST_SIZE,
    LIST_TEXT,
    EMPTY_TYPE,
    NAME_SIZE,
    NAME,
    DIMENSIONS,
    WIDTH_0,
    HEIGHT_0,
    BLOCK,
    OFFSET_0,
    NAME_1,
    WIDTH_1,
    BLOCK_1,
    OFFSET_1,
    HEADER_END,
    PLACES
};

static void put_keys(struct image *m, size_t at[PLACES])
{
    put_text(m, "general.alignment");
    at[ALIGNMENT_TYPE] = m->n, put_int(m, GGUF_U32, 4);
    at[ALIGNMENT] = m->n, put_int(m, 32, 4);
    at[TRUTH_KEY] = m->n + 8, put_text(m, "b");
    at[TRUTH_TYPE] = m->n, put_int(m, GGUF_BOOL, 4);
    at[TRUTH] = m->n, put_int(m, 1, 1);
    at[LIST_KEY_SIZE] = m->n, at[LIST_KEY] = m->n + 8, put_text(m, "a");
    put_int(m, GGUF_ARRAY, 4);
    at[LIST_TYPE] = m->n, put_int(m, GGUF_STRING, 4);
    at[LIST_SIZE] = m->n, put_int(m, 2, 8);
    at[LIST_TEXT] = m->n, put_text(m, "x");
    put_text(m, "");
    put_text(m, "empty");
    put_int(m, GGUF_ARRAY, 4);
    at[EMPTY_TYPE] = m->n, put_int(m, GGUF_I32, 4);
    put_int(m, 0, 8);
}

/* Two rows of a block of Q8_0, and 3 values of fp32. */
static struct image small_file(size_t at[PLACES])
{
    struct image m = {0};
    at[MAGIC] = m.n, put(&m, "GGUF", 4);
    at[VERSION] = m.n, put_int(&m, 3, 4);
    at[TENSORS] = m.n, put_int(&m, 2, 8);
    at[KEYS] = m.n, put_int(&m, 4, 8);
    put_keys(&m, at);
    at[NAME_SIZE] = m.n, at[NAME] = m.n + 8, put_text(&m, "s");
    at[DIMENSIONS] = m.n, put_int(&m, 2, 4);
    at[WIDTH_0] = m.n, put_int(&m, 32, 8);
    at[HEIGHT_0] = m.n, put_int(&m, 2, 8);
    at[BLOCK] = m.n, put_int(&m, GGUF_BLOCK_Q8_0, 4);
    at[OFFSET_0] = m.n, put_int(&m, 0, 8);
    at[NAME_1] = m.n + 8, put_text(&m, "t");
    put_int(&m, 1, 4);
    at[WIDTH_1] = m.n, put_int(&m, 3, 8);
    at[BLOCK_1] = m.n, put_int(&m, GGUF_BLOCK_F32, 4);
    at[OFFSET_1] = m.n, put_int(&m, 96, 8);
    at[HEADER_END] = m.n;
    put_int(&m, 0, base_align(m.n, 32) - m.n);
    for (int32_t i = 0; i < 96 + 12; i++)
        put_int(&m, (uint64_t)i, 1);
    return m;
}

/* From memory of exactly n bytes, so that a sanitizer sees a read behind it. */
static enum status parse_exactly(const char *bytes, size_t n, uint64_t file_bytes, struct err *err)
{
    struct gguf *g = NULL;
    char *copy = malloc(n > 0 ? n : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    const enum status st = gguf_parse(copy, n, file_bytes, "PATH", &g, err);
    assert_true((st == OK) == (g != NULL));
    if (st != OK) {
        assert_true(strncmp(err->text, "PATH: ", 6) == 0 || strncmp(err->text, "PATH is", 7) == 0);
        assert_null(strchr(err->text, '\n'));
    }
    gguf_close(g);
    free(copy);
    return st;
}

static const struct {
    enum place place;
    size_t bytes;
    uint64_t v;
    const char *words; /* NULL: it is good so, too */
} wrong[] = {
    {MAGIC, 4, 0x46554746, "expected a GGUF file, which begins with GGUF, found bytes 46 47 55 46"},
    {VERSION, 4, 2, NULL},
    {VERSION, 4, 0, "version 0, expected 2 or 3"},
    {VERSION, 4, 1, "version 1, expected 2 or 3"},
    {VERSION, 4, 4, "version 4, expected 2 or 3"},
    {VERSION, 4, 0x03000000, "big-endian"},
    {TENSORS, 8, 1, NULL},
    {TENSORS, 8, 3, "the name of a tensor has 0 bytes"},
    {TENSORS, 8, 20, "20 tensors do not fit"},
    {TENSORS, 8, 100001, "100001 tensors, at most 100000"},
    {TENSORS, 8, UINT64_MAX, "18446744073709551615 tensors, at most 100000"},
    {KEYS, 8, 5, "but the file ends at"},
    {KEYS, 8, 100, "100 keys do not fit"},
    {KEYS, 8, 65537, "65537 keys, at most 65536"},
    {KEYS, 8, UINT64_MAX, "18446744073709551615 keys, at most"},
    {ALIGNMENT_TYPE, 4, GGUF_I32, NULL},
    {ALIGNMENT_TYPE, 4, GGUF_F32, "expected general.alignment to be an integer"},
    {ALIGNMENT, 4, 0, "general.alignment is 0, expected a power of two from 8"},
    {ALIGNMENT, 4, 4, "general.alignment is 4, expected"},
    {ALIGNMENT, 4, 48, "general.alignment is 48, expected"},
    {ALIGNMENT, 4, 1u << 31, "general.alignment is 2147483648, expected"},
    {ALIGNMENT, 4, 16, "tensor t: expected its bytes to begin at offset 80, found 96"},
    {ALIGNMENT, 4, 1024, "tensor s: expected 68 bytes at offset 1024, but the file ends"},
    {TRUTH_KEY, 1, 'a', "key a comes twice"},
    {TRUTH_KEY, 1, ' ', NULL},
    {TRUTH_KEY, 1, '\0', "the name of a key has byte 0x00 at 0, expected printable ASCII"},
    {TRUTH_KEY, 1, 0x7f, "the name of a key has byte 0x7f"},
    {TRUTH_KEY, 1, 0xc3, "the name of a key has byte 0xc3"},
    {TRUTH_TYPE, 4, GGUF_U8, NULL},
    {TRUTH_TYPE, 4, 13, "key b: unknown type of value 13"},
    {TRUTH_TYPE, 4, UINT32_MAX, "key b: unknown type of value 4294967295"},
    {TRUTH, 1, 2, "key b: expected a truth value of 0 or 1, found 2"},
    {LIST_KEY_SIZE, 8, 0, "the name of a key has 0 bytes"},
    {LIST_KEY_SIZE, 8, UINT64_MAX, "expected 18446744073709551615 bytes at offset"},
    {LIST_TYPE, 4, GGUF_ARRAY, "key a: an array of arrays"},
    {LIST_TYPE, 4, 99, "key a: unknown type of value 99"},
    {LIST_SIZE, 8, 100, "key a: an array of 100 elements does not fit"},
    {LIST_SIZE, 8, UINT64_MAX, "key a: an array of 18446744073709551615 elements does not fit"},
    {LIST_TEXT, 8, 1000, "key a: expected 1000 bytes at offset"},
    {LIST_TEXT, 8, UINT64_MAX - 8, "key a: expected 18446744073709551607 bytes"},
    {EMPTY_TYPE, 4, GGUF_STRING, NULL},
    {EMPTY_TYPE, 4, GGUF_ARRAY, "key empty: an array of arrays"},
    {NAME_SIZE, 8, 0, "the name of a tensor has 0 bytes"},
    {NAME_SIZE, 8, 128, "the name of a tensor has 128 bytes, expected 1 to 127"},
    {NAME, 1, 't', "tensor t comes twice"},
    {NAME, 1, '\n', "the name of a tensor has byte 0x0a"},
    {DIMENSIONS, 4, 5, "tensor s: 5 dimensions, at most 4"},
    {DIMENSIONS, 4, UINT32_MAX, "tensor s: 4294967295 dimensions"},
    {WIDTH_0, 8, 0, "tensor s: dimension 1 is 0, expected 1 or more"},
    {WIDTH_0, 8, 33, "rows of 33 values are not whole blocks of Q8_0, which have 32"},
    {WIDTH_0, 8, UINT64_MAX, "dimension 1 is 18446744073709551615"},
    {WIDTH_0, 8, INT64_MAX - 31, "tensor s: the size of its shape overflows"},
    {HEIGHT_0, 8, 0, "tensor s: dimension 0 is 0"},
    {HEIGHT_0, 8, 1ull << 57, "tensor s: expected 4899916394579099648 bytes"},
    {HEIGHT_0, 8, 1ull << 62, "tensor s: the size of its shape overflows"},
    {HEIGHT_0, 8, 3, "tensor t: expected its bytes to begin at offset 128, found 96"},
    {HEIGHT_0, 8, 1, "tensor t: expected its bytes to begin at offset 64, found 96"},
    {BLOCK, 4, GGUF_BLOCK_Q4_K, "rows of 32 values are not whole blocks of Q4_K"},
    {BLOCK, 4, 16, "tensor s: type 16 of ggml (IQ2_XXS) is not read"},
    {BLOCK, 4, 4, "tensor s: type 4 of ggml (?) is not read"},
    {BLOCK, 4, UINT32_MAX, "tensor s: type 4294967295 of ggml (?)"},
    {OFFSET_0, 8, 32, "tensor s: expected its bytes to begin at offset 0, found 32"},
    {OFFSET_1, 8, 0, "tensor t: expected its bytes to begin at offset 96, found 0"},
    {OFFSET_1, 8, 97, "tensor t: expected its bytes to begin at offset 96, found 97"},
    {OFFSET_1, 8, UINT64_MAX, "found 18446744073709551615"},
    {NAME_1, 1, 's', "tensor s comes twice"},
    {WIDTH_1, 8, 4, "tensor t: expected 16 bytes at offset"},
    {WIDTH_1, 8, 1, NULL},
    {BLOCK_1, 4, GGUF_BLOCK_BF16, NULL},
    {BLOCK_1, 4, GGUF_BLOCK_Q8_0, "rows of 3 values"},
};

static void test_wrong(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        size_t at[PLACES];
        struct err err = {{0}};
        struct image m = small_file(at), patch = {0};
        put_int(&patch, wrong[i].v, wrong[i].bytes);
        memcpy(m.bytes + at[wrong[i].place], patch.bytes, patch.n);
        const enum status st = parse_exactly(m.bytes, m.n, m.n, &err);
        const char *words = wrong[i].words;
        if (words ? st != ERR_MODEL || !strstr(err.text, words) : st != OK)
            fail_msg("%zu: expected \"%s\", found %d: %s", i, words ? words : "", (int)st,
                     err.text);
        free(patch.bytes);
        free(m.bytes);
    }
}

static void test_truncated(void **state)
{
    (void)state;
    size_t at[PLACES];
    struct err err = {{0}};
    struct image m = small_file(at);
    assert_int_equal(parse_exactly(m.bytes, m.n, m.n, &err), OK);
    assert_int_equal(parse_exactly(m.bytes, m.n, m.n + 1000, &err), OK);
    for (size_t n = 0; n < m.n; n++) {
        err.text[0] = '\0';
        assert_int_equal(parse_exactly(m.bytes, n, n, &err), ERR_MODEL);
        assert_true(strstr(err.text, "but the file ends at") ||
                    strstr(err.text, "the file's other"));
        const enum status st = parse_exactly(m.bytes, n, m.n, &err);
        assert_int_equal(st, n < at[HEADER_END] ? ERR_MODEL : OK);
        if (st != OK)
            assert_non_null(strstr(err.text, "the header does not end in the file's first"));
    }
    assert_int_equal(parse_exactly(m.bytes, 10, 9, &err), ERR_INTERNAL);
    assert_int_equal(parse_exactly(m.bytes, 10, UINT64_MAX, &err), ERR_INTERNAL);
    free(m.bytes);
}

static void test_damaged(void **state)
{
    (void)state;
    size_t at[PLACES];
    struct image m = small_file(at);
    for (size_t i = 0; i < m.n; i++) {
        for (int32_t bit = 0; bit < 9; bit++) {
            const char flip = (char)(bit < 8 ? 1 << bit : 0xff);
            struct err err = {{0}};
            m.bytes[i] ^= flip;
            const enum status st = parse_exactly(m.bytes, m.n, m.n, &err);
            assert_true(st == OK || (st == ERR_MODEL && err.text[0] != '\0'));
            m.bytes[i] ^= flip;
        }
    }
    free(m.bytes);
}

/* ---- files ---- */

/* Longer than what is read of it at first. */
static void test_long_header(void **state)
{
    enum { WORDS = 300000 };
    (void)state;
    char word[16];
    struct image m = {0};
    struct gguf_string s;
    put(&m, "GGUF", 4);
    put_int(&m, 3, 4);
    put_int(&m, 0, 8);
    put_int(&m, 1, 8);
    put_text(&m, "words");
    put_int(&m, GGUF_ARRAY, 4);
    put_int(&m, GGUF_STRING, 4);
    put_int(&m, WORDS, 8);
    for (int32_t i = 0; i < WORDS; i++) {
        snprintf(word, sizeof word, "w%d", i);
        put_text(&m, word);
    }
    const char *path = scratch_path("long.gguf");
    scratch_write(path, m.bytes, m.n);
    struct gguf *g = open_good(path);
    assert_int_equal(gguf_tensor_count(g), 0);
    assert_int_equal(gguf_array_size(gguf_get(g, "words")), WORDS);
    assert_true(gguf_array_text(gguf_get(g, "words"), WORDS - 1, &s) && s.n == 7);
    assert_memory_equal(s.bytes, "w299999", 7);
    gguf_close(g);
    scratch_write(path, m.bytes, m.n - 1);
    open_bad(path, ERR_MODEL, "key words: expected 7 bytes at offset");
    free(m.bytes);
}

static void test_files(void **state)
{
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
    (void)state;
    size_t at[PLACES];
    char row[34];
    struct err err = {{0}};
    struct image m = small_file(at);
    const char *path = scratch_path("small.gguf");
    open_bad(path, ERR_MODEL, "No such file");
    open_bad(scratch_dir, ERR_MODEL, "not a regular file");
    scratch_write(path, "", 0);
    open_bad(path, ERR_MODEL, "expected 4 bytes at offset 0, but the file ends at 0");
    scratch_write(path, pointer, strlen(pointer));
    open_bad(path, ERR_MODEL, "small.gguf is a Git LFS pointer");
    scratch_write(path, m.bytes, m.n);
    struct gguf *g = open_good(path);
    read_rows(g, gguf_find_tensor(g, "s"), 1, 1, row);
    assert_memory_equal(row, m.bytes + base_align(at[HEADER_END], 32) + 34, 34);
    assert_int_equal(truncate(path, (off_t)base_align(at[HEADER_END], 32) + 40), 0);
    read_rows(g, gguf_find_tensor(g, "s"), 0, 1, row);
    assert_int_equal(gguf_read_rows(g, gguf_find_tensor(g, "s"), 1, 1, row, &err), ERR_MODEL);
    assert_non_null(strstr(err.text, "found 6: the file was truncated"));
    gguf_close(g);
    gguf_close(NULL);
    free(m.bytes);
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
        cmocka_unit_test(test_blocks),      cmocka_unit_test(test_block_names),
        cmocka_unit_test(test_integers),    cmocka_unit_test(test_reals_and_truth),
        cmocka_unit_test(test_texts),       cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_wrong),       cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_damaged),     cmocka_unit_test(test_long_header),
        cmocka_unit_test(test_files),       cmocka_unit_test(test_split),
        cmocka_unit_test(test_wrong_parts), cmocka_unit_test(test_missing_part),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
