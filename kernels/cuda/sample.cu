/* The sampling ops for whole rows; draw.cuh says how. */
#include "kernels/cuda/draw.cuh"

/* ---- resolve ---- */

__global__ void resolve_kernel(int32_t *ids, const int32_t *token, struct rows rows,
                               struct sample_slots s)
{
    const int32_t t = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (t >= rows.count)
        return;
    const int32_t slot = rows.slot[t];
    if (slot < 0) {
        ids[t] = -1;
        return;
    }
    int32_t *known = s.history + (int64_t)slot * s.history_cols + rows.position[t];
    if (token[t] >= 0)
        *known = token[t];
    ids[t] = *known;
}

void sample_resolve(struct backend *b, int32_t *ids, const int32_t *token, const struct rows *rows,
                    const struct sample_slots *slots)
{
    if (rows->count > 0)
        LAUNCH(cuda_of(b), resolve_kernel, blocks_for((size_t)rows->count, 128), 128, 0, ids, token,
               *rows, *slots);
}

/* ---- sample ---- */

/* Several blocks share a row, each with a part of its columns, and one more takes what is left:
 *   look    the best of each part, before and after the rules; a copy of the row if there are any
 *   sketch  a histogram of what top-k counts or top-p weighs, by the distance from the largest z,
 *           in steps so small that the row fills them, however flat it is
 *   gather  so it is known which step of the histogram the prefix ends in. The draw of what lies
 *           above, and a list of what lies in that step; with top-k a list of both, since what is
 *           weighed next are the first k alone
 *   settle  the prefix of the list, and the draw of all; of the whole row instead, without a
 *           list, if much of it lies in that step, as where nearly all are equal but for a few */

#define STEPS 512          /* the last one has all that is far away */
#define PER_ONE_MASS 32.0f /* steps of z: at least as many when masses are summed, */
#define PER_ONE_FIRST 1.0f /* when columns are counted, */
#define PER_ONE_MOST 0x1p30f
#define CROWDED 8      /* a list of more than one in so many columns is no help */
#define PARTS 64       /* of a row, most */
#define PART_COLS 1024 /* at least */
#define PART_COLS_MAX (1 << 17)
#define BLOCKS 256 /* in all, about twice as many as there are multiprocessors */

static_assert((STEPS - 1) / PER_ONE_MASS > 12, "far away, masses have less than 24 bits");
static_assert(STEPS % THREADS == 0, "each thread has as many");

/* What the blocks of a row leave each other. */
struct sketch {
    uint64_t raw[PARTS], best[PARTS]; /* places; BAD: there is a NaN or +inf */
    uint64_t step[STEPS];
    double value[PARTS]; /* of the part's winner */
    float low[PARTS];    /* the least finite one after the rules */
    int32_t id[PARTS];
    int32_t listed; /* columns in the row's list, which lies where the rules have counted */
};
#define BAD UINT64_MAX

static_assert(sizeof(struct sketch) <= CUDA_SKETCH_BYTES, "the reserve has room for it");

struct parted_rows {
    struct drawn_rows rows;
    struct sketch *sketch; /* [rows at once] */
    int32_t parts, part_cols;
};

/* Of this block: blockIdx is (part, row). */
struct here {
    int32_t r, begin, end; /* row and columns */
    struct sketch *sketch;
    float *copy;
    int32_t *count;
};

DEVICE struct here here_of(const struct parted_rows *a)
{
    const struct drawn_rows *rows = &a->rows;
    const int32_t begin = (int32_t)blockIdx.x * a->part_cols, end = begin + a->part_cols;
    return {rows->row + (int32_t)blockIdx.y,
            begin,
            end < rows->cols ? end : rows->cols,
            a->sketch + blockIdx.y,
            rows->copies + (int64_t)blockIdx.y * rows->cols,
            rows->counts + (int64_t)blockIdx.y * rows->cols};
}

