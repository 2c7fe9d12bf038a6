/* What is sent, and when: prompts and the arrival schedule, both fixed by the seed alone. Immutable
 * once open. */
#ifndef TESSERA_SERVER_BENCH_WORKLOAD_H
#define TESSERA_SERVER_BENCH_WORKLOAD_H

#include "config/buf.h"

struct target;
struct workload;

enum prompt_form { PROMPT_IDS, PROMPT_TEXT };

struct workload_config {
    const char *file; /* JSON lines {"prompt": text or ids, "max_tokens": N}; NULL: random ones */
    const char *model;
    enum prompt_form form; /* of random prompts */
    int32_t input_len, output_len, vocab;
    bool ignore_eos;
    int64_t seed;
};

/* ERR_USAGE names the line of a file that is not understood. *config and its strings are borrowed
 * until workload_close. */
enum status workload_open(const struct workload_config *config, struct workload **out,
                          struct err *err) MUST_USE;
void workload_close(struct workload *w);
/* Tokens request i may produce; a file's lines are used in turn. */
int32_t workload_output_len(const struct workload *w, int64_t i);
/* The JSON body of request i of a round; rounds differ, so that no round finds the prompts of
 * another in a prefix cache. */
void workload_body(const struct workload *w, bool is_chat, int32_t round, int64_t i,
                   struct buf *out);

/* Poisson arrivals: ascending nanoseconds from the start, whose gaps are exponential with mean
 * 1 / rate; an infinite rate makes all zero. */
void workload_schedule(int64_t seed, double rate, int32_t count, int64_t *due_ns);
/* "1,2.5,inf" to rates > 0; ERR_USAGE for anything else or more than cap. */
enum status workload_rates(const char *text, double *rates, int32_t cap, int32_t *count,
                           struct err *err) MUST_USE;

#endif
