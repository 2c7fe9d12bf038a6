/* Backend: math on one device behind one op table. Knows no ranks and no requests.
 *
 * Asynchronous by contract: the result of an op is visible to later ops of the same backend, and to
 * the host after sync. One thread drives a backend. Ops allocate nothing. The ops that a model's
 * step is made of are checked in one place (backend.c) before dispatch; what moves and holds memory
 * (upload, fetch, copy, weight_put), sum_tree and resolve are called as they are in the table,
 * which has no optional members.
 *
 * Shapes: T rows of this step, R rows that are sampled, D hidden, H/K local query/KV heads, E head
 * size, F local MLP width, V vocabulary. Activations are row-major, contiguous, fp32; but for what
 * linear_in and linear_out allow.
 * Per-step values (ids, positions, slots, tables) are device arrays; scalars on the host are sizes.
 * A padded row has slot -1: it reads and writes nothing but its own row of the output, as zeros.
 *
 * Numerics contract of the CPU variants (generic states it, the others equal it bit for bit):
 *
 *   linear     each output is one ascending chain over k of fused multiply-adds from +0.0, per leaf
 *              of K; leaves are folded by a tree (stride 1, 2, 4, ...). Rows never mix.
 *   BF16       x is rounded to bf16 first (nearest even), so that products are exact; and numbers
 *              below the smallest normal one are zeros, of x, of weights and of a chain's sums,
 *              as VDPBF16PS has it. A GPU may keep 16 bits of x, and small numbers.
 *   F8_E4M3    a weight is its code times its scale, rounded to fp32: results are those of the same
 *              values held in F32. A GPU may also round x to this type, with a scale per row.
 *   I8, I4,    a weight is a code of 8 or 4 bits (of U4 less the zero of its group) times the
 *   U4,        scale of its group of 32 columns; x is rounded to codes of 8 bits, too, with a
 *   F4_E2M1    scale for each run: the columns of a group that lie in one leaf (numerics.h). The
 *              sum of products of codes over a run is an integer, so exact; an output is one
 *              ascending chain over the runs of fused multiply-adds of that sum and (scale of the
 *              weight * scale of x) from +0.0, per leaf. A GPU leaves x alone: results are those of
 *              the same values held in BF16, to which it rounds a code times its scale (which has
 *              11 bits then, as fp16).
 *   experts    expert_linear is linear, with each row's experts for itself. In expert_sum a leaf's
 *              sum of a row begins with +0.0; to it are added, ascending over the row's experts,
 *              the products of share and the expert's chain over that leaf. Leaves fold as above.
 *   sums       over a row (norm) and over keys (softmax) run in 16 virtual lanes: lane j adds
 *              elements j, j+16, ... in ascending order; lanes fold with stride 8, 4, 2, 1.
 *   attention  reduces keys in ascending segments of 256 positions: per segment the maximum, the
 *              exponentials, their sum and the weighted values (ascending over keys, FMA); segments
 *              are merged ascending with the running (maximum, sum, output). A window leaves out
 *              keys and whole segments before it; where the others are in theirs stays. A sink is
 *              added to the sum last.
 *   delta_rule a convolution is one ascending chain over its taps of fused multiply-adds from
 *              +0.0, then silu. Queries and keys are times 1 / sqrt(sum of squares + 1e-6), a sum
 *              as above, queries then times 1 / sqrt(key_dim). A value head has, in fp32, a decay
 *              d = exp(-exp(decay) * softplus(a + decay_bias)) and a strength s = sigmoid(b).
 *              S = S * d; m[j]: ascending chain over i of fma(S[i][j], k[i], m[j]) from +0.0;
 *              u[j] = (v[j] - m[j]) * s; S[i][j] = fma(k[i], u[j], S[i][j]); o[j]: that chain
 *              with q[i]. The result is the RMS norm of o with `gain`, times silu(z).
 *   exp        is the polynomial of kernels/numerics.h, the same operations in every variant.
 *
 * So the bits do not depend on the number of rows, tiles, threads or the instruction set. */
#ifndef TESSERA_KERNELS_BACKEND_H
#define TESSERA_KERNELS_BACKEND_H

#include "config/base.h"
#include "config/dtype.h"
#include "kernels/pieces.h"
#include "kernels/sample.h"

#define BACKEND_LEAVES_MAX 8    /* K of a row-parallel linear is cut into this many leaves */
#define BACKEND_BLOCK_TOKENS 16 /* positions per KV block */
#define BACKEND_SEGMENT 256     /* keys per attention segment */
#define BACKEND_PEERS_MAX 64    /* most addends of sum_tree */
#define BACKEND_HEAD_DIM_MAX 512
#define BACKEND_KEY_DIM_MAX 576               /* of a key whose last elements are its value, too */
#define BACKEND_FLIGHTS 2                     /* groups of downloads under way (fetch) */
#define BACKEND_FETCHES 4                     /* downloads in one of them, */
#define BACKEND_FETCH_MAX ((size_t)256 << 10) /* and their bytes together */
#define BACKEND_SCALE_MAX 0x1p7f /* largest scale of F8_E4M3: kernels add powers of two to it */
#define BACKEND_GROUP 32         /* columns that share a scale of I8, I4, U4 and F4_E2M1 */
#define BACKEND_EXPERTS_MAX 1024
#define BACKEND_CHOSEN_MAX 64     /* experts of a row */
#define BACKEND_STATE_DIM_MAX 256 /* elements of a head that recurs */
#define BACKEND_TAPS_MAX 8        /* of a convolution */

