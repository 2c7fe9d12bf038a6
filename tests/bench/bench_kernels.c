/* Rates of the CPU kernels against limits measured in the same run: bench_kernels [THREADS
 * [BACKEND]]. Read limit: best sum over 512 MiB. Multiply-add limit: registers only. Weights of
 * linear cycle through copies of 256 MiB together, so that one row reads memory and not the cache.
 * "any order" is the peer without our order of addition: plain rows of weights, lanes over k. */
#include "kernels/backend.h"
#include "kernels/numerics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_BYTES ((size_t)512 << 20)
#define COPIES_BYTES ((size_t)256 << 20)
#define RUNS 7

static struct backend *backend;
static int32_t threads = 2;
static double read_limit, fma_limit; /* bytes and operations per second */

static void *buffer(size_t bytes, int seed)
{
    uint16_t *p = aligned_alloc(64, base_align(bytes, 64));
    CHECK(p != NULL);
    /* bf16 of either sign and 0.5 to 2 */
    for (size_t i = 0; i < bytes / 2; i++)
        p[i] = (uint16_t)((numerics_mix(i + (size_t)seed) & 0x80ff) + 0x3f00);
    return p;
}

static float *floats(size_t n)
{
    float *p = aligned_alloc(64, base_align(n * 4, 64));
    CHECK(p != NULL);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(numerics_mix(i) >> 40) * 0x1p-24f - 0.5f;
    return p;
}

/* Best time of RUNS calls. */
static double best(void (*fn)(void *arg), void *arg)
{
    double least = 1e30;
    for (int i = 0; i < RUNS; i++) {
        double t = base_now();
        fn(arg);
        t = base_now() - t;
        least = t < least ? t : least;
    }
    return least;
}

/* ---- limits ---------------------------------------------------------------------------------- */

static _Atomic uint64_t sink;

/* Four streams, as the kernels have. */
static void read_part(void *arg, int64_t begin, int64_t end)
{
    const uint64_t *p = (const uint64_t *)arg + begin;
    const int64_t n = (end - begin) / 4;
    uint64_t sum[4] = {0};
    for (int64_t i = 0; i < n; i += 8) {
        for (int s = 0; s < 4; s++) {
            const uint64_t *q = p + s * n + i;
            __builtin_prefetch(q + 128, 0, 2);
            sum[s] += (q[0] ^ q[1]) + (q[2] ^ q[3]) + (q[4] ^ q[5]) + (q[6] ^ q[7]);
        }
    }
    sink += sum[0] + sum[1] + sum[2] + sum[3];
}

static void read_all(void *p)
{
    backend_parallel(backend, READ_BYTES / 8, 1 << 17, read_part, p);
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx512f"))) static void fma512(int64_t n)
{
    __m512 a[24], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-3f);
    for (int i = 0; i < 24; i++)
        a[i] = _mm512_set1_ps((float)i);
    for (int64_t k = 0; k < n / 32; k++)
#pragma GCC unroll 24
        for (int i = 0; i < 24; i++)
            a[i] = _mm512_fmadd_ps(a[i], x, y);
    for (int i = 0; i < 24; i++)
        sink += (uint64_t)_mm512_cvtss_f32(a[i]);
}

__attribute__((target("avx2,fma"))) static void fma256(int64_t n)
{
    __m256 a[12], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
    for (int i = 0; i < 12; i++)
        a[i] = _mm256_set1_ps((float)i);
    for (int64_t k = 0; k < n / 8; k++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            a[i] = _mm256_fmadd_ps(a[i], x, y);
    for (int i = 0; i < 12; i++)
        sink += (uint64_t)_mm256_cvtss_f32(a[i]);
}

/* One row of y = x w^T over plain rows of bf16, eight sums per output, lanes over k. */
__attribute__((target("avx2,fma"))) static float dot_any(const float *x, const uint16_t *w,
                                                         int32_t n)
{
    __m256 a[8];
    for (int i = 0; i < 8; i++)
        a[i] = _mm256_setzero_ps();
    for (int32_t k = 0; k < n; k += 64) {
        _mm_prefetch((const char *)(w + k + 1024), _MM_HINT_T0);
        _mm_prefetch((const char *)(w + k + 1056), _MM_HINT_T0);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(w + k + 8 * i));
            __m256 v = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
            a[i] = _mm256_fmadd_ps(_mm256_loadu_ps(x + k + 8 * i), v, a[i]);
        }
    }
    float t[8], sum = 0;
    for (int i = 1; i < 8; i++)
        a[0] = _mm256_add_ps(a[0], a[i]);
    _mm256_storeu_ps(t, a[0]);
    for (int i = 0; i < 8; i++)
        sum += t[i];
    return sum;
}
#else
static void fma512(int64_t n)
{
    (void)n;
}
#if defined(__aarch64__)
#include <arm_neon.h>

