/* DESIGN: vLLM's names for what vLLM has, so that its boards and routers work; `tessera:` for what
 * only we have. Buckets are fixed arrays; the text is made from one copy, so a page is consistent.
 */
#include "server/metrics.h"

#include "config/log.h"

#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define BOUNDS_MAX 24

struct family {
    const char *name, *help;
    int32_t count;
    double bounds[BOUNDS_MAX];
};

#define REQUEST_SECONDS                                                                            \
    20,                                                                                            \
    {                                                                                              \
        .05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 480, 1920         \
    }
#define COUNTS                                                                                     \
    18,                                                                                            \
    {                                                                                              \
        1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, \
            500000                                                                                 \
    }

static const struct family families[METRICS_WHAT_COUNT] = {
    [METRICS_FIRST_TOKEN] = {"vllm:time_to_first_token_seconds",
                             "Seconds from the arrival of a request to its first token.",
                             22,
                             {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                              1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560}},
    [METRICS_INTER_TOKEN] = {"vllm:inter_token_latency_seconds",
                             "Seconds between two tokens of a choice.",
                             16,
                             {.005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5,
                              10}},
    [METRICS_END_TO_END] = {"vllm:e2e_request_latency_seconds",
                            "Seconds from the arrival of a request to the end of a choice.",
                            REQUEST_SECONDS},
    [METRICS_QUEUE] = {"vllm:request_queue_time_seconds",
                       "Seconds from the arrival of a request to the begin of its work.",
                       REQUEST_SECONDS},
    [METRICS_PREFILL] = {"vllm:request_prefill_time_seconds",
                         "Seconds from the begin of the work to the first token.", REQUEST_SECONDS},
    [METRICS_DECODE] = {"vllm:request_decode_time_seconds",
                        "Seconds from the first to the last token.", REQUEST_SECONDS},
    [METRICS_INFERENCE] = {"vllm:request_inference_time_seconds",
                           "Seconds from the begin of the work to the last token.",
                           REQUEST_SECONDS},
    [METRICS_PER_TOKEN] = {"vllm:request_time_per_output_token_seconds",
                           "Mean seconds between the tokens of a choice.",
                           16,
                           {.005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5,
                            10}},
    [METRICS_PROMPT_TOKENS] = {"vllm:request_prompt_tokens", "Prompt tokens of a choice.", COUNTS},
    [METRICS_GENERATION_TOKENS] = {"vllm:request_generation_tokens",
                                   "Tokens generated for a choice.", COUNTS},
    [METRICS_MAX_TOKENS] = {"vllm:request_params_max_tokens", "max_tokens of a choice.", COUNTS},
    [METRICS_N] = {"vllm:request_params_n",
                   "Choices asked for per prompt, of a request.",
                   5,
                   {1, 2, 5, 10, 20}},
};

enum { STATUSES = 600 };

static const char *const end_names[METRICS_END_COUNT] = {"stop", "length", "abort", "error"};

struct histogram {
    uint64_t buckets[BOUNDS_MAX + 1]; /* not cumulative */
    uint64_t count;
    double sum;
};

struct values {
    struct histogram seen[METRICS_WHAT_COUNT];
    uint64_t ends[METRICS_END_COUNT];
    uint64_t answers[STATUSES];
};

struct metrics {
    pthread_mutex_t lock;
    struct values values;
    double last_wait_s;
    double started_s; /* the process, by the wall clock */
};

/* Asked once: it would move with every correction of the clock. */
static double process_start(void)
{
    struct timespec now, up;
    unsigned long long ticks = 0;
    FILE *f = fopen("/proc/self/stat", "re");
    clock_gettime(CLOCK_REALTIME, &now);
    clock_gettime(CLOCK_BOOTTIME, &up);
    const double wall = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    /* the name, which may have spaces, is in parentheses, and ours has none; then 19 fields */
    const bool found =
        f && fscanf(f,
                    "%*d %*[^)]) %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                    "%*s %*s %*s %llu",
                    &ticks) == 1;
    if (f)
        fclose(f);
    if (!found)
        return wall;
    const double age =
        (double)up.tv_sec + (double)up.tv_nsec / 1e9 - (double)ticks / (double)sysconf(_SC_CLK_TCK);
    return wall - age;
}

