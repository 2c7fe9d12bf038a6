/* DESIGN: a thread for each request that is under way, all alike: it takes the next line, asks, and
 * writes. Whoever reads holds one lock, whoever writes or counts another; the second is only ever
 * taken last. What is waited for long is waited for in poll, where a readable descriptor ends it:
 * `stop` is written to when a signal comes, the output is full, or the server is gone. A connect,
 * or a reader of the output, may still block: the thread that hears signals therefore waits for no
 * lock, so that a second one ends the program. */
#include "server/bench/batch.h"

#include "server/bench/batch_ask.h"
#include "server/bench/batch_line.h"
#include "server/bench/lines.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

struct batch {
    const struct batch_config *config;
    struct target target;
    int stop, done;      /* eventfds: no more; the last thread has ended */
    pthread_mutex_t in;  /* for lines, ids of config */
    pthread_mutex_t out; /* for what follows, and the output */
    struct lines lines;
    struct batch_counts counts;
    int64_t bytes_read; /* of the input */
    int64_t lost;       /* requests whose server did not answer, since it last did */
    int32_t threads;
    bool torn;      /* the output may end in half a line: nothing may come behind */
    enum status st; /* why it stopped */
    struct err err;
};

static void signal_fd(int fd)
{
    const uint64_t one = 1;
    CHECK(write(fd, &one, sizeof one) == (ssize_t)sizeof one);
}

/* Ends everything; the first reason stays. Under b->out. */
static void fail(struct batch *b, enum status st, const struct err *why)
{
    if (b->st == OK) {
        b->st = st;
        b->err = *why;
    }
    signal_fd(b->stop);
}

static void fail_locked(struct batch *b, enum status st, const struct err *why)
{
    pthread_mutex_lock(&b->out);
    fail(b, st, why);
    pthread_mutex_unlock(&b->out);
}

/* ---- results ---- */

/* A line of the output; its place in the counts is one more. */
static void put(struct batch *b, const struct batch_result *r, int64_t *count)
{
    struct err err;
    struct buf line;
    buf_init(&line, BATCH_LINE_RESULT_BYTES_MAX + 4096);
    batch_line_write(r, &line);
    pthread_mutex_lock(&b->out);
    enum status st = OK;
    if (line.failed)
        st = base_fail(&err, ERR_NOMEM, "no memory for a line of the output");
    else if (!b->torn)
        st = batch_output_add(b->config->output, line.data, line.len, &err);
    b->torn = b->torn || st == ERR_OUTPUT;
    if (st != OK)
        fail(b, st, &err);
    else if (!b->torn)
        ++*count;
    pthread_mutex_unlock(&b->out);
    buf_free(&line);
}

struct task {
    struct batch_request request;
    int64_t line;
    uint64_t id;
};

static struct batch_result result_of(const struct task *t)
{
    return (struct batch_result){.id = t->id,
                                 .custom_id = t->request.custom_id,
                                 .custom_id_len = t->request.custom_id_len,
                                 .request_id = "",
                                 .line = t->line};
}

static void put_failure(struct batch *b, const struct task *t, const char *code,
                        const char *message)
{
    struct batch_result r = result_of(t);
    r.code = code;
    r.message = message;
    put(b, &r, &b->counts.failed);
}

static void put_answer(struct batch *b, const struct task *t, const struct reply *reply)
{
    char message[400];
    struct batch_answer a;
    struct batch_result r = result_of(t);
    const bool good = reply->http_status == 200;
    const bool is_json = !reply->is_stream && batch_line_answer(&reply->body, &a);
    r.http_status = reply->http_status;
    r.request_id = reply->request_id;
    r.body = is_json ? &reply->body : NULL;
    if (!good || !is_json) {
        r.code = good ? "invalid_answer" : "refused";
        r.message = message;
        snprintf(message, sizeof message, "HTTP %d%s%s", reply->http_status,
                 !is_json       ? ": the answer is not JSON, or too long"
                 : a.message[0] ? ": "
                                : "",
                 is_json ? a.message : "");
    }
    if (good && is_json) {
        pthread_mutex_lock(&b->out);
        b->counts.prompt_tokens += a.prompt_tokens;
        b->counts.completion_tokens += a.completion_tokens;
        pthread_mutex_unlock(&b->out);
    }
    put(b, &r, !good ? &b->counts.refused : is_json ? &b->counts.answered : &b->counts.failed);
}

/* ---- one request ---- */

