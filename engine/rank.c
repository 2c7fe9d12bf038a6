/* DESIGN: a rank is a function from (its memory, a step) to ids and logprobs. The same rank_open
 * and rank_step run in a process of their own (rank_process.c), and as threads of one process in
 * the tests. */
#include "engine/rank.h"

#include "engine/parallel/sampler.h"
#include "engine/rank_state.h"
#include "engine/replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rank {
    struct footprint footprint;
    struct board_rank *board;
    struct backend *backend;
    struct comm *shared, *comm;     /* one and the same; between devices `shared` only opens comm */
    struct comm_stats shared_stats; /* of `shared` in that case, shown to nobody */
    struct kv_cache *kv[MODEL_KINDS]; /* over one memory; NULL: no layer of the kind */
    struct loaded weights;
    struct model *model;
    struct replay *replay;
    struct sampler *sampler;
    struct rank_state *state;
    void *owned[2]; /* weights and KV cache in device memory */
    bool scores;    /* computes logprobs: rank 0 answers for all */
    bool elects;    /* with the sampler distributed */
    bool pools;     /* gives vectors, not tokens */
    /* sizes of the results of launched steps; step n is in [n % BACKEND_FLIGHTS] */
    struct {
        int32_t samples, stride;
    } flights[BACKEND_FLIGHTS];
    uint64_t launched, landed;
};

/* Ranks that replace lost ones must load the model of the start, or none. */
static enum status check_stamp(const struct options *o, const struct checkpoint *c, struct err *err)
{
    char mine[17];
    snprintf(mine, sizeof mine, "%016llx", (unsigned long long)checkpoint_stamp(c));
    if (o->weights_stamp && strcmp(o->weights_stamp, mine) != 0)
        return base_fail(
            err, ERR_MODEL,
            "%.300s: the weights, or an adapter's, were written again since the server "
            "started; start it again to serve them",
            o->model);
    return OK;
}

static enum status load(struct rank *r, const struct options *o, const struct model_config *m,
                        const struct layout *l, void *arena, struct err *err)
{
    enum status st = OK;
    struct checkpoint *c = NULL;
    uint64_t bytes = 0;
    TRY(loader_open(r->backend, l->weights, l->count, arena, &r->weights, err));
    if (o->weights_kept)
        goto kept;
    if (options_dummy(o)) {
        const struct synth_rules rules = layout_synth_rules(m, (uint64_t)o->seed);
        TRY(loader_fill_dummy(r->backend, &rules, l->weights, &r->weights, &r->board->load, err));
    } else {
        TRY(checkpoint_open(o->model, &c, err));
        TRY(checkpoint_adapt(c, o->lora, err));
        TRY(check_stamp(o, c, err));
        TRY(layout_check(l, c, NULL, err));
        TRY(loader_fill(r->backend, c, l->weights, &r->weights, l->rank, &r->board->load, &bytes,
                        err));
    }
kept:
    atomic_store(&r->board->read_bytes, bytes);
    atomic_store(&r->board->weight_bytes, l->arena_bytes);
out:
    checkpoint_close(c);
    return st;
}

/* One device per rank, or ranks_per_device on each. */
static enum status open_backend(struct rank *r, const struct options *o, int32_t rank,
                                struct err *err)
{
    char name[32];
    if (!r->footprint.on_device)
        return backend_open(o->device, r->footprint.threads, &r->backend, err);
    snprintf(name, sizeof name, "%s:%d", options_backend(o), rank / o->ranks_per_device);
    return backend_open(name, r->footprint.threads, &r->backend, err);
}

/* Arenas for weights and KV cache: the given memory, or device memory that the rank owns. */
static enum status find_arenas(struct rank *r, const struct rank_memory *memory, size_t weights,
                               size_t kv, void *out[2], struct err *err)
{
    const size_t bytes[2] = {weights, kv};
    out[0] = memory->weights;
    out[1] = memory->kv;
    for (int i = 0; i < 2 && r->footprint.on_device; i++) {
        out[i] = r->owned[i] = r->backend->ops->alloc(r->backend, bytes[i]);
        if (!out[i])
            return base_fail(err, ERR_NOMEM, "rank: no device memory for %zu bytes of %s", bytes[i],
                             i == 0 ? "weights" : "KV cache");
    }
    return OK;
}