/* run(x[i], i) for columns [begin, end), a few loads of a thread at a time. */
template <typename Run> DEVICE void for_columns(const float *x, int32_t begin, int32_t end, Run run)
{
    constexpr int AT_ONCE = 8;
    for (int32_t i = begin + (int32_t)threadIdx.x; i < end; i += AT_ONCE * THREADS) {
        float v[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            v[j] = i + j * THREADS < end ? x[i + j * THREADS] : 0;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (i + j * THREADS < end)
                run(v[j], i + j * THREADS);
    }
}

/* *low: the least that is finite, or infinity. */
DEVICE uint64_t best_of_part(const float *x, const struct here *h, float *low)
{
    float most = -INFINITY, least = INFINITY;
    int32_t id = INT32_MAX;
    int bad = 0;
    for_columns(x, h->begin, h->end, [&](float v, int32_t i) {
        bad |= !(v <= FLT_MAX);
        id = v > most ? i : id;
        most = v > most ? v : most;
        least = v < least && v >= -FLT_MAX ? v : least;
    });
    bad = __syncthreads_or(bad);
    *low = reduce_block(least, minimum());
    const uint64_t best = reduce_block(place_of(most, id), maximum());
    return bad ? BAD : best;
}

__global__ void __launch_bounds__(THREADS) look_kernel(struct parted_rows a)
{
    launch_release();
    const struct here h = here_of(&a);
    const int32_t part = (int32_t)blockIdx.x;
    launch_wait();
    if (!is_drawn(&a.rows.rows, h.r))
        return;
    for (int32_t i = part * THREADS + (int32_t)threadIdx.x; i < STEPS; i += a.parts * THREADS)
        h.sketch->step[i] = 0;
    const float *raw = a.rows.logits + (int64_t)h.r * a.rows.cols;
    float low;
    const uint64_t best = best_of_part(raw, &h, &low);
    uint64_t ruled = best;
    if (is_ruled(&a.rows, h.r)) {
        const struct part p = {h.copy + h.begin, a.rows.first + h.begin, h.end - h.begin,
                               h.count + h.begin};
        copy_ruled(&p, &a.rows, h.r, raw + h.begin);
        ruled = best_of_part(h.copy, &h, &low);
    }
    if (threadIdx.x == 0) {
        h.sketch->raw[part] = best;
        h.sketch->best[part] = ruled;
        h.sketch->low[part] = low;
        h.sketch->listed = 0; /* by all parts */
    }
}

/* What a row's token is drawn from, if it is not decided: all, the first, or the first by mass. */
enum drawn { DECIDED, FROM_ALL, FROM_FIRST, FROM_MASS };

/* What every thread knows of a row when all of its parts have been looked at. */
struct seen {
    enum drawn how;
    int32_t id; /* of the largest z, or what is decided */
    struct draw d;
    uint64_t key;
    float floor;   /* of the winner's value, which is at least that of the largest z */
    float per_one; /* steps of z; a power of two */
};

/* Of a row whose z are this far apart: so many that none but -inf is in the last step, unless that
 * is less than `least`. */
DEVICE float steps_per_one(float range, float least)
{
    const float most = (float)(STEPS - 2) / range;
    uint32_t u;
    float power;
    memcpy(&u, &most, sizeof u);
    u &= 0x7f800000u;
    memcpy(&power, &u, sizeof power);
    return fminf(fmaxf(power, least), PER_ONE_MOST);
}

/* Of a row that is drawn. */
DEVICE struct seen see(const struct parted_rows *a, const struct here *h,
                       const struct sample_params *p)
{
    const struct drawn_rows *rows = &a->rows;
    struct seen s = {DECIDED, -1};
    uint64_t raw = 0, best = 0;
    float low = INFINITY;
    for (int32_t i = (int32_t)threadIdx.x % WARP; i < a->parts; i += WARP) {
        raw = maximum()(raw, h->sketch->raw[i]);
        best = maximum()(best, h->sketch->best[i]);
        low = minimum()(low, h->sketch->low[i]);
    }
    raw = reduce_lanes<WARP>(raw, maximum());
    best = reduce_lanes<WARP>(best, maximum());
    low = reduce_lanes<WARP>(low, minimum());
    if (raw == BAD || best == BAD || !(value_of(raw) >= -FLT_MAX && value_of(best) >= -FLT_MAX))
        return s;
    s.id = id_of(best);
    const float max = value_of(best) / p->temperature + 0.0f;
    if (p->temperature == 0 || !(fabsf(max) <= FLT_MAX))
        return s;
    const float *x = rows->logits + (int64_t)h->r * rows->cols;
    const bool top_k = p->top_k > 0 && p->top_k < rows->cols;
    const double least = p->min_p > 0 && !top_k ? (double)p->min_p * NUMERICS_MASS_ONE : 0;
    s.d = {is_ruled(rows, h->r) ? h->copy : x,
           NULL,
           rows->cols,
           0,
           p->temperature,
           max,
           0,
           INT32_MAX,
           least};
    s.how = top_k ? FROM_FIRST : p->top_p < 1 ? FROM_MASS : FROM_ALL;
    s.key = numerics_key(p->seed, p->choice, rows->rows.position[h->r]);
    s.floor = floor_of((double)max + numerics_gumbel(numerics_bits(s.key, s.id)));
    s.per_one = steps_per_one(max - (low / p->temperature + 0.0f),
                              s.how == FROM_FIRST ? PER_ONE_FIRST : PER_ONE_MASS);
    return s;
}

DEVICE int32_t step_of(const struct seen *s, float z)
{
    return (int32_t)fminf((s->d.max - z) * s->per_one, STEPS - 1);
}

/* A bin is some words, so that it has room for the masses of 2^18 columns. */
#define SHORT_WORDS 3
#define SHORT_BITS 14
typedef uint32_t short_histogram[SHORT_WORDS][STEPS];

static_assert((int64_t)PART_COLS_MAX << SHORT_BITS <= 1ll << 32, "a sum has its word");

/* Returns the thread's mass in the last step, which most columns are in and so is no bin. */
DEVICE uint64_t sketch_part(short_histogram &bins, const struct seen *s, const struct here *h)
{
    const struct draw *d = &s->d;
    const bool unit = s->how == FROM_FIRST;
    uint64_t far = 0;
    struct held held = {0, 0};
    for_columns(d->x, h->begin, h->end, [&](float x, int32_t id) {
        const float z = x / d->temperature + 0.0f;
        const int32_t step = step_of(s, z);
        if (!is_kept(d, z, id) || (unit && step == STEPS - 1))
            return;
        if (step == STEPS - 1) {
            far += (uint32_t)(numerics_exp(z - d->max) * (float)NUMERICS_MASS_ONE);
            return;
        }
        const uint64_t mass = unit ? 1 : mass_of(d, z);
        add_to_bin<SHORT_BITS>(bins, &held, (uint32_t)step, mass);
    });
    add_held<SHORT_BITS>(bins, &held);
    return far;
}

DEVICE void add_step(uint64_t *to, uint64_t mass)
{
    if (mass != 0)
        atomicAdd((unsigned long long *)to, (unsigned long long)mass);
}

__global__ void __launch_bounds__(THREADS, 3) sketch_kernel(struct parted_rows a)
{
    launch_release();
    __shared__ short_histogram bins;
    const struct here h = here_of(&a);
    launch_wait();
    if (!is_drawn(&a.rows.rows, h.r))
        return;
    const struct sample_params p = a.rows.slots.params[a.rows.rows.slot[h.r]];
    const struct seen s = see(&a, &h, &p);
    if (s.how != FROM_FIRST && s.how != FROM_MASS)
        return;
    FOR_EACH(i, 0, SHORT_WORDS * STEPS)
        bins[i / STEPS][i % STEPS] = 0;
    __syncthreads();
    const uint64_t far = sketch_part(bins, &s, &h);
    const uint64_t rest = reduce_block(far, plus());
    FOR_EACH(i, 0, STEPS) {
        uint64_t mass = i == STEPS - 1 ? rest : 0;
#pragma unroll
        for (int word = 0; word < SHORT_WORDS; word++)
            mass += (uint64_t)bins[word][i] << word * SHORT_BITS;
        add_step(&h.sketch->step[i], mass);
    }
}

/* Where a prefix ends. */
struct end {
    int32_t step;
    bool crowded;  /* too much lies in the step: it is looked for in the whole row */
    uint64_t need; /* of the step, or of the row */
};

DEVICE struct end end_of(const struct seen *s, const struct sketch *sketch,
                         const struct sample_params *p)
{
    constexpr int EACH = STEPS / THREADS;
    const bool unit = s->how == FROM_FIRST;
    uint64_t value[EACH], mine = 0, total;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        mine += value[i] = sketch->step[threadIdx.x * EACH + i];
    const uint64_t before = sum_before(mine, &total);
    const uint64_t whole = unit ? (uint64_t)p->top_k : numerics_nucleus(p->top_p, total);
    struct end e = {0, false, whole};
    e.step = reach(value, before, total, &e.need);
    const double in_step = (double)sketch->step[e.step];
    const uint64_t least = numerics_mass(numerics_exp(-(float)(e.step + 1) / s->per_one));
    const double listed = unit ? (double)(whole - e.need) + in_step : in_step / (double)least;
    e.crowded = e.step == STEPS - 1 || listed * CROWDED > s->d.n;
    if (e.crowded)
        e.need = whole;
    return e;
}

/* Below this logit z is beyond the step. Its own rounding is less than what is taken off. */
DEVICE float least_logit(const struct seen *s, int32_t step)
{
    const float x = (s->d.max - (float)(step + 2) / s->per_one) * s->d.temperature;
    return step < STEPS - 1 ? x - fabsf(x) * 1e-6f : -INFINITY;
}

/* Of the part: what lies above the step, drawn; what lies in it, or both, listed. */
DEVICE struct winner gather_part(const struct seen *s, const struct here *h, int32_t last)
{
    const struct draw *d = &s->d;
    const float limit = least_logit(s, last);
    struct winner best = {-DBL_MAX, -1};
    for_columns(d->x, h->begin, h->end, [&](float x, int32_t id) {
        if (x < limit)
            return;
        const float z = x / d->temperature + 0.0f;
        const int32_t step = step_of(s, z);
        if (step > last || !is_kept(d, z, id))
            return;
        if (s->how == FROM_FIRST || step == last)
            h->count[atomicAdd(&h->sketch->listed, 1)] = id;
        else
            take_noise(&best, s->floor, z, id, numerics_bits(s->key, id));
    });
    return win(best.value, best.id);
}

__global__ void __launch_bounds__(THREADS, 3) gather_kernel(struct parted_rows a)
{
    launch_release();
    const struct here h = here_of(&a);
    struct end end = {STEPS, false, 0}; /* all are above */
    launch_wait();
    if (!is_drawn(&a.rows.rows, h.r))
        return;
    const struct sample_params p = a.rows.slots.params[a.rows.rows.slot[h.r]];
    const struct seen s = see(&a, &h, &p);
    if (s.how == DECIDED)
        return;
    if (s.how != FROM_ALL)
        end = end_of(&s, h.sketch, &p);
    struct winner w = {-DBL_MAX, -1};
    if (!end.crowded)
        w = gather_part(&s, &h, end.step);
    if (threadIdx.x == 0) {
        h.sketch->value[blockIdx.x] = w.value;
        h.sketch->id[blockIdx.x] = w.id;
    }
}

/* ---- what is left of a row ---- */

struct short_list {
    uint64_t place[THREADS], mass[THREADS];
};

/* The masses of those that come before an entry; all masses are there. */
DEVICE uint64_t mass_before(const struct short_list &l, int32_t n, uint64_t place)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += l.place[i] > place ? l.mass[i] : 0;
    return sum;
}

