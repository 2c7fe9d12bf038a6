/* DESIGN: point-to-point messages only, because MPI_Allreduce may add in any order. A rank receives
 * the addends it needs from each peer and sums them with the backend's sum_tree, as shared memory
 * does: the same bits, and the same bytes counted. Sums go in rounds of COMM_ONESHOT_MAX_BYTES, so
 * that the room for addends is bounded whatever the size of a collective.
 * Messages of one pair arrive in order, so all carry one kind of tag, a digest of the call: a rank
 * whose peer is in another call reads that from the tag instead of computing with its bytes.
 * Sends are over when a collective returns; that is more than the reuse rule of comm.h asks. */
#include "engine/comm/comm_mpi.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUND ((size_t)COMM_ONESHOT_MAX_BYTES / 4) /* elements of a peer summed at once */
#define TAG_MASK 0x7fff                            /* every MPI has tags up to 32767 */
#define POLLS_BEFORE_YIELD 16                      /* ranks may share a core */

/* What the communicators of a rank share. */
struct home {
    struct backend *backend;
    char *arena;
    size_t arena_bytes, arena_used;
    float *addends; /* [ranks][ROUND] */
    int32_t groups; /* split communicators made so far */
    _Atomic bool aborted;
};

struct comm_mpi {
    struct comm base;
    struct home *home;
    MPI_Comm handle;
    bool top;
};

/* Messages that are on their way in one collective. */
struct flight {
    struct comm_mpi *comm;
    enum comm_op op;
    int tag, count;
    MPI_Request request[2 * COMM_RANKS_MAX];
    MPI_Status status[2 * COMM_RANKS_MAX];
    struct {
        int32_t peer; /* -1: a send */
        int elements;
        MPI_Datatype type;
    } what[2 * COMM_RANKS_MAX];
    int failed;   /* the first MPI error code */
    bool aborted; /* before the call: nothing is sent any more */
};

static struct comm_mpi *mpi_of(struct comm *c)
{
    return (struct comm_mpi *)c;
}

/* ---- messages ---- */

/* n and check: equal on all ranks, or the ranks have diverged. */
static void begin(struct flight *f, struct comm *c, enum comm_op op, uint64_t n, uint64_t check)
{
    const uint64_t call[] = {(uint64_t)op, n, check};
    const uint64_t digest = base_hash(BASE_HASH_INIT, call, sizeof call);
    f->comm = mpi_of(c);
    f->op = op;
    f->tag = (int)((digest ^ digest >> 15 ^ digest >> 30 ^ digest >> 45) & TAG_MASK);
    f->count = 0;
    f->failed = MPI_SUCCESS;
    f->aborted = atomic_load(&f->comm->home->aborted);
    f->comm->home->backend->ops->sync(f->comm->home->backend); /* sources must be in memory */
}

static int next(struct flight *f, int32_t peer, size_t n, MPI_Datatype type)
{
    CHECK(f->count < 2 * COMM_RANKS_MAX);
    CHECK(n <= INT32_MAX);
    f->what[f->count].peer = peer;
    f->what[f->count].elements = (int)n;
    f->what[f->count].type = type;
    return f->count++;
}

static bool good(struct flight *f, int result)
{
    if (f->failed == MPI_SUCCESS)
        f->failed = result;
    return result == MPI_SUCCESS;
}

static void note(struct flight *f, int result)
{
    if (!good(f, result))
        f->count--; /* there is no request */
}

static void post_send(struct flight *f, int32_t peer, const void *src, size_t n)
{
    if (f->aborted)
        return;
    const int i = next(f, -1, n, MPI_INT32_T);
    note(f, MPI_Isend(src, (int)n, MPI_INT32_T, peer, f->tag, f->comm->handle, &f->request[i]));
}

/* n elements, or one of a strided type that holds as many. */
static void post_receive(struct flight *f, int32_t peer, void *dst, size_t n, MPI_Datatype type)
{
    if (f->aborted)
        return;
    const int i = next(f, peer, n, type);
    note(f, MPI_Irecv(dst, type == MPI_INT32_T ? (int)n : 1, type, peer, MPI_ANY_TAG,
                      f->comm->handle, &f->request[i]));
}

static enum status lost(struct flight *f, const char *why, struct err *err)
{
    atomic_store(&f->comm->home->aborted, true);
    return base_fail(err, ERR_COMM, "group %s: rank %d: %s: %s", f->comm->base.stats->group,
                     (int)f->comm->base.rank, comm_op_name(f->op), why);
}

