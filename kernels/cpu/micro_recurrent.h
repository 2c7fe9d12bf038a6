/* The gated delta rule; part of micro.h. A lane is a column of a value head's state, so that sums
 * over its keys are chains of one lane. Some columns at once are a tile, which stays in the nearest
 * cache while all rows of a sequence pass: what a row adds and what the next one forgets and asks
 * first are one pass over it. */
#ifndef TESSERA_KERNELS_CPU_MICRO_RECURRENT_H
#define TESSERA_KERNELS_CPU_MICRO_RECURRENT_H

#define DELTA_VECS 2  /* of a tile, 16 KiB with keys of 128 */
#define ROWS_AHEAD 3  /* which lie far apart, where no processor looks ahead; */
#define KEYS_AHEAD 16 /* and so do the lines of a state's columns */

static_assert(BACKEND_STATE_DIM_MAX % 16 == 0, "heads are whole vectors");

/* y = silu of a chain over the taps; y may be one of the rows. */
static void convolve(float *y, const float *const *rows, const float *taps, int32_t count,
                     int32_t n)
{
    for (int32_t i = 0; i < n; i += 16) {
        v16 sum = v16_zero();
        for (int32_t tap = 0; tap < count; tap++)
            sum = v16_fma(v16_load(rows[tap] + i), v16_load(taps + (ptrdiff_t)tap * n + i), sum);
        const v16 e = exp16(v16_sub(v16_zero(), sum));
        v16_store(y + i, v16_div(sum, v16_add(v16_set1(1.0f), e)));
    }
}

V16_INLINE v16 sigmoid16(v16 x)
{
    const v16 one = v16_set1(1.0f);
    return v16_div(one, v16_add(one, exp16(v16_sub(v16_zero(), x))));
}

/* y *= sigmoid(x) */
static void gate(float *y, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i += 16) {
        const int32_t m = group(n, i);
        store_group(y + i, v16_mul(load_group(y + i, m), sigmoid16(load_group(x + i, m))), m);
    }
}

/* numerics_softplus */
V16_INLINE v16 softplus16(v16 x)
{
    const v16 e = exp16(v16_min(v16_sub(v16_zero(), x), x));
    const v16 t = v16_div(v16_add(e, e), v16_add(v16_set1(2.0f), e));
    const v16 z = v16_mul(v16_mul(t, t), v16_set1(0.25f));
    v16 p = v16_fma(v16_set1(NUMERICS_ATANH_C6), z, v16_set1(NUMERICS_ATANH_C5));
    p = v16_fma(p, z, v16_set1(NUMERICS_ATANH_C4));
    p = v16_fma(p, z, v16_set1(NUMERICS_ATANH_C3));
    p = v16_fma(p, z, v16_set1(NUMERICS_ATANH_C2));
    p = v16_fma(p, z, v16_set1(NUMERICS_ATANH_C1));
    p = v16_fma(p, z, v16_set1(1.0f));
    return v16_fma(t, p, v16_max(x, v16_zero()));
}

/* Of up to 16 rows from `row` on: numerics_decay and numerics_sigmoid of their gates. */
static void row_factors(const struct cpu_delta *d, int32_t row, float *decay, float *strength)
{
    const int32_t n = group(d->rows, row);
    ALIGNED64 float a[16] = {0}, b[16] = {0};
    for (int32_t i = 0; i < n; i++) {
        a[i] = d->a[(row + i) * d->gates_stride];
        b[i] = d->b[(row + i) * d->gates_stride];
    }
    const v16 rate = exp16(v16_set1(d->decay));
    const v16 by = softplus16(v16_add(v16_load(a), v16_set1(d->bias)));
    v16_store(decay, exp16(v16_sub(v16_zero(), v16_mul(rate, by))));
    v16_store(strength, sigmoid16(v16_load(b)));
}

/* The first row forgets: tile = state * decay; m: what is there for its key. */
V16_TEMPLATE void delta_first(float *tile, const struct cpu_delta *d, int32_t column, float decay,
                              v16 *sums, const int vecs)
{
    const float *state = d->state + column;
    v16 m[DELTA_VECS], by = v16_set1(decay);
    foreach(c, vecs)
        m[c] = v16_zero();
    for (int32_t i = 0; i < d->keys; i++, state += d->values, tile += 16 * vecs) {
        const v16 k = v16_set1(d->k[i]);
        foreach(c, vecs)
            __builtin_prefetch(state + (ptrdiff_t)KEYS_AHEAD * d->values + 16 * c, 1, 3);
        foreach(c, vecs) {
            const v16 s = v16_mul(d->begins ? v16_zero() : v16_load(state + 16 * c), by);
            v16_store(tile + 16 * c, s);
            m[c] = v16_fma(s, k, m[c]);
        }
    }
    foreach(c, vecs)
        sums[c] = m[c];
}

