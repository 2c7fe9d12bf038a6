/* What the host and its limits allow: processor, memory, files. */
#ifndef TESSERA_SERVER_DOCTOR_MACHINE_H
#define TESSERA_SERVER_DOCTOR_MACHINE_H

#include "config/options.h"
#include "server/doctor/findings.h"

void machine_check(const struct options *o, struct findings *f);

#endif
