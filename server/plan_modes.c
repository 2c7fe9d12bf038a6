/* DESIGN: every number comes from the same flow that the ranks run, so what is compared is what
 * would happen. tests/oracle has the closed forms these numbers are held against. */
#include "server/plan_modes.h"

#include "config/buf.h"
#include "engine/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- all layouts ---- */

enum { COLUMNS = 6, POWERS = 15, SIZES = COLUMNS + POWERS, CANDIDATES_MAX = 256 };

struct candidate {
    char name[48];
    bool fits; /* into the memory that is free */
    /* Bytes of the rank that holds most; kv: per token of all sequences, when homes have as many;
     * rest: the residual stream of a step of most rows; activations: with it all that such a step
     * computes in. */
    size_t weights, kv, rest, activations;
    int32_t homes, meetings[PLAN_PHASES], prefill_rows;
    bool home;             /* where its KV cache lives */
    uint64_t bytes[SIZES]; /* per layer, of the rank that receives most */
    double seconds[SIZES]; /* modelled, of a step, of the rank that takes longest */
    const char *mode;      /* static */
    char mesh[40];         /* "": the layout's own */
};

struct comparison {
    const struct setup *s;
    bool homes;          /* with each layout that has homes, too, if nothing says which */
    int32_t rows[SIZES]; /* of the columns, the first 1, the last the most; then powers of two */
    struct candidate list[CANDIDATES_MAX];
    int32_t count;
};

static struct comparison *comparison_open(const struct setup *s, int32_t rows, bool homes)
{
    static const int32_t columns[COLUMNS] = {1, 8, 32, 128, 2048};
    struct comparison *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->s = s;
    c->homes = homes && !s->options.kv_placement;
    memcpy(c->rows, columns, sizeof columns);
    c->rows[COLUMNS - 1] = rows;
    for (int32_t i = 0; i < POWERS; i++)
        c->rows[COLUMNS + i] = 1 << i;
    return c;
}

static void take_most(uint64_t *most, uint64_t n)
{
    *most = n > *most ? n : *most;
}

static void take_size(size_t *most, size_t n)
{
    *most = n > *most ? n : *most;
}

static void weigh(const struct comparison *c, const struct flow *f, int32_t rank,
                  struct candidate *out)
{
    const struct setup *s = c->s;
    take_size(&out->rest, 4 * parallel_rest_size(f, rank, c->rows[COLUMNS - 1]));
    for (int32_t i = 0; i < SIZES; i++) {
        const int32_t rows = c->rows[i];
        const enum plan_phase phase = rows >= out->prefill_rows ? PLAN_PREFILL : PLAN_DECODE;
        take_most(&out->bytes[i], flow_layer_bytes(f, phase, rows, rank));
        if (s->priced)
            out->seconds[i] =
                fmax(out->seconds[i], price_step(&s->price, f, phase, s->model.layers, rows, rank));
    }
}

static enum status weigh_flow(const struct comparison *c, const struct flow *flow,
                              struct candidate *out, struct err *err)
{
    const struct setup *s = c->s;
    struct footprint f;
    const enum status st = footprint_plan(&s->options, &s->model, flow, &f, err);
    if (st != OK && st != ERR_LIMIT)
        return st;
    out->fits = st == OK;
    for (int32_t i = 0; i < PLAN_PHASES; i++)
        out->meetings[i] = flow_meetings(flow, (enum plan_phase)i);
    for (int32_t r = 0; r < s->options.tp; r++) {
        weigh(c, flow, r, out);
        take_size(&out->weights, f.rank[r].weights);
        take_size(&out->kv, f.rank[r].kv_per_token / (size_t)f.limits.homes);
        take_size(&out->activations, f.rank[r].activations);
    }
    return OK;
}

static enum status weigh_plan(const struct comparison *c, const struct plan *plan,
                              struct candidate *out, struct err *err)
{
    enum status st = OK;
    const struct setup *s = c->s;
    const enum dtype dtype = options_dtype(&s->options, s->model.dtype);
    struct flow *flow = NULL;
    TRY(layout_flow(&s->model, plan, dtype, s->ops, &flow, err));
    out->homes = flow_homes(flow);
    out->prefill_rows = flow->prefill_rows;
    if (s->priced && plan_has_prefill(plan))
        out->prefill_rows = price_crossover(&s->price, flow, s->model.layers);
    if (out->prefill_rows == FLOW_ROWS_MAX)
        out->prefill_rows = INT32_MAX;
    TRY(weigh_flow(c, flow, out, err));
out:
    flow_close(flow);
    return st;
}

/* Adds a layout with that placement of the KV cache; one that does not suit ranks or model is left
 * out. */
