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

enum { HOLDERS = 12, HELD_MAX = 40, BLOCKS_MAX = 300, TEXTS = 60 };

/* The content of a block is one number here, repeated. */
struct naive {
    int32_t total;
    int32_t owners[BLOCKS_MAX];
    int32_t text[BLOCKS_MAX]; /* 0: not findable */
    uint64_t name[BLOCKS_MAX];
    int64_t free_since[BLOCKS_MAX]; /* order in which they were let go */
    int64_t clock;
    struct {
        int32_t blocks[HELD_MAX], count;
    } holders[HOLDERS];
};

static const uint64_t secret[2] = {11, 22};

static struct kv_key key_of(int32_t text)
{
    struct kv_key key = {.salt = (uint64_t)text % 3, .before = (uint64_t)text % 2};
    for (int32_t i = 0; i < BACKEND_BLOCK_TOKENS; i++)
        key.tokens[i] = text;
    return key;
}

static void check_same(const struct kv_pool *p, const struct naive *m)
{
    int32_t used = 0, kept = 0;
    for (int32_t i = 0; i < m->total; i++) {
        used += m->owners[i] > 0;
        kept += m->owners[i] == 0 && m->text[i];
        assert_int_equal(kv_owners(p, i), m->owners[i]);
    }
    kv_check(p);
    assert_int_equal(kv_used(p) + kv_free(p), m->total);
    assert_int_equal(kv_used(p), used);
    assert_int_equal(kv_kept(p), kept);
}

/* Which block must be taken: any without content, else the one that was let go first. */
static void do_take(struct kv_pool *p, struct naive *m, int32_t h)
{
    int32_t first = -1;
    bool blank = false;
    if (m->holders[h].count == HELD_MAX)
        return;
    for (int32_t i = 0; i < m->total; i++) {
        if (m->owners[i] > 0)
            continue;
        blank = blank || m->text[i] == 0;
        if (first < 0 || m->free_since[i] < m->free_since[first])
            first = i;
    }
    int32_t b = kv_take(p);
    if (first < 0) {
        assert_int_equal(b, -1);
        return;
    }
    assert_in_range(b, 0, m->total - 1);
    assert_int_equal(m->owners[b], 0);
    assert_true(blank ? m->text[b] == 0 : b == first);
    m->text[b] = 0;
    m->owners[b] = 1;
    m->holders[h].blocks[m->holders[h].count++] = b;
}

static int32_t naive_find(const struct naive *m, int32_t text)
{
    for (int32_t i = 0; i < m->total; i++)
        if (m->text[i] == text)
            return i;
    return -1;
}

static void do_share(struct kv_pool *p, struct naive *m, int32_t h)
{
    const int32_t text = 1 + below(TEXTS);
    const struct kv_key key = key_of(text);
    int32_t b = kv_find(p, &key);
    assert_int_equal(b, naive_find(m, text));
    if (b < 0 || m->holders[h].count == HELD_MAX)
        return;
    assert_true(kv_name(p, b) == m->name[b] && kv_stamp(p, b) == (uint64_t)text * 10);
    kv_share(p, b);
    m->owners[b]++;
    m->holders[h].blocks[m->holders[h].count++] = b;
}

static void do_publish(struct kv_pool *p, struct naive *m, int32_t h)
{
    const int32_t text = 1 + below(TEXTS), known = naive_find(m, text);
    const struct kv_key key = key_of(text);
    if (m->holders[h].count == 0)
        return;
    int32_t b = m->holders[h].blocks[below(m->holders[h].count)];
    if (m->text[b])
        return;
    uint64_t name = kv_publish(p, b, &key, (uint64_t)text * 10);
    if (known >= 0) {
        assert_true(name == m->name[known]);
        return;
    }
    for (int32_t i = 0; i < m->total; i++)
        assert_true(m->name[i] != name); /* never reused */
    m->text[b] = text;
    m->name[b] = name;
}

static void do_release(struct kv_pool *p, struct naive *m, int32_t h)
{
    int32_t n = below(m->holders[h].count + 1), *end = &m->holders[h].count;
    kv_release(p, m->holders[h].blocks + *end - n, n);
    for (int32_t i = 0; i < n; i++) { /* from the end */
        int32_t b = m->holders[h].blocks[--*end];
        if (--m->owners[b] == 0)
            m->free_since[b] = ++m->clock;
    }
}

