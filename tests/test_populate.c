/* Touching memory ahead: all of it becomes resident, and nothing in it changes. */
#include "engine/populate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

enum { PAGE = 4096, PAGES = 1500 }; /* not a whole number of pieces */

static const struct populate_range none;

/* Of a fresh memory file, as KV caches are. */
static unsigned char *map(void)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)PAGES * PAGE), 0);
    void *p = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    close(fd);
    return p;
}

/* Pages that are in memory, by the kernel's account. */
static int32_t resident(const unsigned char *p)
{
    unsigned char in_core[PAGES];
    int32_t count = 0;
    assert_int_equal(mincore((void *)(uintptr_t)p, (size_t)PAGES * PAGE, in_core), 0);
    for (int32_t i = 0; i < PAGES; i++)
        count += in_core[i] & 1;
    return count;
}

static void test_all_of_it(void **state)
{
    (void)state;
    unsigned char *a = map(), *b = map();
    if (madvise(a, PAGE, MADV_POPULATE_WRITE) != 0)
        skip(); /* a kernel that does not know it */
    for (int32_t i = 0; i < PAGES; i += 7)
        a[(size_t)i * PAGE + 5] = (unsigned char)(1 + i % 255);
    assert_in_range(resident(a), 1, PAGES - 1);
    struct populate *p = populate_open((struct populate_range){a, (size_t)PAGES * PAGE},
                                       (struct populate_range){b, (size_t)PAGES * PAGE}, none);
    assert_non_null(p);
    for (int32_t round = 0; round < 3; round++) /* as its user does meanwhile */
        for (int32_t i = PAGES - 1; i > 0; i -= 5)
            a[(size_t)i * PAGE + 9 + (size_t)round] = 77;
    for (int32_t tries = 0; tries < 6000 && resident(a) + resident(b) < 2 * PAGES; tries++)
        usleep(5000);
    assert_int_equal(resident(a), PAGES);
    assert_int_equal(resident(b), PAGES);
    populate_close(p);
    for (int32_t i = 0; i < PAGES; i += 7)
        assert_int_equal(a[(size_t)i * PAGE + 5], 1 + i % 255);
    for (int32_t i = PAGES - 1; i > 0; i -= 5)
        assert_int_equal(a[(size_t)i * PAGE + 11], 77);
    munmap(a, (size_t)PAGES * PAGE);
    munmap(b, (size_t)PAGES * PAGE);
}

/* Where pages are large a range begins within one: it is had from the next page on. */
static void test_within_a_page(void **state)
{
    (void)state;
    unsigned char *a = map();
    if (madvise(a, PAGE, MADV_POPULATE_WRITE) != 0)
        skip();
    assert_in_range(resident(a), 1, PAGES - 1);
    struct populate *p =
        populate_open((struct populate_range){a + 64, (size_t)PAGES * PAGE - 64}, none, none);
    assert_non_null(p);
    for (int32_t tries = 0; tries < 6000 && resident(a) < PAGES; tries++)
        usleep(5000);
    assert_int_equal(resident(a), PAGES);
    populate_close(p);
    munmap(a, (size_t)PAGES * PAGE);
}

/* Memory that is not there: the file ends before the mapping does. */
static void test_refused(void **state)
{
    (void)state;
    const size_t half = (size_t)PAGES / 2 * PAGE;
    char said[400] = "";
    int fd = memfd_create("test", MFD_CLOEXEC), log = memfd_create("log", MFD_CLOEXEC);
    int was = dup(STDERR_FILENO);
    assert_int_equal(ftruncate(fd, (off_t)half), 0);
    void *p = mmap(NULL, 2 * half, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    if (madvise(p, PAGE, MADV_POPULATE_WRITE) != 0)
        skip();
    assert_int_equal(dup2(log, STDERR_FILENO), STDERR_FILENO);
    struct populate *all = populate_open((struct populate_range){p, 2 * half}, none, none);
    for (int32_t tries = 0; tries < 6000 && !strchr(said, '\n'); tries++) {
        usleep(5000);
        assert_true(pread(log, said, sizeof said - 1, 0) >= 0);
    }
    populate_close(all);
    assert_int_equal(dup2(was, STDERR_FILENO), STDERR_FILENO);
    assert_non_null(strstr(said, "of 6144000 planned bytes could be had (Bad address)"));
    munmap(p, 2 * half);
    close(fd);
    close(log);
    close(was);
}

static void test_nothing_and_early_end(void **state)
{
    (void)state;
    unsigned char *a = map();
    populate_close(NULL);
    populate_close(populate_open(none, none, none));
    populate_close(populate_open((struct populate_range){a, (size_t)PAGES * PAGE}, none, none));
    munmap(a, (size_t)PAGES * PAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_of_it),
        cmocka_unit_test(test_within_a_page),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_nothing_and_early_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
