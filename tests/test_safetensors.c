/* The safetensors reader against the corpus of tests/make_corpus.py (one file per rule), against
 * damage of every byte, and against its own writer. */
#include "config/buf.h"
#include "tests/scratch.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"

#include <string.h>

#define CORPUS TEST_DATA_DIR "/corpus/safetensors"

/* Opens a file or a checkpoint directory; the message must hold `words` ("ok": no error). */
static void run_case(const char *name, const char *words)
{
    char path[PATH_MAX];
    struct err err = {{0}};
    struct safetensors file;
    struct checkpoint *checkpoint = NULL;
    snprintf(path, sizeof path, CORPUS "/%s", name);
    bool directory = strstr(name, ".safetensors") == NULL;
    enum status st =
        directory ? checkpoint_open(path, &checkpoint, &err) : safetensors_open(path, &file, &err);
    const char *said =
        strstr(err.text, path) ? err.text + strlen(path) : ""; /* the path comes first */
    if (strcmp(words, "ok") == 0) {
        if (st != OK)
            fail_msg("%s: %s", name, err.text);
    } else if (st != ERR_MODEL || !strstr(said, words)) {
        fail_msg("%s: expected ERR_MODEL with \"%s\", found %d: %s", name, words, (int)st,
                 err.text);
    }
    if (st != OK)
        assert_null(strchr(err.text, '\n'));
    if (st == OK && !directory)
        safetensors_close(&file);
    checkpoint_close(checkpoint);
}

static void test_corpus(void **state)
{
    char line[512];
    int cases = 0;
    (void)state;
    FILE *f = fopen(CORPUS "/cases.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        char *words = strchr(line, ' ');
        if (line[0] == '#')
            continue;
        assert_non_null(words);
        *words++ = '\0';
        words[strcspn(words, "\n")] = '\0';
        run_case(line, words);
        cases++;
    }
    fclose(f);
    assert_true(cases > 80);
}

static void test_entries(void **state)
{
    struct err err = {{0}};
    struct safetensors st;
    unsigned char raw[8];
    (void)state;
    assert_int_equal(safetensors_open(CORPUS "/ok_any_order.safetensors", &st, &err), OK);
    assert_int_equal(st.count, 2);
    assert_string_equal(st.entries[0].name, "a");
    assert_int_equal(st.entries[0].ndim, 2);
    assert_int_equal(st.entries[0].shape[1], 3);
    assert_int_equal(st.entries[0].offset, st.header_bytes);
    const struct safetensors_entry *b = safetensors_find(&st, "b");
    assert_non_null(b);
    assert_int_equal(b->offset, st.header_bytes + 24);
    assert_int_equal(b->bytes, 8);
    assert_null(safetensors_find(&st, "c"));
    assert_int_equal(safetensors_read(&st, st.file_bytes - 8, raw, 8, &err), OK);
    assert_int_equal(safetensors_read(&st, st.file_bytes - 7, raw, 8, &err), ERR_INTERNAL);
    safetensors_close(&st);
    assert_int_equal(safetensors_open(CORPUS "/ok_metadata.safetensors", &st, &err), OK);
    assert_string_equal(st.metadata, "{\"format\":\"pt\",\"k\\n\\\"\":\"\xc3\xa9\\u007f\"}");
    safetensors_close(&st);
    safetensors_close(&st); /* twice is fine */
    assert_int_equal(safetensors_open("/nonexistent/x.safetensors", &st, &err), ERR_MODEL);
    assert_int_equal(safetensors_open("/dev", &st, &err), ERR_MODEL);
}

