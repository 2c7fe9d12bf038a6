/* DESIGN: AVX2 with FMA and F16C; see micro.h. Compile with -mavx2 -mfma -mf16c. */
#if defined(__x86_64__)
#include "kernels/cpu/v16_avx2.h"

#include "kernels/cpu/micro.h"

const struct cpu_isa cpu_avx2 = MICRO_ISA;
#else
typedef int cpu_avx2_is_x86; /* C wants something in a file */
#endif
