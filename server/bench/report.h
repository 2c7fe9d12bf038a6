/* From the records of a round to figures, and figures to a table and to JSON. Pure. */
#ifndef TESSERA_SERVER_BENCH_REPORT_H
#define TESSERA_SERVER_BENCH_REPORT_H

#include "config/buf.h"
#include "server/bench/load.h"
#include "server/bench/samples.h"

/* Bounds in ms that a good request keeps; 0: no bound. */
struct report_goodput {
    double ttft, tpot, e2e;
};

/* Figures of one round. Latencies are of successful requests only, in ms, and count from when a
 * request was due: TTFT to the first token, E2E to the last; ITL is each gap between two chunks
 * with tokens; TPOT = (E2E - TTFT) / (tokens - 1) of requests with two tokens or more. */
struct report {
    double rate;         /* offered, requests/s; 0: closed loop */
    int32_t concurrency; /* 0: no bound */
    int32_t sent, ok, failed, unfinished;
    int32_t outcomes[OUTCOME_COUNT];
    int32_t http[600]; /* failures by status */
    double seconds;    /* first request due to last answer */
    int64_t prompt_tokens, output_tokens;
    double request_rate, output_rate, total_rate; /* per second */
    int32_t good;                                 /* requests within the bounds */
    struct samples_stats ttft, itl, tpot, e2e;
    struct samples_stats refused; /* HTTP errors: from due to the whole answer */
    struct samples_stats late;    /* how much later than due a request was sent */
    int64_t streamed;             /* chunks with tokens */
    int32_t streams;              /* most that were between first and last token at once */
    double client_cpu;            /* seconds */
    double server_cpu, ranks_cpu; /* of our own server; < 0: unknown */
    bool interrupted;
    char first_error[200];
};

/* "ttft:500 tpot:50" (also with commas), in ms. ERR_USAGE otherwise. */
enum status report_goodput_parse(const char *text, struct report_goodput *out,
                                 struct err *err) MUST_USE;
/* Everything but the server's CPU. */
enum status report_make(const struct load_config *config, const struct load_result *result,
                        const struct report_goodput *bounds, struct report *out,
                        struct err *err) MUST_USE;
void report_table(const struct report *r, const struct report_goodput *bounds, struct buf *out);
/* "3 × HTTP 429, 1 × cut" */
void report_errors(const struct report *r, struct buf *out);
/* A JSON object; names are those of `vllm bench serve` where it has the figure. */
void report_json(const struct report *r, const struct report_goodput *bounds, struct buf *out);

#endif
