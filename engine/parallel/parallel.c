/* DESIGN: an operation redistributes its input, makes the local product, and redistributes that. A
 * producer writes where the next collective reads, so nothing is copied on the way; what no
 * collective reads in place lies in one of two buffers, one for inputs and one for products. Every
 * rank takes part in every collective, even if it owns nothing: then its part is empty or zeros.
 *
 * Where nothing is exchanged and the backend has it (linear_fuses), what is around a product is
 * made together with it: the norm before it, the activation behind it, the addition to the residual
 * stream. Each is a launch less. */
#include "engine/parallel/parallel_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- open and close ---- */

enum status parallel_open(const struct flow *f, struct backend *b, struct comm *c,
                          struct comm_stats stats[MESH_AXES_MAX], int32_t rows_max,
                          int32_t samples_max, struct parallel **out, struct err *err)
{
    enum status st = OK;
    struct parallel *p = calloc(1, sizeof *p);
    if (!p)
        return base_fail(err, ERR_NOMEM, "parallel layer: no memory");
    p->flow = f;
    p->b = b;
    p->rank = c->rank;
    p->rows_max = rows_max;
    const size_t bytes = parallel_carve(p, f, c->rank, rows_max, samples_max, NULL);
    p->memory = b->ops->alloc(b, bytes);
    p->cut = calloc((size_t)c->ranks + 1, sizeof *p->cut);
    p->index_host = calloc((size_t)samples_max + 1, sizeof *p->index_host);
    if (!p->memory || !p->cut || !p->index_host) {
        st = base_fail(err, ERR_NOMEM, "parallel layer: no memory for %zu bytes", bytes);
        goto out;
    }
    parallel_carve(p, f, c->rank, rows_max, samples_max, p->memory);
    const struct redistribute_sizes moves = parallel_move_sizes(f, rows_max, samples_max);
    const struct moving_sizes moving = parallel_moving_sizes(f, rows_max);
    TRY(groups_open(&f->mesh, c, stats, &p->groups, err));
    TRY(redistribute_open(&p->groups, b, &moves, &p->moves, err));
    TRY(moving_open(&p->groups, b, &moving, &p->moving, err));
    *out = p;
    p = NULL;
out:
    parallel_close(p);
    return st;
}

void parallel_close(struct parallel *p)
{
    if (!p)
        return;
    moving_close(p->moving);
    redistribute_close(p->moves);
    groups_close(&p->groups);
    if (p->memory)
        p->b->ops->free(p->b, p->memory);
    free(p->cut);
    free(p->index_host);
    free(p);
}

enum status parallel_weight_open(struct parallel *p, enum plan_part part,
                                 const struct weight *local, struct parallel_weight *out,
                                 struct err *err)
{
    const struct flow *f = p->flow;
    const struct spread *split = &f->choice[part].weight;
    struct weight_spec blocks[MOVING_PIECES_MAX];
    *out = (struct parallel_weight){.part = part, .local = local};
    if (f->phase[PLAN_DECODE].linear[part].gathered) {
        const struct weight_spec whole = flow_weight(f, part, p->rank);
        return moving_gathered_open(p->moving, backend_weight_storage(local), f->choice[part].over,
                                    &whole, &out->moving, err);
    }
    if (!f->phase[PLAN_PREFILL].linear[part].summa || p->rows_max < f->prefill_rows)
        return OK;
    const int32_t row = split->axis[SPREAD_COLS][0], col = split->axis[SPREAD_ROWS][0];
    for (int32_t t = 0; t < f->mesh.axis[row].size; t++)
        blocks[t] = flow_weight(f, part, mesh_peer(&f->mesh, p->rank, row, t));
    return moving_summa_open(p->moving, backend_weight_storage(local), row, col, blocks,
                             &out->moving, err);
}

void parallel_weight_close(struct parallel_weight *w)
{
    moving_weight_close(w->moving);
    w->moving = NULL;
}

/* ---- a step ---- */

