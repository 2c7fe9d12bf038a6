/* DESIGN: start order is cheap checks first: model headers, memory, port; then the ranks load while
 * the port answers 503 "loading"; then the engine. The main thread sleeps in poll on signals and on
 * the ranks' pidfds, so a death is noticed at once, also when nothing runs. Then the whole group is
 * killed and another one started while the requests wait, also those that a drain waits for; one
 * that is lost too often is not, so that the service manager sees it. The main thread alone moves
 * the server from phase to phase and tells the manager. Closing mirrors opening. */
#include "config/buf.h"
#include "config/slice.h"
#include "engine/engine_thread.h"
#include "engine/group.h"
#include "engine/load_watch.h"
#include "engine/rank.h"
#include "engine/rendezvous.h"
#include "server/access.h"
#include "server/chat_template.h"
#include "server/commands.h"
#include "server/frontend.h"
#include "server/health.h"
#include "server/keys.h"
#include "server/notify.h"
#include "server/remarks.h"
#include "server/setup.h"
#include "server/tokenizer/tokenizer.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define DRAIN_TICK_MS 50
#define SLICE_NS 500000 /* time slice of our threads, which do little and are waited for */
#define STALL_S_MAX 10
#define RESTARTS_WINDOW_S 300

struct server {
    struct health health;
    struct notify notify;
    struct setup setup;
    struct footprint footprint;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template; /* NULL: no tokenizer */
    struct keys *keys;                   /* NULL: nobody needs one */
    struct frontend *frontend;
    struct group *group;
    struct engine *engine;
    int signals; /* signalfd: SIGINT, SIGTERM, SIGHUP */
    int lost;    /* eventfd: the engine noticed that the group is lost */
    char name[256];
    struct buf cpu_list; /* of the setup's options */
    /* loading */
    struct load_watch watch;
    double began_at, told_at, logged_at;
    uint64_t told_bytes, logged_bytes;
    double restarted_at[OPTIONS_RESTARTS_MAX]; /* of restart n: in [n % max_group_restarts] */
    uint32_t restarts;
    double drained_by; /* INFINITY: nobody has asked us to stop */
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
        base_log(LOG_INFO, "SIGHUP: %d key%s", keys_count(s->keys),
                 keys_count(s->keys) == 1 ? "" : "s");
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

static enum status open_tokenizer(struct server *s, const struct options *o, struct err *err)
{
    struct err why = {""};
    if (o->skip_tokenizer_init)
        return OK;
    const enum status st = tokenizer_open(o->model, s->setup.model.vocab, &s->tokenizer, &why);
    if (st == ERR_MODEL)
        return base_fail(
            err, st, "%s (--skip-tokenizer-init serves prompts of token ids without it)", why.text);
    *err = why;
    return st;
}

/* Without a template completions are served all the same. */
static enum status open_chat(struct server *s, const struct options *o, struct err *err)
{
    if (!s->tokenizer)
        return o->chat_template
                   ? base_fail(err, ERR_USAGE,
                               "--chat-template needs a tokenizer, this model has none")
                   : OK;
    const enum status st =
        chat_template_open(s->tokenizer, o->chat_template, &s->chat_template, err);
    if (st == OK && chat_template_problem(s->chat_template) && !s->setup.model.pooling)
        base_log(LOG_WARN, "chat is refused: %s", chat_template_problem(s->chat_template));
    return st;
}

/* How the model answers in chats. */
static enum status choose_form(const struct server *s, const struct options *o,
                               struct answer_form *out, struct err *err)
{
    struct answer_form shown = {.calls = ANSWER_CALLS_NONE};
    if (s->chat_template)
        shown = chat_template_form(s->chat_template);
    const enum status st =
        answer_form_choose(&shown, o->tool_call_parser, o->reasoning_parser, out, err);
    if (st == OK && !o->auto_tool_choice)
        out->calls = ANSWER_CALLS_NONE;
    return st;
}

static enum status open_model(struct server *s, const struct options *o, struct err *err)
{
    enum status st = OK;
    struct buf table;
    struct cores_plan plan;
    char size[32];
    buf_init(&table, 1 << 16);
    buf_init(&s->cpu_list, 8192);
    TRY(setup_open(o, &s->setup, err));
    TRY(setup_check_head(&s->setup, err));
    TRY(footprint_plan(&s->setup.options, &s->setup.model, s->setup.flow, &s->footprint, err));
    if (s->setup.checkpoint)
        s->footprint.weights_stamp = checkpoint_stamp(s->setup.checkpoint);
    TRY(open_tokenizer(s, o, err));
    TRY(open_chat(s, o, err));
    setup_model_name(o, s->name, sizeof s->name);
    const char *codes = model_config_codes(&s->setup.model);
    uint64_t bytes = s->setup.checkpoint ? checkpoint_bytes(s->setup.checkpoint) : 0;
    base_log(
        LOG_INFO,
        "%s: %d layers, hidden %d, %s of tensors, held as %s%s%s on %d rank%s (%s, %d thread%s "
        "each)",
        s->name, s->setup.model.layers, s->setup.model.hidden,
        base_human_bytes(size, sizeof size, bytes), dtype_name(s->footprint.dtype),
        codes ? " and " : "", codes ? codes : "", s->footprint.ranks,
        s->footprint.ranks == 1 ? "" : "s", s->setup.ops->name, s->footprint.threads,
        s->footprint.threads == 1 ? "" : "s");
    if (s->tokenizer)
        base_log(LOG_INFO, "%s: %d tokens", tokenizer_kind(s->tokenizer),
                 tokenizer_count(s->tokenizer));
    else if (!o->skip_tokenizer_init)
        base_log(LOG_WARN, "no tokenizer.model or tokenizer.json in %s: prompts must be token ids",
                 o->model);
    if (s->setup.ignored > 0)
        base_log(LOG_INFO, "%d tensors of the checkpoint are not used", s->setup.ignored);
    setup_table(&s->setup, &s->footprint, &table);
    log_lines(&table);
    remarks_on_sizes(&s->setup, &s->footprint);
    remarks_on_cores(&s->setup.options);
    remarks_on_neighbours(&s->setup.options, s->footprint.threads, &s->cpu_list);
    if (cores_of(&s->setup.options, s->footprint.threads, &plan)) {
        remarks_on_nodes(&s->setup.options, &plan);
        remarks_on_places(&s->setup.options, &plan);
    }
    remarks_on_gpus(&s->setup.options, REMARKS_GPUS);
out:
    buf_free(&table);
    return st;
}

/* Logged because a benchmark would not expect defaults from the model's own file. */
static void log_defaults(const struct generation_defaults *d)
{
    struct buf b;
    buf_init(&b, 1024);
    if (!isnan(d->temperature))
        buf_printf(&b, " temperature %g", (double)d->temperature);
    if (!isnan(d->top_p))
        buf_printf(&b, " top_p %g", (double)d->top_p);
    if (!isnan(d->min_p))
        buf_printf(&b, " min_p %g", (double)d->min_p);
    if (!isnan(d->repetition_penalty))
        buf_printf(&b, " repetition_penalty %g", (double)d->repetition_penalty);
    if (d->top_k > 0)
        buf_printf(&b, " top_k %d", d->top_k);
    base_log(LOG_INFO, "sampling defaults:%s", b.len ? b.data : " OpenAI's (temperature 1)");
    buf_free(&b);
}

static void log_vectors(const struct frontend_config *c, const struct pooling *p)
{
    base_log(LOG_INFO, "vectors of %d numbers, of a text's last token%s", c->columns,
             c->normalizes ? ", divided by their length" : "");
    if (p->prompt[0])
        base_log(
            LOG_WARN,
            "texts are taken as they come: what config_sentence_transformers.json puts in front "
            "of them (default_prompt_name \"%s\") is for clients to write",
            p->prompt);
}

static enum status open_frontend(struct server *s, const struct options *o, struct err *err)
{
    struct answer_form form;
    const enum status st = choose_form(s, o, &form, err);
    if (st != OK)
        return st;
    const struct frontend_config c = {
        .host = o->host,
        .port = o->port,
        .model_name = o->served_model_name ? o->served_model_name : s->name,
        .version = TESSERA_VERSION,
        .health = &s->health,
        .vocab = s->setup.model.vocab,
        .max_model_len = s->footprint.max_model_len,
        .tokenizer = s->tokenizer,
        .chat_template = s->chat_template,
        .answer = form,
        .columns = s->footprint.limits.columns,
        .normalizes = s->setup.pooling.normalize,
        .queued_max = s->footprint.limits.slots + s->setup.options.max_num_queued_reqs,
        .choices_max = s->footprint.limits.slots + s->setup.options.max_num_queued_reqs,
        .tokens_max = o->max_num_queued_tokens,
        .defaults = strcmp(o->generation_config, "none") == 0 ? model_config_no_defaults()
                                                              : s->setup.defaults,
        .http = access_limits(o),
        .keys = s->keys,
        .metrics_without_key = o->metrics_without_key,
        .shared_prefix_cache = o->shared_prefix_cache,
        .cors_origins = o->cors_origins,
        .allowed_hosts = access_hosts(o, s->keys),
        .webui = o->webui,
    };
    if (c.columns > 0)
        log_vectors(&c, &s->setup.pooling);
    else
        log_defaults(&c.defaults);
    if (s->chat_template && !chat_template_problem(s->chat_template) && c.columns == 0)
        base_log(LOG_INFO, "chat: calls of tools: %s; reasoning: %s", answer_calls_name(form.calls),
                 !form.reasoning ? "none"
                 : form.harmony  ? "analysis channel"
                                 : answer_thought(form.thoughts)->begin);
    return frontend_open(&c, &s->frontend, err);
}

static void enter(struct server *s, enum health_phase phase)
{
    health_enter(&s->health, phase);
    notify_send(&s->notify, "STATUS=%s", health_phase_name(health_phase(&s->health)));
}

/* To the manager each second; to the log after a second, then each tenth of the way or ten seconds.
 * The manager is asked for more time only when bytes have moved. */
static void show_progress(struct server *s)
{
    char text[160];
    const uint64_t done = atomic_load(&s->health.bytes_done);
    const uint64_t total = atomic_load(&s->health.bytes_total);
    const double now = base_now();
    static const char longer[] = "EXTEND_TIMEOUT_USEC=30000000\n";
    if (now - s->told_at < 1)
        return;
    health_text(&s->health, text, sizeof text);
    notify_send(&s->notify, "%sSTATUS=%s", done > s->told_bytes ? longer : "", text);
    s->told_at = now;
    s->told_bytes = done;
    if (now - s->logged_at >= 10 || done - s->logged_bytes >= total / 10) {
        base_log(LOG_INFO, "%s", text);
        s->logged_at = now;
        s->logged_bytes = done;
    }
}

static bool is_stop(int signal_number)
{
    return signal_number == SIGTERM || signal_number == SIGINT;
}

/* Feeds the service manager's watchdog, unless the ranks hang. */
static void feed_watchdog(struct server *s)
{
    if (s->notify.watchdog_ns > 0 && !health_stalled(&s->health, s->engine))
        notify_send(&s->notify, "WATCHDOG=1");
}

static bool is_draining(const struct server *s)
{
    return s->drained_by < INFINITY;
}

static void begin_drain(struct server *s)
{
    const double timeout = s->setup.options.drain_timeout;
    base_log(LOG_INFO, "stopping: running requests have %.0f s to finish", timeout);
    health_enter(&s->health, HEALTH_DRAINING);
    notify_send(&s->notify, "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=%lld",
                (long long)((timeout + 10) * 1e6));
    s->drained_by = base_now() + timeout;
}

/* The first signal lets running requests finish until the deadline. ERR_CANCELLED, to end at once:
 * it came before there could be requests, or it is the second one. */
static enum status obey_signals(struct server *s, struct err *err)
{
    const int signal_number = take_signal(s);
    if (signal_number == SIGHUP)
        reload_keys(s);
    if (is_stop(signal_number)) {
        if (!s->engine || is_draining(s))
            return base_fail(err, ERR_CANCELLED, "stopped");
        begin_drain(s);
    }
    if (is_draining(s) && (frontend_idle(s->frontend, 0) || base_now() >= s->drained_by))
        return base_fail(err, ERR_CANCELLED, "drained");
    return OK;
}

/* Called while the server waits for ranks on other machines. If it gives up, those that have not
 * come yet cannot be told; the launcher ends them when this process fails. */
static enum status arrival_tick(void *ctx, struct err *err)
{
    struct server *s = ctx;
    const int signal_number = take_signal(s);
    if (signal_number == SIGHUP)
        reload_keys(s);
    else if (is_stop(signal_number))
        return base_fail(err, ERR_COMM, "stopped before all ranks had come");
    return OK;
}

/* Called about every 50 ms while the ranks load. */
static enum status loading_tick(void *ctx, struct err *err)
{
    enum status st = OK;
    struct server *s = ctx;
    uint64_t done = 0;
    int32_t ranks_done = 0;
    TRY(obey_signals(s, err));
    feed_watchdog(s);
    for (int32_t r = 0; r < s->footprint.ranks; r++) {
        uint64_t n = atomic_load(&group_board(s->group)->rank[r].load.bytes_done);
        ranks_done += n >= s->watch.wanted[r];
        done += n;
    }
    if (s->health.bytes_total > 0) { /* else the weights are not from files */
        health_progress(&s->health, done, ranks_done);
        if (ranks_done == s->footprint.ranks && health_phase(&s->health) < HEALTH_WARMING)
            enter(s, HEALTH_WARMING);
        if (ranks_done < s->footprint.ranks)
            show_progress(s);
    }
    TRY(group_check(s->group, 0, err));
    TRY(load_watch_look(&s->watch, group_board(s->group), base_now(), err));
out:
    return st;
}

static void on_lost(void *ctx)
{
    struct server *s = ctx;
    uint64_t one = 1;
    if (write(s->lost, &one, sizeof one) < 0)
        base_log(LOG_ERROR, "eventfd: %s", strerror(errno));
}

static struct engine_group engine_group(const struct server *s)
{
    return (struct engine_group){group_epoch(s->group), group_links(s->group),
                                 group_board(s->group)};
}

/* What the ranks are to read: nothing where the weights were kept. */
static void begin_loading(struct server *s, const struct options *o, bool kept)
{
    uint64_t total = 0;
    for (int32_t r = 0; r < s->footprint.ranks; r++)
        total += s->watch.wanted[r] = kept ? 0 : setup_read_bytes(&s->setup, r);
    s->watch.timeout = o->load_timeout;
    s->watch.ranks = s->footprint.ranks;
    s->watch.checkpoint = s->setup.checkpoint;
    atomic_store(&s->health.bytes_total, total);
    atomic_store(&s->health.ranks, s->footprint.ranks);
    health_progress(&s->health, 0, 0);
    s->began_at = s->told_at = base_now();
    s->logged_at = -INFINITY;
    s->told_bytes = s->logged_bytes = 0;
}

/* Returns when the ranks that have been started hold the weights. */
static enum status await_weights(struct server *s, struct err *err)
{
    enum status st = OK;
    const uint64_t total = atomic_load(&s->health.bytes_total);
    load_watch_begin(&s->watch, base_now());
    TRY(group_wait_ready(s->group, loading_tick, s, err));
    health_progress(&s->health, total, s->footprint.ranks);
    const double spent = base_now() - s->began_at;
    char bytes[32], rate[32];
    if (total == 0 && !group_has_weights(s->group))
        base_log(LOG_INFO, "random weights made in %.2f s", spent);
    else if (!group_has_weights(s->group))
        base_log(LOG_INFO, "weights loaded: %s in %.2f s, %s/s",
                 base_human_bytes(bytes, sizeof bytes, total), spent,
                 base_human_bytes(rate, sizeof rate, (uint64_t)((double)total / spent)));
out:
    return st;
}

/* Ranks that were never ready are not started again: what ended them may well do so each time. */
static enum status await_first_weights(struct server *s, struct err *err)
{
    struct err why = {""};
    const enum status st = await_weights(s, &why);
    if (st == ERR_COMM)
        return base_fail(err, st,
                         "%.300s; the server ends, because nothing was ready yet (once it is, lost "
                         "ranks are started again)",
                         why.text);
    *err = why;
    return st;
}

static enum status open_engine(struct server *s, const struct options *o, struct err *err)
{
    enum status st = OK;
    begin_loading(s, o, false);
    enter(s, HEALTH_LOADING);
    TRY(group_open(&s->setup.options, &s->footprint, arrival_tick, s, &s->group, err));
    TRY(await_first_weights(s, err));
    enter(s, HEALTH_WARMING);
    struct engine_config c = {
        .sched = {.limits = s->footprint.limits,
                  .waiting_max = s->setup.options.max_num_queued_reqs,
                  .max_model_len = s->footprint.max_model_len,
                  .eos_count = s->setup.model.eos_count,
                  .prefix_caching = s->setup.options.prefix_caching,
                  .speculation = o->speculation},
        .measure_costs = true,
        .queued_tokens_max = o->max_num_queued_tokens,
        .ranks = s->footprint.ranks,
        .kv_dtype = s->footprint.kv_dtype,
        .group = engine_group(s),
        .step_timeout = o->step_timeout,
        .sink = frontend_sink,
        .sink_ctx = s->frontend,
        .on_lost = on_lost,
        .on_lost_ctx = s,
    };
    memcpy(c.sched.eos, s->setup.model.eos, sizeof c.sched.eos);
    TRY(engine_open(&c, &s->engine, err));
out:
    return st;
}

static enum status give_up(struct server *s, const struct options *o, struct err *err)
{
    const int32_t max = o->max_group_restarts;
    if (options_mpi(o) || max == 0)
        base_log(LOG_ERROR, "%s; ending all requests", err->text);
    else
        base_log(LOG_ERROR,
                 "%s; ending all requests: %d restart%s within %d minutes %s used up "
                 "(--max-group-restarts)",
                 err->text, max, max == 1 ? "" : "s", RESTARTS_WINDOW_S / 60,
                 max == 1 ? "is" : "are");
    enter(s, HEALTH_LOST);
    engine_lost(s->engine);
    group_kill(s->group);
    frontend_idle(s->frontend, 1.0);
    return ERR_COMM;
}

/* May the ranks be started again? Not too often; and over MPI only the launcher can. */
static bool may_restart(struct server *s, const struct options *o)
{
    const uint32_t max = options_mpi(o) ? 0 : (uint32_t)o->max_group_restarts;
    if (max == 0)
        return false;
    double *oldest = &s->restarted_at[s->restarts % max];
    if (s->restarts >= max && base_now() - *oldest < RESTARTS_WINDOW_S)
        return false;
    *oldest = base_now();
    s->restarts++;
    return true;
}

/* Seconds before the attempt of this number, from 0: what a first one has not found (a file server
 * that starts anew) may be there again soon. */
static double pause_before(int32_t attempt)
{
    static const double seconds[] = {0, 1, 4};
    const int32_t last = (int32_t)ARRAY_LEN(seconds) - 1;
    return seconds[attempt < last ? attempt : last];
}

/* With what is left of the ranks ended; signals are obeyed meanwhile. */
static enum status wait_to_restart(struct server *s, double seconds, struct err *err)
{
    const double until = base_now() + seconds;
    enum status st = OK;
    if (seconds > 0)
        group_kill(s->group);
    while (st == OK && base_now() < until) {
        struct pollfd p = {.fd = s->signals, .events = POLLIN};
        poll(&p, 1, DRAIN_TICK_MS);
        feed_watchdog(s);
        st = obey_signals(s, err);
    }
    return st;
}

/* Another group of ranks that holds the weights. keep: those in memory are good. */
static enum status restart(struct server *s, const struct options *o, bool keep, struct err *err)
{
    enum status st = group_reopen(&s->setup.options, &s->footprint, keep, s->group, err);
    begin_loading(s, o, group_has_weights(s->group));
    return st == OK ? await_weights(s, err) : st;
}

/* A rank is lost, as err says: kills the others, starts new ones, and lets the requests go on. A
 * failure meanwhile counts as another loss; a drain goes on meanwhile and may end (ERR_CANCELLED).
 * died: the weights in memory are good. Ranks that hung or answered nonsense may have bad ones;
 * those that were given good ones cannot write to them. */
static enum status recover(struct server *s, const struct options *o, bool died, struct err *err)
{
    uint64_t ignored;
    enum status st = ERR_COMM;
    const double began = base_now();
    for (int32_t n = 0; st != OK && st != ERR_CANCELLED && may_restart(s, o); n++) {
        const double pause = pause_before(n);
        char when[32] = "";
        if (pause > 0)
            snprintf(when, sizeof when, " in %.0f s", pause);
        base_log(LOG_ERROR, "%s; starting the ranks again (%u)%s, requests wait", err->text,
                 s->restarts, when);
        enter(s, HEALTH_RECOVERING);
        notify_send(&s->notify, "WATCHDOG=1"); /* its time begins anew with what begins anew */
        engine_pause(s->engine);
        st = wait_to_restart(s, pause, err);
        if (st == OK)
            st = restart(s, o, died, err);
        died = group_has_weights(s->group);
    }
    if (st == ERR_CANCELLED)
        return st;
    if (st != OK)
        return give_up(s, o, err);
    if (read(s->lost, &ignored, sizeof ignored) < 0 && errno != EAGAIN)
        base_log(LOG_WARN, "eventfd: %s", strerror(errno));
    const struct engine_group group = engine_group(s);
    engine_resume(s->engine, &group);
    enter(s, HEALTH_READY);
    base_log(LOG_INFO, "requests go on after %.2f s", base_now() - began);
    return OK;
}

/* Milliseconds that the main thread may sleep; -1: until something happens. The manager hears of us
 * three times in its period. */
static int nap_ms(const struct server *s)
{
    if (is_draining(s))
        return DRAIN_TICK_MS;
    return s->notify.watchdog_ns > 0 ? (int)(s->notify.watchdog_ns / 3000000) + 1 : -1;
}

/* Sleeps until something happens. ERR_COMM: the ranks are lost, one of them because it died. */
static enum status await_event(struct server *s, bool *died, struct err *err)
{
    struct pollfd polls[COMM_RANKS_MAX + 2];
    const int32_t ranks = s->footprint.ranks;
    for (int32_t r = 0; r < ranks; r++)
        group_poll(s->group, r, &polls[r]);
    polls[ranks] = (struct pollfd){.fd = s->signals, .events = POLLIN};
    polls[ranks + 1] = (struct pollfd){.fd = s->lost, .events = POLLIN};
    const bool woken = poll(polls, (nfds_t)ranks + 2, nap_ms(s)) > 0;
    const bool lost = woken && polls[ranks + 1].revents;
    enum status st = group_check(s->group, lost ? 100 : 0, err);
    *died = st != OK;
    return st == OK && lost ? base_fail(err, ERR_COMM, "the rank group is lost") : st;
}

/* Returns when a signal has ended the server and its requests (ERR_CANCELLED), or when the ranks
 * are lost for good (ERR_COMM). */
static enum status watch(struct server *s, const struct options *o, struct err *err)
{
    for (;;) {
        bool died;
        enum status st = await_event(s, &died, err);
        if (st != OK)
            st = recover(s, o, died, err);
        if (st == OK)
            st = obey_signals(s, err);
        if (st != OK)
            return st;
        feed_watchdog(s);
    }
}

static void log_ready(struct server *s, const struct options *o)
{
    char url[300], credential[4096];
    const bool v6 = strchr(o->host, ':') != NULL;
    snprintf(url, sizeof url, v6 ? "http://[%.255s]:%d" : "http://%.255s:%d", o->host,
             frontend_port(s->frontend));
    base_log(LOG_INFO, "ready: listening on %s", url);
    struct buf command;
    buf_init(&command, 1 << 14);
    remarks_try(o->host, frontend_port(s->frontend),
                access_key_file(o, credential, sizeof credential), s->tokenizer != NULL,
                s->footprint.limits.columns > 0, &command);
    if (!command.failed)
        base_log(LOG_INFO, "try: %s", command.data);
    buf_free(&command);
    if (!o->webui || s->footprint.limits.columns > 0)
        return;
    remarks_page(o->host, frontend_port(s->frontend), &command);
    if (!command.failed)
        base_log(LOG_INFO, "or open %s in a browser", command.data);
    buf_free(&command);
}

static enum status serve(const struct options *o, struct err *err)
{
    enum status st = OK;
    slice_request(SLICE_NS);
    struct server s = {.signals = -1, .lost = -1, .drained_by = INFINITY};
    health_init(&s.health, fmin(STALL_S_MAX, o->step_timeout / 2));
    if (notify_open(&s.notify, err) != OK)
        base_log(LOG_WARN, "%s", err->text);
    TRY(open_signals(&s, err));
    TRY(access_open(o, &s.keys, err));
    TRY(open_model(&s, o, err));
    TRY(open_frontend(&s, o, err));
    TRY(open_engine(&s, o, err));
    frontend_ready(s.frontend, s.engine);
    log_ready(&s, o);
    notify_send(&s.notify, "READY=1\nSTATUS=ready: %s", s.name);
    st = watch(&s, o, err);
out:
    engine_stop(s.engine);
    frontend_close(s.frontend);
    engine_close(s.engine);
    group_close(s.group);
    keys_close(s.keys);
    chat_template_close(s.chat_template);
    tokenizer_close(s.tokenizer);
    setup_close(&s.setup);
    buf_free(&s.cpu_list);
    if (s.signals >= 0)
        close(s.signals);
    if (s.lost >= 0)
        close(s.lost);
    notify_close(&s.notify);
    return st;
}

/* A launcher starts one process per rank: that of rank 0 is the server. Returns for it alone. */
static enum status take_place(const struct options *o, struct err *err)
{
    enum status st = OK;
    struct rendezvous_place place;
    if (strncmp(o->device, "cuda", 4) == 0)
        return base_fail(err, ERR_USAGE,
                         "--comm mpi is for CPU ranks, --device is %s: GPUs of one machine need no "
                         "launcher",
                         o->device);
    TRY(rendezvous_place(o->tp, &place, err));
    if (place.rank > 0)
        TRY(rank_join(o, place.rank, err));
    base_log(LOG_INFO, "started by %s as rank 0 of %d", place.launcher, place.ranks);
out:
    return st;
}

enum status commands_serve(const struct options *o, struct err *err)
{
    if (options_mpi(o)) {
        enum status placed = take_place(o, err);
        if (placed != OK)
            return placed;
    }
    return serve(o, err);
}
