/* DESIGN: ops whose rows do not meet. Each row is one work item, done by the kernels of micro.h in
 * its fixed order; small steps stay on the calling thread (pool_run with few items does not wake).
 */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* Rows per chunk so that a chunk is worth a wake-up: about 16 K elements. */
static int64_t grain(int32_t cols)
{
    return 1 + 16384 / ((int64_t)cols + 1);
}

void rowops_resolve(struct backend *b, int32_t *ids, const int32_t *token, const struct rows *rows,
                    const struct sample_slots *slots)
{
    (void)b;
    for (int32_t t = 0; t < rows->count; t++) {
        const int32_t slot = rows->slot[t];
        if (slot < 0) {
            ids[t] = -1;
            continue;
        }
        int32_t *known =
            slots->history + (size_t)slot * (size_t)slots->history_cols + (size_t)rows->position[t];
        if (token[t] >= 0)
            *known = token[t];
        ids[t] = *known;
    }
}

struct embed_job {
    float *y;
    const int32_t *ids;
    const struct weight *w;
    int32_t first;
    float scale;
};

static void embed_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct embed_job *j = arg;
    (void)worker;
    const size_t cols = (size_t)j->w->spec.in;
    for (int64_t t = begin; t < end; t++) {
        float *y = j->y + (size_t)t * cols;
        int64_t row = (int64_t)j->ids[t] - j->first;
        if (row >= 0 && row < j->w->spec.out)
            layout_weight_get(j->w, (int32_t)row, y);
        else
            memset(y, 0, cols * sizeof *y);
        for (size_t i = 0; j->scale != 1 && i < cols; i++)
            y[i] *= j->scale;
    }
}

void rowops_embed(struct backend *b, struct view y, const int32_t *ids, const struct weight *w,
                  int32_t first, float scale)
{
    struct embed_job j = {y.data, ids, w, first, scale};
    pool_run(cpu_of(b)->pool, y.rows, 1 + 4096 / ((int64_t)y.cols + 1), embed_rows, &j);
}

struct norm_job {
    const struct cpu_isa *isa;
    float *y, *sum; /* sum: x += delta first, when not NULL */
    const float *x, *delta, *gain;
    float eps;
    int32_t cols;
};

static void norm_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct norm_job *j = arg;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const size_t at = (size_t)t * (size_t)j->cols;
        if (j->sum != NULL)
            j->isa->add(j->sum + at, j->delta + at, j->cols);
        float mean = j->isa->sum_squares(j->x + at, j->cols) / (float)j->cols;
        float r = 1.0f / sqrtf(mean + j->eps);
        j->isa->norm(j->y + at, j->x + at, j->gain, r, j->cols);
    }
}

void rowops_rmsnorm(struct backend *b, struct view y, struct cview x, const float *gain, float eps)
{
    struct cpu_backend *c = cpu_of(b);
    CHECK(y.dtype == DTYPE_F32);
    struct norm_job j = {c->isa, y.data, NULL, x.data, NULL, gain, eps, x.cols};
    pool_run(c->pool, x.rows, grain(x.cols), norm_rows, &j);
}

void rowops_add_rmsnorm(struct backend *b, struct view y, struct view x, struct cview delta,
                        const float *gain, float eps)
{
    struct cpu_backend *c = cpu_of(b);
    CHECK(y.dtype == DTYPE_F32 && delta.dtype == DTYPE_F32);
    struct norm_job j = {c->isa, y.data, x.data, x.data, delta.data, gain, eps, x.cols};
    pool_run(c->pool, x.rows, grain(x.cols), norm_rows, &j);
}

struct split_norm_job {
    const struct cpu_isa *isa;
    float *y, *sums, *sum; /* of square_sum: sum += delta when that is not NULL */
    const float *x, *delta, *gain, *sums_in;
    const float *scale; /* of an addition; NULL: none */
    float eps;
    int32_t cols, width;
    struct pieces pieces;
};

