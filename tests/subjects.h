/* Running an op on every CPU variant this machine has, with 1 and with 3 threads, on ref, and on
 * the device of a CUDA module beside the test: the emulated one of tests/emulate, or a real one.
 * The CPU variants must agree with each other bit for bit, and all with ref within a bound stated
 * per op (|got - ref| <= abs + |ref| * eps). Outputs lie between canary words. Inputs come from a
 * counter-based generator, so a failure repeats. */
#ifndef TESSERA_TESTS_SUBJECTS_H
#define TESSERA_TESTS_SUBJECTS_H

#include "kernels/backend.h"
#include "kernels/numerics.h"
#include "tests/staged.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CANARY 0x7fc0dead /* a NaN: whoever reads it is seen, too */
#define GUARD 32
#define UNUSED __attribute__((unused))

static struct err err;

/* ---- generator and buffers ------------------------------------------------------------------- */

/* Uniform in [-1, 1), multiples of 2^-23. */
static inline float gen(uint64_t seed, size_t i)
{
    return (float)(numerics_mix(seed * 0x9e3779b97f4a7c15ull + i) >> 40) * 0x1p-23f - 1.0f;
}

static inline void *must(void *p)
{
    assert_non_null(p);
    return p;
}

/* n words between GUARD canaries on each side; the words themselves begin as canaries. */
static inline void *guarded(size_t n)
{
    uint32_t *p = must(aligned_alloc(64, base_align((n + 2 * GUARD) * 4, 64)));
    for (size_t i = 0; i < n + 2 * GUARD; i++)
        p[i] = CANARY;
    return p + GUARD;
}

static inline void guarded_free(void *data, size_t n)
{
    uint32_t *p = (uint32_t *)data - GUARD;
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(p[i], CANARY);
        assert_int_equal(p[GUARD + n + i], CANARY);
    }
    free(p);
}

static inline float *generated(uint64_t seed, size_t n)
{
    float *p = guarded(n);
    for (size_t i = 0; i < n; i++)
        p[i] = gen(seed, i);
    return p;
}

static inline void *aligned_bytes(size_t n, int fill)
{
    void *p = must(aligned_alloc(64, base_align(n + 64, 64)));
    memset(p, fill, n + 64);
    return p;
}

static inline void assert_near(const char *what, const float *got, const float *ref, size_t n,
                               double abs, double eps)
{
    for (size_t i = 0; i < n; i++) {
        double bound = abs + fabs((double)ref[i]) * eps;
        if (!(fabs((double)got[i] - (double)ref[i]) <= bound))
            fail_msg("%s: element %zu is %.9g, ref %.9g, bound %.3g", what, i, (double)got[i],
                     (double)ref[i], bound);
    }
}

static inline void assert_bits(const char *what, const void *a, const void *b, size_t n)
{
    const unsigned char *p = a, *q = b;
    for (size_t i = 0; i < n; i++) {
        uint32_t x, y;
        memcpy(&x, p + 4 * i, 4);
        memcpy(&y, q + 4 * i, 4);
        if (x != y)
            fail_msg("%s: word %zu is %08x, wanted %08x", what, i, x, y);
    }
}

/* ---- subjects -------------------------------------------------------------------------------- */

static const char *const variants[] = {
    "cpu-generic",
#ifndef __SANITIZE_THREAD__ /* which looks at no others (CMakeLists.txt), nor at one thread */
    "cpu-avx2",    "cpu-avx512", "cpu-vnni", "cpu-bf16", "cpu-neon", "cpu-dotprod",
#endif
};
static const int thread_counts[] = {
#ifndef __SANITIZE_THREAD__
    1,
#endif
    3,
};

static struct backend *subjects[ARRAY_LEN(variants) * ARRAY_LEN(thread_counts)];
static int subject_threads[ARRAY_LEN(subjects)];
static int subject_count;
static struct backend *ref;
static struct backend *device; /* NULL: none */
/* The same with bits of a row that depend on no other; opened where that makes a difference. */
static struct backend *invariant;

/* All of them, i from 0 until NULL. */
static inline struct backend *nth_backend(int i)
{
    return i < subject_count        ? subjects[i]
           : i == subject_count     ? ref
           : i == subject_count + 1 ? device
           : i == subject_count + 2 ? invariant
                                    : NULL;
}

/* Without a module there is none; one that is there has to open. TEST_WITHOUT_DEVICE: programs in
 * which a device would take too long. */
static inline int open_device(void)
{
    struct backend *b = NULL;
    const char *without = getenv("TEST_WITHOUT_DEVICE");
    if (without != NULL && strstr(without, program_invocation_short_name) != NULL) {
        print_message("cuda: left out\n");
        return 0;
    }
    if (backend_open("cuda", 2, &b, &err) == OK) {
        device = staged_open(b);
        return 0;
    }
    print_message("cuda: skipped: %s\n", err.text);
    return strstr(err.text, "no libtessera_cuda.so beside") != NULL ? 0 : -1;
}

static inline int close_subjects(void **state UNUSED)
{
    for (int i = 0; i < subject_count; i++)
        backend_close(subjects[i]);
    backend_close(ref);
    backend_close(device);
    backend_close(invariant);
    return 0;
}

static inline int open_subjects(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(variants); i++)
        for (size_t t = 0; t < ARRAY_LEN(thread_counts) && backend_find(variants[i]); t++) {
            subject_threads[subject_count] = thread_counts[t];
            if (backend_open(variants[i], thread_counts[t], &subjects[subject_count++], &err) != OK)
                return -1;
        }
    return backend_open("ref", 1, &ref, &err) == OK ? open_device() : -1;
}

/* For tests of linear and attention. */
UNUSED static inline int open_invariant_too(void **state)
{
    struct backend *b = NULL;
    if (open_subjects(state) != 0)
        return -1;
    if (device != NULL && backend_open("cuda-deterministic", 2, &b, &err) == OK)
        invariant = staged_open(b);
    return (device != NULL) == (invariant != NULL) ? 0 : -1;
}

/* Runs one case into n words of out; the words it does not write stay canaries. */
typedef void (*case_fn)(struct backend *b, const void *arg, float *out);

/* All subjects against each other and against ref; devices, which may round otherwise, against ref
 * with a larger bound. */
static inline void run_case_loose(const char *what, case_fn fn, const void *arg, size_t n,
                                  double abs, double eps, double device_abs)
{
    char where[128];
    float *want = guarded(n), *first = guarded(n);
    fn(ref, arg, want);
    for (int i = 0; i < subject_count; i++) {
        float *got = i == 0 ? first : guarded(n);
        snprintf(where, sizeof where, "%.90s, %s with %d threads", what, subjects[i]->ops->name,
                 subject_threads[i]);
        fn(subjects[i], arg, got);
        assert_near(where, got, want, n, abs, eps);
        assert_bits(where, got, first, n);
        if (i > 0)
            guarded_free(got, n);
    }
    guarded_free(first, n);
    for (int i = subject_count + 1; nth_backend(i) != NULL; i++) {
        float *got = guarded(n);
        snprintf(where, sizeof where, "%.90s, %s", what, nth_backend(i)->ops->name);
        fn(nth_backend(i), arg, got);
        assert_near(where, got, want, n, device_abs, eps);
        guarded_free(got, n);
    }
    guarded_free(want, n);
}

static inline void run_case(const char *what, case_fn fn, const void *arg, size_t n, double abs,
                            double eps)
{
    run_case_loose(what, fn, arg, n, abs, eps, abs);
}

static inline void ok(enum status st)
{
    if (st != OK)
        fail_msg("%s", err.text);
}

#endif
