/* DESIGN: memory files are made here and inherited, so their content outlives a rank and no name
 * exists that could be left behind. Board and communicator are allocated at once, KV caches while
 * the ranks load: everything is reserved before ready, and a lack of memory is an error now and not
 * a SIGBUS later. Weights are written whole by the loading, which allocates them as it goes. */
#include "engine/group.h"

#include "engine/cores.h"
#include "engine/lifeline.h"
#include "engine/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HIGH_FD = 64, ARRIVAL_S = 60 };

/* pid 0: not started here. Its launcher watches it; only its link shows that it has ended. */
struct member {
    pid_t pid;
    int pidfd, link; /* link: of the links' */
    int weights, kv;
    bool reaped;
};

struct group {
    int32_t ranks;
    bool mpi;    /* ranks but 0 come from elsewhere */
    bool met;    /* by MPI: all are in it */
    bool ended;  /* killed: nobody leaves in good order */
    bool loaded; /* all weights are whole in the memory files, where nobody writes any more */
    bool kept;   /* they are from the ranks before */
    uint32_t epoch;
    struct member members[COMM_RANKS_MAX];
    int comm, board_fd;
    struct board *board;
    struct link_set *links;
};

/* Descriptors stay above the numbers the ranks find them at, so that dup2 never meets itself. */
static int high_fd(int fd)
{
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);
    if (fd >= 0 && high < 0 && errno == EINVAL)
        errno = EMFILE; /* the limit of open files is that low */
    if (fd >= 0)
        close(fd);
    return high;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static enum status memory_file(const char *name, size_t bytes, bool allocate, int *out,
                               struct err *err)
{
    int fd = high_fd(memfd_create(name, MFD_CLOEXEC));
    if (fd < 0)
        return base_fail_errno(err, ERR_LIMIT, "memory file for %s", name);
    int failed = ftruncate(fd, (off_t)(bytes > 0 ? bytes : 1));
    if (!failed && allocate && bytes > 0) {
        failed = posix_fallocate(fd, 0, (off_t)bytes);
        errno = failed;
    }
    if (failed) {
        const enum status st =
            base_fail_errno(err, ERR_LIMIT, "%zu bytes of memory for %s", bytes, name);
        close(fd);
        return st;
    }
    *out = fd;
    return OK;
}

static enum status make_comm(struct group *g, const struct footprint *f, struct err *err)
{
    const size_t region = comm_shm_bytes(g->ranks, footprint_shared_bytes(f));
    enum status st = memory_file("tessera-comm", region, true, &g->comm, err);
    if (st != OK)
        return st;
    void *shared = mmap(NULL, region, PROT_READ | PROT_WRITE, MAP_SHARED, g->comm, 0);
    if (shared == MAP_FAILED)
        return base_fail_errno(err, ERR_LIMIT, "mapping the communicator");
    comm_shm_init(shared, g->ranks, footprint_shared_bytes(f));
    munmap(shared, region);
    return OK;
}

static enum status make_shared(struct group *g, const struct footprint *f, struct err *err)
{
    enum status st = OK;
    TRY(memory_file("tessera-board", sizeof(struct board), true, &g->board_fd, err));
    void *board =
        mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED, g->board_fd, 0);
    if (board == MAP_FAILED)
        return base_fail_errno(err, ERR_LIMIT, "mapping the board");
    g->board = board;
    if (!g->mpi)
        TRY(make_comm(g, f, err));
    const int32_t holding = f->on_device ? 0 : g->mpi ? 1 : g->ranks; /* memory made here */
    for (int32_t r = 0; r < holding; r++) {
        struct member *m = &g->members[r];
        if (m->weights < 0)
            TRY(memory_file("tessera-weights", f->rank[r].weights, false, &m->weights, err));
        TRY(memory_file("tessera-kv", f->rank[r].kv, false, &m->kv, err));
    }
out:
    return st;
}

/* argv of a rank, as one block of text plus pointers into it. */
struct arguments {
    char text[RENDEZVOUS_TEXT_MAX];
    size_t used;
    char *argv[RENDEZVOUS_WORDS_MAX];
    int count;
};

