/* DESIGN: a family's rules, the rotation and the store of keys and values are one launch for a
 * row's q, k and v. A cache block is [head][key, value][16 positions][head_dim], so one head's keys
 * of a block lie together. Where a head's shape allows it, a thread has four pairs of elements, and
 * all that it reads is under way at once; else a block has a head. In steps of many rows, whose
 * time is that of instructions, too, it has eight pairs of 16 bits in each of some heads, which
 * turn by the same table; the bits are those of four pairs, but for which NaN it is.
 *
 * With latents there are no values, and of 576 elements of a head 64 turn: queries are touched
 * there alone, and only keys are read whole.
 *
 * Of decodes the kernel of attention does this where it can (attend_turn.cuh). */
#include "kernels/cuda/device.cuh"

#include "kernels/cuda/kv_index.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/rope.cuh"

#define THREADS 64 /* half a usual head */

__global__ void rope_table_kernel(float *table, const int32_t *position, const float *inv_freq,
                                  float scale, int32_t half)
{
    launch_release();
    launch_wait();
    for (int32_t i = (int32_t)threadIdx.x; i < half; i += (int32_t)blockDim.x) {
        const float angle = (float)position[blockIdx.x] * inv_freq[i];
        table[(int64_t)blockIdx.x * 2 * half + i] = cosf(angle) * scale;
        table[(int64_t)blockIdx.x * 2 * half + half + i] = sinf(angle) * scale;
    }
}

void rope_table(struct backend *b, struct view table, const int32_t *position,
                const float *inv_freq, float scale)
{
    if (table.rows > 0 && table.cols > 0)
        LAUNCH_AHEAD(cuda_of(b), rope_table_kernel, (unsigned)table.rows, THREADS, 0,
                     (float *)table.data, position, inv_freq, scale, table.cols / 2);
}

/* Block (row, head of q). */
__global__ void scale_queries_kernel(struct elements qkv, const int32_t *position, float beta,
                                     int32_t original, int32_t cols, int32_t dim)
{
    const int64_t x = (int64_t)blockIdx.x * cols + (int64_t)blockIdx.y * dim;
    launch_release();
    launch_wait();
    if (position[blockIdx.x] < original) /* by 1 */
        return;
    const float by = numerics_query_scale(position[blockIdx.x], beta, original);
    for (int32_t i = (int32_t)threadIdx.x; i < dim; i += (int32_t)blockDim.x)
        put_element(qkv, x + i, get_elements<1>(qkv, x + i).e[0] * by);
}

void rope_scale_queries(struct backend *b, struct view qkv, const struct heads *h,
                        const int32_t *position, float beta, int32_t original)
{
    if (qkv.rows > 0 && h->heads > 0)
        LAUNCH_AHEAD(cuda_of(b), scale_queries_kernel, dim3((unsigned)qkv.rows, (unsigned)h->heads),
                     THREADS, 0, elements_of(qkv), position, beta, original, qkv.cols, h->head_dim);
}

struct rope_args {
    struct elements qkv;
    struct qkv_rules rules;
    const float *table;
    struct rows rows;
    int32_t heads, rotary; /* elements of a head that turn: the first ones */
    struct kv_place kv;
};

/* The elements of a head that one thread has, from its rules to its store, so that none waits for
 * another: two that turn together, or of the others any two. */
struct pair {
    int32_t low, high;
};

HOST_DEVICE struct pair rope_pair(int32_t i, int32_t rotary, int32_t dim, bool interleaved)
{
    const int32_t turning = rotary / 2, resting = (dim - rotary) / 2;
    const int32_t first = i < turning ? i : turning + i; /* behind those that turn */
    struct pair p = {first, first + (i < turning ? turning : resting)};
    if (interleaved) {
        p.low = 2 * i;
        p.high = 2 * i + 1;
    }
    return p;
}