/* Row `row` writes u for its key and is asked o for its query, and the next one forgets: m. */
V16_TEMPLATE void delta_next(float *tile, const struct cpu_delta *d, int32_t row, float decay,
                             const v16 *u, v16 *sums, v16 *asked, const int vecs)
{
    const float *q = d->q + row * d->stride, *k = d->k + row * d->stride, *next = k + d->stride;
    v16 m[DELTA_VECS], o[DELTA_VECS], v[DELTA_VECS];
    const v16 by = v16_set1(decay);
    foreach(c, vecs) {
        m[c] = o[c] = v16_zero();
        v[c] = u[c];
    }
    for (int32_t i = 0; i < d->keys; i++, tile += 16 * vecs) {
        const v16 ki = v16_set1(k[i]), qi = v16_set1(q[i]), ni = v16_set1(next[i]);
        foreach(c, vecs) {
            v16 s = v16_fma(ki, v[c], v16_load(tile + 16 * c));
            o[c] = v16_fma(s, qi, o[c]);
            s = v16_mul(s, by);
            m[c] = v16_fma(s, ni, m[c]);
            v16_store(tile + 16 * c, s);
        }
    }
    foreach(c, vecs) {
        sums[c] = m[c];
        asked[c] = o[c];
    }
}

/* The last row, which leaves the state to the next call. */
V16_TEMPLATE void delta_last(const float *tile, const struct cpu_delta *d, int32_t column,
                             const v16 *u, v16 *asked, const int vecs)
{
    const ptrdiff_t last = (d->rows - 1) * d->stride;
    const float *q = d->q + last, *k = d->k + last;
    float *state = d->state + column;
    v16 o[DELTA_VECS], v[DELTA_VECS];
    foreach(c, vecs) {
        o[c] = v16_zero();
        v[c] = u[c];
    }
    for (int32_t i = 0; i < d->keys; i++, state += d->values, tile += 16 * vecs) {
        const v16 ki = v16_set1(k[i]), qi = v16_set1(q[i]);
        foreach(c, vecs) {
            const v16 s = v16_fma(ki, v[c], v16_load(tile + 16 * c));
            o[c] = v16_fma(s, qi, o[c]);
            v16_store(state + 16 * c, s);
        }
    }
    foreach(c, vecs)
        asked[c] = o[c];
}

V16_INLINE void prefetch_row(const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i += 16)
        __builtin_prefetch(x + i, 0, 3);
}

V16_TEMPLATE void delta_tile(const struct cpu_delta *d, int32_t column, const int vecs)
{
    ALIGNED64 float tile[BACKEND_STATE_DIM_MAX * 16 * DELTA_VECS], decay[16], strength[16];
    v16 m[DELTA_VECS], u[DELTA_VECS], o[DELTA_VECS];
    row_factors(d, 0, decay, strength);
    delta_first(tile, d, column, decay[0], m, vecs);
    for (int32_t row = 0; row < d->rows; row++) {
        float *v = d->v + row * d->stride + column;
        const v16 by = v16_set1(strength[row % 16]);
        if (row + ROWS_AHEAD < d->rows) {
            prefetch_row(d->q + (row + ROWS_AHEAD) * d->stride, d->keys);
            prefetch_row(d->k + (row + ROWS_AHEAD) * d->stride, d->keys);
            prefetch_row(v + ROWS_AHEAD * d->stride, 16 * vecs);
        }
        foreach(c, vecs)
            u[c] = v16_mul(v16_sub(v16_load(v + 16 * c), m[c]), by);
        if (row + 1 < d->rows) {
            if ((row + 1) % 16 == 0)
                row_factors(d, row + 1, decay, strength);
            delta_next(tile, d, row, decay[(row + 1) % 16], u, m, o, vecs);
        } else {
            delta_last(tile, d, column, u, o, vecs);
        }
        foreach(c, vecs)
            v16_store(v + 16 * c, o[c]);
    }
}

static void delta(const struct cpu_delta *d, int32_t column, int32_t columns)
{
    int32_t c = 0;
    for (; c + 16 * DELTA_VECS <= columns; c += 16 * DELTA_VECS)
        delta_tile(d, column + c, DELTA_VECS);
    for (; c < columns; c += 16)
        delta_tile(d, column + c, 1);
}

#endif