/* The same multiply-adds in twice as many registers of half the size. */
static void fma256(int64_t n)
{
    float32x4_t a[24], x = vdupq_n_f32(0.999f), y = vdupq_n_f32(1e-3f);
    for (int i = 0; i < 24; i++)
        a[i] = vdupq_n_f32((float)i);
    for (int64_t k = 0; k < n / 8; k++)
#pragma GCC unroll 24
        for (int i = 0; i < 24; i++)
            a[i] = vfmaq_f32(y, a[i], x);
    for (int i = 0; i < 24; i++)
        sink += (uint64_t)vgetq_lane_f32(a[i], 0);
}
#else
static void fma256(int64_t n)
{
    (void)n;
}
#endif
static float dot_any(const float *x, const uint16_t *w, int32_t n)
{
    float sum = 0;
    for (int32_t k = 0; k < n; k++)
        sum += x[k] * dtype_from_bf16(w[k]);
    return sum;
}
#endif

static void fma_part(void *arg, int64_t begin, int64_t end)
{
    if (*(const int *)arg == 512)
        fma512((end - begin) << 14);
    else
        fma256((end - begin) << 14);
}

static void fma_all(void *arg)
{
    backend_parallel(backend, 256 * threads, 4, fma_part, arg);
}

static void limits(const char *variant)
{
    void *p = buffer(READ_BYTES, 1);
    read_limit = (double)READ_BYTES / best(read_all, p);
    free(p);
    static const char *const wide[] = {"cpu-avx512", "cpu-vnni", "cpu-bf16"};
    int width = 256;
    for (size_t i = 0; i < ARRAY_LEN(wide); i++)
        width = strcmp(variant, wide[i]) == 0 ? 512 : width;
    double per_part = (double)(1 << 14) * 2 * (width == 512 ? 24.0 * 16 / 32 : 12.0 * 8 / 8);
    fma_limit = 256.0 * threads * per_part / best(fma_all, &width);
    printf("%s, %d threads: read limit %.1f GB/s, multiply-add limit %.1f GFLOP/s\n", variant,
           (int)threads, read_limit * 1e-9, fma_limit * 1e-9);
}

/* ---- linear ---------------------------------------------------------------------------------- */

struct shape {
    int32_t rows, in, out, leaves;
    enum dtype dtype;
};

struct bench {
    struct shape s;
    struct weight **copy;
    unsigned char *storage;
    size_t bytes; /* of one copy */
    int32_t copies, passes;
    float *x, *y;
};

static void linear_all(void *arg)
{
    struct bench *b = arg;
    struct err err;
    struct cview x = {b->x, DTYPE_F32, b->s.rows, b->s.in};
    for (int32_t i = 0; i < b->passes; i++)
        CHECK(backend_linear(backend, view_f32(b->y, b->s.rows, b->s.out), x,
                             b->copy[i % b->copies], &err) == OK);
}

static void dots_part(void *arg, int64_t begin, int64_t end)
{
    struct bench *b = arg;
    for (int64_t n = begin; n < end; n++)
        b->y[n % b->s.out] =
            dot_any(b->x, (const uint16_t *)(const void *)b->storage + (size_t)n * (size_t)b->s.in,
                    b->s.in);
}

