/* DESIGN: the process `tessera rank`. It maps the memory that the front end made, works out the
 * same layout from the same files, opens the rank, says that it is ready and runs the loop. A rank
 * on another machine finds the front end first (rank_join) and maps memory of its own. */
#include "engine/rank.h"

#include "config/slice.h"
#include "engine/cores.h"
#include "engine/group.h"
#include "engine/lifeline.h"
#include "engine/populate.h"
#include "engine/rank_loop.h"
#include "engine/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { JOIN_S = 60 }; /* for the front end to listen */
enum { WRITABLE = PROT_READ | PROT_WRITE };

/* The process dies with its parent. The signal is set first, so a parent that died before that
 * shows as another parent pid now. */
static bool tie_to_parent(int32_t parent)
{
    return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == (pid_t)parent;
}

/* Ranks keep their cores busy while there is work. The front end, which runs there for moments
 * only, must not wait for the end of a rank's time slice: so probes answer within 5 ms. */
enum { NICE = 10 };

/* Two ranks that share a core would wait for each other in every collective. */
static void bind_cpus(const struct options *o)
{
    struct cores_plan plan;
    if (cores_of(o, o->threads_per_rank, &plan)) /* refused: no worse than before */
        (void)sched_setaffinity(0, sizeof plan.rank[o->rank], &plan.rank[o->rank]);
}

