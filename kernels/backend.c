/* DESIGN: the door to the op tables, for all that backend.h declares behind the table. Arguments of
 * these are checked here and nowhere else; a failed check is our bug (ERR_INTERNAL) and its message
 * names the op, the condition and the shapes. Contents of device arrays (ids, tables) are not read:
 * they may not be on the host. */
#include "kernels/backend.h"

#include "kernels/cpu/cpu.h"
#include "kernels/handles.h"
#include "kernels/module.h"
#include "kernels/ref/ref.h"

#include <string.h>

static bool is_cpu(const char *name)
{
    return strcmp(name, "cpu") == 0 || strncmp(name, "cpu-", 4) == 0;
}

static bool is_cuda(const char *name)
{
    const size_t n = strcspn(name, ":");
    return (n == strlen("cuda") && strncmp(name, "cuda", n) == 0) ||
           (n == strlen("cuda-deterministic") && strncmp(name, "cuda-deterministic", n) == 0);
}

enum status backend_table(const char *name, const struct backend_ops **out, struct err *err)
{
    const struct module *module = NULL;
    const struct backend_ops *ops = strcmp(name, ref_ops.name) == 0 ? &ref_ops : cpu_find(name);
    if (is_cuda(name)) {
        enum status st = module_find(&module, err);
        if (st != OK)
            return st;
        ops = module->find(name);
    }
    if (ops == NULL)
        return base_fail(err, ERR_DEVICE, "--device %s is not available here", name);
    *out = ops;
    return OK;
}

const struct backend_ops *backend_find(const char *name)
{
    struct err ignored;
    const struct backend_ops *ops = NULL;
    return backend_table(name, &ops, &ignored) == OK ? ops : NULL;
}

const char *backend_cpu_variant(void)
{
    return cpu_variant();
}

static enum status open_cuda(const char *name, int32_t threads, struct backend **out,
                             struct err *err)
{
    const struct module *module = NULL;
    enum status st = module_find(&module, err);
    return st == OK ? module->open(name, threads, out, err) : st;
}

enum status backend_open(const char *name, int32_t threads, struct backend **out, struct err *err)
{
    if (threads < 1)
        return base_fail(err, ERR_INTERNAL, "backend %s: %d threads", name, (int)threads);
    if (strcmp(name, ref_ops.name) == 0)
        return ref_open(out, err);
    if (is_cpu(name))
        return cpu_open(name, threads, out, err);
    if (is_cuda(name))
        return open_cuda(name, threads, out, err);
    return base_fail(err, ERR_DEVICE,
                     "no backend is called %s: cpu, %s, cuda, cuda-deterministic, ref", name,
                     cpu_names());
}

void backend_close(struct backend *b)
{
    if (b != NULL)
        b->ops->close(b);
}

enum status backend_reserve(struct backend *b, int32_t rows_max, int32_t in_max, int32_t out_max,
                            struct err *err)
{
    if (rows_max < 0 || in_max < 0 || out_max < 0)
        return base_fail(err, ERR_INTERNAL, "reserve: %d rows, %d in, %d out", (int)rows_max,
                         (int)in_max, (int)out_max);
    return b->ops->reserve(b, rows_max, in_max, out_max, err);
}

void backend_parallel(struct backend *b, int64_t count, int64_t grain,
                      void (*fn)(void *arg, int64_t begin, int64_t end), void *arg)
{
    b->ops->parallel(b, count, grain < 1 ? 1 : grain, fn, arg);
}

const struct weight_spec *backend_weight_spec(const struct weight *w)
{
    return &w->spec;
}

