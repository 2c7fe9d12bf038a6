/* DESIGN: MADV_POPULATE_WRITE makes pages writable without writing to them, so it needs to know
 * nothing of who uses them. It is done in pieces, since a piece holds the process's map. */
#include "engine/populate.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define PIECE_BYTES ((size_t)2 << 20)

struct populate {
    struct populate_range ranges[3];
    _Atomic bool stop;
    pthread_t thread;
};

/* False: no more of it. */
static bool touch(const struct populate *p, const struct populate_range *r)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE); /* ranges may begin within one */
    for (size_t at = -(uintptr_t)r->begin & (page - 1), n; at < r->bytes; at += n) {
        n = r->bytes - at < PIECE_BYTES ? r->bytes - at : PIECE_BYTES;
        if (atomic_load(&p->stop))
            return false;
        if (madvise((char *)r->begin + at, n, MADV_POPULATE_WRITE) == 0)
            continue;
        if (errno != EINVAL) /* which is a kernel that does not know it */
            base_log(
                LOG_WARN,
                "only %zu of %zu planned bytes could be had (%s): a full KV cache may end this "
                "rank; free memory for it, or lower --kv-cache-memory",
                at, r->bytes, strerror(errno));
        return false;
    }
    return true;
}

static void *run(void *arg)
{
    const struct populate *p = arg;
    /* the thread's own; by SCHED_IDLE it took more than a minute beside other programs */
    (void)setpriority(PRIO_PROCESS, 0, 19);
    for (size_t i = 0; i < ARRAY_LEN(p->ranges); i++)
        if (p->ranges[i].begin && !touch(p, &p->ranges[i]))
            break;
    return NULL;
}

struct populate *populate_open(struct populate_range first, struct populate_range second,
                               struct populate_range third)
{
    struct populate *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->ranges[0] = first;
    p->ranges[1] = second;
    p->ranges[2] = third;
    if (pthread_create(&p->thread, NULL, run, p) == 0)
        return p;
    free(p);
    return NULL;
}

void populate_close(struct populate *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    pthread_join(p->thread, NULL);
    free(p);
}