static void dots_all(void *arg)
{
    struct bench *b = arg;
    for (int32_t i = 0; i < b->copies; i++)
        backend_parallel(backend, b->s.out, 64, dots_part, b);
}

/* As a quantised model has them: the largest of a row near 448, one in thousands subnormal. */
static void fill_codes(struct bench *b, const struct weight_spec *spec)
{
    float *scale = floats((size_t)spec->out);
    for (int32_t r = 0; r < spec->out; r++)
        scale[r] = 0x1p-10f * (1 + scale[r]);
    for (size_t i = 0; i < b->bytes * (size_t)b->copies; i++) {
        const uint64_t u = numerics_mix(i);
        const int sum = (int)(u & 0xff) + (int)(u >> 8 & 0xff) + (int)(u >> 16 & 0xff) - 382;
        b->storage[i] = dtype_to_e4m3((float)sum + 0x1p-8f * (float)(u >> 24 & 0xff));
    }
    for (int32_t i = 0; i < b->copies; i++)
        backend->ops->weight_scale(b->copy[i], 0, spec->out, scale);
    free(scale);
}

/* Any codes of I8 and I4 do as they are. */
static void fill_scales(struct weight *w, const struct weight_spec *spec)
{
    const size_t n = (size_t)spec->out * (size_t)backend_scales(spec);
    float *scale = malloc(n * sizeof *scale);
    CHECK(scale != NULL);
    for (size_t i = 0; i < n; i++)
        scale[i] = 0x1p-8f;
    backend->ops->weight_scale(w, 0, spec->out, scale);
    free(scale);
}

static void bench_open(struct bench *b, struct shape s)
{
    struct weight_spec spec = {.out = s.out, .in = s.in, .dtype = s.dtype, .leaves = s.leaves};
    for (int32_t l = 0; l <= s.leaves; l++)
        spec.cut[l] = (int32_t)((int64_t)s.in * l / s.leaves);
    spec.scale_cols = dtype_is_int(s.dtype) ? BACKEND_GROUP : 0;
    spec.scales_f32 = s.dtype == DTYPE_U4;
    *b = (struct bench){.s = s, .bytes = backend->ops->weight_bytes(&spec)};
    b->copies = s.rows > 16 ? 1 : (int32_t)(COPIES_BYTES / b->bytes) + 1;
    b->passes = s.rows > 16 ? 1 : b->copies;
    b->storage = buffer(b->bytes * (size_t)b->copies, 3);
    b->copy = calloc((size_t)b->copies, sizeof(struct weight *));
    CHECK(b->copy != NULL);
    for (int32_t i = 0; i < b->copies; i++)
        b->copy[i] = backend->ops->weight_open(backend, &spec, b->storage + (size_t)i * b->bytes);
    if (s.dtype == DTYPE_F8_E4M3)
        fill_codes(b, &spec);
    for (int32_t i = 0; i < b->copies && dtype_is_int(s.dtype); i++)
        fill_scales(b->copy[i], &spec);
    b->x = floats((size_t)s.rows * (size_t)s.in);
    b->y = floats((size_t)s.rows * (size_t)s.out);
}

static void bench_close(struct bench *b)
{
    for (int32_t i = 0; i < b->copies; i++)
        backend->ops->weight_close(b->copy[i]);
    free(b->copy);
    free(b->storage);
    free(b->x);
    free(b->y);
}

static void linear(struct shape s)
{
    struct bench b;
    bench_open(&b, s);
    double t = best(linear_all, &b);
    double rate = (double)b.bytes * b.passes / t;
    double flops = 2.0 * s.rows * s.in * s.out * b.passes / t;
    printf("linear %4d rows, %5d -> %5d, %d leaves, %-4s: %6.1f GB/s %5.1f %%, %6.1f GFLOP/s "
           "%5.1f %%\n",
           (int)s.rows, (int)s.in, (int)s.out, (int)s.leaves, dtype_name(s.dtype), rate * 1e-9,
           100 * rate / read_limit, flops * 1e-9, 100 * flops / fma_limit);
    if (s.rows == 1 && s.leaves == 1 && s.dtype == DTYPE_BF16) {
        t = best(dots_all, &b);
        rate = (double)b.bytes * b.copies / t;
        printf("  the same in any order: %6.1f GB/s %5.1f %%\n", rate * 1e-9,
               100 * rate / read_limit);
    }
    bench_close(&b);
}

