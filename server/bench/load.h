/* Sends one round of requests and records what each experienced. One thread, one epoll loop;
 * connections are kept and used again, as clients in earnest do; nothing is allocated per token. */
#ifndef TESSERA_SERVER_BENCH_LOAD_H
#define TESSERA_SERVER_BENCH_LOAD_H

#include "config/base.h"

struct target;
struct workload;

/* How a request ended. Only OUTCOME_OK is a success; OUTCOME_UNFINISHED (the round was interrupted)
 * is neither. */
enum outcome {
    OUTCOME_UNFINISHED,
    OUTCOME_OK,
    OUTCOME_CONNECT,   /* no connection */
    OUTCOME_HTTP,      /* a status other than 200 */
    OUTCOME_STREAM,    /* an error chunk within the stream */
    OUTCOME_CUT,       /* the stream ended without [DONE] or a finish reason */
    OUTCOME_MALFORMED, /* not HTTP, not an event stream, or not JSON */
    OUTCOME_TIMEOUT,
    OUTCOME_EMPTY, /* a whole answer without any token */
    OUTCOME_COUNT
};

/* Times in CLOCK_MONOTONIC nanoseconds. */
struct record {
    int64_t due;           /* when it was to be sent: what latencies count from */
    int64_t sent;          /* when its sending was begun */
    int64_t first;         /* first chunk with a token; 0: none */
    int64_t last;          /* last chunk with a token or a finish reason */
    int64_t ended;         /* when it was over, one way or another */
    int64_t tokens;        /* produced: from usage where given, else counted chunks */
    int64_t prompt_tokens; /* from usage; -1: not given */
    int32_t chunks;        /* with a token */
    int16_t http_status;
    uint8_t outcome;
};

struct load_config {
    const struct target *target;
    const struct workload *workload;
    int32_t round, count;
    double rate;         /* requests/s of Poisson arrivals; 0: a closed loop */
    int32_t concurrency; /* at most so many at once; 0: no bound (open loop only) */
    int64_t seed;
    double timeout_s; /* of one request, from its sending */
    int stop_fd;      /* readable: stop; -1: none */
};

struct load_result {
    struct record *records; /* [count] */
    double *gaps;           /* ms between chunks with tokens; those of record i begin at gaps_at */
    size_t *gaps_at;        /* [count + 1] */
    int32_t count;
    int64_t started, ended;
    int64_t chunks;     /* with a token, of all requests, also failed ones */
    double cpu_seconds; /* of this process, meanwhile */
    bool interrupted;
    char first_error[200]; /* of the first request that failed; printable */
};

enum status load_run(const struct load_config *config, struct load_result *out,
                     struct err *err) MUST_USE;
void load_free(struct load_result *r);
/* Number of gaps of record i. */
size_t load_gaps(const struct load_result *r, int32_t i);
const char *load_outcome_name(enum outcome o);

#endif
