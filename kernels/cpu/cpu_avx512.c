/* DESIGN: AVX-512 F, BW, DQ and VL; see micro.h. Compile with -mavx512f -mavx512bw -mavx512dq
 * -mavx512vl -mfma -mf16c. */
#if defined(__x86_64__)
#include "kernels/cpu/v16_avx512.h"

#include "kernels/cpu/micro.h"

const struct cpu_isa cpu_avx512 = MICRO_ISA;
#else
typedef int cpu_avx512_is_x86; /* C wants something in a file */
#endif
