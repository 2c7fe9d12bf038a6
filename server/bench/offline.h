/* The engine measured without HTTP: ranks, scheduler and links as in `tessera serve`, requests of
 * random token ids, a sink that only counts. */
#ifndef TESSERA_SERVER_BENCH_OFFLINE_H
#define TESSERA_SERVER_BENCH_OFFLINE_H

#include "config/options.h"

/* `bench` says what to send, `serve` how to run the model. Prints tokens/s. */
enum status offline_run(const struct options *bench, const struct options *serve,
                        struct err *err) MUST_USE;

#endif
