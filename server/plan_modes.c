/* DESIGN: every number comes from the same flow that the ranks run, so what is compared is what
 * would happen. tests/oracle has the closed forms these numbers are held against. */
#include "server/plan_modes.h"

#include "config/buf.h"
#include "engine/model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    enum plan_part part;
    const char *name;
} points[] = {{PLAN_QKV, "qkv_proj"},
              {PLAN_O, "o_proj"},
              {PLAN_GATE_UP, "gate_up_proj"},
              {PLAN_DOWN, "down_proj"}};

/* ---- one layout ---- */

static void explain_phase(const struct flow *f, enum plan_phase phase, struct buf *out)
{
    const struct flow_phase *p = &f->phase[phase];
    char before[FLOW_TEXT_MAX], after[FLOW_TEXT_MAX], rest[SPREAD_TEXT_MAX];
    buf_printf(out, "  residual stream %s; norms %s\n", spread_text(&f->mesh, &p->rest, rest),
               flow_text(f, &p->sums, before));
    buf_printf(out, "  %-13s %-44s after %s\n", "embed_tokens", "",
               flow_text(f, &p->linear[PLAN_EMBED].after, after));
    for (size_t i = 0; i < ARRAY_LEN(points); i++) {
        const struct flow_linear *l = &p->linear[points[i].part];
        buf_printf(out, "  %-13s before %-37s after %s%s\n", points[i].name,
                   flow_text(f, &l->before, before), flow_text(f, &l->after, after),
                   l->summa      ? "; summa: weight and input panels are broadcast"
                   : l->gathered ? "; the weight is gathered"
                                 : "");
    }
    buf_printf(out, "  %-13s before %-37s after %s\n", "lm_head",
               flow_text(f, &p->linear[PLAN_HEAD].before, before),
               flow_text(f, &p->linear[PLAN_HEAD].after, after));
}

void plan_modes_explain(const struct setup *s, struct buf *out)
{
    const struct flow *f = s->layouts[0]->flow;
    buf_printf(out, "\n%s, mesh", plan_where(s->plan));
    for (int32_t i = 0; i < f->mesh.axes; i++)
        buf_printf(out, " %s=%d", f->mesh.axis[i].name, f->mesh.axis[i].size);
    const bool two = f->prefill_rows < INT32_MAX;
    if (two)
        buf_printf(out, "; steps of %d rows or more take the second form", f->prefill_rows);
    buf_puts(out, two ? "\nsteps of few rows:\n" : "\n");
    explain_phase(f, PLAN_DECODE, out);
    if (two) {
        buf_puts(out, "steps of many rows:\n");
        explain_phase(f, PLAN_PREFILL, out);
    }
    buf_puts(out,
             "Bytes a rank receives per layer for T rows (fp32 activations; h hidden, W weights of "
             "the layer,\nS_in sum of the linears' inputs; attention's exchange and norms "
             "besides):\n"
             "  1d                   one-shot 2(P-1) T h 4, above 256 KiB 4(P-1)/P T h 4\n"
             "  1d_sp                4(P-1)/P T h 4\n"
             "  stationary (w,a,b)   T [4h(a-1) + (W/h)(b-1)] / P 4\n"
             "  summa q x q, depth d (q-1)/q^2 [T S_in/d 4 + W bytes stored]\n");
}

/* ---- all layouts ---- */

enum { COLUMNS = 6, CANDIDATES_MAX = 160 };

struct candidate {
    char name[48];
    size_t weights, rest; /* bytes of the rank that holds most; rest: of a step of `rows` rows */
    size_t kv;
    int32_t meetings[PLAN_PHASES], prefill_rows;
    uint64_t bytes[COLUMNS]; /* per layer, of the rank that receives most */
    double seconds[COLUMNS]; /* modelled, of a step, of the rank that takes longest */
    const char *mode;        /* static */
    char mesh[40];           /* "": the layout's own */
};

struct comparison {
    const struct setup *s;
    const struct price *price; /* may be NULL */
    int32_t rows[COLUMNS];     /* the first is 1, the last the most */
    int32_t count;
    struct candidate list[CANDIDATES_MAX];
};

static void take_most(uint64_t *most, uint64_t n)
{
    *most = n > *most ? n : *most;
}

