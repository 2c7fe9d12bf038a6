/* DESIGN: start order is cheap checks first: model headers, memory, port; then the ranks load while
 * the port answers 503 "loading"; then the engine. The main thread sleeps in poll on signals and on
 * the ranks' pidfds, so a death is noticed at once, also when nothing runs. Closing mirrors
 * opening. */
#include "config/buf.h"
#include "engine/engine_thread.h"
#include "engine/group.h"
#include "server/access.h"
#include "server/commands.h"
#include "server/frontend.h"
#include "server/keys.h"
#include "server/setup.h"
#include "server/tokenizer/tokenizer.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

struct server {
    struct setup setup;
    struct footprint footprint;
    struct tokenizer *tokenizer;
    struct keys *keys; /* NULL: nobody needs one */
    struct frontend *frontend;
    struct group *group;
    struct engine *engine;
    int signals; /* signalfd: SIGINT, SIGTERM, SIGHUP */
    int lost;    /* eventfd: the engine noticed that the group is lost */
    char name[256];
    /* loading progress */
    uint64_t bytes_total;
    double started, shown;
};

static enum status open_signals(struct server *s, struct err *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    s->lost = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->signals < 0 || s->lost < 0)
        return base_fail_errno(err, ERR_INTERNAL, "signalfd");
    return OK;
}

/* The signal that came, 0 when none did. */
static int take_signal(struct server *s)
{
    struct signalfd_siginfo info;
    return read(s->signals, &info, sizeof info) == (ssize_t)sizeof info ? (int)info.ssi_signo : 0;
}

static void reload_keys(struct server *s)
{
    struct err err = {""};
    if (!s->keys)
        base_log(LOG_INFO, "SIGHUP: there is no key file to read again");
    else if (keys_reload(s->keys, &err) == OK)
        base_log(LOG_INFO, "SIGHUP: %d keys", keys_count(s->keys));
    else
        base_log(LOG_ERROR, "SIGHUP: %s; the old keys stay", err.text);
}

static void log_lines(struct buf *b)
{
    char *save = NULL;
    for (char *line = b->data ? strtok_r(b->data, "\n", &save) : NULL; line;
         line = strtok_r(NULL, "\n", &save))
        base_log(LOG_INFO, "%s", line);
}

static enum status open_model(struct server *s, const struct options *o, struct err *err)
{
    enum status st = OK;
    struct buf table;
    char size[32];
    buf_init(&table, 1 << 16);
    TRY(setup_open(o, &s->setup, err));
    TRY(footprint_plan(&s->setup.options, &s->setup.model, s->setup.layouts, s->setup.ops,
                       &s->footprint, err));
    TRY(tokenizer_open(o->model, s->setup.model.vocab, &s->tokenizer, err));
    setup_model_name(o, s->name, sizeof s->name);
    uint64_t bytes = s->setup.checkpoint ? checkpoint_bytes(s->setup.checkpoint) : 0;
    base_log(
        LOG_INFO,
        "%s: %d layers, hidden %d, %s of tensors, held as %s on %d ranks (%s, %d thread%s each)",
        s->name, s->setup.model.layers, s->setup.model.hidden,
        base_human_bytes(size, sizeof size, bytes), dtype_name(s->footprint.dtype),
        s->footprint.ranks, s->setup.ops->name, s->footprint.threads,
        s->footprint.threads == 1 ? "" : "s");
    if (!s->tokenizer)
        base_log(LOG_WARN, "no tokenizer.model in %s: prompts must be token ids", o->model);
    if (s->setup.ignored > 0)
        base_log(LOG_INFO, "%d tensors of the checkpoint are not used", s->setup.ignored);
    setup_table(&s->setup, &s->footprint, &table);
    log_lines(&table);
out:
    buf_free(&table);
    return st;
}

static enum status open_frontend(struct server *s, const struct options *o, struct err *err)
{
    const struct frontend_config c = {
        .host = o->host,
        .port = o->port,
        .model_name = o->served_model_name ? o->served_model_name : s->name,
        .version = TESSERA_VERSION,
        .vocab = s->setup.model.vocab,
        .max_model_len = s->footprint.max_model_len,
        .tokenizer = s->tokenizer,
        .defaults = s->setup.defaults,
        .http = access_limits(o),
        .keys = s->keys,
        .metrics_without_key = o->metrics_without_key,
        .cors_origins = o->cors_origins,
    };
    return frontend_open(&c, &s->frontend, err);
}

/* Called about every 50 ms while the ranks load. */
static enum status loading_tick(void *ctx, struct err *err)
{
    struct server *s = ctx;
    char done_text[32], total_text[32];
    uint64_t done = 0;
    int signal_number = take_signal(s);
    if (signal_number == SIGHUP)
        reload_keys(s);
    else if (signal_number)
        return base_fail(err, ERR_CANCELLED, "stopped while loading");
    double now = base_now(), spent = now - s->started;
    if (now - s->shown < 1 || s->bytes_total == 0)
        return group_check(s->group, 0, err);
    s->shown = now;
    for (int32_t r = 0; r < s->footprint.ranks; r++)
        done += atomic_load(&group_board(s->group)->rank[r].load.bytes_done);
    base_log(LOG_INFO, "loading weights: %s of %s, %.1f s left",
             base_human_bytes(done_text, sizeof done_text, done),
             base_human_bytes(total_text, sizeof total_text, s->bytes_total),
             done > 0 ? spent * ((double)s->bytes_total / (double)done - 1) : 0.0);
    return group_check(s->group, 0, err);
}

