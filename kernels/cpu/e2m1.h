/* F4_E2M1, the elements of MXFP4 (OCP Microscaling Formats 1.0, table 5.3.3), as integers. */
#ifndef TESSERA_KERNELS_CPU_E2M1_H
#define TESSERA_KERNELS_CPU_E2M1_H

/* Twice the value, plus OFFSET, of each code of four bits: sign, then magnitude. */
#define E2M1_OFFSET 12
#define E2M1_CODES 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0

#endif
