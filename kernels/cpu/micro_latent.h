/* Weighted values of attention with latents, which lie transposed, as keys do; part of micro.h. Of
 * many heads each has a lane, and elements are broadcast; of few an element has a lane, for which
 * lines are transposed. Both are one chain per head and element, ascending over keys. */
#ifndef TESSERA_KERNELS_CPU_MICRO_LATENT_H
#define TESSERA_KERNELS_CPU_MICRO_LATENT_H

#define LATENT_LINES (4 * V16_KEYS) /* elements at once, their sums in registers */

static_assert(CPU_LATENT_HEADS == 16 && 16 % LATENT_LINES == 0, "a lane for a head");

/* Keys of a block that are seen: [*begin, returned). */
V16_INLINE int32_t seen_keys(const struct cpu_scores *a, int32_t block, int32_t *begin)
{
    const int32_t left = a->keys - 16 * block;
    *begin = block == 0 ? a->skip : 0;
    return left < 16 ? left : 16;
}

/* sums[element][head] of LATENT_LINES elements from e on; weights [key][head]. */
V16_TEMPLATE void latent_lines(const struct cpu_scores *a, const float *weights, float *sums,
                               int32_t e, const enum dtype t)
{
    const size_t line = 16 * element_size(t);
    ALIGNED64 float x[LATENT_LINES * 16];
    v16 acc[LATENT_LINES];
    foreach(i, LATENT_LINES)
        acc[i] = v16_zero();
    for (int32_t block = 0; 16 * block < a->keys; block++, weights += 256) {
        const unsigned char *v = a->blocks[block] + (size_t)e * line;
        foreach(i, LATENT_LINES)
            v16_store(x + 16 * i, load_as(t, v + (size_t)i * line));
        int32_t key, end = seen_keys(a, block, &key);
        for (; key < end; key++) {
            const v16 w = v16_load(weights + (ptrdiff_t)16 * key);
            foreach(i, LATENT_LINES)
                acc[i] = v16_fma(w, v16_set1(x[16 * i + key]), acc[i]);
        }
    }
    foreach(i, LATENT_LINES)
        v16_store(sums + 16 * i, t == DTYPE_F8_E4M3 ? v16_mul(acc[i], v16_set1(F8_SCALE)) : acc[i]);
}

/* `heads` heads from `head` on. */
V16_TEMPLATE void latent_few(const struct cpu_scores *a, int32_t head, const int heads,
                             const enum dtype t)
{
    const size_t line = 16 * element_size(t);
    ALIGNED64 float x[16 * 16];
    for (int32_t e = 0; e < a->dim; e += 16) {
        v16 acc[CPU_HEADS];
        foreach(h, heads)
            acc[h] = v16_zero();
        for (int32_t block = 0; 16 * block < a->keys; block++) {
            const unsigned char *v = a->blocks[block] + (size_t)e * line;
            const float *s = a->s + (ptrdiff_t)head * BACKEND_SEGMENT + (ptrdiff_t)16 * block;
            v16 r[16];
            foreach(i, 16)
                r[i] = load_as(t, v + (size_t)i * line);
            v16_transpose(r);
            foreach(i, 16)
                v16_store(x + 16 * i, r[i]);
            int32_t key, end = seen_keys(a, block, &key);
            for (; key < end; key++) {
                const v16 values = v16_load(x + (ptrdiff_t)16 * key);
                foreach(h, heads)
                    acc[h] = v16_fma(v16_set1(s[h * BACKEND_SEGMENT + key]), values, acc[h]);
            }
        }
        foreach(h, heads)
            v16_store(a->o + (head + h) * BACKEND_HEAD_DIM_MAX + e,
                      t == DTYPE_F8_E4M3 ? v16_mul(acc[h], v16_set1(F8_SCALE)) : acc[h]);
    }
}

/* weights[key][head] of s[head][key]; lanes without a head are zeros. */
static void latent_weights(const struct cpu_scores *a, float *weights)
{
    for (int32_t key = 0; key < a->keys; key += 16) {
        v16 r[16];
        for (int32_t h = 0; h < 16; h++)
            r[h] =
                h < a->heads ? v16_load(a->s + (ptrdiff_t)h * BACKEND_SEGMENT + key) : v16_zero();
        v16_transpose(r);
        for (int32_t i = 0; i < 16; i++, weights += 16)
            v16_store(weights, r[i]);
    }
}

V16_TEMPLATE void weigh_latents_as(const struct cpu_scores *a, const enum dtype t)
{
    ALIGNED64 float weights[BACKEND_SEGMENT * 16], sums[16 * 16];
    if (a->heads == 4) {
        latent_few(a, 0, 4, t);
        return;
    }
    if (a->heads < 4) {
        if (a->heads >= 2)
            latent_few(a, 0, 2, t);
        if (a->heads != 2)
            latent_few(a, a->heads - 1, 1, t);
        return;
    }
    latent_weights(a, weights);
    for (int32_t e = 0; e < a->dim; e += 16) {
        v16 r[16];
        for (int32_t i = 0; i < 16; i += LATENT_LINES)
            latent_lines(a, weights, sums + (ptrdiff_t)16 * i, e + i, t);
        foreach(i, 16)
            r[i] = v16_load(sums + 16 * i);
        v16_transpose(r);
        for (int32_t h = 0; h < a->heads; h++)
            v16_store(a->o + (ptrdiff_t)h * BACKEND_HEAD_DIM_MAX + e, r[h]);
    }
}

static void weigh_latents(const struct cpu_scores *a)
{
    if (a->dtype == DTYPE_F32)
        weigh_latents_as(a, DTYPE_F32);
    else if (a->dtype == DTYPE_F16)
        weigh_latents_as(a, DTYPE_F16);
    else if (a->dtype == DTYPE_F8_E4M3)
        weigh_latents_as(a, DTYPE_F8_E4M3);
    else
        weigh_latents_as(a, DTYPE_BF16);
}

#endif
