/* What a flow costs: bytes that a rank receives, what it computes, and how often ranks meet. All of
 * it follows from the flow, so it is known before there is a rank. */
#include "engine/parallel/flow.h"

/* In a layer that has experts, too. */
static const enum plan_part beside[] = {PLAN_DENSE_GATE_UP, PLAN_DENSE_DOWN};
static const struct extent one = {.units = 1, .unit = 1}; /* a number for each row */

/* ---- bytes ---- */

static uint64_t route_bytes(const struct flow *f, const struct route *r, int32_t rows,
                            struct extent cols, int32_t rank)
{
    const struct matrix x = flow_matrix(rows, cols);
    uint64_t n = 0;
    for (int32_t i = 0; i < r->count; i++)
        n += 4 * (uint64_t)redistribute_received(&f->mesh, &x, &r->move[i], rank);
    return n;
}

uint64_t flow_summa_bytes(const struct flow *f, enum plan_part part, int32_t rows, int32_t rank)
{
    const struct mesh *m = &f->mesh;
    const struct flow_linear *l = &f->phase[PLAN_PREFILL].linear[part];
    const struct matrix x = flow_matrix(rows, l->in);
    const int8_t row = f->choice[part].weight.axis[SPREAD_COLS][0];
    const int8_t col = f->choice[part].weight.axis[SPREAD_ROWS][0];
    const int64_t mine = span_len(redistribute_held(m, &x, &l->uses, SPREAD_ROWS, rank));
    uint64_t n = 0;
    for (int32_t t = 0; t < m->axis[row].size; t++) {
        const struct weight_spec block = flow_weight(f, part, mesh_peer(m, rank, row, t));
        if (t != mesh_coord(m, rank, col))
            n += 4 * (uint64_t)mine * (uint64_t)block.in;
        if (t != mesh_coord(m, rank, row))
            n += f->ops->weight_bytes(&block);
    }
    return n;
}

/* Whole tiles lie in a part as they do in the whole. */
uint64_t flow_gathered_bytes(const struct flow *f, enum plan_part part, int32_t rank)
{
    const struct weight_spec whole = flow_weight(f, part, rank), mine = flow_stored(f, part, rank);
    return f->ops->weight_bytes(&whole) - f->ops->weight_bytes(&mine);
}

static uint64_t linear_bytes(const struct flow *f, enum plan_phase phase, enum plan_part part,
                             int32_t rows, int32_t rank)
{
    const struct flow_linear *l = &f->phase[phase].linear[part];
    return route_bytes(f, &l->before, rows, l->in, rank) +
           route_bytes(f, &l->after, rows, l->out, rank) +
           (l->summa ? flow_summa_bytes(f, part, rows, rank) : 0) +
           (l->gathered ? flow_gathered_bytes(f, part, rank) : 0);
}

uint64_t flow_layer_bytes(const struct flow *f, enum plan_phase phase, int32_t rows, int32_t rank)
{
    uint64_t n = 0;
    for (size_t i = 0; i < FLOW_OF_LAYER; i++)
        n += linear_bytes(f, phase, flow_of_layer[i], rows, rank);
    for (size_t i = 0; mixture_is_beside(&f->mixture) && i < ARRAY_LEN(beside); i++)
        n += linear_bytes(f, phase, beside[i], rows, rank);
    return n + (uint64_t)f->norms * route_bytes(f, &f->phase[phase].sums, rows, one, rank) +
           route_bytes(f, &f->joint.sums, rows, f->joint.heads, rank);
}

uint64_t flow_ends_bytes(const struct flow *f, enum plan_phase phase, int32_t rows, int32_t samples,
                         int32_t rank)
{
    const struct flow_phase *p = &f->phase[phase];
    return route_bytes(f, &p->linear[PLAN_EMBED].after, rows, f->hidden, rank) +
           route_bytes(f, &p->sums, rows, one, rank) +
           linear_bytes(f, phase, PLAN_LAYER_INPUTS, rows, rank) +
           linear_bytes(f, phase, PLAN_HEAD, samples, rank) +
           route_bytes(f, &f->whole, samples, p->linear[PLAN_HEAD].out, rank);
}

/* What a rank's heads make of latents: keys' matrices are for queries, values' for what attention
 * makes. */
static struct flow_work head_work(const struct flow *f, uint64_t rows, int32_t rank)
{
    const uint64_t heads = f->latent.value > 0 ? (uint64_t)flow_heads(f, rank) : 0;
    struct flow_work w = {0};
    for (int keys = 0; keys < 2 && heads > 0; keys++) {
        const struct weight_spec s = flow_head_weight(f, keys);
        w.bytes += heads * f->ops->weight_bytes(&s);
        w.macs += rows * heads * (uint64_t)s.out * (uint64_t)s.in;
    }
    return w;
}