static void square_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct split_norm_job *j = arg;
    const struct pieces *p = &j->pieces;
    float of_piece[PIECES_MAX];
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const size_t at = (size_t)t * (size_t)j->cols;
        if (j->delta != NULL)
            j->isa->add(j->sum + at, j->delta + at, j->cols);
        for (int32_t k = 0; k < p->count; k++) {
            const int32_t from = pieces_begin(p, k), to = pieces_begin(p, k + 1);
            of_piece[k] = j->isa->sum_squares(j->x + at + from, to - from);
        }
        j->sums[t] = pieces_sum(of_piece, p->count);
    }
}

void rowops_square_sum(struct backend *b, float *sums, struct view x, struct cview delta,
                       struct pieces pieces)
{
    struct cpu_backend *c = cpu_of(b);
    struct split_norm_job j = {.isa = c->isa,
                               .sums = sums,
                               .sum = x.data,
                               .x = x.data,
                               .delta = delta.data,
                               .cols = x.cols,
                               .pieces = pieces};
    pool_run(c->pool, x.rows, grain(x.cols), square_rows, &j);
}

static void add_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct split_norm_job *j = arg;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        float *sum = j->sum + (size_t)t * (size_t)j->cols;
        j->isa->add(sum, j->delta + (size_t)t * (size_t)j->cols, j->cols);
        for (int32_t i = 0; j->scale != NULL && i < j->cols; i++)
            sum[i] *= *j->scale;
    }
}

void rowops_add(struct backend *b, struct view x, struct cview delta, const float *scale)
{
    struct cpu_backend *c = cpu_of(b);
    struct split_norm_job j = {
        .isa = c->isa, .sum = x.data, .delta = delta.data, .scale = scale, .cols = x.cols};
    pool_run(c->pool, x.rows, grain(x.cols), add_rows, &j);
}

static void scale_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct split_norm_job *j = arg;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const size_t at = (size_t)t * (size_t)j->cols;
        float r = 1.0f / sqrtf(j->sums_in[t] / (float)j->width + j->eps);
        j->isa->norm(j->y + at, j->x + at, j->gain, r, j->cols);
    }
}

void rowops_rms_scale(struct backend *b, struct view y, struct cview x, const float *sums,
                      int32_t width, const float *gain, float eps)
{
    struct cpu_backend *c = cpu_of(b);
    struct split_norm_job j = {.isa = c->isa,
                               .y = y.data,
                               .sums_in = sums,
                               .x = x.data,
                               .gain = gain,
                               .eps = eps,
                               .cols = x.cols,
                               .width = width};
    pool_run(c->pool, x.rows, grain(x.cols), scale_rows, &j);
}

/* ---- norms of all heads together ---- */

struct joint_job {
    const struct cpu_isa *isa;
    const struct joint_norm *n;
    const struct heads *h;
    float *qkv, *squares;
    int32_t cols, width; /* of them */
};

static void joint_square_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct joint_job *j = arg;
    const int32_t dim = j->h->head_dim, heads = j->h->heads, all = heads + j->h->kv_heads;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *x = j->qkv + (size_t)t * (size_t)j->cols;
        float *of_head = j->squares + (size_t)t * (size_t)j->width;
        float *of_q = of_head + j->n->first, *of_k = of_head + j->n->heads + j->n->first_kv;
        memset(of_head, 0, (size_t)j->width * sizeof *of_head);
        for (int32_t i = 0; i < all; i++, x += dim)
            if (!(j->n->shared && i == heads))
                *(i < heads ? of_q + i : of_k + i - heads) = j->isa->sum_squares(x, dim);
    }
}

/* The factor of the norm of so many heads with these squares. */
static float joint_factor(const float *squares, int32_t heads, int32_t dim, float eps)
{
    float sum = 0;
    for (int32_t i = 0; i < heads; i++)
        sum += squares[i];
    return 1.0f / sqrtf(sum / ((float)heads * (float)dim) + eps);
}