/* fd -1: memory of this process's own, reserved before ready as the files are. */
static enum status map_file(int fd, size_t bytes, int access, void **out, struct err *err)
{
    const int kind = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    if (bytes == 0)
        bytes = 1;
    void *p = mmap(NULL, bytes, access, kind, fd, 0);
    if (p == MAP_FAILED)
        return base_fail_errno(err, ERR_LIMIT, "mapping %zu bytes", bytes);
    (void)madvise(p, bytes, MADV_HUGEPAGE); /* where the system lets shared memory have them */
    /* after the advice, which is for pages to come; EINVAL: a kernel that does not know it */
    if (fd < 0 && madvise(p, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
        enum status st = base_fail_errno(err, ERR_LIMIT, "reserving %zu bytes", bytes);
        munmap(p, bytes);
        return st;
    }
    *out = p;
    return OK;
}

static enum status map_board(const struct options *o, struct rank_memory *out, struct err *err)
{
    void *board = NULL;
    enum status st =
        map_file(o->remote ? -1 : GROUP_FD_BOARD, sizeof(struct board), WRITABLE, &board, err);
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
        TRY(map_file(GROUP_FD_COMM, comm_shm_bytes(f->ranks, footprint_shared_bytes(f)), WRITABLE,
                     &out->comm, err));
    if (!f->on_device) {
        const size_t weights = f->rank[o->rank].weights, kv = f->rank[o->rank].kv;
        const int access = o->weights_kept ? PROT_READ : WRITABLE; /* others rely on what is kept */
        TRY(map_file(own ? -1 : GROUP_FD_WEIGHTS, weights, access, &out->weights, err));
        TRY(map_file(own ? -1 : GROUP_FD_KV, kv, WRITABLE, &out->kv, err));
    }
out:
    return st;
}

/* Nobody can write to loaded weights any more. So those that a lost rank leaves in their memory
 * file are good, whatever it died of. */
static enum status seal_weights(const struct options *o, const struct footprint *f,
                                const struct rank_memory *memory, struct err *err)
{
    const size_t bytes = f->rank[o->rank].weights;
    if (!f->on_device && bytes > 0 && mprotect(memory->weights, bytes, PROT_READ) != 0)
        return base_fail_errno(err, ERR_LIMIT, "sealing %zu bytes of weights", bytes);
    return OK;
}

/* Touches the memory that steps will use and loading has not. */
static struct populate *populate(const struct options *o, const struct footprint *f,
                                 const struct rank_memory *memory, struct rank *r)
{
    struct populate_range states;
    states.begin = rank_states(r, &states.bytes);
    return populate_open(
        (struct populate_range){memory->kv, f->rank[o->rank].kv},
        (struct populate_range){memory->comm, comm_shm_bytes(f->ranks, footprint_shared_bytes(f))},
        states);
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
    f->limits.samples = footprint_samples(o, f->limits.slots);
    f->limits.rows = o->max_num_batched_tokens;
    f->limits.vocab = m->vocab;
    f->limits.columns = m->pooling ? m->hidden : 0;
    f->limits.homes = flow_homes(l->flow);
    f->limits.home_rows = flow_home_rows(l->flow, f->limits.rows);
    f->limits.blocks = o->kv_blocks;
    f->limits.recurs = model_config_recurring(m) > 0;
    f->limits.states = o->kept_states;
    f->limits.groups = kv_groups_of(m, o->kv_layers, o->kv_keep_layers);
    f->limits.history_max = o->max_model_len;
    f->limits.table_cols = kv_blocks_for(o->max_model_len);
    f->comm_bytes = (size_t)o->comm_bytes;
    const struct kv_spec kv = footprint_kv(f, m, l->flow, l->rank, 0);
    f->rank[l->rank].weights = l->arena_bytes;
    f->rank[l->rank].kv = ops->kv_bytes(&kv);
}

/* What a rank of several machines needs until it is ready. */
struct start {
    const struct options *o;
    const struct board_rank *board;
    struct lifeline *lifeline; /* NULL: the front end started this rank and can end it */
};

/* Once a rank has begun to start MPI, all ranks must start and end it, or the launcher takes it for
 * a crash. So none begins before all have loaded and the front end sends its word; until then each
 * may simply exit. */
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
static enum status check_plan(const struct options *o, const struct flow *flow, struct err *err)
{
    char mine[17];
    snprintf(mine, sizeof mine, "%016llx", (unsigned long long)flow->hash);
    if (o->plan_hash && strcmp(o->plan_hash, mine) != 0)
        return base_fail(err, ERR_USAGE,
                         "E21 rank %d read another plan or config.json than the server (hash %s, "
                         "the server's is %s); do not change them while it runs",
                         o->rank, mine, o->plan_hash);
    return OK;
}

/* Model, flow and layout of this rank, from the files and options of the front end. The caller
 * closes *layout and *flow, also after a failure. */
static enum status read_layout(const struct options *o, const struct backend_ops *ops,
                               struct model_config *m, struct flow **flow, struct layout **layout,
                               struct err *err)
{
    enum status st = OK;
    struct plan *plan = NULL;
    TRY(model_config_load(o->model, m, NULL, err));
    TRY(model_config_quantize(m, options_quantization(o), options_widen(o), err));
    m->quant.left_out = o->left_out;
    if (strcmp(o->runner, "pooling") == 0)
        model_config_pool(m);
    TRY(plan_load(o->parallel_mode, o->mesh, o->plan_file, o->tp, &plan, err));
    if (o->kv_placement)
        TRY(plan_set_placement(plan, o->kv_placement, err));
    if (o->prefill_rows > 0)
        TRY(plan_set_prefill_rows(plan, o->prefill_rows, err));
    TRY(layout_flow(m, plan, options_dtype(o, m->dtype), ops, flow, err));
    TRY(check_plan(o, *flow, err));
    TRY(layout_open(m, *flow, o->rank, layout, err));
out:
    plan_close(plan);
    return st;
}

/* Signals that reach all processes of a job are for the server; ranks that the front end starts
 * have them blocked, too. */
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
    struct flow *flow = NULL;
    struct layout *layout = NULL;
    struct rank *r = NULL;
    struct populate *touching = NULL;
    struct footprint f;
    struct rank_memory memory = {0};
    const struct backend_ops *ops = NULL;
    struct start start = {.o = o};
    bool ready = false; /* and the front end knows it */
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
    TRY(backend_table(options_backend(o), &ops, &err));
    TRY(read_layout(o, ops, &m, &flow, &layout, &err));
    footprint_of(o, &m, layout, ops, &f);
    TRY(map_memory(o, &f, &memory, &err));
    TRY(rank_open(o, &m, layout, &f, &memory, &r, &err));
    TRY(seal_weights(o, &f, &memory, &err));
    TRY(rank_loop_answer(o, 1, 0, &none, OK, &err, &err));
    ready = true;
    touching = populate(o, &f, &memory, r); /* ready does not wait for it */
    st = rank_loop(r, o, memory.board, &f.limits, &err);
out:
    lifeline_loaded(start.lifeline);
    /* not ready: the front end is still waiting for an answer */
    if (!ready && st != OK && st != ERR_CANCELLED)
        st = rank_loop_answer(o, 1, 0, &none, st, &err, &ignored) == OK ? st : ERR_COMM;
    else if (st != OK && st != ERR_CANCELLED)
        base_log(LOG_ERROR, "rank %d: %s", o->rank, err.text);
    populate_close(touching);
    if (o->remote && st != OK) /* the launcher ends all when one fails; the reason comes first */
        (void)lifeline_closed(GROUP_FD_LINK, LIFELINE_LEAVE_S);
    rank_close(r);
    layout_close(layout);
    flow_close(flow);
    return base_exit_code(st);
}
