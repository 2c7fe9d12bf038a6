/* foreach (i, n): a loop that is unrolled, so that its arrays of v16 are registers. Under a
 * sanitizer it stays a loop, because the unrolled code, instrumented, takes minutes to compile. */
#ifndef TESSERA_KERNELS_CPU_FOREACH_H
#define TESSERA_KERNELS_CPU_FOREACH_H

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FOREACH_PRAGMA
#elif defined(__clang__)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FOREACH_PRAGMA _Pragma("clang loop unroll(disable)")
#else
#define FOREACH_PRAGMA _Pragma("clang loop unroll(full)")
#endif
#else
#define FOREACH_PRAGMA _Pragma("GCC unroll 32")
#endif

/* NOLINTNEXTLINE(bugprone-macro-parentheses): i is declared here */
#define foreach(i, n) FOREACH_PRAGMA for (ptrdiff_t i = 0; i < (n); i++)

#endif
