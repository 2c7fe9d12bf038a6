/* Quota: how much this process may take: of files, and what its control groups leave it of the
 * processors' time and of memory, as a container's limits (docker run --cpus and --memory,
 * resources of a pod, CPUQuota= and MemoryMax= of a unit) say. The machine's processors and memory
 * are all there to see; but threads for each processor would only be stopped in turn, and who takes
 * more memory is killed. */
#ifndef TESSERA_ENGINE_QUOTA_H
#define TESSERA_ENGINE_QUOTA_H

#include "config/base.h"

#define QUOTA_GROUPS "/sys/fs/cgroup" /* tests have trees of their own */
#define QUOTA_SELF "/proc/self/cgroup"

/* In processors: the least of the limits of the group that `self` names and of those above it, of
 * version 2 (cpu.max) or 1 (cpu.cfs_quota_us); 0: there is none. Pure but for reading. */
double quota_processors(const char *groups, const char *self);
/* In bytes: the least room below the limits of those groups, of version 2 (memory.max) or 1
 * (memory.limit_in_bytes); SIZE_MAX: there is no limit. Pure but for reading. */
size_t quota_memory(const char *groups, const char *self);
/* How many files may be open at once: as many as wanted, for which the soft limit is raised if need
 * be, or what the hard one allows. */
int64_t quota_files(int64_t wanted);
/* Of so many cores those that this process may keep busy; at least one. */
int32_t quota_cores(int32_t cores);

#endif