static enum status open_caches(struct rank *r, const struct model_config *m, const struct layout *l,
                               void *arena, struct err *err)
{
    for (int32_t i = 0; i < model_config_kinds(m); i++) {
        const struct kv_spec kv = footprint_kv(&r->footprint, m, l->flow, l->rank, i);
        r->kv[i] = r->backend->ops->kv_open(r->backend, &kv, arena);
        if (!r->kv[i])
            return base_fail(err, ERR_NOMEM, "rank: no memory for the KV cache's handle");
    }
    return OK;
}

static enum status open_comm(struct rank *r, const struct options *o, const struct layout *l,
                             const struct rank_memory *memory, struct err *err)
{
    struct comm_stats *stats = &r->board->comm;
    /* Symmetric memory has been seen to hang: nobody need lose the ranks to it twice. */
    const uint32_t how = (o->ranks_per_device > 1 ? COMM_SHARED_DEVICE : 0u) |
                         (o->restarted ? COMM_NO_WINDOWS : 0u) |
                         (o->deterministic ? COMM_FIXED_ORDER : 0u) |
                         (o->disable_custom_all_reduce ? COMM_NO_ONESHOT : 0u);
    const struct mesh *mesh = &l->flow->mesh;
    snprintf(stats->group, sizeof stats->group, "%s", mesh->axes == 1 ? mesh->axis[0].name : "all");
    enum status st;
    if (options_mpi(o))
        st = comm_mpi_open(l->rank, r->footprint.ranks, r->backend, r->footprint.comm_bytes, stats,
                           &r->shared, err);
    else
        st = comm_shm_open(memory->comm, l->rank, r->backend,
                           r->footprint.on_device ? &r->shared_stats : stats, &r->shared, err);
    if (st == OK && r->footprint.on_device)
        return comm_device_open(r->shared, r->backend, r->footprint.comm_bytes, how, stats,
                                &r->comm, err);
    r->comm = r->shared;
    return st;
}

/* The forward pass and what follows it, over weights, KV cache and communicator. */
static enum status open_model(struct rank *r, const struct options *o, const struct model_config *m,
                              const struct layout *l, struct err *err)
{
    enum status st = OK;
    const struct footprint *f = &r->footprint;
    const struct model_parts parts = {
        .config = m,
        .layout = l,
        .weights = &r->weights,
        .backend = r->backend,
        .comm = r->comm,
        .axis_stats = r->board->axis,
        .kv = {r->kv[0], r->kv[1]},
        .groups = f->limits.groups,
        .rows_max = f->limits.rows,
        .samples_max = f->limits.samples,
        .places = f->limits.slots + f->limits.states,
        .context = f->limits.history_max,
        .progress = &r->board->progress,
    };
    TRY(model_open(&parts, &r->model, err));
    const struct replay_parts replay = {
        .backend = r->backend,
        .model = r->model,
        .board = r->board,
        .bootstrap = r->shared,
        .layers = m->layers,
        .rows_max = f->limits.samples,
    };
    TRY(replay_open(f->on_device && !o->enforce_eager, &replay, &r->replay, err));
    if (!r->pools)
        TRY(sampler_open(r->elects, r->backend, r->comm, model_parallel(r->model),
                         f->limits.samples, m->vocab, &r->sampler, err));
out:
    return st;
}