static enum status diverged(struct flight *f, int32_t peer, struct err *err)
{
    char why[64];
    (void)snprintf(why, sizeof why, "ranks have diverged: rank %d is in another call", (int)peer);
    return lost(f, why, err);
}

static enum status check_received(struct flight *f, int i, struct err *err)
{
    int got = 0;
    if (f->what[i].peer < 0)
        return OK;
    MPI_Get_elements(&f->status[i], f->what[i].type, &got);
    if (f->status[i].MPI_TAG != f->tag || got != f->what[i].elements)
        return diverged(f, f->what[i].peer, err);
    return OK;
}

/* Until all messages have come and gone, the group is lost, or somebody gave up. */
static enum status land(struct flight *f, struct err *err)
{
    enum status st = OK;
    int done = 0;
    for (int polls = 1; !done && f->failed == MPI_SUCCESS; polls++) {
        if (atomic_load_explicit(&f->comm->home->aborted, memory_order_relaxed))
            return lost(f, "aborted", err);
        f->failed = MPI_Testall(f->count, f->request, &done, f->status);
        if (!done && polls % POLLS_BEFORE_YIELD == 0)
            sched_yield();
    }
    for (int i = 0; f->failed == MPI_ERR_IN_STATUS && i < f->count; i++)
        if (f->status[i].MPI_ERROR == MPI_ERR_TRUNCATE)
            return diverged(f, f->what[i].peer, err);
    if (f->failed != MPI_SUCCESS) {
        char text[MPI_MAX_ERROR_STRING];
        int length = 0;
        MPI_Error_string(f->failed, text, &length);
        return lost(f, text, err);
    }
    for (int i = 0; i < f->count && st == OK; i++)
        st = check_received(f, i, err);
    f->count = 0;
    return st;
}

/* ---- pieces of collectives ---- */

/* A run of elements for or from each rank. */
struct blocks {
    size_t begin[COMM_RANKS_MAX], count[COMM_RANKS_MAX];
};

/* Blocks of these counts, one after the other; returns the sum. */
static size_t lay_out(struct blocks *b, const size_t *counts, int32_t ranks)
{
    size_t at = 0;
    for (int32_t r = 0; r < ranks; r++) {
        b->begin[r] = at;
        b->count[r] = counts[r];
        at += counts[r];
    }
    return at;
}

static size_t round_of(size_t count, size_t done)
{
    return count <= done ? 0 : count - done < ROUND ? count - done : ROUND;
}

/* Each rank r gets the sum of block r over all ranks; dst holds this rank's. */
static enum status sum_blocks(struct flight *f, float *dst, const float *src,
                              const struct blocks *b, struct err *err)
{
    enum status st = OK;
    const struct comm *c = &f->comm->base;
    struct home *h = f->comm->home;
    const size_t begin_own = b->begin[c->rank];
    size_t longest = 0;
    for (int32_t r = 0; r < c->ranks; r++)
        longest = b->count[r] > longest ? b->count[r] : longest;
    for (size_t done = 0; done < longest; done += ROUND) {
        const float *addends[COMM_RANKS_MAX];
        const size_t own = round_of(b->count[c->rank], done);
        for (int32_t r = 0; r < c->ranks; r++) {
            float *room = h->addends + (size_t)r * ROUND;
            addends[r] = r == c->rank ? src + begin_own + done : room;
            if (r != c->rank && own > 0)
                post_receive(f, r, room, own, MPI_INT32_T);
        }
        for (int32_t r = 0; r < c->ranks; r++)
            if (r != c->rank && round_of(b->count[r], done) > 0)
                post_send(f, r, src + b->begin[r] + done, round_of(b->count[r], done));
        TRY(land(f, err));
        if (own > 0)
            h->backend->ops->sum_tree(h->backend, dst + done, addends, c->ranks, own);
        h->backend->ops->sync(h->backend);
    }
out:
    return st;
}

/* Block r of `to` goes to rank r, block r of `from` comes from it. Empty ones travel too: whoever
 * returns has heard from all. */
static enum status exchange(struct flight *f, void *dst, const struct blocks *from, const void *src,
                            const struct blocks *to, struct err *err)
{
    const struct comm *c = &f->comm->base;
    char *in = dst;
    const char *out = src;
    for (int32_t r = 0; r < c->ranks; r++)
        if (r != c->rank)
            post_receive(f, r, in + from->begin[r] * 4, from->count[r], MPI_INT32_T);
    for (int32_t r = 0; r < c->ranks; r++)
        if (r != c->rank)
            post_send(f, r, out + to->begin[r] * 4, to->count[r]);
    const size_t own = from->count[c->rank];
    if (own > 0 && to->count[c->rank] == own &&
        in + from->begin[c->rank] * 4 != out + to->begin[c->rank] * 4)
        memcpy(in + from->begin[c->rank] * 4, out + to->begin[c->rank] * 4, own * 4);
    return land(f, err);
}