bool parallel_is_recordable(const struct parallel *p)
{
    const struct flow_phase *phase = p->flow->phase;
    return !parallel_moves_weights(p->flow) && phase[PLAN_DECODE].rest.count[SPREAD_ROWS] == 0 &&
           phase[PLAN_PREFILL].rest.count[SPREAD_ROWS] == 0 && flow_homes(p->flow) == 1;
}

void parallel_begin(struct parallel *p, int32_t rows, const int64_t *cut)
{
    p->rows = (struct extent){
        .units = rows, .unit = 1, .pieces = cut ? flow_homes(p->flow) : 0, .cut = cut};
    p->now = &p->flow->phase[flow_phase_of(p->flow, rows)];
    p->due = NULL;
    p->owed = (struct linear_fusion){0};
}

bool parallel_narrows(const struct flow *f, const struct model_config *m)
{
    return m->sharing > 0 && f->prefill_rows == INT32_MAX && flow_homes(f) == 1 &&
           f->phase[PLAN_DECODE].rest.count[SPREAD_ROWS] == 0;
}

void parallel_narrow(struct parallel *p, struct view x)
{
    CHECK(!p->due && !p->owed.gain);
    p->rows = (struct extent){.units = x.rows, .unit = 1};
    p->stream = x;
}

/* A matrix of this step. */
static struct matrix of_step(const struct parallel *p, struct extent cols)
{
    return (struct matrix){{p->rows, cols}};
}

struct span parallel_attended(const struct parallel *p)
{
    const struct matrix x = of_step(p, p->flow->hidden);
    return redistribute_held(&p->flow->mesh, &x, &p->flow->attention, SPREAD_ROWS, p->rank);
}

static struct view part_of(const struct parallel *p, const struct matrix *x, const struct spread *s,
                           float *data)
{
    return parallel_part(p->flow, p->rank, x, s, data);
}

static bool is_split(const struct parallel *p)
{
    return p->now->rest.count[SPREAD_COLS] > 0;
}

/* Where to write a part that a route starts from: where its first collective reads, if it does. */
static float *source(struct parallel *p, const struct route *r, float *otherwise)
{
    float *at = redistribute_source(p->moves, r);
    return at ? at : otherwise;
}

/* Redistributes `from`; *to is this rank's part of the result, which it may write to, unless peers
 * have the same sum: they may still read it (comm.h, reuse rule). */
static enum status move(struct parallel *p, const struct matrix *x, const struct route *r,
                        const float *from, struct view *to, struct err *err)
{
    const float *at = NULL;
    enum status st = redistribute_run(p->moves, x, r, from, &at, err);
    *to = part_of(p, x, &r->to, (float *)(uintptr_t)at);
    return st;
}

struct view parallel_rest(const struct parallel *p, float *data)
{
    const struct matrix x = of_step(p, p->flow->hidden);
    return part_of(p, &x, &p->now->rest, data);
}

static struct view input_f32(struct parallel *p, enum plan_part part)
{
    const struct flow_linear *l = &p->now->linear[part];
    const struct matrix x = of_step(p, l->in);
    /* of the head's input only sampled rows are used, and these are copied */
    float *at = part == PLAN_HEAD ? p->input : source(p, &l->before, p->input);
    return part_of(p, &x, &l->before.from, at);
}

/* Types depend on the size of the step alone, as recordings have it. */
struct view parallel_input(struct parallel *p, struct parallel_weight w)
{
    const struct flow_linear *l = &p->now->linear[w.part];
    struct view x = input_f32(p, w.part);
    if (w.local && w.part != PLAN_HEAD && l->before.count == 0 && !l->summa && !l->gathered)
        x.dtype = p->b->ops->linear_in(p->b, w.local, x.rows);
    return x;
}

