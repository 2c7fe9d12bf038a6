/* DESIGN: probes are asked most when things go badly, so they read a few words and compute the rest
 * from the clock. */
#include "server/health.h"

#include <inttypes.h>
#include <stdio.h>

static const struct {
    const char *name, *code, *message; /* code NULL: requests are welcome */
} phases[] = {
    [HEALTH_STARTING] = {"starting", "loading", "the server is starting, try again soon"},
    [HEALTH_LOADING] = {"loading", "loading", "the model is being loaded, try again soon"},
    [HEALTH_WARMING] = {"warming", "loading", "the model is nearly ready, try again soon"},
    [HEALTH_READY] = {"ready", NULL, NULL},
    [HEALTH_RECOVERING] = {"recovering", NULL, NULL},
    [HEALTH_DRAINING] = {"draining", "draining", "the server is shutting down"},
    [HEALTH_LOST] = {"lost", "rank_lost", "a rank was lost; the server is stopping"},
};

void health_init(struct health *h, double stall_s)
{
    *h = (struct health){.stall_s = stall_s};
    atomic_store(&h->started_ns, base_now_ns());
}

void health_enter(struct health *h, enum health_phase phase)
{
    const enum health_phase was = health_phase(h);
    if (phase <= was && !(was == HEALTH_RECOVERING && phase == HEALTH_READY))
        return;
    if (phase == HEALTH_LOADING || phase == HEALTH_RECOVERING)
        atomic_store(&h->loading_ns, base_now_ns());
    if (phase == HEALTH_READY && was != HEALTH_RECOVERING)
        atomic_store(&h->ready_ns, base_now_ns());
    atomic_store(&h->phase, (int)phase);
}

enum health_phase health_phase(const struct health *h)
{
    return (enum health_phase)atomic_load(&h->phase);
}

const char *health_phase_name(enum health_phase phase)
{
    return phases[phase].name;
}

void health_progress(struct health *h, uint64_t bytes_done, int32_t ranks_done)
{
    atomic_store(&h->bytes_done, bytes_done);
    atomic_store(&h->ranks_done, ranks_done);
}

enum status health_check(const struct health *h, struct api_error *e)
{
    const enum health_phase phase = health_phase(h);
    if (!phases[phase].code)
        return OK;
    return api_error_set(e, 503, phases[phase].code, "%s", phases[phase].message);
}

bool health_stalled(const struct health *h, const struct engine *engine)
{
    return engine && engine_stalled_s(engine) > h->stall_s;
}

enum status health_check_ready(const struct health *h, const struct engine *engine,
                               struct api_error *e)
{
    enum status st = health_check(h, e);
    if (health_phase(h) == HEALTH_RECOVERING)
        st = api_error_set(e, 503, "recovering",
                           "a rank was lost; the ranks start again and requests wait");
    if (st == OK && health_stalled(h, engine))
        st = api_error_set(e, 503, "stalled", "the ranks have made no progress for %.0f s",
                           engine_stalled_s(engine));
    return st;
}

static double seconds_between(int64_t from_ns, int64_t to_ns)
{
    return (double)(to_ns - from_ns) / 1e9;
}

static bool loads(enum health_phase phase)
{
    return phase == HEALTH_LOADING || phase == HEALTH_RECOVERING;
}

/* Seconds until the weights are read, at the pace so far; negative: not known. */
static double seconds_left(const struct health *h)
{
    const uint64_t done = atomic_load(&h->bytes_done), total = atomic_load(&h->bytes_total);
    const enum health_phase phase = health_phase(h);
    if (!loads(phase) && phase > HEALTH_LOADING)
        return 0;
    if (phase < HEALTH_LOADING || done == 0 || done > total)
        return -1;
    return seconds_between(atomic_load(&h->loading_ns), base_now_ns()) *
           ((double)total / (double)done - 1);
}

const char *health_text(const struct health *h, char *buf, size_t cap)
{
    char done[32], total[32];
    const enum health_phase phase = health_phase(h);
    if (!loads(phase)) {
        snprintf(buf, cap, "%s", phases[phase].name);
        return buf;
    }
    const double left = seconds_left(h);
    const int ranks = atomic_load(&h->ranks);
    int n = snprintf(buf, cap, "%s weights: %s of %s, %d of %d rank%s done", phases[phase].name,
                     base_human_bytes(done, sizeof done, atomic_load(&h->bytes_done)),
                     base_human_bytes(total, sizeof total, atomic_load(&h->bytes_total)),
                     atomic_load(&h->ranks_done), ranks, ranks == 1 ? "" : "s");
    if (left >= 0 && n > 0 && (size_t)n < cap)
        snprintf(buf + n, cap - (size_t)n, ", %.1f s left", left);
    return buf;
}

void health_json(const struct health *h, struct buf *out)
{
    const int64_t ready = atomic_load(&h->ready_ns);
    const double left = seconds_left(h);
    buf_printf(out,
               "{\"phase\":\"%s\",\"bytes_done\":%" PRIu64 ",\"bytes_total\":%" PRIu64
               ",\"ranks_done\":%d,\"ranks\":%d,\"elapsed_seconds\":%.3f,\"eta_seconds\":",
               phases[health_phase(h)].name, atomic_load(&h->bytes_done),
               atomic_load(&h->bytes_total), atomic_load(&h->ranks_done), atomic_load(&h->ranks),
               seconds_between(atomic_load(&h->started_ns), ready ? ready : base_now_ns()));
    if (left >= 0)
        buf_printf(out, "%.3f}", left);
    else
        buf_puts(out, "null}");
}