/* Borrowed [rows, cols] matrices, contiguous. */
struct view {
    void *data;
    enum dtype dtype;
    int32_t rows, cols;
};
struct cview {
    const void *data;
    enum dtype dtype;
    int32_t rows, cols;
};

/* Shape of a linear's local weight, [out, in]. Leaf i covers columns [cut[i], cut[i+1]);
 * cut[0] = 0, cut[leaves] = in, ascending, empty leaves allowed. leaves = 1 for column-parallel. */
struct weight_spec {
    int32_t out, in;  /* either may be 0: the rank owns nothing of it */
    enum dtype dtype; /* storage: F32, F16, BF16, or F8_E4M3, I8, I4, U4, F4_E2M1 with scales */
    int32_t leaves;
    int32_t cut[BACKEND_LEAVES_MAX + 1];
    /* F8_E4M3: an output has one scale for each group of scale_cols columns (0: one for all). Where
     * the weight is cut out of a wider one, scale_skip columns of the first group lie before it.
     * I8, I4, U4, F4_E2M1: the same, and scale_cols is BACKEND_GROUP. */
    int32_t scale_cols, scale_skip;
    int32_t scales_f32; /* of I8, I4 and U4: scales are held in F32, not BF16 */
};

/* How many scales each output has; 0 unless the type has them. */
static inline int32_t backend_scales(const struct weight_spec *s)
{
    if (!dtype_is_scaled(s->dtype))
        return 0;
    return s->scale_cols == 0 ? 1 : (s->scale_skip + s->in + s->scale_cols - 1) / s->scale_cols;
}
/* Which of them column k has, and the first column that has the next one (or `in`). */
static inline int32_t backend_scale_of(const struct weight_spec *s, int32_t k)
{
    return s->scale_cols == 0 ? 0 : (s->scale_skip + k) / s->scale_cols;
}
static inline int32_t backend_scale_end(const struct weight_spec *s, int32_t k)
{
    if (!dtype_is_scaled(s->dtype) || s->scale_cols == 0)
        return s->in;
    const int64_t end = ((int64_t)backend_scale_of(s, k) + 1) * s->scale_cols - s->scale_skip;
    return end < s->in ? (int32_t)end : s->in;
}

struct recording; /* opaque: ops to be run again, as they are */
struct weight;    /* opaque: spec and the backend's layout over borrowed storage */

/* Paged KV cache of one rank: `blocks` blocks of 16 positions in so many layers. */
struct kv_spec {
    int32_t layers, heads, head_dim; /* heads = local KV heads, may be 0 */
    int32_t latent;                  /* as of struct heads: then only keys are stored */
    int32_t blocks;
    /* F32, F16, BF16, or F8_E4M3: nearest even, saturated at 448, NaN kept; no scale, so that what
     * is stored at a position depends on nothing else. */
    enum dtype dtype;
    /* 0: a block of a layer lies behind that layer's block before it. Else bytes from a block, of
     * all layers together, to the next: at least kv_bytes of one block, and a multiple of the
     * alignment of storage. So caches of different shapes share blocks, each of which holds what
     * one of them has there. */
    size_t stride;
};
struct kv_cache; /* opaque, over borrowed storage */

/* Where the rows of a step live. All arrays on the device, `count` entries. */
struct rows {
    int32_t count;           /* T */
    const int32_t *slot;     /* sequence slot, -1 = padding */
    const int32_t *position; /* 0-based position in the sequence */
    const int32_t *table;    /* [slots, table_cols] KV block numbers; where a layer slides, anything
                                before the block of the first key that a row sees */
    int32_t table_cols;
    bool apart; /* no two rows are of one slot, which the host knows: decodes; nor does one see a
                   block that another writes in this step (sequence.c: who shares a young block
                   waits). A recording holds for steps that are as it was recorded for */
    int32_t head, tail; /* of the first rows, and of the last, so many at least are not padding and
                           have a neighbour of their slot, which the host knows: chunks of prompts.
                           0 in a recording, which holds for others, too */
};

/* Which query head reads which local KV head: query head h of this rank (0 <= h < heads) reads
 * kv_of[h]. heads may be 0. */
struct heads {
    int32_t heads, kv_heads, head_dim;
    const int32_t *kv_of;
    /* 0: keys and values have head_dim elements each. Else a key's last `latent` ones are its
     * value, too, a multiple of 16, as head_dim is then, up to BACKEND_KEY_DIM_MAX, while a value
     * has at most BACKEND_HEAD_DIM_MAX. */
    int32_t latent;
    /* q alone is in qkv, [T, H * E]: the keys and values that it attends to are what another layer
     * has put into the cache. latent is 0 then. */
    bool alone;
};
/* How many KV heads are in a row of qkv. */
static inline int32_t backend_kv_given(const struct heads *h)
{
    return h->alone ? 0 : h->kv_heads;
}
/* Elements of a value, and of what attention makes of a head. */
static inline int32_t backend_value_dim(const struct heads *h)
{
    return h->latent > 0 ? h->latent : h->head_dim;
}

/* What a family does to q, k and v before the rotation, NULL: nothing; and which elements turn
 * together. fp32, on the device. */
struct qkv_rules {
    const float *bias;            /* [(H + 2K) * E] or, of q alone, [H * E], added */
    const float *q_norm, *k_norm; /* [E], both or none: gains of an RMS norm of each head */
    const float *v_norm;          /* [E], of each value that is apart from its key; without a
                                     rotation. Of q alone neither this nor k_norm matters */
    float eps;
    bool interleaved; /* neighbours turn together, not an element of each half */
};