enum status metrics_open(struct metrics **out, struct err *err)
{
    struct metrics *m = calloc(1, sizeof *m);
    if (!m)
        return base_fail(err, ERR_NOMEM, "metrics: no memory");
    pthread_mutex_init(&m->lock, NULL);
    m->started_s = process_start();
    *out = m;
    return OK;
}

void metrics_close(struct metrics *m)
{
    if (!m)
        return;
    pthread_mutex_destroy(&m->lock);
    free(m);
}

/* Under the lock. */
static void add(struct metrics *m, enum metrics_what what, double value)
{
    const struct family *f = &families[what];
    struct histogram *h = &m->values.seen[what];
    int32_t i = 0;
    while (i < f->count && value > f->bounds[i])
        i++;
    h->buckets[i]++;
    h->count++;
    h->sum += value;
}

void metrics_observe(struct metrics *m, enum metrics_what what, double value)
{
    pthread_mutex_lock(&m->lock);
    add(m, what, value);
    pthread_mutex_unlock(&m->lock);
}

void metrics_observe_choice(struct metrics *m, const struct metrics_choice *c)
{
    const double decode = (double)(c->last_token_ns - c->first_token_ns) / 1e9;
    pthread_mutex_lock(&m->lock);
    add(m, METRICS_END_TO_END, (double)(c->ended_ns - c->arrived_ns) / 1e9);
    add(m, METRICS_PROMPT_TOKENS, c->prompt_tokens);
    add(m, METRICS_GENERATION_TOKENS, c->tokens);
    add(m, METRICS_MAX_TOKENS, c->max_tokens);
    if (c->admitted_ns) {
        const int64_t computed = c->first_token_ns ? c->first_token_ns : c->ended_ns; /* a vector */
        const double prefill = (double)(computed - c->admitted_ns) / 1e9;
        m->last_wait_s = (double)(c->admitted_ns - c->arrived_ns) / 1e9;
        add(m, METRICS_QUEUE, m->last_wait_s);
        add(m, METRICS_PREFILL, prefill);
        add(m, METRICS_DECODE, decode);
        add(m, METRICS_INFERENCE, prefill + decode);
    }
    if (c->tokens > 1)
        add(m, METRICS_PER_TOKEN, decode / (c->tokens - 1));
    pthread_mutex_unlock(&m->lock);
}

double metrics_last_wait(struct metrics *m)
{
    pthread_mutex_lock(&m->lock);
    const double wait = m->last_wait_s;
    pthread_mutex_unlock(&m->lock);
    return wait;
}

void metrics_count_end(struct metrics *m, enum metrics_end how)
{
    pthread_mutex_lock(&m->lock);
    m->values.ends[how]++;
    pthread_mutex_unlock(&m->lock);
}

void metrics_count_answer(struct metrics *m, int32_t status)
{
    CHECK(status >= 0 && status < STATUSES);
    pthread_mutex_lock(&m->lock);
    m->values.answers[status]++;
    pthread_mutex_unlock(&m->lock);
}

/* ---- text ---- */

/* Where the text goes, and the labels every vllm: family carries. */
struct page {
    struct buf *out;
    const char *model;
};