enum status parallel_embed(struct parallel *p, struct view x, const int32_t *ids,
                           struct parallel_weight w, float scale, struct err *err)
{
    enum status st = OK;
    const struct flow_linear *l = &p->now->linear[PLAN_EMBED];
    const struct matrix m = of_step(p, l->out);
    struct view found = part_of(p, &m, &l->product, source(p, &l->after, p->product)), moved;
    const struct span mine = flow_outputs(p->flow, PLAN_EMBED, p->rank);
    p->stream = x;
    if (l->after.count == 0)
        return backend_embed(p->b, x, ids, w.local, (int32_t)mine.begin, scale, err);
    TRY(backend_embed(p->b, found, ids, w.local, (int32_t)mine.begin, scale, err));
    TRY(move(p, &m, &l->after, found.data, &moved, err));
    p->b->ops->copy(p->b, x.data, (size_t)x.cols, moved.data, (size_t)x.cols, x.rows, x.cols);
out:
    return st;
}

enum status parallel_layer_inputs(struct parallel *p, struct view out, struct view x,
                                  const int32_t *ids, const struct parallel_inputs *inputs,
                                  struct err *err)
{
    enum status st = OK;
    const struct flow *f = p->flow;
    const struct flow_linear *l = &p->now->linear[PLAN_LAYER_INPUTS];
    const struct matrix in = of_step(p, l->in), made = of_step(p, l->out);
    struct view used, moved;
    TRY(move(p, &in, &l->before, x.data, &used, err));
    const struct view y = part_of(p, &made, &l->product, source(p, &l->after, p->product));
    const struct view found = view_f32(p->found, y.rows, y.cols);
    const int32_t layers = y.cols / f->inputs.dim; /* of this rank */
    TRY(backend_linear(p->b, y, cview_of(used), inputs->weight.local, err));
    if (layers > 0) {
        const struct view each = view_f32(y.data, y.rows * layers, f->inputs.dim);
        TRY(backend_scale(p->b, y, cview_of(y), 1 / sqrtf((float)f->hidden.units), err));
        TRY(backend_rmsnorm(p->b, each, cview_of(each), inputs->gain, inputs->eps, err));
        TRY(backend_embed(p->b, found, ids, inputs->table, 0, f->inputs.scale, err));
        TRY(backend_add(p->b, y, cview_of(found), inputs->half_root, err));
    }
    TRY(move(p, &made, &l->after, y.data, &moved, err));
    p->b->ops->copy(p->b, out.data, (size_t)out.cols, moved.data, (size_t)moved.cols, out.rows,
                    out.cols);
out:
    return st;
}

enum status parallel_layer_input(struct parallel *p, struct view *delta, struct view x,
                                 const float *take, size_t stride,
                                 const struct parallel_input_weights *w, struct err *err)
{
    enum status st = OK;
    const struct view gated = view_f32(p->gated, x.rows, p->flow->inputs.dim);
    CHECK(!p->due && !is_split(p));
    *delta = view_f32(p->made, x.rows, x.cols);
    TRY(backend_linear(p->b, gated, cview_of(x), w->gate, err));
    TRY(backend_act_by(p->b, gated, cview_of(gated), take, stride, w->act, err));
    TRY(backend_linear(p->b, *delta, cview_of(gated), w->out, err));
out:
    return st;
}

/* Rows whose columns lie on several ranks: only their sums of squares are exchanged, after x +=
 * delta where it has data. */
static enum status exchange_squares(struct parallel *p, struct view x, struct cview delta,
                                    struct view *sums, struct err *err)
{
    enum status st = OK;
    const struct extent one = {.units = 1, .unit = 1};
    const struct matrix m = of_step(p, one);
    float *own = source(p, &p->now->sums, p->sums);
    TRY(backend_square_sum(p->b, own, x, delta, flow_pieces(p->flow, p->now, p->rank), err));
    TRY(move(p, &m, &p->now->sums, own, sums, err));
out:
    return st;
}

/* Rows or columns of the residual stream that this rank has. */
static struct span own_rest(const struct parallel *p, int32_t dim)
{
    const struct matrix x = of_step(p, p->flow->hidden);
    return redistribute_held(&p->flow->mesh, &x, &p->now->rest, dim, p->rank);
}

static enum status scale_by(struct parallel *p, struct view n, struct cview x, struct view sums,
                            const float *gain, float eps, struct err *err)
{
    return backend_rms_scale(p->b, n, x, sums.data, (int32_t)p->flow->hidden.units,
                             gain + own_rest(p, SPREAD_COLS).begin, eps, err);
}

