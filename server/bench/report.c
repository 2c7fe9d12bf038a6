#include "server/bench/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- goodput ---- */

static double *bound_named(struct report_goodput *g, const char *name, size_t n)
{
    if (n != 4 && n != 3)
        return NULL;
    return strncmp(name, "ttft", n) == 0 && n == 4   ? &g->ttft
           : strncmp(name, "tpot", n) == 0 && n == 4 ? &g->tpot
           : strncmp(name, "e2e", n) == 0 && n == 3  ? &g->e2e
                                                     : NULL;
}

enum status report_goodput_parse(const char *text, struct report_goodput *out, struct err *err)
{
    struct report_goodput g = {0};
    for (const char *at = text + strspn(text, " ,"); *at; at += strspn(at, " ,")) {
        size_t n = strcspn(at, ":");
        double *bound = at[n] ? bound_named(&g, at, n) : NULL;
        char *end = NULL;
        double ms = bound ? strtod(at + n + 1, &end) : 0;
        if (!bound || end == at + n + 1 || !(ms > 0) || isinf(ms) || (*end && !strchr(" ,", *end)))
            return base_fail(err, ERR_USAGE,
                             "--goodput: got \"%.80s\", expected bounds in milliseconds like "
                             "ttft:500,tpot:50,e2e:10000",
                             text);
        *bound = ms;
        at = end;
    }
    *out = g;
    return OK;
}

static bool within(double ms, double bound)
{
    return bound <= 0 || ms <= bound;
}

/* ---- figures ---- */

struct columns { /* of successful requests, and of all that were sent */
    double *ttft, *tpot, *e2e, *refused, *late, *begins, *ends, *gaps;
    size_t ok, many, refusals, sent, streams, gap_count;
};

static double ms_between(int64_t from, int64_t to)
{
    return (double)(to - from) * 1e-6;
}

static void take_success(const struct record *r, const struct report_goodput *bounds,
                         struct columns *c, struct report *out)
{
    double ttft = ms_between(r->due, r->first), e2e = ms_between(r->due, r->last);
    double tpot = r->tokens > 1 ? (e2e - ttft) / (double)(r->tokens - 1) : 0;
    c->ttft[c->ok] = ttft;
    c->e2e[c->ok++] = e2e;
    if (r->tokens > 1)
        c->tpot[c->many++] = tpot;
    out->output_tokens += r->tokens;
    out->prompt_tokens += r->prompt_tokens > 0 ? r->prompt_tokens : 0;
    out->good +=
        within(ttft, bounds->ttft) && within(tpot, bounds->tpot) && within(e2e, bounds->e2e);
}

static void fill(const struct load_result *result, const struct report_goodput *bounds,
                 struct columns *c, struct report *out)
{
    for (int32_t i = 0; i < result->count; i++) {
        const struct record *r = &result->records[i];
        if (r->sent == 0)
            continue;
        c->late[c->sent++] = ms_between(r->due, r->sent);
        if (r->chunks > 0) {
            c->begins[c->streams] = ms_between(result->started, r->first);
            c->ends[c->streams++] = ms_between(result->started, r->last);
        }
        out->outcomes[r->outcome]++;
        if (r->outcome == OUTCOME_HTTP) {
            out->http[r->http_status]++;
            c->refused[c->refusals++] = ms_between(r->due, r->ended);
        }
        if (r->outcome != OUTCOME_OK)
            continue;
        take_success(r, bounds, c, out);
        for (size_t k = 0; k < load_gaps(result, i); k++)
            c->gaps[c->gap_count++] = result->gaps[result->gaps_at[i] + k];
    }
    out->sent = (int32_t)c->sent;
    out->ok = out->outcomes[OUTCOME_OK];
    out->unfinished = out->outcomes[OUTCOME_UNFINISHED];
    out->failed = out->sent - out->ok - out->unfinished;
}