static void add(struct arguments *a, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void add(struct arguments *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    CHECK(a->count + 1 < RENDEZVOUS_WORDS_MAX);
    a->argv[a->count++] = a->text + a->used;
    int n = vsnprintf(a->text + a->used, sizeof a->text - a->used, fmt, ap);
    va_end(ap);
    CHECK(n >= 0 && (size_t)n + 1 < sizeof a->text - a->used);
    a->used += (size_t)n + 1;
}

static void build_arguments(const struct options *o, const struct footprint *f, int32_t rank,
                            bool restarted, bool kept, struct arguments *a)
{
    add(a, "tessera");
    add(a, "rank");
    add(a, "%s", o->model);
    add(a, "--rank=%d", rank);
    add(a, "--parent-pid=%d", (int)getpid());
    add(a, "--tensor-parallel-size=%d", f->ranks);
    add(a, "--parallel-mode=%s", o->parallel_mode);
    add(a, "--plan-hash=%016llx", (unsigned long long)f->plan_hash);
    if (f->weights_stamp != 0 && !options_mpi(o)) /* copies on other machines have other times */
        add(a, "--weights-stamp=%016llx", (unsigned long long)f->weights_stamp);
    if (f->left_out != 0)
        add(a, "--left-out=%d", f->left_out);
    if (o->mesh)
        add(a, "--mesh=%s", o->mesh);
    if (o->plan_file)
        add(a, "--plan=%s", o->plan_file);
    if (o->lora)
        add(a, "--lora=%s", o->lora);
    if (o->kv_placement)
        add(a, "--kv-placement=%s", o->kv_placement);
    if (f->limits.columns > 0)
        add(a, "--runner=pooling");
    add(a, "--prefill-rows=%d", o->prefill_rows);
    if (options_mpi(o))
        add(a, "--comm=mpi");
    add(a, "--log-format=%s", o->log_format);
    add(a, "--log-level=%s", o->log_level);
    add(a, "--device=%s", o->device);
    add(a, "--cpu-bind=%s", o->cpu_bind ? o->cpu_bind : "none");
    if (o->cpu_list)
        add(a, "--cpu-list=%s", o->cpu_list);
    add(a, "--ranks-per-device=%d", o->ranks_per_device);
    if (o->enforce_eager)
        add(a, "--enforce-eager");
    if (o->deterministic)
        add(a, "--deterministic");
    if (o->disable_custom_all_reduce)
        add(a, "--disable-custom-all-reduce");
    add(a, "--dtype=%s", o->dtype);
    add(a, "--kv-cache-dtype=%s", o->kv_cache_dtype ? o->kv_cache_dtype : "auto");
    add(a, "--quantization=%s", o->quantization ? o->quantization : "auto");
    add(a, "--load-format=%s", o->load_format);
    add(a, "--sampler=%s", options_distributed(o) ? "distributed" : "gather");
    add(a, "--seed=%lld", (long long)o->seed);
    add(a, "--threads-per-rank=%d", f->threads);
    add(a, "--max-model-len=%d", f->max_model_len);
    add(a, "--max-num-seqs=%d", f->limits.slots);
    if (o->speculative_config)
        add(a, "--speculative-config=%s", o->speculative_config);
    add(a, "--max-num-batched-tokens=%d", f->limits.rows);
    add(a, "--kv-blocks=%d", f->limits.blocks);
    add(a, "--kept-states=%d", f->limits.states);
    add(a, "--kv-layers=%d", f->limits.groups.slide > 0 ? f->limits.groups.layers : 0);
    add(a, "--kv-keep-layers=%d", f->limits.groups.keep_layers);
    add(a, "--comm-bytes=%zu", f->comm_bytes);
    if (f->on_device)
        add(a, "--on-device");
    if (restarted)
        add(a, "--restarted");
    if (kept)
        add(a, "--weights-kept");
}

static enum status start(struct group *g, const struct options *o, const struct footprint *f,
                         int32_t rank, int link, struct err *err)
{
    extern char **environ;
    struct member *m = &g->members[rank];
    const int from[] = {link, g->comm, m->weights, m->kv, g->board_fd};
    struct arguments a = {.used = 0};
    posix_spawn_file_actions_t actions;
    build_arguments(o, f, rank, g->epoch > 1, g->kept, &a);
    int failed = posix_spawn_file_actions_init(&actions);
    if (failed)
        return base_fail(err, ERR_NOMEM, "starting rank %d: %s", rank, strerror(failed));
    for (size_t i = 0; i < ARRAY_LEN(from) && !failed; i++)
        if (from[i] >= 0) /* no memory files for what lies on a device or another machine */
            failed = posix_spawn_file_actions_adddup2(&actions, from[i], GROUP_FD_LINK + (int)i);
    /* It inherits the server's blocked signals: one that is meant for the server but reaches the
     * whole process group (Ctrl-C, timeout) must not end a rank while requests run. */
    if (!failed)
        failed = posix_spawn(&m->pid, "/proc/self/exe", &actions, NULL, a.argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) {
        m->pid = 0;
        return base_fail_start(err, failed, "starting rank %d", rank);
    }
    m->pidfd = (int)syscall(SYS_pidfd_open, m->pid, 0);
    if (m->pidfd < 0)
        return base_fail_errno(err, ERR_DEVICE, "watching rank %d (pidfd_open, Linux 5.3)", rank);
    return OK;
}

/* With the link in our hands. */
static enum status start_local(struct group *g, const struct options *o, const struct footprint *f,
                               int32_t rank, int *link, struct err *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return base_fail_errno(err, ERR_LIMIT, "link to rank %d", rank);
    *link = high_fd(pair[0]);
    int theirs = high_fd(pair[1]);
    enum status st = *link < 0 || theirs < 0
                         ? base_fail_errno(err, ERR_LIMIT, "link to rank %d", rank)
                         : start(g, o, f, rank, theirs, err);
    close_fd(&theirs);
    return st;
}

static enum status start_remote(const struct options *o, const struct footprint *f, int32_t rank,
                                int link, struct err *err)
{
    struct arguments a = {.used = 0};
    build_arguments(o, f, rank, false, false, &a);
    return rendezvous_tell(link, a.text, a.used, err);
}

/* links[1 ..] = connections to the ranks that the launcher started elsewhere. */
static enum status await_ranks(const struct options *o, int32_t ranks, link_patience *tick,
                               void *ctx, int *links, struct err *err)
{
    enum status st = OK;
    struct rendezvous_secret secret = {{0, 0}};
    struct rendezvous_address at;
    int listener = -1;
    if (ranks == 1)
        return OK;
    TRY(rendezvous_secret(o->group_secret_file, &secret, err));
    TRY(rendezvous_address(o->master_addr, o->master_port, &at, err));
    TRY(rendezvous_listen(&at, &listener, err));
    base_log(LOG_INFO, "waiting for %d rank%s at %s:%d (by %s)", ranks - 1, ranks == 2 ? "" : "s",
             at.host, at.port, at.said_by);
    TRY(rendezvous_accept(listener, &secret, ranks, ARRIVAL_S, tick, ctx, links, err));
out:
    explicit_bzero(&secret, sizeof secret);
    if (listener >= 0)
        close(listener);
    return st;
}

/* After the start of the ranks, so that they load meanwhile. Memory is of the node whose processor
 * asks for it first, so each cache is asked for by those of its rank. */
static enum status reserve_kv(const struct group *g, const struct options *o,
                              const struct footprint *f, struct err *err)
{
    enum status st = OK;
    struct cores_plan plan;
    cpu_set_t own;
    const bool moves = cores_of(o, f->threads, &plan) && plan.nodes > 1 &&
                       sched_getaffinity(0, sizeof own, &own) == 0;
    for (int32_t r = 0; r < g->ranks && st == OK; r++) {
        const size_t bytes = f->rank[r].kv;
        if (bytes == 0 || g->members[r].kv < 0)
            continue;
        if (moves)
            (void)sched_setaffinity(0, sizeof plan.rank[r], &plan.rank[r]);
        const int failed = posix_fallocate(g->members[r].kv, 0, (off_t)bytes);
        if (failed)
            st = base_fail(err, ERR_LIMIT, "%zu bytes of memory for the KV cache of rank %d: %s",
                           bytes, r, strerror(failed));
    }
    if (moves)
        (void)sched_setaffinity(0, sizeof own, &own);
    return st;
}

void group_kill(struct group *g)
{
    g->ended = true;
    for (int32_t r = 0; r < g->ranks; r++) {
        struct member *m = &g->members[r];
        if (m->pidfd >= 0) /* by pidfd: never the wrong process */
            syscall(SYS_pidfd_send_signal, m->pidfd, SIGKILL, NULL, 0);
    }
}

/* MPI ends collectively: a rank that is killed meanwhile would look like a crash to the launcher,
 * which then ends the others. */
static void await_leave(const struct group *g)
{
    struct pollfd p = {.fd = g->members[0].pidfd, .events = POLLIN};
    if (poll(&p, 1, LIFELINE_LEAVE_S * 1000) == 0)
        base_log(LOG_ERROR, "rank 0 did not leave MPI within %d s: killed", (int)LIFELINE_LEAVE_S);
}

/* Ends all processes and frees what they share. */
static void end_ranks(struct group *g)
{
    link_close(g->links); /* they leave when their link closes */
    g->links = NULL;
    if (g->met && !g->ended)
        await_leave(g);
    group_kill(g);
    for (int32_t r = 0; r < g->ranks; r++) {
        struct member *m = &g->members[r];
        if (m->pid > 0 && !m->reaped) {
            kill(m->pid, SIGKILL);
            waitpid(m->pid, NULL, 0);
        }
        close_fd(&m->pidfd);
        m->pid = 0;
        m->link = -1;
        m->reaped = false;
    }
    if (g->board)
        munmap(g->board, sizeof *g->board);
    g->board = NULL;
    close_fd(&g->comm);
    close_fd(&g->board_fd);
}

/* Memory files that are there already are used. */
static enum status start_all(struct group *g, const struct options *o, const struct footprint *f,
                             link_patience *tick, void *ctx, struct err *err)
{
    enum status st = OK;
    int mine[COMM_RANKS_MAX];
    for (int32_t r = 0; r < g->ranks; r++)
        mine[r] = -1;
    TRY(make_shared(g, f, err));
    if (g->mpi)
        TRY(await_ranks(o, g->ranks, tick, ctx, mine, err));
    for (int32_t r = 0; r < g->ranks; r++)
        TRY(mine[r] >= 0 ? start_remote(o, f, r, mine[r], err)
                         : start_local(g, o, f, r, &mine[r], err));
    TRY(reserve_kv(g, o, f, err));
    TRY(link_open(mine, g->ranks, f->limits.samples, f->limits.columns, &g->links, err));
    for (int32_t r = 0; r < g->ranks; r++) {
        g->members[r].link = mine[r];
        if (g->members[r].pid == 0)
            link_hear(g->links, r, &g->board->rank[r]);
    }
    return OK;
out:
    for (int32_t r = 0; r < g->ranks; r++)
        if (mine[r] >= 0)
            close(mine[r]);
    return st;
}

enum status group_open(const struct options *o, const struct footprint *f, link_patience *tick,
                       void *ctx, struct group **out, struct err *err)
{
    enum status st = OK;
    struct group *g = calloc(1, sizeof *g);
    if (!g)
        return base_fail(err, ERR_NOMEM, "group: no memory");
    g->ranks = f->ranks;
    g->mpi = options_mpi(o);
    g->epoch = 1;
    g->comm = g->board_fd = -1;
    for (int32_t r = 0; r < g->ranks; r++)
        g->members[r] = (struct member){.pidfd = -1, .link = -1, .weights = -1, .kv = -1};
    TRY(start_all(g, o, f, tick, ctx, err));
    *out = g;
    g = NULL;
out:
    group_close(g);
    return st;
}

enum status group_reopen(const struct options *o, const struct footprint *f, bool keep_weights,
                         struct group *g, struct err *err)
{
    end_ranks(g);
    g->kept = keep_weights && g->loaded && !f->on_device;
    g->loaded = g->kept; /* ranks that find them there do not write, whatever becomes of them */
    g->ended = false;
    for (int32_t r = 0; r < g->ranks; r++)
        close_fd(&g->members[r].kv);
    for (int32_t r = 0; r < g->ranks && !g->kept; r++)
        close_fd(&g->members[r].weights);
    g->epoch++;
    return start_all(g, o, f, NULL, NULL, err);
}

bool group_has_weights(const struct group *g)
{
    return g->kept;
}

void group_close(struct group *g)
{
    if (!g)
        return;
    end_ranks(g);
    for (int32_t r = 0; r < g->ranks; r++) {
        close_fd(&g->members[r].weights);
        close_fd(&g->members[r].kv);
    }
    free(g);
}

struct link_set *group_links(struct group *g)
{
    return g->links;
}

const struct board *group_board(const struct group *g)
{
    return g->board;
}

uint32_t group_epoch(const struct group *g)
{
    return g->epoch;
}

void group_poll(const struct group *g, int32_t rank, struct pollfd *out)
{
    const struct member *m = &g->members[rank];
    *out = m->pid > 0 ? (struct pollfd){.fd = m->pidfd, .events = POLLIN}
                      : (struct pollfd){.fd = m->link, .events = POLLRDHUP};
}

enum status group_check(struct group *g, int wait_ms, struct err *err)
{
    struct pollfd polls[COMM_RANKS_MAX];
    for (int32_t r = 0; r < g->ranks; r++)
        group_poll(g, r, &polls[r]);
    poll(polls, (nfds_t)g->ranks, wait_ms);
    for (int32_t r = 0; r < g->ranks; r++) {
        struct member *m = &g->members[r];
        siginfo_t info = {0};
        if (m->pid == 0 && polls[r].revents)
            return base_fail(err, ERR_COMM, "rank %d is gone: its link is closed", r);
        if (m->pid == 0 || m->reaped ||
            waitid(P_PID, (id_t)m->pid, &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0)
            continue;
        m->reaped = true;
        if (info.si_code == CLD_EXITED)
            return base_fail(err, ERR_COMM, "rank %d (pid %d) ended with exit code %d", r,
                             (int)m->pid, info.si_status);
        return base_fail(err, ERR_COMM, "rank %d (pid %d) was killed by signal %d (%s)%s", r,
                         (int)m->pid, info.si_status, strsignal(info.si_status),
                         info.si_status == SIGKILL
                             ? ", often sent by the kernel when memory is short (dmesg tells)"
                             : "");
    }
    return OK;
}

/* A rank that starts MPI can only leave when it has: a wish to stop waits for that. */
struct meeting {
    link_patience *tick;
    void *ctx;
    double until; /* 0: nobody wants to stop */
};

static enum status while_meeting(void *ctx, struct err *err)
{
    struct meeting *m = ctx;
    if (m->until > 0)
        return base_now() < m->until ? OK : base_fail(err, ERR_COMM, "MPI does not start");
    const enum status st = m->tick(m->ctx, err);
    if (st != ERR_CANCELLED)
        return st;
    m->until = base_now() + LIFELINE_LEAVE_S;
    return OK;
}

/* All ranks have loaded: tells them to start MPI together, and waits until they have. */
static enum status meet(struct group *g, link_patience *tick, void *ctx, struct err *err)
{
    static const struct step_header go = {
        .magic = STEP_MAGIC, .version = STEP_VERSION, .bytes = sizeof go};
    struct link_answer answers[COMM_RANKS_MAX];
    struct meeting m = {tick, ctx, 0};
    const enum status st = link_exchange(g->links, &go, sizeof go, while_meeting, &m, answers, err);
    g->met = st == OK;
    return st == OK && m.until > 0 ? base_fail(err, ERR_CANCELLED, "stopped while MPI started")
                                   : st;
}

enum status group_wait_ready(struct group *g, link_patience *tick, void *ctx, struct err *err)
{
    struct link_answer answers[COMM_RANKS_MAX];
    struct err cause;
    enum status st = link_exchange(g->links, NULL, 0, tick, ctx, answers, err);
    if (st == OK && g->mpi)
        st = meet(g, tick, ctx, err);
    if (st == ERR_COMM && group_check(g, 100, &cause) != OK)
        *err = cause; /* says more than a closed link */
    g->loaded = g->loaded || st == OK;
    return st;
}