/* An element of the head that begins at x. */
DEVICE float biased(const struct rope_args *a, int64_t x, int32_t e, const float *bias)
{
    const float value = get_elements<1>(a->qkv, x + e).e[0];
    return bias != nullptr ? value + bias[e] : value;
}

/* The factor of the norm. */
DEVICE float norm_of(const struct rope_args *a, int64_t x, const float *bias)
{
    const int32_t dim = a->kv.dim;
    float sum = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < dim / 2; i += (int32_t)blockDim.x) {
        const struct pair p = rope_pair(i, a->rotary, dim, a->rules.interleaved);
        const float low = biased(a, x, p.low, bias), high = biased(a, x, p.high, bias);
        sum = fmaf(low, low, sum);
        sum = fmaf(high, high, sum);
    }
    return 1 / sqrtf(reduce_block(sum, plus()) / (float)dim + a->rules.eps);
}

/* Block (row, head of [q | k | v], or of latents [q | k]). */
template <typename E> __global__ void rope_kv_kernel(struct rope_args a, E *cache)
{
    const int32_t t = (int32_t)blockIdx.x, head = (int32_t)blockIdx.y, dim = a.kv.dim;
    launch_release();
    launch_wait();
    const int32_t slot = a.rows.slot[t], turning = a.rotary / 2;
    const bool is_value = head >= a.heads + a.kv.heads, is_key = head >= a.heads && !is_value;
    if (slot < 0)
        return;
    const int64_t x = ((int64_t)t * gridDim.y + head) * dim;
    const float *c = a.table + (int64_t)t * a.rotary, *s = c + turning;
    E *to = nullptr;
    if (is_key || is_value) {
        const int32_t kv_head = (head - a.heads) % a.kv.heads, p = a.rows.position[t];
        const int32_t block = kv_block(&a.rows, slot, p / BACKEND_BLOCK_TOKENS);
        to = cache + (int64_t)(p % BACKEND_BLOCK_TOKENS) * dim +
             (a.kv.latent > 0 ? kv_latent_index(&a.kv, block, kv_head)
                              : kv_index(&a.kv, block, kv_head, is_value));
    }
    const float *gain = is_value ? a.rules.v_norm : is_key ? a.rules.k_norm : a.rules.q_norm;
    const float *bias = a.rules.bias != nullptr ? a.rules.bias + head * dim : nullptr;
    const float scale = gain != nullptr ? norm_of(&a, x, bias) : 1;
    for (int32_t i = (int32_t)threadIdx.x; i < dim / 2; i += (int32_t)blockDim.x) {
        const struct pair p = rope_pair(i, a.rotary, dim, a.rules.interleaved);
        float low = biased(&a, x, p.low, bias), high = biased(&a, x, p.high, bias);
        if (gain != nullptr) {
            low = low * scale * gain[p.low];
            high = high * scale * gain[p.high];
        }
        if (!is_value && i < turning)
            rope_turn(low, high, c[i], s[i]);
        if (!is_value || bias != nullptr || gain != nullptr) {
            put_element(a.qkv, x + p.low, low);
            put_element(a.qkv, x + p.high, high);
        }
        if (to != nullptr) {
            from_float(to + p.low, low);
            from_float(to + p.high, high);
        }
    }
}

/* ---- four pairs at a time ---- */

#define FOUR 4
#define MANY_THREADS 256

typedef pack<float, FOUR> four;

/* Elements that turn with each other. */
struct pairs {
    four low, high;
};

/* Where those of the i-th pair and the next ones are; interleaved, they lie in turns. */
DEVICE struct pair fours_at(int32_t i, int32_t rotary, int32_t dim, bool interleaved)
{
    const struct pair p = rope_pair(i, rotary, dim, interleaved);
    return {p.low, interleaved ? p.low + FOUR : p.high};
}

