/* Subnormal numbers as zeros, of operands and of results, as VDPBF16PS has them: for the variants
 * that multiply BF16 without it. The mode is the thread's: it is taken back right after. (ARM takes
 * a result for zero before it rounds, x86 after: a sum that would round up to 2^-126, the least
 * normal number, is 0 there.) */
#ifndef TESSERA_KERNELS_CPU_FLUSH_H
#define TESSERA_KERNELS_CPU_FLUSH_H

#include <stdint.h>

#if defined(__x86_64__)

#include <xmmintrin.h>

#define FLUSH_MXCSR 0x8040u /* FTZ and DAZ */

static inline uint64_t flush_begin(void)
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH_MXCSR);
    return before;
}

static inline void flush_end(uint64_t before)
{
    _mm_setcsr((unsigned)before);
}

#elif defined(__aarch64__)

#define FLUSH_FPCR ((uint64_t)1 << 24) /* FZ */

static inline uint64_t flush_begin(void)
{
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | FLUSH_FPCR) : "memory");
    return before;
}

static inline void flush_end(uint64_t before)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(before) : "memory");
}

#else /* kept: results then differ from those of other machines where numbers are this small */

static inline uint64_t flush_begin(void)
{
    return 0;
}

static inline void flush_end(uint64_t before)
{
    (void)before;
}

#endif

#endif