enum status report_make(const struct load_config *config, const struct load_result *result,
                        const struct report_goodput *bounds, struct report *out, struct err *err)
{
    const size_t n = (size_t)result->count;
    struct report r = {.rate = config->rate,
                       .concurrency = config->concurrency,
                       .streamed = result->chunks,
                       .client_cpu = result->cpu_seconds,
                       .server_cpu = -1,
                       .ranks_cpu = -1,
                       .interrupted = result->interrupted,
                       .seconds = (double)(result->ended - result->started) * 1e-9};
    double *memory = calloc(7 * n, sizeof *memory);
    double *gaps = calloc(result->gaps_at[n] + 1, sizeof *gaps);
    if (!memory || !gaps) {
        free(memory);
        free(gaps);
        return base_fail(err, ERR_NOMEM, "statistics of %d requests", result->count);
    }
    struct columns c = {.ttft = memory,
                        .tpot = memory + n,
                        .e2e = memory + 2 * n,
                        .late = memory + 3 * n,
                        .begins = memory + 4 * n,
                        .ends = memory + 5 * n,
                        .refused = memory + 6 * n,
                        .gaps = gaps};
    fill(result, bounds, &c, &r);
    r.ttft = samples_stats(c.ttft, c.ok);
    r.tpot = samples_stats(c.tpot, c.many);
    r.e2e = samples_stats(c.e2e, c.ok);
    r.refused = samples_stats(c.refused, c.refusals);
    r.late = samples_stats(c.late, c.sent);
    r.itl = samples_stats(c.gaps, c.gap_count);
    r.streams = (int32_t)samples_overlap(c.begins, c.ends, c.streams);
    r.request_rate = r.ok / r.seconds;
    r.output_rate = (double)r.output_tokens / r.seconds;
    r.total_rate = (double)(r.output_tokens + r.prompt_tokens) / r.seconds;
    memcpy(r.first_error, result->first_error, sizeof r.first_error);
    free(memory);
    free(gaps);
    *out = r;
    return OK;
}

/* ---- table ---- */

static void add_error(struct buf *out, bool *first, int32_t count, const char *kind, int status)
{
    if (count == 0)
        return;
    buf_printf(out, "%s%d × %s", *first ? "" : ", ", count, kind);
    if (status)
        buf_printf(out, " %d", status);
    *first = false;
}

void report_errors(const struct report *r, struct buf *out)
{
    bool first = true;
    for (int status = 0; status < (int)ARRAY_LEN(r->http); status++)
        add_error(out, &first, r->http[status], "HTTP", status);
    for (int o = OUTCOME_OK + 1; o < OUTCOME_COUNT; o++)
        if (o != OUTCOME_HTTP)
            add_error(out, &first, r->outcomes[o], load_outcome_name((enum outcome)o), 0);
}

static void row(struct buf *out, const char *name, const struct samples_stats *s)
{
    if (s->count == 0)
        buf_printf(out, "%-8s %10s %10s %10s %10s %10s\n", name, "-", "-", "-", "-", "-");
    else
        buf_printf(out, "%-8s %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, s->mean, s->p50, s->p95,
                   s->p99, s->max);
}

static void write_bounds(const struct report_goodput *g, struct buf *out)
{
    if (g->ttft > 0)
        buf_printf(out, " ttft %g", g->ttft);
    if (g->tpot > 0)
        buf_printf(out, " tpot %g", g->tpot);
    if (g->e2e > 0)
        buf_printf(out, " e2e %g", g->e2e);
}

static bool any_bound(const struct report_goodput *g)
{
    return g->ttft > 0 || g->tpot > 0 || g->e2e > 0;
}

/* A peer may put several tokens into a chunk; those of failed requests are not told. */
static double per_token_us(const struct report *r, double seconds)
{
    int64_t tokens = r->output_tokens > r->streamed ? r->output_tokens : r->streamed;
    return tokens > 0 ? seconds * 1e6 / (double)tokens : 0;
}

static void write_load(const struct report *r, struct buf *out)
{
    if (r->rate <= 0)
        buf_printf(out, "closed loop, %d at once", r->concurrency);
    else if (isinf(r->rate))
        buf_puts(out, "all at once");
    else
        buf_printf(out, "Poisson arrivals, %g requests/s", r->rate);
    if (r->rate > 0 && r->concurrency > 0)
        buf_printf(out, ", at most %d at once", r->concurrency);
}

void report_table(const struct report *r, const struct report_goodput *bounds, struct buf *out)
{
    write_load(r, out);
    buf_printf(out, "%s\n", r->interrupted ? " (interrupted)" : "");
    buf_printf(out, "requests   %d ok, %d failed", r->ok, r->failed);
    if (r->unfinished > 0)
        buf_printf(out, ", %d unfinished", r->unfinished);
    buf_printf(out, " in %.2f s, up to %d streams at once\n", r->seconds, r->streams);
    if (r->failed > 0) {
        buf_puts(out, "failures   ");
        report_errors(r, out);
        if (r->refused.count > 0)
            buf_printf(out, " (answered in %.1f ms p50, %.1f ms p99)", r->refused.p50,
                       r->refused.p99);
        buf_printf(out, "; the first: %s\n", r->first_error);
    }
    buf_printf(out, "throughput %.2f requests/s, %.1f output tokens/s, %.1f tokens/s in all\n",
               r->request_rate, r->output_rate, r->total_rate);
    if (any_bound(bounds)) {
        buf_printf(out, "goodput    %.2f requests/s (%.1f %% of those sent) within",
                   r->good / r->seconds, r->sent > 0 ? 100.0 * r->good / r->sent : 0.0);
        write_bounds(bounds, out);
        buf_puts(out, " ms\n");
    }
    buf_printf(out,
               "client     %.2f s of CPU, %.1f %% of a core, %.1f us per streamed token; "
               "sent late by %.2f ms (p99)\n",
               r->client_cpu, 100 * r->client_cpu / r->seconds, per_token_us(r, r->client_cpu),
               r->late.p99);
    if (r->server_cpu >= 0)
        buf_printf(out,
                   "server     front end %.2f s of CPU, %.1f %% of a core, %.1f us per streamed "
                   "token; ranks %.2f s\n",
                   r->server_cpu, 100 * r->server_cpu / r->seconds, per_token_us(r, r->server_cpu),
                   r->ranks_cpu);
    buf_printf(out, "%-8s %10s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p95", "p99", "max");
    row(out, "TTFT", &r->ttft);
    row(out, "ITL", &r->itl);
    row(out, "TPOT", &r->tpot);
    row(out, "E2E", &r->e2e);
}

