/* Hopper's own instructions (sm_90a; nothing newer has them), each one function: products of four
 * warps, a "group", with factors in shared memory; barriers there; registers that groups give each
 * other. tests/emulate states what they mean. */
#ifndef TESSERA_KERNELS_CUDA_WGMMA_CUH
#define TESSERA_KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/mma.cuh"

/* Matrices of 16-bit elements lie in shared memory in columns of 64: lines of 128 bytes, one below
 * the other, of which line r has its 16-byte piece p at p ^ r % 8. Each begins at a multiple of so
 * many bytes. */
#define WGMMA_ALIGNED 1024

#ifndef MMA_EMULATED

/* 64-bit descriptors: bits 0 to 13 the address, 16 to 29 and 32 to 45 two strides, all in 16 bytes;
 * 62 the order of pieces. */
typedef uint64_t wgmma_place;

DEVICE wgmma_place wgmma_place_of(const void *shared, uint32_t leading, uint32_t stride)
{
    return (uint64_t)(mma_address(shared) >> 4 & 0x3fffu) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32 | (uint64_t)1 << 62;
}

/* A factor, 16 of whose elements lie along each line, from here on. */
DEVICE wgmma_place wgmma_along(const void *shared)
{
    return wgmma_place_of(shared, 16, WGMMA_ALIGNED); /* of eight lines */
}

/* One whose 16 elements lie in 16 lines; columns have so many. */
DEVICE wgmma_place wgmma_across(const void *shared, int lines)
{
    return wgmma_place_of(shared, (uint32_t)lines * 128, WGMMA_ALIGNED);
}

/* So many bytes behind one. */
DEVICE wgmma_place wgmma_further(wgmma_place p, uint32_t bytes)
{
    return p >> 32 << 32 | ((uint32_t)p + (bytes >> 4)); /* addresses have no carry */
}

/* Products may begin: the registers that they use are written. */
DEVICE void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* The products since the last call are a group. */
DEVICE void wgmma_group()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until all but the last `n` groups are done. */
template <int n> DEVICE void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}

/* The compiler keeps what it does with these registers on its side of this place. */
template <int N> DEVICE void wgmma_hold(float (&c)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+f"(c[n][i])::"memory");
}

/* The two are computed before what comes next, and what they are made of is: not only the compiler,
 * the assembler, too, moves what has no effect but its result behind a wait for products, which
 * then run beside nothing. It does not know that neither is negative and nothing happens here. */
DEVICE void wgmma_after(const float (&x)[2])
{
    const uint32_t bits = __float_as_uint(x[0]) | __float_as_uint(x[1]);
    asm volatile("{.reg .pred p; setp.lt.s32 p, %0, 0; @p nanosleep.u32 1;}" ::"r"(bits)
                 : "memory");
}

/* What is in shared memory, of this thread's and of others' that it knows of, is what products that
 * begin later read. */
DEVICE void wgmma_publish()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define WGMMA_4(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define WGMMA_16(n) WGMMA_4(n), WGMMA_4(n + 1), WGMMA_4(n + 2), WGMMA_4(n + 3)
#define WGMMA_OUT_64 WGMMA_16(0), WGMMA_16(4)
#define WGMMA_OUT_128 WGMMA_OUT_64, WGMMA_16(8), WGMMA_16(12)
#define WGMMA_NAMES_64                                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "   \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_128                                                                            \
    WGMMA_NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
                   "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "   \
                   "%62, %63"

/* c[64 x N] = or += a[64 x 16] * b[16 x N], a and b along lines; c is spread over the group's four
 * warps as 16 x 8 results (mma_multiply) side by side. And c += a * b where a is spread likewise, b
 * across. P0, P1..: the operands behind c's. */
#define WGMMA(N, TYPE, NAME, P0, P1, P2, P3, P4)                                                   \
    DEVICE void wgmma_multiply(float(&c)[N / 8][4], wgmma_place a, wgmma_place b, bool add, TYPE)  \
    {                                                                                              \
        asm volatile("{.reg .pred p; setp.ne.b32 p, " P2 ", 0; "                                   \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME               \
                     " {" WGMMA_NAMES_##N "}, " P0 ", " P1 ", p, 1, 1, 0, 0;}"                     \
                     : WGMMA_OUT_##N                                                               \
                     : "l"(a), "l"(b), "r"((int)add));                                             \
    }                                                                                              \
    DEVICE void wgmma_multiply(float(&c)[N / 8][4], const uint32_t(&a)[4], wgmma_place b, TYPE)    \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME               \
                     " {" WGMMA_NAMES_##N "}, {" P0 ", " P1 ", " P2 ", " P3 "}, " P4               \
                                          ", 1, 1, 1, 1;"                                          \
                     : WGMMA_OUT_##N                                                               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }
WGMMA(64, bf16, "bf16", "%32", "%33", "%34", "%35", "%36")
WGMMA(64, __half, "f16", "%32", "%33", "%34", "%35", "%36")
WGMMA(128, bf16, "bf16", "%64", "%65", "%66", "%67", "%68")
WGMMA(128, __half, "f16", "%64", "%65", "%66", "%67", "%68")

/* ---- barriers in shared memory ---- */

/* A phase of it is over when so many have arrived; then the next begins. */
DEVICE void barrier_init(uint64_t *b, uint32_t count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(mma_address(b)), "r"(count) : "memory");
}

DEVICE void barrier_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(mma_address(b)) : "memory");
}

/* The thread arrives when all copies that it has begun (mma_copy) are done. */
DEVICE void barrier_arrive_copied(uint64_t *b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(mma_address(b))
                 : "memory");
}

/* Until the phase of this parity is over: the first one's is 0, that before the first 1. */
DEVICE void barrier_wait(uint64_t *b, uint32_t parity)
{
    asm volatile("{.reg .pred p;\n"
                 "again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done: }" ::"r"(mma_address(b)),
                 "r"(parity)
                 : "memory");
}

/* So many threads, of whole warps, meet at one of 15 places. */
DEVICE void group_sync(int place, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(1 + place), "r"(threads) : "memory");
}

/* ---- registers of a group's threads ---- */

template <int n> DEVICE void registers_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}

template <int n> DEVICE void registers_fewer()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

#endif

/* The first aligned byte from here on. */
DEVICE unsigned char *wgmma_align(unsigned char *shared)
{
    return shared + (0 - mma_address(shared)) % WGMMA_ALIGNED;
}

#endif
