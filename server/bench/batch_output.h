/* The output file of a batch: a new one, or that of an earlier run, which goes on. */
#ifndef TESSERA_SERVER_BENCH_BATCH_OUTPUT_H
#define TESSERA_SERVER_BENCH_BATCH_OUTPUT_H

#include "server/bench/batch_ids.h"

struct batch_output {
    int fd;           /* for appending */
    int64_t answered; /* lines of an earlier run that stay: their names are in the set */
    int64_t dropped;  /* whole ones without an answer, which are taken out */
    bool cut;         /* half a line at the end, too */
};

/* "-" is stdout. Of a regular file the lines with an answer stay. ERR_USAGE: it holds something
 * else, in which case it is left as it is; another run writes to it; or it cannot be opened. */
enum status batch_output_open(const char *path, struct batch_ids *ids, struct batch_output *out,
                              struct err *err) MUST_USE;
/* ERR_OUTPUT: the end of what was written may be lost. */
enum status batch_output_close(struct batch_output *o, struct err *err) MUST_USE;
/* All of these bytes, which are whole lines. ERR_OUTPUT. */
enum status batch_output_add(const struct batch_output *o, const char *bytes, size_t n,
                             struct err *err) MUST_USE;

#endif
