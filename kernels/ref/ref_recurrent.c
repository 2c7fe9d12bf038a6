/* DESIGN: the gated delta rule as the numerics contract says it (backend.h), an element and a row
 * at a time. Unlike the rest of this backend it is in fp32: a state goes from step to step in fp32,
 * so what rounds where is part of what the op means, and the CPU variants have just these bits. How
 * far that is from the formulas, test_delta_rule says, which has them in doubles. */
#include "kernels/numerics.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

/* One row of one call: where it reads and what it changes. */
struct row {
    const struct recurrent_heads *h;
    const struct recurrent_rules *rules;
    float *a;           /* [q | k | v | z], of which the first three are convolved in place */
    const float *gates; /* [b | a] */
    float *matrix;      /* of the row's slot */
    float *before;      /* [taps - 1][C] of the row's slot */
    float *out;
};

static float silu(float x)
{
    return x / (1.0f + numerics_exp(-x));
}

/* The sum of squares in 16 lanes, which fold with stride 8, 4, 2, 1. */
static float squares(const float *x, int32_t n)
{
    float lane[16] = {0};
    for (int32_t i = 0; i < n; i++)
        lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
    for (int32_t stride = 8; stride > 0; stride /= 2)
        for (int32_t i = 0; i < stride; i++)
            lane[i] += lane[i + stride];
    return lane[0];
}

/* Also leaves the row as the last of those before the next. */
static void convolve(const struct row *r)
{
    const int32_t channels = backend_channels(r->h), taps = r->h->taps;
    for (int32_t c = 0; c < channels; c++) {
        const float raw = r->a[c];
        float sum = 0;
        for (int32_t i = 0; i < taps; i++) {
            const float x = i == taps - 1 ? raw : r->before[i * channels + c];
            sum = fmaf(x, r->rules->conv[c * taps + i], sum);
        }
        r->a[c] = silu(sum);
        for (int32_t i = 0; i + 2 < taps; i++)
            r->before[i * channels + c] = r->before[(i + 1) * channels + c];
        r->before[(taps - 2) * channels + c] = raw;
    }
}

/* Of all heads of queries, then of keys. */
static void normalise(const struct row *r)
{
    const int32_t dim = r->h->key_dim, heads = 2 * r->h->keys;
    const float of_query = 1.0f / sqrtf((float)dim);
    for (int32_t i = 0; i < heads; i++) {
        float *x = r->a + (ptrdiff_t)i * dim;
        const float by = 1.0f / sqrtf(squares(x, dim) + NUMERICS_SQUARES_LEAST);
        for (int32_t e = 0; e < dim; e++)
            x[e] = i < r->h->keys ? x[e] * by * of_query : x[e] * by;
    }
}

/* Column j of a value head's state: forgets, is corrected to give v for k, and asked for q. */
static float recall(float *column, int32_t stride, int32_t keys, const float *q, const float *k,
                    float v, float decay, float strength)
{
    float m = 0, o = 0;
    for (int32_t i = 0; i < keys; i++) {
        column[i * stride] *= decay;
        m = fmaf(column[i * stride], k[i], m);
    }
    const float u = (v - m) * strength;
    for (int32_t i = 0; i < keys; i++) {
        column[i * stride] = fmaf(k[i], u, column[i * stride]);
        o = fmaf(column[i * stride], q[i], o);
    }
    return o;
}

static void head(const struct row *r, int32_t n)
{
    const struct recurrent_heads *h = r->h;
    const int32_t keys = h->key_dim, dim = h->value_dim, of = n / (h->values / h->keys);
    const float *q = r->a + (ptrdiff_t)of * keys, *k = q + (ptrdiff_t)h->keys * keys;
    const float *v = r->a + 2 * (ptrdiff_t)h->keys * keys + (ptrdiff_t)n * dim;
    const float *z = v + (ptrdiff_t)h->values * dim;
    const float decay =
        numerics_decay(r->rules->decay[n], r->gates[h->values + n], r->rules->decay_bias[n]);
    const float strength = numerics_sigmoid(r->gates[n]);
    float *matrix = r->matrix + (ptrdiff_t)n * keys * dim, o[BACKEND_STATE_DIM_MAX] = {0};
    for (int32_t j = 0; j < dim; j++)
        o[j] = recall(matrix + j, dim, keys, q, k, v[j], decay, strength);
    const float by = 1.0f / sqrtf(squares(o, dim) / (float)dim + r->rules->eps);
    for (int32_t j = 0; j < dim; j++)
        r->out[n * dim + j] = o[j] * by * r->rules->gain[j] * silu(z[j]);
}

void ref_delta_rule(struct backend *b, struct view out, struct view a, struct cview gates,
                    const struct recurrent_heads *h, const struct recurrent_rules *rules,
                    const struct rows *rows, const struct recurrent_state *state)
{
    (void)b;
    CHECK(out.dtype == DTYPE_F32);
    const ptrdiff_t matrix = (ptrdiff_t)h->values * h->key_dim * h->value_dim;
    const ptrdiff_t before = (ptrdiff_t)(h->taps - 1) * backend_channels(h);
    for (int32_t t = 0; t < rows->count; t++) {
        struct row r = {h, rules, .a = (float *)a.data + (ptrdiff_t)t * a.cols};
        r.gates = (const float *)gates.data + (ptrdiff_t)t * gates.cols;
        r.out = (float *)out.data + (ptrdiff_t)t * out.cols;
        if (rows->slot[t] < 0) {
            memset(r.out, 0, (size_t)out.cols * sizeof *r.out);
            continue;
        }
        r.matrix = state->matrix + rows->slot[t] * matrix;
        r.before = state->rows + rows->slot[t] * before;
        if (rows->position[t] == 0) {
            memset(r.matrix, 0, (size_t)matrix * sizeof *r.matrix);
            memset(r.before, 0, (size_t)before * sizeof *r.before);
        }
        convolve(&r);
        normalise(&r);
        for (int32_t n = 0; n < h->values; n++)
            head(&r, n);
        const int32_t keep = state->keep ? state->keep[t] : -1;
        if (keep < 0)
            continue;
        memcpy(state->matrix + keep * matrix, r.matrix, (size_t)matrix * sizeof *r.matrix);
        memcpy(state->rows + keep * before, r.before, (size_t)before * sizeof *r.before);
    }
}

void ref_gate(struct backend *b, struct view y, struct cview x)
{
    (void)b;
    CHECK(y.dtype == DTYPE_F32);
    float *to = y.data;
    const float *from = x.data;
    for (size_t i = 0; i < (size_t)y.rows * (size_t)y.cols; i++)
        to[i] *= numerics_sigmoid(from[i]);
}
