/* DESIGN: sizes follow from the flow alone, so they are planned before there is a rank. They are
 * those of the largest step of each form: no rank's part of a smaller one is larger. */
#include "engine/parallel/parallel_state.h"

#include "engine/carve.h"

bool parallel_moves_weights(const struct flow *f)
{
    bool moves = false;
    for (int32_t i = 0; i < PLAN_PHASES; i++)
        for (size_t k = 0; k < FLOW_LINEARS; k++)
            moves = moves || f->phase[i].linear[flow_linears[k]].summa ||
                    f->phase[i].linear[flow_linears[k]].gathered;
    return moves;
}

/* An upper bound of the rows of a step of this form, for sizes: as many in every home as the
 * fullest can have, rounded up so that all splits are even. No rank's part of a smaller step is
 * larger than its part of this. 0 when no step has the form. */
static int32_t most_rows(const struct flow *f, enum plan_phase phase, int32_t rows_max)
{
    const int32_t n = mesh_ranks(&f->mesh), few = f->prefill_rows - 1;
    const int32_t home_rows = flow_home_rows(f, rows_max);
    int32_t rows = rows_max < few ? rows_max : few;
    if (phase == PLAN_PREFILL)
        rows = rows_max > few ? rows_max : 0;
    rows = flow_homes(f) * (rows < home_rows ? rows : home_rows);
    return (rows + n - 1) / n * n;
}

struct view parallel_part(const struct flow *f, int32_t rank, const struct matrix *x,
                          const struct spread *s, float *data)
{
    return view_f32(data, (int32_t)span_len(redistribute_held(&f->mesh, x, s, SPREAD_ROWS, rank)),
                    (int32_t)span_len(redistribute_held(&f->mesh, x, s, SPREAD_COLS, rank)));
}

static size_t part_size(const struct flow *f, int32_t rank, int32_t rows, struct extent cols,
                        const struct spread *s)
{
    const struct matrix x = flow_matrix(rows, cols);
    const struct view v = parallel_part(f, rank, &x, s, NULL);
    return (size_t)v.rows * (size_t)v.cols;
}

size_t parallel_rest_size(const struct flow *f, int32_t rank, int32_t rows_max)
{
    size_t most = 0;
    for (int32_t i = 0; i < PLAN_PHASES; i++)
        most = base_max_size(most, part_size(f, rank, most_rows(f, (enum plan_phase)i, rows_max),
                                             f->hidden, &f->phase[i].rest));
    return most;
}

static void measure(const struct flow *f, int32_t rows, struct extent cols, const struct route *r,
                    struct redistribute_sizes *sizes)
{
    const struct matrix x = flow_matrix(rows, cols);
    redistribute_measure(&f->mesh, &x, r, sizes);
}

/* The same for sampled rows, which may all lie on one rank. */
static void measure_samples(const struct flow *f, const struct flow_phase *p, int32_t samples,
                            struct extent cols, const struct route *r,
                            struct redistribute_sizes *sizes)
{
    int64_t cut[COMM_RANKS_MAX + 1] = {0};
    const int32_t pieces = spread_pieces(&f->mesh, &p->rest, SPREAD_ROWS);
    for (int32_t i = 1; i <= pieces; i++)
        cut[i] = samples;
    const struct extent rows = {.units = samples, .unit = 1, .pieces = pieces, .cut = cut};
    const struct matrix x = {{rows, cols}};
    redistribute_measure(&f->mesh, &x, r, sizes);
}

struct redistribute_sizes parallel_move_sizes(const struct flow *f, int32_t rows_max,
                                              int32_t samples_max)
{
    struct redistribute_sizes s = {0};
    const struct extent one = {.units = 1, .unit = 1};
    for (int32_t i = 0; i < PLAN_PHASES; i++) {
        const struct flow_phase *p = &f->phase[i];
        const int32_t rows = most_rows(f, (enum plan_phase)i, rows_max);
        const struct flow_linear *embed = &p->linear[PLAN_EMBED], *head = &p->linear[PLAN_HEAD];
        if (rows == 0)
            continue;
        measure(f, rows, embed->out, &embed->after, &s);
        measure(f, rows, one, &p->sums, &s);
        measure(f, rows, f->joint.heads, &f->joint.sums, &s);
        for (size_t k = 0; k < FLOW_LINEARS; k++) {
            const struct flow_linear *l = &p->linear[flow_linears[k]];
            measure(f, rows, l->in, &l->before, &s);
            measure(f, rows, l->out, &l->after, &s);
        }
        measure_samples(f, p, samples_max, head->in, &head->before, &s);
        measure_samples(f, p, samples_max, head->out, &head->after, &s);
        measure(f, samples_max, head->out, &f->whole, &s);
    }
    return s;
}