static enum status consider(struct comparison *c, const char *mode, const char *mesh,
                            const char *placement, struct err *err)
{
    enum status st = OK;
    struct plan *plan = NULL;
    struct candidate *out = &c->list[c->count];
    struct err why;
    memset(out, 0, sizeof *out);
    out->mode = mode;
    snprintf(out->mesh, sizeof out->mesh, "%s", mesh ? mesh : "");
    TRY(plan_load(mode, mesh, NULL, c->s->options.tp, &plan, &why));
    TRY(plan_set_placement(plan, placement, &why));
    TRY(weigh_plan(c, plan, out, &why));
    out->home = plan_is_home(plan);
    snprintf(out->name, sizeof out->name, "%s%s%s%s", mode, mesh ? " " : "", mesh ? mesh : "",
             out->home ? " home" : "");
    c->count += !c->homes || !out->home || out->homes > 1;
out:
    plan_close(plan);
    return st == OK || st == ERR_USAGE ? OK : base_fail(err, st, "%s", why.text);
}

static enum status consider_mesh(struct comparison *c, const char *mode, const char *mesh,
                                 struct err *err)
{
    const char *asked = c->s->options.kv_placement;
    const enum status st = consider(c, mode, mesh, asked ? asked : "heads", err);
    return st == OK && c->homes ? consider(c, mode, mesh, "home", err) : st;
}

static enum status consider_all(struct comparison *c, struct err *err)
{
    enum status st = OK;
    const int32_t ranks = c->s->options.tp;
    char mesh[40];
    TRY(consider_mesh(c, "1d", NULL, err));
    TRY(consider_mesh(c, "1d_sp", NULL, err));
    TRY(consider_mesh(c, "2d", NULL, err));
    for (int32_t q = 2; q * q < ranks; q++) {
        snprintf(mesh, sizeof mesh, "%d,%d,%d", ranks / (q * q), q, q);
        if (ranks % (q * q) == 0)
            TRY(consider_mesh(c, "2.5d", mesh, err));
    }
    for (int32_t w = 1; w <= ranks; w++) {
        for (int32_t a = 1; ranks % w == 0 && a <= ranks / w; a++) {
            snprintf(mesh, sizeof mesh, "%d,%d,%d", w, a, ranks / w / a);
            if (ranks / w % a != 0 || c->count > CANDIDATES_MAX - 4)
                continue;
            TRY(consider_mesh(c, "3d", mesh, err));
            if (w > 1)
                TRY(consider_mesh(c, "3d_gathered", mesh, err));
        }
    }
out:
    return st;
}

static double amount(const struct candidate *k, bool by_time, int32_t i)
{
    return by_time ? k->seconds[i] : (double)k->bytes[i];
}

/* Has no other layout with its placement of the KV cache less? */
static bool is_least(const struct comparison *c, const struct candidate *k, bool by_time, int32_t i)
{
    for (int32_t j = 0; j < c->count; j++)
        if (c->list[j].home == k->home && amount(&c->list[j], by_time, i) < amount(k, by_time, i))
            return false;
    return true;
}

static void write_candidate(const struct comparison *c, const struct candidate *k, struct buf *out)
{
    char w[32], rest[32], n[32], all[32], rows[16] = "-";
    if (k->prefill_rows < INT32_MAX)
        snprintf(rows, sizeof rows, "%d", k->prefill_rows);
    buf_printf(out, "%-22s%c %10s  %9zu  %10s  %11s  %4d %4d  %7s ", k->name, k->fits ? ' ' : '!',
               base_human_bytes(w, sizeof w, k->weights), k->kv,
               base_human_bytes(rest, sizeof rest, k->rest),
               base_human_bytes(all, sizeof all, k->activations), k->meetings[PLAN_DECODE],
               k->meetings[PLAN_PREFILL], rows);
    for (int32_t i = 0; i < COLUMNS; i++)
        buf_printf(out, "  %9s%c", base_human_bytes(n, sizeof n, (size_t)k->bytes[i]),
                   is_least(c, k, false, i) ? '*' : ' ');
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
                  "and sampling are alike), * least of its placement\n");
    buf_printf(out, "%-22s", "layout");
    write_rows(c, out);
    for (int32_t j = 0; j < c->count; j++) {
        const struct candidate *k = &c->list[j];
        buf_printf(out, "%-22s", k->name);
        for (int32_t i = 0; i < COLUMNS; i++)
            buf_printf(out, "  %9.3f%c", 1e3 * k->seconds[i], is_least(c, k, true, i) ? '*' : ' ');
        buf_puts(out, "\n");
    }
}

/* Which layout with this placement has least of what, from which power of two rows on. */
static void write_leaders_of(const struct comparison *c, bool by_time, bool home, struct buf *out)
{
    const struct candidate *leader = NULL, *const end = c->list + c->count;
    for (int32_t i = COLUMNS; i < SIZES && c->rows[i] <= c->rows[COLUMNS - 1]; i++) {
        const struct candidate *k = c->list;
        if (leader && is_least(c, leader, by_time, i))
            continue;
        while (k < end && (k->home != home || !is_least(c, k, by_time, i)))
            k++;
        if (k == end)
            return;
        buf_printf(out, "%s %s from %d",
                   leader ? ","
                   : home ? "\nwith homes:"
                          : "",
                   k->name, c->rows[i]);
        leader = k;
    }
}

static void write_leaders(const struct comparison *c, bool by_time, struct buf *out)
{
    buf_puts(out, by_time ? "\nleast modelled time:" : "\nfewest bytes, of powers of two rows:");
    write_leaders_of(c, by_time, false, out);
    write_leaders_of(c, by_time, true, out);
    buf_puts(out, "\n");
}

