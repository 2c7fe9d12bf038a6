/* What the kernels of latents share (attend_latent.cu): which keys a row is given, how these are
 * cut into splits, where results of splits lie, and how they are folded. */
#ifndef TESSERA_KERNELS_CUDA_ATTEND_LATENT_CUH
#define TESSERA_KERNELS_CUDA_ATTEND_LATENT_CUH

#include "kernels/cuda/attend.cuh"

#include "kernels/cuda/mma.cuh"

#define SPLITS ATTEND_SPLITS
#define SPLIT_KEYS_MIN 128 /* a multiple of a tile, and worth a fold */
#ifndef LATENT_BLOCKS
#define LATENT_BLOCKS 264 /* so many fill the device without splits */
#endif

struct latent_args {
    struct attend_args a;
    int32_t latent, heads_tile; /* elements of a value; heads of a block */
    int32_t room;               /* splits for which there is memory, each of all heads */
    int32_t most;               /* splits of the longest row there may be */
    bool all;                   /* there is room for so many of each row */
    bool few;                   /* rows, which are split; else long ones of decodes alone */
};

struct key_range {
    int32_t begin, end;
};

/* The keys that a row at this position is given: those it sees, and what is before them in the
 * first's cache block. */
HOST_DEVICE struct key_range latent_keys(const struct attend_args *a, int32_t position)
{
    const int32_t first = attend_first(a, position);
    const struct key_range r = {first - first % BACKEND_BLOCK_TOKENS, position + 1};
    return r;
}

/* Keys of a split: even parts, of whole tiles, by their number only. */
HOST_DEVICE int32_t latent_split_size(int32_t length)
{
    const int32_t even = (length + SPLITS - 1) / SPLITS;
    return (even + SPLIT_KEYS_MIN - 1) / SPLIT_KEYS_MIN * SPLIT_KEYS_MIN;
}

/* At most SPLITS. */
HOST_DEVICE int32_t latent_split_count(int32_t length)
{
    const int32_t size = latent_split_size(length);
    return (length + size - 1) / size;
}

HOST_DEVICE struct key_range latent_split_range(struct key_range all, int32_t split)
{
    const int32_t size = latent_split_size(all.end - all.begin), begin = all.begin + split * size;
    const struct key_range r = {begin, all.end - begin < size ? all.end : begin + size};
    return r;
}

/* How many splits of row t are for several blocks; 0: it is not shared. */
HOST_DEVICE int32_t splits_wanted(const struct latent_args *l, int32_t t)
{
    const struct rows *r = &l->a.rows;
    if (r->slot[t] < 0 || (!l->few && !attend_is_alone(&l->a, t)))
        return 0;
    const struct key_range keys = latent_keys(&l->a, r->position[t]);
    const int32_t length = keys.end - keys.begin, splits = latent_split_count(length);
    return splits > 1 && (l->few || length >= ATTEND_LONG_KEYS) ? splits : 0;
}

/* Where the splits of row t begin, in memory that rows take one after the other; -1: there is none
 * for them, or they want none. All threads of a block call. */
DEVICE int32_t place_of(const struct latent_args &l, int32_t t)
{
    const int32_t own = splits_wanted(&l, t);
    int32_t before = 0;
    if (own == 0 || l.all)
        return own == 0 ? -1 : t * l.most;
    for (int32_t i = (int32_t)threadIdx.x; i < t; i += (int32_t)blockDim.x)
        before += splits_wanted(&l, i);
    before = reduce_block(before, plus());
    return before + own <= l.room ? before : -1;
}

/* Output, maximum and sum of one split, of those that begin at a place. */
HOST_DEVICE float *partial_at(const struct latent_args *l, int32_t place, int32_t split,
                              int32_t head)
{
    return l->a.partial +
           ((int64_t)(place + split) * l->a.heads + head) * (l->latent + ATTEND_PARTIAL_MORE);
}

/* Maximum and sum of a head's weights, of all splits so far, or of one. */
struct ends {
    float max, sum;
};

/* What outputs are to be multiplied by when one split more is added. */
struct folding {
    float shrink, weight;
};

/* all = `more` after all the keys before it. */
DEVICE struct folding fold_ends(struct ends *all, const struct ends &more)
{
    const float max = fmaxf(all->max, more.max);
    const struct folding f = {mma_exp2(all->max - max), mma_exp2(more.max - max)};
    all->sum = fmaf(all->sum, f.shrink, more.sum * f.weight);
    all->max = max;
    return f;
}

DEVICE float fold(float all, float more, const struct folding &f)
{
    return fmaf(all, f.shrink, more * f.weight);
}

DEVICE int64_t latent_out(const struct latent_args &l, int32_t t, int32_t head)
{
    return ((int64_t)t * l.a.heads + head) * l.latent;
}

DEVICE int64_t latent_query(const struct latent_args &l, int32_t t, int32_t head)
{
    return ((int64_t)t * (l.a.heads + l.a.kv.heads) + head) * l.a.kv.dim;
}

/* A block's work: some heads that read one KV head, and splits of a row. */
struct latent_work {
    int32_t t, slot, position, kv_head;
    int32_t first, past; /* heads; none: there is nothing to do */
    int32_t place;       /* of the row's splits; -1: the block folds all of them */
    int32_t split, end;  /* splits */
    struct key_range keys;
};

/* Grid: (row, KV head and tile of its heads, split). Padding has nothing to be done but zeros. Most
 * blocks of a grid for long rows have nothing to do, which they know first. */
DEVICE struct latent_work work_of(const struct latent_args &l, int32_t tiles)
{
    struct latent_work w = {};
    w.t = (int32_t)blockIdx.x;
    w.slot = l.a.rows.slot[w.t];
    w.position = l.a.rows.position[w.t];
    w.split = (int32_t)blockIdx.z;
    w.end = 1;
    if (w.slot >= 0) {
        w.keys = latent_keys(&l.a, w.position);
        w.end = latent_split_count(w.keys.end - w.keys.begin);
    }
    if (w.split >= w.end)
        return w;
    w.kv_head = (int32_t)blockIdx.y / tiles;
    const struct attend_heads heads = attend_heads_at_once(l.a, w.kv_head);
    w.first = heads.first + (int32_t)blockIdx.y % tiles * l.heads_tile;
    w.past = heads.past - w.first < l.heads_tile ? heads.past : w.first + l.heads_tile;
    if (w.slot < 0)
        return w;
    w.place = place_of(l, w.t);
    if (w.place >= 0)
        w.end = w.split + 1;
    else if (w.split > 0)
        w.end = w.split; /* the first block has them all */
    return w;
}

/* By the block of split 0. */
DEVICE void put_zeros(const struct latent_args &l, const struct latent_work &w)
{
    const int64_t begin = latent_out(l, w.t, w.first), end = latent_out(l, w.t, w.past);
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)
        put_element(l.a.out, i, 0);
}

/* attend_latent_plain.cu: any type and size, without tensor cores. */
void attend_latent_plain(struct cuda_backend *c, const struct latent_args *l, enum dtype dtype,
                         const void *cache);

#endif
