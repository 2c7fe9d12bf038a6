/* DESIGN: a processor is a row of four numbers, and the order in which ranks take them is an order
 * of those. hwloc was rejected: three small files of the kernel's are all that is needed, and they
 * are what it reads, too. */
#include "engine/cores.h"

#include "engine/quota.h"

#include <dirent.h>
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

/* Of a small file, with a NUL behind; 0: there is none that can be read. */
static size_t read_text(const char *path, char *text, size_t size)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, text, size - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n > 0 ? (size_t)n : 0;
}

/* A list as "0-3,8", up to anything else. False: there is none. */
static bool parse_list(const char *text, cpu_set_t *out)
{
    CPU_ZERO(out);
    for (char *at = (char *)(uintptr_t)text; *at >= '0' && *at <= '9'; at += *at == ',') {
        const unsigned long first = strtoul(at, &at, 10);
        unsigned long last = first;
        if (*at == '-')
            last = strtoul(at + 1, &at, 10);
        for (unsigned long i = first; i <= last && i < CPU_SETSIZE; i++)
            CPU_SET(i, out);
    }
    return CPU_COUNT(out) > 0;
}

static bool read_list(const char *path, cpu_set_t *out)
{
    char text[8192];
    return read_text(path, text, sizeof text) > 0 && parse_list(text, out);
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
    cpu_set_t allowed, listed;
    memset(out, 0, sizeof *out);
    if (strcmp(o->cpu_bind, "auto") != 0 || (strcmp(o->device, "cuda") == 0 && threads < 2) ||
        sched_getaffinity(0, sizeof allowed, &allowed) != 0 ||
        quota_cores(CPU_COUNT(&allowed)) < CPU_COUNT(&allowed))
        return false;
    if (o->cpu_list && parse_list(o->cpu_list, &listed))
        CPU_AND(&allowed, &allowed, &listed);
    cores_plan(CORES_SYS, &allowed, o->tp, threads, out);
    return out->ranks > 0;
}

/* ---- other servers ---- */

/* A rank is bound when it may use no more processors than it has threads: `tessera rank MODEL ...
 * --threads-per-rank=N`. */
static bool is_bound_rank(const char *words, size_t n, int32_t allowed)
{
    static const char threads[] = "--threads-per-rank=";
    const char *end = words + n, *word = words;
    for (int32_t i = 0; word < end; i++, word += strlen(word) + 1) {
        if (i == 0 && strcmp(word, "tessera") != 0)
            return false;
        if (i == 1 && strcmp(word, "rank") != 0)
            return false;
        if (i > 1 && strncmp(word, threads, sizeof threads - 1) == 0)
            return allowed <= strtol(word + sizeof threads - 1, NULL, 10);
    }
    return false;
}

/* What a process may use, if it is such a rank. */
static bool taken_by(const char *proc, const char *pid, cpu_set_t *out)
{
    static const char label[] = "\nCpus_allowed_list:\t";
    char path[512], text[16384];
    snprintf(path, sizeof path, "%s/%s/status", proc, pid);
    if (read_text(path, text, sizeof text) == 0)
        return false;
    const char *list = strstr(text, label);
    if (!list || !parse_list(list + sizeof label - 1, out))
        return false;
    snprintf(path, sizeof path, "%s/%s/cmdline", proc, pid);
    return is_bound_rank(text, read_text(path, text, sizeof text), CPU_COUNT(out));
}

void cores_taken(const char *proc, cpu_set_t *out)
{
    cpu_set_t set;
    CPU_ZERO(out);
    DIR *dir = opendir(proc);
    for (const struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir))
        if (d->d_name[0] >= '0' && d->d_name[0] <= '9' && taken_by(proc, d->d_name, &set))
            CPU_OR(out, out, &set);
    if (dir)
        closedir(dir);
}

/* Is the core of a processor one that others keep to? */
static bool is_theirs(const struct machine *m, int32_t core, const cpu_set_t *taken)
{
    for (int32_t i = 0; i < m->count; i++)
        if (m->cpu[i].core == core && CPU_ISSET((size_t)m->cpu[i].number, taken))
            return true;
    return false;
}

bool cores_apart(const char *sys, const cpu_set_t *allowed, const cpu_set_t *taken, int32_t ranks,
                 int32_t threads, cpu_set_t *out)
{
    struct machine m;
    cpu_set_t all;
    CPU_OR(&all, allowed, taken); /* to know whose core it is */
    read_machine(sys, &all, &m);
    for (int whole = 1; whole >= 0; whole--) {
        CPU_ZERO(out);
        for (int32_t i = 0; i < m.count; i++) {
            const size_t cpu = (size_t)m.cpu[i].number;
            if (CPU_ISSET(cpu, allowed) && !CPU_ISSET(cpu, taken) &&
                !(whole && is_theirs(&m, m.cpu[i].core, taken)))
                CPU_SET(cpu, out);
        }
        if (CPU_COUNT(out) / threads >= ranks)
            return true;
    }
    return false;
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
