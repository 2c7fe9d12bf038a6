/* DESIGN: spreads over three axes are fewer than a hundred, so the cheapest sequence of moves is a
 * shortest path over all of them. Costs are averages (every rank must choose the same route), plus
 * a constant per collective for its latency. Rejected: DTensor's greedy rule, which gathers where
 * an all-to-all or a permutation would do. */
#include "engine/parallel/redistribute.h"

#include <stdio.h>
#include <string.h>

#define STATES_MAX 128
#define LATENCY_ELEMENTS 2048.0 /* a collective costs as much as moving so many elements */

struct state {
    struct spread at;
    double cost;
    int32_t via; /* state before; -1: the start */
    struct move move;
    bool done;
};

struct search {
    const struct mesh *mesh;
    const struct matrix *x;
    struct spread to;
    int32_t count;
    struct state state[STATES_MAX];
};

/* Average elements of a rank. */
static double local_size(const struct search *s, const struct spread *at)
{
    double n = 1;
    for (int32_t d = 0; d < SPREAD_DIMS; d++)
        n *= (double)s->x->dim[d].units * s->x->dim[d].unit / spread_pieces(s->mesh, at, d);
    return n;
}

static double cost_of(const struct search *s, const struct move *v)
{
    const double n = s->mesh->axis[v->axis].size, others = (n - 1) / n;
    switch (v->kind) {
    case MOVE_REDUCE:
        return LATENCY_ELEMENTS + 2 * others * local_size(s, &v->before);
    case MOVE_SCATTER:
    case MOVE_TURN:
        return LATENCY_ELEMENTS + others * local_size(s, &v->before);
    case MOVE_GATHER:
        return LATENCY_ELEMENTS + others * local_size(s, &v->after);
    case MOVE_SWAP:
        return LATENCY_ELEMENTS + local_size(s, &v->before);
    case MOVE_SLICE:
    case MOVE_CLAIM:
        break;
    }
    return 0;
}

static void reach(struct search *s, int32_t from, struct move v, struct spread after)
{
    v.before = s->state[from].at;
    v.after = after;
    const double cost = s->state[from].cost + cost_of(s, &v);
    int32_t i = 0;
    while (i < s->count && !spread_equal(&s->state[i].at, &after))
        i++;
    if (i < s->count && s->state[i].cost <= cost)
        return;
    CHECK(i < STATES_MAX);
    s->state[i] = (struct state){after, cost, from, v, false};
    s->count += i == s->count;
}

static struct spread swapped(struct spread s, int32_t a, int32_t b)
{
    for (int32_t d = 0; d < SPREAD_DIMS; d++)
        for (int32_t i = 0; i < s.count[d]; i++)
            s.axis[d][i] = s.axis[d][i] == a   ? (int8_t)b
                           : s.axis[d][i] == b ? (int8_t)a
                                               : s.axis[d][i];
    return s;
}

static void reach_from_shard(struct search *s, int32_t from, int32_t axis, int32_t dim,
                             int32_t place)
{
    const struct spread at = s->state[from].at;
    int32_t d, p;
    if (place == at.count[dim] - 1) { /* the innermost: its neighbours complete an outer block */
        const struct spread gathered = spread_copy(at, axis);
        reach(s, from, (struct move){.kind = MOVE_GATHER, .axis = axis, .from = dim}, gathered);
        reach(s, from, (struct move){.kind = MOVE_TURN, .axis = axis, .from = dim, .to = 1 - dim},
              spread_shard(gathered, 1 - dim, axis));
    }
    for (int32_t other = axis + 1; other < s->mesh->axes; other++)
        if (s->mesh->axis[other].size == s->mesh->axis[axis].size &&
            spread_along(&at, other, &d, &p) == SPREAD_SHARD)
            reach(s, from, (struct move){.kind = MOVE_SWAP, .axis = axis, .other = other},
                  swapped(at, axis, other));
}