/* From how they lie in memory, and back. */
template <bool INTERLEAVED> DEVICE struct pairs pairs_of(const four &a, const four &b)
{
    return !INTERLEAVED ? pairs{a, b}
                        : pairs{{a.e[0], a.e[2], b.e[0], b.e[2]}, {a.e[1], a.e[3], b.e[1], b.e[3]}};
}

template <bool INTERLEAVED> DEVICE struct pairs in_memory(const struct pairs &p)
{
    const four &a = p.low, &b = p.high;
    return !INTERLEAVED ? p
                        : pairs{{a.e[0], b.e[0], a.e[1], b.e[1]}, {a.e[2], b.e[2], a.e[3], b.e[3]}};
}

template <bool INTERLEAVED> DEVICE struct pairs load_pairs(const float *x, struct pair at)
{
    return pairs_of<INTERLEAVED>(*(const four *)(x + at.low), *(const four *)(x + at.high));
}

template <bool INTERLEAVED> DEVICE void add_bias(struct pairs &x, struct pair at, const float *bias)
{
    const struct pairs add = load_pairs<INTERLEAVED>(bias, at);
#pragma unroll
    for (int i = 0; i < FOUR; i++) {
        x.low.e[i] += add.low.e[i];
        x.high.e[i] += add.high.e[i];
    }
}

/* The sum of squares over the head's lanes, a power of two. */
DEVICE float squares(const struct pairs &x, int32_t lanes)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < FOUR; i++)
        sum = fmaf(x.high.e[i], x.high.e[i], fmaf(x.low.e[i], x.low.e[i], sum));
    for (int32_t step = lanes / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, step);
    return sum;
}

template <bool INTERLEAVED>
DEVICE void normalize(struct pairs &x, struct pair at, const float *gain, float sum,
                      const struct rope_args &a)
{
    const float scale = 1 / sqrtf(sum / (float)a.kv.dim + a.rules.eps);
    const struct pairs by = load_pairs<INTERLEAVED>(gain, at);
#pragma unroll
    for (int i = 0; i < FOUR; i++) {
        x.low.e[i] = x.low.e[i] * scale * by.low.e[i];
        x.high.e[i] = x.high.e[i] * scale * by.high.e[i];
    }
}

DEVICE void turn(struct pairs &x, const four &c, const four &s)
{
#pragma unroll
    for (int i = 0; i < FOUR; i++)
        rope_turn(x.low.e[i], x.high.e[i], c.e[i], s.e[i]);
}

/* Block (row, part of its heads). Threads behind the last head go along with the first. */
template <typename E, bool INTERLEAVED>
__global__ void __launch_bounds__(MANY_THREADS) rope_fours_kernel(struct rope_args a, E *cache)
{
    const int32_t t = (int32_t)blockIdx.x, dim = a.kv.dim, lanes = dim / (2 * FOUR);
    const int32_t nth = (int32_t)(blockIdx.y * MANY_THREADS + threadIdx.x);
    const int32_t heads = a.heads + 2 * a.kv.heads, i = nth % lanes * FOUR;
    const int32_t head = nth / lanes < heads ? nth / lanes : 0;
    const bool is_value = head >= a.heads + a.kv.heads, is_key = head >= a.heads && !is_value;
    const bool turns = !is_value && i < a.rotary / 2;
    const struct pair at = fours_at(i, a.rotary, dim, INTERLEAVED);
    const int64_t row = ((int64_t)t * heads + head) * dim;
    const float *table = a.table + (int64_t)t * a.rotary + i;
    four c = {}, s = {};
    launch_release();
    launch_wait();
    const int32_t slot = a.rows.slot[t], p = a.rows.position[t];
    struct pairs x = pairs_of<INTERLEAVED>(get_elements<FOUR>(a.qkv, row + at.low),
                                           get_elements<FOUR>(a.qkv, row + at.high));
    if (turns) {
        c = *(const four *)table;
        s = *(const four *)(table + a.rotary / 2);
    }
    if (slot < 0) /* so for the whole block */
        return;
    const float *gain = is_value ? a.rules.v_norm : is_key ? a.rules.k_norm : a.rules.q_norm;
    const float *bias = a.rules.bias != nullptr ? a.rules.bias + head * dim : nullptr;
    if (bias != nullptr)
        add_bias<INTERLEAVED>(x, at, bias);
    if (a.rules.q_norm != nullptr || a.rules.v_norm != nullptr) {
        const float sum = squares(x, lanes);
        if (gain != nullptr)
            normalize<INTERLEAVED>(x, at, gain, sum, a);
    }
    if (turns)
        turn(x, c, s);
    if (nth / lanes >= heads)
        return;
    x = in_memory<INTERLEAVED>(x);
    if (!is_value || bias != nullptr || gain != nullptr) {
        put_elements(a.qkv, row + at.low, x.low);
        put_elements(a.qkv, row + at.high, x.high);
    }
    if (is_key || is_value) {
        const int32_t block = kv_block(&a.rows, slot, p / BACKEND_BLOCK_TOKENS);
        const int32_t kv_head = (head - a.heads) % a.kv.heads;
        E *to = cache + kv_index(&a.kv, block, kv_head, is_value) +
                (int64_t)(p % BACKEND_BLOCK_TOKENS) * dim;
        put_rounded(to + at.low, x.low);
        put_rounded(to + at.high, x.high);
    }
}

