/* Memory that runs out: every allocation of the program and of its libraries goes through the
 * functions here, which fail from a chosen one on, or that one alone, and count what is live. For
 * cmocka programs of one thread; included once. */
#ifndef TESSERA_TESTS_NOMEM_H
#define TESSERA_TESTS_NOMEM_H

#include "config/base.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(__has_feature)
#define NOMEM_HAS(feature) __has_feature(feature)
#else
#define NOMEM_HAS(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                               \
    NOMEM_HAS(address_sanitizer) || NOMEM_HAS(thread_sanitizer)
#define NOMEM_REAL(name) __interceptor_##name
#else
#define NOMEM_REAL(name) __libc_##name
#endif

/* Called before the thread sanitizer is ready. */
#define NOMEM_EARLY __attribute__((no_sanitize("thread")))

void *NOMEM_REAL(malloc)(size_t n);
void *NOMEM_REAL(calloc)(size_t count, size_t n);
void *NOMEM_REAL(realloc)(void *p, size_t n);
void NOMEM_REAL(free)(void *p);

static struct {
    bool armed;
    bool only_one; /* else all that follow fail as well */
    long at;       /* number of the first that fails */
    long seen, live;
} nomem;

/* Is this allocation to fail? */
NOMEM_EARLY static bool nomem_fails(void)
{
    if (!nomem.armed)
        return false;
    nomem.seen++;
    if (nomem.only_one ? nomem.seen != nomem.at : nomem.seen < nomem.at)
        return false;
    errno = ENOMEM;
    return true;
}

NOMEM_EARLY static void *nomem_born(void *p)
{
    nomem.live += nomem.armed && p;
    return p;
}

NOMEM_EARLY void *malloc(size_t n)
{
    return nomem_fails() ? NULL : nomem_born(NOMEM_REAL(malloc)(n));
}

NOMEM_EARLY void *calloc(size_t count, size_t n)
{
    return nomem_fails() ? NULL : nomem_born(NOMEM_REAL(calloc)(count, n));
}

NOMEM_EARLY void *realloc(void *p, size_t n)
{
    if (nomem_fails())
        return NULL;
    return p ? NOMEM_REAL(realloc)(p, n) : nomem_born(NOMEM_REAL(realloc)(p, n));
}

NOMEM_EARLY void free(void *p)
{
    nomem.live -= nomem.armed && p;
    NOMEM_REAL(free)(p);
}

/* Sanitizers have these two of their own, which would not pass here. */
NOMEM_EARLY char *strndup(const char *text, size_t max)
{
    const size_t n = strnlen(text, max);
    char *copy = malloc(n + 1);
    if (copy) {
        memcpy(copy, text, n);
        copy[n] = '\0';
    }
    return copy;
}

NOMEM_EARLY char *strdup(const char *text)
{
    return strndup(text, SIZE_MAX - 1);
}

/* Opens something, checks it where that worked, and closes it. */
typedef enum status nomem_subject(const void *ctx, struct err *err);

/* Fails each allocation of the subject in turn. Each time it must say so, or have done without, and
 * give everything back. */
static inline void nomem_sweep(const char *name, nomem_subject *subject, const void *ctx)
{
    struct err err = {""};
    if (subject(ctx, &err) != OK) /* the first time fills caches of libraries */
        fail_msg("%s: %s", name, err.text);
    for (int only_one = 0; only_one < 2; only_one++) {
        for (long at = 1, refused = 0;; at++) {
            memset(&err, 0, sizeof err);
            memset(&nomem, 0, sizeof nomem);
            nomem.at = at;
            nomem.only_one = only_one;
            nomem.armed = true;
            const enum status st = subject(ctx, &err);
            nomem.armed = false;
            refused += st != OK;
            if (nomem.live != 0)
                fail_msg("%s: allocation %ld fails: %ld are lost", name, at, nomem.live);
            if (st != OK && (st != ERR_NOMEM || !strstr(err.text, "memory")))
                fail_msg("%s: allocation %ld fails: status %d, \"%s\"", name, at, (int)st,
                         err.text);
            if (nomem.seen < at) {
                assert_int_equal(st, OK);
                assert_true(refused > 0);
                print_message("%s: %ld allocations, %ld refusals\n", name, at - 1, refused);
                break;
            }
        }
    }
}

#endif