/* An RMS norm of all heads of q together, and one of all of k, which ranks have parts of: each rank
 * tells the squares of its own heads. The counts and places are those of the whole model's heads.
 */
struct joint_norm {
    int32_t heads, kv_heads; /* H', K': of all ranks */
    int32_t first, first_kv; /* of them the first ones of this rank */
    bool shared; /* another rank has the first KV head, too, and tells its squares; false without */
    const float *q_gain, *k_gain; /* [H * E], [K * E] of this rank's heads, fp32, on the device */
    float eps;
};

/* Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): what one product makes of a row,
 * [query | value | turns], is the latent of its queries, that of its value and of what does not
 * turn in its key, and what turns there. */
struct latent_rules {
    int32_t query, value, turns;          /* columns; query may be 0 */
    const float *query_gain, *value_gain; /* of RMS norms, [query], [value], fp32, on the device */
    float eps;
};

/* A layer that recurs (gated delta rule, arXiv 2412.06464, as Qwen3-Next has it) keeps a matrix of
 * each value head instead of keys and values. The heads of this rank: value head h reads key head
 * h / (values / keys). Any may be 0, and then both are. */
struct recurrent_heads {
    int32_t keys, values;       /* K of queries and of keys, V, a multiple of K */
    int32_t key_dim, value_dim; /* multiples of 16, up to BACKEND_STATE_DIM_MAX */
    int32_t taps;               /* 2 to BACKEND_TAPS_MAX, of a convolution over rows */
};
/* Elements of a row that are convolved, C: [q heads | k heads | v heads]. */
static inline int32_t backend_channels(const struct recurrent_heads *h)
{
    return 2 * h->keys * h->key_dim + h->values * h->value_dim;
}
/* fp32, on the device. */
struct recurrent_rules {
    const float *conv;               /* [C, taps], the tap of the row itself last */
    const float *decay, *decay_bias; /* [V] A_log, dt_bias */
    const float *gain;               /* [value_dim] */
    float eps;
};
/* What a layer remembers of each slot; fp32, on the device, by who calls. A row at position 0 finds
 * zeros there, whatever there is; what any other finds is what the row before it left. */
struct recurrent_state {
    float *matrix; /* [slots, V, key_dim, value_dim] */
    float *rows;   /* [slots, taps - 1, C] the last rows before the convolution, oldest first */
    /* [T] a slot without rows, in which what is there after the row is kept, too, -1: in none; no
     * two rows have the same. NULL: nothing is kept. */
    const int32_t *keep;
};

/* How a layer attends. A row's query sees the keys of its slot at positions (p - window, p], p
 * being its own, or all from 0 on where window is 0. */
struct attention {
    float scale;    /* of the products with the keys, > 0 */
    float softcap;  /* 0: off; else a score s, which is scaled, becomes numerics_softcap(s) */
    int32_t window; /* >= 0 */
    /* [H] score of a key of each query head that has no value, on the device; NULL: there is none.
     * numerics_sink. */
    const float *sink;
};

/* What an MLP makes of a row of gates and ups, [gates | ups]:
 *   SILU          up * silu(gate), silu(g) = g / (1 + exp(-g))
 *   GELU_TANH     up * numerics_gelu(gate)
 * and where they take turns, gate, up, gate, ...:
 *   SWIGLU_PAIRS  numerics_swiglu(gate, up) */
enum activation { ACT_SILU, ACT_GELU_TANH, ACT_SWIGLU_PAIRS, ACT_COUNT };

/* What is done together with a product (linear_fused): the RMS norm of x before it, unless gain is
 * NULL, and what becomes of the product p. */
enum linear_end {
    LINEAR_STORE, /* y = p */
    LINEAR_ADD,   /* y += p */
    LINEAR_ACT    /* y = act_mul of p, the weight's outputs being [gates | ups] */
};
struct linear_fusion {
    const float *gain; /* [in] */
    float eps;
    enum linear_end end;
    enum activation act; /* of LINEAR_ACT */
};

/* What add_rmsnorm is given besides an addend: x += it; y = rmsnorm(x), of the same types. */
struct add_norm {
    struct view y, x;
    const float *gain; /* [D] */
    float eps;
};

/* One linear of all experts of a mixture: their weights, of one shape and type. Opaque. */
struct experts;

/* By what route chooses, and what shares are. The last `shared` of the E experts are in the choice
 * of every row; the others have a score each, which is their part in the softmax of their logits,
 * or the sigmoid of each, and as many of them are chosen as there is room for. */
struct routing_rules {
    bool sigmoid;
    bool among;              /* a share is the score over the sum of those chosen, not the score */
    float scale;             /* of these shares */
    const float *correction; /* [E - shared] added to scores for the choice alone, on the device;
                                NULL: there is none */
    /* [E - shared] on the device: the share of an expert that is chosen by its score is multiplied
     * with its own, last; NULL: there is none */
    const float *expert_scale;
    /* 0: all may be chosen. Else only those of `kept` groups, out of so many that the others are
     * divided into, one after the other: those with the largest score in them, or with a
     * correction, sum of the two largest corrected ones; ties to the lowest group. */
    int32_t groups, kept;
    int32_t shared; /* 0 <= shared < chosen */
    bool gated;     /* the share of each of them is the sigmoid of one more logit, behind
                       those of the others; else 1 */
};
/* Logits that a row has. */
static inline int32_t backend_route_logits(int32_t experts, const struct routing_rules *rules)
{
    return experts - rules->shared + rules->gated;
}

