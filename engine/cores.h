/* Which processors each rank keeps to: cores of its own, of one NUMA node where that can be, and
 * second threads of a core (SMT) only where there are no others left. Everybody who asks finds the
 * same, from what the kernel says of the machine and the processors that the process may use. */
#ifndef TESSERA_ENGINE_CORES_H
#define TESSERA_ENGINE_CORES_H

#include "config/base.h"
#include "config/buf.h"
#include "config/options.h"

#include <sched.h>

#define CORES_SYS "/sys" /* tests have trees of their own */
#define CORES_PROC "/proc"
#define CORES_RANKS_MAX 64

struct cores_plan {
    int32_t ranks; /* 0: there are too few processors, so none is bound */
    cpu_set_t rank[CORES_RANKS_MAX];
    int32_t node[CORES_RANKS_MAX]; /* of its processors; -1: of several nodes */
    int32_t nodes;                 /* that have processors for this process */
};

/* Cores with a processor among `allowed` at least: two threads of one are one. `sys` is where the
 * kernel's tree is; where it says nothing every processor is a core, all of one node. */
int32_t cores_count(const char *sys, const cpu_set_t *allowed);
/* `threads` processors for each of `ranks` ranks. Ranks are dealt out to nodes in equal parts where
 * all fit so; else each takes the next ones, nodes one after the other. */
void cores_plan(const char *sys, const cpu_set_t *allowed, int32_t ranks, int32_t threads,
                struct cores_plan *out);
/* The same of this machine, for the ranks that options describe, `threads` for each. False: none is
 * bound, by --cpu-bind or because there are too few; or one processor would have to do for the rank
 * of a GPU and NCCL's own threads; or a limit of time (quota.h) says that others share them all.
 * With a cpu_list only of those in it. */
bool cores_of(const struct options *o, int32_t threads, struct cores_plan *out);
/* Processors that ranks of other servers keep to, so far as this process can see those: in its
 * namespace of processes. `proc` is where the kernel's tree of them is. A rank that has not come to
 * bind itself yet is not found. Not of the caller's own ranks, so before there are any. */
void cores_taken(const char *proc, cpu_set_t *out);
/* What is left of `allowed` without `taken`: no thread of a core that others keep to, if that is
 * enough for `ranks` times `threads`; else no processor of theirs. False: too few are left. */
bool cores_apart(const char *sys, const cpu_set_t *allowed, const cpu_set_t *taken, int32_t ranks,
                 int32_t threads, cpu_set_t *out);
/* "0-3,8", as the kernel writes it. */
void cores_list(const cpu_set_t *set, struct buf *out);

#endif
