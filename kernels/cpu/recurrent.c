/* DESIGN: the gated delta rule in three rounds of the pool. (1) The convolution of each head of q,
 * k and v, in place, and the norms of q and k; (2) the recurrence of each value head by columns of
 * its state, a tile of which stays in the cache while all rows of a sequence pass, and which leaves
 * its result in the place of v; (3) norm and gate of each row. In (1) and (2) an item is a unit of
 * work for the run of rows of a slot that begins with a row, so with most rows of a prompt there
 * is nothing to do: a list of runs would want memory. Rejected: the parallel form over chunks of
 * rows, which adds up in another order, so that a prompt's bits would depend on how it is divided.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/numerics.h"

#include <math.h>
#include <string.h>

#define CHUNKS 8        /* of a round, for each thread */
#define LEAST_WORK 8192 /* multiply-adds of a chunk, by which it is worth a wake-up */
#define AHEAD 3         /* rows, which lie far apart, where no processor looks ahead */

struct job {
    const struct cpu_isa *isa;
    const struct recurrent_heads *h;
    const struct recurrent_rules *rules;
    const struct rows *rows;
    const struct recurrent_state *state;
    float *a, *out;
    const float *gates;
    ptrdiff_t a_cols;
    int32_t tiles; /* of a value head */
};

/* Rows of the run that begins with row t, or 0. */
static int32_t run_at(const struct rows *rows, int32_t t)
{
    const int32_t slot = rows->slot[t];
    int32_t n = 1;
    if (slot < 0 || (t > 0 && rows->slot[t - 1] == slot))
        return 0;
    while (t + n < rows->count && rows->slot[t + n] == slot)
        n++;
    return n;
}

/* The other slot in which is kept what there is after row t; -1: there is none. */
static int32_t kept_in(const struct job *j, int32_t t)
{
    return j->state->keep ? j->state->keep[t] : -1;
}

/* ---- convolution ----------------------------------------------------------------------------- */

/* A head of q, k or v: [first, first + dim) of the channels. */
struct unit {
    int32_t first, dim, taps;
    bool is_query, is_value;
    float tap[BACKEND_TAPS_MAX * BACKEND_STATE_DIM_MAX];          /* [taps][dim] */
    float before[(BACKEND_TAPS_MAX - 1) * BACKEND_STATE_DIM_MAX]; /* raw rows before the run */
    float by[BACKEND_STATE_DIM_MAX];
};

static void unit_init(struct unit *u, const struct job *j, int32_t head)
{
    const struct recurrent_heads *h = j->h;
    u->is_query = head < h->keys;
    u->is_value = head >= 2 * h->keys;
    u->first = u->is_value ? 2 * h->keys * h->key_dim + (head - 2 * h->keys) * h->value_dim
                           : head * h->key_dim;
    u->dim = u->is_value ? h->value_dim : h->key_dim;
    u->taps = h->taps;
    const float *conv = j->rules->conv + (ptrdiff_t)u->first * u->taps;
    for (int32_t c = 0; c < u->dim; c++) {
        u->by[c] = u->is_query ? 1.0f / sqrtf((float)h->key_dim) : 1.0f;
        for (int32_t i = 0; i < u->taps; i++)
            u->tap[i * u->dim + c] = conv[c * u->taps + i];
    }
}

/* Row n of the run as it came, where those before it have n < 0. */
static const float *raw(const struct unit *u, const struct job *j, int32_t t, int32_t n)
{
    return n < 0 ? u->before + (ptrdiff_t)(u->taps - 1 + n) * u->dim
                 : j->a + (t + n) * j->a_cols + u->first;
}

static float *rows_in(const struct unit *u, const struct job *j, int32_t slot)
{
    const ptrdiff_t channels = backend_channels(j->h);
    return j->state->rows + slot * (u->taps - 1) * channels + u->first;
}