/* The same product held in two types, taken in turns so that a busy machine slows both. */
static void versus(struct shape s, enum dtype other)
{
    struct bench a, b;
    double least[2] = {1e30, 1e30};
    bench_open(&a, s);
    s.dtype = other;
    bench_open(&b, s);
    b.passes = a.passes;
    for (int i = 0; i < 2 * RUNS; i++) {
        double t = base_now();
        linear_all(i % 2 == 0 ? &a : &b);
        t = base_now() - t;
        least[i % 2] = t < least[i % 2] ? t : least[i % 2];
    }
    printf("linear %4d rows, %5d -> %5d: %s is %.2f times as fast as %s\n", (int)s.rows, (int)s.in,
           (int)s.out, dtype_name(other), least[0] / least[1], dtype_name(a.s.dtype));
    bench_close(&a);
    bench_close(&b);
}

/* ---- loading, attention, sampling ------------------------------------------------------------ */

struct put {
    struct weight *w;
    const unsigned char *src;
    enum dtype dtype;
};

static void put_part(void *arg, int64_t begin, int64_t end)
{
    struct put *p = arg;
    const struct weight_spec *s = backend_weight_spec(p->w);
    const size_t stride = (size_t)s->in * dtype_size(p->dtype);
    backend->ops->weight_put(p->w, (int32_t)begin, (int32_t)(end - begin),
                             p->src + (size_t)begin * stride, p->dtype, stride);
}

static void put_all(void *arg)
{
    struct put *p = arg;
    backend_parallel(backend, backend_weight_spec(p->w)->out, 128, put_part, p);
}

static void put(enum dtype to, enum dtype from)
{
    struct weight_spec s = {.out = 16384, .in = 4096, .dtype = to, .leaves = 1, .cut = {0, 4096}};
    const size_t n = (size_t)s.out * (size_t)s.in;
    void *storage = buffer(backend->ops->weight_bytes(&s), 5);
    struct put p = {backend->ops->weight_open(backend, &s, storage), NULL, from};
    unsigned char *src = buffer(n * dtype_size(from), 6);
    p.src = src;
    double t = best(put_all, &p);
    printf("weight_put %s from %s: %.1f GB/s of file\n", dtype_name(to), dtype_name(from),
           (double)(n * dtype_size(from)) / t * 1e-9);
    backend->ops->weight_close(p.w);
    free(storage);
    free(src);
}

struct attending {
    struct heads heads;
    struct attention how;
    struct rows rows;
    struct kv_cache *kv;
    struct view qkv, out;
};

static void attend_all(void *arg)
{
    struct attending *a = arg;
    struct err err;
    CHECK(backend_attend(backend, a->out, cview_of(a->qkv), &a->heads, &a->how, &a->rows, a->kv, 0,
                         &err) == OK);
}

/* The last `rows` positions of each of `slots` sequences of `keys` tokens: 32 query heads, 8 for
 * kv. */