/* Something is made of *delta, which is returned, in a place of its own: peers may still read a sum
 * (comm.h, reuse rule). */
static struct view move_delta(struct parallel *p, struct view *delta)
{
    const struct view from = *delta;
    CHECK(!p->due);
    if (from.data != p->delta)
        *delta = view_f32(p->delta, from.rows, from.cols);
    return from;
}

enum status parallel_bias(struct parallel *p, struct view *delta, const float *bias,
                          struct err *err)
{
    const struct view from = move_delta(p, delta);
    return backend_add_bias(p->b, *delta, cview_of(from), bias + own_rest(p, SPREAD_COLS).begin,
                            err);
}

enum status parallel_expert_bias(struct parallel *p, struct view *delta, const float *bias,
                                 const struct routing *r, struct err *err)
{
    const struct view from = move_delta(p, delta);
    const ptrdiff_t before = own_rest(p, SPREAD_ROWS).begin * r->chosen;
    struct routing mine = *r;
    mine.expert += before;
    mine.share += before;
    CHECK(!is_split(p)); /* flow.c refuses mixtures in such layouts */
    return backend_expert_bias_sum(p->b, *delta, cview_of(from), bias, &mine, err);
}

enum status parallel_scale(struct parallel *p, struct view *delta, float by, struct err *err)
{
    const struct view from = move_delta(p, delta);
    return backend_scale(p->b, *delta, cview_of(from), by, err);
}

void parallel_put_aside(struct parallel *p, const struct view *delta)
{
    float *made = p->delta;
    CHECK(delta->data == made);
    p->delta = p->aside;
    p->aside = made;
}

enum status parallel_add_aside(struct parallel *p, struct view *delta, struct err *err)
{
    const struct view made = view_f32(p->aside, delta->rows, delta->cols);
    CHECK(delta->data == p->delta);
    return backend_add(p->b, *delta, cview_of(made), NULL, err);
}

enum status parallel_add_scaled(struct parallel *p, struct view x, struct view *delta,
                                const float *scale, struct err *err)
{
    const struct cview from = cview_of(*delta);
    CHECK(!p->due);
    *delta = (struct view){0};
    return backend_add(p->b, x, from, scale, err);
}

enum status parallel_post_norm(struct parallel *p, struct view *delta, const float *gain, float eps,
                               struct err *err)
{
    enum status st = OK;
    const struct cview nothing = {0};
    const struct view from = move_delta(p, delta);
    struct view sums;
    if (!is_split(p))
        return backend_rmsnorm(p->b, *delta, cview_of(from), gain, eps, err);
    TRY(exchange_squares(p, from, nothing, &sums, err));
    TRY(scale_by(p, *delta, cview_of(from), sums, gain, eps, err));
out:
    return st;
}

enum status parallel_joint_norm(struct parallel *p, struct view qkv, const struct joint_norm *norm,
                                const struct heads *h, struct err *err)
{
    enum status st = OK;
    const struct flow *f = p->flow;
    const struct route *sums = &f->joint.sums;
    const struct matrix m = of_step(p, f->joint.heads);
    struct view squares = part_of(p, &m, &sums->from, source(p, sums, p->squares)), all;
    TRY(backend_joint_squares(p->b, squares, cview_of(qkv), norm, h, err));
    TRY(move(p, &m, sums, squares.data, &all, err));
    TRY(backend_joint_scale(p->b, qkv, cview_of(all), norm, h, err));
out:
    return st;
}

/* The sum over the ranks, x += it, and the norm, in one go. */
static enum status sum_and_norm(struct parallel *p, struct view n, struct view x,
                                struct cview delta, const float *gain, float eps, struct err *err)
{
    const struct matrix m = of_step(p, p->flow->hidden);
    const struct route *due = p->due;
    p->due = NULL;
    return redistribute_run_norm(p->moves, &m, due, delta.data, &(struct add_norm){n, x, gain, eps},
                                 err);
}