static void joint_scale_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct joint_job *j = arg;
    const struct joint_norm *n = j->n;
    const int32_t dim = j->h->head_dim, q = j->h->heads * dim, k = j->h->kv_heads * dim;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        float *x = j->qkv + (size_t)t * (size_t)j->cols;
        const float *of_head = j->squares + (size_t)t * (size_t)j->width;
        j->isa->norm(x, x, n->q_gain, joint_factor(of_head, n->heads, dim, n->eps), q);
        j->isa->norm(x + q, x + q, n->k_gain,
                     joint_factor(of_head + n->heads, n->kv_heads, dim, n->eps), k);
    }
}

void rowops_joint_squares(struct backend *b, struct view squares, struct cview qkv,
                          const struct joint_norm *n, const struct heads *h)
{
    struct cpu_backend *c = cpu_of(b);
    struct joint_job j = {c->isa,       n,        h,           (float *)(uintptr_t)qkv.data,
                          squares.data, qkv.cols, squares.cols};
    pool_run(c->pool, qkv.rows, grain(qkv.cols), joint_square_rows, &j);
}

void rowops_joint_scale(struct backend *b, struct view qkv, struct cview squares,
                        const struct joint_norm *n, const struct heads *h)
{
    struct cpu_backend *c = cpu_of(b);
    struct joint_job j = {c->isa,   n,           h, qkv.data, (float *)(uintptr_t)squares.data,
                          qkv.cols, squares.cols};
    pool_run(c->pool, qkv.rows, grain(qkv.cols), joint_scale_rows, &j);
}

/* ---- latents ---- */

struct latent_job {
    const struct cpu_isa *isa;
    const struct latent_rules *rules;
    float *query, *qkv;
    const float *a;
    int32_t qkv_cols, cols; /* cols of a */
};

static void latent_norm(const struct latent_job *j, float *y, const float *x, const float *gain,
                        int32_t n)
{
    const float mean = j->isa->sum_squares(x, n) / (float)n;
    j->isa->norm(y, x, gain, 1.0f / sqrtf(mean + j->rules->eps), n);
}

static void latent_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct latent_job *j = arg;
    const struct latent_rules *r = j->rules;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *a = j->a + (size_t)t * (size_t)j->cols;
        float *key = j->qkv + (size_t)(t + 1) * (size_t)j->qkv_cols - r->turns - r->value;
        if (r->query > 0)
            latent_norm(j, j->query + (size_t)t * (size_t)r->query, a, r->query_gain, r->query);
        memcpy(key, a + r->query + r->value, (size_t)r->turns * sizeof *key);
        latent_norm(j, key + r->turns, a + r->query, r->value_gain, r->value);
    }
}

void rowops_latent(struct backend *b, struct view query, struct view qkv, struct cview a,
                   const struct latent_rules *rules)
{
    struct cpu_backend *c = cpu_of(b);
    struct latent_job j = {c->isa, rules, query.data, qkv.data, a.data, qkv.cols, a.cols};
    pool_run(c->pool, a.rows, grain(a.cols), latent_rows, &j);
}

/* ---- biases ---- */

struct bias_job {
    const struct cpu_isa *isa;
    float *y;
    const float *x; /* y, or elsewhere */
    const float *bias;
    const struct routing *routing; /* of experts, */
    bool sum;                      /* whose shares are added up */
    int32_t cols;
};

static void bias_row(const struct bias_job *j, float *y, int64_t t)
{
    const struct routing *r = j->routing;
    const int32_t each = r && !j->sum ? j->cols / r->chosen : j->cols;
    if (!r)
        j->isa->add(y, j->bias, j->cols);
    for (int32_t i = 0; r && i < r->chosen; i++) {
        const float *bias = j->bias + (ptrdiff_t)r->expert[t * r->chosen + i] * each;
        if (j->sum)
            j->isa->merge(y, bias, 1.0f, r->share[t * r->chosen + i], each);
        else
            j->isa->add(y + (ptrdiff_t)i * each, bias, each);
    }
}

