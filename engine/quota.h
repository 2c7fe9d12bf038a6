/* Quota: how much of the processors' time the control groups of this process leave it, as a
 * container's limit (docker run --cpus, resources of a pod, CPUQuota of a unit) says. The
 * processors themselves are all there to see, so that threads for each would only be stopped in
 * turn. */
#ifndef TESSERA_ENGINE_QUOTA_H
#define TESSERA_ENGINE_QUOTA_H

#include "config/base.h"

#define QUOTA_GROUPS "/sys/fs/cgroup" /* tests have trees of their own */
#define QUOTA_SELF "/proc/self/cgroup"

/* In processors: the least of the limits of the group that `self` names and of those above it, of
 * version 2 (cpu.max) or 1 (cpu.cfs_quota_us); 0: there is none. Pure but for reading. */
double quota_processors(const char *groups, const char *self);
/* Of so many cores those that this process may keep busy; at least one. */
int32_t quota_cores(int32_t cores);

#endif