static void attention(int32_t slots, int32_t rows, int32_t keys, int32_t dim)
{
    const int32_t cols = (keys + 15) / 16, count = slots * rows;
    int32_t kv_of[32], *slot = calloc((size_t)count, 4), *position = calloc((size_t)count, 4);
    int32_t *table = calloc((size_t)(slots * cols), 4);
    CHECK(slot != NULL && position != NULL && table != NULL);
    for (int32_t i = 0; i < slots * cols; i++)
        table[i] = i;
    for (int32_t i = 0; i < count; i++) {
        slot[i] = i / rows;
        position[i] = keys - rows + i % rows;
    }
    for (int32_t h = 0; h < 32; h++)
        kv_of[h] = h / 4;
    struct kv_spec spec = {1, 8, dim, 0, slots * cols, DTYPE_BF16, 0};
    void *storage = buffer(backend->ops->kv_bytes(&spec), 9);
    struct attending a = {
        .heads = {.heads = 32, .kv_heads = 8, .head_dim = dim, .kv_of = kv_of},
        .how = {.scale = 1.0f / sqrtf((float)dim)},
    };
    a.rows = (struct rows){count, slot, position, table, cols, rows == 1, 0, 0};
    a.kv = backend->ops->kv_open(backend, &spec, storage);
    a.qkv = view_f32(floats((size_t)(count * 48 * dim)), count, 48 * dim);
    a.out = view_f32(floats((size_t)(count * 32 * dim)), count, 32 * dim);
    double t = best(attend_all, &a), pairs = 0;
    for (int32_t i = 0; i < count; i++)
        pairs += position[i] + 1;
    double flops = pairs * 32 * dim * 4 / t, bytes = (double)backend->ops->kv_bytes(&spec) / t;
    printf("attend %3d x %3d rows, %5d keys, head %3d: %.1f GFLOP/s %.1f %%, cache read once %.1f "
           "GB/s %.1f %%\n",
           (int)slots, (int)rows, (int)keys, (int)dim, flops * 1e-9, 100 * flops / fma_limit,
           bytes * 1e-9, 100 * bytes / read_limit);
    backend->ops->kv_close(a.kv);
    free(storage);
    free(a.qkv.data);
    free(a.out.data);
    free(slot);
    free(position);
    free(table);
}

/* ---- layers that recur ----------------------------------------------------------------------- */

struct recurring {
    struct recurrent_heads heads;
    struct recurrent_rules rules;
    struct recurrent_state state;
    struct rows rows;
    struct view a, out;
    struct cview gates;
};

static void recur_all(void *arg)
{
    struct recurring *r = arg;
    struct err err;
    CHECK(backend_delta_rule(backend, r->out, r->a, r->gates, &r->heads, &r->rules, &r->rows,
                             &r->state, &err) == OK);
}