static void bias_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct bias_job *j = arg;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        float *y = j->y + (ptrdiff_t)t * j->cols;
        if (j->x != j->y)
            memcpy(y, j->x + (ptrdiff_t)t * j->cols, (size_t)j->cols * sizeof *y);
        bias_row(j, y, t);
    }
}

static void bias_run(struct backend *b, struct view y, const float *x, const float *bias,
                     const struct routing *r, bool sum)
{
    struct cpu_backend *c = cpu_of(b);
    struct bias_job j = {c->isa, y.data, x, bias, r, sum, y.cols};
    pool_run(c->pool, y.rows, grain(y.cols), bias_rows, &j);
}

void rowops_add_bias(struct backend *b, struct view y, struct cview x, const float *bias)
{
    bias_run(b, y, x.data, bias, NULL, false);
}

void rowops_expert_bias(struct backend *b, struct view y, const float *bias,
                        const struct routing *r)
{
    bias_run(b, y, y.data, bias, r, false);
}

void rowops_expert_bias_sum(struct backend *b, struct view y, struct cview x, const float *bias,
                            const struct routing *r)
{
    bias_run(b, y, x.data, bias, r, true);
}

struct rope_job {
    float *table;
    const int32_t *position;
    const float *inv_freq;
    float scale;
    int32_t half;
};

static void rope_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct rope_job *j = arg;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        float *row = j->table + (size_t)t * 2 * (size_t)j->half;
        const float position = (float)j->position[t];
        for (int32_t i = 0; i < j->half; i++) {
            double angle = (double)(position * j->inv_freq[i]);
            row[i] = (float)cos(angle) * j->scale;
            row[j->half + i] = (float)sin(angle) * j->scale;
        }
    }
}

void rowops_rope_table(struct backend *b, struct view table, const int32_t *position,
                       const float *inv_freq, float scale)
{
    struct rope_job j = {table.data, position, inv_freq, scale, table.cols / 2};
    pool_run(cpu_of(b)->pool, table.rows, 1 + 512 / ((int64_t)table.cols + 1), rope_rows, &j);
}

struct gate_job {
    const struct cpu_isa *isa;
    float *y;
    const float *x;
    int32_t cols;
};

static void gate_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct gate_job *j = arg;
    (void)worker;
    for (int64_t t = begin; t < end; t++)
        j->isa->gate(j->y + t * j->cols, j->x + t * j->cols, j->cols);
}

void rowops_gate(struct backend *b, struct view y, struct cview x)
{
    struct cpu_backend *c = cpu_of(b);
    struct gate_job j = {c->isa, y.data, x.data, y.cols};
    CHECK(y.dtype == DTYPE_F32);
    pool_run(c->pool, y.rows, grain(4 * y.cols), gate_rows, &j);
}

struct act_job {
    void (*act_mul)(float *y, const float *gate, const float *up, int32_t n);
    float *y;
    const float *gate, *up;
    size_t gate_stride, up_stride; /* floats between rows */
    int32_t cols;
};

static void act_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct act_job *j = arg;
    (void)worker;
    for (int64_t t = begin; t < end; t++)
        j->act_mul(j->y + t * j->cols, j->gate + (size_t)t * j->gate_stride,
                   j->up + (size_t)t * j->up_stride, j->cols);
}

void rowops_act_mul(struct backend *b, struct view y, struct cview gu, enum activation act)
{
    struct cpu_backend *c = cpu_of(b);
    const float *from = gu.data;
    const size_t stride = (size_t)gu.cols;
    struct act_job j = {c->isa->act_mul[act], y.data, from, from + y.cols, stride, stride, y.cols};
    CHECK(y.dtype == DTYPE_F32 && gu.dtype == DTYPE_F32);
    pool_run(c->pool, y.rows, grain(4 * y.cols), act_rows, &j);
}

void rowops_act_by(struct backend *b, struct view y, struct cview x, const float *by, size_t stride,
                   enum activation act)
{
    struct cpu_backend *c = cpu_of(b);
    struct act_job j = {c->isa->act_mul[act], y.data, x.data, by, (size_t)x.cols, stride, y.cols};
    pool_run(c->pool, y.rows, grain(4 * y.cols), act_rows, &j);
}