/* Which experts the rows of a step take, and how much of each. Arrays on the device, which route
 * writes. */
struct routing {
    int32_t experts, chosen; /* E; how many a row takes, <= E */
    int32_t *expert;         /* [T, chosen] ascending in each row */
    float *share;            /* [T, chosen] */
};

struct backend;

struct backend_ops {
    const char *name;

    /* --- storage: pure functions of the spec, so that `plan` needs no device --- */
    size_t (*weight_bytes)(const struct weight_spec *spec);
    size_t (*kv_bytes)(const struct kv_spec *spec);
    /* Are there at least `devices` devices? ERR_DEVICE says what is missing. *bytes = free memory
     * of the one with least; 0: ops work in the host's memory, which the front end provides. */
    enum status (*probe)(int32_t devices, size_t *bytes, struct err *err);
    /* What a backend takes of that memory for itself, after a reserve of these sizes. */
    size_t (*scratch_bytes)(int32_t rows_max, int32_t in_max, int32_t out_max);

    void (*close)(struct backend *b);
    void (*sync)(struct backend *b);
    /* Device memory: 64-byte aligned, zeroed; NULL when there is none left. Not while steps run. */
    void *(*alloc)(struct backend *b, size_t bytes);
    void (*free)(struct backend *b, void *p);
    /* Host to device, before the ops that follow; src is free on return. Any thread. */
    void (*upload)(struct backend *b, void *dst, const void *src, size_t bytes);
    /* Device to host, after the ops before; waits. Reports the first failure since open. */
    enum status (*download)(struct backend *b, void *dst, const void *src, size_t bytes,
                            struct err *err);
    /* The same in two parts, so that the host can work meanwhile. fetch enqueues a copy in a flight
     * (0 .. BACKEND_FLIGHTS - 1), up to BACKEND_FETCHES copies and BACKEND_FETCH_MAX bytes in each;
     * one of 0 bytes only marks a place in the order of the ops. landed: have all its copies, and
     * the ops before them, been done? land waits for that and reports as download does; only then
     * may dst be read, and the flight be used again. */
    void (*fetch)(struct backend *b, int32_t flight, void *dst, const void *src, size_t bytes);
    bool (*landed)(struct backend *b, int32_t flight);
    enum status (*land)(struct backend *b, int32_t flight, struct err *err);
    /* Between record and record_end ops are recorded with their arguments instead of run (a CUDA
     * graph). record: false where this backend does not record, because nothing would be gained.
     * Nothing may be uploaded, downloaded, waited for or allocated in between. record_end: NULL
     * when recording failed; no op has run then. A replay reads what the arrays hold at that time,
     * but none of its ops writes a weight; a recording must not outlive the arrays. */
    bool (*record)(struct backend *b);
    struct recording *(*record_end)(struct backend *b);
    void (*replay)(struct backend *b, const struct recording *r);
    void (*recording_close)(struct recording *r);
    /* As backend_reserve and backend_parallel below. */
    enum status (*reserve)(struct backend *b, int32_t rows_max, int32_t in_max, int32_t out_max,
                           struct err *err);
    void (*parallel)(struct backend *b, int64_t count, int64_t grain,
                     void (*fn)(void *arg, int64_t begin, int64_t end), void *arg);

    /* Handle over `storage` (64-byte aligned, weight_bytes long, zeroed or already filled). */
    struct weight *(*weight_open)(struct backend *b, const struct weight_spec *spec, void *storage);
    void (*weight_close)(struct weight *w);
    /* Writes rows [row, row + rows) from row-major src with `stride` bytes per row and all `in`
     * columns, converted from src_dtype to the storage dtype; F8_E4M3 storage takes codes only, as
     * they are, I8 and I4 take I8 (-128 to 127, -8 to 7), U4 takes I8, codes less their zeros (-15
     * to 15, in each group at most 15 apart), F4_E2M1 takes I8, twice the value: 0, 1, 2, 3, 4, 6,
     * 8, 12 or less than 0. Thread-safe for disjoint groups of 32 rows that start at a multiple of
     * 32. */
    void (*weight_put)(struct weight *w, int32_t row, int32_t rows, const void *src,
                       enum dtype src_dtype, size_t stride);
    /* The scales of those rows, [rows, backend_scales]. F8_E4M3: 0 to BACKEND_SCALE_MAX. Of the
     * integers: values of bf16 or, with scales_f32, any, up to 2^100; of F4_E2M1 powers of two,
     * 2^-126 to 2^123. Threads as in weight_put. */
    void (*weight_scale)(struct weight *w, int32_t row, int32_t rows, const float *scale);
    /* Reads one row back as fp32 [in]; for checks. */
    void (*weight_get)(const struct weight *w, int32_t row, float *dst);

    /* The handle of a linear's experts, weight[0..count), which are borrowed. Reserves scratch for
     * its ops with up to rows_max rows that take `chosen` experts each; chosen = 0: they are not
     * experts but heads' matrices, for head_linear. NULL: no memory. */
    struct experts *(*experts_open)(struct backend *b, const struct weight *const *weight,
                                    int32_t count, int32_t chosen, int32_t rows_max);
    void (*experts_close)(struct experts *e);
    /* Scratch it takes beside that of `reserve`, which all handles share; 0 on the host. */
    size_t (*experts_bytes)(const struct weight_spec *spec, int32_t count, int32_t chosen,
                            int32_t rows_max);

