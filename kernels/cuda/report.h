/* What the driver says of the devices here. */
#ifndef TESSERA_KERNELS_CUDA_REPORT_H
#define TESSERA_KERNELS_CUDA_REPORT_H

#include "kernels/module.h"

/* As the module's report, without NCCL's version. */
enum status report_devices(struct module_report *out, struct err *err) MUST_USE;

#endif