const void *backend_weight_storage(const struct weight *w)
{
    return w->storage;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static bool is_matrix_of(enum dtype dtype, struct cview m)
{
    return m.dtype == dtype && m.rows >= 0 && m.cols >= 0 &&
           (m.data != NULL || m.rows == 0 || m.cols == 0);
}

static bool is_matrix(struct cview m)
{
    return is_matrix_of(DTYPE_F32, m);
}

static bool has_shape(struct cview m, int32_t rows, int64_t cols)
{
    return is_matrix(m) && m.rows == rows && m.cols == cols;
}

/* The same of what linear_out may name, and of what linear_in may. */
static bool is_result(struct cview m, int32_t rows, int64_t cols)
{
    return (is_matrix(m) || is_matrix_of(DTYPE_BF16, m)) && m.rows == rows && m.cols == cols;
}

static bool is_factor(struct cview m, int32_t rows, int64_t cols)
{
    return is_result(m, rows, cols) ||
           (is_matrix_of(DTYPE_F16, m) && m.rows == rows && m.cols == cols);
}

static size_t bytes_of(struct cview m)
{
    return (size_t)m.rows * (size_t)m.cols * dtype_size(m.dtype);
}

static bool is_apart(struct cview a, struct cview b)
{
    const uintptr_t p = (uintptr_t)a.data, q = (uintptr_t)b.data;
    return p + bytes_of(a) <= q || q + bytes_of(b) <= p || bytes_of(a) == 0 || bytes_of(b) == 0;
}

/* The same elements, or none in common. */
static bool is_same_or_apart(struct cview a, struct cview b)
{
    return (a.data == b.data && a.dtype == b.dtype) || is_apart(a, b);
}

static bool is_heads(const struct heads *h)
{
    const bool dims =
        h->latent > 0 ? h->latent % 16 == 0 && h->head_dim % 16 == 0 && h->latent < h->head_dim &&
                            h->latent <= BACKEND_HEAD_DIM_MAX && h->head_dim <= BACKEND_KEY_DIM_MAX
                      : h->latent == 0 && h->head_dim <= BACKEND_HEAD_DIM_MAX;
    return h->heads >= 0 && h->kv_heads >= 0 && h->head_dim >= 2 && h->head_dim % 2 == 0 && dims &&
           !(h->alone && h->latent > 0) && (h->heads == 0 || (h->kv_of != NULL && h->kv_heads > 0));
}

static int64_t qkv_cols(const struct heads *h)
{
    const int32_t sides = h->latent > 0 ? 1 : 2;
    return ((int64_t)h->heads + sides * (int64_t)backend_kv_given(h)) * h->head_dim;
}

/* Without a cache, whose table there need not be then, and with one. */
static bool is_placed(const struct rows *r)
{
    return r->count >= 0 && r->head >= 0 && r->tail >= 0 && r->head <= r->count - r->tail &&
           (r->count == 0 || (r->slot != NULL && r->position != NULL));
}

static bool is_rows(const struct rows *r)
{
    return is_placed(r) && r->table_cols >= 0 && (r->count == 0 || r->table != NULL);
}

static bool is_state_dim(int32_t dim)
{
    return dim > 0 && dim % 16 == 0 && dim <= BACKEND_STATE_DIM_MAX;
}

static bool is_recurrent(const struct recurrent_heads *h)
{
    return h->keys >= 0 && h->values >= 0 && (h->keys == 0) == (h->values == 0) &&
           (h->keys == 0 || h->values % h->keys == 0) && is_state_dim(h->key_dim) &&
           is_state_dim(h->value_dim) && h->taps >= 2 && h->taps <= BACKEND_TAPS_MAX;
}

static bool is_cache_of(const struct kv_cache *kv, const struct heads *h, int32_t layer)
{
    return kv->spec.heads == h->kv_heads && kv->spec.head_dim == h->head_dim &&
           kv->spec.latent == h->latent && layer >= 0 && layer < kv->spec.layers;
}

/* Returns ERR_INTERNAL from the calling function, with up to two matrices for the reader. */
#define REQUIRE(op, cond, a, b)                                                                    \
    do {                                                                                           \
        if (!(cond))                                                                               \
            return base_fail(err, ERR_INTERNAL, "%s: not so: %s; %s [%d, %d], %s [%d, %d]", op,    \
                             #cond, #a, (int)(a).rows, (int)(a).cols, #b, (int)(b).rows,           \
                             (int)(b).cols);                                                       \
    } while (0)

/* ---- ops ------------------------------------------------------------------------------------- */

enum status backend_embed(struct backend *b, struct view y, const int32_t *ids,
                          const struct weight *w, int32_t first, float scale, struct err *err)
{
    REQUIRE("embed", has_shape(cview_of(y), y.rows, w->spec.in), y, y);
    REQUIRE("embed", (ids != NULL || y.rows == 0) && first >= 0, y, y);
    b->ops->embed(b, y, ids, w, first, scale);
    return OK;
}

enum status backend_linear(struct backend *b, struct view y, struct cview x, const struct weight *w,
                           struct err *err)
{
    REQUIRE("linear", is_factor(x, x.rows, w->spec.in), x, y);
    REQUIRE("linear", is_result(cview_of(y), x.rows, w->spec.out), x, y);
    REQUIRE("linear", x.dtype == DTYPE_F32 || x.dtype == b->ops->linear_in(b, w, x.rows), x, y);
    REQUIRE("linear", y.dtype == DTYPE_F32 || y.dtype == b->ops->linear_out(b, w, x.rows), x, y);
    REQUIRE("linear", is_apart(cview_of(y), x), x, y);
    enum status st = b->ops->reserve(b, x.rows, w->spec.in, 0, err);
    if (st == OK)
        b->ops->linear(b, y, x, w);
    return st;
}

enum status backend_linear_fused(struct backend *b, struct view y, struct cview x,
                                 const struct weight *w, const struct linear_fusion *f,
                                 struct err *err)
{
    const int32_t cols = f->end == LINEAR_ACT ? w->spec.out / 2 : w->spec.out;
    REQUIRE("linear_fused", has_shape(x, x.rows, w->spec.in), x, y);
    REQUIRE("linear_fused", has_shape(cview_of(y), x.rows, cols), x, y);
    REQUIRE("linear_fused", f->end != LINEAR_ACT || w->spec.out % 2 == 0, x, y);
    REQUIRE("linear_fused", is_apart(cview_of(y), x) && (uintptr_t)x.data % 16 == 0, x, y);
    REQUIRE("linear_fused", b->ops->linear_fuses(b, w, x.rows, f), x, y);
    b->ops->linear_fused(b, y, x, w, f);
    return OK;
}

static bool is_like(const struct weight_spec *a, const struct weight_spec *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

enum status backend_experts_open(struct backend *b, const struct weight *const *weight,
                                 int32_t count, int32_t chosen, int32_t rows_max,
                                 struct experts **out, struct err *err)
{
    bool alike = count >= 1 && count <= BACKEND_EXPERTS_MAX;
    for (int32_t i = 0; alike && i < count; i++)
        alike = is_like(&weight[i]->spec, &weight[0]->spec);
    if (alike && chosen == 0)
        alike = dtype_is_compute(weight[0]->spec.dtype) && weight[0]->spec.leaves == 1;
    if (!alike || chosen < 0 || chosen > count || chosen > BACKEND_CHOSEN_MAX || rows_max < 0)
        return base_fail(err, ERR_INTERNAL, "experts: %d of %d, %s", (int)chosen, (int)count,
                         alike ? "of one shape" : "not of one shape");
    *out = b->ops->experts_open(b, weight, count, chosen, rows_max);
    return *out ? OK
                : base_fail(err, ERR_NOMEM, "no memory for %d experts and %d rows", (int)count,
                            (int)rows_max);
}

static bool is_routing(const struct routing *r)
{
    return r->chosen >= 1 && r->chosen <= r->experts && r->chosen <= BACKEND_CHOSEN_MAX &&
           r->experts <= BACKEND_EXPERTS_MAX && r->expert != NULL && r->share != NULL;
}

/* Is there scratch for so many rows of these experts? */
static bool is_ready(const struct experts *w, const struct routing *r, int32_t rows)
{
    return is_routing(r) && w->count == r->experts && w->chosen == r->chosen && rows <= w->rows_max;
}

static bool are_rules(const struct routing_rules *rules, const struct routing *r)
{
    const int32_t routed = r->experts - rules->shared, groups = rules->groups;
    const bool divided =
        groups == 0 ||
        (groups > 0 && groups <= routed && routed % groups == 0 && rules->kept > 0 &&
         rules->kept <= groups && routed / groups * rules->kept >= r->chosen - rules->shared);
    return rules->shared >= 0 && rules->shared < r->chosen && divided &&
           (rules->shared > 0 || !rules->gated);
}

enum status backend_route(struct backend *b, const struct routing *r, struct cview logits,
                          const struct routing_rules *rules, struct err *err)
{
    REQUIRE("route", is_routing(r) && are_rules(rules, r), logits, logits);
    REQUIRE("route", has_shape(logits, logits.rows, backend_route_logits(r->experts, rules)),
            logits, logits);
    b->ops->route(b, r, logits, rules);
    return OK;
}

enum status backend_expert_linear(struct backend *b, struct view y, struct cview x,
                                  const struct experts *w, const struct routing *r, struct err *err)
{
    REQUIRE("expert_linear", is_ready(w, r, x.rows), x, y);
    REQUIRE("expert_linear", has_shape(x, x.rows, w->spec.in), x, y);
    REQUIRE("expert_linear", has_shape(cview_of(y), x.rows, (int64_t)r->chosen * w->spec.out), x,
            y);
    REQUIRE("expert_linear", w->spec.leaves == 1, x, y);
    REQUIRE("expert_linear", is_apart(cview_of(y), x), x, y);
    b->ops->expert_linear(b, y, x, w, r);
    return OK;
}

enum status backend_expert_sum(struct backend *b, struct view y, struct cview x,
                               const struct experts *w, const struct routing *r, struct err *err)
{
    REQUIRE("expert_sum", is_ready(w, r, x.rows), x, y);
    REQUIRE("expert_sum", has_shape(x, x.rows, (int64_t)r->chosen * w->spec.in), x, y);
    REQUIRE("expert_sum", has_shape(cview_of(y), x.rows, w->spec.out), x, y);
    REQUIRE("expert_sum", is_apart(cview_of(y), x), x, y);
    b->ops->expert_sum(b, y, x, w, r);
    return OK;
}

enum status backend_head_linear(struct backend *b, struct view y, struct cview x,
                                const struct experts *w, int32_t kept, struct err *err)
{
    const int64_t in = (int64_t)w->count * (w->spec.in + kept);
    REQUIRE("head_linear", w->chosen == 0 && kept >= 0 && x.rows <= w->rows_max, x, y);
    REQUIRE("head_linear", has_shape(x, x.rows, in), x, y);
    REQUIRE("head_linear", is_factor(cview_of(y), x.rows, y.cols), x, y);
    REQUIRE("head_linear", y.cols >= (int64_t)w->count * (kept + w->spec.out), x, y);
    REQUIRE("head_linear", is_apart(cview_of(y), x), x, y);
    b->ops->head_linear(b, y, x, w, kept);
    return OK;
}

enum status backend_latent(struct backend *b, struct view query, struct view qkv, struct cview a,
                           const struct latent_rules *rules, struct err *err)
{
    const int64_t key = (int64_t)rules->value + rules->turns;
    REQUIRE("latent", rules->query >= 0 && rules->value > 0 && rules->turns >= 0, a, qkv);
    REQUIRE("latent", has_shape(a, a.rows, rules->query + key), a, qkv);
    REQUIRE("latent", has_shape(cview_of(query), a.rows, rules->query), a, query);
    REQUIRE("latent", has_shape(cview_of(qkv), a.rows, qkv.cols) && qkv.cols >= key, a, qkv);
    REQUIRE("latent", rules->value_gain != NULL, a, qkv);
    REQUIRE("latent", rules->query == 0 || rules->query_gain != NULL, a, query);
    REQUIRE("latent", is_apart(cview_of(query), a) && is_apart(cview_of(qkv), a), a, qkv);
    REQUIRE("latent", is_apart(cview_of(query), cview_of(qkv)), query, qkv);
    b->ops->latent(b, query, qkv, a, rules);
    return OK;
}

enum status backend_add_bias(struct backend *b, struct view y, struct cview x, const float *bias,
                             struct err *err)
{
    REQUIRE("add_bias", is_matrix(x) && has_shape(cview_of(y), x.rows, x.cols), y, x);
    REQUIRE("add_bias", is_same_or_apart(cview_of(y), x), y, x);
    REQUIRE("add_bias", bias != NULL || x.cols == 0, y, x);
    b->ops->add_bias(b, y, x, bias);
    return OK;
}

enum status backend_expert_bias(struct backend *b, struct view y, const float *bias,
                                const struct routing *r, struct err *err)
{
    REQUIRE("expert_bias", is_matrix(cview_of(y)) && is_routing(r), y, y);
    REQUIRE("expert_bias", y.cols % r->chosen == 0 && (bias != NULL || y.cols == 0), y, y);
    b->ops->expert_bias(b, y, bias, r);
    return OK;
}

enum status backend_expert_bias_sum(struct backend *b, struct view y, struct cview x,
                                    const float *bias, const struct routing *r, struct err *err)
{
    REQUIRE("expert_bias_sum", is_matrix(x) && has_shape(cview_of(y), x.rows, x.cols), y, x);
    REQUIRE("expert_bias_sum", is_same_or_apart(cview_of(y), x) && is_routing(r), y, x);
    REQUIRE("expert_bias_sum", bias != NULL || x.cols == 0, y, x);
    b->ops->expert_bias_sum(b, y, x, bias, r);
    return OK;
}

enum status backend_rmsnorm(struct backend *b, struct view y, struct cview x, const float *gain,
                            float eps, struct err *err)
{
    REQUIRE("rmsnorm", is_matrix(x) && is_factor(cview_of(y), x.rows, x.cols), x, y);
    REQUIRE("rmsnorm", is_same_or_apart(cview_of(y), x), x, y);
    REQUIRE("rmsnorm", gain != NULL || x.cols == 0, x, y);
    b->ops->rmsnorm(b, y, x, gain, eps);
    return OK;
}

enum status backend_add_rmsnorm(struct backend *b, struct view y, struct view x, struct cview delta,
                                const float *gain, float eps, struct err *err)
{
    REQUIRE("add_rmsnorm", is_matrix(cview_of(x)) && is_result(delta, x.rows, x.cols), x, delta);
    REQUIRE("add_rmsnorm", is_factor(cview_of(y), x.rows, x.cols), x, y);
    REQUIRE("add_rmsnorm", is_apart(cview_of(y), cview_of(x)), x, y);
    REQUIRE("add_rmsnorm", is_apart(delta, cview_of(x)), x, delta);
    REQUIRE("add_rmsnorm", is_same_or_apart(cview_of(y), delta), y, delta);
    REQUIRE("add_rmsnorm", gain != NULL || x.cols == 0, x, y);
    b->ops->add_rmsnorm(b, y, x, delta, gain, eps);
    return OK;
}

enum status backend_square_sum(struct backend *b, float *sums, struct view x, struct cview delta,
                               struct pieces pieces, struct err *err)
{
    REQUIRE("square_sum", is_matrix(cview_of(x)) && (sums != NULL || x.rows == 0), x, delta);
    REQUIRE("square_sum", delta.data == NULL || has_shape(delta, x.rows, x.cols), x, delta);
    REQUIRE("square_sum", is_apart(delta, cview_of(x)), x, delta);
    REQUIRE("square_sum", pieces.count >= 1 && pieces.count <= PIECES_MAX, x, delta);
    REQUIRE("square_sum", pieces_begin(&pieces, pieces.count) == x.cols, x, delta);
    b->ops->square_sum(b, sums, x, delta, pieces);
    return OK;
}

enum status backend_rms_scale(struct backend *b, struct view y, struct cview x, const float *sums,
                              int32_t width, const float *gain, float eps, struct err *err)
{
    REQUIRE("rms_scale", is_matrix(x) && has_shape(cview_of(y), x.rows, x.cols), x, y);
    REQUIRE("rms_scale", is_same_or_apart(cview_of(y), x), x, y);
    REQUIRE("rms_scale", (sums != NULL || x.rows == 0) && width >= x.cols, x, y);
    REQUIRE("rms_scale", gain != NULL || x.cols == 0, x, y);
    b->ops->rms_scale(b, y, x, sums, width, gain, eps);
    return OK;
}

enum status backend_add(struct backend *b, struct view x, struct cview delta, const float *scale,
                        struct err *err)
{
    REQUIRE("add", is_matrix(cview_of(x)) && has_shape(delta, x.rows, x.cols), x, delta);
    REQUIRE("add", is_apart(delta, cview_of(x)), x, delta);
    b->ops->add(b, x, delta, scale);
    return OK;
}

/* What both halves ask of their arguments. */
static enum status check_joint(const char *op, struct cview squares, struct cview qkv,
                               const struct joint_norm *n, const struct heads *h, struct err *err)
{
    REQUIRE(op, is_heads(h) && !h->alone, squares, qkv);
    REQUIRE(op, is_matrix(qkv) && qkv.cols == qkv_cols(h), squares, qkv);
    REQUIRE(op, has_shape(squares, qkv.rows, n->heads + n->kv_heads), squares, qkv);
    REQUIRE(op, n->first >= 0 && h->heads <= n->heads - n->first, squares, qkv);
    REQUIRE(op, n->first_kv >= 0 && h->kv_heads <= n->kv_heads - n->first_kv, squares, qkv);
    REQUIRE(op, n->q_gain != NULL || h->heads == 0, squares, qkv);
    REQUIRE(op, n->k_gain != NULL || h->kv_heads == 0, squares, qkv);
    return OK;
}

enum status backend_joint_squares(struct backend *b, struct view squares, struct cview qkv,
                                  const struct joint_norm *n, const struct heads *h,
                                  struct err *err)
{
    enum status st = OK;
    TRY(check_joint("joint_squares", cview_of(squares), qkv, n, h, err));
    b->ops->joint_squares(b, squares, qkv, n, h);
out:
    return st;
}

enum status backend_joint_scale(struct backend *b, struct view qkv, struct cview squares,
                                const struct joint_norm *n, const struct heads *h, struct err *err)
{
    enum status st = OK;
    TRY(check_joint("joint_scale", squares, cview_of(qkv), n, h, err));
    b->ops->joint_scale(b, qkv, squares, n, h);
out:
    return st;
}

enum status backend_scale_queries(struct backend *b, struct view qkv, const struct heads *h,
                                  const int32_t *position, float beta, int32_t original,
                                  struct err *err)
{
    const struct cview x = cview_of(qkv);
    REQUIRE("scale_queries", is_heads(h) && is_result(x, x.rows, qkv_cols(h)), x, x);
    REQUIRE("scale_queries", position != NULL || x.rows == 0, x, x);
    REQUIRE("scale_queries", beta > 0 && original > 0, x, x);
    b->ops->scale_queries(b, qkv, h, position, beta, original);
    return OK;
}

enum status backend_rope_table(struct backend *b, struct view table, const int32_t *position,
                               const float *inv_freq, float scale, struct err *err)
{
    REQUIRE("rope_table", is_matrix(cview_of(table)) && table.cols % 2 == 0, table, table);
    REQUIRE("rope_table", position != NULL || table.rows == 0, table, table);
    REQUIRE("rope_table", inv_freq != NULL || table.cols == 0, table, table);
    b->ops->rope_table(b, table, position, inv_freq, scale);
    return OK;
}

/* What rope_kv and rope_attend ask of their arguments, */
static enum status check_rope(const char *op, struct cview qkv, const struct qkv_rules *rules,
                              struct cview table, const struct heads *h, const struct rows *rows,
                              struct err *err)
{
    REQUIRE(op, is_rows(rows) && is_heads(h), qkv, table);
    REQUIRE(op, is_result(qkv, rows->count, qkv_cols(h)), qkv, table);
    REQUIRE(op, h->latent == 0 || h->head_dim - h->latent >= table.cols, qkv, table);
    REQUIRE(op, h->alone || (rules->q_norm == NULL) == (rules->k_norm == NULL), qkv, table);
    REQUIRE(op, rules->v_norm == NULL || h->latent == 0, qkv, table);
    REQUIRE(op, table.cols <= h->head_dim && table.cols % 2 == 0, qkv, table);
    REQUIRE(op, has_shape(table, rows->count, table.cols), qkv, table);
    return OK;
}

/* and attend and rope_attend. */
static enum status check_attend(const char *op, struct cview out, struct cview qkv,
                                const struct heads *h, const struct attention *how,
                                const struct rows *rows, struct err *err)
{
    REQUIRE(op, is_rows(rows) && is_heads(h), qkv, out);
    REQUIRE(op, how->scale > 0 && how->softcap >= 0 && how->window >= 0, qkv, out);
    REQUIRE(op, is_result(qkv, rows->count, qkv_cols(h)), qkv, out);
    REQUIRE(op, is_factor(out, rows->count, (int64_t)h->heads * backend_value_dim(h)), qkv, out);
    REQUIRE(op, is_apart(out, qkv), qkv, out);
    return OK;
}

enum status backend_rope_kv(struct backend *b, struct view qkv, const struct qkv_rules *rules,
                            struct cview table, const struct heads *h, const struct rows *rows,
                            struct kv_cache *kv, int32_t layer, struct err *err)
{
    enum status st = check_rope("rope_kv", cview_of(qkv), rules, table, h, rows, err);
    if (st != OK)
        return st;
    REQUIRE("rope_kv", is_cache_of(kv, h, layer), qkv, table);
    b->ops->rope_kv(b, qkv, rules, table, h, rows, kv, layer);
    return OK;
}

enum status backend_attend(struct backend *b, struct view out, struct cview qkv,
                           const struct heads *h, const struct attention *how,
                           const struct rows *rows, const struct kv_cache *kv, int32_t layer,
                           struct err *err)
{
    enum status st = check_attend("attend", cview_of(out), qkv, h, how, rows, err);
    if (st != OK)
        return st;
    REQUIRE("attend", is_cache_of(kv, h, layer), qkv, out);
    b->ops->attend(b, out, qkv, h, how, rows, kv, layer);
    return OK;
}

enum status backend_rope_attend(struct backend *b, struct view out, struct view qkv,
                                const struct qkv_rules *rules, struct cview table,
                                const struct heads *h, const struct attention *how,
                                const struct rows *rows, struct kv_cache *kv, int32_t layer,
                                struct err *err)
{
    enum status st = check_rope("rope_attend", cview_of(qkv), rules, table, h, rows, err);
    if (st == OK)
        st = check_attend("rope_attend", cview_of(out), cview_of(qkv), h, how, rows, err);
    if (st != OK)
        return st;
    REQUIRE("rope_attend", is_cache_of(kv, h, layer), qkv, out);
    b->ops->rope_attend(b, out, qkv, rules, table, h, how, rows, kv, layer);
    return OK;
}

enum status backend_delta_rule(struct backend *b, struct view out, struct view a,
                               struct cview gates, const struct recurrent_heads *h,
                               const struct recurrent_rules *rules, const struct rows *rows,
                               const struct recurrent_state *state, struct err *err)
{
    const int64_t keys = 2 * (int64_t)h->keys * h->key_dim;
    const int64_t values = (int64_t)h->values * h->value_dim;
    REQUIRE("delta_rule", is_recurrent(h) && is_placed(rows), a, out);
    REQUIRE("delta_rule", has_shape(cview_of(a), rows->count, keys + 2 * values), a, out);
    REQUIRE("delta_rule", is_factor(cview_of(out), rows->count, values), a, out);
    REQUIRE("delta_rule", has_shape(gates, rows->count, 2 * (int64_t)h->values), a, gates);
    REQUIRE("delta_rule", is_apart(cview_of(out), cview_of(a)), a, out);
    REQUIRE("delta_rule", is_apart(cview_of(out), gates) && is_apart(cview_of(a), gates), a, gates);
    if (rows->count == 0 || h->values == 0)
        return OK;
    REQUIRE("delta_rule", rules->conv != NULL && rules->gain != NULL, a, out);
    REQUIRE("delta_rule", rules->decay != NULL && rules->decay_bias != NULL, a, gates);
    REQUIRE("delta_rule", state->matrix != NULL && state->rows != NULL, a, out);
    b->ops->delta_rule(b, out, a, gates, h, rules, rows, state);
    return OK;
}

enum status backend_gate(struct backend *b, struct view y, struct cview x, struct err *err)
{
    REQUIRE("gate", is_matrix(x) && is_factor(cview_of(y), x.rows, x.cols), y, x);
    REQUIRE("gate", is_apart(cview_of(y), x), y, x);
    b->ops->gate(b, y, x);
    return OK;
}

enum status backend_act_mul(struct backend *b, struct view y, struct cview gu, enum activation act,
                            struct err *err)
{
    REQUIRE("act_mul", is_factor(cview_of(y), y.rows, y.cols), y, gu);
    REQUIRE("act_mul", is_result(gu, y.rows, 2 * (int64_t)y.cols), y, gu);
    REQUIRE("act_mul", is_apart(cview_of(y), gu), y, gu);
    b->ops->act_mul(b, y, gu, act);
    return OK;
}

enum status backend_act_by(struct backend *b, struct view y, struct cview x, const float *by,
                           size_t stride, enum activation act, struct err *err)
{
    REQUIRE("act_by", has_shape(x, y.rows, y.cols) && is_matrix(cview_of(y)), y, x);
    REQUIRE("act_by", is_same_or_apart(cview_of(y), x), y, x);
    REQUIRE("act_by", act == ACT_SILU || act == ACT_GELU_TANH, y, x);
    REQUIRE("act_by", stride >= (size_t)y.cols && stride <= INT32_MAX, y, x);
    if (y.rows == 0 || y.cols == 0)
        return OK;
    REQUIRE("act_by", by != NULL, y, x);
    const struct cview rows = {by, DTYPE_F32, y.rows - 1, (int32_t)stride}; /* but the last */
    const struct cview last = {by + (size_t)rows.rows * stride, DTYPE_F32, 1, y.cols};
    REQUIRE("act_by", is_apart(cview_of(y), rows) && is_apart(cview_of(y), last), y, x);
    b->ops->act_by(b, y, x, by, stride, act);
    return OK;
}

enum status backend_scale(struct backend *b, struct view y, struct cview x, float by,
                          struct err *err)
{
    REQUIRE("scale", is_matrix(x) && has_shape(cview_of(y), x.rows, x.cols), x, y);
    REQUIRE("scale", is_same_or_apart(cview_of(y), x), x, y);
    b->ops->scale(b, y, x, by);
    return OK;
}

enum status backend_softcap(struct backend *b, struct view x, float cap, struct err *err)
{
    REQUIRE("softcap", is_matrix(cview_of(x)) && cap > 0, x, x);
    b->ops->softcap(b, x, cap);
    return OK;
}

enum status backend_select(struct backend *b, struct view y, struct cview x, const int32_t *index,
                           struct err *err)
{
    REQUIRE("select", is_matrix(x) && has_shape(cview_of(y), y.rows, x.cols), y, x);
    REQUIRE("select", is_apart(cview_of(y), x), y, x);
    REQUIRE("select", index != NULL || y.rows == 0, y, x);
    b->ops->select(b, y, x, index);
    return OK;
}

static bool is_logits(struct cview m)
{
    return is_matrix(m) && (m.cols > 0 || m.rows == 0);
}

static bool is_sample_rows(const struct sample_rows *r)
{
    return r->slot != NULL && r->position != NULL && r->target != NULL;
}

static bool is_sample_slots(const struct sample_slots *s, const struct sample_rows *r)
{
    return s->params != NULL && s->rules != NULL && s->history != NULL && s->history_cols > 0 &&
           (r->mask == NULL || (s->masks != NULL && s->mask_words > 0));
}

enum status backend_sample(struct backend *b, int32_t *ids, struct cview logits,
                           const struct sample_rows *rows, const struct sample_slots *slots,
                           struct err *err)
{
    REQUIRE("sample", is_logits(logits), logits, logits);
    REQUIRE("sample", logits.rows == 0 || (ids != NULL && is_sample_rows(rows)), logits, logits);
    REQUIRE("sample", logits.rows == 0 || is_sample_slots(slots, rows), logits, logits);
    enum status st = b->ops->reserve(b, 1, 0, logits.cols, err);
    if (st == OK)
        b->ops->sample(b, ids, logits, rows, slots);
    return st;
}

static bool is_election(const struct sample_election *e)
{
    return e->rows >= 0 && e->vocab > 0 && e->shards > 0 && e->shards <= BACKEND_PEERS_MAX &&
           e->begin != NULL;
}

/* Columns from `first` on of the election's rows. */
static bool is_part(struct cview m, int32_t first, const struct sample_election *e)
{
    return is_election(e) && is_matrix(m) && m.rows == e->rows && first >= 0 && first <= e->vocab &&
           m.cols <= e->vocab - first;
}

enum status backend_survey(struct backend *b, struct sample_survey *out, struct cview logits,
                           int32_t first, const struct sample_election *e,
                           const struct sample_rows *rows, const struct sample_slots *slots,
                           struct err *err)
{
    REQUIRE("survey", is_part(logits, first, e), logits, logits);
    REQUIRE("survey", out != NULL && is_sample_rows(rows) && is_sample_slots(slots, rows), logits,
            logits);
    enum status st = b->ops->reserve(b, 1, 0, logits.cols, err);
    if (st == OK)
        b->ops->survey(b, out, logits, first, e, rows, slots);
    return st;
}

enum status backend_nominate(struct backend *b, union sample_ballot *ballot, struct cview logits,
                             int32_t first, const struct sample_election *e,
                             const struct sample_rows *rows, const struct sample_slots *slots,
                             struct err *err)
{
    REQUIRE("nominate", is_part(logits, first, e), logits, logits);
    REQUIRE("nominate", ballot != NULL && e->surveys != NULL, logits, logits);
    REQUIRE("nominate", is_sample_rows(rows) && is_sample_slots(slots, rows), logits, logits);
    enum status st = b->ops->reserve(b, 1, 0, logits.cols, err);
    if (st == OK)
        b->ops->nominate(b, ballot, logits, first, e, rows, slots);
    return st;
}

enum status backend_elect(struct backend *b, int32_t *ids, const struct sample_election *e,
                          const struct sample_rows *rows, const struct sample_slots *slots,
                          struct err *err)
{
    const struct cview shape = {ids, DTYPE_I32, e->rows, e->vocab};
    REQUIRE("elect", is_election(e) && ids != NULL && e->surveys != NULL, shape, shape);
    REQUIRE("elect", is_sample_rows(rows) && is_sample_slots(slots, rows), shape, shape);
    enum status st = b->ops->reserve(b, 1, 0, e->vocab, err);
    if (st == OK)
        b->ops->elect(b, ids, e, rows, slots);
    return st;
}

enum status backend_logprobs(struct backend *b, float *logprob, struct token_top *best,
                             int32_t stride, struct cview logits, const int32_t *ids,
                             const int32_t *top, struct err *err)
{
    REQUIRE("logprobs", is_logits(logits), logits, logits);
    REQUIRE("logprobs", logits.rows == 0 || (logprob != NULL && ids != NULL && top != NULL), logits,
            logits);
    REQUIRE("logprobs", stride == 0 || (stride > 0 && best != NULL), logits, logits);
    enum status st = b->ops->reserve(b, 1, 0, logits.cols, err);
    if (st == OK)
        b->ops->logprobs(b, logprob, best, stride, logits, ids, top);
    return st;
}
