/* DESIGN: a product of every pair of a row and one of its experts, by the kernels of other
 * products, whose blocks find on the device what they are to multiply; how many rows an expert has
 * is never known to the host. Few rows: a block of gemv.cu looks among them for those of its
 * expert, and so each weight that is taken is read once. Many: the pairs are put in order first,
 * and cut into tiles of one expert, for which there are as many blocks as there could be tiles;
 * those that have none end at once. Either way rows are used where they lie, and a pair's product
 * is written where it belongs.
 *
 * expert_sum has the products of all pairs in scratch, of as many rows at a time as fit there, and
 * then adds up those of each row. Rejected: adding to y as products are made (atomics have no
 * order), and a gathered copy of x (as many bytes again). */
#include "kernels/cuda/product.cuh"

#include <cstdlib>

#define THREADS 256
#define ORDER_THREADS 1024
#define ORDER_WARPS (ORDER_THREADS / WARP)
#ifndef CUDA_EXPERTS_BYTES
#define CUDA_EXPERTS_BYTES                                                                         \
    ((size_t)128 << 20) /* of products: less for few rows, more if need be                         \
                         */
#endif

#define TABLES_BYTES ((size_t)1 << 20) /* two tables of 1,024 experts in each of 64 layers */

struct cuda_experts {
    struct experts base;                /* without a list of weights: */
    const unsigned char *const *weight; /* [count] where they lie, on the device */
};

static const struct cuda_experts *experts_of(const struct experts *e)
{
    return (const struct cuda_experts *)(const void *)e;
}

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* ---- scratch ---- */

/* One after the other, each at a multiple of 256 bytes. */
struct plan {
    size_t order, tile, tiles, products, end;
};

/* Bytes of the products of a row: of some leaves at once, and of the sums of all. */
static size_t row_bytes(const struct weight_spec *s, int32_t chosen, int32_t at_once,
                        int32_t leaves)
{
    const size_t sums = leaves > 1 ? (size_t)leaves : 0;
    return ((size_t)chosen * (size_t)at_once + sums) * (size_t)s->out * sizeof(float);
}

static struct plan plan_of(const struct weight_spec *s, int32_t count, int32_t chosen,
                           int32_t rows_max)
{
    if (chosen == 0) /* heads' matrices */
        return {};
    const size_t rows = (size_t)rows_max, pairs = rows * (size_t)chosen;
    const size_t few = rows < GEMV_ROWS ? rows : GEMV_ROWS;
    const size_t most = rows * row_bytes(s, chosen, 1, s->leaves);
    const size_t need = few * row_bytes(s, chosen, s->leaves, s->leaves);
    const size_t some = most < CUDA_EXPERTS_BYTES ? most : CUDA_EXPERTS_BYTES;
    struct plan p = {};
    p.tile = p.order + base_align(pairs * sizeof(int32_t), 256);
    p.tiles = p.tile + base_align((pairs / GEMV_ROWS + (size_t)count) * sizeof(struct tile), 256);
    p.products = p.tiles + 256;
    p.end = p.products + (some > need ? some : need);
    return p;
}

size_t experts_bytes(const struct weight_spec *spec, int32_t count, int32_t chosen,
                     int32_t rows_max)
{
    return TABLES_BYTES + plan_of(spec, count, chosen, rows_max).end;
}

static void *scratch_at(const struct cuda_backend *c, size_t at)
{
    return (unsigned char *)c->experts.data + at;
}

/* ---- the handle ---- */

static bool reserve(struct cuda_backend *c, const struct experts *e)
{
    struct err ignored;
    const size_t bytes = plan_of(&e->spec, e->count, e->chosen, e->rows_max).end;
    if (cuda_memory_grow(c, &c->tables, TABLES_BYTES, &ignored) == OK &&
        cuda_memory_grow(c, &c->experts, bytes, &ignored) == OK)
        return c->table_pointers + (size_t)e->count <= TABLES_BYTES / sizeof(void *);
    (void)cudaGetLastError(); /* told by the caller's NULL; not to be found by the next launch */
    return false;
}

struct experts *experts_open(struct backend *b, const struct weight *const *weight, int32_t count,
                             int32_t chosen, int32_t rows_max)
{
    struct cuda_backend *c = cuda_of(b);
    const unsigned char *storage[BACKEND_EXPERTS_MAX];
    struct cuda_experts *e = (struct cuda_experts *)calloc(1, sizeof *e);
    if (e == nullptr)
        return nullptr;
    e->base.spec = weight[0]->spec;
    e->base.backend = b;
    e->base.count = count;
    e->base.rows_max = rows_max;
    e->base.chosen = chosen;
    if (!reserve(c, &e->base)) {
        free(e);
        return nullptr;
    }
    void **table = (void **)c->tables.data + c->table_pointers;
    for (int32_t i = 0; i < count; i++)
        storage[i] = weight[i]->storage;
    cuda_memory_upload(b, table, storage, (size_t)count * sizeof *storage);
    e->weight = (const unsigned char *const *)table;
    c->table_pointers += (size_t)count;
    c->tables_open++;
    return &e->base;
}

