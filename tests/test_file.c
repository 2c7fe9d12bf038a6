/* config/file: whole files, their bounds, and what is no file. */
#include "config/file.h"
#include "tests/scratch.h"

#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>

static const char text[] = "one\0two"; /* seven bytes, one of them NUL */
enum { TEXT_BYTES = sizeof text - 1 };

static void refused(const struct file_spec *f, enum status as, const char *words)
{
    char untouched, *out = &untouched;
    size_t n = 77;
    struct err err = {""};
    assert_int_equal(file_read(f, &out, &n, &err), as);
    assert_ptr_equal(out, &untouched);
    assert_int_equal(n, 77);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

static void expect(const struct file_spec *f, const char *bytes, size_t count)
{
    char *out = NULL;
    size_t n = 0;
    struct err err = {""};
    assert_int_equal(file_read(f, &out, &n, &err), OK);
    assert_int_equal(n, count);
    assert_memory_equal(out, bytes, count);
    assert_int_equal(out[count], '\0');
    free(out);
}

static void test_bounds(void **state)
{
    (void)state;
    struct file_spec f = {.path = scratch_path("a"), .what = "thing ", .failure = ERR_MODEL};
    scratch_write(f.path, text, TEXT_BYTES);
    for (f.bytes_max = TEXT_BYTES; f.bytes_max < TEXT_BYTES + 3; f.bytes_max++)
        expect(&f, text, TEXT_BYTES);
    f.bytes_max = TEXT_BYTES - 1;
    refused(&f, ERR_MODEL, "thing /tmp/");
    refused(&f, ERR_MODEL, "/a: 7 bytes, at most 6 are read");
    scratch_write(f.path, "", 0);
    f.bytes_max = 0;
    expect(&f, "", 0);
}

static void test_what_is_no_file(void **state)
{
    (void)state;
    struct file_spec f = {.path = scratch_path("none"), .bytes_max = 100, .failure = ERR_USAGE};
    struct err err = {""};
    char *out = scratch_dir;
    size_t n = 1;
    refused(&f, ERR_USAGE, "/none: No such file");
    f.optional = true;
    assert_int_equal(file_read(&f, &out, &n, &err), OK);
    assert_null(out);
    assert_int_equal(n, 0);
    f.path = scratch_dir;
    refused(&f, ERR_USAGE, ": is a directory");
    f.path = scratch_path("fifo");
    assert_int_equal(mkfifo(f.path, 0600), 0);
    refused(&f, ERR_USAGE, "/fifo: not a regular file"); /* and no waiting for a writer */
    f.path = "/dev/zero";
    refused(&f, ERR_USAGE, "/dev/zero: not a regular file");
    f.path = "/dev/zero/x"; /* optional is for absent ones */
    refused(&f, ERR_USAGE, "Not a directory");
}

/* What a clone without Git LFS has in the place of tokenizer.json; elsewhere it is a text. */
static void test_lfs_pointer(void **state)
{
    (void)state;
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\n";
    struct file_spec f = {.path = scratch_path("pointer"), .bytes_max = 100, .failure = ERR_MODEL};
    scratch_write(f.path, pointer, sizeof pointer - 1);
    refused(&f, ERR_MODEL, "/pointer is a Git LFS pointer, not the file itself: git lfs pull");
    f.failure = ERR_USAGE;
    expect(&f, pointer, sizeof pointer - 1);
}

/* In two pieces with a writer that comes late. */
static void write_slowly(const char *path, size_t piece)
{
    const int fd = open(path, O_WRONLY);
    const ssize_t first = write(fd, text, piece);
    usleep(20000);
    const ssize_t second = write(fd, text + piece, TEXT_BYTES - piece);
    _exit(first + second == TEXT_BYTES ? 0 : 1);
}

static void test_pipes(void **state)
{
    (void)state;
    struct file_spec f = {.path = scratch_path("pipe"), .failure = ERR_USAGE, .pipes = true};
    assert_int_equal(mkfifo(f.path, 0600), 0);
    for (f.bytes_max = TEXT_BYTES - 1; f.bytes_max <= TEXT_BYTES; f.bytes_max++) {
        int code = 0;
        const pid_t pid = fork();
        if (pid == 0)
            write_slowly(f.path, 3);
        if (f.bytes_max < TEXT_BYTES)
            refused(&f, ERR_USAGE, ": more than 6 bytes");
        else
            expect(&f, text, TEXT_BYTES);
        assert_int_equal(waitpid(pid, &code, 0), pid);
        assert_int_equal(code, 0);
    }
    f.path = scratch_dir;
    refused(&f, ERR_USAGE, ": is a directory");
}

static void test_permissions(void **state)
{
    (void)state;
    struct file_spec f = {.path = scratch_path("secret"),
                          .bytes_max = 100,
                          .failure = ERR_USAGE,
                          .forbidden = S_IRWXG | S_IRWXO};
    scratch_write(f.path, text, TEXT_BYTES);
    for (mode_t bit = 1; bit <= S_IRWXG; bit <<= 1) {
        assert_int_equal(chmod(f.path, 0600 | bit), 0);
        refused(&f, ERR_USAGE, "others can use it: chmod 600");
    }
    assert_int_equal(chmod(f.path, 0600), 0);
    expect(&f, text, TEXT_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lfs_pointer),     cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_what_is_no_file), cmocka_unit_test(test_pipes),
        cmocka_unit_test(test_permissions),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
