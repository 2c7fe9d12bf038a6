/* DESIGN: nothing here has state; the log does, in config/log.c. */
#include "config/base.h"

#include "config/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

_Noreturn void base_check_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "tessera: internal error: %s is false (%s:%d)\n", cond, file, line);
    abort();
}

enum status base_fail(struct err *err, enum status st, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    return st;
}

enum status base_fail_errno(struct err *err, enum status st, const char *fmt, ...)
{
    int saved = errno;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    size_t n = strlen(err->text);
    snprintf(err->text + n, sizeof err->text - n, ": %s", strerror(saved));
    return saved == ENOMEM ? ERR_NOMEM : st;
}

enum status base_fail_start(struct err *err, int number, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    const size_t n = strlen(err->text);
    snprintf(err->text + n, sizeof err->text - n, ": %s%s", strerror(number),
             number == EAGAIN ? "; that many processes and threads are not allowed (ulimit -u, "
                                "TasksMax= of a unit, a container's limit of pids)"
                              : "");
    if (number == ENOMEM)
        return ERR_NOMEM;
    const bool bound = number == EAGAIN || number == EMFILE || number == ENFILE;
    return bound ? ERR_LIMIT : ERR_INTERNAL;
}

int base_exit_code(enum status st)
{
    switch (st) {
    case OK:
    case ERR_CANCELLED:
        return 0;
    case ERR_PEER:
    case ERR_OUTPUT:
        return 1;
    case ERR_USAGE:
        return 2;
    case ERR_MODEL:
    case ERR_IO:
    case ERR_INPUT:
        return 3;
    case ERR_LIMIT:
    case ERR_DEVICE:
    case ERR_NOMEM:
        return 4;
    case ERR_COMM:
        return 5;
    case ERR_INTERNAL:
        return 70;
    }
    return 70;
}

bool base_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

bool base_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

size_t base_align(size_t n, size_t align)
{
    return (n + align - 1) & ~(align - 1);
}

int64_t base_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double base_now(void)
{
    return (double)base_now_ns() * 1e-9;
}

void base_log(enum log_level level, const char *fmt, ...)
{
    char message[1200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    log_event(level, message, NULL, 0);
}

int base_edit_distance(const char *a, const char *b)
{
    enum { WORD_MAX = 64 };
    size_t na = strlen(a), nb = strlen(b);
    if (na >= WORD_MAX || nb >= WORD_MAX)
        return 1000;
    int d[WORD_MAX + 1][WORD_MAX + 1]; /* optimal string alignment */
    for (size_t i = 0; i <= na; i++)
        d[i][0] = (int)i;
    for (size_t j = 0; j <= nb; j++)
        d[0][j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        for (size_t j = 1; j <= nb; j++) {
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best)
                best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best)
                best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[na][nb];
}

bool base_ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), len = strlen(end);
    return n >= len && strcmp(text + n - len, end) == 0;
}

const char *base_human_bytes(char *buf, size_t cap, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    size_t u = 0;
    while (v >= 1024 && u + 1 < ARRAY_LEN(units)) {
        v /= 1024;
        u++;
    }
    snprintf(buf, cap, u == 0 || v >= 100 ? "%.0f %s" : "%.1f %s", v, units[u]);
    return buf;
}

uint64_t base_hash(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ p[i]) * 0x100000001b3ull;
    return hash;
}

static uint64_t rotate(uint64_t v, int by)
{
    return v << by | v >> (64 - by);
}

static void sip_rounds(uint64_t v[4], int rounds)
{
    while (rounds-- > 0) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32) + v[3];
        v[2] += v[1];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

uint64_t base_siphash(const uint64_t secret[2], const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t v[4] = {secret[0] ^ 0x736f6d6570736575ull, secret[1] ^ 0x646f72616e646f6dull,
                     secret[0] ^ 0x6c7967656e657261ull, secret[1] ^ 0x7465646279746573ull};
    for (size_t at = 0; at <= n; at += 8) { /* the last word holds the rest and the length */
        const size_t left = n - at < 8 ? n - at : 8;
        uint64_t word = left < 8 ? (uint64_t)n << 56 : 0;
        for (size_t i = 0; i < left; i++)
            word |= (uint64_t)p[at + i] << (8 * i);
        v[3] ^= word;
        sip_rounds(v, 2);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    sip_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