const unsigned char *const *experts_table(const struct experts *w)
{
    return experts_of(w)->weight;
}

void experts_close(struct experts *e)
{
    if (e == nullptr)
        return;
    struct cuda_backend *c = cuda_of(e->backend);
    if (--c->tables_open == 0)
        c->table_pointers = 0;
    free(e);
}

/* ---- pairs in the order of experts ---- */

struct ordering {
    const int32_t *expert; /* of each pair */
    int32_t pairs, experts, tile_rows;
    int32_t *order; /* by expert, then by pair */
    struct tile *tile;
    int32_t *tiles;
};

/* A block for each expert. All count the pairs of everyone, so that each knows where its own lie.
 */
__global__ void __launch_bounds__(ORDER_THREADS) order_kernel(struct ordering o)
{
    __shared__ int32_t count[BACKEND_EXPERTS_MAX], of_warp[ORDER_WARPS];
    const int32_t thread = (int32_t)threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    const int32_t mine = (int32_t)blockIdx.x;
    const int32_t part = ((o.pairs - 1) / ORDER_THREADS + 1) * WARP; /* of a warp */
    const int32_t begin = warp * part, end = o.pairs < begin + part ? o.pairs : begin + part;
    int32_t at = 0, tile = 0, own = 0;
    launch_release();
    launch_wait();
    for (int32_t e = thread; e < o.experts; e += ORDER_THREADS)
        count[e] = 0;
    __syncthreads();
    for (int32_t i = begin + lane; i < end; i += WARP) {
        atomicAdd(&count[o.expert[i]], 1);
        own += o.expert[i] == mine;
    }
    own = reduce_lanes<WARP>(own, plus());
    if (lane == 0)
        of_warp[warp] = own;
    __syncthreads();
    for (int32_t e = thread; e < mine; e += ORDER_THREADS) {
        at += count[e];
        tile += (count[e] + o.tile_rows - 1) / o.tile_rows;
    }
    at = reduce_block(at, plus());
    tile = reduce_block(tile, plus());
    const int32_t rows = count[mine], tiles = (rows + o.tile_rows - 1) / o.tile_rows;
    for (int32_t i = thread; i < tiles; i += ORDER_THREADS) {
        const int32_t done = i * o.tile_rows, left = rows - done;
        o.tile[tile + i] = {mine, at + done, left < o.tile_rows ? left : o.tile_rows};
    }
    if (thread == 0 && mine == o.experts - 1)
        *o.tiles = tile + tiles;
    for (int32_t w = 0; w < warp; w++)
        at += of_warp[w];
    for (int32_t i = begin; i < end; i += WARP) {
        const bool is = i + lane < end && o.expert[i + lane] == mine;
        const uint32_t all = __ballot_sync(ALL_LANES, is);
        if (is)
            o.order[at + __popc(all & ((1u << lane) - 1))] = i + lane;
        at += __popc(all);
    }
}

/* ---- products of pairs ---- */

/* Rows [at, at + rows) of an op; together: as in struct mixture. Many of them are put in order. */
static struct mixture mixture_of(struct cuda_backend *c, const struct experts *w,
                                 const struct routing *r, int32_t at, int32_t rows,
                                 int32_t together)
{
    const struct plan plan = plan_of(&w->spec, w->count, w->chosen, w->rows_max);
    const int32_t pairs = rows * r->chosen;
    struct mixture m = {};
    m.weight = experts_of(w)->weight;
    m.expert = r->expert + (int64_t)at * r->chosen;
    m.rows = rows;
    m.chosen = r->chosen;
    m.experts = r->experts;
    m.together = together;
    m.places = least(pairs, m.experts);
    if (rows <= GEMV_ROWS)
        return m;
    /* where most experts have few rows, reading those of others again is less than idle rows */
    m.tile_rows = pairs / GEMV_ROWS <= m.experts ? GEMV_ROWS : GEMM_ROWS;
    m.places += pairs / m.tile_rows;
    m.tile = (const struct tile *)scratch_at(c, plan.tile);
    m.tiles = (const int32_t *)scratch_at(c, plan.tiles);
    m.order = (const int32_t *)scratch_at(c, plan.order);
    const struct ordering o = {m.expert,
                               pairs,
                               m.experts,
                               m.tile_rows,
                               (int32_t *)scratch_at(c, plan.order),
                               (struct tile *)scratch_at(c, plan.tile),
                               (int32_t *)scratch_at(c, plan.tiles)};
    LAUNCH_AHEAD(c, order_kernel, (unsigned)m.experts, ORDER_THREADS, 0, o);
    return m;
}

static void multiply(struct cuda_backend *c, const struct weight_spec *s, const struct product *p,
                     const struct mixture *m)
{
    if (m->tile == nullptr || m->tile_rows == GEMV_ROWS)
        gemv_experts(c, s, p, m);
    else
        gemm_experts(c, s, p, m);
}

