/* DESIGN: a family's rules, the rotation and the store of keys and values are one launch for a
 * row's q, k and v. A cache block is [head][key, value][16 positions][head_dim], so one head's keys
 * of a block lie together.
 */
#include "kernels/cuda/device.cuh"

#include "kernels/cuda/kv_index.cuh"

#define THREADS 64 /* half a usual head */

__global__ void rope_table_kernel(float *table, const int32_t *position, const float *inv_freq,
                                  float scale, int32_t half)
{
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
        LAUNCH(cuda_of(b), rope_table_kernel, (unsigned)table.rows, THREADS, 0, (float *)table.data,
               position, inv_freq, scale, table.cols / 2);
}

struct rope_args {
    float *qkv;
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

/* Adds the bias, and returns the factor of the norm. */
DEVICE float apply_rules(float *x, const float *bias, const struct rope_args *a)
{
    const int32_t dim = a->kv.dim;
    float sum = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < dim / 2; i += (int32_t)blockDim.x) {
        const struct pair p = rope_pair(i, a->rotary, dim, a->rules.interleaved);
        if (bias != nullptr) {
            x[p.low] += bias[p.low];
            x[p.high] += bias[p.high];
        }
        sum = fmaf(x[p.low], x[p.low], sum);
        sum = fmaf(x[p.high], x[p.high], sum);
    }
    return 1 / sqrtf(reduce_block(sum, plus()) / (float)dim + a->rules.eps);
}

/* Block (row, head of [q | k | v]). */
template <typename E> __global__ void rope_kv_kernel(struct rope_args a, E *cache)
{
    const int32_t t = (int32_t)blockIdx.x, head = (int32_t)blockIdx.y, dim = a.kv.dim;
    const int32_t slot = a.rows.slot[t], turning = a.rotary / 2;
    launch_release();
    const bool is_value = head >= a.heads + a.kv.heads, is_key = head >= a.heads && !is_value;
    if (slot < 0)
        return;
    float *x = a.qkv + ((int64_t)t * (a.heads + 2 * a.kv.heads) + head) * dim;
    const float *c = a.table + (int64_t)t * a.rotary, *s = c + turning;
    E *to = nullptr;
    if (is_key || is_value) {
        const int32_t kv_head = (head - a.heads) % a.kv.heads, p = a.rows.position[t];
        const int32_t block = kv_block(&a.rows, slot, p / BACKEND_BLOCK_TOKENS);
        to = cache + kv_index(&a.kv, block, kv_head, is_value) +
             (int64_t)(p % BACKEND_BLOCK_TOKENS) * dim;
    }
    const float *gain = is_value ? nullptr : is_key ? a.rules.k_norm : a.rules.q_norm;
    const float *bias = a.rules.bias != nullptr ? a.rules.bias + head * dim : nullptr;
    float scale = 1;
    if (gain != nullptr || bias != nullptr)
        scale = apply_rules(x, bias, &a);
    for (int32_t i = (int32_t)threadIdx.x; i < dim / 2; i += (int32_t)blockDim.x) {
        const struct pair p = rope_pair(i, a.rotary, dim, a.rules.interleaved);
        float low = x[p.low], high = x[p.high];
        if (gain != nullptr) {
            low = low * scale * gain[p.low];
            high = high * scale * gain[p.high];
        }
        if (!is_value) {
            if (i < turning) {
                const float turned = low * c[i] - high * s[i];
                high = high * c[i] + low * s[i];
                low = turned;
            }
            x[p.low] = low;
            x[p.high] = high;
        }
        if (to != nullptr) {
            from_float(to + p.low, low);
            from_float(to + p.high, high);
        }
    }
}

void rope_kv(struct backend *b, struct view qkv, const struct qkv_rules *rules, struct cview table,
             const struct heads *h, const struct rows *rows, struct kv_cache *kv, int32_t layer)
{
    const struct rope_args a = {(float *)qkv.data, *rules,     (const float *)table.data,    *rows,
                                h->heads,          table.cols, kv_place_of(&kv->spec, layer)};
    const dim3 grid((unsigned)rows->count, (unsigned)(h->heads + 2 * h->kv_heads));
    if (grid.x > 0 && grid.y > 0)
        WITH_KV_TYPE(kv->spec.dtype,
                     LAUNCH(cuda_of(b), rope_kv_kernel<E>, grid, THREADS, 0, a, (E *)kv->storage));
}
