/* tessera batch: a file of requests, answered by a server or by one that it starts. */
#include "server/bench/batch.h"
#include "server/client.h"
#include "server/commands.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

struct files {
    int input, signals;
    int64_t input_bytes;
    struct batch_ids ids;
    struct batch_output output;
};

static bool is_stdio(const char *path)
{
    return strcmp(path, "-") == 0;
}

static enum status open_input(const char *path, struct files *f, struct err *err)
{
    struct stat sb;
    f->input =
        is_stdio(path) ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open(path, O_RDONLY | O_CLOEXEC);
    if (f->input < 0 || fstat(f->input, &sb) != 0)
        return base_fail_errno(err, ERR_USAGE, "-i %s", path);
    if (S_ISDIR(sb.st_mode))
        return base_fail(err, ERR_USAGE, "-i %s is a directory", path);
    f->input_bytes = S_ISREG(sb.st_mode) ? (int64_t)sb.st_size : 0;
    return OK;
}

static enum status open_files(const struct options *o, struct files *f, struct err *err)
{
    enum status st = OK;
    TRY(open_input(o->bench.input_file, f, err));
    TRY(batch_ids_init(&f->ids, err));
    TRY(batch_output_open(o->bench.output_file, &f->ids, &f->output, err));
    if (f->output.answered + f->output.dropped > 0 || f->output.cut)
        base_log(LOG_INFO,
                 "going on with %s: answers that stay: %" PRId64
                 ", lines without one, which are tried again: %" PRId64 "%s",
                 o->bench.output_file, f->output.answered, f->output.dropped,
                 f->output.cut ? ", half a line was cut off" : "");
out:
    return st;
}

/* From here on an interrupt ends the requests, not the program. */
static enum status open_signals(struct files *f, struct err *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    f->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return f->signals < 0 ? base_fail_errno(err, ERR_INTERNAL, "signalfd") : OK;
}

static void summarize(const struct batch_counts *c)
{
    base_log(LOG_INFO,
             "%" PRId64 " answered, %" PRId64 " refused, %" PRId64 " failed, %" PRId64
             " answered before; %.1f s, %.1f requests/s, tokens %" PRId64 " in and %" PRId64 " out",
             c->answered, c->refused, c->failed, c->skipped, c->seconds,
             (double)(c->answered + c->refused) / c->seconds, c->prompt_tokens,
             c->completion_tokens);
}

/* Whatever has no answer makes the command fail, after everything is written. */
static enum status verdict(const struct options *o, const struct batch_counts *c, struct err *err)
{
    const int64_t bad = c->refused + c->failed;
    const char *again =
        is_stdio(o->bench.output_file) ? "" : "; the same command goes on with them";
    if (c->interrupted)
        return base_fail(err, ERR_PEER, "stopped before all requests were answered%s", again);
    if (bad > 0)
        return base_fail(err, ERR_PEER,
                         "%" PRId64 " of %" PRId64 " requests have no answer, \"error\" in their "
                         "lines says why%s",
                         bad, bad + c->answered + c->skipped, again);
    return OK;
}

static enum status run(const struct options *o, struct client *client, struct files *f,
                       struct err *err)
{
    enum status st = OK, closed;
    struct batch_counts counts = {.answered = 0};
    struct err why;
    TRY(open_signals(f, err));
    const struct batch_config config = {.target = client_target(client),
                                        .model = client_model(client),
                                        .input = f->input,
                                        .input_bytes = f->input_bytes,
                                        .output = &f->output,
                                        .ids = &f->ids,
                                        .concurrency = o->bench.max_concurrency,
                                        .timeout_s = o->bench.timeout,
                                        .signals = f->signals};
    st = batch_run(&config, &counts, err);
    closed = batch_output_close(&f->output, &why);
    if (st == OK && closed != OK)
        TRY(base_fail(err, closed, "%s", why.text));
    if (counts.seconds > 0)
        summarize(&counts);
    if (st == OK)
        st = verdict(o, &counts, err);
out:
    return st;
}

enum status commands_batch(const struct options *o, struct err *err)
{
    enum status st = OK;
    struct client *client = NULL;
    struct err ignored;
    struct files f = {.input = -1, .signals = -1, .output.fd = -1};
    TRY(client_open(o, false, &client, err));
    TRY(open_files(o, &f, err));
    TRY(client_start(client, err));
    st = run(o, client, &f, err);
out:
    client_close(client);
    if (batch_output_close(&f.output, &ignored) != OK)
        base_log(LOG_WARN, "%s", ignored.text);
    batch_ids_free(&f.ids);
    if (f.input >= 0)
        close(f.input);
    if (f.signals >= 0)
        close(f.signals);
    return st;
}
