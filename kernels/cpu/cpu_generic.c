/* DESIGN: the variant that states the results. Plain C, any machine; slow, because each fused
 * multiply-add is a call where the baseline instruction set has none. */
#include "kernels/cpu/v16_generic.h"

#include "kernels/cpu/micro.h"

const struct cpu_isa cpu_generic = MICRO_ISA;
