/* DESIGN: as cpu_neon.c, and SDOT (FEAT_DotProd, ARMv8.2) for weights of integers. BFDOT is not
 * used: it rounds otherwise than the products of BF16 that all other variants agree on. Compile
 * as cpu_neon.c, with -march=armv8.2-a+dotprod. */
#if defined(__aarch64__)
#define V16_DOTPROD
#include "kernels/cpu/v16_neon.h"

#include "kernels/cpu/micro.h"

const struct cpu_isa cpu_dotprod = MICRO_ISA;
#else
typedef int cpu_dotprod_is_arm; /* C wants something in a file */
#endif