static void weigh(const struct comparison *c, const struct layout *l, struct candidate *out)
{
    const struct flow *f = l->flow;
    const enum dtype dtype = options_dtype(&c->s->options, c->s->model.dtype);
    const size_t kv = layout_kv_bytes_per_token(l, &c->s->model, dtype);
    const size_t rest = 4 * parallel_rest_size(f, l->rank, c->rows[COLUMNS - 1]);
    out->weights = l->arena_bytes > out->weights ? l->arena_bytes : out->weights;
    out->kv = kv > out->kv ? kv : out->kv;
    out->rest = rest > out->rest ? rest : out->rest;
    for (int32_t i = 0; i < COLUMNS; i++) {
        const int32_t rows = c->rows[i];
        take_most(&out->bytes[i], flow_layer_bytes(f, flow_phase_of(f, rows), rows, l->rank));
        if (c->price)
            out->seconds[i] =
                fmax(out->seconds[i], price_step(c->price, f, c->s->model.layers, rows, l->rank));
    }
}

/* Adds a layout; one that does not suit ranks or model is left out. */
static enum status consider(struct comparison *c, const char *mode, const char *mesh,
                            struct err *err)
{
    struct plan *plan = NULL;
    struct layout *l = NULL;
    struct candidate *out = &c->list[c->count];
    struct err why;
    const struct setup *s = c->s;
    const enum dtype dtype = options_dtype(&s->options, s->model.dtype);
    enum status st = plan_load(mode, mesh, NULL, s->options.tp, &plan, &why);
    memset(out, 0, sizeof *out);
    out->mode = mode;
    snprintf(out->mesh, sizeof out->mesh, "%s", mesh ? mesh : "");
    snprintf(out->name, sizeof out->name, "%s%s%s", mode, mesh ? " " : "", mesh ? mesh : "");
    for (int32_t r = 0; st == OK && r < s->options.tp; r++) {
        st = layout_open(&s->model, plan, r, dtype, s->ops, &l, &why);
        if (st != OK)
            break;
        for (int32_t i = 0; i < PLAN_PHASES; i++)
            out->meetings[i] = flow_meetings(l->flow, (enum plan_phase)i);
        out->prefill_rows = l->flow->prefill_rows;
        weigh(c, l, out);
        layout_close(l);
    }
    plan_close(plan);
    c->count += st == OK;
    return st == OK || st == ERR_USAGE ? OK : base_fail(err, st, "%s", why.text);
}

static enum status consider_all(struct comparison *c, struct err *err)
{
    enum status st = OK;
    const int32_t ranks = c->s->options.tp;
    char mesh[40];
    TRY(consider(c, "1d", NULL, err));
    TRY(consider(c, "1d_sp", NULL, err));
    TRY(consider(c, "2d", NULL, err));
    for (int32_t q = 2; q * q < ranks; q++) {
        snprintf(mesh, sizeof mesh, "%d,%d,%d", ranks / (q * q), q, q);
        if (ranks % (q * q) == 0)
            TRY(consider(c, "2.5d", mesh, err));
    }
    for (int32_t w = 1; w <= ranks; w++) {
        for (int32_t a = 1; ranks % w == 0 && a <= ranks / w; a++) {
            snprintf(mesh, sizeof mesh, "%d,%d,%d", w, a, ranks / w / a);
            if (ranks / w % a != 0 || c->count > CANDIDATES_MAX - 2)
                continue;
            TRY(consider(c, "3d", mesh, err));
            if (w > 1)
                TRY(consider(c, "3d_gathered", mesh, err));
        }
    }
out:
    return st;
}

static void write_candidate(const struct comparison *c, const struct candidate *k, struct buf *out)
{
    char w[32], rest[32], n[32], rows[16] = "-";
    if (k->prefill_rows < INT32_MAX)
        snprintf(rows, sizeof rows, "%d", k->prefill_rows);
    buf_printf(out, "%-17s  %10s  %9zu  %10s  %4d %4d  %7s ", k->name,
               base_human_bytes(w, sizeof w, k->weights), k->kv,
               base_human_bytes(rest, sizeof rest, k->rest), k->meetings[PLAN_DECODE],
               k->meetings[PLAN_PREFILL], rows);
    for (int32_t i = 0; i < COLUMNS; i++) {
        uint64_t least = UINT64_MAX;
        for (int32_t j = 0; j < c->count; j++)
            least = c->list[j].bytes[i] < least ? c->list[j].bytes[i] : least;
        buf_printf(out, "  %9s%c", base_human_bytes(n, sizeof n, (size_t)k->bytes[i]),
                   k->bytes[i] == least ? '*' : ' ');
    }
    buf_puts(out, "\n");
}

