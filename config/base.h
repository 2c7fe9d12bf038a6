/* Ground floor: status and error text, logging, checked size arithmetic, clock.
 *
 * Error idiom of the whole program: a fallible function returns `enum status`, takes `struct err *`
 * last (never NULL), and leaves its out-parameters untouched on failure, unless its header says
 * otherwise. Callers use TRY with one `out:` label; every close(NULL) is legal. Log or return an
 * error, never both. */
#ifndef TESSERA_CONFIG_BASE_H
#define TESSERA_CONFIG_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum status {
    OK = 0,
    ERR_USAGE,     /* command line or configuration file: exit 2 */
    ERR_MODEL,     /* model unreadable, damaged or unsupported: exit 3 */
    ERR_IO,        /* a file or socket failed: exit 3 while loading */
    ERR_LIMIT,     /* does not fit a stated limit (memory, context, queue): exit 4, HTTP 429/503 */
    ERR_DEVICE,    /* backend or device unavailable: exit 4 */
    ERR_NOMEM,     /* allocation failed: exit 4 */
    ERR_INPUT,     /* a request is invalid: HTTP 400 */
    ERR_COMM,      /* the rank group is lost: exit 5 */
    ERR_PEER,      /* another process is in the way: a server that is measured fails or is not
                      there, or one has our address: exit 1 */
    ERR_OUTPUT,    /* what a command makes cannot be written: exit 1 */
    ERR_CANCELLED, /* stopped on purpose */
    ERR_INTERNAL,  /* our bug: exit 70 */
};

/* One line: what, where, got, wanted, what to do. Always NUL-terminated. */
struct err {
    char text[640];
};

#define MUST_USE __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define ALIGNED64 __attribute__((aligned(64)))

/* Needs `enum status st` and a label `out:` in scope. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        st = (call);                                                                               \
        if (st != OK)                                                                              \
            goto out;                                                                              \
    } while (0)

/* Programmer errors, in every build type: prints where and aborts. One condition each. */
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond))                                                                               \
            base_check_failed(#cond, __FILE__, __LINE__);                                          \
    } while (0)

_Noreturn void base_check_failed(const char *cond, const char *file, int line);

/* Writes the message into *err and returns st, so that `return base_fail(err, ERR_X, ...)` reads
 * well. */
enum status base_fail(struct err *err, enum status st, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* As base_fail, with ": strerror(errno)" appended; ENOMEM is ERR_NOMEM, whatever was asked for. */
enum status base_fail_errno(struct err *err, enum status st, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
/* Of a process or thread that could not be started: as base_fail_errno, for the number that such
 * calls return, with what sets the bound where it is one of processes or files. */
enum status base_fail_start(struct err *err, int number, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Process exit code of a status: 0, 1, 2, 3, 4, 5 or 70. */
int base_exit_code(enum status st);

/* a * b and a + b without wrap-around; false when the result does not fit. *out untouched then. */
bool base_mul(size_t a, size_t b, size_t *out) MUST_USE;
bool base_add(size_t a, size_t b, size_t *out) MUST_USE;
/* n rounded up to a multiple of align (a power of two). The caller keeps n far below SIZE_MAX. */
size_t base_align(size_t n, size_t align);

/* What a loop that waits for another thread does in each turn. */
static inline void base_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* YIELD takes no time on most */
#endif
}

static inline int32_t base_min32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static inline int32_t base_max32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static inline int64_t base_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t base_max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline size_t base_max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* CLOCK_MONOTONIC in nanoseconds / seconds. */
int64_t base_now_ns(void);
double base_now(void);

/* ---- logging: thread-safe, one line per call (config/log.h); only thread roots and main log */
enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
void base_log(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Number of edits (insert, delete, replace, swap of neighbours) between two short words;
 * used for "did you mean". Words longer than 63 bytes compare as far apart. */
int base_edit_distance(const char *a, const char *b);

bool base_ends_with(const char *text, const char *end);

/* "1.5 GiB", "312 KiB" into buf; returns buf. */
const char *base_human_bytes(char *buf, size_t cap, uint64_t bytes);

/* FNV-1a 64-bit, chained through *hash. Start with BASE_HASH_INIT. */
#define BASE_HASH_INIT 0xcbf29ce484222325ull
uint64_t base_hash(uint64_t hash, const void *bytes, size_t n);
/* SipHash-2-4: without the secret nobody can choose bytes whose hashes collide. */
uint64_t base_siphash(const uint64_t secret[2], const void *bytes, size_t n);

#endif