static void write_head(struct page *p, const char *name, const char *type, const char *help)
{
    buf_printf(p->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* {model_name="...",engine="0" and what the caller adds before '}' */
static void write_labels(struct page *p)
{
    buf_puts(p->out, "{model_name=\"");
    for (const char *c = p->model; *c; c++) {
        if (*c == '"' || *c == '\\')
            buf_add(p->out, "\\", 1);
        if (*c == '\n')
            buf_puts(p->out, "\\n");
        else
            buf_add(p->out, c, 1);
    }
    buf_puts(p->out, "\",engine=\"0\"");
}

static void write_value(struct page *p, const char *name, const char *type, const char *help,
                        double value)
{
    write_head(p, name, type, help);
    buf_puts(p->out, name);
    write_labels(p);
    buf_printf(p->out, "} %.17g\n", value);
}

static void write_family(struct page *p, const struct family *f, const struct histogram *h)
{
    uint64_t below = 0;
    write_head(p, f->name, "histogram", f->help);
    for (int32_t i = 0; i <= f->count; i++) {
        below += h->buckets[i];
        buf_printf(p->out, "%s_bucket", f->name);
        write_labels(p);
        if (i < f->count)
            buf_printf(p->out, ",le=\"%g\"} %" PRIu64 "\n", f->bounds[i], below);
        else
            buf_printf(p->out, ",le=\"+Inf\"} %" PRIu64 "\n", below);
    }
    buf_printf(p->out, "%s_sum", f->name);
    write_labels(p);
    buf_printf(p->out, "} %.9g\n%s_count", h->sum, f->name);
    write_labels(p);
    buf_printf(p->out, "} %" PRIu64 "\n", h->count);
}

static void write_ends(struct page *p, const struct values *v)
{
    write_head(p, "vllm:request_success_total", "counter", "Choices ended, by reason.");
    for (int i = 0; i < METRICS_END_COUNT; i++) {
        buf_puts(p->out, "vllm:request_success_total");
        write_labels(p);
        buf_printf(p->out, ",finished_reason=\"%s\"} %" PRIu64 "\n", end_names[i], v->ends[i]);
    }
}

static void write_answers(struct page *p, const struct values *v)
{
    write_head(p, "tessera:http_responses_total", "counter", "HTTP answers begun, by status.");
    for (int i = 0; i < STATUSES; i++) {
        const bool known = i == 200 || i == 429 || i == 500 || i == 503; /* the first one counts */
        if (v->answers[i] == 0 && !known)
            continue;
        buf_puts(p->out, "tessera:http_responses_total");
        write_labels(p);
        buf_printf(p->out, ",code=\"%d\"} %" PRIu64 "\n", i, v->answers[i]);
    }
}

static void write_requests(struct page *p, const struct engine_metrics *e)
{
    write_value(p, "vllm:num_requests_running", "gauge", "Requests being worked on.",
                e ? e->running : 0);
    write_value(p, "vllm:num_requests_waiting", "gauge", "Requests waiting for a place.",
                e ? e->waiting : 0);
    write_value(p, "vllm:kv_cache_usage_perc", "gauge", "KV blocks in use, 0 to 1.",
                e ? e->kv_usage : 0);
    write_value(p, "vllm:prompt_tokens_total", "counter", "Prompt tokens processed.",
                e ? (double)e->prompt_tokens : 0);
    write_value(p, "vllm:prompt_tokens_cached_total", "counter",
                "Prompt tokens that were not computed again.", e ? (double)e->prefix_hits : 0);
    write_value(p, "vllm:generation_tokens_total", "counter", "Tokens generated.",
                e ? (double)e->generation_tokens : 0);
}

/* The KV cache, as vLLM's boards want to know it. */
static void write_cache(struct page *p, const struct engine_metrics *e)
{
    write_value(p, "vllm:prefix_cache_queries_total", "counter",
                "Prompt tokens looked up in the prefix cache.", e ? (double)e->prefix_queries : 0);
    write_value(p, "vllm:prefix_cache_hits_total", "counter",
                "Prompt tokens found in the prefix cache.", e ? (double)e->prefix_hits : 0);
    if (e && e->states > 0)
        write_value(p, "tessera:state_cache_usage_perc", "gauge",
                    "Places for states of layers that recur that have one, 0 to 1.",
                    (double)e->states_kept / e->states);
    write_value(p, "vllm:num_preemptions_total", "counter",
                "Times a request gave its KV blocks to others.", e ? (double)e->preemptions : 0);
    if (!e)
        return;
    write_head(p, "vllm:cache_config_info", "gauge", "Always 1; the labels say the sizes.");
    buf_puts(p->out, "vllm:cache_config_info");
    write_labels(p);
    buf_printf(p->out, ",block_size=\"%d\",cache_dtype=\"%s\",num_gpu_blocks=\"%lld\"} 1\n",
               e->block_tokens, e->kv_dtype == DTYPE_F8_E4M3 ? "fp8" : "auto",
               (long long)e->kv_blocks);
}

/* What became of guesses, where they are made (--speculative-config). */
static void write_speculation(struct page *p, const struct engine_metrics *e)
{
    static const char by_place[] = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    uint64_t accepted = 0;
    for (int32_t i = 0; i < e->speculation; i++)
        accepted += e->accepted[i];
    write_value(p, "vllm:spec_decode_num_drafts_total", "counter",
                "Times tokens of a request were guessed.", (double)e->drafts);
    write_value(p, "vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens guessed.",
                (double)e->guesses);
    write_value(p, "vllm:spec_decode_num_accepted_tokens_total", "counter",
                "Guesses that were right.", (double)accepted);
    write_head(p, by_place, "counter", "Those, by their place in the draft.");
    for (int32_t i = 0; i < e->speculation; i++) {
        buf_puts(p->out, by_place);
        write_labels(p);
        buf_printf(p->out, ",position=\"%d\"} %" PRIu64 "\n", i, e->accepted[i]);
    }
}

static void write_iterations(struct page *p, const struct engine_metrics *e)
{
    struct family f = {"vllm:iteration_tokens_total",
                       "Rows (tokens) of a step.",
                       (int32_t)ARRAY_LEN(engine_row_bounds),
                       {0}};
    struct histogram h = {.count = e->steps, .sum = (double)e->step_rows};
    memcpy(f.bounds, engine_row_bounds, sizeof engine_row_bounds);
    memcpy(h.buckets, e->row_buckets, sizeof e->row_buckets);
    write_family(p, &f, &h);
}

static void write_steps(struct page *p, const struct engine_metrics *e)
{
    static const char name[] = "tessera:step_seconds";
    uint64_t below = 0;
    write_head(p, name, "histogram", "Seconds per step of the ranks.");
    for (size_t i = 0; i < ARRAY_LEN(e->step_buckets); i++) {
        below += e->step_buckets[i];
        if (i < ARRAY_LEN(engine_step_bounds))
            buf_printf(p->out, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, engine_step_bounds[i],
                       below);
        else
            buf_printf(p->out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, below);
    }
    buf_printf(p->out, "%s_sum %.9g\n%s_count %" PRIu64 "\n", name, e->step_seconds, name, below);
    write_head(p, "tessera:step_rows_total", "counter", "Rows (tokens) in all steps.");
    buf_printf(p->out, "tessera:step_rows_total %" PRIu64 "\n", e->step_rows);
}

static void write_ranks(struct page *p, const struct engine_metrics *e)
{
    write_head(p, "tessera:rank_up", "gauge", "1 while the rank works.");
    for (int32_t r = 0; r < e->ranks; r++)
        buf_printf(p->out, "tessera:rank_up{rank=\"%d\"} %d\n", r, e->rank[r].up);
    write_head(p, "tessera:rank_weight_bytes", "gauge", "Bytes of weights the rank holds.");
    for (int32_t r = 0; r < e->ranks; r++)
        buf_printf(p->out, "tessera:rank_weight_bytes{rank=\"%d\"} %" PRIu64 "\n", r,
                   e->rank[r].weight_bytes);
    write_head(p, "tessera:rank_read_bytes", "gauge", "Bytes of the checkpoint the rank has read.");
    for (int32_t r = 0; r < e->ranks; r++)
        buf_printf(p->out, "tessera:rank_read_bytes{rank=\"%d\"} %" PRIu64 "\n", r,
                   e->rank[r].read_bytes);
}

static void write_traffic(struct page *p, const char *name, int32_t rank, const char *group,
                          const struct engine_traffic *traffic, int part)
{
    for (int op = 0; op < COMM_OP_COUNT; op++) {
        buf_printf(p->out, "%s{rank=\"%d\",group=\"%s\",op=\"%s\"} ", name, rank, group,
                   comm_op_name((enum comm_op)op));
        if (part == 2)
            buf_printf(p->out, "%.9g\n", (double)traffic[op].nanoseconds / 1e9);
        else
            buf_printf(p->out, "%" PRIu64 "\n", part ? traffic[op].calls : traffic[op].bytes);
    }
}

/* One line per rank, group and op; part picks the number. A group without a name is none: of ranks
 * that were lost before anybody could look there is nothing to say. */
static void write_comm(struct page *p, const struct engine_metrics *e, const char *name,
                       const char *help, int part)
{
    write_head(p, name, "counter", help);
    for (int32_t r = 0; r < e->ranks; r++) {
        if (*e->group[0])
            write_traffic(p, name, r, e->group[0], e->rank[r].comm, part);
        for (int32_t i = 0; i < MESH_AXES_MAX; i++)
            if (*e->group[1 + i])
                write_traffic(p, name, r, e->group[1 + i], e->rank[r].axis[i], part);
    }
}

static void write_plain(struct page *p, const char *name, const char *help, double value)
{
    write_head(p, name, "gauge", help);
    buf_printf(p->out, "%s %.17g\n", name, value);
}

/* Negative: cannot be read. */
static double resident_bytes(void)
{
    long pages = -1;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%*d %ld", &pages) != 1)
        pages = -1;
    if (f)
        fclose(f);
    return pages < 0 ? -1 : (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static double open_files(void)
{
    int count = -3; /* ".", ".." and the folder itself */
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return -1;
    while (readdir(d))
        count++;
    closedir(d);
    return count;
}

/* What Prometheus' own libraries tell of a process, under their names. */
static void write_process(struct page *p, double started_s)
{
    struct rlimit files;
    const double resident = resident_bytes(), open = open_files();
    write_plain(p, "process_start_time_seconds", "When the server process began, in Unix time.",
                started_s);
    if (resident >= 0)
        write_plain(p, "process_resident_memory_bytes",
                    "Memory of the server process, without its ranks.", resident);
    if (open >= 0)
        write_plain(p, "process_open_fds", "Files and sockets it has open.", open);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        write_plain(p, "process_max_fds", "How many it may have.", (double)files.rlim_cur);
    write_head(p, "tessera:build_info", "gauge", "Always 1; the label says what runs.");
    buf_puts(p->out, "tessera:build_info{version=\"" TESSERA_VERSION "\"} 1\n");
}

void metrics_write(struct metrics *m, const struct engine_metrics *engine, bool ready,
                   const char *model, struct buf *out)
{
    struct page p = {out, model};
    pthread_mutex_lock(&m->lock);
    struct values v = m->values;
    pthread_mutex_unlock(&m->lock);
    write_value(&p, "tessera:ready", "gauge", "1 while /readyz answers 200.", ready);
    write_process(&p, m->started_s);
    write_requests(&p, engine);
    write_cache(&p, engine);
    write_ends(&p, &v);
    write_answers(&p, &v);
    for (int i = 0; i < METRICS_WHAT_COUNT; i++)
        write_family(&p, &families[i], &v.seen[i]);
    if (engine) {
        if (engine->speculation > 0)
            write_speculation(&p, engine);
        write_iterations(&p, engine);
        write_steps(&p, engine);
        write_ranks(&p, engine);
        write_comm(&p, engine, "tessera:comm_bytes_total", "Bytes received from other ranks.", 0);
        write_comm(&p, engine, "tessera:comm_calls_total", "Collectives taken part in.", 1);
        write_comm(&p, engine, "tessera:comm_seconds_total", "Seconds inside collectives.", 2);
    }
    write_head(&p, "tessera:sampler_fallback_total", "counter",
               "Rows that the distributed sampler handed to the gathered one.");
    buf_printf(out, "tessera:sampler_fallback_total %" PRIu64 "\n",
               engine ? engine->sampler_fallbacks : 0);
    write_head(&p, "tessera:step_replays_total", "counter",
               "Steps that ran as one recorded piece, as GPUs can.");
    buf_printf(out, "tessera:step_replays_total %" PRIu64 "\n", engine ? engine->replays : 0);
    write_head(&p, "tessera:log_dropped_total", "counter",
               "Lines of the log that nobody took in time.");
    buf_printf(out, "tessera:log_dropped_total %" PRIu64 "\n", log_dropped());
    write_head(&p, "tessera:group_restarts_total", "counter",
               "Groups of ranks that took the place of a lost one.");
    buf_printf(out, "tessera:group_restarts_total %" PRIu64 "\n", engine ? engine->restarts : 0);
}