/* Is the product of so many rows with w made here and now, and with this in one go? */
static bool fuses(struct parallel *p, struct parallel_weight w, int32_t rows,
                  const struct linear_fusion *f)
{
    const struct flow_linear *l = &p->now->linear[w.part];
    return w.local && l->before.count == 0 && l->after.count == 0 && !l->summa && !l->gathered &&
           p->b->ops->linear_fuses(p->b, w.local, rows, f);
}

/* x += delta, and that is what the next product takes. */
static enum status take_as_is(struct parallel *p, struct view *n, struct view x, struct cview delta,
                              struct err *err)
{
    CHECK(!p->due);
    *n = x;
    return delta.data ? backend_add(p->b, x, delta, NULL, err) : OK;
}

enum status parallel_norm(struct parallel *p, struct view *n, struct view x, struct cview delta,
                          const float *gain, float eps, struct parallel_weight next,
                          struct err *err)
{
    enum status st = OK;
    const struct linear_fusion norm = {.gain = gain, .eps = eps};
    struct view sums;
    if (!gain)
        return take_as_is(p, n, x, delta, err);
    if (!delta.data && !is_split(p) && next.part != PLAN_HEAD && fuses(p, next, x.rows, &norm)) {
        p->owed = norm;
        *n = x;
        return OK;
    }
    if (!is_split(p)) {
        *n = parallel_input(p, next);
        if (p->due)
            return sum_and_norm(p, *n, x, delta, gain, eps, err);
        return delta.data ? backend_add_rmsnorm(p->b, *n, x, delta, gain, eps, err)
                          : backend_rmsnorm(p->b, *n, cview_of(x), gain, eps, err);
    }
    CHECK(!p->due);
    TRY(exchange_squares(p, x, delta, &sums, err));
    *n = input_f32(p, next.part);
    TRY(scale_by(p, *n, cview_of(x), sums, gain, eps, err));
out:
    return st;
}

/* Is the product what the residual stream gets? */
static bool is_added(enum plan_part part)
{
    return part == PLAN_O || part == PLAN_GLOBAL_O || part == PLAN_RECURRENT_OUT ||
           part == PLAN_DOWN || part == PLAN_DENSE_DOWN;
}

/* What becomes of a product; of one that parallel_norm is given nothing yet, if it can make the sum
 * itself. */
static enum status finish(struct parallel *p, enum plan_part part, const struct matrix *out,
                          struct view product, struct view *y, struct err *err)
{
    const struct route *after = &p->now->linear[part].after;
    const bool added = is_added(part);
    if (!added || parallel_makes_delta(p->flow) || !redistribute_has_norm(p->moves, out, after))
        return move(p, out, after, product.data, y, err);
    p->due = after;
    *y = product;
    return OK;
}

/* How many blocks of gate/up's output, each of which is [gate | up], a rank has for the MLP. */
static int32_t blocks_of(const struct parallel *p, const struct flow_linear *l)
{
    const struct flow *f = p->flow;
    return spread_pieces(&f->mesh, &f->mlp, SPREAD_COLS) /
           spread_pieces(&f->mesh, &l->after.to, SPREAD_COLS);
}

/* The type to write a product in: what one op reads, as it is, need not be fp32. Not in a mixture,
 * where a hair's breadth decides what experts the next layer takes. */
static enum dtype product_type(struct parallel *p, int32_t rows, struct parallel_weight w)
{
    const struct flow *f = p->flow;
    const struct flow_linear *l = &p->now->linear[w.part];
    const bool stays = l->after.count == 0 && !l->summa && !l->gathered;
    const bool prepared = f->joint.heads.units > 0 || f->latent.value > 0; /* for attention */
    if (!stays || f->mixture.experts > 0 || w.part == PLAN_HEAD || w.part == PLAN_LATENT ||
        w.part == PLAN_ATTENTION_GATE || w.part == PLAN_RECURRENT ||
        w.part == PLAN_RECURRENT_GATES || (w.part == PLAN_QKV && prepared) ||
        (w.part == PLAN_GATE_UP && blocks_of(p, l) > 1) ||
        (is_added(w.part) && (parallel_makes_delta(f) || is_split(p))))
        return DTYPE_F32;
    return p->b->ops->linear_out(p->b, w.local, rows);
}