struct flow_work flow_work(const struct flow *f, enum plan_phase phase, enum plan_part part,
                           int32_t rows, int32_t rank)
{
    const struct flow_linear *l = &f->phase[phase].linear[part];
    const struct matrix x = flow_matrix(rows, l->in);
    const uint64_t mine =
        (uint64_t)span_len(redistribute_held(&f->mesh, &x, &l->uses, SPREAD_ROWS, rank));
    const int8_t row = f->choice[part].weight.axis[SPREAD_COLS][0];
    const int32_t panels = l->summa ? f->mesh.axis[row].size : 1;
    const bool experts = f->mixture.experts > 0 && (part == PLAN_GATE_UP || part == PLAN_DOWN);
    const uint64_t passes = experts ? (uint64_t)flow_passes(&f->mixture) : 1; /* of a row */
    /* Those that can be read, if rows differ, and those that every row reads. */
    const uint64_t most = (uint64_t)f->mixture.experts, shared = (uint64_t)f->mixture.shared;
    const uint64_t differ = mine * (passes - shared);
    const uint64_t weights = !experts    ? 1
                             : mine == 0 ? 0
                                         : shared + (differ < most ? differ : most);
    struct flow_work w = part == PLAN_QKV ? head_work(f, mine, rank) : (struct flow_work){0};
    if (f->pooling && part == PLAN_HEAD)
        return w;
    for (int32_t t = 0; t < panels; t++) {
        const struct weight_spec block =
            flow_weight(f, part, l->summa ? mesh_peer(&f->mesh, rank, row, t) : rank);
        w.bytes += weights * f->ops->weight_bytes(&block);
        w.macs += passes * mine * (uint64_t)block.out * (uint64_t)block.in;
    }
    return w;
}

/* ---- meetings ---- */

static int32_t route_meetings(const struct route *r)
{
    int32_t n = 0;
    for (int32_t i = 0; i < r->count; i++)
        n += r->move[i].kind != MOVE_SLICE && r->move[i].kind != MOVE_CLAIM;
    return n;
}

int32_t flow_meetings(const struct flow *f, enum plan_phase phase)
{
    const struct flow_phase *p = &f->phase[phase];
    int32_t n = f->norms * route_meetings(&p->sums) + route_meetings(&f->joint.sums);
    for (size_t i = 0; i < FLOW_OF_LAYER; i++) {
        const struct flow_linear *l = &p->linear[flow_of_layer[i]];
        const int32_t q =
            f->mesh.axis[f->choice[flow_of_layer[i]].weight.axis[SPREAD_COLS][0]].size;
        n += route_meetings(&l->before) + route_meetings(&l->after);
        n += l->summa && q > 1 ? 2 * q : 0; /* a broadcast of x and one of the weight a round */
        n += l->gathered;
    }
    for (size_t i = 0; mixture_is_beside(&f->mixture) && i < ARRAY_LEN(beside); i++)
        n += route_meetings(&p->linear[beside[i]].before) +
             route_meetings(&p->linear[beside[i]].after);
    return n;
}

int32_t flow_ends_meetings(const struct flow *f, enum plan_phase phase)
{
    const struct flow_phase *p = &f->phase[phase];
    const struct flow_linear *head = &p->linear[PLAN_HEAD];
    const struct flow_linear *inputs = &p->linear[PLAN_LAYER_INPUTS];
    return route_meetings(&inputs->before) + route_meetings(&inputs->after) +
           route_meetings(&p->linear[PLAN_EMBED].after) + route_meetings(&p->sums) +
           route_meetings(&head->before) + route_meetings(&head->after) + route_meetings(&f->whole);
}

/* Does any rank have more to do in the decode form than every rank has in the prefill form? */
static bool is_dearer(const struct flow *f, flow_cost *cost, int32_t rows, const void *ctx)
{
    const int32_t ranks = mesh_ranks(&f->mesh);
    double most = 0;
    for (int32_t rank = 0; rank < ranks; rank++) {
        const double n = cost(f, PLAN_PREFILL, rows, rank, ctx);
        most = n > most ? n : most;
    }
    for (int32_t rank = 0; rank < ranks; rank++)
        if (cost(f, PLAN_DECODE, rows, rank, ctx) > most)
            return true;
    return false;
}

int32_t flow_crossover(const struct flow *f, flow_cost *cost, const void *ctx)
{
    int32_t low = 1, high = FLOW_ROWS_MAX;
    while (low < high) {
        const int32_t rows = low + (high - low) / 2;
        if (is_dearer(f, cost, rows, ctx))
            high = rows;
        else
            low = rows + 1;
    }
    return low;
}
