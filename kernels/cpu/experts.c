/* DESIGN: rows are put in the order of their experts, so that each expert's weight is read once for
 * all rows that take it, a product like any other (product.c). expert_linear: threads take panels
 * of one expert after the other. expert_sum: threads take panels of the output, and for each of
 * them all experts, because a row's sum has to begin with its first expert and end with its last;
 * the sums of all leaves are alive until then. So bits depend neither on the rows beside it nor on
 * the number of threads or ranks. Rejected: adding experts up after the leaves are folded (one sum
 * a row instead of eight, but ranks fold what they have before they meet). */
#include "kernels/cpu/product.h"
#include "kernels/host_memory.h"
#include "kernels/numerics.h"

#include <string.h>

#define CHUNK_ROWS 256         /* rows that are put in order together, */
#define CHUNK_FLOATS (1 << 24) /* or fewer where they are this large, */
#define CHUNK_ROWS_MIN 16      /* but not fewer than this */
#define PANELS 4               /* of an item; and of a sum's with few rows */

/* The rows of one expert. */
struct segment {
    int32_t expert, begin, end; /* in the order of experts */
    int32_t tile;               /* how many tiles come before */
};

/* A pair is a row and one of its experts: row * chosen + place. Arrays are scratch. */
struct job {
    struct cpu_backend *c;
    const struct experts *w;
    const int32_t *expert; /* [rows, chosen] */
    const float *share;
    const float *x;
    float *y;
    bool sums;
    int32_t rows, chosen, pairs;

    int32_t *order; /* [pairs] by expert, then row */
    int32_t *of;    /* [tiles] the segment of each tile */
    struct segment *segments;
    int32_t segment_count, tiles, slices;
};

/* ---- sizes ---- */

static int32_t chunk_rows(const struct weight_spec *s, int32_t chosen)
{
    const size_t rows = CHUNK_FLOATS / (product_words(s->in) * (size_t)chosen);
    return rows < CHUNK_ROWS_MIN ? CHUNK_ROWS_MIN : rows > CHUNK_ROWS ? CHUNK_ROWS : (int32_t)rows;
}

/* Tiles of so many pairs, at most: each segment may end with one that is not full. */
static int32_t tiles_of(int32_t pairs, int32_t count)
{
    return pairs / CPU_TILE_ROWS + base_min32(pairs, count);
}

/* Floats of the accumulators of an item: a product's, and with sums those of all leaves. */
static size_t partial_floats(const struct weight_spec *s, int32_t rows)
{
    const int32_t panels = rows <= CPU_WIDE_ROWS ? PANELS : 1;
    return (size_t)(s->leaves + 1) * (size_t)panels * (size_t)rows * CPU_PANEL;
}

static enum status reserve(struct cpu_backend *c, const struct experts *w, struct err *err)
{
    const int32_t rows = base_min32(w->rows_max, chunk_rows(&w->spec, w->chosen));
    const int32_t pairs = rows * w->chosen, tiles = tiles_of(pairs, w->count);
    const int32_t few = base_min32(rows, CPU_WIDE_ROWS);
    const size_t words = product_words(w->spec.in);
    size_t partial = partial_floats(&w->spec, rows), gather = CPU_TILE_ROWS * (size_t)w->spec.in;
    if (partial_floats(&w->spec, few) > partial)
        partial = partial_floats(&w->spec, few);
    const size_t segments = sizeof(struct segment) / sizeof(int32_t) * (size_t)w->count;
    return cpu_grow(c, (size_t)(pairs + tiles) * words + (size_t)tiles * PRODUCT_SLACK,
                    partial > gather ? partial : gather,
                    (size_t)(pairs + tiles + w->count + 1) + segments, err);
}

