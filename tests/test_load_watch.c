/* Load watch: what is said of ranks that stand still, and when, with a clock that the test moves.
 */
#include "engine/load_watch.h"
#include "tests/scratch.h"

#include "weights/checkpoint.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static struct board board;
static struct load_watch watch;

static void begin(int32_t ranks, double timeout)
{
    memset(&board, 0, sizeof board);
    watch = (struct load_watch){.timeout = timeout, .ranks = ranks};
    for (int32_t r = 0; r < ranks; r++)
        watch.wanted[r] = 1000;
    load_watch_begin(&watch, 100);
}

static void set_done(int32_t rank, uint64_t bytes)
{
    atomic_store(&board.rank[rank].load.bytes_done, bytes);
}

/* What a look at this time fails with; "" when it does not. */
static const char *look(double now)
{
    static struct err err;
    err.text[0] = '\0';
    const enum status st = load_watch_look(&watch, &board, now, &err);
    assert_int_equal(st, err.text[0] ? ERR_COMM : OK);
    return err.text;
}

/* What a look logs. */
static const char *logged(double now)
{
    static char text[1024];
    const char *path = scratch_path("log");
    const int kept = dup(STDERR_FILENO), file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(kept >= 0 && file >= 0);
    assert_int_equal(dup2(file, STDERR_FILENO), STDERR_FILENO);
    const char *failure = look(now);
    assert_int_equal(dup2(kept, STDERR_FILENO), STDERR_FILENO);
    const ssize_t n = pread(file, text, sizeof text - 1, 0);
    assert_true(n >= 0);
    text[n] = '\0';
    close(kept);
    close(file);
    assert_string_equal(failure, "");
    return text;
}

static void test_stands_still(void **state)
{
    (void)state;
    begin(2, 300);
    set_done(0, 10);
    assert_string_equal(logged(129.9), "");
    set_done(0, 20);
    const char *text = logged(130);
    assert_non_null(strstr(text, "rank 1 has read nothing for 30 s; after 300 s (--load-timeout)"));
    assert_null(strstr(text, "rank 0"));
    set_done(0, 30);
    assert_string_equal(logged(140), ""); /* said once */
    set_done(1, 1);
    assert_string_equal(logged(150), "");
    set_done(0, 1000);
    text = logged(180);
    assert_non_null(strstr(text, "rank 1 has read nothing for 30 s")); /* and again */
    assert_string_equal(look(449), "");
    assert_string_equal(look(450), "rank 1 has read nothing for 300 s (--load-timeout)");
}

/* A rank that has read everything waits for the others, for as long as they move. */
static void test_waits(void **state)
{
    (void)state;
    begin(2, 10);
    set_done(0, 1000);
    for (int i = 1; i < 100; i++) {
        set_done(1, (uint64_t)i);
        assert_string_equal(logged(100 + 4 * i), "");
    }
    set_done(1, 1000);
    assert_string_equal(logged(500), "");
    assert_non_null(strstr(logged(505), "no rank has loaded anything or become ready for 5 s"));
    assert_string_equal(look(510),
                        "no rank has loaded anything or become ready for 10 s (--load-timeout)");
}

/* Values that come from no file: only all ranks together are judged. */
static void test_no_files(void **state)
{
    (void)state;
    begin(2, 10);
    watch.wanted[0] = watch.wanted[1] = 0;
    set_done(0, 5);
    assert_string_equal(look(109), "");
    assert_string_equal(look(118), "");
    assert_string_equal(look(119),
                        "no rank has loaded anything or become ready for 10 s (--load-timeout)");
}

static void test_names_the_place(void **state)
{
    (void)state;
    struct checkpoint *c = NULL;
    struct err err;
    int32_t file;
    uint64_t offset;
    assert_int_equal(checkpoint_open(TESSERA_SOURCE_DIR "/deploy/demo/model", &c, &err), OK);
    assert_string_equal(checkpoint_file(c, 0), "model.safetensors");
    assert_null(checkpoint_file(c, 1));
    assert_null(checkpoint_file(c, -1));
    begin(2, 10);
    watch.checkpoint = c;
    atomic_store(&board.rank[1].load.reading[3], loader_place(0, (1ull << 47) + 12345));
    set_done(0, 1000);
    assert_string_equal(look(110), "rank 1, at byte 140737488367673 of model.safetensors, has read "
                                   "nothing for 10 s (--load-timeout)");
    atomic_store(&board.rank[1].load.reading[0], loader_place(77, 1)); /* no such file */
    assert_non_null(strstr(look(110), "at byte 140737488367673"));
    loader_place_of(loader_place(1023, 0), &file, &offset);
    assert_int_equal(file, 1023);
    assert_int_equal(offset, 0);
    checkpoint_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stands_still),
        cmocka_unit_test(test_waits),
        cmocka_unit_test(test_no_files),
        cmocka_unit_test(test_names_the_place),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
