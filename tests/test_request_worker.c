/* The queue between bodies and answers: order, bounds, and that large pieces leave a thread free.
 */
#include "server/request_worker.h"
#include "tests/scratch.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

#define LARGE ((size_t)1 << 20)
#define PIECES 8

struct piece {
    struct work work;
    sem_t *gate; /* NULL: runs through */
    sem_t done;
    int32_t place; /* in the order of running */
};

static _Atomic int32_t started;

static void run(struct work *w)
{
    struct piece *p = (struct piece *)(void *)((char *)w - offsetof(struct piece, work));
    p->place = atomic_fetch_add(&started, 1);
    if (p->gate)
        sem_wait(p->gate);
    sem_post(&p->done);
}

static void piece_init(struct piece *p, size_t bytes, sem_t *gate)
{
    *p = (struct piece){.work = {.run = run, .bytes = bytes}, .gate = gate, .place = -1};
    sem_init(&p->done, 0, 0);
}

static void wait_for(struct piece *p)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    if (sem_timedwait(&p->done, &until) != 0)
        fail_msg("a piece never ran");
}

static struct request_worker *open_worker(int32_t threads, int32_t queue_max, size_t bytes_max)
{
    struct request_worker *w = NULL;
    struct err err;
    atomic_store(&started, 0);
    assert_int_equal(request_worker_open(threads, queue_max, bytes_max, &w, &err), OK);
    return w;
}

/* One that is larger than all may be together waits for nobody. */
static void test_larger_than_all(void **state)
{
    struct piece large, more;
    sem_t gate;
    (void)state;
    sem_init(&gate, 0, 0);
    struct request_worker *w = open_worker(1, 10, LARGE);
    piece_init(&large, 3 * LARGE, &gate);
    piece_init(&more, 1, NULL);
    assert_true(request_worker_push(w, &large.work));
    sem_post(&gate);
    wait_for(&large);
    for (int i = 0; i < 2; i++) { /* it is no longer counted */
        piece_init(&more, 3 * LARGE, NULL);
        assert_true(request_worker_push(w, &more.work));
        wait_for(&more);
    }
    request_worker_stop(w);
    request_worker_close(w);
}

static void test_large_pieces_leave_a_thread(void **state)
{
    struct piece large[PIECES], small;
    sem_t gate;
    (void)state;
    sem_init(&gate, 0, 0);
    struct request_worker *w = open_worker(3, 100, 2 * PIECES * LARGE);
    for (int i = 0; i < PIECES; i++) {
        piece_init(&large[i], LARGE, &gate);
        assert_true(request_worker_push(w, &large[i].work));
    }
    for (int i = 0; i < 3; i++) { /* again and again */
        piece_init(&small, 1, NULL);
        assert_true(request_worker_push(w, &small.work));
        wait_for(&small);
    }
    for (int i = 0; i < PIECES; i++)
        sem_post(&gate);
    for (int i = 0; i < PIECES; i++)
        wait_for(&large[i]);
    request_worker_close(w);
}

static void test_order(void **state)
{
    struct piece pieces[PIECES];
    sem_t gate;
    (void)state;
    sem_init(&gate, 0, 0);
    struct request_worker *w = open_worker(1, 100, 2 * PIECES * LARGE);
    for (int i = 0; i < PIECES; i++) {
        piece_init(&pieces[i], i % 3 == 0 ? LARGE : 1, i == 0 ? &gate : NULL);
        assert_true(request_worker_push(w, &pieces[i].work));
    }
    sem_post(&gate);
    for (int i = 0; i < PIECES; i++) {
        wait_for(&pieces[i]);
        assert_int_equal(pieces[i].place, i);
    }
    request_worker_close(w);
}

static void test_bounds(void **state)
{
    struct piece first, pieces[4];
    sem_t gate;
    (void)state;
    sem_init(&gate, 0, 0);
    struct request_worker *w = open_worker(1, 2, 100);
    piece_init(&first, 1, &gate);
    assert_true(request_worker_push(w, &first.work));
    while (atomic_load(&started) == 0)
        usleep(1000);
    for (int i = 0; i < 4; i++)
        piece_init(&pieces[i], i == 0 ? 60 : 41 - (size_t)i, NULL);
    assert_true(request_worker_push(w, &pieces[0].work));
    pieces[1].work.bytes = 41;
    assert_false(request_worker_push(w, &pieces[1].work)); /* 101 bytes */
    pieces[1].work.bytes = 40;
    assert_true(request_worker_push(w, &pieces[1].work));
    pieces[2].work.bytes = 0;
    assert_false(request_worker_push(w, &pieces[2].work)); /* three pieces */
    sem_post(&gate);
    wait_for(&pieces[1]);
    assert_true(request_worker_push(w, &pieces[2].work));
    request_worker_stop(w); /* works off what is queued */
    assert_true(pieces[2].place >= 0);
    assert_false(request_worker_push(w, &pieces[3].work));
    request_worker_close(w);
}

static void test_stop_runs_everything(void **state)
{
    struct piece pieces[PIECES];
    (void)state;
    for (int32_t threads = 1; threads <= 4; threads++) {
        struct request_worker *w = open_worker(threads, 100, 2 * PIECES * LARGE);
        for (int i = 0; i < PIECES; i++) {
            piece_init(&pieces[i], i % 2 ? LARGE : 1, NULL);
            assert_true(request_worker_push(w, &pieces[i].work));
        }
        request_worker_stop(w);
        for (int i = 0; i < PIECES; i++)
            assert_true(pieces[i].place >= 0);
        request_worker_close(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large_pieces_leave_a_thread),
        cmocka_unit_test(test_larger_than_all),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_stop_runs_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