struct experts *experts_open(struct backend *b, const struct weight *const *weight, int32_t count,
                             int32_t chosen, int32_t rows_max)
{
    struct err ignored;
    struct experts *e = host_memory_experts_open(b, weight, count, chosen, rows_max);
    if (e && (chosen > 0 ? reserve(cpu_of(b), e, &ignored)
                         : head_linear_reserve(cpu_of(b), &e->spec, rows_max, &ignored)) != OK) {
        host_memory_experts_close(e);
        return NULL;
    }
    return e;
}

/* ---- routing ---- */

/* Takes `count` of n experts that are not taken, by their keys, and returns the first. A NaN is no
 * largest, but one has to be taken. */
static int32_t choose(uint64_t *taken, const float *key, int32_t n, int32_t count)
{
    int32_t first = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t best = -1;
        for (int32_t e = 0; e < n; e++)
            if ((taken[e / 64] >> e % 64 & 1) == 0 && (best < 0 || key[e] > key[best]))
                best = e;
        taken[best / 64] |= (uint64_t)1 << best % 64;
        first = i == 0 ? best : first;
    }
    return first;
}

/* By what a group is chosen: its largest key, or the sum of the two largest. */
static float group_score(const float *key, int32_t n, bool two)
{
    int32_t best = 0, second = -1;
    for (int32_t e = 1; e < n; e++)
        if (key[e] > key[best])
            best = e;
    for (int32_t e = 0; two && e < n; e++)
        if (e != best && (second < 0 || key[e] > key[second]))
            second = e;
    return second < 0 ? key[best] : key[best] + key[second];
}

/* Marks the experts of groups that are not kept. */
static void close_groups(uint64_t *closed, const float *key, int32_t routed,
                         const struct routing_rules *rules)
{
    uint64_t kept[BACKEND_EXPERTS_MAX / 64] = {0};
    float score[BACKEND_EXPERTS_MAX];
    const int32_t each = rules->groups > 0 ? routed / rules->groups : 0;
    for (int32_t g = 0; g < rules->groups; g++)
        score[g] = group_score(key + (ptrdiff_t)g * each, each, rules->correction != NULL);
    if (rules->groups > 0)
        (void)choose(kept, score, rules->groups, rules->kept);
    for (int32_t e = 0; rules->groups > 0 && e < routed; e++)
        if ((kept[e / each / 64] >> e / each % 64 & 1) == 0)
            closed[e / 64] |= (uint64_t)1 << e % 64;
}

/* A row's scores: sigmoids, or exponentials of logits less `max` over `all`. */
struct scores {
    const float *logit;
    bool sigmoid;
    float max, all;
};

static float score_of(const struct scores *s, int32_t e)
{
    return s->sigmoid ? numerics_sigmoid(s->logit[e]) : numerics_exp(s->logit[e] - s->max) / s->all;
}

/* For a choice by softmax that is corrected, which has to know them. */
static void find_scores(struct scores *s, int32_t routed)
{
    float all = 0;
    s->max = s->logit[0];
    for (int32_t e = 1; e < routed; e++)
        s->max = s->logit[e] > s->max ? s->logit[e] : s->max;
    for (int32_t e = 0; e < routed; e++)
        all += score_of(s, e);
    s->all = all;
}