struct scale_job {
    float *y;
    const float *x;
    float by;
};

/* One rounding of each element, so that every instruction set gives the same bits. */
static void scale_elements(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct scale_job *j = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        j->y[i] = j->x[i] * j->by;
}

void rowops_scale(struct backend *b, struct view y, struct cview x, float by)
{
    struct scale_job j = {y.data, x.data, by};
    pool_run(cpu_of(b)->pool, (int64_t)y.rows * y.cols, grain(1), scale_elements, &j);
}

struct query_job {
    struct view qkv;
    int32_t cols; /* of queries */
    const int32_t *position;
    float beta;
    int32_t original;
};

static void scale_query_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct query_job *j = arg;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float by = numerics_query_scale(j->position[t], j->beta, j->original);
        float *q = (float *)j->qkv.data + (size_t)t * (size_t)j->qkv.cols;
        for (int32_t i = 0; i < j->cols; i++)
            q[i] *= by;
    }
}

void rowops_scale_queries(struct backend *b, struct view qkv, const struct heads *h,
                          const int32_t *position, float beta, int32_t original)
{
    struct query_job j = {qkv, h->heads * h->head_dim, position, beta, original};
    CHECK(qkv.dtype == DTYPE_F32);
    pool_run(cpu_of(b)->pool, qkv.rows, grain(j.cols), scale_query_rows, &j);
}

struct softcap_job {
    const struct cpu_isa *isa;
    float *x, cap;
    int32_t cols;
};

static void softcap_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct softcap_job *j = arg;
    (void)worker;
    for (int64_t t = begin; t < end; t++)
        j->isa->softcap(j->x + (size_t)t * (size_t)j->cols, j->cap, j->cols);
}

void rowops_softcap(struct backend *b, struct view x, float cap)
{
    struct cpu_backend *c = cpu_of(b);
    struct softcap_job j = {c->isa, x.data, cap, x.cols};
    pool_run(c->pool, x.rows, grain(4 * x.cols), softcap_rows, &j);
}

void rowops_select(struct backend *b, struct view y, struct cview x, const int32_t *index)
{
    (void)b;
    const size_t bytes = (size_t)x.cols * sizeof(float);
    for (int32_t r = 0; r < y.rows; r++) {
        CHECK(index[r] >= 0 && index[r] < x.rows);
        memcpy((unsigned char *)y.data + (size_t)r * bytes,
               (const unsigned char *)x.data + (size_t)index[r] * bytes, bytes);
    }
}

struct copy_job {
    float *dst;
    const float *src;
    size_t dst_stride, src_stride, bytes;
};

static void copy_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct copy_job *j = arg;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        float *to = j->dst + (size_t)r * j->dst_stride;
        if (j->src != NULL)
            memcpy(to, j->src + (size_t)r * j->src_stride, j->bytes);
        else
            memset(to, 0, j->bytes);
    }
}

void rowops_copy(struct backend *b, float *dst, size_t dst_stride, const float *src,
                 size_t src_stride, int32_t rows, int32_t cols)
{
    struct copy_job j = {dst, src, dst_stride, src_stride, (size_t)cols * sizeof *dst};
    pool_run(cpu_of(b)->pool, rows, grain(cols), copy_rows, &j);
}

struct sum_job {
    const struct cpu_isa *isa;
    float *y;
    const float *const *addends;
    int32_t count;
};

static void sum_range(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct sum_job *j = arg;
    (void)worker;
    j->isa->sum_tree(j->y, j->addends, j->count, begin, end);
}

void rowops_sum_tree(struct backend *b, float *y, const float *const *addends, int32_t count,
                     size_t n)
{
    struct cpu_backend *c = cpu_of(b);
    CHECK(count >= 1 && count <= BACKEND_PEERS_MAX);
    struct sum_job j = {c->isa, y, addends, count};
    pool_run(c->pool, (int64_t)n, 16384, sum_range, &j);
}
