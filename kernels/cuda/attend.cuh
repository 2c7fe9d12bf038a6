/* What the attention kernels share: their arguments, and which rows are whose. */
#ifndef TESSERA_KERNELS_CUDA_ATTEND_CUH
#define TESSERA_KERNELS_CUDA_ATTEND_CUH

#include "kernels/cuda/device.cuh"

#include "kernels/cuda/kv_index.cuh"

#define ATTEND_LOG2E 1.44269504f
#define ATTEND_SPLITS 32
#define ATTEND_PARTIAL_MORE 4 /* floats behind an output of a split: its maximum, its sum */
#ifndef ATTEND_LONG_KEYS
#define ATTEND_LONG_KEYS 4096 /* from here on a row may be picked */
#endif

/* What is left to be done to q, k and v before attention; table NULL: nothing. Heads turn whole. */
struct attend_rope {
    const float *table; /* [rows, dim] */
    const float *bias;  /* NULL: none */
    bool interleaved;
};

struct attend_args {
    struct elements out; /* [rows, heads * dim] */
    struct elements qkv; /* [rows, given * dim] */
    struct rows rows;
    struct kv_place kv;
    const int32_t *kv_of; /* ascending */
    int32_t heads;
    int32_t window;       /* INT32_MAX: none */
    float scale, softcap; /* scores are powers of two, so both are times log2(e) */
    float *partial;       /* [places][heads][SPLITS][dim + 4]: output, maximum, sum; or NULL */
    int32_t *picked;      /* the rows that have places, or -1; NULL: each row has its own */
    int32_t picks;
    bool apart; /* no rows are a run */
    bool early; /* nor are two of one slot: what a row sees is of earlier steps, but for itself */
    const float *sink; /* [heads]; NULL: there is none */
    int32_t *tickets;  /* [places][kv heads]: blocks that are done; zero between launches */
    struct attend_rope rope;
    int32_t given; /* heads of a row of qkv: of q, k and v, or of q alone */
};

/* numerics_sink, of powers of two. */
DEVICE float attend_sum(const struct attend_args &a, int32_t head, float sum, float max)
{
    return a.sink != nullptr ? sum + exp2f(fmaf(a.sink[head], ATTEND_LOG2E, -max)) : sum;
}

/* The first key that a row at this position sees. */
HOST_DEVICE int32_t attend_first(const struct attend_args *a, int32_t position)
{
    return position < a->window ? 0 : position + 1 - a->window;
}

/* A score that is scaled, capped (numerics_softcap). */
DEVICE float attend_capped(const struct attend_args &a, float score)
{
    const float x = score * (2 * ATTEND_LOG2E / a.softcap);
    const float e = exp2f(126 < x ? 126 : x); /* a NaN stays one */
    return a.softcap * ((e - 1) / (e + 1));
}

HOST_DEVICE bool attend_is_picked(const struct attend_args *a, int32_t t)
{
    bool found = false;
    for (int32_t i = 0; i < a->picks; i++)
        found = found || a->picked[i] == t;
    return found;
}

/* A sequence row whose neighbours are of other slots. */
HOST_DEVICE bool attend_is_alone(const struct attend_args *a, int32_t t)
{
    const struct rows *r = &a->rows;
    const int32_t s = r->slot[t];
    return s >= 0 && (a->apart || ((t == 0 || r->slot[t - 1] != s) &&
                                   (t + 1 == r->count || r->slot[t + 1] != s)));
}

/* So many rows may be alone, one after the other. */
HOST_DEVICE int32_t attend_between(const struct attend_args *a)
{
    return a->rows.count - a->rows.head - a->rows.tail;
}

/* Which of them the block of a kernel for such rows has; -1: none. */
DEVICE int32_t attend_row_of_place(const struct attend_args *a)
{
    const int32_t place = (int32_t)blockIdx.x;
    return a->partial != nullptr && a->picked != nullptr ? a->picked[place] : a->rows.head + place;
}

/* A sequence row that is not. */
HOST_DEVICE bool attend_is_in_run(const struct attend_args *a, int32_t t)
{
    return a->rows.slot[t] >= 0 && !attend_is_alone(a, t);
}

/* Where the rows of row t's slot that follow it end, at most `end`. */
HOST_DEVICE int32_t attend_run_end(const struct rows *r, int32_t t, int32_t end)
{
    const int32_t slot = r->slot[t];
    while (++t < end && r->slot[t] == slot)
        continue;
    return t;
}

/* The query heads that read one KV head are neighbours: the first, and the one past the last. */
struct attend_heads {
    int32_t first, past;
};

/* How many heads read KV heads before this one. */
HOST_DEVICE int32_t attend_heads_before(const struct attend_args *a, int32_t kv_head)
{
    int32_t low = 0, high = a->heads;
    while (low < high) {
        const int32_t middle = (low + high) / 2;
        if (a->kv_of[middle] < kv_head)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

HOST_DEVICE struct attend_heads attend_heads_of(const struct attend_args *a, int32_t kv_head)
{
    const struct attend_heads h = {attend_heads_before(a, kv_head),
                                   attend_heads_before(a, kv_head + 1)};
    return h;
}

/* The same by a warp, whose lanes look at a head each: one look after the other takes longer. */
DEVICE struct attend_heads attend_heads_at_once(const struct attend_args &a, int32_t kv_head)
{
    struct attend_heads heads = {0, 0};
    for (int32_t first = 0; first < a.heads; first += WARP) {
        const int32_t h = first + (int32_t)threadIdx.x % WARP;
        const int32_t kv = h < a.heads ? a.kv_of[h] : INT32_MAX;
        heads.first += __popc(__ballot_sync(ALL_LANES, kv < kv_head));
        heads.past += __popc(__ballot_sync(ALL_LANES, kv <= kv_head));
    }
    return heads;
}

/* Where a head begins in `out`, and in `qkv`. */
HOST_DEVICE int64_t attend_out(const struct attend_args *a, int32_t t, int32_t head)
{
    return ((int64_t)t * a->heads + head) * a->kv.dim;
}

HOST_DEVICE int64_t attend_query(const struct attend_args *a, int32_t t, int32_t head)
{
    return ((int64_t)t * a->given + head) * a->kv.dim;
}

/* attend_decode.cu: rows that are alone, by tensor cores. false: not for this head size or type.
 * turns: whether that does what is in `rope`, too. */
bool attend_decode_run(struct cuda_backend *c, const struct attend_args *a, enum dtype dtype,
                       void *cache);
bool attend_decode_turns(int32_t dim, enum dtype dtype);
/* attend_latent.cu: all rows, over latents. Room for results of splits is a->partial. */
void attend_latent_run(struct cuda_backend *c, const struct attend_args *a, size_t partial_bytes,
                       enum dtype dtype, const void *cache);
/* attend_tile.cu: rows that are not alone, for any head size and type. */
void attend_tile_run(struct cuda_backend *c, const struct attend_args *a, enum dtype dtype,
                     const void *cache);
/* attend_flash.cu: the same by tensor cores. false: not for this head size or type. */
bool attend_flash_run(struct cuda_backend *c, const struct attend_args *a, enum dtype dtype,
                      const void *cache);
/* attend_wgmma.cu: the same by Hopper's. false: nor for this device. */
bool attend_wgmma_run(struct cuda_backend *c, const struct attend_args *a, enum dtype dtype,
                      const void *cache);

#endif