    struct kv_cache *(*kv_open)(struct backend *b, const struct kv_spec *spec, void *storage);
    void (*kv_close)(struct kv_cache *kv);

    /* ids[t] = token[t] >= 0 ? token[t] : history[slot[t]][position[t]]; padding gives -1. A token
     * that is given is put into the history. */
    void (*resolve)(struct backend *b, int32_t *ids, const int32_t *token, const struct rows *rows,
                    const struct sample_slots *slots);
    /* y[t] = row (ids[t] - first) of w[out, D] as fp32, times scale; zeros when outside
     * [first, first + out). */
    void (*embed)(struct backend *b, struct view y, const int32_t *ids, const struct weight *w,
                  int32_t first, float scale);
    /* y[T, out] = x[T, in] * w[out, in]^T. in == 0 gives zeros. x is fp32 or of the type that
     * linear_in names, y fp32 or of the one that linear_out names: then each result is rounded to
     * it, once. */
    void (*linear)(struct backend *b, struct view y, struct cview x, const struct weight *w);
    /* Is a product of so many rows made with these in one go, because that is a launch less? Then
     * linear_fused does it: x and y are fp32, x[T, in] begins at 16 bytes, and y, which does not
     * overlap x, is [T, out] or, of an activation, [T, out / 2]. Without a norm the bits are those
     * of linear and add or act_mul. Norms may divide by their root after the product. The same
     * answer whenever it is asked. */
    bool (*linear_fuses)(struct backend *b, const struct weight *w, int32_t rows,
                         const struct linear_fusion *f);
    void (*linear_fused)(struct backend *b, struct view y, struct cview x, const struct weight *w,
                         const struct linear_fusion *f);
    /* In what type x of a product of so many rows is best written if nobody else reads it: F32, or
     * F16 or BF16, to which the product would round it, or with which it is content. rmsnorm,
     * add_rmsnorm, attend, delta_rule, gate and act_mul can write what this names for a weight,
     * rounded once. The same answer whenever it is asked. */
    enum dtype (*linear_in)(struct backend *b, const struct weight *w, int32_t rows);
    /* In what type a product of so many rows is best written if nobody but rope_kv and attend,
     * act_mul or, as delta, add_rmsnorm reads it: F32, or where that is much to write, BF16. The
     * same answer whenever it is asked. */
    enum dtype (*linear_out)(struct backend *b, const struct weight *w, int32_t rows);
    /* For each row of logits[T, backend_route_logits] the experts that the rules choose, those with
     * the largest scores, ties to the lowest expert: their numbers, ascending, and their shares.
     * Without a correction the order of scores is that of logits. */
    void (*route)(struct backend *b, const struct routing *r, struct cview logits,
                  const struct routing_rules *rules);
    /* y[t] = [x[t] * w[e]^T for each expert e of the row, one after the other]; w[e] is [out, in],
     * y [T, chosen * out]. */
    void (*expert_linear)(struct backend *b, struct view y, struct cview x, const struct experts *w,
                          const struct routing *r);
    /* y[t] = sum of share * (x[t, i] * w[e]^T) over the row's experts e, of which the i-th has
     * columns [i * in, (i + 1) * in) of x; y [T, out]. */
    void (*expert_sum)(struct backend *b, struct view y, struct cview x, const struct experts *w,
                       const struct routing *r);
    /* What heads have a matrix [out, in] of their own for: x[T, n * (in + kept)] and y[T, cols],
     * cols >= n * (kept + out), are n heads side by side, w has n matrices; of each head y = [the
     * last `kept` of x as they are | the first `in` of x * w^T], linear for itself. Other columns
     * of y stay as they are. x fp32; y fp32, or of the type that linear_in names for who takes it.
     */
    void (*head_linear)(struct backend *b, struct view y, struct cview x, const struct experts *w,
                        int32_t kept);
    /* a[T, query + value + turns] by the rules: query[T, query] = rmsnorm of the first columns; and
     * the last turns + value columns of qkv, one KV head's key, = [turns as it is | rmsnorm of
     * value]. fp32. */
    void (*latent)(struct backend *b, struct view query, struct view qkv, struct cview a,
                   const struct latent_rules *rules);
    /* y[t] = x[t] + bias, fp32 [D]. y may alias x. */
    void (*add_bias)(struct backend *b, struct view y, struct cview x, const float *bias);
    /* Biases [E, out] of a linear of experts. After expert_linear, in place: y[t, i] += bias[e], e
     * being the i-th expert of the row. After expert_sum: y[t] = x[t], to which the products of
     * share and bias[e] are added, ascending; y may alias x. */
    void (*expert_bias)(struct backend *b, struct view y, const float *bias,
                        const struct routing *r);
    void (*expert_bias_sum)(struct backend *b, struct view y, struct cview x, const float *bias,
                            const struct routing *r);
    /* y = x * rsqrt(mean(x^2) + eps) * gain, per row. y may alias x if it is fp32. gain fp32 [D].
     */
    void (*rmsnorm)(struct backend *b, struct view y, struct cview x, const float *gain, float eps);
    /* x += delta; y = rmsnorm(x). y may alias delta if both are of one type, not x. */
    void (*add_rmsnorm)(struct backend *b, struct view y, struct view x, struct cview delta,
                        const float *gain, float eps);
    /* The two halves of add_rmsnorm where a row's columns are split over ranks. square_sum: x +=
     * delta unless delta has no data; sums[t] = sum of x[t]^2, of each of the pieces first, then of
     * the pieces as by sum_tree. rms_scale, with the sums over all `width` columns:
     * y = x * rsqrt(sums[t] / width + eps) * gain. y may alias x. */
    void (*square_sum)(struct backend *b, float *sums, struct view x, struct cview delta,
                       struct pieces pieces);
    void (*rms_scale)(struct backend *b, struct view y, struct cview x, const float *sums,
                      int32_t width, const float *gain, float eps);
    /* x += delta, and then, unless scale is NULL, x *= scale[0], which is on the device. */
    void (*add)(struct backend *b, struct view x, struct cview delta, const float *scale);
    /* A joint norm of q and k in qkv, as of rope_kv, in two halves: squares[T, H' + K'] = the sum
     * of squares of each head that this rank tells, q's before k's, zeros for others; and, with
     * those of all ranks, which are added in ascending order, in place: q = q * rsqrt(sum / (H' *
     * E) + eps) * gain, and k alike. */
    void (*joint_squares)(struct backend *b, struct view squares, struct cview qkv,
                          const struct joint_norm *n, const struct heads *h);
    void (*joint_scale)(struct backend *b, struct view qkv, struct cview squares,
                        const struct joint_norm *n, const struct heads *h);
    /* q of qkv, as of rope_kv, times numerics_query_scale of the row's position. */
    void (*scale_queries)(struct backend *b, struct view qkv, const struct heads *h,
                          const int32_t *position, float beta, int32_t original);
    /* table[t, E] = cos[E/2] then sin[E/2] of position[t] * inv_freq[i] (product rounded to fp32,
     * as transformers does), times scale. inv_freq fp32 [E/2]. */
    void (*rope_table)(struct backend *b, struct view table, const int32_t *position,
                       const float *inv_freq, float scale);
    /* qkv[T, (H + 2K) * E] = [q heads | k heads | v heads], or with latents [T, (H + K) * E] = [q
     * heads | k heads]: applies the rules (the bias is one
     * addition, the norm of a head that of rmsnorm), rotates the first R elements of each q and k
     * by table[T, R] (pair i: elements i and i + R/2, interleaved 2i and 2i + 1; R may be 0), all
     * in place, and stores k and v, if it is apart, at the rows' positions of `layer`. Of q alone
     * qkv is [T, H * E], and nothing is stored. */
    void (*rope_kv)(struct backend *b, struct view qkv, const struct qkv_rules *rules,
                    struct cview table, const struct heads *h, const struct rows *rows,
                    struct kv_cache *kv, int32_t layer);
    /* out[T, H * backend_value_dim]: attention of each row's q over the positions of its slot that
     * it sees. */
    void (*attend)(struct backend *b, struct view out, struct cview qkv, const struct heads *h,
                   const struct attention *how, const struct rows *rows, const struct kv_cache *kv,
                   int32_t layer);
    /* rope_kv, then attend, with their bits; nothing may be relied on of what is in qkv then. */
    void (*rope_attend)(struct backend *b, struct view out, struct view qkv,
                        const struct qkv_rules *rules, struct cview table, const struct heads *h,
                        const struct attention *how, const struct rows *rows, struct kv_cache *kv,
                        int32_t layer);
    /* out[T, V * value_dim] of a[T, C + V * value_dim] = [q | k | v | z] and gates[T, 2V] = [b |
     * a], all fp32 but for out. Rows of a slot stand together, their positions ascending by one.
     * Nothing may be relied on of what is in `a` then. */
    void (*delta_rule)(struct backend *b, struct view out, struct view a, struct cview gates,
                       const struct recurrent_heads *h, const struct recurrent_rules *rules,
                       const struct rows *rows, const struct recurrent_state *state);
    /* y[T, F] *= sigmoid(x[T, F]), x fp32 */
    void (*gate)(struct backend *b, struct view y, struct cview x);
    /* y[T, F] of gu[T, 2F] */
    void (*act_mul)(struct backend *b, struct view y, struct cview gu, enum activation act);
    /* y[T, F] = act(x[T, F]) * by[t, 0..F), of whose rows each begins `stride` floats behind the
     * one before; act is not of pairs. The bits are act_mul's of [x | by]. y may alias x. fp32. */
    void (*act_by)(struct backend *b, struct view y, struct cview x, const float *by, size_t stride,
                   enum activation act);
    /* y = x * by. y may alias x. */
    void (*scale)(struct backend *b, struct view y, struct cview x, float by);
    /* x[R, V] = numerics_softcap(x, cap), cap > 0 */
    void (*softcap)(struct backend *b, struct view x, float cap);
    /* y[r] = x[index[r]] */
    void (*select)(struct backend *b, struct view y, struct cview x, const int32_t *index);
    /* dst[rows, cols] = src[rows, cols], whose rows begin `stride` elements apart; zeros when src
     * is NULL. The two do not overlap. fp32 or any 4 bytes. */
    void (*copy)(struct backend *b, float *dst, size_t dst_stride, const float *src,
                 size_t src_stride, int32_t rows, int32_t cols);
    /* y[n] = tree sum of addends[0..count): stride 1, 2, 4, ... y may alias addends[0]. fp32. */
    void (*sum_tree)(struct backend *b, float *y, const float *const *addends, int32_t count,
                     size_t n);
    /* One token per row of logits[R, V]: greedy, or Gumbel-max over the kept tokens (top-k, then
     * min-p, then top-p) with noise keyed (seed, choice, position, token), after the slot's rules;
     * logits stay as they are. Ties: lowest id. Writes ids[r] and the history at position[r]. A row
     * with a NaN or +inf, or with nothing but -inf, gives id -1 (0 in the history, which is over).
     * A row with a target gives it, and padding gives -1; neither writes a history, nor does a
     * SAMPLE_CHECK. Exact definition: kernels/numerics.h. */
    void (*sample)(struct backend *b, int32_t *ids, struct cview logits,
                   const struct sample_rows *rows, const struct sample_slots *slots);
    /* Distributed sampling, above: the R rows' columns [first, first + cols) of the vocabulary.
     * Rows that are padding or have a target say nothing. */
    void (*survey)(struct backend *b, struct sample_survey *out, struct cview logits, int32_t first,
                   const struct sample_election *e, const struct sample_rows *rows,
                   const struct sample_slots *slots);
    void (*nominate)(struct backend *b, union sample_ballot *ballot, struct cview logits,
                     int32_t first, const struct sample_election *e, const struct sample_rows *rows,
                     const struct sample_slots *slots);
    /* As sample, but ids[r] is the row's target, and no history is written, where the nucleus is
     * not provably among the nominees or sample would refuse the row: these ids are targets with
     * which sample draws what is left. */
    void (*elect)(struct backend *b, int32_t *ids, const struct sample_election *e,
                  const struct sample_rows *rows, const struct sample_slots *slots);
    /* For rows with top[r] >= 0: logprob[r] of ids[r], and best[r * stride ..] = the top[r] <= V
     * most likely, descending, ties to the lowest id. Raw logits. NaN where ids[r] is -1 or the row
     * is one that sample refuses; its best are not written. Other rows cost nothing. */
    void (*logprobs)(struct backend *b, float *logprob, struct token_top *best, int32_t stride,
                     struct cview logits, const int32_t *ids, const int32_t *top);
};