/* Is the product of so many rows with w added to the residual stream in one go? */
static bool adds(struct parallel *p, struct parallel_weight w, int32_t rows)
{
    const struct linear_fusion f = {.end = LINEAR_ADD};
    return is_added(w.part) && !parallel_makes_delta(p->flow) && !is_split(p) &&
           fuses(p, w, rows, &f);
}

/* rows: of x and y. then: the route that y takes next, so that the product can be written where it
 * starts; NULL: unknown. */
static enum status linear(struct parallel *p, struct extent rows, struct view *y, struct cview x,
                          const struct route *then, struct parallel_weight w, struct err *err)
{
    enum status st = OK;
    const struct flow_linear *l = &p->now->linear[w.part];
    const struct matrix in = {{rows, l->in}}, out = {{rows, l->out}};
    const struct linear_fusion norm = p->owed;
    struct view used;
    CHECK(!p->due);
    p->owed = (struct linear_fusion){0};
    TRY(move(p, &in, &l->before, x.data, &used, err));
    used.dtype = x.dtype; /* F32 if it has moved */
    p->used = cview_of(used);
    const struct route *next = l->after.count == 0 && then ? then : &l->after;
    float *other = x.data == p->product ? p->input : p->product; /* after an activation */
    struct view product = part_of(p, &out, &l->product, source(p, next, other));
    product.dtype = product_type(p, product.rows, w);
    if (norm.gain)
        TRY(backend_linear_fused(p->b, product, cview_of(used), w.local, &norm, err));
    else if (l->summa || l->gathered)
        TRY(moving_linear(p->moving, product, cview_of(used), w.moving, err));
    else
        TRY(backend_linear(p->b, product, cview_of(used), w.local, err));
    TRY(finish(p, w.part, &out, product, y, err));
    y->dtype = product.dtype; /* F32 where it has moved */
out:
    return st;
}

enum status parallel_linear(struct parallel *p, struct view *y, struct cview x,
                            struct parallel_weight w, struct err *err)
{
    const struct linear_fusion add = {.end = LINEAR_ADD};
    if (!adds(p, w, x.rows))
        return linear(p, p->rows, y, x, NULL, w, err);
    *y = (struct view){0};
    return backend_linear_fused(p->b, p->stream, x, w.local, &add, err);
}

struct cview parallel_used(const struct parallel *p)
{
    return p->used;
}

enum status parallel_route(struct parallel *p, struct cview *used, struct routing *r,
                           struct cview n, const struct parallel_router *router, struct err *err)
{
    enum status st = OK;
    const struct flow_linear *l = &p->now->linear[PLAN_GATE_UP];
    const struct matrix in = of_step(p, l->in);
    struct view whole;
    TRY(move(p, &in, &l->before, n.data, &whole, err));
    struct routing_rules rules = parallel_rules(&p->flow->mixture);
    rules.correction = router->correction;
    rules.expert_scale = router->expert_scale;
    const struct view logits =
        view_f32(p->router, whole.rows, backend_route_logits(p->routing.experts, &rules));
    TRY(backend_linear(p->b, logits, cview_of(whole), router->weight, err));
    if (router->scale != 1)
        TRY(backend_scale(p->b, logits, cview_of(logits), router->scale, err));
    if (router->bias)
        TRY(backend_add_bias(p->b, logits, cview_of(logits), router->bias, err));
    TRY(backend_route(p->b, &p->routing, cview_of(logits), &rules, err));
    *used = cview_of(whole);
    *r = p->routing;
out:
    return st;
}

/* The product of a linear whose rows lie where it takes them. */
static struct view product_of(struct parallel *p, const struct flow_linear *l)
{
    const struct matrix out = of_step(p, l->out);
    return part_of(p, &out, &l->product, source(p, &l->after, p->product));
}

enum status parallel_expert_linear(struct parallel *p, struct view *gu, struct cview used,
                                   const struct experts *w, const struct routing *r,
                                   struct err *err)
{
    CHECK(!p->due);
    *gu = product_of(p, &p->now->linear[PLAN_GATE_UP]);
    return backend_expert_linear(p->b, *gu, used, w, r, err);
}