/* The server is gone when as many requests found none as there can be at once, twice. */
static void note_lost(struct batch *b, bool lost)
{
    struct err err;
    pthread_mutex_lock(&b->out);
    b->lost = lost ? b->lost + 1 : 0;
    if (b->lost >= 2 * (int64_t)b->config->concurrency) {
        base_fail(&err, ERR_PEER, "http://%s does not answer any more", b->target.host);
        fail(b, ERR_PEER, &err);
    }
    pthread_mutex_unlock(&b->out);
}

static void ignore_event(void *ctx, const char *data, size_t n)
{
    (void)ctx;
    (void)data;
    (void)n;
}

static void run_task(struct batch *b, const struct task *t)
{
    struct err err = {""};
    struct reply r;
    reply_init(&r, ignore_event, NULL);
    r.body.max = BATCH_LINE_ANSWER_BYTES_MAX;
    switch (batch_ask(&b->target, &t->request, b->config->timeout_s, t->id, &r, &err)) {
    case BATCH_ASK_ANSWERED:
        put_answer(b, t, &r);
        note_lost(b, false);
        break;
    case BATCH_ASK_LOST:
        put_failure(b, t, "no_answer", err.text);
        note_lost(b, true);
        break;
    case BATCH_ASK_LATE:
        put_failure(b, t, "timeout", err.text);
        break;
    case BATCH_ASK_STOPPED:
        break;
    }
    reply_free(&r);
}

/* ---- the input ---- */

/* What is wrong with a line, whose name is not given where another line may have it. */
static void put_bad_line(struct batch *b, struct task *t, bool named, const char *why)
{
    char message[sizeof(struct err) + 32];
    snprintf(message, sizeof message, "line %lld: %s", (long long)t->line, why);
    if (!named) {
        free(t->request.custom_id);
        t->request.custom_id = NULL;
    }
    put_failure(b, t, "invalid_request", message);
}

/* *wanted: it is to be sent. */
static enum status read_task(struct batch *b, enum lines_kind kind, struct task *t, bool *wanted,
                             struct err *err)
{
    enum batch_ids_found found = BATCH_IDS_NEW;
    const struct buf *text = &b->lines.text;
    enum status st = ERR_INPUT;
    *wanted = false;
    t->line = b->lines.number;
    t->id = base_siphash(b->config->ids->secret, &t->line, sizeof t->line);
    if (kind == LINES_LONG)
        base_fail(err, ERR_INPUT, "longer than %u bytes", BATCH_LINE_REQUEST_BYTES_MAX);
    else
        st = batch_line_request(text->data ? text->data : "", text->len, b->config->model,
                                &t->request, err);
    if (st != OK && st != ERR_INPUT)
        return st;
    if (t->request.custom_id && batch_ids_see(b->config->ids, t->request.custom_id,
                                              t->request.custom_id_len, &found, err) != OK)
        return ERR_NOMEM;
    if (found == BATCH_IDS_REPEATED)
        st = base_fail(err, ERR_INPUT, "an earlier line has the custom_id \"%.100s\"",
                       t->request.custom_id);
    if (found == BATCH_IDS_ANSWERED) {
        pthread_mutex_lock(&b->out);
        b->counts.skipped++;
        pthread_mutex_unlock(&b->out);
    } else if (st != OK)
        put_bad_line(b, t, found == BATCH_IDS_NEW, err->text);
    *wanted = st == OK && found == BATCH_IDS_NEW;
    return OK;
}

static bool is_blank(const struct buf *text)
{
    return text->len == 0 || strspn(text->data, " \t\r") == text->len;
}

/* The next request to be sent; false: there is none. Under b->in. */
static bool take_task(struct batch *b, struct task *t)
{
    enum lines_kind kind;
    bool wanted = false;
    struct err err;
    while (!wanted) {
        batch_line_free(&t->request);
        enum status st = lines_next(&b->lines, &kind, &err);
        if (st == OK && (kind == LINES_END || kind == LINES_STOPPED))
            return false;
        pthread_mutex_lock(&b->out);
        b->bytes_read = b->lines.end;
        pthread_mutex_unlock(&b->out);
        if (st == OK && kind != LINES_LONG && is_blank(&b->lines.text))
            continue;
        if (st == OK)
            st = read_task(b, kind, t, &wanted, &err);
        if (st != OK) {
            fail_locked(b, st, &err);
            return false;
        }
    }
    return true;
}

static void *work(void *arg)
{
    struct batch *b = arg;
    bool more = true;
    while (more) {
        struct task t = {.line = 0};
        pthread_mutex_lock(&b->in);
        more = !target_is_stopped(&b->target) && take_task(b, &t);
        pthread_mutex_unlock(&b->in);
        if (more)
            run_task(b, &t);
        batch_line_free(&t.request);
    }
    pthread_mutex_lock(&b->out);
    if (--b->threads == 0)
        signal_fd(b->done);
    pthread_mutex_unlock(&b->out);
    return NULL;
}

