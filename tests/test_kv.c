/* The KV block pool against a naive model, and its checks: a programmer's error must abort. */
#include "engine/kv.h"
#include "kernels/backend.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static uint64_t seed;

static int32_t below(int32_t n) /* splitmix64 */
{
    uint64_t z = seed += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (int32_t)((z >> 33) % (uint64_t)n);
}

enum { HOLDERS = 12, BLOCKS_MAX = 300 };

struct holder {
    int32_t blocks[BLOCKS_MAX], taken, reserved;
};

struct naive {
    int32_t total, used, reserved;
    bool held[BLOCKS_MAX];
    struct holder holders[HOLDERS];
};

static void check_same(const struct kv_pool *p, const struct naive *m)
{
    kv_check(p);
    assert_int_equal(kv_total(p), m->total);
    assert_int_equal(kv_used(p), m->used);
    assert_int_equal(kv_reserved(p), m->reserved);
}

static void do_reserve(struct kv_pool *p, struct naive *m, struct holder *h)
{
    int32_t n = below(m->total / 3 + 2);
    bool fits = m->used + m->reserved + n <= m->total;
    assert_int_equal(kv_reserve(p, n), fits);
    if (fits) {
        h->reserved += n;
        m->reserved += n;
    }
}

static void do_take(struct kv_pool *p, struct naive *m, struct holder *h)
{
    if (h->reserved == 0)
        return;
    int32_t b = kv_take(p);
    assert_in_range(b, 0, m->total - 1);
    assert_false(m->held[b]);
    m->held[b] = true;
    h->blocks[h->taken++] = b;
    h->reserved--;
    m->reserved--;
    m->used++;
}

static void do_release(struct kv_pool *p, struct naive *m, struct holder *h)
{
    int32_t n = below(h->taken + 1), untaken = below(h->reserved + 1);
    kv_release(p, h->blocks + h->taken - n, n, untaken);
    for (int32_t i = 0; i < n; i++)
        m->held[h->blocks[--h->taken]] = false;
    m->used -= n;
    h->reserved -= untaken;
    m->reserved -= untaken;
}

static void test_against_naive(void **state)
{
    (void)state;
    static const int32_t sizes[] = {0, 1, 2, 7, 64, BLOCKS_MAX};
    for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
        struct kv_pool *p;
        struct err err;
        static struct naive m;
        memset(&m, 0, sizeof m);
        m.total = sizes[s];
        assert_int_equal(kv_open(m.total, &p, &err), OK);
        for (int32_t i = 0; i < 20000; i++) {
            struct holder *h = &m.holders[below(HOLDERS)];
            int32_t what = below(8);
            if (what == 0)
                do_reserve(p, &m, h);
            else if (what < 6)
                do_take(p, &m, h);
            else
                do_release(p, &m, h);
            check_same(p, &m);
        }
        for (int32_t i = 0; i < HOLDERS; i++)
            kv_release(p, m.holders[i].blocks, m.holders[i].taken, m.holders[i].reserved);
        kv_check(p);
        assert_int_equal(kv_used(p) + kv_reserved(p), 0);
        /* all of it can be had again, each block once */
        assert_true(kv_reserve(p, m.total));
        assert_false(kv_reserve(p, 1));
        memset(m.held, 0, sizeof m.held);
        for (int32_t i = 0; i < m.total; i++) {
            int32_t b = kv_take(p);
            assert_false(m.held[b]);
            m.held[b] = true;
        }
        kv_close(p);
    }
    kv_close(NULL);
}

static void test_blocks_for(void **state)
{
    (void)state;
    int32_t blocks = 0;
    assert_int_equal(kv_blocks_for(0), 0);
    for (int32_t n = 1; n < 100; n++) {
        blocks += n % BACKEND_BLOCK_TOKENS == 1;
        assert_int_equal(kv_blocks_for(n), blocks);
    }
}

/* ---- misuse ---- */

enum misuse {
    TAKE_UNRESERVED,
    RELEASE_TWICE,
    RELEASE_NEVER_TAKEN,
    RELEASE_SAME_BLOCK_IN_ONE_CALL,
    UNTAKEN_TOO_MANY,
    UNTAKEN_NEGATIVE,
    MISUSES
};

/* In a child: a pool with 4 blocks, two taken and one more reserved, used wrongly. */
static void misuse(enum misuse how)
{
    struct kv_pool *p;
    struct err err;
    if (kv_open(4, &p, &err) != OK || !kv_reserve(p, 3))
        return;
    int32_t blocks[2] = {kv_take(p), kv_take(p)};
    const int32_t same[2] = {blocks[0], blocks[0]};
    const int32_t other = 6 - blocks[0] - blocks[1] > 3 ? 3 : 2; /* one that is free */
    switch (how) {
    case TAKE_UNRESERVED:
        kv_take(p);
        kv_take(p);
        break;
    case RELEASE_TWICE:
        kv_release(p, blocks, 1, 0);
        kv_release(p, blocks, 1, 0);
        break;
    case RELEASE_NEVER_TAKEN:
        kv_release(p, &other, 1, 0);
        break;
    case RELEASE_SAME_BLOCK_IN_ONE_CALL:
        kv_release(p, same, 2, 0);
        break;
    case UNTAKEN_TOO_MANY:
        kv_release(p, blocks, 0, 2);
        break;
    case UNTAKEN_NEGATIVE:
        kv_release(p, blocks, 0, -1);
        break;
    case MISUSES:
        break;
    }
}

static void test_misuse_aborts(void **state)
{
    (void)state;
    for (int how = 0; how <= MISUSES; how++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            close(STDERR_FILENO);
            signal(SIGABRT, SIG_DFL); /* cmocka's would report a failed test */
            misuse((enum misuse)how);
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (how == MISUSES) /* the set-up alone is no misuse */
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        else if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
            fail_msg("misuse %d did not abort (status %x)", how, (unsigned)status);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_naive),
        cmocka_unit_test(test_blocks_for),
        cmocka_unit_test(test_misuse_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