enum status parallel_expert_sum(struct parallel *p, struct view *y, struct cview x,
                                const struct experts *w, const struct routing *r, struct err *err)
{
    enum status st = OK;
    const struct flow_linear *l = &p->now->linear[PLAN_DOWN];
    const struct matrix out = of_step(p, l->out);
    const struct view product = product_of(p, l);
    TRY(backend_expert_sum(p->b, product, x, w, r, err));
    TRY(finish(p, PLAN_DOWN, &out, product, y, err));
out:
    return st;
}

/* Of experts: each as if it were a row. */
static enum status act_mul(struct parallel *p, int32_t each, struct view y, struct cview gu,
                           enum activation act, struct err *err)
{
    y.rows *= each;
    y.cols /= each;
    gu.rows *= each;
    gu.cols /= each;
    return backend_act_mul(p->b, y, gu, act, err);
}

enum status parallel_act_mul(struct parallel *p, struct view *y, struct cview gu,
                             enum activation act, enum plan_part gate_up,
                             struct parallel_weight down, struct err *err)
{
    enum status st = OK;
    const struct flow *f = p->flow;
    const struct flow_linear *l = &p->now->linear[gate_up];
    const bool experts = f->mixture.experts > 0 && gate_up == PLAN_GATE_UP;
    const int32_t n = spread_pieces(&f->mesh, &f->mlp, SPREAD_COLS), blocks = blocks_of(p, l);
    const int32_t first = spread_index(&f->mesh, &l->after.to, SPREAD_COLS, p->rank) * blocks;
    if (blocks == 1) {
        *y = parallel_input(p, down);
        return act_mul(p, experts ? mixture_chosen(&f->mixture) : 1, *y, gu, act, err);
    }
    *y = input_f32(p, down.part);
    const float *from = gu.data;
    float *to = y->data;
    for (int32_t i = 0; i < blocks; i++) { /* each block is [gate | up]; the op takes one of them */
        const int32_t cols = (int32_t)span_len(placement_block(l->out.units, n, first + i));
        struct view both = view_f32(p->gate_up, gu.rows, 2 * cols);
        const struct view done = view_f32(p->act, gu.rows, cols);
        p->b->ops->copy(p->b, p->gate_up, (size_t)both.cols, from, (size_t)gu.cols, gu.rows,
                        both.cols);
        TRY(backend_act_mul(p->b, done, cview_of(both), act, err));
        p->b->ops->copy(p->b, to, (size_t)y->cols, p->act, (size_t)cols, gu.rows, cols);
        from += both.cols;
        to += cols;
    }
out:
    return st;
}

enum status parallel_linear_act(struct parallel *p, struct view *y, struct cview x,
                                struct parallel_weight gate_up, enum activation act,
                                struct parallel_weight down, struct err *err)
{
    enum status st = OK;
    const struct flow_linear *up = &p->now->linear[gate_up.part], *l = &p->now->linear[down.part];
    const struct matrix in = of_step(p, l->in);
    const bool stays = blocks_of(p, up) == 1 && l->before.count == 0 && !l->summa && !l->gathered;
    struct linear_fusion f = p->owed;
    struct view gu;
    f.end = LINEAR_ACT;
    f.act = act;
    if (stays && fuses(p, gate_up, x.rows, &f)) {
        p->owed = (struct linear_fusion){0};
        *y = part_of(p, &in, &l->before.from, p->product); /* x lies elsewhere */
        return backend_linear_fused(p->b, *y, x, gate_up.local, &f, err);
    }
    TRY(parallel_linear(p, &gu, x, gate_up, err));
    TRY(parallel_act_mul(p, y, cview_of(gu), act, gate_up.part, down, err));
out:
    return st;
}

/* Which of this rank's rows are sampled: *own indices into them, on the device. Sets p->samples,
 * which says how the sampled rows are divided among the ranks. */