/* Of latents without biases and norms: block (row, part of what turns of its q heads, and of its
 * keys). */
template <typename E, bool INTERLEAVED>
__global__ void __launch_bounds__(MANY_THREADS) rope_latent_kernel(struct rope_args a, E *cache)
{
    const int32_t t = (int32_t)blockIdx.x, dim = a.kv.dim, of_query = a.rotary / (2 * FOUR);
    const int32_t nth = (int32_t)(blockIdx.y * MANY_THREADS + threadIdx.x);
    const int32_t of_key = dim / (2 * FOUR), queries = a.heads * of_query, rest = nth - queries;
    const bool is_key = rest >= 0;
    launch_release();
    launch_wait();
    const int32_t slot = a.rows.slot[t], p = a.rows.position[t];
    if (slot < 0 || rest >= a.kv.heads * of_key)
        return;
    const int32_t head = is_key ? rest / of_key : nth / of_query;
    const int32_t i = (is_key ? rest % of_key : nth % of_query) * FOUR;
    const struct pair at = fours_at(i, a.rotary, dim, INTERLEAVED);
    const int64_t row = ((int64_t)t * (a.heads + a.kv.heads) + (is_key ? a.heads : 0) + head) * dim;
    struct pairs x = pairs_of<INTERLEAVED>(get_elements<FOUR>(a.qkv, row + at.low),
                                           get_elements<FOUR>(a.qkv, row + at.high));
    if (i < a.rotary / 2) {
        const float *table = a.table + (int64_t)t * a.rotary + i;
        turn(x, *(const four *)table, *(const four *)(table + a.rotary / 2));
        const struct pairs turned = in_memory<INTERLEAVED>(x);
        put_elements(a.qkv, row + at.low, turned.low);
        put_elements(a.qkv, row + at.high, turned.high);
    }
    if (!is_key)
        return;
    const int32_t block = kv_block(&a.rows, slot, p / BACKEND_BLOCK_TOKENS);
    E *to = cache + kv_latent_index(&a.kv, block, head) + (int64_t)(p % BACKEND_BLOCK_TOKENS) * dim;
    x = in_memory<INTERLEAVED>(x);
    put_rounded(to + at.low, x.low);
    put_rounded(to + at.high, x.high);
}

/* ---- eight pairs of several heads at a time ---- */

#define EIGHT 8
#define ONCE 4 /* heads of a thread */
#ifndef ROPE_MANY_ROWS
#define ROPE_MANY_ROWS 256 /* fill the device with so few threads */
#endif

