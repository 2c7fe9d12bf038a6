/* The reader of GGUF files against a small file that is wrong in one place after the other, cut
 * short, damaged, or none at all. */
#include "tests/gguf_image.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong),   cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_damaged), cmocka_unit_test(test_long_header),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
