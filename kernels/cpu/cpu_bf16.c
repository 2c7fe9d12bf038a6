/* DESIGN: as cpu_vnni.c, and AVX512_BF16 for weights of BF16. Compile with its options and
 * -mavx512bf16. */
#if defined(__x86_64__)
#define V16_VNNI
#define V16_BF16
#include "kernels/cpu/v16_avx512.h"

#include "kernels/cpu/micro.h"

const struct cpu_isa cpu_bf16 = MICRO_ISA;
#else
typedef int cpu_bf16_is_x86; /* C wants something in a file */
#endif
