/* The parts that are opened at run time, and what they find: GPUs, NCCL, MPI. */
#ifndef TESSERA_SERVER_DOCTOR_MODULES_H
#define TESSERA_SERVER_DOCTOR_MODULES_H

#include "config/options.h"
#include "server/doctor/findings.h"

/* What is missing is a failure only where the options ask for it. */
void modules_check(const struct options *o, struct findings *f);

#endif
