/* A temporary directory per test program, and whole files in and out of memory. For cmocka tests.
 */
#ifndef TESSERA_TESTS_SCRATCH_H
#define TESSERA_TESTS_SCRATCH_H

#include <ftw.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char scratch_dir[] = "/tmp/tessera-test.XXXXXX";

/* Group setup and teardown. */
static inline int scratch_open(void **state)
{
    (void)state;
    return mkdtemp(scratch_dir) ? 0 : -1;
}

static inline int scratch_remove(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb;
    (void)type;
    (void)ftw;
    return remove(path);
}

static inline int scratch_close(void **state)
{
    (void)state;
    return nftw(scratch_dir, scratch_remove, 16, FTW_DEPTH | FTW_PHYS);
}

/* Path of a member; valid until the eighth call after this one. */
static inline const char *scratch_path(const char *name)
{
    static char paths[8][PATH_MAX];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", scratch_dir, name);
    return paths[turn];
}

static inline void scratch_write(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* The caller frees; a NUL follows the bytes. */
static inline unsigned char *scratch_read(const char *path, size_t *n)
{
    struct stat sb;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &sb), 0);
    *n = (size_t)sb.st_size;
    unsigned char *bytes = malloc(*n + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *n, f), *n);
    bytes[*n] = '\0';
    fclose(f);
    return bytes;
}

#endif