static const int32_t *own_samples(struct parallel *p, const int32_t *sample,
                                  const int32_t *sample_host, int32_t samples, int32_t *own)
{
    const struct mesh *m = &p->flow->mesh;
    const struct spread *rest = &p->now->rest;
    const struct matrix x = of_step(p, p->flow->hidden);
    const int32_t pieces = spread_pieces(m, rest, SPREAD_ROWS);
    const int32_t mine = spread_index(m, rest, SPREAD_ROWS, p->rank);
    const int64_t begin = redistribute_held(m, &x, rest, SPREAD_ROWS, p->rank).begin;
    p->samples = (struct extent){.units = samples, .unit = 1};
    *own = samples;
    if (rest->count[SPREAD_ROWS] == 0)
        return sample;
    for (int32_t r = 0; r < mesh_ranks(m); r++)
        p->cut[spread_index(m, rest, SPREAD_ROWS, r) + 1] =
            redistribute_held(m, &x, rest, SPREAD_ROWS, r).end;
    for (int32_t i = 0, at = 0; i < pieces; i++) { /* from ends of rows to ends of samples */
        for (; at < samples && sample_host[at] < p->cut[i + 1]; at++)
            if (i == mine)
                p->index_host[at - p->cut[i]] = sample_host[at] - (int32_t)begin;
        p->cut[i + 1] = at;
    }
    *own = (int32_t)(p->cut[mine + 1] - p->cut[mine]);
    p->samples.pieces = pieces;
    p->samples.cut = p->cut;
    p->b->ops->upload(p->b, p->index, p->index_host, (size_t)*own * sizeof *p->index);
    return p->index;
}

enum status parallel_head(struct parallel *p, struct cview n, const int32_t *sample,
                          const int32_t *sample_host, int32_t samples, struct parallel_weight w,
                          struct view *logits, struct err *err)
{
    enum status st = OK;
    const struct flow_linear *l = &p->now->linear[PLAN_HEAD];
    int32_t own;
    const int32_t *index = own_samples(p, sample, sample_host, samples, &own);
    struct view chosen = view_f32(source(p, &l->before, p->sampled), own, n.cols), mine;
    TRY(backend_select(p->b, chosen, n, index, err));
    TRY(linear(p, p->samples, &mine, cview_of(chosen), &p->flow->whole, w, err));
    *logits = mine;
    if (l->after.count > 0) { /* parallel_gather would overwrite the buffer they are in */
        p->b->ops->copy(p->b, p->product, (size_t)mine.cols, mine.data, (size_t)mine.cols,
                        mine.rows, mine.cols);
        logits->data = p->product;
    }
out:
    return st;
}

enum status parallel_pool(struct parallel *p, struct cview n, const int32_t *sample,
                          const int32_t *sample_host, int32_t samples, struct view *whole,
                          struct err *err)
{
    enum status st = OK;
    const struct flow_linear *l = &p->now->linear[PLAN_HEAD];
    int32_t own;
    const int32_t *index = own_samples(p, sample, sample_host, samples, &own);
    struct view chosen = view_f32(source(p, &l->before, p->sampled), own, n.cols);
    const struct matrix x = {{p->samples, l->in}};
    TRY(backend_select(p->b, chosen, n, index, err));
    TRY(move(p, &x, &l->before, chosen.data, whole, err));
out:
    return st;
}

struct span parallel_vocab(const struct parallel *p, int32_t rank)
{
    const struct matrix x = flow_matrix(0, p->now->linear[PLAN_HEAD].out);
    return redistribute_held(&p->flow->mesh, &x, &p->flow->logits, SPREAD_COLS, rank);
}

enum status parallel_gather(struct parallel *p, struct cview logits, int32_t begin, int32_t end,
                            struct cview *whole, struct err *err)
{
    const struct matrix x = flow_matrix(end - begin, p->now->linear[PLAN_HEAD].out);
    const float *rows = (const float *)logits.data + (size_t)begin * (size_t)logits.cols;
    struct view all;
    enum status st = move(p, &x, &p->flow->whole, rows, &all, err);
    *whole = cview_of(all);
    return st;
}
