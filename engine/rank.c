/* DESIGN: a rank is a function from (its memory, a step) to ids and logprobs. The same rank_open
 * and rank_step run as a process here and as threads of one process in the tests. */
#include "engine/rank.h"

#include "config/slice.h"
#include "engine/group.h"
#include "engine/lifeline.h"
#include "engine/parallel/sampler.h"
#include "engine/populate.h"
#include "engine/rank_loop.h"
#include "engine/rank_state.h"
#include "engine/rendezvous.h"
#include "engine/replay.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { JOIN_S = 60 };

struct rank {
    struct footprint footprint;
    struct board_rank *board;
    struct backend *backend;
    struct comm *shared, *comm;     /* the same; between devices `shared` only helps to open comm */
    struct comm_stats shared_stats; /* in that case, told to nobody */
    struct kv_cache *kv;
    struct loaded weights;
    struct model *model;
    struct replay *replay;
    struct sampler *sampler;
    struct rank_state *state;
    void *owned[2]; /* weights and KV cache in device memory */
    bool scores;    /* computes logprobs: rank 0 answers for all */
    bool elects;    /* with the sampler distributed */
    /* what of a launched step is to come; step n is in [n % BACKEND_FLIGHTS] */
    struct {
        int32_t samples, stride;
    } flights[BACKEND_FLIGHTS];
    uint64_t launched, landed;
};

