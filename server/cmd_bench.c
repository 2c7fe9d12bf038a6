/* tessera bench: a server under load, ours or any other that speaks the OpenAI API. */
#include "config/buf.h"
#include "config/utf8.h"
#include "server/bench/child.h"
#include "server/bench/load.h"
#include "server/bench/offline.h"
#include "server/bench/plot.h"
#include "server/bench/report.h"
#include "server/bench/target.h"
#include "server/bench/workload.h"
#include "server/commands.h"

#include <ctype.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { ROUNDS_MAX = 64, PROBE_INPUT = 8 };
static const double probe_timeout = 60;

struct bench {
    const struct options *o;
    int signals;         /* signalfd: SIGINT, SIGTERM; readable = stop */
    struct child *child; /* NULL: the server is somebody else's */
    char url[256], model[TARGET_NAME_MAX];
    struct target target;
    struct workload *workload;
    enum prompt_form form;
    struct report_goodput bounds;
    double rates[ROUNDS_MAX]; /* 0: closed loop */
    int32_t rounds, measured;
    struct report *reports; /* [rounds] */
};

/* From here on an interrupt ends the round, not the program. */
static enum status open_signals(struct bench *b, struct err *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    b->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return b->signals < 0 ? base_fail_errno(err, ERR_INTERNAL, "signalfd") : OK;
}

/* An option that asks for what --latency and --throughput do not do, or NULL. */
static const char *option_of_http(const struct options *o)
{
    return o->bench.request_rate          ? "request-rate"
           : o->bench.max_concurrency > 0 ? "max-concurrency"
           : o->bench.prompts             ? "prompts"
           : o->bench.goodput             ? "goodput"
           : o->bench.output_json         ? "output-json"
           : o->bench.plot                ? "plot"
                                          : NULL;
}

/* Found out before the time is spent that the result would lie in. */
static enum status check_file(const char *option, const char *path, struct err *err)
{
    FILE *f = path ? fopen(path, "ae") : NULL;
    if (path && !f)
        return base_fail_errno(err, ERR_USAGE, "--%s %s", option, path);
    if (f)
        fclose(f);
    return OK;
}

/* Everything that can be wrong with the command line, before anything is started. */
static enum status check_options(struct bench *b, struct err *err)
{
    enum status st = OK;
    const struct options *o = b->o;
    bool offline = o->bench.latency || o->bench.throughput;
    if (o->bench.rest_count > 0 && target_is_url(o->model))
        return base_fail(err, ERR_USAGE,
                         "options after -- go to a server that bench starts itself");
    if (offline && target_is_url(o->model))
        return base_fail(err, ERR_USAGE, "--latency and --throughput run a model directory");
    if (offline && option_of_http(o))
        return base_fail(err, ERR_USAGE,
                         "--%s is about requests over HTTP, which --latency and --throughput do "
                         "not send; leave out either",
                         option_of_http(o));
    if (target_is_url(o->model))
        TRY(target_parse(o->model, &b->target, err));
    if (o->bench.goodput)
        TRY(report_goodput_parse(o->bench.goodput, &b->bounds, err));
    if (o->bench.request_rate)
        TRY(workload_rates(o->bench.request_rate, b->rates, ROUNDS_MAX, &b->rounds, err));
    else
        b->rates[b->rounds++] = o->bench.max_concurrency > 0 ? 0 : INFINITY;
    TRY(target_check(o->bench.model, o->bench.api_key, err));
    if (o->bench.prompts && !utf8_is_plain(o->bench.prompts))
        return base_fail(err, ERR_USAGE, "--prompts: the file's name is not plain UTF-8");
    TRY(check_file("output-json", o->bench.output_json, err));
    TRY(check_file("plot", o->bench.plot, err));
out:
    return st;
}

/* ---- the first exchange: is it there, which model, which form of prompt ---- */

static void printable(char *text)
{
    for (; *text; text++)
        if (!isprint((unsigned char)*text))
            *text = ' ';
}

/* A short request of that form; *http_status says whether the peer takes it. */
static enum status probe_form(struct bench *b, enum prompt_form form, int32_t *http_status,
                              struct err *err)
{
    enum status st = OK;
    struct workload *w = NULL;
    struct buf request, answer;
    const struct workload_config c = {.model = b->model,
                                      .form = form,
                                      .input_len = PROBE_INPUT,
                                      .output_len = 1,
                                      .vocab = b->o->bench.vocab,
                                      .seed = b->o->seed};
    buf_init(&request, 1 << 16);
    buf_init(&answer, 8 << 20);
    TRY(workload_open(&c, &w, err));
    workload_body(w, b->target.is_chat, -1, 0, &request);
    TRY(target_exchange(&b->target, "POST", b->target.path, &request, probe_timeout, http_status,
                        &answer, err));
    if (*http_status == 200)
        goto out;
    base_fail(err, ERR_PEER, "http://%s%s answers HTTP %d: %.300s", b->target.host, b->target.path,
              *http_status, answer.data ? answer.data : "");
    printable(err->text);
out:
    workload_close(w);
    buf_free(&request);
    buf_free(&answer);
    return st;
}