/* As in linear.cu. */
static bool is_nothing(struct cuda_backend *c, struct view y, const struct weight_spec *s)
{
    const size_t bytes = (size_t)y.rows * (size_t)y.cols * sizeof(float);
    if (bytes > 0 && s->in == 0)
        cuda_note(c, "experts", cudaMemsetAsync(y.data, 0, bytes, (cudaStream_t)c->stream));
    return bytes == 0 || s->in == 0;
}

void experts_linear(struct backend *b, struct view y, struct cview x, const struct experts *w,
                    const struct routing *r)
{
    struct cuda_backend *c = cuda_of(b);
    if (is_nothing(c, y, &w->spec))
        return;
    const struct product p = product_of(&w->spec, nullptr, x.data, y.data, 0);
    const struct mixture m = mixture_of(c, w, r, 0, x.rows, r->chosen);
    multiply(c, &w->spec, &p, &m);
}

/* ---- sums of a row's experts ---- */

/* y[leaf][row] = the row's pairs of that leaf by their shares. Block (row, part of it, leaf). */
__global__ void share_kernel(float *y, const float *product, const float *share, int32_t chosen,
                             int32_t out)
{
    const int64_t rows = gridDim.x, row = blockIdx.x, leaf = blockIdx.z;
    const int32_t o = (int32_t)(blockIdx.y * THREADS + threadIdx.x);
    const float *of = product + (leaf * rows + row) * chosen * out;
    float sum = 0;
    launch_release();
    launch_wait();
    if (o >= out)
        return;
    for (int32_t i = 0; i < chosen; i++)
        sum = fmaf(share[row * chosen + i], of[(int64_t)i * out + o], sum);
    y[(leaf * rows + row) * out + o] = sum;
}

struct sum {
    const struct experts *w;
    struct routing r;
    const float *x;
    float *y;
    int32_t leaves; /* summed up for themselves */
};

/* Rows [at, at + rows), and leaves as many at a time as there is room and one form for. */
static void sum_rows(struct cuda_backend *c, const struct sum *j, int32_t at, int32_t rows)
{
    const struct weight_spec *s = &j->w->spec;
    const int32_t chosen = j->r.chosen, pairs = rows * chosen;
    const struct mixture m = mixture_of(c, j->w, &j->r, at, rows, 1);
    const size_t products = plan_of(s, j->w->count, chosen, j->w->rows_max).products;
    float *product = (float *)scratch_at(c, products);
    float *y = j->y + (int64_t)at * s->out, *sums = y;
    const float *leaf[BACKEND_LEAVES_MAX];
    struct product p = product_of(s, nullptr, j->x + (int64_t)at * chosen * s->in, product, 0);
    p.leaf_pitch = (int64_t)pairs * s->out;
    if (j->leaves > 1) {
        p.leaves = s->leaves;
        memcpy(p.cut, s->cut, sizeof p.cut);
    }
    const int32_t some = rows <= GEMV_ROWS && is_alike(s, p) ? j->leaves : 1;
    if (j->leaves > 1)
        sums = product + some * p.leaf_pitch;
    for (int32_t l = 0; l < j->leaves; l += some) {
        struct product part = p;
        part.leaves = some;
        memcpy(part.cut, p.cut + l, ((size_t)some + 1) * sizeof *p.cut);
        multiply(c, s, &part, &m);
        const dim3 grid((unsigned)rows, blocks_for((size_t)s->out, THREADS), (unsigned)some);
        LAUNCH_AHEAD(c, share_kernel, grid, THREADS, 0, sums + (int64_t)l * rows * s->out,
                     (const float *)product, (const float *)j->r.share + (int64_t)at * chosen,
                     chosen, s->out);
    }
    for (int32_t l = 0; l < j->leaves; l++)
        leaf[l] = sums + (int64_t)l * rows * s->out;
    if (j->leaves > 1)
        rowops_sum_tree(&c->base, y, leaf, j->leaves, (size_t)rows * (size_t)s->out);
}

static void sum_all(struct backend *b, struct view y, struct cview x, const struct experts *w,
                    const struct routing *r, int32_t leaves)
{
    const struct plan plan = plan_of(&w->spec, w->count, w->chosen, w->rows_max);
    const struct sum j = {w, *r, (const float *)x.data, (float *)y.data, leaves};
    if (is_nothing(cuda_of(b), y, &w->spec))
        return;
    const size_t fit = (plan.end - plan.products) / row_bytes(&w->spec, r->chosen, 1, leaves);
    const int32_t most = fit < (size_t)x.rows ? (int32_t)fit : x.rows;
    const int32_t chunks = (x.rows - 1) / most + 1, chunk = (x.rows - 1) / chunks + 1;
    for (int32_t at = 0; at < x.rows; at += chunk)
        sum_rows(cuda_of(b), &j, at, least(x.rows - at, chunk));
}

void experts_sum(struct backend *b, struct view y, struct cview x, const struct experts *w,
                 const struct routing *r)
{
    sum_all(b, y, x, w, r, 1);
}

void experts_sum_invariant(struct backend *b, struct view y, struct cview x,
                           const struct experts *w, const struct routing *r)
{
    sum_all(b, y, x, w, r, w->spec.leaves);
}