static void on_lost(void *ctx)
{
    struct server *s = ctx;
    uint64_t one = 1;
    if (write(s->lost, &one, sizeof one) < 0)
        base_log(LOG_ERROR, "eventfd: %s", strerror(errno));
}

static enum status open_engine(struct server *s, const struct options *o, struct err *err)
{
    enum status st = OK;
    s->started = s->shown = base_now();
    for (int32_t r = 0; r < s->footprint.ranks; r++)
        s->bytes_total += setup_read_bytes(&s->setup, r);
    TRY(group_open(&s->setup.options, &s->footprint, &s->group, err));
    TRY(group_wait_ready(s->group, loading_tick, s, err));
    struct engine_config c = {
        .sched = {.limits = s->footprint.limits,
                  .waiting_max = o->max_num_queued_reqs,
                  .max_model_len = s->footprint.max_model_len,
                  .eos_count = s->setup.model.eos_count},
        .ranks = s->footprint.ranks,
        .epoch = group_epoch(s->group),
        .links = group_links(s->group),
        .board = group_board(s->group),
        .step_timeout = o->step_timeout,
        .sink = frontend_sink,
        .sink_ctx = s->frontend,
        .on_lost = on_lost,
        .on_lost_ctx = s,
    };
    memcpy(c.sched.eos, s->setup.model.eos, sizeof c.sched.eos);
    TRY(engine_open(&c, &s->engine, err));
    double spent = base_now() - s->started;
    base_log(LOG_INFO, "weights loaded in %.2f s (%.1f GB/s)", spent,
             (double)s->bytes_total / 1e9 / spent);
out:
    return st;
}

static enum status give_up(struct server *s, struct err *err)
{
    base_log(LOG_ERROR, "%s; ending all requests", err->text);
    frontend_refuse(s->frontend, "rank_lost", "a rank was lost; the server is stopping");
    engine_lost(s->engine);
    group_kill(s->group);
    frontend_idle(s->frontend, 1.0);
    return ERR_COMM;
}

/* Running requests may finish; a second signal or the deadline ends them. */
static void drain(struct server *s, double timeout)
{
    base_log(LOG_INFO, "stopping: running requests have %.0f s to finish", timeout);
    frontend_refuse(s->frontend, "draining", "the server is shutting down");
    double end = base_now() + timeout;
    while (base_now() < end && !take_signal(s))
        if (frontend_idle(s->frontend, 0.1))
            return;
}

/* Until a signal (OK) or the loss of a rank (ERR_COMM). */
static enum status watch(struct server *s, const struct options *o, struct err *err)
{
    struct pollfd polls[COMM_RANKS_MAX + 2];
    const int32_t ranks = s->footprint.ranks;
    for (int32_t r = 0; r < ranks; r++)
        polls[r] = (struct pollfd){.fd = group_pidfd(s->group, r), .events = POLLIN};
    polls[ranks] = (struct pollfd){.fd = s->signals, .events = POLLIN};
    polls[ranks + 1] = (struct pollfd){.fd = s->lost, .events = POLLIN};
    for (;;) {
        if (poll(polls, (nfds_t)ranks + 2, -1) < 0)
            continue;
        if (group_check(s->group, 0, err) != OK)
            return give_up(s, err);
        if (polls[ranks + 1].revents) {
            if (group_check(s->group, 100, err) == OK)
                base_fail(err, ERR_COMM, "the rank group is lost");
            return give_up(s, err);
        }
        int signal_number = take_signal(s);
        if (signal_number == SIGTERM || signal_number == SIGINT) {
            drain(s, o->drain_timeout);
            return OK;
        }
        if (signal_number == SIGHUP)
            reload_keys(s);
    }
}

static void log_ready(struct server *s, const struct options *o)
{
    int32_t port = frontend_port(s->frontend);
    base_log(LOG_INFO, "ready: listening on http://%s:%d", o->host, port);
    base_log(LOG_INFO,
             "try: curl http://%s:%d/v1/completions -H 'Content-Type: application/json' -d "
             "'{\"prompt\": %s, \"max_tokens\": 64}'",
             o->host, port, s->tokenizer ? "\"Once upon a time\"" : "[1, 2, 3]");
}

enum status commands_serve(const struct options *o, struct err *err)
{
    enum status st = OK;
    struct server s = {.signals = -1, .lost = -1};
    TRY(open_signals(&s, err));
    TRY(access_open(o, &s.keys, err));
    TRY(open_model(&s, o, err));
    TRY(open_frontend(&s, o, err));
    TRY(open_engine(&s, o, err));
    frontend_ready(s.frontend, s.engine);
    log_ready(&s, o);
    st = watch(&s, o, err);
out:
    engine_stop(s.engine);
    frontend_close(s.frontend);
    engine_close(s.engine);
    group_close(s.group);
    keys_close(s.keys);
    tokenizer_close(s.tokenizer);
    setup_close(&s.setup);
    if (s.signals >= 0)
        close(s.signals);
    if (s.lost >= 0)
        close(s.lost);
    return st;
}