typedef pack<float, EIGHT> eight;

/* Of a row: its cache block, and which place there; of a thread: which pairs, and the table's. */
struct turning {
    int32_t block, place, i;
    bool turns;
    four c[2], s[2];
};

/* A row of eight pairs, as it lies in memory. */
struct eights {
    pack<bf16, EIGHT> low, high;
};

DEVICE struct pair eights_at(const struct rope_args &a, int32_t i)
{
    const struct pair p = rope_pair(i, a.rotary, a.kv.dim, a.rules.interleaved);
    return {p.low, a.rules.interleaved ? p.low + EIGHT : p.high};
}

template <bool INTERLEAVED> DEVICE void unpack(struct pairs (&x)[2], const struct eights &raw)
{
    eight low, high;
    widen(low.e, raw.low);
    widen(high.e, raw.high);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        four a, b;
#pragma unroll
        for (int i = 0; i < FOUR; i++) {
            a.e[i] = INTERLEAVED ? (h == 0 ? low : high).e[i] : low.e[FOUR * h + i];
            b.e[i] = INTERLEAVED ? (h == 0 ? low : high).e[FOUR + i] : high.e[FOUR * h + i];
        }
        x[h] = pairs_of<INTERLEAVED>(a, b);
    }
}

template <bool INTERLEAVED> DEVICE void repack(eight &low, eight &high, const struct pairs (&x)[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const struct pairs p = in_memory<INTERLEAVED>(x[h]);
#pragma unroll
        for (int i = 0; i < FOUR; i++) {
            (INTERLEAVED && h == 1 ? high : low).e[(INTERLEAVED ? 0 : FOUR * h) + i] = p.low.e[i];
            (INTERLEAVED && h == 0 ? low : high).e[(INTERLEAVED ? FOUR : FOUR * h) + i] =
                p.high.e[i];
        }
    }
}

template <typename E> DEVICE void put_eight(E *to, const eight &v)
{
    put_rounded(to, v);
}

/* By the instruction for two; it has one NaN only. */
DEVICE void put_eight(bf16 *to, const eight &v)
{
    pack<uint32_t, EIGHT / 2> words;
    pack<bf16, EIGHT> rounded;
#pragma unroll
    for (int i = 0; i < EIGHT / 2; i++)
        words.e[i] = mma_pair(v.e[2 * i], v.e[2 * i + 1], bf16());
    memcpy(&rounded, &words, sizeof rounded);
    *(pack<bf16, EIGHT> *)to = rounded;
}

/* One head, all the way. not `there`: a thread that goes along with those of its warp. */
template <typename E, bool INTERLEAVED>
DEVICE void take_head(const struct rope_args &a, E *cache, const struct turning &t, int32_t head,
                      bf16 *at_head, const struct eights &raw, bool there)
{
    const int32_t dim = a.kv.dim;
    const bool is_value = head >= a.heads + a.kv.heads, is_key = head >= a.heads && !is_value;
    const float *gain = is_value ? a.rules.v_norm : is_key ? a.rules.k_norm : a.rules.q_norm;
    const float *bias = a.rules.bias != nullptr ? a.rules.bias + head * dim : nullptr;
    struct pairs x[2];
    float sum = 0;
    unpack<INTERLEAVED>(x, raw);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (bias != nullptr)
            add_bias<INTERLEAVED>(x[h], fours_at(t.i + FOUR * h, a.rotary, dim, INTERLEAVED), bias);
        if (a.rules.q_norm != nullptr || a.rules.v_norm != nullptr)
            sum += squares(x[h], dim / (2 * EIGHT)); /* as if lanes next to each other had these */
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (gain != nullptr)
            normalize<INTERLEAVED>(x[h], fours_at(t.i + FOUR * h, a.rotary, dim, INTERLEAVED), gain,
                                   sum, a);
        if (t.turns && !is_value)
            turn(x[h], t.c[h], t.s[h]);
    }
    const struct pair at = eights_at(a, t.i);
    eight low, high;
    repack<INTERLEAVED>(low, high, x);
    if (there && (!is_value || bias != nullptr || gain != nullptr)) {
        put_eight(at_head + at.low, low);
        put_eight(at_head + at.high, high);
    }
    if (there && (is_key || is_value)) {
        const int32_t kv_head = (head - a.heads) % a.kv.heads;
        E *to = cache + kv_index(&a.kv, t.block, kv_head, is_value) + (int64_t)t.place * dim;
        put_eight(to + at.low, low);
        put_eight(to + at.high, high);
    }
}