/* Ranks that take the place of others load the same model, or none. */
static enum status check_stamp(const struct options *o, const struct checkpoint *c, struct err *err)
{
    char mine[17];
    snprintf(mine, sizeof mine, "%016llx", (unsigned long long)checkpoint_stamp(c));
    if (o->weights_stamp && strcmp(o->weights_stamp, mine) != 0)
        return base_fail(err, ERR_MODEL,
                         "%.300s: the weights were written again since the server started; start "
                         "it again to serve them",
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
    if (strcmp(o->load_format, "dummy") == 0) {
        const struct synth_rules rules = layout_synth_rules(m, (uint64_t)o->seed);
        TRY(loader_fill_dummy(r->backend, &rules, l->weights, &r->weights, &r->board->load, err));
    } else {
        TRY(checkpoint_open(o->model, &c, err));
        TRY(check_stamp(o, c, err));
        TRY(checkpoint_check(c, l->weights, l->count, layout_ignored, layout_ignored_count, NULL,
                             err));
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
    snprintf(name, sizeof name, "%s:%d", o->device, rank / o->ranks_per_device);
    return backend_open(name, r->footprint.threads, &r->backend, err);
}

/* The arenas where the ops want them. */
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

static enum status open_comm(struct rank *r, const struct options *o, const struct layout *l,
                             const struct rank_memory *memory, struct err *err)
{
    struct comm_stats *stats = &r->board->comm;
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
        return comm_device_open(r->shared, r->backend, r->footprint.comm_bytes,
                                o->ranks_per_device > 1, stats, &r->comm, err);
    r->comm = r->shared;
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
    r->footprint = *f;
    r->board = memory->board;
    r->scores = l->rank == 0;
    r->elects = options_distributed(o);
    const struct kv_spec kv = footprint_kv(f, m, l);
    void *arenas[2];
    TRY(open_backend(r, o, l->rank, err));
    TRY(find_arenas(r, memory, l->arena_bytes, r->backend->ops->kv_bytes(&kv), arenas, err));
    TRY(load(r, o, m, l, arenas[0], err));
    TRY(rank_state_open(r->backend, &f->limits, &r->state, err));
    r->kv = r->backend->ops->kv_open(r->backend, &kv, arenas[1]);
    if (!r->kv) {
        st = base_fail(err, ERR_NOMEM, "rank: no memory for the KV cache's handle");
        goto out;
    }
    if (memory->loaded)
        TRY(memory->loaded(memory->loaded_ctx, err));
    TRY(open_comm(r, o, l, memory, err));
    const struct model_parts parts = {
        .config = m,
        .layout = l,
        .weights = &r->weights,
        .backend = r->backend,
        .comm = r->comm,
        .axis_stats = r->board->axis,
        .kv = r->kv,
        .rows_max = f->limits.rows,
        .samples_max = f->limits.slots,
        .progress = &r->board->progress,
    };
    TRY(model_open(&parts, &r->model, err));
    const struct replay_parts replay = {
        .backend = r->backend,
        .model = r->model,
        .board = r->board,
        .bootstrap = r->shared,
        .layers = m->layers,
        .rows_max = f->limits.slots < f->limits.rows ? f->limits.slots : f->limits.rows,
    };
    TRY(replay_open(f->on_device && !o->enforce_eager, &replay, &r->replay, err));
    TRY(sampler_open(options_distributed(o), r->backend, r->comm, model_parallel(r->model),
                     f->limits.slots, m->vocab, &r->sampler, err));
    *out = r;
    r = NULL;
out:
    rank_close(r);
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
    if (r->kv)
        r->backend->ops->kv_close(r->kv);
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
        .rows = {a->sample_slot, a->sample_next, a->target},
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

enum status rank_launch(struct rank *r, const struct step *s, struct cview *logits, struct err *err)
{
    enum status st = OK;
    struct backend *b = r->backend;
    struct rank_state *state = r->state;
    struct cview own, whole = {NULL, DTYPE_F32, 0, 0};
    const int32_t stride = r->scores && s->samples > 0 ? step_stride(s) : -1;
    const int32_t rows = replay_rows(r->replay, s->rows, s->samples), padding = rows - s->rows;
    const struct rank_arrays *a;
    TRY(rank_state_change(state, s, padding, &a, err));
    const struct sample_slots slots = rank_state_slots(state);
    const struct model_input in = {
        .rows = {rows, a->slot, a->position, a->table, state->limits.table_cols},
        .home_cut = rank_state_cut(state),
        .ids = a->ids,
        .samples = s->samples + padding,
        .sample = a->sample,
        .sample_host = state->host.sample,
    };
    b->ops->resolve(b, a->ids, a->token, &in.rows, &slots);
    TRY(replay_forward(r->replay, &in, &own, err));
    own.rows = s->samples; /* nobody draws from padding */
    if (s->samples > 0)
        TRY(sample(r, s, a, stride, own, &whole, err));
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
    return rank_state_land(r->state, flight, r->flights[flight].samples, r->flights[flight].stride,
                           result, err);
}

/* Elections ask the host in the middle of a step, which would keep the step before from landing. */
bool rank_flies(const struct rank *r)
{
    return r->footprint.on_device && !r->elects;
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

struct backend *rank_backend(struct rank *r)
{
    return r->backend;
}

/* ---- the process ---- */

/* Dies with its parent. The signal is set first; a parent that had died before shows as another
 * parent pid afterwards. */
static bool tie_to_parent(int32_t parent)
{
    return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == (pid_t)parent;
}

/* Ranks keep their cores busy for as long as there is work. What else runs there for a moment, the
 * front end above all, shall not wait for the end of a time slice: probes answer within 5 ms. */
enum { NICE = 10 };

/* Rank r keeps to cores [r * threads, (r + 1) * threads) of those allowed: two ranks that share a
 * core wait for each other in every collective. Left alone when there are too few cores. */
static void bind_cpus(const struct options *o)
{
    cpu_set_t allowed, mine;
    const int32_t first = o->rank * o->threads_per_rank, past = first + o->threads_per_rank;
    if (strcmp(o->cpu_bind, "auto") != 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0 ||
        CPU_COUNT(&allowed) < o->tp * o->threads_per_rank)
        return;
    CPU_ZERO(&mine);
    int32_t nth = 0;
    for (size_t cpu = 0; cpu < CPU_SETSIZE && nth < past; cpu++) {
        if (!CPU_ISSET(cpu, &allowed))
            continue;
        if (nth >= first)
            CPU_SET(cpu, &mine);
        nth++;
    }
    (void)sched_setaffinity(0, sizeof mine, &mine); /* refused: no worse than before */
}

/* fd -1: memory of this process's own, reserved before ready as the files are. */
static enum status map_file(int fd, size_t bytes, void **out, struct err *err)
{
    const int kind = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    if (bytes == 0)
        bytes = 1;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, kind, fd, 0);
    if (p == MAP_FAILED)
        return base_fail_errno(err, ERR_LIMIT, "mapping %zu bytes", bytes);
    (void)madvise(p, bytes, MADV_HUGEPAGE); /* where the system lets shared memory have them */
    *out = p;
    return OK;
}

static enum status map_board(const struct options *o, struct rank_memory *out, struct err *err)
{
    void *board = NULL;
    enum status st = map_file(o->remote ? -1 : GROUP_FD_BOARD, sizeof(struct board), &board, err);
    if (st == OK)
        out->board = &((struct board *)board)->rank[o->rank];
    return st;
}

static enum status map_memory(const struct options *o, const struct footprint *f,
                              struct rank_memory *out, struct err *err)
{
    enum status st = OK;
    const bool own = o->remote;
    if (!options_mpi(o))
        TRY(map_file(GROUP_FD_COMM, comm_shm_bytes(f->ranks, footprint_shared_bytes(f)), &out->comm,
                     err));
    if (!f->on_device) {
        const size_t weights = f->rank[o->rank].weights, kv = f->rank[o->rank].kv;
        TRY(map_file(own ? -1 : GROUP_FD_WEIGHTS, weights, &out->weights, err));
        TRY(map_file(own ? -1 : GROUP_FD_KV, kv, &out->kv, err));
    }
out:
    return st;
}

/* What a rank that is lost leaves in the weights' memory file is what was loaded, whatever it died
 * of: nobody can write there any more. */
static enum status seal_weights(const struct options *o, const struct footprint *f,
                                const struct rank_memory *memory, struct err *err)
{
    const size_t bytes = f->rank[o->rank].weights;
    if (!f->on_device && bytes > 0 && mprotect(memory->weights, bytes, PROT_READ) != 0)
        return base_fail_errno(err, ERR_LIMIT, "sealing %zu bytes of weights", bytes);
    return OK;
}

/* What steps will use and loading has not touched. */
static struct populate *populate(const struct options *o, const struct footprint *f,
                                 const struct rank_memory *memory)
{
    return populate_open(
        (struct populate_range){memory->kv, f->rank[o->rank].kv},
        (struct populate_range){memory->comm, comm_shm_bytes(f->ranks, footprint_shared_bytes(f))});
}

/* The sizes the front end decided, with this rank's parts worked out anew. */
static void footprint_of(const struct options *o, const struct model_config *m,
                         const struct layout *l, const struct backend_ops *ops, struct footprint *f)
{
    memset(f, 0, sizeof *f);
    f->on_device = o->on_device;
    f->ranks = o->tp;
    f->threads = o->threads_per_rank;
    f->dtype = options_dtype(o, m->dtype);
    f->kv_dtype = options_kv_dtype(o, m->dtype);
    f->max_model_len = o->max_model_len;
    f->limits.slots = o->max_num_seqs;
    f->limits.rows = o->max_num_batched_tokens;
    f->limits.vocab = m->vocab;
    f->limits.homes = flow_homes(l->flow);
    f->limits.home_rows = flow_home_rows(l->flow, f->limits.rows);
    f->limits.blocks = o->kv_blocks;
    f->limits.history_max = o->max_model_len;
    f->limits.table_cols = (o->max_model_len + BACKEND_BLOCK_TOKENS - 1) / BACKEND_BLOCK_TOKENS;
    f->comm_bytes = (size_t)o->comm_bytes;
    const struct kv_spec kv = footprint_kv(f, m, l);
    f->rank[l->rank].weights = l->arena_bytes;
    f->rank[l->rank].kv = ops->kv_bytes(&kv);
}

/* What a rank of several machines needs until it is ready. */
struct start {
    const struct options *o;
    const struct board_rank *board;
    struct lifeline *lifeline; /* NULL: the front end started this rank and can end it */
};

/* Once a rank has begun to start MPI, it and its peers must all go through that and end MPI again,
 * or the launcher takes it for a crash. So nobody begins before all have loaded and the front end
 * has told them to: until then any of them may simply go. */
static enum status await_word(void *ctx, struct err *err)
{
    enum status st = OK;
    const struct start *s = ctx;
    const struct step_result none = {0};
    const struct err no_text = {""};
    struct step_header go;
    size_t n = 0;
    lifeline_loaded(s->lifeline);
    TRY(rank_loop_report(s->o, s->board, err));
    TRY(rank_loop_answer(s->o, 1, 0, &none, OK, &no_text, err));
    TRY(link_receive(GROUP_FD_LINK, &go, sizeof go, &n, err));
    if (n != sizeof go || go.magic != STEP_MAGIC)
        st = base_fail(err, ERR_COMM, "the front end sent %zu bytes where it says go", n);
out:
    return st;
}

/* The plan file and config.json are read by every process; they may have changed meanwhile. */
static enum status check_plan(const struct options *o, const struct layout *l, struct err *err)
{
    char mine[17];
    snprintf(mine, sizeof mine, "%016llx", (unsigned long long)l->hash);
    if (o->plan_hash && strcmp(o->plan_hash, mine) != 0)
        return base_fail(err, ERR_USAGE,
                         "E21 rank %d read another plan or config.json than the server (hash %s, "
                         "the server's is %s); do not change them while it runs",
                         o->rank, mine, o->plan_hash);
    return OK;
}

/* As the ranks that the front end starts: signals that reach all processes are for the server. */
static void block_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

enum status rank_join(const struct options *o, int32_t rank, struct err *err)
{
    enum status st = OK;
    int link = -1, count = 0;
    char text[RENDEZVOUS_TEXT_MAX], parent[32], remote[] = "--remote";
    char *words[RENDEZVOUS_WORDS_MAX + 2];
    struct rendezvous_secret secret;
    struct rendezvous_address at;
    block_signals();
    TRY(rendezvous_secret(o->group_secret_file, &secret, err));
    st = rendezvous_address(o->master_addr, o->master_port, &at, err);
    if (st == OK)
        st = rendezvous_join(&at, &secret, rank, o->tp, JOIN_S, &link, err);
    explicit_bzero(&secret, sizeof secret);
    if (st != OK)
        return st;
    TRY(rendezvous_hear(link, text, words, &count, err));
    /* the last word counts: the parent is this process's own */
    (void)snprintf(parent, sizeof parent, "--parent-pid=%d", (int)getppid());
    words[count++] = parent;
    words[count++] = remote;
    words[count] = NULL;
    /* the flag stays where the two are one */
    if (dup2(link, GROUP_FD_LINK) == GROUP_FD_LINK && fcntl(GROUP_FD_LINK, F_SETFD, 0) == 0)
        execv("/proc/self/exe", words);
    st = base_fail_errno(err, ERR_INTERNAL, "becoming rank %d", rank);
out:
    return st;
}

int rank_main(const struct options *o)
{
    enum status st = OK;
    struct err err = {""}, ignored;
    const struct step_result none = {0};
    struct model_config m;
    struct plan *plan = NULL;
    struct layout *layout = NULL;
    struct rank *r = NULL;
    struct populate *touching = NULL;
    struct footprint f;
    struct rank_memory memory = {0};
    const struct backend_ops *ops = NULL;
    struct start start = {.o = o};
    if (!tie_to_parent(o->parent_pid))
        return base_exit_code(ERR_COMM);
    prctl(PR_SET_NAME, "tessera-rank");
    bind_cpus(o);
    setpriority(PRIO_PROCESS, 0, NICE);
    slice_request(0); /* the front end's turns are short */
    TRY(map_board(o, &memory, &err));
    start.board = memory.board;
    if (o->remote)
        TRY(lifeline_open(GROUP_FD_LINK, memory.board, &start.lifeline, &err));
    if (options_mpi(o)) {
        memory.loaded = await_word;
        memory.loaded_ctx = &start;
    }
    TRY(backend_table(o->device, &ops, &err));
    TRY(model_config_load(o->model, &m, NULL, &err));
    if (options_fp8(o))
        model_config_quantize(&m);
    TRY(plan_load(o->parallel_mode, o->mesh, o->plan_file, o->tp, &plan, &err));
    if (o->kv_placement)
        TRY(plan_set_placement(plan, o->kv_placement, &err));
    if (o->prefill_rows > 0)
        TRY(plan_set_prefill_rows(plan, o->prefill_rows, &err));
    TRY(layout_open(&m, plan, o->rank, options_dtype(o, m.dtype), ops, &layout, &err));
    TRY(check_plan(o, layout, &err));
    footprint_of(o, &m, layout, ops, &f);
    TRY(map_memory(o, &f, &memory, &err));
    TRY(rank_open(o, &m, layout, &f, &memory, &r, &err));
    TRY(seal_weights(o, &f, &memory, &err));
    TRY(rank_loop_answer(o, 1, 0, &none, OK, &err, &err));
    touching = populate(o, &f, &memory); /* ready does not wait for it */
    st = rank_loop(r, o, memory.board, &f.limits, &err);
out:
    lifeline_loaded(start.lifeline);
    if (!r && st != OK && st != ERR_CANCELLED) /* the front end is still waiting for an answer */
        st = rank_loop_answer(o, 1, 0, &none, st, &err, &ignored) == OK ? st : ERR_COMM;
    else if (st != OK && st != ERR_CANCELLED)
        base_log(LOG_ERROR, "rank %d: %s", o->rank, err.text);
    populate_close(touching);
    if (o->remote && st != OK) /* the launcher ends all when one fails; the reason comes first */
        (void)lifeline_closed(GROUP_FD_LINK, LIFELINE_LEAVE_S);
    rank_close(r);
    layout_close(layout);
    plan_close(plan);
    return base_exit_code(st);
}
