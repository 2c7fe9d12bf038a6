/* DESIGN: a processor is a row of four numbers, and the order in which ranks take them is an order
 * of those. hwloc was rejected: three small files of the kernel's are all that is needed, and they
 * are what it reads, too. */
#include "engine/cores.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NODES_MAX 1024

/* A processor; of those that share a core, `sibling` counts the ones that may be used. */
struct cpu {
    int32_t number, node, core, sibling;
};

struct machine {
    struct cpu cpu[CPU_SETSIZE];
    int32_t count, cores;
};

/* A list as "0-3,8" in a file of the kernel's. False: there is none that can be read. */
static bool read_list(const char *path, cpu_set_t *out)
{
    char text[8192];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return false;
    text[n] = '\0';
    CPU_ZERO(out);
    for (char *at = text; *at >= '0' && *at <= '9'; at += *at == ',') {
        const unsigned long first = strtoul(at, &at, 10);
        unsigned long last = first;
        if (*at == '-')
            last = strtoul(at + 1, &at, 10);
        for (unsigned long i = first; i <= last && i < CPU_SETSIZE; i++)
            CPU_SET(i, out);
    }
    return CPU_COUNT(out) > 0;
}

/* The lowest number among those that share a core; its own where the kernel does not say. */
static int32_t core_of(const char *sys, int32_t cpu)
{
    static const char *const names[] = {"core_cpus_list", "thread_siblings_list"}; /* new, old */
    char path[512];
    cpu_set_t set;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/devices/system/cpu/cpu%d/topology/%s", sys, (int)cpu,
                 names[i]);
        if (!read_list(path, &set) || !CPU_ISSET((size_t)cpu, &set))
            continue;
        int32_t core = 0;
        while (!CPU_ISSET((size_t)core, &set))
            core++;
        return core;
    }
    return cpu;
}

static void read_nodes(const char *sys, struct machine *m)
{
    char path[512];
    cpu_set_t nodes, cpus;
    snprintf(path, sizeof path, "%s/devices/system/node/online", sys);
    if (!read_list(path, &nodes))
        return;
    for (int32_t node = 0; node < NODES_MAX && node < CPU_SETSIZE; node++) {
        if (!CPU_ISSET((size_t)node, &nodes))
            continue;
        snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", sys, (int)node);
        if (!read_list(path, &cpus)) /* memory without processors */
            continue;
        for (int32_t i = 0; i < m->count; i++)
            if (CPU_ISSET((size_t)m->cpu[i].number, &cpus))
                m->cpu[i].node = node;
    }
}

static void read_machine(const char *sys, const cpu_set_t *allowed, struct machine *m)
{
    *m = (struct machine){.count = 0};
    for (int32_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET((size_t)i, allowed))
            m->cpu[m->count++] = (struct cpu){.number = i, .core = core_of(sys, i)};
    for (int32_t i = 0; i < m->count; i++) {
        for (int32_t j = 0; j < i; j++)
            m->cpu[i].sibling += m->cpu[j].core == m->cpu[i].core;
        m->cores += m->cpu[i].sibling == 0;
    }
    read_nodes(sys, m);
}

int32_t cores_count(const char *sys, const cpu_set_t *allowed)
{
    struct machine m;
    read_machine(sys, allowed, &m);
    return m.cores > 0 ? m.cores : 1;
}

/* By node, then by core; what shares a core is together. */
static int by_place(const void *a, const void *b)
{
    const struct cpu *x = a, *y = b;
    return x->node != y->node       ? x->node - y->node
           : x->core != y->core     ? x->core - y->core
           : x->number != y->number ? x->number - y->number
                                    : 0;
}

/* Nodes with processors, of a sorted list: where each begins; the end is behind the last. */
static int32_t find_nodes(const struct cpu *cpu, int32_t count, int32_t begin[CPU_SETSIZE + 1])
{
    int32_t nodes = 0;
    for (int32_t i = 0; i < count; i++)
        if (i == 0 || cpu[i].node != cpu[i - 1].node)
            begin[nodes++] = i;
    begin[nodes] = count;
    return nodes;
}

/* Rank r's first processor where ranks are dealt out to nodes; -1: they do not fit so. */
static int32_t dealt(const int32_t *begin, int32_t nodes, int32_t ranks, int32_t threads, int32_t r)
{
    const int32_t node = r * nodes / ranks;
    int32_t before = 0; /* ranks of this node that come earlier */
    while (before < r && (r - before - 1) * nodes / ranks == node)
        before++;
    const int32_t first = begin[node] + before * threads;
    return first + threads <= begin[node + 1] ? first : -1;
}

void cores_plan(const char *sys, const cpu_set_t *allowed, int32_t ranks, int32_t threads,
                struct cores_plan *out)
{
    struct machine m;
    int32_t begin[CPU_SETSIZE + 1], count = 0;
    bool deal = true;
    read_machine(sys, allowed, &m);
    memset(out, 0, sizeof *out);
    qsort(m.cpu, (size_t)m.count, sizeof m.cpu[0], by_place);
    out->nodes = find_nodes(m.cpu, m.count, begin);
    if (ranks > CORES_RANKS_MAX || threads < 1 || ranks > m.count / threads)
        return;
    const bool alone = ranks <= m.cores / threads; /* a core for each thread */
    for (int32_t i = 0; i < m.count; i++)
        if (!alone || m.cpu[i].sibling == 0)
            m.cpu[count++] = m.cpu[i];
    const int32_t nodes = find_nodes(m.cpu, count, begin);
    for (int32_t r = 0; r < ranks; r++)
        deal = deal && dealt(begin, nodes, ranks, threads, r) >= 0;
    out->ranks = ranks;
    for (int32_t r = 0; r < ranks; r++) {
        const int32_t first = deal ? dealt(begin, nodes, ranks, threads, r) : r * threads;
        out->node[r] = m.cpu[first].node;
        for (int32_t i = first; i < first + threads; i++) {
            CPU_SET((size_t)m.cpu[i].number, &out->rank[r]);
            if (m.cpu[i].node != out->node[r])
                out->node[r] = -1;
        }
    }
}

bool cores_of(const struct options *o, int32_t threads, struct cores_plan *out)
{
    cpu_set_t allowed;
    memset(out, 0, sizeof *out);
    if (strcmp(o->cpu_bind, "auto") != 0 || (strcmp(o->device, "cuda") == 0 && threads < 2) ||
        sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return false;
    cores_plan(CORES_SYS, &allowed, o->tp, threads, out);
    return out->ranks > 0;
}

void cores_list(const cpu_set_t *set, struct buf *out)
{
    bool first = true;
    for (int32_t i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET((size_t)i, set))
            continue;
        int32_t last = i;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET((size_t)(last + 1), set))
            last++;
        buf_printf(out, "%s%d", first ? "" : ",", (int)i);
        if (last > i)
            buf_printf(out, "-%d", (int)last);
        first = false;
        i = last;
    }
}