/* The limit on the number of tensors, from memory: the file would be too big for a corpus. */
static void check_count(int tensors, const char *metadata, enum status want)
{
    struct buf b;
    struct err err = {{0}};
    struct safetensors st = {.fd = -1};
    buf_init(&b, 64u << 20);
    buf_printf(&b, "{%s", metadata);
    for (int i = 0; i < tensors; i++)
        buf_printf(&b, "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                   b.len > 1 ? "," : "", i);
    buf_puts(&b, "}");
    assert_int_equal(safetensors_parse(b.data, b.len, b.len + 8, "many", &st, &err), want);
    if (want != OK)
        assert_non_null(strstr(err.text, "at most 100000"));
    st.path = strdup("many");
    safetensors_close(&st);
    buf_free(&b);
}

static void test_too_many(void **state)
{
    (void)state;
    check_count(SAFETENSORS_TENSORS_MAX, "\"__metadata__\":{}", OK);
    check_count(SAFETENSORS_TENSORS_MAX + 1, "\"__metadata__\":{}", ERR_MODEL);
    check_count(SAFETENSORS_TENSORS_MAX + 1, "", ERR_MODEL);
}

/* Cut after every byte: never a crash, always an error that names the file. */
static void test_truncation(void **state)
{
    size_t n;
    (void)state;
    unsigned char *bytes = scratch_read(CORPUS "/ok_any_order.safetensors", &n);
    const char *path = scratch_path("cut.safetensors");
    for (size_t cut = 0; cut < n; cut++) {
        struct err err = {{0}};
        struct safetensors st;
        scratch_write(path, bytes, cut);
        assert_int_equal(safetensors_open(path, &st, &err), ERR_MODEL);
        assert_non_null(strstr(err.text, "cut.safetensors"));
    }
    free(bytes);
}

static bool same_meaning(const struct safetensors *a, const struct safetensors *b)
{
    if (a->count != b->count)
        return false;
    for (int32_t i = 0; i < a->count; i++) {
        const struct safetensors_entry *x = &a->entries[i], *y = &b->entries[i];
        if (x->dtype != y->dtype || x->ndim != y->ndim || x->offset != y->offset ||
            x->bytes != y->bytes || memcmp(x->shape, y->shape, sizeof x->shape) != 0)
            return false;
    }
    return true;
}

/* Every bit of length and header: refused, or sizes and places as before (a name may differ, a
 * shape may be another of the same size, a type another of the same width). */
static void test_bit_flips(void **state)
{
    size_t n;
    struct err err = {{0}};
    struct safetensors good;
    int accepted = 0;
    (void)state;
    unsigned char *bytes = scratch_read(CORPUS "/ok_metadata.safetensors", &n);
    assert_int_equal(safetensors_open(CORPUS "/ok_metadata.safetensors", &good, &err), OK);
    const char *path = scratch_path("flip.safetensors");
    for (size_t bit = 0; bit < 8 * (size_t)good.header_bytes; bit++) {
        struct safetensors st;
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        scratch_write(path, bytes, n);
        enum status s = safetensors_open(path, &st, &err);
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        if (s != OK) {
            assert_int_equal(s, ERR_MODEL);
            continue;
        }
        accepted += same_meaning(&good, &st);
        for (int32_t i = 0; i < st.count; i++)
            assert_true(st.entries[i].offset + st.entries[i].bytes <= st.file_bytes);
        safetensors_close(&st);
    }
    assert_true(accepted > 0); /* letters of names and of metadata */
    safetensors_close(&good);
    free(bytes);
}

/* A file that shrinks after it was opened is an error of the read, not a signal. */
static void test_shrinks(void **state)
{
    size_t n;
    struct err err = {{0}};
    struct safetensors st;
    char raw[32];
    (void)state;
    unsigned char *bytes = scratch_read(CORPUS "/ok_any_order.safetensors", &n);
    const char *path = scratch_path("shrink.safetensors");
    scratch_write(path, bytes, n);
    assert_int_equal(safetensors_open(path, &st, &err), OK);
    assert_int_equal(truncate(path, (off_t)n - 1), 0);
    assert_int_equal(safetensors_read(&st, st.header_bytes, raw, 32, &err), ERR_MODEL);
    assert_non_null(strstr(err.text, "truncated"));
    safetensors_close(&st);
    free(bytes);
}

/* What a clone without Git LFS has in the place of the file. */
static void test_lfs_pointer(void **state)
{
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:"
                                  "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
                                  "\nsize 12345\n";
    struct err err = {{0}};
    struct safetensors st;
    (void)state;
    const char *path = scratch_path("model.safetensors");
    scratch_write(path, pointer, sizeof pointer - 1);
    assert_int_equal(safetensors_open(path, &st, &err), ERR_MODEL);
    assert_non_null(strstr(err.text, "is a Git LFS pointer, not the file itself: git lfs pull"));
    scratch_write(path, pointer, 12); /* "version http" */
    assert_int_equal(safetensors_open(path, &st, &err), ERR_MODEL);
    assert_null(strstr(err.text, "LFS"));
}

static void test_write(void **state)
{
    char names[][24] = {"a", "q\"uote\n", "\xc3\xa9mpty"};
    struct safetensors_entry entries[] = {
        {.name = names[0], .dtype = DTYPE_BF16, .ndim = 2, .shape = {2, 3}},
        {.name = names[2], .dtype = DTYPE_F32, .ndim = 1, .shape = {0}},
        {.name = names[0], .dtype = DTYPE_U8, .ndim = 0},
    };
    char last[] = "last";
    struct safetensors_writer *w;
    struct safetensors st;
    struct err err = {{0}};
    unsigned char raw[13];
    (void)state;
    entries[2].name = last;
    const char *path = scratch_path("out.safetensors");
    assert_int_equal(safetensors_create(path, entries, 3, "{\"k\":\"v\"}", &w, &err), OK);
    assert_int_equal(safetensors_write(w, "0123456", 7, &err), OK);
    assert_int_equal(access(path, F_OK), -1); /* not before it is whole */
    assert_int_equal(safetensors_write(w, "0123456", 7, &err), ERR_INTERNAL);
    assert_int_equal(safetensors_write(w, "789abc", 6, &err), OK);
    assert_int_equal(safetensors_finish(w, &err), OK);
    assert_int_equal(safetensors_open(path, &st, &err), OK);
    assert_int_equal(st.count, 3);
    assert_int_equal(st.header_bytes % 8, 0);
    assert_string_equal(st.metadata, "{\"k\":\"v\"}");
    assert_string_equal(st.entries[1].name, "\xc3\xa9mpty");
    assert_int_equal(safetensors_read(&st, st.header_bytes, raw, 13, &err), OK);
    assert_memory_equal(raw, "0123456789abc", 13);
    safetensors_close(&st);
    /* Too few bytes: an error and no file. */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(safetensors_create(path, entries, 1, NULL, &w, &err), OK);
    assert_int_equal(safetensors_finish(w, &err), ERR_INTERNAL);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(scratch_path("out.safetensors.partial"), F_OK), -1);
    safetensors_discard(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corpus),      cmocka_unit_test(test_entries),
        cmocka_unit_test(test_too_many),    cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_lfs_pointer), cmocka_unit_test(test_bit_flips),
        cmocka_unit_test(test_shrinks),     cmocka_unit_test(test_write),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