struct backend {
    const struct backend_ops *ops;
};

/* By name: "cpu" (best variant for this machine), "cpu-generic", "cpu-avx2", "cpu-avx512",
 * "cpu-vnni", "cpu-bf16", "cpu-neon", "cpu-dotprod", "ref", "cuda" or "cuda-deterministic", of
 * which ":N" names the device (through the module). threads >= 1 includes the calling thread.
 * ERR_DEVICE names what is missing.
 */
enum status backend_open(const char *name, int32_t threads, struct backend **out,
                         struct err *err) MUST_USE;
/* The table alone, for size questions; NULL when unknown. */
const struct backend_ops *backend_find(const char *name);
/* The same with the reason: ERR_DEVICE. */
enum status backend_table(const char *name, const struct backend_ops **out,
                          struct err *err) MUST_USE;
/* Name of the variant "cpu" stands for here. */
const char *backend_cpu_variant(void);
void backend_close(struct backend *b);

/* Sizes the scratch so that ops of up to rows_max rows, in_max input and out_max output columns
 * (out_max also bounds the columns of sampled logits) allocate nothing. Without it the first op of
 * a bigger shape grows the scratch: backend_linear, backend_sample, backend_survey,
 * backend_nominate, backend_elect and backend_logprobs can return ERR_NOMEM then. */
