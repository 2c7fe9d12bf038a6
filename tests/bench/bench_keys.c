/* Does the time of keys_check say how much of a wrong key is right? As dudect (Reparaz, Balasch and
 * Verbauwhede, 2017): two kinds of wrong keys in random order, one wrong in its first byte, one in
 * a later byte, and Welch's t of their times without the slowest tenth. Below 4.5 nothing is seen,
 * above 10 there is a leak. The same is done to a comparison that leaks, so that a small t cannot
 * come from a measurement that sees nothing.
 *
 *     bench_keys [MEASUREMENTS]
 */
#include "server/keys.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEY_BYTES = 48, KEYS = 16, CALLS = 8, WARM_UP = 10000 };

static const char scheme[] = "Bearer ";
static char right[KEY_BYTES + 1];

typedef bool check(void *ctx, const char *authorization);

static bool check_keys(void *ctx, const char *authorization)
{
    return keys_check(ctx, authorization, NULL) != 0;
}

/* What must not be: it stops at the first wrong byte. */
static bool check_leaking(void *ctx, const char *authorization)
{
    const volatile char *key = authorization + sizeof scheme - 1;
    (void)ctx;
    for (int i = 0; i < KEY_BYTES; i++)
        if (key[i] != right[i])
            return false;
    return true;
}

struct moments {
    double n, mean, squares;
};

static void add(struct moments *m, double x)
{
    const double step = x - m->mean;
    m->n++;
    m->mean += step / m->n;
    m->squares += step * (x - m->mean);
}

static double welch_t(const struct moments *a, const struct moments *b)
{
    const double va = a->squares / (a->n - 1), vb = b->squares / (b->n - 1);
    return (a->mean - b->mean) / sqrt(va / a->n + vb / b->n);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Nanoseconds of CALLS checks of a key that is wrong at one place. */
static double measure(check *f, void *ctx, int wrong_at)
{
    static char text[sizeof scheme + KEY_BYTES]; /* one place in memory for both kinds */
    memcpy(text, scheme, sizeof scheme - 1);
    memcpy(text + sizeof scheme - 1, right, sizeof right);
    text[sizeof scheme - 1 + (size_t)wrong_at] ^= 1;
    int taken = 0;
    const int64_t began = base_now_ns();
    for (int i = 0; i < CALLS; i++)
        taken += f(ctx, text);
    const int64_t ended = base_now_ns();
    CHECK(taken == 0);
    return (double)(ended - began);
}

/* Prints and returns t of keys wrong at byte 0 against those wrong at `later`. */
static double compare(const char *name, check *f, void *ctx, int later, long count)
{
    static double first[WARM_UP];
    struct moments kinds[2] = {{0}};
    uint64_t random = 88172645463325252u; /* xorshift */
    for (int i = 0; i < WARM_UP; i++)
        first[i] = measure(f, ctx, i % 2 ? later : 0);
    qsort(first, WARM_UP, sizeof *first, ascending);
    const double slowest = first[WARM_UP / 10 * 9];
    for (long i = 0; i < count; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        const int kind = (random >> 32) & 1;
        const double ns = measure(f, ctx, kind ? later : 0);
        if (ns <= slowest)
            add(&kinds[kind], ns);
    }
    const double t = welch_t(&kinds[1], &kinds[0]);
    printf("| %s | %d | %.1f | %+.2f | %+.1f |\n", name, later, kinds[0].mean / CALLS,
           (kinds[1].mean - kinds[0].mean) / CALLS, t);
    return t;
}

/* A file of KEYS random keys; the one that is tried is among them. */
static enum status open_keys(struct keys **out, struct err *err)
{
    char path[] = "/tmp/bench_keys.XXXXXX";
    const int fd = mkstemp(path);
    if (fd < 0)
        return base_fail_errno(err, ERR_IO, "%s", path);
    srandom(1);
    for (int k = 0; k < KEYS; k++) {
        for (int i = 0; i < KEY_BYTES; i++)
            right[i] = "0123456789abcdef"[random() & 15];
        dprintf(fd, "%s\n", right);
    }
    close(fd);
    enum status st = keys_open(path, false, out, err);
    unlink(path);
    return st;
}

int main(int argc, char **argv)
{
    const long count = argc > 1 ? strtol(argv[1], NULL, 10) : 1000000;
    struct keys *k = NULL;
    struct err err = {""};
    if (count < 1000 || open_keys(&k, &err) != OK) {
        fprintf(stderr, "%s\n", count < 1000 ? "at least 1000 measurements" : err.text);
        return 2;
    }
    printf("| %d keys of %d bytes, %ld measurements | wrong byte | ns at byte 0 | difference | t "
           "|\n| --- | --- | --- | --- | --- |\n",
           KEYS, KEY_BYTES, count);
    compare("keys_check", check_keys, k, KEY_BYTES / 2, count);
    compare("keys_check", check_keys, k, KEY_BYTES - 1, count);
    const double seen = compare("a comparison that leaks", check_leaking, k, KEY_BYTES - 1, count);
    keys_close(k);
    if (fabs(seen) < 10)
        fprintf(stderr, "the leak was not seen: measure more, or on a quieter machine\n");
    return fabs(seen) < 10;
}