/* Those that are chosen by their scores. */
static void route_scored(int32_t *expert, float *share, const float *logit, int32_t routed,
                         int32_t count, const struct routing_rules *rules)
{
    uint64_t closed[BACKEND_EXPERTS_MAX / 64] = {0}, taken[BACKEND_EXPERTS_MAX / 64];
    float corrected[BACKEND_EXPERTS_MAX];
    struct scores s = {logit, rules->sigmoid, 0, 1};
    const bool known = rules->correction && !rules->sigmoid;
    const float *key = rules->correction ? corrected : logit;
    float total = 0;
    int32_t n = 0;
    if (known)
        find_scores(&s, routed);
    for (int32_t e = 0; e < routed && rules->correction; e++)
        corrected[e] = score_of(&s, e) + rules->correction[e];
    close_groups(closed, key, routed, rules);
    memcpy(taken, closed, sizeof taken);
    const int32_t first = choose(taken, key, routed, count);
    if (!known)
        s.max = logit[first];
    for (int32_t e = 0; e < routed; e++) {
        const bool mine = ((taken[e / 64] & ~closed[e / 64]) >> e % 64 & 1) != 0;
        if (!mine && rules->among)
            continue;
        const float score = score_of(&s, e);
        total += score;
        if (mine) {
            expert[n] = e;
            share[n++] = score;
        }
    }
    total = numerics_divisor(total, rules->among, rules->sigmoid, known);
    for (int32_t i = 0; i < count; i++)
        share[i] = share[i] / total * rules->scale;
    for (int32_t i = 0; i < count && rules->expert_scale; i++)
        share[i] *= rules->expert_scale[expert[i]];
}

void experts_route(struct backend *b, const struct routing *r, struct cview logits,
                   const struct routing_rules *rules)
{
    (void)b;
    const int32_t routed = r->experts - rules->shared, count = r->chosen - rules->shared;
    for (int32_t t = 0; t < logits.rows; t++) {
        const float *logit = (const float *)logits.data + (ptrdiff_t)t * logits.cols;
        int32_t *expert = r->expert + (ptrdiff_t)t * r->chosen;
        float *share = r->share + (ptrdiff_t)t * r->chosen;
        route_scored(expert, share, logit, routed, count, rules);
        const float gate = rules->gated ? numerics_sigmoid(logit[routed]) : 1.0f;
        for (int32_t i = count; i < r->chosen; i++) {
            expert[i] = routed + i - count;
            share[i] = gate;
        }
    }
}

/* ---- in the order of experts ---- */

/* Sets order, segments and tiles. */
static void put_in_order(struct job *j)
{
    int32_t *list = j->c->list, *start;
    j->order = list;
    j->of = j->order + j->pairs;
    start = j->of + tiles_of(j->pairs, j->w->count); /* [count + 1] */
    j->segments = (struct segment *)(void *)(start + j->w->count + 1);
    memset(start, 0, ((size_t)j->w->count + 1) * sizeof *start);
    for (int32_t i = 0; i < j->pairs; i++)
        start[j->expert[i] + 1]++;
    for (int32_t e = 0; e < j->w->count; e++) {
        const int32_t n = start[e + 1], tiles = product_tiles(n);
        start[e + 1] += start[e];
        if (n == 0)
            continue;
        j->segments[j->segment_count] = (struct segment){e, start[e], start[e + 1], j->tiles};
        for (int32_t i = 0; i < tiles; i++)
            j->of[j->tiles++] = j->segment_count;
        j->segment_count++;
    }
    for (int32_t i = 0; i < j->pairs; i++)
        j->order[start[j->expert[i]]++] = i;
}

/* Of a pair. */
static const float *row_of(const struct job *j, int32_t pair)
{
    return j->x + (ptrdiff_t)(j->sums ? pair : pair / j->chosen) * j->w->spec.in;
}

/* Where a segment's tiles lie, which follow those of the segments before. */
static float *packed_of(const struct job *j, const struct segment *s, const struct product *p)
{
    return j->c->packed + (size_t)(s->begin + s->tile) * p->row_words +
           (size_t)s->tile * PRODUCT_SLACK;
}

/* The product of a segment. */
static struct product product_in(const struct job *j, const struct segment *s)
{
    struct product p = product_of(j->c->isa, j->w->weight[s->expert], s->end - s->begin);
    p.tile_floats = (size_t)((p.rows - 1) / p.tiles + 1) * p.row_words + PRODUCT_SLACK;
    p.packed = p.packs ? packed_of(j, s, &p) : row_of(j, j->order[s->begin]);
    return p;
}

