/* Threads that do the work between a body and an answer that needs none of the engine's time:
 * parse, check, tokenize, submit. So a large body or a long text never holds up a connection of
 * somebody else. */
#ifndef TESSERA_SERVER_REQUEST_WORKER_H
#define TESSERA_SERVER_REQUEST_WORKER_H

#include "config/base.h"

struct request_worker;

/* A part of what it works on. */
struct work {
    void (*run)(struct work *w); /* on a worker's thread, exactly once */
    size_t bytes;                /* that it holds while it waits */
    struct work *next;           /* the worker's, as number is */
    uint64_t number;
};

/* At most queue_max pieces of work wait, and together they hold at most bytes_max. Of several
 * threads (8 at most) one is kept for small pieces. */
enum status request_worker_open(int32_t threads, int32_t queue_max, size_t bytes_max,
                                struct request_worker **out, struct err *err) MUST_USE;
/* False when there is no room: it does not run. Any thread. */
bool request_worker_push(struct request_worker *w, struct work *work) MUST_USE;
/* Works off what is queued (the service refuses by now, so it fails fast) and joins the threads.
 * From then on pushing fails. NULL is fine. */
void request_worker_stop(struct request_worker *w);
/* Stops and frees; nobody pushes any more. NULL is fine. */
void request_worker_close(struct request_worker *w);

#endif
