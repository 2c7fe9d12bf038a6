/* The length of a thread's turns, as the kernel tells it. */
#include "config/slice.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

struct told {
    uint64_t slice;
    int32_t nice;
};

static struct told ask(void)
{
    uint64_t words[6] = {0}; /* size and policy, flags, nice and priority, runtime, ... */
    assert_int_equal(syscall(SYS_sched_getattr, 0, words, sizeof words, 0), 0);
    return (struct told){words[3], (int32_t)(uint32_t)words[2]};
}

static void *ask_there(void *out)
{
    *(struct told *)out = ask();
    return NULL;
}

static void test_request(void **state)
{
    (void)state;
    const struct told usual = ask();
    pthread_t thread;
    struct told there;
    if (usual.slice == 0)
        skip(); /* a kernel without it */
    assert_int_equal(setpriority(PRIO_PROCESS, 0, 3), 0);
    slice_request(300000);
    assert_int_equal(ask().slice, 300000);
    assert_int_equal(ask().nice, 3);
    assert_int_equal(pthread_create(&thread, NULL, ask_there, &there), 0);
    pthread_join(thread, NULL);
    assert_int_equal(there.slice, 300000);
    slice_request(0);
    assert_int_equal(ask().slice, usual.slice);
    assert_int_equal(ask().nice, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_request)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