enum status backend_reserve(struct backend *b, int32_t rows_max, int32_t in_max, int32_t out_max,
                            struct err *err) MUST_USE;

/* Runs fn(arg, begin, end) over [0, count) split among the backend's threads in multiples of
 * `grain`; for the loader. Returns when all is done. */
void backend_parallel(struct backend *b, int64_t count, int64_t grain,
                      void (*fn)(void *arg, int64_t begin, int64_t end), void *arg);

/* --- checked front of the table: what model code calls. ERR_INTERNAL names op and shapes. --- */
enum status backend_embed(struct backend *b, struct view y, const int32_t *ids,
                          const struct weight *w, int32_t first, float scale,
                          struct err *err) MUST_USE;
enum status backend_linear(struct backend *b, struct view y, struct cview x, const struct weight *w,
                           struct err *err) MUST_USE;
enum status backend_linear_fused(struct backend *b, struct view y, struct cview x,
                                 const struct weight *w, const struct linear_fusion *f,
                                 struct err *err) MUST_USE;
/* As experts_open. weight: all of one spec, count <= BACKEND_EXPERTS_MAX; heads' matrices are of
 * F32, F16 or BF16 and in one leaf. */
enum status backend_experts_open(struct backend *b, const struct weight *const *weight,
                                 int32_t count, int32_t chosen, int32_t rows_max,
                                 struct experts **out, struct err *err) MUST_USE;
enum status backend_route(struct backend *b, const struct routing *r, struct cview logits,
                          const struct routing_rules *rules, struct err *err) MUST_USE;
enum status backend_expert_linear(struct backend *b, struct view y, struct cview x,
                                  const struct experts *w, const struct routing *r,
                                  struct err *err) MUST_USE;
enum status backend_expert_sum(struct backend *b, struct view y, struct cview x,
                               const struct experts *w, const struct routing *r,
                               struct err *err) MUST_USE;
enum status backend_head_linear(struct backend *b, struct view y, struct cview x,
                                const struct experts *w, int32_t kept, struct err *err) MUST_USE;
enum status backend_latent(struct backend *b, struct view query, struct view qkv, struct cview a,
                           const struct latent_rules *rules, struct err *err) MUST_USE;