static void pack_tile(const struct job *j, float *gather, int32_t tile, int32_t slice)
{
    const struct segment *s = &j->segments[j->of[tile]];
    const struct product p = product_in(j, s);
    const int32_t row = product_tile(&p, tile - s->tile);
    const int32_t rows = product_tile(&p, tile - s->tile + 1) - row, in = j->w->spec.in;
    const int32_t *pair = j->order + s->begin + row;
    float *to = packed_of(j, s, &p) + (size_t)(tile - s->tile) * p.tile_floats;
    if (p.ints) {
        for (int32_t r = 0; r < rows; r++)
            product_pack_runs(&p, to, rows, r, row_of(j, pair[r]), slice);
    } else if (p.packs) {
        for (int32_t r = 0; r < rows; r++)
            memcpy(gather + (ptrdiff_t)r * in, row_of(j, pair[r]), (size_t)in * sizeof *gather);
        product_pack(&p, to, gather, (size_t)in, rows);
    }
}

static void pack_tiles(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    float *gather = j->c->partial + (size_t)worker * j->c->partial_floats;
    for (int64_t i = begin; i < end; i++)
        pack_tile(j, gather, (int32_t)(i / j->slices), (int32_t)(i % j->slices));
}

/* ---- the products ---- */

/* Panels of one leaf from `first` on, as many at once as there are kernels for; returns how many,
 * <= most. */
static int32_t some_panels(const struct product *p, float *acc, int32_t first, int32_t most,
                           int32_t leaf)
{
    const int32_t n = most >= p->group ? p->group : 1;
    product_leaf(p, acc, first, n, leaf);
    return n;
}

/* Outputs of a panel. */
static int32_t outputs(const struct job *j, int32_t panel)
{
    return base_min32(j->w->spec.out - panel * CPU_PANEL, CPU_PANEL);
}

/* Item i of expert_linear: some panels of a segment. */
static void multiply(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    float *acc = j->c->partial + (size_t)worker * j->c->partial_floats;
    const int32_t panels = product_panels(j->w->weight[0]), items = (panels - 1) / PANELS + 1;
    for (int64_t i = begin; i < end; i++) {
        const struct segment *s = &j->segments[i / items];
        const struct product p = product_in(j, s);
        const int32_t first = (int32_t)(i % items) * PANELS,
                      last = base_min32(first + PANELS, panels);
        for (int32_t panel = first, n; panel < last; panel += n) {
            n = some_panels(&p, acc, panel, last - panel, 0);
            for (int32_t q = 0; q < n; q++)
                for (int32_t r = 0; r < p.rows; r++)
                    memcpy(j->y + (ptrdiff_t)j->order[s->begin + r] * j->w->spec.out +
                               (panel + q) * CPU_PANEL,
                           acc + ((ptrdiff_t)q * p.rows + r) * CPU_PANEL,
                           (size_t)outputs(j, panel + q) * sizeof(float));
        }
    }
}

/* sum[leaf][panels][rows][32] += the segment's products, by their shares. */
static void add_segment(const struct job *j, float *sum, float *acc, int32_t first, int32_t panels,
                        const struct segment *s)
{
    const struct product p = product_in(j, s);
    const ptrdiff_t leaf_floats = (ptrdiff_t)panels * j->rows * CPU_PANEL;
    for (int32_t panel = 0, n = 0; panel < panels; panel += n) {
        for (int32_t l = 0; l < j->w->spec.leaves; l++) {
            n = some_panels(&p, acc, first + panel, panels - panel, l);
            for (int32_t i = 0; i < n * p.rows; i++) {
                const int32_t pair = j->order[s->begin + i % p.rows];
                float *to =
                    sum + l * leaf_floats +
                    ((ptrdiff_t)(panel + i / p.rows) * j->rows + pair / j->chosen) * CPU_PANEL;
                j->c->isa->merge(to, acc + (ptrdiff_t)i * CPU_PANEL, 1.0f, j->share[pair],
                                 CPU_PANEL);
            }
        }
    }
}

