/* DESIGN: a rank that has read all its bytes waits for the others, so by itself it is judged only
 * before; afterwards all are judged together. */
#include "engine/load_watch.h"

#include <stdio.h>

#define WARN_S 30.0 /* or half the timeout, if that is less */

/* Where the first thread of the rank that reads is; "" when none does. */
static void where(const struct load_watch *w, const struct board_rank *b, char *text, size_t cap)
{
    for (int i = 0; i < LOADER_READERS_MAX; i++) {
        int32_t file;
        uint64_t offset;
        const uint64_t word = atomic_load_explicit(&b->load.reading[i], memory_order_relaxed);
        loader_place_of(word, &file, &offset);
        const char *name = w->checkpoint && word ? checkpoint_file(w->checkpoint, file) : NULL;
        if (!name)
            continue;
        (void)snprintf(text, cap, ", at byte %llu of %.200s,", (unsigned long long)offset, name);
        return;
    }
    text[0] = '\0';
}

/* Seconds since the count last changed. */
static double still_for(struct load_watch_rank *r, uint64_t done, double now)
{
    if (done != r->done)
        *r = (struct load_watch_rank){.done = done, .since = now};
    return now - r->since;
}

static enum status judge(const struct load_watch *w, struct load_watch_rank *r, double still,
                         const char *what, struct err *err)
{
    const double warn = w->timeout / 2 < WARN_S ? w->timeout / 2 : WARN_S;
    if (still >= w->timeout)
        return base_fail(err, ERR_COMM, "%s for %.0f s (--load-timeout)", what, still);
    if (still >= warn && !r->told) {
        base_log(LOG_WARN, "%s for %.0f s; after %.0f s (--load-timeout) it counts as lost", what,
                 still, w->timeout);
        r->told = true;
    }
    return OK;
}

void load_watch_begin(struct load_watch *w, double now)
{
    for (int32_t r = 0; r <= w->ranks; r++)
        w->rank[r] = (struct load_watch_rank){.since = now};
}

enum status load_watch_look(struct load_watch *w, const struct board *b, double now,
                            struct err *err)
{
    enum status st = OK;
    uint64_t sum = 0;
    char at[280], what[360];
    for (int32_t r = 0; r < w->ranks; r++) {
        const struct board_rank *rank = &b->rank[r];
        const uint64_t done = atomic_load(&rank->load.bytes_done);
        const double still = still_for(&w->rank[r], done, now);
        sum += done;
        if (done >= w->wanted[r])
            continue;
        where(w, rank, at, sizeof at);
        (void)snprintf(what, sizeof what, "rank %d%s has read nothing", r, at);
        TRY(judge(w, &w->rank[r], still, what, err));
    }
    struct load_watch_rank *all = &w->rank[w->ranks];
    TRY(judge(w, all, still_for(all, sum, now), "no rank has loaded anything or become ready",
              err));
out:
    return st;
}