static enum status probe(struct bench *b, struct err *err)
{
    enum status st = OK;
    int32_t http_status = 0;
    TRY(target_resolve(&b->target, probe_timeout, err));
    if (b->o->bench.model)
        snprintf(b->model, sizeof b->model, "%s", b->o->bench.model);
    else
        TRY(target_model(&b->target, probe_timeout, b->model, sizeof b->model, err));
    if (!utf8_is_plain(b->model))
        return base_fail(err, ERR_PEER, "the server's model has no plain name: use --model NAME");
    b->form = PROMPT_IDS;
    TRY(probe_form(b, PROMPT_IDS, &http_status, err));
    if (http_status == 400 || http_status == 422) {
        b->form = PROMPT_TEXT; /* it wants text, or has fewer ids */
        TRY(probe_form(b, PROMPT_TEXT, &http_status, err));
    }
    st = http_status == 200 ? OK : ERR_PEER;
out:
    return st;
}

/* ---- rounds ---- */

static enum status measure(struct bench *b, int32_t round, struct err *err)
{
    enum status st = OK;
    double server[2] = {-1, -1}, ranks[2] = {-1, -1};
    struct load_result result = {0};
    const struct load_config c = {.target = &b->target,
                                  .workload = b->workload,
                                  .round = round,
                                  .count = b->o->bench.num_prompts,
                                  .rate = b->rates[round],
                                  .concurrency = b->o->bench.max_concurrency,
                                  .seed = b->o->seed,
                                  .timeout_s = b->o->bench.timeout,
                                  .stop_fd = b->signals};
    if (b->child)
        child_cpu(b->child, &server[0], &ranks[0]);
    TRY(load_run(&c, &result, err));
    if (b->child)
        child_cpu(b->child, &server[1], &ranks[1]);
    struct report *r = &b->reports[round];
    TRY(report_make(&c, &result, &b->bounds, r, err));
    if (server[0] >= 0 && server[1] >= 0)
        r->server_cpu = server[1] - server[0];
    if (ranks[0] >= 0 && ranks[1] >= 0)
        r->ranks_cpu = ranks[1] - ranks[0];
    b->measured++;
out:
    load_free(&result);
    return st;
}

static void print_head(const struct bench *b)
{
    const struct options *o = b->o;
    printf("http://%s%s, model %s, seed %lld\n", b->target.host, b->target.path, b->model,
           (long long)o->seed);
    if (o->bench.prompts)
        printf("%d requests per round with prompts of %s\n", o->bench.num_prompts,
               o->bench.prompts);
    else
        printf("%d requests per round: %d random %s, at most %d new tokens%s\n",
               o->bench.num_prompts, o->bench.input_len,
               b->form == PROMPT_IDS && !b->target.is_chat ? "token ids" : "words",
               o->bench.output_len, o->bench.ignore_eos ? ", ignoring end tokens" : "");
}

static enum status run_rounds(struct bench *b, struct err *err)
{
    enum status st = OK;
    struct buf table;
    buf_init(&table, 1 << 20);
    TRY(open_signals(b, err));
    print_head(b);
    for (int32_t i = 0; i < b->rounds; i++) {
        TRY(measure(b, i, err));
        buf_puts(&table, "\n");
        report_table(&b->reports[i], &b->bounds, &table);
        TRY(buf_write(&table, stdout, "stdout", err));
        buf_clear(&table);
        if (b->reports[i].interrupted)
            break;
    }
out:
    buf_free(&table);
    return st;
}

/* ---- what is left behind ---- */

static enum status write_file(const char *option, const char *path, const struct buf *text,
                              struct err *err)
{
    enum status st = OK;
    char name[4200];
    (void)snprintf(name, sizeof name, "--%s %s", option, path);
    FILE *f = fopen(path, "we");
    if (!f)
        return base_fail_errno(err, ERR_OUTPUT, "%s", name);
    st = buf_write(text, f, name, err);
    if (fclose(f) != 0 && st == OK)
        st = base_fail_errno(err, ERR_OUTPUT, "%s", name);
    return st;
}

static void json_text(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, "\"%s\": ", name);
    if (value)
        buf_json(out, value, strlen(value));
    else
        buf_puts(out, "null");
    buf_puts(out, ", ");
}