struct moving_sizes parallel_moving_sizes(const struct flow *f, int32_t rows_max)
{
    struct moving_sizes s = {0};
    const int32_t rows = most_rows(f, PLAN_PREFILL, rows_max);
    for (size_t k = 0; k < FLOW_LINEARS; k++) {
        const struct flow_linear *l = &f->phase[PLAN_PREFILL].linear[flow_linears[k]];
        for (int32_t rank = 0; rank < mesh_ranks(&f->mesh); rank++) {
            const struct weight_spec whole = flow_weight(f, flow_linears[k], rank);
            const struct weight_spec part = flow_stored(f, flow_linears[k], rank);
            if (l->summa && rows > 0) {
                s.summa.weight_bytes =
                    base_max_size(s.summa.weight_bytes, f->ops->weight_bytes(&whole));
                s.summa.rounds =
                    f->mesh.axis[f->choice[flow_linears[k]].weight.axis[SPREAD_COLS][0]].size;
                s.summa.x = base_max_size(s.summa.x, part_size(f, rank, rows, l->in, &l->uses));
                s.summa.y = base_max_size(s.summa.y, part_size(f, rank, rows, l->out, &l->product));
            }
            if (l->gathered) {
                s.gathered.part_bytes =
                    base_max_size(s.gathered.part_bytes, f->ops->weight_bytes(&part));
                s.gathered.whole_bytes =
                    base_max_size(s.gathered.whole_bytes, f->ops->weight_bytes(&whole));
            }
        }
    }
    return s;
}

size_t parallel_arena_bytes(const struct flow *f, int32_t rows_max, int32_t samples_max)
{
    const struct redistribute_sizes moves = parallel_move_sizes(f, rows_max, samples_max);
    const struct moving_sizes moving = parallel_moving_sizes(f, rows_max);
    return redistribute_arena_bytes(&moves) + moving_arena_bytes(&moving);
}

size_t parallel_carve(struct parallel *p, const struct flow *f, int32_t rank, int32_t rows_max,
                      int32_t samples_max, char *base)
{
    size_t input = 0, product = 0, sampled = 0, blocks = 0, delta = 0, squares = 0;
    size_t found = 0, gated = 0; /* of rows that layers take */
    struct carver c = {base, 0};
    for (int32_t i = 0; i < PLAN_PHASES; i++) {
        const struct flow_phase *phase = &f->phase[i];
        const struct flow_linear *head = &phase->linear[PLAN_HEAD], *l = NULL;
        const int32_t rows = most_rows(f, (enum plan_phase)i, rows_max);
        if (rows == 0)
            continue;
        for (size_t k = 0; k < FLOW_LINEARS; k++) {
            l = &phase->linear[flow_linears[k]];
            input = base_max_size(input, part_size(f, rank, rows, l->in, &l->before.from));
            product = base_max_size(product, part_size(f, rank, rows, l->out, &l->product));
        }
        const size_t table =
            part_size(f, rank, rows, f->hidden, &phase->linear[PLAN_EMBED].product);
        const size_t logits = part_size(f, rank, samples_max, head->out, &head->product);
        product = base_max_size(product, base_max_size(table, logits));
        const struct matrix x = flow_matrix(0, f->hidden);
        const struct view rest = parallel_part(f, rank, &x, &phase->rest, NULL);
        sampled = base_max_size(sampled, (size_t)samples_max * (size_t)rest.cols);
        if (parallel_makes_delta(f))
            delta = base_max_size(delta, part_size(f, rank, rows, f->hidden, &phase->rest));
        l = &phase->linear[PLAN_LAYER_INPUTS];
        found = base_max_size(found, part_size(f, rank, rows, l->out, &l->product));
        const struct extent each = {.units = f->inputs.dim, .unit = 1};
        gated = base_max_size(gated, part_size(f, rank, rows, each, &phase->rest));
        if (f->joint.heads.units > 0)
            squares = base_max_size(squares,
                                    part_size(f, rank, rows, f->joint.heads, &f->joint.sums.from));
        l = &phase->linear[PLAN_GATE_UP];
        if (!spread_equal(&l->after.to, &f->mlp))
            blocks = base_max_size(blocks, part_size(f, rank, rows, l->out, &l->after.to));
    }
    p->input = carve_floats(&c, 1, (int64_t)input);
    p->product = carve_floats(&c, 1, (int64_t)product);
    p->sampled = carve_floats(&c, 1, (int64_t)sampled);
    p->sums = carve_floats(&c, 1, rows_max);
    p->gate_up = carve_floats(&c, 1, (int64_t)blocks);
    p->act = carve_floats(&c, 1, (int64_t)blocks);
    p->delta = carve_floats(&c, 1, (int64_t)delta);
    p->found = carve_floats(&c, 1, (int64_t)found);
    p->gated = carve_floats(&c, 1, (int64_t)gated);
    p->made = carve_floats(&c, 1, f->inputs.dim > 0 ? (int64_t)delta : 0);
    p->aside = carve_floats(&c, 1, mixture_is_beside(&f->mixture) ? (int64_t)delta : 0);
    p->squares = carve_floats(&c, 1, (int64_t)squares);
    p->index = carve(&c, 1, samples_max, sizeof(int32_t));
    const int32_t experts = mixture_experts(&f->mixture), chosen = mixture_chosen(&f->mixture);
    const struct routing_rules rules = parallel_rules(&f->mixture);
    p->router = carve_floats(&c, rows_max, backend_route_logits(experts, &rules));
    p->routing = (struct routing){experts, chosen, carve(&c, rows_max, chosen, sizeof(int32_t)),
                                  carve_floats(&c, rows_max, chosen)};
    return c.used;
}

size_t parallel_local_bytes(const struct flow *f, int32_t rank, int32_t rows_max,
                            int32_t samples_max)
{
    struct parallel sizes = {0};
    const struct redistribute_sizes moves = parallel_move_sizes(f, rows_max, samples_max);
    const struct moving_sizes moving = parallel_moving_sizes(f, rows_max);
    return parallel_carve(&sizes, f, rank, rows_max, samples_max, NULL) +
           2 * base_align(moves.local * sizeof(float) + 1, 64) + moving_local_bytes(&moving);
}