static void write_legend(int32_t ranks, int32_t rows, struct buf *out)
{
    buf_printf(
        out,
        "\nAll layouts of %d rank%s. Each figure is that of the rank that has most.\n"
        "  layout       2.5d depth,rows,columns; 3d w,a,b: outputs are cut into a parts, inputs "
        "into b,\n"
        "               and there are w copies of the weights (3d_gathered: w parts to "
        "gather);\n"
        "               home: with --kv-placement home, while homes have as much to do;\n"
        "               !: does not fit into memory\n"
        "  KV           bytes per token of all sequences\n"
        "  residual     bytes of the residual stream in a step of %d rows\n"
        "  activations  bytes of all that such a step computes in\n"
        "  few, many    collectives per layer in steps of few and of many rows\n"
        "  from         how many rows are many; -: no number is\n"
        "  1, 8, ...    bytes received per layer in a step of so many rows; *: the least of "
        "its placement\n\n",
        ranks, ranks == 1 ? "" : "s", rows);
}

enum status plan_modes_table(const struct setup *s, int32_t rows, struct buf *out, struct err *err)
{
    enum status st = OK;
    struct comparison *c = comparison_open(s, rows, true);
    if (!c)
        return base_fail(err, ERR_NOMEM, "no memory to compare layouts");
    TRY(consider_all(c, err));
    write_legend(s->options.tp, rows, out);
    buf_printf(out, "%-22s  %10s  %9s  %10s  %11s  %9s  %7s ", "layout", "weights", "KV",
               "residual", "activations", "few many", "from");
    write_rows(c, out);
    for (int32_t i = 0; i < c->count; i++)
        write_candidate(c, &c->list[i], out);
    write_leaders(c, false, out);
    if (s->priced) {
        write_times(c, out);
        write_leaders(c, true, out);
    }
out:
    free(c);
    return st;
}

/* ---- by time ---- */

enum status plan_modes_measure(struct setup *s, struct err *err)
{
    const enum dtype dtype = model_config_codes(&s->model)
                                 ? s->model.quant.code
                                 : options_dtype(&s->options, s->model.dtype);
    return price_measure(s->options.device, s->options.tp, footprint_threads(&s->options), dtype,
                         &s->price, err);
}

void plan_modes_price(const struct setup *s, struct buf *out)
{
    const struct price *p = &s->price;
    const int32_t threads = footprint_threads(&s->options);
    if (s->options.prices)
        buf_printf(out, "\nas %s says:", s->options.prices);
    else
        buf_printf(out, "\nmeasured here with %d rank%s of %d thread%s:", s->options.tp,
                   s->options.tp == 1 ? "" : "s", threads, threads == 1 ? "" : "s");
    buf_printf(out,
               " %.1f us a collective, %.3f ns a byte received (%.2f GB/s),\n%.3f ns a byte of "
               "weights, %.4f ns a multiply-add\n",
               1e6 * p->meet, 1e9 * p->byte, p->byte > 0 ? 1e-9 / p->byte : 0, 1e9 * p->weight,
               1e9 * p->mac);
}

/* The first layout, 1d, has the bits of a single rank and is what prices describe best: another has
 * to be faster by a twentieth, of a row and of many alike, which is more than prices vary. */
#define WORTH_LEAVING (0.95 * 0.95)

enum status plan_modes_pick(struct setup *s, struct err *err)
{
    enum status st = OK;
    const int32_t rows = s->options.max_num_batched_tokens, last = COLUMNS - 1;
    struct comparison *c = comparison_open(s, rows, false);
    if (!c)
        return base_fail(err, ERR_NOMEM, "no memory to compare layouts");
    TRY(consider_all(c, err));
    if (c->count == 0) {
        st = base_fail(err, ERR_USAGE, "--auto: no layout of %d ranks suits this model",
                       s->options.tp);
        goto out;
    }
    const struct candidate *one = &c->list[0], *pick = one;
    for (int32_t i = 1; i < c->count; i++) {
        const double *t = c->list[i].seconds;
        const double enough = pick == one ? WORTH_LEAVING : 1;
        const bool faster = t[0] * t[last] < enough * pick->seconds[0] * pick->seconds[last];
        if (c->list[i].fits && (faster || !pick->fits))
            pick = &c->list[i];
    }
    memcpy(s->mesh, pick->mesh, sizeof s->mesh);
    s->options.mesh = *s->mesh ? s->mesh : NULL;
    s->options.parallel_mode = pick->mode;
    base_log(LOG_INFO,
             "--auto picks %s of %d layouts: modelled %.3f ms a row, %.3f ms %d rows; %s %.3f ms, "
             "%.3f ms; a collective %.1f us, %.2f ns a byte received",
             pick->name, c->count, 1e3 * pick->seconds[0], 1e3 * pick->seconds[last], rows,
             one->name, 1e3 * one->seconds[0], 1e3 * one->seconds[last], 1e6 * s->price.meet,
             1e9 * s->price.byte);
out:
    free(c);
    return st;
}
