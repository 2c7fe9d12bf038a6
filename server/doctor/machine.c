/* DESIGN: each check asks the kernel what serving would ask it, rather than for its version. What
 * is missing in /proc or /sys is no finding: containers hide some of it. */
#include "server/doctor/machine.h"

#include "engine/cores.h"
#include "engine/footprint.h"
#include "engine/quota.h"
#include "kernels/backend.h"
#include "server/http/http_listen.h"

#include <fcntl.h>
#include <glob.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PROBE_BYTES ((off_t)1 << 20)
#define LITTLE_MEMORY ((size_t)512 << 20)

/* The rest of the first line of a file that begins with `key` and a colon; "" when there is none.
 * key "": the first line. */
static void read_line(const char *path, const char *key, char *out, size_t cap)
{
    char line[512];
    const size_t n = strlen(key);
    FILE *file = fopen(path, "re");
    out[0] = '\0';
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, n) != 0)
            continue;
        const char *at = n > 0 ? strchr(line, ':') : line;
        if (at) {
            at += n > 0 ? 1 + strspn(at + 1, " \t") : 0;
            (void)snprintf(out, cap, "%.*s", (int)strcspn(at, "\n"), at);
            break;
        }
    }
    if (file)
        fclose(file);
}

/* "": the kernel does not say. */
static void read_processor(char *out, size_t cap)
{
    char maker[32], part[32];
    read_line("/proc/cpuinfo", "model name", out, cap);
    if (out[0])
        return;
    read_line("/proc/cpuinfo", "CPU implementer", maker, sizeof maker); /* of ARM's, numbers */
    read_line("/proc/cpuinfo", "CPU part", part, sizeof part);
    if (part[0])
        (void)snprintf(out, cap, "part %s of implementer %s", part, maker);
}

static void check_cpu(struct findings *f)
{
    char model[128];
    const char *variant = backend_cpu_variant();
    const bool slow = strcmp(variant, "cpu-generic") == 0;
    read_processor(model, sizeof model);
    findings_add(f, slow ? FINDING_WARN : FINDING_OK, "cpu",
                 "neither AVX2 with FMA and F16C nor 64-bit ARM: results are the same, but many "
                 "times slower",
                 "%s, kernels %s", model[0] ? model : "processor of unknown name", variant);
}

static void check_cores(const struct options *o, struct findings *f)
{
    cpu_set_t set = {{0}};
    glob_t nodes = {0};
    const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    const int own = CPU_COUNT(&set) > 0 ? cores_count(CORES_SYS, &set) : cores;
    const int threads = footprint_threads(o);
    char limit[64] = "";
    if (quota_cores(own) < own)
        snprintf(limit, sizeof limit, " (time for %d by a limit of this container)",
                 (int)quota_cores(own));
    const size_t numa =
        glob("/sys/devices/system/node/node[0-9]*", 0, NULL, &nodes) == 0 ? nodes.gl_pathc : 1;
    globfree(&nodes);
    const bool crowded = strcmp(o->device, "cuda") != 0 && o->tp * threads > quota_cores(cores);
    findings_add(
        f, crowded ? FINDING_WARN : FINDING_OK, "cores",
        "ranks that share a core wait for each other in every collective: lower "
        "--tensor-parallel-size or --threads-per-rank",
        "%d of %ld processors for this process, %d core%s%s, %zu NUMA node%s; %d rank%s of "
        "%d thread%s",
        cores, sysconf(_SC_NPROCESSORS_ONLN), own, own == 1 ? "" : "s", limit, numa,
        numa == 1 ? "" : "s", (int)o->tp, o->tp == 1 ? "" : "s", threads, threads == 1 ? "" : "s");
}

static void check_memory(struct findings *f)
{
    char have[32], all[32];
    struct err err = {""};
    size_t available = 0;
    if (footprint_available(FOOTPRINT_MEMINFO, &available, &err) != OK) {
        findings_add(f, FINDING_FAIL, "memory", "mount /proc: nothing is planned without it", "%s",
                     err.text);
        return;
    }
    const uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    findings_add(f, available < LITTLE_MEMORY ? FINDING_WARN : FINDING_OK, "memory",
                 "hardly a model fits: stop what else runs, or raise the container's limit",
                 "%s free of %s", base_human_bytes(have, sizeof have, available),
                 base_human_bytes(all, sizeof all, total));
}

/* What the ranks share lies in memory files. */
static void check_memory_files(struct findings *f)
{
    const int fd = memfd_create("tessera-doctor", MFD_CLOEXEC);
    const bool works = fd >= 0 && posix_fallocate(fd, 0, PROBE_BYTES) == 0;
    findings_add(f, works ? FINDING_OK : FINDING_FAIL, "memory files",
                 "ranks share memory through memfd_create: allow it in the container's seccomp "
                 "profile and leave room in its memory limit",
                 "memfd_create %s", works ? "works" : "is refused");
    if (fd >= 0)
        close(fd);
}

static void check_processes(struct findings *f)
{
    const int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    findings_add(f, fd >= 0 ? FINDING_OK : FINDING_FAIL, "processes",
                 "ranks are watched through pidfd_open: Linux 5.3 or newer, and a seccomp profile "
                 "that allows it",
                 "pidfd_open %s", fd >= 0 ? "works" : "is refused");
    if (fd >= 0)
        close(fd);
}

static void check_huge_pages(struct findings *f)
{
    char modes[128];
    read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "", modes, sizeof modes);
    const char *now = strchr(modes, '[');
    if (!now)
        return;
    const int n = (int)strcspn(now + 1, "]");
    const bool off = strncmp(now, "[never]", 7) == 0 || strncmp(now, "[deny]", 6) == 0;
    findings_add(f, off ? FINDING_WARN : FINDING_OK, "huge pages",
                 "starts are faster with them: echo advise | sudo tee "
                 "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                 "of shared memory: %.*s", n, now + 1);
}

/* The server raises the soft limit to the hard one (server/http/http_listen.c). */
static void check_files(const struct options *o, struct findings *f)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    const rlim_t wanted = (rlim_t)o->max_connections + HTTP_LISTEN_FILES_RESERVED;
    findings_add(f, limit.rlim_max < wanted ? FINDING_WARN : FINDING_OK, "open files",
                 "more connections than that are refused: raise LimitNOFILE or ulimit -Hn, or "
                 "lower --max-connections",
                 "at most %llu; %d connections want %llu", (unsigned long long)limit.rlim_max,
                 (int)o->max_connections, (unsigned long long)wanted);
}

/* Host memory that a network card reads in place is locked. */
static void check_locked(const struct options *o, struct findings *f)
{
    struct rlimit limit;
    char text[32] = "unlimited";
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        return;
    if (limit.rlim_cur != RLIM_INFINITY)
        (void)base_human_bytes(text, sizeof text, limit.rlim_cur);
    const bool little = limit.rlim_cur < ((rlim_t)64 << 20);
    findings_add(f, options_mpi(o) && little ? FINDING_WARN : FINDING_OK, "locked memory",
                 "InfiniBand needs more: raise LimitMEMLOCK or ulimit -l",
                 "at most %s; only InfiniBand asks for it", text);
}

void machine_check(const struct options *o, struct findings *f)
{
    check_cpu(f);
    check_cores(o, f);
    check_memory(f);
    check_memory_files(f);
    check_processes(f);
    check_huge_pages(f);
    check_files(o, f);
    check_locked(o, f);
}
