/* DESIGN: a processor is a row of four numbers, and the order in which ranks take them is an order
 * of those. hwloc was rejected: three small files of the kernel's are all that is needed, and they
 * are what it reads, too. */
#include "engine/cores.h"

#include "engine/quota.h"

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
    int32_t count, cores, siblings; /* siblings: of the core that has most */
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
        m->siblings = m->cpu[i].sibling >= m->siblings ? m->cpu[i].sibling + 1 : m->siblings;
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

/* `threads` processors of a group for the rank-th of those that share it: a like number of cores
 * for each, and of these the first `siblings` threads, one after the other. False: it has too few.
 */
static bool take(const struct cpu *cpu, int32_t count, int32_t siblings, int32_t ranks,
                 int32_t rank, int32_t threads, cpu_set_t *set, int32_t *node)
{
    int32_t cores = 0, taken = 0;
    for (int32_t i = 0; i < count; i++)
        cores += i == 0 || cpu[i].core != cpu[i - 1].core;
    const int32_t begin = rank * cores / ranks, end = (rank + 1) * cores / ranks;
    for (int32_t sibling = 0; sibling < siblings && taken < threads; sibling++) {
        int32_t core = -1;
        for (int32_t i = 0; i < count && taken < threads; i++) {
            core += i == 0 || cpu[i].core != cpu[i - 1].core;
            if (cpu[i].sibling != sibling || core < begin || core >= end)
                continue;
            CPU_SET((size_t)cpu[i].number, set);
            *node = taken == 0 || *node == cpu[i].node ? cpu[i].node : -1;
            taken++;
        }
    }
    return taken == threads;
}

/* Each node has as many ranks as any other, or one more. */
static bool deal(const struct cpu *cpu, const int32_t *begin, int32_t nodes, int32_t siblings,
                 int32_t ranks, int32_t threads, struct cores_plan *out)
{
    bool fits = true;
    for (int32_t r = 0; r < ranks; r++) {
        const int32_t node = r * nodes / ranks;
        int32_t first = r, past = r;
        while (first > 0 && (first - 1) * nodes / ranks == node)
            first--;
        while (past < ranks && past * nodes / ranks == node)
            past++;
        CPU_ZERO(&out->rank[r]);
        fits = take(cpu + begin[node], begin[node + 1] - begin[node], siblings, past - first,
                    r - first, threads, &out->rank[r], &out->node[r]) &&
               fits;
    }
    return fits;
}

void cores_plan(const char *sys, const cpu_set_t *allowed, int32_t ranks, int32_t threads,
                struct cores_plan *out)
{
    struct machine m;
    int32_t begin[CPU_SETSIZE + 1], whole[2];
    read_machine(sys, allowed, &m);
    memset(out, 0, sizeof *out);
    qsort(m.cpu, (size_t)m.count, sizeof m.cpu[0], by_place);
    out->nodes = find_nodes(m.cpu, m.count, begin);
    if (ranks > CORES_RANKS_MAX || threads < 1 || ranks > m.count / threads)
        return;
    whole[0] = 0;
    whole[1] = m.count;
    bool fits = false;
    for (int32_t siblings = 1; siblings <= m.siblings && !fits; siblings++)
        fits = deal(m.cpu, begin, out->nodes, siblings, ranks, threads, out) ||
               deal(m.cpu, whole, 1, siblings, ranks, threads, out);
    if (!fits) /* cores with and without second threads: in order, then */
        for (int32_t i = 0; i < ranks * threads; i++) {
            const int32_t r = i / threads;
            if (i % threads == 0)
                CPU_ZERO(&out->rank[r]);
            CPU_SET((size_t)m.cpu[i].number, &out->rank[r]);
            out->node[r] = i % threads == 0 || out->node[r] == m.cpu[i].node ? m.cpu[i].node : -1;
        }
    out->ranks = ranks;
}

bool cores_of(const struct options *o, int32_t threads, struct cores_plan *out)
{
    cpu_set_t allowed;
    memset(out, 0, sizeof *out);
    if (strcmp(o->cpu_bind, "auto") != 0 || (strcmp(o->device, "cuda") == 0 && threads < 2) ||
        sched_getaffinity(0, sizeof allowed, &allowed) != 0 ||
        quota_cores(CPU_COUNT(&allowed)) < CPU_COUNT(&allowed))
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