/* ---- the thread that waits ---- */

static void show_progress(struct batch *b, double seconds)
{
    char share[48] = "";
    if (pthread_mutex_trylock(&b->out) != 0)
        return; /* somebody writes: the next time */
    const struct batch_counts c = b->counts;
    const int64_t read = b->bytes_read;
    pthread_mutex_unlock(&b->out);
    if (b->config->input_bytes > 0)
        snprintf(share, sizeof share, ", %.0f%% of the input read",
                 100.0 * (double)read / (double)b->config->input_bytes);
    fprintf(stderr,
            "\r%lld answered, %lld refused, %lld failed%s, %.1f requests/s, %.0f tokens/s\033[K",
            (long long)c.answered, (long long)c.refused, (long long)c.failed, share,
            (double)(c.answered + c.refused) / seconds,
            (double)(c.prompt_tokens + c.completion_tokens) / seconds);
}

/* The first signal ends what is under way, one that comes later than a second after it the program:
 * those who run others may send the first one twice. */
static void take_signal(struct batch *b, double *first)
{
    struct signalfd_siginfo info;
    sigset_t set;
    if (read(b->config->signals, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    if (*first == 0) {
        *first = base_now();
        b->counts.interrupted = true; /* only this thread's */
        signal_fd(b->stop);
    } else if (base_now() - *first > 1) {
        sigemptyset(&set);
        sigaddset(&set, (int)info.ssi_signo);
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
        raise((int)info.ssi_signo);
    }
}

/* Until all threads have ended. */
static void wait_all(struct batch *b, double began)
{
    const bool terminal = isatty(STDERR_FILENO) == 1;
    struct pollfd in[] = {{.fd = b->done, .events = POLLIN},
                          {.fd = b->config->signals, .events = POLLIN}};
    double shown = began, first_signal = 0;
    while (!(in[0].revents & POLLIN)) {
        poll(in, ARRAY_LEN(in), 1000);
        if (in[1].revents & POLLIN)
            take_signal(b, &first_signal);
        if (terminal && base_now() - shown >= 1) {
            shown = base_now();
            show_progress(b, shown - began);
        }
    }
    if (terminal)
        fputs("\r\033[K", stderr);
}

/* Fewer than wanted will do. */
static int32_t start(struct batch *b, pthread_t *threads)
{
    int32_t n = 0;
    pthread_mutex_lock(&b->out); /* nobody ends before all are counted */
    while (n < b->config->concurrency && pthread_create(&threads[n], NULL, work, b) == 0)
        n++;
    b->threads = n;
    pthread_mutex_unlock(&b->out);
    return n;
}

static enum status open_batch(struct batch *b, struct err *err)
{
    b->stop = eventfd(0, EFD_CLOEXEC);
    b->done = eventfd(0, EFD_CLOEXEC);
    if (b->stop < 0 || b->done < 0)
        return base_fail_errno(err, ERR_NOMEM, "a batch");
    b->target = *b->config->target;
    b->target.stop_fd = b->stop;
    lines_init(&b->lines, b->config->input, b->stop, BATCH_LINE_REQUEST_BYTES_MAX);
    return OK;
}

static void close_batch(struct batch *b)
{
    lines_free(&b->lines);
    if (b->stop >= 0)
        close(b->stop);
    if (b->done >= 0)
        close(b->done);
    pthread_mutex_destroy(&b->in);
    pthread_mutex_destroy(&b->out);
    free(b);
}

enum status batch_run(const struct batch_config *config, struct batch_counts *out, struct err *err)
{
    enum status st = OK;
    int32_t n = 0;
    struct batch *b = calloc(1, sizeof *b);
    pthread_t *threads = calloc((size_t)config->concurrency, sizeof *threads);
    if (!b || !threads) {
        free(b);
        free(threads);
        return base_fail(err, ERR_NOMEM, "no memory for %d requests at once", config->concurrency);
    }
    *b = (struct batch){.config = config, .stop = -1, .done = -1};
    pthread_mutex_init(&b->in, NULL);
    pthread_mutex_init(&b->out, NULL);
    const double began = base_now();
    TRY(open_batch(b, err));
    n = start(b, threads);
    if (n == 0)
        TRY(base_fail(err, ERR_NOMEM, "no thread can be started"));
    wait_all(b, began);
    for (int32_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    b->counts.seconds = base_now() - began;
    *out = b->counts;
    st = b->st;
    *err = b->err;
out:
    free(threads);
    close_batch(b);
    return st;
}