/* An entry for each thread: kept is what has too little before it to be beyond the prefix. need:
 * of a list by mass. */
DEVICE struct winner draw_short(const struct seen *s, const struct sample_params *p, uint64_t need,
                                struct winner best)
{
    __shared__ struct short_list l;
    const struct draw *d = &s->d;
    const int32_t i = (int32_t)threadIdx.x, id = i < d->n ? d->list[i] : 0;
    const float z = z_of(d, id);
    const uint64_t place = place_of(z, id), mass = mass_of(d, z);
    bool kept = i < d->n;
    l.place[i] = place;
    if (s->how == FROM_FIRST) {
        l.mass[i] = 1;
        __syncthreads();
        kept = kept && mass_before(l, d->n, place) < (uint64_t)p->top_k &&
               (double)mass >= (double)p->min_p * NUMERICS_MASS_ONE;
        need = numerics_nucleus(p->top_p, reduce_block(kept ? mass : 0, plus()));
    }
    l.mass[i] = kept ? mass : 0;
    __syncthreads();
    kept = kept && (!(p->top_p < 1) || mass_before(l, d->n, place) < need);
    if (kept)
        take_noise(&best, s->floor, z, id, numerics_bits(s->key, id));
    return win(best.value, best.id);
}

DEVICE struct winner draw_long(struct seen *s, const struct sample_params *p, uint64_t need,
                               struct winner best)
{
    if (s->how == FROM_FIRST)
        filter(&s->d, p);
    else
        keep_prefix(&s->d, false, need);
    return gumbel_max(&s->d, s->key, s->floor, best);
}