/* ---- collectives ---- */

/* Balanced blocks of n elements. */
static void balance(struct blocks *b, size_t n, int32_t ranks)
{
    for (int32_t r = 0; r < ranks; r++) {
        b->begin[r] = comm_block_begin(n, ranks, r);
        b->count[r] = comm_block_begin(n, ranks, r + 1) - b->begin[r];
    }
}

/* One-shot: every rank sums everything. Two-shot: its own block, which then goes to all. */
static enum status mpi_all_reduce(struct comm *c, float *dst, const float *src, size_t n,
                                  struct err *err)
{
    enum status st = OK;
    struct flight f;
    struct blocks all, own;
    const int64_t start = base_now_ns();
    const size_t peers = (size_t)c->ranks - 1;
    size_t received = peers * n;
    begin(&f, c, COMM_ALL_REDUCE, n, 0);
    if (peers <= 1 || n * 4 <= COMM_ONESHOT_MAX_BYTES) {
        for (int32_t r = 0; r < c->ranks; r++) {
            all.begin[r] = 0;
            all.count[r] = n;
        }
        TRY(sum_blocks(&f, dst, src, &all, err));
    } else {
        balance(&all, n, c->ranks);
        for (int32_t r = 0; r < c->ranks; r++) {
            own.begin[r] = all.begin[c->rank];
            own.count[r] = all.count[c->rank];
        }
        received = peers * own.count[0] + (n - own.count[0]);
        TRY(sum_blocks(&f, dst + own.begin[0], src, &all, err));
        TRY(exchange(&f, dst, &all, dst, &own, err));
    }
    comm_count(c, COMM_ALL_REDUCE, start, received);
out:
    return st;
}

/* A peer's rows are contiguous where it sends them and apart by a whole row of dst here. */
static enum status receive_rows(struct flight *f, char *dst, int32_t rows, const int32_t *cols,
                                size_t total, struct err *err)
{
    enum status st = OK;
    const struct comm *c = &f->comm->base;
    MPI_Datatype strided[COMM_RANKS_MAX];
    for (int32_t r = 0; r < c->ranks; r++) {
        strided[r] = MPI_DATATYPE_NULL;
        if (r != c->rank) {
            if (good(f, MPI_Type_vector(rows, cols[r], (int)total, MPI_INT32_T, &strided[r])) &&
                good(f, MPI_Type_commit(&strided[r])))
                post_receive(f, r, dst, (size_t)rows * (size_t)cols[r], strided[r]);
        }
        dst += (size_t)cols[r] * 4;
    }
    st = land(f, err);
    for (int32_t r = 0; r < c->ranks; r++)
        if (strided[r] != MPI_DATATYPE_NULL)
            MPI_Type_free(&strided[r]);
    return st;
}

static enum status mpi_all_gather(struct comm *c, void *dst, const void *src, int32_t rows,
                                  const int32_t *cols, struct err *err)
{
    enum status st = OK;
    struct flight f;
    const int64_t start = base_now_ns();
    size_t total = 0, first = 0;
    const size_t own = (size_t)cols[c->rank], height = (size_t)rows;
    for (int32_t r = 0; r < c->ranks; r++) {
        total += (size_t)cols[r];
        first += r < c->rank ? (size_t)cols[r] : 0;
    }
    CHECK(total <= INT32_MAX);
    begin(&f, c, COMM_ALL_GATHER, height,
          base_hash(BASE_HASH_INIT, cols, (size_t)c->ranks * sizeof cols[0]));
    for (int32_t r = 0; r < c->ranks; r++)
        if (r != c->rank)
            post_send(&f, r, src, height * own);
    for (size_t row = 0; row < height && own > 0; row++)
        memcpy((char *)dst + (row * total + first) * 4, (const char *)src + row * own * 4, own * 4);
    TRY(receive_rows(&f, dst, rows, cols, total, err));
    comm_count(c, COMM_ALL_GATHER, start, height * (total - own));
out:
    return st;
}

