/* Sends the requests of a batch, so many at once, and writes each answer as it comes. */
#ifndef TESSERA_SERVER_BENCH_BATCH_H
#define TESSERA_SERVER_BENCH_BATCH_H

#include "server/bench/batch_ids.h"
#include "server/bench/batch_output.h"
#include "server/bench/target.h"

/* All borrowed. */
struct batch_config {
    const struct target *target;
    const char *model; /* of bodies that name none */
    int input;
    int64_t input_bytes; /* 0: not known */
    const struct batch_output *output;
    struct batch_ids *ids;
    int32_t concurrency;
    double timeout_s; /* of one request, with all its tries */
    int signals;      /* a signalfd: the first one stops, a later one kills */
};

struct batch_counts {
    int64_t answered, refused; /* by the server: status 200, any other */
    int64_t failed;            /* no request, or no answer */
    int64_t skipped;           /* had an answer already */
    int64_t prompt_tokens, completion_tokens;
    double seconds;
    bool interrupted;
};

/* The calling thread waits, shows what is done where stderr is a terminal, and sees signals. *out
 * is set on failure, too: ERR_OUTPUT, ERR_IO of the input, ERR_NOMEM, ERR_PEER: the server is gone.
 */
enum status batch_run(const struct batch_config *config, struct batch_counts *out,
                      struct err *err) MUST_USE;

#endif