DEVICE int32_t settle_row(const struct parted_rows *a, const struct here *h)
{
    const struct sample_params p = a->rows.slots.params[a->rows.rows.slot[h->r]];
    struct seen s = see(a, h, &p);
    struct winner best = {-DBL_MAX, -1};
    if (s.how == DECIDED)
        return s.id;
    if ((int32_t)threadIdx.x < a->parts)
        best = {h->sketch->value[threadIdx.x], h->sketch->id[threadIdx.x]};
    if (s.how == FROM_ALL)
        return win(best.value, best.id).id;
    const struct end end = end_of(&s, h->sketch, &p);
    if (!end.crowded) {
        s.d.list = h->count;
        s.d.n = h->sketch->listed;
        if (s.d.n <= THREADS)
            return draw_short(&s, &p, end.need, best).id;
    }
    return draw_long(&s, &p, end.need, best).id;
}

__global__ void __launch_bounds__(THREADS, 1) settle_kernel(int32_t *ids, struct parted_rows a)
{
    launch_release();
    const struct here h = here_of(&a);
    const struct sample_rows *rows = &a.rows.rows;
    launch_wait();
    const int32_t slot = rows->slot[h.r];
    const bool drawn = is_drawn(rows, h.r);
    const int32_t id = drawn ? settle_row(&a, &h) : slot < 0 ? -1 : rows->target[h.r];
    if (threadIdx.x != 0)
        return;
    ids[h.r] = id;
    if (drawn && rows->target[h.r] != SAMPLE_CHECK)
        a.rows.slots.history[(int64_t)slot * a.rows.slots.history_cols + rows->position[h.r]] =
            id < 0 ? 0 : id;
}