static void write_json(const struct bench *b, struct buf *out)
{
    const struct options *o = b->o;
    buf_puts(out, "{\"tool\": \"tessera bench " TESSERA_VERSION "\", ");
    json_text(out, "host", b->target.host);
    json_text(out, "endpoint", b->target.path);
    json_text(out, "model_id", b->model);
    json_text(out, "prompts", o->bench.prompts);
    json_text(out, "goodput_bounds", o->bench.goodput);
    buf_printf(out,
               "\"num_prompts\": %d, \"random_input_len\": %d, \"random_output_len\": %d, "
               "\"ignore_eos\": %s, \"seed\": %lld,\n \"rounds\": [",
               o->bench.num_prompts, o->bench.input_len, o->bench.output_len,
               o->bench.ignore_eos ? "true" : "false", (long long)o->seed);
    for (int32_t i = 0; i < b->measured; i++) {
        buf_puts(out, i ? ",\n  " : "\n  ");
        report_json(&b->reports[i], &b->bounds, out);
    }
    buf_puts(out, "]}\n");
}

static enum status leave_files(const struct bench *b, struct err *err)
{
    enum status st = OK;
    struct buf text;
    char title[600];
    buf_init(&text, 16 << 20);
    if (b->o->bench.output_json) {
        write_json(b, &text);
        TRY(write_file("output-json", b->o->bench.output_json, &text, err));
    }
    if (b->o->bench.plot) {
        buf_clear(&text);
        if (b->o->bench.prompts)
            snprintf(title, sizeof title, "%s at %s: %d requests each", b->model, b->target.host,
                     b->o->bench.num_prompts);
        else
            snprintf(title, sizeof title, "%s at %s: %d + %d tokens, %d requests each", b->model,
                     b->target.host, b->o->bench.input_len, b->o->bench.output_len,
                     b->o->bench.num_prompts);
        plot_svg(b->reports, b->measured, title, &text);
        TRY(write_file("plot", b->o->bench.plot, &text, err));
    }
out:
    buf_free(&text);
    return st;
}

/* Failed requests make the command fail, after everything is printed. */
static enum status verdict(const struct bench *b, struct err *err)
{
    int32_t failed = 0, sent = 0;
    for (int32_t i = 0; i < b->measured; i++) {
        failed += b->reports[i].failed;
        sent += b->reports[i].sent;
    }
    return failed == 0 ? OK : base_fail(err, ERR_PEER, "%d of %d requests failed", failed, sent);
}

/* ---- the command ---- */

static enum status open_target(struct bench *b, struct err *err)
{
    enum status st = OK;
    const struct options *o = b->o;
    if (!target_is_url(o->model)) {
        TRY(child_open(o->model, o->bench.rest_count, o->bench.rest, &b->child, b->url,
                       sizeof b->url, err));
        TRY(target_parse(b->url, &b->target, err));
    }
    b->target.api_key = o->bench.api_key;
    TRY(probe(b, err));
    const struct workload_config c = {.file = o->bench.prompts,
                                      .model = b->model,
                                      .form = b->form,
                                      .input_len = o->bench.input_len,
                                      .output_len = o->bench.output_len,
                                      .vocab = o->bench.vocab,
                                      .ignore_eos = o->bench.ignore_eos,
                                      .seed = o->seed};
    TRY(workload_open(&c, &b->workload, err));
    b->reports = calloc((size_t)b->rounds, sizeof *b->reports);
    if (!b->reports)
        st = base_fail(err, ERR_NOMEM, "%d rounds", b->rounds);
out:
    return st;
}

/* --latency and --throughput: what follows -- is read as options of serve. */
static enum status run_offline(const struct bench *b, struct err *err)
{
    const struct options *o = b->o;
    struct options server;
    enum status st = child_options(o->model, o->bench.rest_count, o->bench.rest, &server, err);
    if (st != OK)
        return st;
    st = offline_run(o, &server, err);
    options_close(&server);
    return st;
}

enum status commands_bench(const struct options *o, struct err *err)
{
    enum status st = OK;
    struct bench b = {.o = o, .signals = -1};
    TRY(check_options(&b, err));
    if (o->bench.latency || o->bench.throughput) {
        st = run_offline(&b, err);
        goto out;
    }
    TRY(open_target(&b, err));
    TRY(run_rounds(&b, err));
    TRY(leave_files(&b, err));
    st = verdict(&b, err);
out:
    child_close(b.child);
    workload_close(b.workload);
    free(b.reports);
    if (b.signals >= 0)
        close(b.signals);
    return st;
}