/* Block (row, part of its heads), of bf16. Threads behind the last head go along with the first. */
template <typename E, bool INTERLEAVED>
__global__ void __launch_bounds__(MANY_THREADS) rope_eights_kernel(struct rope_args a, E *cache)
{
    const int32_t row = (int32_t)blockIdx.x, dim = a.kv.dim, lanes = dim / (2 * EIGHT);
    const int32_t nth = (int32_t)(blockIdx.y * blockDim.x + threadIdx.x), first = nth / lanes;
    const int32_t heads = a.heads + 2 * a.kv.heads, apart = (heads + ONCE - 1) / ONCE;
    const float *table = a.table + (int64_t)row * a.rotary;
    bf16 *of_row = (bf16 *)a.qkv.data + (int64_t)row * heads * dim;
    struct turning t = {};
    struct eights raw[ONCE];
    launch_release();
    launch_wait();
    const int32_t slot = a.rows.slot[row], p = a.rows.position[row];
    t.i = (nth - first * lanes) * EIGHT;
    t.turns = t.i < a.rotary / 2;
    const struct pair at = eights_at(a, t.i);
#pragma unroll
    for (int u = 0; u < ONCE; u++) {
        const int32_t head = first + u * apart;
        const bf16 *from = of_row + (first < apart && head < heads ? head : 0) * dim;
        raw[u].low = *(const pack<bf16, EIGHT> *)(from + at.low);
        raw[u].high = *(const pack<bf16, EIGHT> *)(from + at.high);
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (t.turns) {
            t.c[h] = *(const four *)(table + t.i + FOUR * h);
            t.s[h] = *(const four *)(table + a.rotary / 2 + t.i + FOUR * h);
        }
    if (slot < 0) /* so for the whole block */
        return;
    t.block = kv_block(&a.rows, slot, p / BACKEND_BLOCK_TOKENS);
    t.place = p % BACKEND_BLOCK_TOKENS;
#pragma unroll
    for (int u = 0; u < ONCE; u++) {
        const int32_t head = first + u * apart;
        const bool there = first < apart && head < heads;
        take_head<E, INTERLEAVED>(a, cache, t, there ? head : 0, of_row + (there ? head : 0) * dim,
                                  raw[u], there);
    }
}

template <typename E>
static void launch_eights(struct cuda_backend *c, const struct rope_args &a, E *cache)
{
    const unsigned heads = blocks_for((size_t)a.heads + 2 * (size_t)a.kv.heads, ONCE);
    const unsigned all = blocks_for(heads * (unsigned)a.kv.dim / (2 * EIGHT), WARP) * WARP;
    const unsigned threads = all < MANY_THREADS ? all : MANY_THREADS;
    const dim3 grid((unsigned)a.rows.count, blocks_for(all, threads));
    if (a.rules.interleaved)
        LAUNCH_AHEAD(c, (rope_eights_kernel<E, true>), grid, threads, 0, a, cache);
    else
        LAUNCH_AHEAD(c, (rope_eights_kernel<E, false>), grid, threads, 0, a, cache);
}

/* Of what are fours. */
static bool are_eights(const struct rope_args &a)
{
    return a.rows.count >= ROPE_MANY_ROWS && a.qkv.dtype == DTYPE_BF16 &&
           a.kv.dim % (2 * EIGHT) == 0 && a.rotary % (2 * EIGHT) == 0;
}

static bool are_fours(const struct rope_args &a)
{
    const int32_t dim = a.kv.dim, lanes = dim / (2 * FOUR);
    const uintptr_t bits = (uintptr_t)a.qkv.data | (uintptr_t)a.table | (uintptr_t)a.rules.bias |
                           (uintptr_t)a.rules.q_norm | (uintptr_t)a.rules.k_norm |
                           (uintptr_t)a.rules.v_norm;
    const bool is_shared = lanes <= WARP && (lanes & (lanes - 1)) == 0;
    return dim % (2 * FOUR) == 0 && a.rotary % (2 * FOUR) == 0 && bits % sizeof(four) == 0 &&
           (is_shared || (a.rules.q_norm == nullptr && a.rules.v_norm == nullptr));
}

template <typename E>
static void launch_latent(struct cuda_backend *c, const struct rope_args &a, E *cache)
{
    const size_t lanes = (size_t)a.heads * (size_t)(a.rotary / (2 * FOUR)) +
                         (size_t)a.kv.heads * (size_t)(a.kv.dim / (2 * FOUR));
    const dim3 parts((unsigned)a.rows.count, blocks_for(lanes, MANY_THREADS));
    const dim3 heads((unsigned)a.rows.count, (unsigned)(a.heads + a.kv.heads));
    const bool ruled = a.rules.bias != nullptr || a.rules.q_norm != nullptr;
    if (heads.x == 0 || heads.y == 0)
        return;
    if (ruled || !are_fours(a))
        LAUNCH_AHEAD(c, rope_kv_kernel<E>, heads, THREADS, 0, a, cache);
    else if (lanes == 0) /* nothing turns, and there are no keys */
        return;
    else if (a.rules.interleaved)
        LAUNCH_AHEAD(c, (rope_latent_kernel<E, true>), parts, MANY_THREADS, 0, a, cache);
    else
        LAUNCH_AHEAD(c, (rope_latent_kernel<E, false>), parts, MANY_THREADS, 0, a, cache);
}

template <typename E>
static void launch(struct cuda_backend *c, const struct rope_args &a, void *cache)
{
    if (a.kv.latent > 0) {
        launch_latent<E>(c, a, (E *)cache);
        return;
    }
    const int32_t heads = a.heads + 2 * a.kv.heads, lanes = a.kv.dim / (2 * FOUR);
    const unsigned rows = (unsigned)a.rows.count;
    const dim3 parts(rows, blocks_for((size_t)heads * (size_t)lanes, MANY_THREADS));
    if (rows == 0 || heads == 0)
        return;
    if (!are_fours(a))
        LAUNCH_AHEAD(c, rope_kv_kernel<E>, dim3(rows, (unsigned)heads), THREADS, 0, a, (E *)cache);
    else if (are_eights(a))
        launch_eights<E>(c, a, (E *)cache);
    else if (a.rules.interleaved)
        LAUNCH_AHEAD(c, (rope_fours_kernel<E, true>), parts, MANY_THREADS, 0, a, (E *)cache);
    else
        LAUNCH_AHEAD(c, (rope_fours_kernel<E, false>), parts, MANY_THREADS, 0, a, (E *)cache);
}

void rope_kv(struct backend *b, struct view qkv, const struct qkv_rules *rules, struct cview table,
             const struct heads *h, const struct rows *rows, struct kv_cache *kv, int32_t layer)
{
    struct rope_args a = {elements_of(qkv), *rules,     (const float *)table.data,    *rows,
                          h->heads,         table.cols, kv_place_of(&kv->spec, layer)};
    a.kv.heads = backend_kv_given(h);
    WITH_KV_TYPE(kv->spec.dtype, launch<E>(cuda_of(b), a, kv->storage));
}