/* ---- launches ---- */

/* Of each of some rows: as many as make BLOCKS, but none is small or beyond its histogram. */
static int32_t parts_of(int32_t rows, int32_t cols)
{
    const int32_t most = cols / PART_COLS < PARTS ? cols / PART_COLS : PARTS;
    const int32_t least = (int32_t)blocks_for((size_t)cols, PART_COLS_MAX);
    const int32_t parts = BLOCKS / rows < most ? BLOCKS / rows : most;
    return parts > least ? parts : least;
}

void sample_run(struct backend *b, int32_t *ids, struct cview logits,
                const struct sample_rows *rows, const struct sample_slots *slots)
{
    struct cuda_backend *c = cuda_of(b);
    const int32_t cols = logits.cols, step = rows_at_once(c, cols);
    struct parted_rows a = {drawn_rows_of(c, logits, 0, rows, slots), NULL, 0, 0};
    a.sketch = (struct sketch *)(a.rows.counts + (int64_t)step * cols);
    for (; a.rows.row < logits.rows; a.rows.row += step) {
        const int32_t left = logits.rows - a.rows.row, n = left < step ? left : step;
        a.part_cols = (int32_t)blocks_for((size_t)cols, (unsigned)parts_of(n, cols));
        a.parts = (int32_t)blocks_for((size_t)cols, (unsigned)a.part_cols);
        const dim3 grid((unsigned)a.parts, (unsigned)n), last(1, (unsigned)n);
        LAUNCH_BEHIND(c, look_kernel, grid, THREADS, 0, a);
        LAUNCH_BEHIND(c, sketch_kernel, grid, THREADS, 0, a);
        LAUNCH_BEHIND(c, gather_kernel, grid, THREADS, 0, a);
        LAUNCH_BEHIND(c, settle_kernel, last, THREADS, 0, ids, a);
    }
}

/* ---- logprobs ---- */

struct logprobs_args {
    float *logprob;
    struct token_top *best;
    int32_t stride, vocab;
    const float *logits;
    const int32_t *ids, *top;
};

__global__ void __launch_bounds__(THREADS) logprobs_kernel(struct logprobs_args a)
{
    const int32_t r = (int32_t)blockIdx.x, count = a.top[r];
    const float *x = a.logits + (int64_t)r * a.vocab;
    if (count < 0)
        return;
    uint64_t place = best_of(x, a.vocab), total = 0;
    if (place == 0 || a.ids[r] < 0) {
        if (threadIdx.x == 0)
            a.logprob[r] = NAN;
        return;
    }
    const float max = value_of(place);
    FOR_EACH(i, 0, a.vocab)
        total += numerics_mass(numerics_exp(x[i] - max));
    const double log_total = numerics_log_total(reduce_block(total, plus()));
    if (threadIdx.x == 0)
        a.logprob[r] = numerics_logprob(x[a.ids[r]], max, log_total);
    for (int32_t n = 0; n < count; n++) {
        if (threadIdx.x == 0) {
            const struct token_top best = {id_of(place),
                                           numerics_logprob(value_of(place), max, log_total)};
            a.best[(int64_t)r * a.stride + n] = best;
        }
        uint64_t next = 0; /* the best below this one */
        FOR_EACH(i, 0, a.vocab) {
            const uint64_t at = place_of(x[i], i);
            next = at < place && at > next ? at : next;
        }
        place = reduce_block(next, maximum());
    }
}

void sample_logprobs(struct backend *b, float *logprob, struct token_top *best, int32_t stride,
                     struct cview logits, const int32_t *ids, const int32_t *top)
{
    const struct logprobs_args a = {logprob, best, stride, logits.cols, (const float *)logits.data,
                                    ids,     top};
    if (logits.rows > 0)
        LAUNCH(cuda_of(b), logprobs_kernel, (unsigned)logits.rows, THREADS, 0, a);
}