static int by_time(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The next `rows` rows of each of `slots` sequences, 16 heads of queries and keys, 32 of values, of
 * 128 elements each. States of single rows are more than a cache holds. An element of a state and a
 * row are three multiply-adds and a product. */
static void recurrence(int32_t slots, int32_t rows)
{
    enum { DIM = 128, TIMES = 15 };
    struct recurring r = {.heads = {16, 32, DIM, DIM, 4}};
    const int32_t channels = backend_channels(&r.heads), outs = 32 * DIM, count = slots * rows;
    const size_t words = (size_t)slots * 32 * DIM * DIM;
    int32_t *slot = calloc((size_t)count, 4), *position = calloc((size_t)count, 4);
    CHECK(slot != NULL && position != NULL);
    for (int32_t i = 0; i < count; i++) {
        slot[i] = i / rows;
        position[i] = 1 + i % rows;
    }
    r.rows = (struct rows){.count = count, .slot = slot, .position = position};
    float *conv = floats((size_t)channels * 4), *head = floats(DIM),
          *gates = floats((size_t)count * 64);
    r.rules = (struct recurrent_rules){conv, head, head, head, 1e-6f};
    r.state = (struct recurrent_state){floats(words), floats((size_t)(slots * 3 * channels)), NULL};
    r.a = view_f32(floats((size_t)(count * (channels + outs))), count, channels + outs);
    r.out = view_f32(floats((size_t)(count * outs)), count, outs);
    r.gates = (struct cview){gates, DTYPE_F32, count, 64};
    const size_t inputs = (size_t)count * (size_t)r.a.cols * sizeof(float);
    float *fresh = floats((size_t)(count * r.a.cols));
    double times[TIMES];
    for (int i = 0; i < TIMES; i++) {
        memcpy(r.a.data, fresh, inputs); /* what the op makes of it is not like it */
        times[i] = base_now();
        recur_all(&r);
        times[i] = base_now() - times[i];
    }
    qsort(times, TIMES, sizeof *times, by_time);
    const double t = times[TIMES / 2], rate = 2 * 4 * (double)words / t;
    const double flops = 7.0 * (double)words * rows / t;
    printf("delta_rule %2d x %3d rows: %.0f us, states read and written %.1f GB/s %.1f %%, %.1f "
           "GFLOP/s %.1f %%\n",
           (int)slots, (int)rows, t * 1e6, rate * 1e-9, 100 * rate / read_limit, flops * 1e-9,
           100 * flops / fma_limit);
    free(r.state.matrix);
    free(r.state.rows);
    free(r.a.data);
    free(r.out.data);
    free(fresh);
    free(gates);
    free(conv);
    free(head);
    free(slot);
    free(position);
}

enum { COLS = 4097 };
struct sampling {
    struct cview logits;
    int32_t slot[8], position[8], target[8], ids[8], history[8][COLS];
    struct sample_params params[8];
    struct sample_rules rules[8];
};

static void sample_all(void *arg)
{
    struct sampling *s = arg;
    struct err err;
    const struct sample_rows rows = {s->slot, s->position, s->target, NULL};
    const struct sample_slots slots = {
        .params = s->params, .rules = s->rules, .history = s->history[0], .history_cols = COLS};
    CHECK(backend_sample(backend, s->ids, s->logits, &rows, &slots, &err) == OK);
}

/* One of two ranks: its half of the rows, twice for the other's. */
static void elect_all(void *arg)
{
    struct sampling *s = arg;
    struct err err;
    enum { R = 8, SHARDS = 2 };
    static struct sample_survey surveys[SHARDS * R];
    static union sample_ballot ballots[SHARDS * R * (1 + SAMPLE_PLACES_MAX)];
    int32_t begin[R + 1] = {0};
    const struct cview half = {s->logits.data, DTYPE_F32, R, s->logits.cols / 2};
    const struct sample_rows rows = {s->slot, s->position, s->target, NULL};
    const struct sample_slots slots = {
        .params = s->params, .rules = s->rules, .history = s->history[0], .history_cols = COLS};
    for (int32_t r = 0; r < R; r++)
        begin[r + 1] = begin[r] + sample_places(&s->params[r], s->logits.cols);
    const struct sample_election e = {R, SHARDS, s->logits.cols, begin, surveys, ballots};
    CHECK(backend_survey(backend, surveys, half, 0, &e, &rows, &slots, &err) == OK);
    memcpy(surveys + R, surveys, sizeof surveys / 2);
    if (begin[R] > 0) {
        CHECK(backend_nominate(backend, ballots, half, 0, &e, &rows, &slots, &err) == OK);
        memcpy(ballots + R + begin[R], ballots, (size_t)(R + begin[R]) * sizeof *ballots);
    }
    CHECK(backend_elect(backend, s->ids, &e, &rows, &slots, &err) == OK);
}

static void score_all(void *arg)
{
    struct sampling *s = arg;
    struct err err;
    static const int32_t top[8] = {20, 20, 20, 20, 20, 20, 20, 20};
    static float logprob[8];
    static struct token_top best[8 * 20];
    CHECK(backend_logprobs(backend, logprob, best, 20, s->logits, s->ids, top, &err) == OK);
}

/* repetition: over a history of 4096, half of it the prompt. */
static void sampling(const char *what, struct sample_params params, float repetition,
                     void (*fn)(void *))
{
    enum { V = 128256, R = 8 };
    float *logits = floats((size_t)R * V);
    for (size_t i = 0; i < (size_t)R * V; i++)
        logits[i] *= 30;
    struct sampling s = {.logits = {logits, DTYPE_F32, R, V}};
    for (int32_t r = 0; r < R; r++) {
        s.slot[r] = r;
        s.position[r] = COLS - 1;
        s.target[r] = -1;
        s.params[r] = params;
        s.rules[r] = (struct sample_rules){.prompt = COLS / 2, .repetition = repetition};
        for (int32_t i = 0; i < COLS; i++)
            s.history[r][i] = (int32_t)(((uint32_t)i * 2654435761u) % V);
    }
    printf("%s: %.0f us per row of %d\n", what, best(fn, &s) / R * 1e6, (int)V);
    free(logits);
}

static void linears(void)
{
    static const int32_t shapes[][3] = {
        {2048, 8192, 1}, {8192, 2048, 1}, {8192, 2048, 8}, {2048, 32000, 1}};
    static const int32_t rows[] = {1, 2, 3, 4, 8, 12, 16, 64, 512};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        for (size_t r = 0; r < ARRAY_LEN(rows); r++)
            if (i == 0 || rows[r] == 1 || rows[r] == 512)
                linear(
                    (struct shape){rows[r], shapes[i][0], shapes[i][1], shapes[i][2], DTYPE_BF16});
    for (int32_t r = 1; r <= 512; r += 511) {
        linear((struct shape){r, 2048, 8192, 1, DTYPE_F16});
        linear((struct shape){r, 2048, 8192, 1, DTYPE_F32});
        linear((struct shape){r, 2048, 8192, 1, DTYPE_F8_E4M3});
        linear((struct shape){r, 2048, 8192, 1, DTYPE_I8});
        linear((struct shape){r, 2048, 8192, 1, DTYPE_I4});
        linear((struct shape){r, 2048, 8192, 1, DTYPE_U4});
        linear((struct shape){r, 2048, 8192, 1, DTYPE_F4_E2M1});
    }
    static const int32_t compared[] = {1, 2, 4, 8, 16, 64, 512};
    static const enum dtype narrow[] = {DTYPE_F8_E4M3, DTYPE_I8, DTYPE_I4, DTYPE_U4};
    for (size_t t = 0; t < ARRAY_LEN(narrow); t++)
        for (size_t r = 0; r < ARRAY_LEN(compared); r++) {
            versus((struct shape){compared[r], 2048, 8192, 1, DTYPE_BF16}, narrow[t]);
            versus((struct shape){compared[r], 8192, 2048, 8, DTYPE_BF16}, narrow[t]);
        }
}

int main(int argc, char **argv)
{
    struct err err;
    const char *name = argc > 2 ? argv[2] : "cpu";
    if (argc > 1)
        threads = (int32_t)strtol(argv[1], NULL, 10);
    if (backend_open(name, threads, &backend, &err) != OK) {
        fprintf(stderr, "%s\n", err.text);
        return 2;
    }
    limits(backend->ops->name);
    linears();
    put(DTYPE_BF16, DTYPE_BF16);
    put(DTYPE_F16, DTYPE_F16);
    put(DTYPE_F32, DTYPE_F32);
    put(DTYPE_F32, DTYPE_BF16);
    attention(16, 1, 2048, 64);
    attention(1, 512, 512, 64);
    attention(1, 256, 4096, 128);
    recurrence(1, 1);
    recurrence(64, 1);
    recurrence(1, 512);
    sampling("sample greedy", (struct sample_params){0, 1, 0, 0, 1, 0}, 1, sample_all);
    sampling("sample temperature", (struct sample_params){0.8f, 1, 0, 0, 1, 0}, 1, sample_all);
    sampling("sample top-k 40", (struct sample_params){0.8f, 1, 0, 40, 1, 0}, 1, sample_all);
    sampling("sample top-p 0.9", (struct sample_params){0.8f, 0.9f, 0, 0, 1, 0}, 1, sample_all);
    sampling("sample with penalties", (struct sample_params){0.8f, 1, 0, 0, 1, 0}, 1.1f,
             sample_all);
    sampling("elect greedy, 2 shards", (struct sample_params){0, 1, 0, 0, 1, 0}, 1, elect_all);
    sampling("elect temperature, 2 shards", (struct sample_params){0.8f, 1, 0, 0, 1, 0}, 1,
             elect_all);
    sampling("elect top-k 40, 2 shards", (struct sample_params){0.8f, 1, 0, 40, 1, 0}, 1,
             elect_all);
    sampling("elect top-p 0.9, 2 shards", (struct sample_params){0.8f, 0.9f, 0, 0, 1, 0}, 1,
             elect_all);
    sampling("logprobs, 20 best", (struct sample_params){0, 1, 0, 0, 1, 0}, 1, score_all);
    backend_close(backend);
    return 0;
}
