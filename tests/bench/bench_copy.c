/* How long the bytes of some files take into fresh memory: the floor of a server's ready time.
 *
 *     bench_copy private|shared REPEATS THREADS FILE...
 *
 * Each thread reads its part of every file (from the page cache, once warm) with pread into newly
 * mapped memory, so the page faults of a first touch are in the time, as they are when weights are
 * loaded. private: anonymous memory. shared: a memory file, which outlives a process, as weights
 * do. Prints the seconds of the repeats, the median first. */
#include "config/base.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define REPEATS_MAX 100
#define THREADS_MAX 256
#define CHUNK ((size_t)4 << 20)

struct part {
    int fd;
    char *to;
    size_t begin, end;
    bool failed;
};

static void *copy_part(void *arg)
{
    struct part *p = arg;
    for (size_t at = p->begin; at < p->end && !p->failed;) {
        size_t want = p->end - at < CHUNK ? p->end - at : CHUNK;
        ssize_t got = pread(p->fd, p->to + at, want, (off_t)at);
        if (got <= 0)
            p->failed = true;
        else
            at += (size_t)got;
    }
    return NULL;
}

static bool copy_parts(struct part *parts, int threads)
{
    pthread_t ids[THREADS_MAX];
    bool good = true;
    int started = 0;
    while (started < threads &&
           pthread_create(&ids[started], NULL, copy_part, &parts[started]) == 0)
        started++;
    for (int t = 0; t < started; t++) {
        pthread_join(ids[t], NULL);
        good = good && !parts[t].failed;
    }
    return good && started == threads;
}

/* Adds the file's size to *bytes and the time of its copy, unmapping excluded, to *seconds. */
static bool copy_file(const char *path, bool shared, int threads, size_t *bytes, double *seconds)
{
    struct part parts[THREADS_MAX];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0 || st.st_size <= 0)
        return false;
    size_t size = (size_t)st.st_size;
    int memory_file = shared ? memfd_create("copy", MFD_CLOEXEC) : -1;
    if (shared && (memory_file < 0 || ftruncate(memory_file, st.st_size) != 0))
        return false;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, memory_file, 0);
    if (memory == MAP_FAILED)
        return false;
    for (size_t t = 0; t < (size_t)threads; t++)
        parts[t] = (struct part){
            .fd = fd,
            .to = memory,
            .begin = size / (size_t)threads * t,
            .end = t + 1 == (size_t)threads ? size : size / (size_t)threads * (t + 1)};
    double begin = base_now();
    bool good = copy_parts(parts, threads);
    *seconds += base_now() - begin;
    munmap(memory, size);
    if (shared)
        close(memory_file);
    close(fd);
    *bytes += size;
    return good;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    double seconds[REPEATS_MAX] = {0};
    size_t bytes = 0;
    bool shared = argc > 1 && strcmp(argv[1], "shared") == 0;
    long repeats = argc > 4 ? strtol(argv[2], NULL, 10) : 0;
    long threads = argc > 4 ? strtol(argv[3], NULL, 10) : 0;
    if (repeats < 1 || repeats > REPEATS_MAX || threads < 1 || threads > THREADS_MAX) {
        fputs("usage: bench_copy private|shared REPEATS THREADS FILE...\n", stderr);
        return 2;
    }
    for (long i = 0; i < repeats; i++) {
        bytes = 0;
        for (int f = 4; f < argc; f++)
            if (!copy_file(argv[f], shared, (int)threads, &bytes, &seconds[i])) {
                perror(argv[f]);
                return 1;
            }
    }
    qsort(seconds, (size_t)repeats, sizeof seconds[0], ascending);
    printf("copy %zu bytes, %ld threads: median %.4f s, min %.4f s, max %.4f s, %.2f GB/s\n", bytes,
           threads, seconds[repeats / 2], seconds[0], seconds[repeats - 1],
           (double)bytes / 1e9 / seconds[repeats / 2]);
    return 0;
}
