/* Threads that turn bodies into requests of the engine: parse, check, tokenize, submit. So a large
 * body or a long text never holds up a connection of somebody else. */
#ifndef TESSERA_SERVER_REQUEST_WORKER_H
#define TESSERA_SERVER_REQUEST_WORKER_H

#include "server/job.h"

struct request_worker;

enum status request_worker_open(struct service *s, int32_t threads, int32_t queue_max,
                                struct request_worker **out, struct err *err) MUST_USE;
/* Takes the caller's reference. False when the queue is full: it stays the caller's. Any thread. */
bool request_worker_push(struct request_worker *w, struct job *j) MUST_USE;
/* Works off what is queued (the service refuses by now, so it fails fast) and joins the threads.
 * From then on pushing fails. NULL is fine. */
void request_worker_stop(struct request_worker *w);
/* Stops and frees; nobody pushes any more. NULL is fine. */
void request_worker_close(struct request_worker *w);

#endif
