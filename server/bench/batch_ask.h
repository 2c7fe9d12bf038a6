/* One request of a batch, until there is an answer to it or no hope of one. */
#ifndef TESSERA_SERVER_BENCH_BATCH_ASK_H
#define TESSERA_SERVER_BENCH_BATCH_ASK_H

#include "server/bench/batch_line.h"
#include "server/bench/target.h"

enum batch_ask_end {
    BATCH_ASK_ANSWERED, /* by whatever status: it is in *r */
    BATCH_ASK_LOST,     /* several connections ended without an answer, or none was to be had */
    BATCH_ASK_LATE,     /* no answer within the time */
    BATCH_ASK_STOPPED,  /* by target->stop_fd: nothing is known */
};

/* A server that is busy (429, 503) is asked again, when it says or after a while that grows, as
 * long as timeout_s lasts; its last refusal is then the answer. salt: requests that were refused
 * together come back one after the other when theirs differ. Safe from any thread. *err says why
 * one is lost or late. r was just made. */
enum batch_ask_end batch_ask(const struct target *target, const struct batch_request *request,
                             double timeout_s, uint64_t salt, struct reply *r,
                             struct err *err) MUST_USE;

#endif