enum status rank_open(const struct options *o, const struct model_config *m, const struct layout *l,
                      const struct footprint *f, const struct rank_memory *memory,
                      struct rank **out, struct err *err)
{
    enum status st = OK;
    struct rank *r = calloc(1, sizeof *r);
    if (!r)
        return base_fail(err, ERR_NOMEM, "rank: no memory");
    *out = r;
    r->footprint = *f;
    r->board = memory->board;
    r->scores = l->rank == 0;
    r->pools = f->limits.columns > 0;
    r->elects = options_distributed(o) && !r->pools;
    const struct kv_spec kv = footprint_kv(f, m, l->flow, l->rank, 0); /* all kinds share it */
    void *arenas[2];
    TRY(open_backend(r, o, l->rank, err));
    TRY(find_arenas(r, memory, l->arena_bytes, r->backend->ops->kv_bytes(&kv), arenas, err));
    TRY(load(r, o, m, l, arenas[0], err));
    TRY(rank_state_open(r->backend, &f->limits, &r->state, err));
    TRY(open_caches(r, m, l, arenas[1], err));
    if (memory->loaded)
        TRY(memory->loaded(memory->loaded_ctx, err));
    TRY(open_comm(r, o, l, memory, err));
    TRY(open_model(r, o, m, l, err));
out:
    return st;
}

void rank_close(struct rank *r)
{
    if (!r)
        return;
    sampler_close(r->sampler);
    replay_close(r->replay);
    model_close(r->model);
    if (r->comm != r->shared)
        comm_close(r->comm);
    comm_close(r->shared);
    for (int32_t i = 0; i < MODEL_KINDS; i++)
        if (r->kv[i])
            r->backend->ops->kv_close(r->kv[i]);
    loader_close(r->backend, &r->weights);
    rank_state_close(r->state);
    for (int i = 0; i < 2; i++)
        if (r->owned[i])
            r->backend->ops->free(r->backend, r->owned[i]);
    backend_close(r->backend);
    free(r);
}

/* From the rank's columns of the logits to ids and logprobs; *whole = the rows they were. */
static enum status sample(struct rank *r, const struct step *s, const struct rank_arrays *a,
                          int32_t stride, struct cview logits, struct cview *whole, struct err *err)
{
    enum status st = OK;
    const struct rank_arrays *host = &r->state->host;
    const struct sampler_input in = {
        .logits = logits,
        .rows = {a->sample_slot, a->sample_next, a->target, s->mask_count > 0 ? a->mask : NULL},
        .slots = rank_state_slots(r->state),
        .begin = a->begin,
        .places = host->begin[s->samples],
        .top = s->top,
        .elected = a->elected,
        .elected_host = host->elected,
    };
    int32_t undecided;
    TRY(sampler_run(r->sampler, &in, a->sampled, whole, &undecided, err));
    atomic_fetch_add(&r->board->sampler_fallbacks, (uint64_t)undecided);
    if (stride >= 0)
        TRY(backend_logprobs(r->backend, a->logprob, a->best, stride, *whole, a->sampled, a->top,
                             err));
out:
    return st;
}

/* What is wanted of the last norm's output, at once: it is too much for a flight. */
static enum status fetch_vectors(struct rank *r, struct cview rows, struct err *err)
{
    const size_t bytes = (size_t)rows.rows * (size_t)rows.cols * sizeof(float);
    float *to = r->state->host.vector;
    return r->scores ? r->backend->ops->download(r->backend, to, rows.data, bytes, err) : OK;
}

/* Has every sequence one row? */
static bool is_apart(const struct step *s)
{
    bool apart = true;
    for (int32_t i = 1; i < s->rows; i++)
        apart = apart && s->slot[i] != s->slot[i - 1];
    return apart;
}

/* Of a step that is run op by op: at its begin and at its end the rows with a neighbour of their
 * slot. Decodes stand together, so chunks of prompts are before and behind them. */
static void find_runs(const struct step *s, int32_t *head, int32_t *tail)
{
    const int32_t *slot = s->slot, n = s->rows;
    int32_t begin = 0, end = n;
    while (begin < n && slot[begin] >= 0 &&
           ((begin > 0 && slot[begin] == slot[begin - 1]) ||
            (begin + 1 < n && slot[begin] == slot[begin + 1])))
        begin++;
    while (end > begin && slot[end - 1] >= 0 &&
           ((end > 1 && slot[end - 1] == slot[end - 2]) || (end < n && slot[end - 1] == slot[end])))
        end--;
    *head = begin;
    *tail = n - end;
}