static enum status mpi_reduce_scatter(struct comm *c, float *dst, const float *src,
                                      const size_t *counts, struct err *err)
{
    enum status st = OK;
    struct flight f;
    struct blocks b;
    const int64_t start = base_now_ns();
    const size_t total = lay_out(&b, counts, c->ranks);
    begin(&f, c, COMM_REDUCE_SCATTER, total,
          base_hash(BASE_HASH_INIT, counts, (size_t)c->ranks * sizeof counts[0]));
    TRY(sum_blocks(&f, dst, src, &b, err));
    comm_count(c, COMM_REDUCE_SCATTER, start, ((size_t)c->ranks - 1) * counts[c->rank]);
out:
    return st;
}

static enum status mpi_broadcast(struct comm *c, void *dst, const void *src, size_t n, int32_t root,
                                 struct err *err)
{
    enum status st = OK;
    struct flight f;
    const int64_t start = base_now_ns();
    const bool sends = c->rank == root;
    begin(&f, c, COMM_BROADCAST, n, (uint64_t)root);
    for (int32_t r = 0; r < c->ranks && sends; r++)
        if (r != root)
            post_send(&f, r, src, n);
    if (!sends)
        post_receive(&f, root, dst, n, MPI_INT32_T);
    else if (n > 0)
        memcpy(dst, src, n * 4);
    TRY(land(&f, err));
    comm_count(c, COMM_BROADCAST, start, sends ? 0 : n);
out:
    return st;
}

static enum status mpi_all_to_all(struct comm *c, void *dst, const size_t *recv_counts,
                                  const void *src, const size_t *send_counts, struct err *err)
{
    enum status st = OK;
    struct flight f;
    struct blocks from, to;
    const int64_t start = base_now_ns();
    const size_t received = lay_out(&from, recv_counts, c->ranks);
    (void)lay_out(&to, send_counts, c->ranks);
    begin(&f, c, COMM_ALL_TO_ALL, 0, 0);
    if (recv_counts[c->rank] != send_counts[c->rank])
        TRY(lost(&f, "this rank sends itself another count than it receives", err));
    TRY(exchange(&f, dst, &from, src, &to, err));
    comm_count(c, COMM_ALL_TO_ALL, start, received - recv_counts[c->rank]);
out:
    return st;
}

static enum status mpi_barrier(struct comm *c, struct err *err)
{
    enum status st = OK;
    static const struct blocks none;
    struct flight f;
    char nothing = 0;
    const int64_t start = base_now_ns();
    begin(&f, c, COMM_BARRIER, 0, 0);
    TRY(exchange(&f, &nothing, &none, &nothing, &none, err));
    comm_count(c, COMM_BARRIER, start, 0);
out:
    return st;
}

/* ---- life ---- */

static void *mpi_buffer(struct comm *c, size_t bytes)
{
    struct home *h = mpi_of(c)->home;
    const size_t room = h->arena_bytes - h->arena_used;
    if (bytes > room) /* also keeps the rounding below from wrapping */
        return NULL;
    bytes = base_align(bytes > 0 ? bytes : 1, 64);
    if (bytes > room)
        return NULL;
    void *p = h->arena + h->arena_used;
    h->arena_used += bytes;
    return p;
}

static void mpi_abort(struct comm *c)
{
    atomic_store(&mpi_of(c)->home->aborted, true);
}

static void free_home(struct home *h)
{
    if (h == NULL)
        return;
    free(h->arena);
    free(h->addends);
    free(h);
}

/* After an abort peers may be gone: nothing that waits for them is called, and the buffers stay,
 * because messages may still come into them. */
static void mpi_close(struct comm *comm)
{
    struct comm_mpi *c = mpi_of(comm);
    const bool well = !atomic_load(&c->home->aborted);
    if (c->top && well) {
        MPI_Finalize();
        free_home(c->home);
    } else if (well) {
        MPI_Comm_free(&c->handle);
    }
    free(c);
}

static const struct comm_ops mpi_ops;

static struct comm_mpi *make(struct home *h, MPI_Comm handle, struct comm_stats *stats, bool top)
{
    struct comm_mpi *c = calloc(1, sizeof *c);
    int rank = 0, ranks = 0;
    if (c == NULL)
        return NULL;
    if (MPI_Comm_rank(handle, &rank) != MPI_SUCCESS ||
        MPI_Comm_size(handle, &ranks) != MPI_SUCCESS) {
        free(c);
        return NULL;
    }
    *c = (struct comm_mpi){{&mpi_ops, rank, ranks, stats}, h, handle, top};
    return c;
}

