/* DESIGN: what every processor of 64-bit ARM has; see micro.h. Compile with GCC's
 * -fno-schedule-insns, or accumulators are in memory. */
#if defined(__aarch64__)
#include "kernels/cpu/v16_neon.h"

#include "kernels/cpu/micro.h"

const struct cpu_isa cpu_neon = MICRO_ISA;
#else
typedef int cpu_neon_is_arm; /* C wants something in a file */
#endif