/* ---- JSON ---- */

static void json_stats(struct buf *out, const char *name, const struct samples_stats *s)
{
    buf_printf(out,
               ", \"mean_%s_ms\": %.6g, \"median_%s_ms\": %.6g, \"p95_%s_ms\": %.6g, "
               "\"p99_%s_ms\": %.6g, \"max_%s_ms\": %.6g",
               name, s->mean, name, s->p50, name, s->p95, name, s->p99, name, s->max);
}

static void json_errors(const struct report *r, struct buf *out)
{
    const char *comma = "";
    buf_puts(out, ", \"errors\": {");
    for (int status = 0; status < (int)ARRAY_LEN(r->http); status++)
        if (r->http[status] > 0) {
            buf_printf(out, "%s\"http_%d\": %d", comma, status, r->http[status]);
            comma = ", ";
        }
    for (int o = OUTCOME_OK + 1; o < OUTCOME_COUNT; o++)
        if (o != OUTCOME_HTTP && r->outcomes[o] > 0) {
            buf_printf(out, "%s\"%s\": %d", comma, load_outcome_name((enum outcome)o),
                       r->outcomes[o]);
            comma = ", ";
        }
    buf_puts(out, "}");
}

static void json_number_or_null(struct buf *out, const char *name, bool known, double v)
{
    if (known)
        buf_printf(out, ", \"%s\": %.9g", name, v);
    else
        buf_printf(out, ", \"%s\": null", name);
}

void report_json(const struct report *r, const struct report_goodput *bounds, struct buf *out)
{
    bool is_finite = r->rate > 0 && !isinf(r->rate);
    buf_printf(out, "{\"request_rate\": ");
    buf_printf(out, is_finite ? "%g" : r->rate > 0 ? "\"inf\"" : "null", r->rate);
    json_number_or_null(out, "max_concurrency", r->concurrency > 0, r->concurrency);
    buf_printf(out,
               ", \"sent\": %d, \"completed\": %d, \"failed\": %d, \"unfinished\": %d, "
               "\"interrupted\": %s",
               r->sent, r->ok, r->failed, r->unfinished, r->interrupted ? "true" : "false");
    json_errors(r, out);
    buf_printf(out,
               ", \"duration\": %.6f, \"total_input_tokens\": %" PRId64
               ", \"total_output_tokens\": %" PRId64 ", \"streamed_chunks\": %" PRId64
               ", \"max_concurrent_streams\": %d",
               r->seconds, r->prompt_tokens, r->output_tokens, r->streamed, r->streams);
    buf_printf(out,
               ", \"request_throughput\": %.6g, \"output_throughput\": %.6g, "
               "\"total_token_throughput\": %.6g",
               r->request_rate, r->output_rate, r->total_rate);
    json_number_or_null(out, "request_goodput", any_bound(bounds), r->good / r->seconds);
    json_stats(out, "ttft", &r->ttft);
    json_stats(out, "itl", &r->itl);
    json_stats(out, "tpot", &r->tpot);
    json_stats(out, "e2el", &r->e2e);
    json_stats(out, "http_error", &r->refused);
    json_stats(out, "send_delay", &r->late);
    buf_printf(out, ", \"client_cpu_seconds\": %.6g, \"client_cpu_us_per_token\": %.6g",
               r->client_cpu, per_token_us(r, r->client_cpu));
    json_number_or_null(out, "server_cpu_seconds", r->server_cpu >= 0, r->server_cpu);
    json_number_or_null(out, "server_cpu_us_per_token", r->server_cpu >= 0,
                        per_token_us(r, r->server_cpu));
    json_number_or_null(out, "ranks_cpu_seconds", r->ranks_cpu >= 0, r->ranks_cpu);
    buf_puts(out, "}");
}