/* The last of the run's first n rows, as they came, into that slot. */
static void leave_rows(const struct unit *u, const struct job *j, int32_t t, int32_t n,
                       int32_t slot)
{
    float *to = rows_in(u, j, slot);
    for (int32_t i = 1 - u->taps; i < 0; i++, to += backend_channels(j->h))
        memcpy(to, raw(u, j, t, n + i), (size_t)u->dim * sizeof *to);
}

/* Takes out what the slot has of rows before the run, and leaves there what the run's end is. */
static void pass_rows(struct unit *u, const struct job *j, int32_t t, int32_t n)
{
    const float *from = rows_in(u, j, j->rows->slot[t]);
    const size_t bytes = (size_t)u->dim * sizeof *from;
    for (int32_t i = 0; i < u->taps - 1; i++, from += backend_channels(j->h)) {
        if (j->rows->position[t] == 0)
            memset(u->before + (ptrdiff_t)i * u->dim, 0, bytes);
        else
            memcpy(u->before + (ptrdiff_t)i * u->dim, from, bytes);
    }
    for (int32_t i = 0; i < n; i++)
        if (kept_in(j, t + i) >= 0)
            leave_rows(u, j, t, i + 1, kept_in(j, t + i));
    leave_rows(u, j, t, n, j->rows->slot[t]);
}

static void normalise(const struct unit *u, const struct job *j, float *x)
{
    if (!u->is_value)
        j->isa->norm(x, x, u->by,
                     1.0f / sqrtf(j->isa->sum_squares(x, u->dim) + NUMERICS_SQUARES_LEAST), u->dim);
}

/* From the last row on, since each needs those before it as they came. */
static void convolve_run(struct unit *u, const struct job *j, int32_t t, int32_t n)
{
    const float *rows[BACKEND_TAPS_MAX];
    pass_rows(u, j, t, n);
    for (int32_t row = n - 1; row >= 0; row--) {
        float *x = j->a + (t + row) * j->a_cols + u->first;
        for (int32_t i = 0; i < u->taps; i++)
            rows[i] = raw(u, j, t, row - u->taps + 1 + i);
        for (int32_t c = 0; row - u->taps >= AHEAD && c < u->dim; c += 16)
            __builtin_prefetch(raw(u, j, t, row - u->taps + 1 - AHEAD) + c, 1, 3);
        j->isa->convolve(x, rows, u->tap, u->taps, u->dim);
        normalise(u, j, x);
    }
}

/* Item: row + rows * head. */
static void convolve_items(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    struct unit u;
    int32_t made = -1;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const int32_t t = (int32_t)(i % j->rows->count), head = (int32_t)(i / j->rows->count);
        const int32_t n = run_at(j->rows, t);
        if (n == 0)
            continue;
        if (made != head)
            unit_init(&u, j, head);
        made = head;
        convolve_run(&u, j, t, n);
    }
}

/* ---- recurrence ------------------------------------------------------------------------------ */

static float *matrix_in(const struct job *j, int32_t slot, int32_t head)
{
    const ptrdiff_t matrix = (ptrdiff_t)j->h->key_dim * j->h->value_dim;
    return j->state->matrix + ((ptrdiff_t)slot * j->h->values + head) * matrix;
}

/* The head's rows from t on, none yet. */
static struct cpu_delta delta_of(const struct job *j, int32_t head, int32_t t)
{
    const struct recurrent_heads *h = j->h;
    const ptrdiff_t keys = (ptrdiff_t)h->keys * h->key_dim;
    float *row = j->a + t * j->a_cols;
    const float *gates = j->gates + (ptrdiff_t)t * 2 * h->values;
    struct cpu_delta d = {.stride = j->a_cols, .gates_stride = 2 * (ptrdiff_t)h->values};
    d.keys = h->key_dim;
    d.values = h->value_dim;
    d.state = matrix_in(j, j->rows->slot[t], head);
    d.q = row + (ptrdiff_t)(head / (h->values / h->keys)) * h->key_dim;
    d.k = d.q + keys;
    d.v = row + 2 * keys + (ptrdiff_t)head * h->value_dim;
    d.b = gates + head;
    d.a = gates + h->values + head;
    d.decay = j->rules->decay[head];
    d.bias = j->rules->decay_bias[head];
    d.begins = j->rows->position[t] == 0;
    return d;
}

