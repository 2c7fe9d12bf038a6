#include "server/doctor/modules.h"

#include "engine/comm/comm.h"
#include "kernels/module.h"

#include <string.h>

#define CAPABILITY_MIN 8 /* the oldest major version that kernels/cuda is compiled for */

/* ---- GPUs ---- */

static void check_versions(const struct module_report *r, enum finding_level bad,
                           struct findings *f)
{
    const int32_t d = r->driver, t = r->runtime;
    if (d == 0)
        findings_add(f, bad, "driver", "install NVIDIA's driver, or pass its devices in",
                     "there is none; the module was built with CUDA %d.%d", t / 1000,
                     t % 1000 / 10);
    else /* within a major version, older drivers run newer programs */
        findings_add(f, d / 1000 < t / 1000 ? bad : FINDING_OK, "driver",
                     "update the driver, or build with the toolkit it is for",
                     "for CUDA %d.%d; the module was built with %d.%d", d / 1000, d % 1000 / 10,
                     t / 1000, t % 1000 / 10);
    findings_add(f, FINDING_OK, "nccl", NULL, "%d.%d.%d", r->nccl / 10000, r->nccl / 100 % 100,
                 r->nccl % 100);
}

static void check_device(const struct module_report *r, int32_t i, enum finding_level bad,
                         struct findings *f)
{
    char have[32], all[32];
    const struct module_device *d = &r->device[i];
    findings_add(f, d->major < CAPABILITY_MIN ? bad : FINDING_OK, "gpu",
                 "compute capability 8.0 (Ampere) or newer is needed",
                 "%d: %s, %s free of %s, compute capability %d.%d", (int)i, d->name,
                 base_human_bytes(have, sizeof have, d->free),
                 base_human_bytes(all, sizeof all, d->total), (int)d->major, (int)d->minor);
}

/* Ranks use the first devices. */
static void check_peers(const struct module_report *r, int32_t wanted, struct findings *f)
{
    const int32_t n = wanted < r->devices ? wanted : r->devices;
    int32_t apart = 0, pairs = 0;
    for (int32_t a = 0; a < n && a < MODULE_DEVICES_MAX; a++)
        for (int32_t b = 0; b < a; b++, pairs++)
            apart += (r->device[a].peers >> b & 1) == 0;
    if (pairs > 0)
        findings_add(f, apart > 0 ? FINDING_WARN : FINDING_OK, "peer access",
                     "collectives between these go through host memory, which is slow: see "
                     "nvidia-smi topo -m, and the IOMMU settings",
                     "%d of %d pairs of GPUs reach each other's memory", pairs - apart, pairs);
}

static void check_cuda(const struct options *o, struct findings *f)
{
    const bool wanted = strcmp(o->device, "cuda") == 0;
    const enum finding_level bad = wanted ? FINDING_FAIL : FINDING_WARN;
    const int32_t share = o->ranks_per_device, devices = (o->tp + share - 1) / share;
    const struct module *m = NULL;
    struct module_report r = {0};
    struct err err;
    if (module_find(&m, &err) != OK) { /* nothing is wrong with a machine for CPU ranks */
        findings_add(
            f, wanted ? FINDING_FAIL : FINDING_OK, "cuda module",
            "install or build it, with NVIDIA's packages libcublas-13-0 and libnccl2 where "
            "these are missing, or leave out --device cuda",
            "%s", err.text);
        return;
    }
    findings_add(f, FINDING_OK, "cuda module", NULL, "build %s, as the program", m->head.build);
    const enum status st = m->report(&r, &err);
    check_versions(&r, bad, f);
    if (st != OK) {
        findings_add(f, bad, "gpu", "CPU ranks work without", "%s", err.text);
        return;
    }
    for (int32_t i = 0; i < r.devices && i < MODULE_DEVICES_MAX; i++)
        check_device(&r, i, bad, f);
    if (wanted && devices > r.devices)
        findings_add(f, FINDING_FAIL, "gpus", "lower --tensor-parallel-size",
                     "%d are here, %d ranks need %d", (int)r.devices, (int)o->tp, (int)devices);
    check_peers(&r, wanted ? devices : r.devices, f);
}

/* ---- MPI ---- */

static void check_mpi(const struct options *o, struct findings *f)
{
    const char *build = NULL;
    struct err err;
    if (comm_mpi_build(&build, &err) == OK)
        findings_add(f, FINDING_OK, "mpi module", NULL, "build %s, as the program", build);
    else
        findings_add(f, options_mpi(o) ? FINDING_FAIL : FINDING_OK, "mpi module",
                     "install or build it, or leave out --comm mpi", "%s", err.text);
}

void modules_check(const struct options *o, struct findings *f)
{
    check_cuda(o, f);
    check_mpi(o, f);
}