static void expand(struct search *s, int32_t from)
{
    const struct spread at = s->state[from].at;
    for (int32_t axis = 0; axis < s->mesh->axes; axis++) {
        if (s->mesh->axis[axis].size == 1) /* no spread here has it */
            continue;
        int32_t dim = 0, place = 0;
        const bool addend = s->to.partial >> axis & 1;
        const struct spread copy = spread_copy(at, axis);
        const enum spread_kind kind = spread_along(&at, axis, &dim, &place);
        if (kind == SPREAD_SHARD) {
            reach_from_shard(s, from, axis, dim, place);
            continue;
        }
        if (kind == SPREAD_PARTIAL && addend)
            continue;
        const bool partial = kind == SPREAD_PARTIAL;
        for (int32_t to = 0; to < SPREAD_DIMS; to++)
            reach(
                s, from,
                (struct move){.kind = partial ? MOVE_SCATTER : MOVE_SLICE, .axis = axis, .to = to},
                spread_shard(copy, to, axis));
        if (partial)
            reach(s, from, (struct move){.kind = MOVE_REDUCE, .axis = axis}, copy);
        else if (addend)
            reach(s, from, (struct move){.kind = MOVE_CLAIM, .axis = axis},
                  spread_partial(at, axis));
    }
}

/* The cheapest state not done yet; -1 when none is left. */
static int32_t nearest(const struct search *s)
{
    int32_t best = -1;
    for (int32_t i = 0; i < s->count; i++)
        if (!s->state[i].done && (best < 0 || s->state[i].cost < s->state[best].cost))
            best = i;
    return best;
}

static void trace(const struct search *s, int32_t at, struct route *out)
{
    int32_t count = 0;
    for (int32_t i = at; s->state[i].via >= 0; i = s->state[i].via)
        count++;
    CHECK(count <= REDISTRIBUTE_MOVES_MAX);
    *out = (struct route){.count = count};
    for (int32_t i = at; count > 0; i = s->state[i].via)
        out->move[--count] = s->state[i].move;
}

/* Along an axis of one rank a part is the whole, and an addend the sum. */
static struct spread without_idle(const struct mesh *m, struct spread s)
{
    for (int32_t axis = 0; axis < m->axes; axis++)
        if (m->axis[axis].size == 1)
            s = spread_copy(s, axis);
    return s;
}

enum status redistribute_route(const struct mesh *m, const struct matrix *x, struct spread from,
                               struct spread to, struct route *out, struct err *err)
{
    struct search s = {.mesh = m, .x = x, .to = without_idle(m, to), .count = 1};
    int32_t dim, place, at;
    for (int32_t axis = 0; axis < m->axes; axis++)
        if (spread_along(&from, axis, &dim, &place) == SPREAD_SHARD && to.partial >> axis & 1)
            return base_fail(err, ERR_USAGE,
                             "a matrix sharded along axis %s cannot become partial there: a part "
                             "is not an addend",
                             m->axis[axis].name);
    s.state[0] = (struct state){.at = without_idle(m, from), .via = -1};
    while ((at = nearest(&s)) >= 0 && !spread_equal(&s.state[at].at, &s.to)) {
        s.state[at].done = true;
        expand(&s, at);
    }
    CHECK(at >= 0); /* copies everywhere lead anywhere */
    trace(&s, at, out);
    out->from = from;
    out->to = to;
    return OK;
}

const char *redistribute_text(const struct mesh *m, const struct move *v,
                              char buf[REDISTRIBUTE_TEXT_MAX])
{
    static const char *const names[] = {"all-reduce", "reduce-scatter", "all-gather", "all-to-all",
                                        "slice",      "claim",          "permutation"};
    static const char *const dims[SPREAD_DIMS] = {"rows", "cols"};
    const char *name = names[v->kind], *axis = m->axis[v->axis].name;
    switch (v->kind) {
    case MOVE_SCATTER:
    case MOVE_SLICE:
        snprintf(buf, REDISTRIBUTE_TEXT_MAX, "%s(%s: to %s)", name, axis, dims[v->to]);
        break;
    case MOVE_GATHER:
        snprintf(buf, REDISTRIBUTE_TEXT_MAX, "%s(%s: %s)", name, axis, dims[v->from]);
        break;
    case MOVE_TURN:
        snprintf(buf, REDISTRIBUTE_TEXT_MAX, "%s(%s: %s to %s)", name, axis, dims[v->from],
                 dims[v->to]);
        break;
    case MOVE_SWAP:
        snprintf(buf, REDISTRIBUTE_TEXT_MAX, "%s(%s with %s)", name, axis, m->axis[v->other].name);
        break;
    case MOVE_REDUCE:
    case MOVE_CLAIM:
        snprintf(buf, REDISTRIBUTE_TEXT_MAX, "%s(%s)", name, axis);
        break;
    }
    return buf;
}