static enum status mpi_split(struct comm *c, int32_t color, int32_t key, const char *name,
                             struct comm_stats *stats, struct comm **out, struct err *err)
{
    struct home *h = mpi_of(c)->home;
    MPI_Comm handle = MPI_COMM_NULL;
    int used = 0;
    /* colors of MPI are not negative */
    int values[2] = {color, h->groups}, least[2];
    MPI_Comm of = mpi_of(c)->handle;
    bool well = MPI_Allreduce(&values[0], &least[0], 1, MPI_INT, MPI_MIN, of) == MPI_SUCCESS &&
                MPI_Allreduce(&values[1], &used, 1, MPI_INT, MPI_MAX, of) == MPI_SUCCESS;
    if (well && used >= COMM_GROUPS_MAX)
        return base_fail(err, ERR_LIMIT, "split %s: more than %d groups", name, COMM_GROUPS_MAX);
    well = well && MPI_Comm_split(of, color - least[0], key, &handle) == MPI_SUCCESS;
    struct comm_mpi *made = well ? make(h, handle, stats, false) : NULL;
    if (made == NULL) {
        atomic_store(&h->aborted, true);
        return base_fail(err, ERR_COMM, "split %s: MPI or memory failed", name);
    }
    h->groups = used + 1;
    (void)snprintf(stats->group, sizeof stats->group, "%s", name);
    *out = &made->base;
    return OK;
}

static const struct comm_ops mpi_ops = {
    .name = "mpi",
    .buffer = mpi_buffer,
    .all_reduce = mpi_all_reduce,
    .has_norm = comm_no_norm,
    .all_gather = mpi_all_gather,
    .reduce_scatter = mpi_reduce_scatter,
    .broadcast = mpi_broadcast,
    .all_to_all = mpi_all_to_all,
    .barrier = mpi_barrier,
    .split = mpi_split,
    .abort = mpi_abort,
    .close = mpi_close,
};

static enum status open_home(struct backend *b, int32_t ranks, size_t arena_bytes,
                             struct home **out, struct err *err)
{
    struct home *h = calloc(1, sizeof *h);
    if (h != NULL) {
        h->backend = b;
        h->arena_bytes = base_align(arena_bytes > 0 ? arena_bytes : 1, 4096);
        h->arena = aligned_alloc(4096, h->arena_bytes);
        h->addends = aligned_alloc(4096, (size_t)ranks * ROUND * sizeof(float));
    }
    if (h == NULL || h->arena == NULL || h->addends == NULL) {
        free_home(h);
        return base_fail(err, ERR_NOMEM, "collectives: no memory for %zu bytes of buffers",
                         arena_bytes);
    }
    *out = h;
    return OK;
}

/* The launcher's numbers must be the group's: shards are placed by them. */
static enum status check_place(int32_t rank, int32_t ranks, struct err *err)
{
    int mpi_rank = -1, mpi_ranks = -1;
    const bool known = MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank) == MPI_SUCCESS &&
                       MPI_Comm_size(MPI_COMM_WORLD, &mpi_ranks) == MPI_SUCCESS;
    if (known && mpi_rank == rank && mpi_ranks == ranks)
        return OK;
    return base_fail(err, ERR_COMM,
                     "--comm mpi: this is rank %d of %d, but rank %d of %d for MPI; start as many "
                     "processes as there are ranks: mpirun -n %d tessera serve ...",
                     (int)rank, (int)ranks, mpi_rank, mpi_ranks, (int)ranks);
}

static enum status mpi_open(int32_t rank, int32_t ranks, struct backend *b, size_t arena_bytes,
                            struct comm_stats *stats, struct comm **out, struct err *err)
{
    enum status st = OK;
    int provided = 0;
    struct home *h = NULL;
    CHECK(b != NULL);
    CHECK(stats != NULL);
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
        return base_fail(err, ERR_DEVICE, "--comm mpi: MPI does not start");
    /* inherited by splits */
    if (MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN) != MPI_SUCCESS)
        return base_fail(err, ERR_DEVICE, "--comm mpi: MPI keeps its errors to itself");
    TRY(check_place(rank, ranks, err));
    TRY(open_home(b, ranks, arena_bytes, &h, err));
    struct comm_mpi *c = make(h, MPI_COMM_WORLD, stats, true);
    if (c == NULL) {
        st = base_fail(err, ERR_NOMEM, "collectives: no memory");
        goto out;
    }
    if (stats->group[0] == '\0')
        (void)snprintf(stats->group, sizeof stats->group, "world");
    *out = &c->base;
    h = NULL;
out:
    free_home(h);
    return st;
}

const struct plugin *comm_mpi_entry(void)
{
    static const struct comm_mpi_plugin plugin = {
        .head = {sizeof plugin, TESSERA_BUILD},
        .open = mpi_open,
    };
    return &plugin.head;
}