static void play(struct kv_pool *p, struct naive *m)
{
    for (int32_t i = 0; i < 20000; i++) {
        int32_t h = below(HOLDERS), what = below(10);
        if (what < 3)
            do_take(p, m, h);
        else if (what < 5)
            do_share(p, m, h);
        else if (what < 8)
            do_publish(p, m, h);
        else if (below(500) > 0)
            do_release(p, m, h);
        else {
            kv_forget(p);
            memset(m->text, 0, sizeof m->text);
        }
        check_same(p, m);
    }
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
        assert_int_equal(kv_open(m.total, secret, &p, &err), OK);
        play(p, &m);
        for (int32_t i = 0; i < HOLDERS; i++)
            kv_release(p, m.holders[i].blocks, m.holders[i].count);
        kv_check(p);
        assert_int_equal(kv_used(p), 0);
        /* all of it can be had again, each block once */
        bool held[BLOCKS_MAX] = {false};
        for (int32_t i = 0; i < m.total; i++) {
            int32_t b = kv_take(p);
            assert_in_range(b, 0, m.total - 1);
            assert_false(held[b]);
            held[b] = true;
        }
        assert_int_equal(kv_take(p), -1);
        assert_int_equal(kv_kept(p), 0);
        kv_close(p);
    }
    kv_close(NULL);
}

/* A find compares everything: one token, the salt or the block before differ, and it is none. */
static void test_keys(void **state)
{
    (void)state;
    struct kv_pool *p;
    struct err err;
    assert_int_equal(kv_open(4, secret, &p, &err), OK);
    struct kv_key key = {.salt = 7, .before = 9}, other = key;
    int32_t block = kv_take(p);
    kv_publish(p, block, &key, 1);
    assert_int_equal(kv_find(p, &key), block);
    for (int32_t i = 0; i < BACKEND_BLOCK_TOKENS; i++) {
        other.tokens[i]++;
        assert_int_equal(kv_find(p, &other), -1);
        other = key;
    }
    other.salt++;
    assert_int_equal(kv_find(p, &other), -1);
    other = key;
    other.before++;
    assert_int_equal(kv_find(p, &other), -1);
    kv_close(p);
}

/* A text is forgotten from its end. */
static void test_end_goes_first(void **state)
{
    (void)state;
    struct kv_pool *p;
    struct err err;
    int32_t blocks[4];
    struct kv_key keys[4];
    uint64_t name = 0;
    assert_int_equal(kv_open(4, secret, &p, &err), OK);
    for (int32_t i = 0; i < 4; i++) {
        keys[i] = (struct kv_key){.before = name};
        blocks[i] = kv_take(p);
        name = kv_publish(p, blocks[i], &keys[i], 1);
    }
    kv_release(p, blocks, 4);
    for (int32_t i = 3; i >= 0; i--) {
        assert_int_equal(kv_find(p, &keys[i]), blocks[i]);
        assert_int_equal(kv_take(p), blocks[i]);
        assert_int_equal(kv_find(p, &keys[i]), -1);
    }
    kv_close(p);
}

/* ---- misuse ---- */

enum misuse {
    RELEASE_TWICE,
    RELEASE_NEVER_TAKEN,
    RELEASE_SAME_BLOCK_IN_ONE_CALL,
    PUBLISH_TWICE,
    PUBLISH_NOT_OWNED,
    NO_SUCH_BLOCK,
    MISUSES
};

/* In a child: a pool with 4 blocks, two of them taken, used wrongly. */
static void misuse(enum misuse how)
{
    struct kv_pool *p;
    struct err err;
    if (kv_open(4, secret, &p, &err) != OK)
        return;
    int32_t blocks[2] = {kv_take(p), kv_take(p)};
    const int32_t same[2] = {blocks[0], blocks[0]};
    const int32_t other = 6 - blocks[0] - blocks[1] > 3 ? 3 : 2; /* one that is free */
    const struct kv_key key = key_of(1), key2 = key_of(2);
    switch (how) {
    case RELEASE_TWICE:
        kv_release(p, blocks, 1);
        kv_release(p, blocks, 1);
        break;
    case RELEASE_NEVER_TAKEN:
        kv_release(p, &other, 1);
        break;
    case RELEASE_SAME_BLOCK_IN_ONE_CALL:
        kv_release(p, same, 2);
        break;
    case PUBLISH_TWICE:
        kv_publish(p, blocks[0], &key, 1);
        kv_publish(p, blocks[0], &key2, 1);
        break;
    case PUBLISH_NOT_OWNED:
        kv_publish(p, other, &key, 1);
        break;
    case NO_SUCH_BLOCK:
        kv_share(p, 4);
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
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_end_goes_first),
        cmocka_unit_test(test_misuse_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