enum status backend_add_bias(struct backend *b, struct view y, struct cview x, const float *bias,
                             struct err *err) MUST_USE;
enum status backend_expert_bias(struct backend *b, struct view y, const float *bias,
                                const struct routing *r, struct err *err) MUST_USE;
enum status backend_expert_bias_sum(struct backend *b, struct view y, struct cview x,
                                    const float *bias, const struct routing *r,
                                    struct err *err) MUST_USE;
enum status backend_rmsnorm(struct backend *b, struct view y, struct cview x, const float *gain,
                            float eps, struct err *err) MUST_USE;
enum status backend_add_rmsnorm(struct backend *b, struct view y, struct view x, struct cview delta,
                                const float *gain, float eps, struct err *err) MUST_USE;
enum status backend_square_sum(struct backend *b, float *sums, struct view x, struct cview delta,
                               struct pieces pieces, struct err *err) MUST_USE;
enum status backend_rms_scale(struct backend *b, struct view y, struct cview x, const float *sums,
                              int32_t width, const float *gain, float eps,
                              struct err *err) MUST_USE;
enum status backend_add(struct backend *b, struct view x, struct cview delta, const float *scale,
                        struct err *err) MUST_USE;
enum status backend_joint_squares(struct backend *b, struct view squares, struct cview qkv,
                                  const struct joint_norm *n, const struct heads *h,
                                  struct err *err) MUST_USE;
enum status backend_joint_scale(struct backend *b, struct view qkv, struct cview squares,
                                const struct joint_norm *n, const struct heads *h,
                                struct err *err) MUST_USE;
enum status backend_scale_queries(struct backend *b, struct view qkv, const struct heads *h,
                                  const int32_t *position, float beta, int32_t original,
                                  struct err *err) MUST_USE;
enum status backend_rope_table(struct backend *b, struct view table, const int32_t *position,
                               const float *inv_freq, float scale, struct err *err) MUST_USE;
enum status backend_rope_kv(struct backend *b, struct view qkv, const struct qkv_rules *rules,
                            struct cview table, const struct heads *h, const struct rows *rows,
                            struct kv_cache *kv, int32_t layer, struct err *err) MUST_USE;
enum status backend_attend(struct backend *b, struct view out, struct cview qkv,
                           const struct heads *h, const struct attention *how,
                           const struct rows *rows, const struct kv_cache *kv, int32_t layer,
                           struct err *err) MUST_USE;
enum status backend_rope_attend(struct backend *b, struct view out, struct view qkv,
                                const struct qkv_rules *rules, struct cview table,
                                const struct heads *h, const struct attention *how,
                                const struct rows *rows, struct kv_cache *kv, int32_t layer,
                                struct err *err) MUST_USE;
enum status backend_delta_rule(struct backend *b, struct view out, struct view a,
                               struct cview gates, const struct recurrent_heads *h,
                               const struct recurrent_rules *rules, const struct rows *rows,
                               const struct recurrent_state *state, struct err *err) MUST_USE;
enum status backend_gate(struct backend *b, struct view y, struct cview x,
                         struct err *err) MUST_USE;
enum status backend_act_mul(struct backend *b, struct view y, struct cview gu, enum activation act,
                            struct err *err) MUST_USE;
enum status backend_act_by(struct backend *b, struct view y, struct cview x, const float *by,
                           size_t stride, enum activation act, struct err *err) MUST_USE;
enum status backend_scale(struct backend *b, struct view y, struct cview x, float by,
                          struct err *err) MUST_USE;
enum status backend_softcap(struct backend *b, struct view x, float cap, struct err *err) MUST_USE;
enum status backend_select(struct backend *b, struct view y, struct cview x, const int32_t *index,
                           struct err *err) MUST_USE;
enum status backend_sample(struct backend *b, int32_t *ids, struct cview logits,
                           const struct sample_rows *rows, const struct sample_slots *slots,
                           struct err *err) MUST_USE;
enum status backend_survey(struct backend *b, struct sample_survey *out, struct cview logits,
                           int32_t first, const struct sample_election *e,
                           const struct sample_rows *rows, const struct sample_slots *slots,
                           struct err *err) MUST_USE;
enum status backend_nominate(struct backend *b, union sample_ballot *ballot, struct cview logits,
                             int32_t first, const struct sample_election *e,
                             const struct sample_rows *rows, const struct sample_slots *slots,
                             struct err *err) MUST_USE;
enum status backend_elect(struct backend *b, int32_t *ids, const struct sample_election *e,
                          const struct sample_rows *rows, const struct sample_slots *slots,
                          struct err *err) MUST_USE;
enum status backend_logprobs(struct backend *b, float *logprob, struct token_top *best,
                             int32_t stride, struct cview logits, const int32_t *ids,
                             const int32_t *top, struct err *err) MUST_USE;

/* Spec of a weight, for shape questions. */
const struct weight_spec *backend_weight_spec(const struct weight *w);
/* What weight_put fills, weight_bytes long: for weights that travel as they are stored. */
const void *backend_weight_storage(const struct weight *w);

/* Views over a matrix the caller owns. */
static inline struct view view_f32(float *data, int32_t rows, int32_t cols)
{
    return (struct view){data, DTYPE_F32, rows, cols};
}
static inline struct cview cview_of(struct view v)
{
    return (struct cview){v.data, v.dtype, v.rows, v.cols};
}

#endif