/* Item i of expert_sum: some panels of all rows. */
static void add_up(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    const struct weight_spec *spec = &j->w->spec;
    const int32_t each = j->rows <= CPU_WIDE_ROWS ? PANELS : 1;
    const float *leaf[BACKEND_LEAVES_MAX];
    float *sum = j->c->partial + (size_t)worker * j->c->partial_floats;
    for (int64_t item = begin; item < end; item++) {
        const int32_t first = (int32_t)item * each;
        const int32_t panels = base_min32(product_panels(j->w->weight[0]) - first, each);
        const size_t floats = (size_t)panels * (size_t)j->rows * CPU_PANEL;
        float *acc = sum + (size_t)spec->leaves * floats;
        memset(sum, 0, (size_t)spec->leaves * floats * sizeof *sum);
        for (int32_t s = 0; s < j->segment_count; s++)
            add_segment(j, sum, acc, first, panels, &j->segments[s]);
        for (int32_t l = 0; l < spec->leaves; l++)
            leaf[l] = sum + (size_t)l * floats;
        j->c->isa->sum_tree(sum, leaf, spec->leaves, 0, (int64_t)floats);
        for (int32_t i = 0; i < panels * j->rows; i++) {
            const int32_t panel = first + i / j->rows;
            memcpy(j->y + (ptrdiff_t)(i % j->rows) * spec->out + panel * CPU_PANEL,
                   sum + (ptrdiff_t)i * CPU_PANEL, (size_t)outputs(j, panel) * sizeof *sum);
        }
    }
}

static void chunk_run(struct job *j)
{
    const int32_t panels = product_panels(j->w->weight[0]);
    put_in_order(j);
    const struct product p = product_in(j, &j->segments[0]);
    j->slices = p.ints ? p.slices : 1;
    if (p.ints || p.rounds || j->tiles < j->pairs) /* otherwise rows used where they are */
        pool_run(j->c->pool, (int64_t)j->tiles * j->slices, 1, pack_tiles, j);
    if (j->sums)
        pool_run(j->c->pool, j->rows <= CPU_WIDE_ROWS ? (panels - 1) / PANELS + 1 : panels, 1,
                 add_up, j);
    else
        pool_run(j->c->pool, (int64_t)j->segment_count * ((panels - 1) / PANELS + 1), 1, multiply,
                 j);
}

static void run(struct backend *b, struct view y, struct cview x, const struct experts *w,
                const struct routing *r, bool sums)
{
    const int32_t most = chunk_rows(&w->spec, r->chosen);
    if (x.rows == 0 || y.cols == 0)
        return;
    if (w->spec.in == 0) {
        memset(y.data, 0, (size_t)y.rows * (size_t)y.cols * sizeof(float));
        return;
    }
    const int32_t chunks = (x.rows - 1) / most + 1, chunk = (x.rows - 1) / chunks + 1;
    for (int32_t row = 0; row < x.rows; row += chunk) {
        struct job j = {.c = cpu_of(b), .w = w, .sums = sums, .chosen = r->chosen};
        j.rows = base_min32(x.rows - row, chunk);
        j.pairs = j.rows * r->chosen;
        j.expert = r->expert + (ptrdiff_t)row * r->chosen;
        j.share = r->share + (ptrdiff_t)row * r->chosen;
        j.x = (const float *)x.data + (ptrdiff_t)row * x.cols;
        j.y = (float *)y.data + (ptrdiff_t)row * y.cols;
        chunk_run(&j);
    }
}

void experts_linear(struct backend *b, struct view y, struct cview x, const struct experts *w,
                    const struct routing *r)
{
    run(b, y, x, w, r, false);
}

void experts_sum(struct backend *b, struct view y, struct cview x, const struct experts *w,
                 const struct routing *r)
{
    run(b, y, x, w, r, true);
}