static void write_rows(const struct comparison *c, struct buf *out)
{
    for (int32_t i = 0; i < COLUMNS; i++)
        buf_printf(out, "  %9d ", c->rows[i]);
    buf_puts(out, "\n");
}

static void write_times(const struct comparison *c, struct buf *out)
{
    buf_puts(out, "\nmodelled ms of a step by its rows (collectives and linears; attention, norms "
                  "and sampling are alike), * least\n");
    buf_printf(out, "%-17s", "layout");
    write_rows(c, out);
    for (int32_t k = 0; k < c->count; k++) {
        buf_printf(out, "%-17s", c->list[k].name);
        for (int32_t i = 0; i < COLUMNS; i++) {
            double least = INFINITY;
            for (int32_t j = 0; j < c->count; j++)
                least = fmin(least, c->list[j].seconds[i]);
            const double t = c->list[k].seconds[i];
            buf_printf(out, "  %9.3f%c", 1e3 * t, t <= least ? '*' : ' ');
        }
        buf_puts(out, "\n");
    }
}

enum status plan_modes_table(const struct setup *s, int32_t rows, const struct price *price,
                             struct buf *out, struct err *err)
{
    enum status st = OK;
    struct comparison c = {.s = s, .price = price, .rows = {1, 8, 32, 128, 2048, rows}};
    TRY(consider_all(&c, err));
    buf_printf(out,
               "\nlayouts of %d ranks, of the rank that has most; 2.5d dep,row,col; 3d w,a,b "
               "(a: outputs, b: inputs,\nw: copies of the\nweights, or parts to gather); KV: bytes "
               "per token; residual "
               "stream of %d rows; collectives per layer of\nsteps of few and many rows; summa "
               "from so many rows; bytes received per layer by rows, * least\n",
               s->options.tp, rows);
    buf_printf(out, "%-17s  %10s  %9s  %10s  %9s  %7s ", "layout", "weights", "KV", "residual",
               "meetings", "summa");
    write_rows(&c, out);
    for (int32_t i = 0; i < c.count; i++)
        write_candidate(&c, &c.list[i], out);
    if (price)
        write_times(&c, out);
out:
    return st;
}

/* ---- by time ---- */

enum status plan_modes_measure(const struct setup *s, struct price *out, struct err *err)
{
    return price_measure(s->options.device, s->options.tp, footprint_threads(&s->options),
                         options_dtype(&s->options, s->model.dtype), out, err);
}

void plan_modes_price(const struct setup *s, const struct price *p, struct buf *out)
{
    buf_printf(out,
               "\nmeasured here with %d ranks of %d threads: %.1f us a collective, %.3f ns a byte "
               "received (%.2f GB/s),\n%.3f ns a byte of weights, %.4f ns a multiply-add\n",
               s->options.tp, footprint_threads(&s->options), 1e6 * p->meet, 1e9 * p->byte,
               p->byte > 0 ? 1e-9 / p->byte : 0, 1e9 * p->weight, 1e9 * p->mac);
}

enum status plan_modes_pick(struct setup *s, struct err *err)
{
    enum status st = OK;
    struct price price;
    const int32_t rows = s->options.max_num_batched_tokens, last = COLUMNS - 1;
    struct comparison c = {.s = s, .price = &price, .rows = {1, 1, 1, 1, 1, rows}};
    TRY(plan_modes_measure(s, &price, err));
    TRY(consider_all(&c, err));
    if (c.count == 0)
        return base_fail(err, ERR_USAGE, "--auto: no layout of %d ranks suits this model",
                         s->options.tp);
    const struct candidate *one = &c.list[0], *pick = one;
    for (int32_t i = 1; i < c.count; i++) {
        const double *t = c.list[i].seconds;
        if (t[0] * t[last] < pick->seconds[0] * pick->seconds[last])
            pick = &c.list[i];
    }
    memcpy(s->mesh, pick->mesh, sizeof s->mesh);
    s->options.mesh = *s->mesh ? s->mesh : NULL;
    s->options.parallel_mode = pick->mode;
    base_log(LOG_INFO,
             "--auto picks %s of %d layouts: modelled %.3f ms a row, %.3f ms %d rows; %s %.3f ms, "
             "%.3f ms; a collective %.1f us, %.2f ns a byte received",
             pick->name, c.count, 1e3 * pick->seconds[0], 1e3 * pick->seconds[last], rows,
             one->name, 1e3 * one->seconds[0], 1e3 * one->seconds[last], 1e6 * price.meet,
             1e9 * price.byte);
out:
    return st;
}