/* Up to each row that is kept, and on from there. */
static void recur(const struct job *j, int32_t head, int32_t tile, int32_t t, int32_t n)
{
    const int32_t values = j->h->value_dim, column = tile * j->isa->delta_columns;
    const int32_t columns = base_min32(values - column, j->isa->delta_columns);
    for (const int32_t end = t + n; t < end;) {
        struct cpu_delta d = delta_of(j, head, t);
        while (t + d.rows < end && kept_in(j, t + d.rows++) < 0)
            ;
        j->isa->delta(&d, column, columns);
        t += d.rows;
        const int32_t keep = kept_in(j, t - 1);
        float *to = keep < 0 ? NULL : matrix_in(j, keep, head) + column;
        for (int32_t i = 0; to && i < j->h->key_dim; i++)
            memcpy(to + (ptrdiff_t)i * values, d.state + (ptrdiff_t)i * values + column,
                   (size_t)columns * sizeof *to);
    }
}

/* Item: row + rows * (tile + tiles * head). */
static void recur_items(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const int32_t t = (int32_t)(i % j->rows->count), unit = (int32_t)(i / j->rows->count);
        const int32_t n = run_at(j->rows, t);
        if (n > 0)
            recur(j, unit / j->tiles, unit % j->tiles, t, n);
    }
}

/* ---- norm and gate --------------------------------------------------------------------------- */

static void norm_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    const struct recurrent_heads *h = j->h;
    const int32_t dim = h->value_dim;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *o = j->a + t * j->a_cols + 2 * (ptrdiff_t)h->keys * h->key_dim;
        const float *z = o + (ptrdiff_t)h->values * dim;
        float *out = j->out + t * h->values * dim;
        if (j->rows->slot[t] < 0) {
            memset(out, 0, (size_t)h->values * (size_t)dim * sizeof *out);
            continue;
        }
        for (int32_t head = 0; head < h->values; head++, o += dim, out += dim) {
            const float mean = j->isa->sum_squares(o, dim) / (float)dim;
            j->isa->norm(out, o, j->rules->gain, 1.0f / sqrtf(mean + j->rules->eps), dim);
        }
        out -= (ptrdiff_t)h->values * dim;
        j->isa->act_mul[ACT_SILU](out, z, out, h->values * dim);
    }
}

/* Items of a chunk, of so many and of so much work each (of one row). */
static int64_t grain(const struct cpu_backend *c, int64_t count, int64_t work)
{
    const int64_t even = count / ((int64_t)CHUNKS * pool_threads(c->pool));
    const int64_t least = 1 + LEAST_WORK / work;
    return even > least ? even : least;
}

void recurrent_delta_rule(struct backend *b, struct view out, struct view a, struct cview gates,
                          const struct recurrent_heads *h, const struct recurrent_rules *rules,
                          const struct rows *rows, const struct recurrent_state *state)
{
    struct cpu_backend *c = cpu_of(b);
    CHECK(out.dtype == DTYPE_F32);
    struct job j = {.isa = c->isa, .h = h, .rules = rules, .rows = rows, .state = state};
    j.a = a.data;
    j.a_cols = a.cols;
    j.out = out.data;
    j.gates = gates.data;
    j.tiles = (h->value_dim - 1) / c->isa->delta_columns + 1;
    const int64_t units = rows->count * (2 * (int64_t)h->keys + h->values);
    const int64_t tiles = (int64_t)rows->count * h->values * j.tiles;
    pool_run(c->pool, units, grain(c, units, (int64_t)h->key_dim * (h->taps + 8)), convolve_items,
             &j);
    pool_run(c->pool, tiles, grain(c, tiles, 4 * (int64_t)h->key_dim * c->isa->delta_columns),
             recur_items, &j);
    pool_run(c->pool, rows->count, grain(c, rows->count, (int64_t)h->values * h->value_dim * 12),
             norm_rows, &j);
}