enum status rank_launch(struct rank *r, const struct step *s, struct cview *logits, struct err *err)
{
    enum status st = OK;
    struct backend *b = r->backend;
    struct rank_state *state = r->state;
    struct cview own, whole = {NULL, DTYPE_F32, 0, 0};
    const int32_t stride = r->scores && !r->pools && s->samples > 0 ? step_stride(s) : -1;
    const bool apart = is_apart(s);
    const int32_t rows = replay_rows(r->replay, s->rows, s->samples, apart);
    const int32_t padding = rows - s->rows;
    const struct rank_arrays *a;
    int32_t head = 0, tail = 0;
    if (!replay_records(r->replay, rows, s->samples + padding))
        find_runs(s, &head, &tail);
    TRY(rank_state_change(state, s, padding, &a, err));
    const struct sample_slots slots = rank_state_slots(state);
    const struct model_input in = {
        .rows = {rows, a->slot, a->position, a->table, state->limits.table_cols, apart, head, tail},
        .table_rows = state->limits.slots,
        .home_cut = rank_state_cut(state),
        .ids = a->ids,
        .keep = a->keep,
        .samples = s->samples + padding,
        .sample = a->sample,
        .sample_host = state->host.sample,
    };
    b->ops->resolve(b, a->ids, a->token, &in.rows, &slots);
    for (int32_t i = 0; i < s->opens; i++)
        if (s->open[i].state >= 0)
            model_recall(r->model, s->open[i].slot, state->limits.slots + s->open[i].state);
    TRY(replay_forward(r->replay, &in, &own, err));
    own.rows = s->samples; /* nobody draws from padding */
    if (s->samples > 0)
        TRY(r->pools ? fetch_vectors(r, own, err) : sample(r, s, a, stride, own, &whole, err));
    const int32_t flight = (int32_t)(r->launched++ % BACKEND_FLIGHTS);
    r->flights[flight].samples = s->samples;
    r->flights[flight].stride = stride;
    rank_state_fetch(state, flight, s->samples, stride);
    if (logits)
        *logits = whole;
out:
    return st;
}

bool rank_landed(const struct rank *r)
{
    const int32_t flight = (int32_t)(r->landed % BACKEND_FLIGHTS);
    return r->launched == r->landed || r->backend->ops->landed(r->backend, flight);
}

enum status rank_land(struct rank *r, struct step_result *result, struct err *err)
{
    const int32_t flight = (int32_t)(r->landed++ % BACKEND_FLIGHTS);
    const enum status st = rank_state_land(r->state, flight, r->flights[flight].samples,
                                           r->flights[flight].stride, result, err);
    if (st == OK && r->pools) { /* only one step is under way */
        result->ids = r->state->host.target;
        result->vector = r->scores ? r->state->host.vector : NULL;
        result->columns = r->footprint.limits.columns;
    }
    return st;
}

/* Elections and vectors ask the host in the middle of a step, which would keep the step before from
 * landing. */
bool rank_flies(const struct rank *r)
{
    return r->footprint.on_device && !r->elects && !r->pools;
}

enum status rank_step(struct rank *r, const struct step *s, struct step_result *result,
                      struct cview *logits, struct err *err)
{
    enum status st = OK;
    *result = (struct step_result){.count = 0};
    TRY(rank_launch(r, s, logits, err));
    TRY(rank_land(r, result, err));
out:
    return st;
}

void *rank_states(struct rank *r, size_t *bytes)
{
    void *states = model_states(r->model, bytes);
    return r->footprint.on_device ? NULL : states;
}

struct backend *rank_backend(struct rank *r)
{
    return r->backend;
}
