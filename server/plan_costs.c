/* DESIGN: the tables count a linear Y = X A forward and backward, in parts of X, A and Y taken as
 * of one size, with ring algorithms. 2d and 2.5d give there the time of a broadcast that is not
 * pipelined, q times the bytes. Serving runs forward only, and the weights of 3d lie still. */
#include "server/plan_costs.h"

#include "config/buf.h"
#include "engine/model/model.h"

enum { COSTS = 5 }; /* compute, parameters, activations, bandwidth, latency */

static const struct {
    const char *mode;
    const char *stated[COSTS], *wanted[COSTS];
} tables[] = {
    {"1d", {"1/P", "1/P", "1", "2(P-1)/P", "2(P-1)"}, {"1/P", "1/P", "1", "4(P-1)/P Th", "2"}},
    {"2d",
     {"1/q^2", "1/q^2", "1/q^2", "6(q-1)/q", "6(q-1)"},
     {"1/q^2", "1/q^2", "1/q^2", "(q-1)/q^2 (X+A)", "8q+"}},
    {"2.5d",
     {"1/dq^2", "1/q^2", "1/dq^2", "3(q-1)(d+1)/dq", "6(q-1)"},
     {"1/dq^2", "1/q^2", "1/dq^2", "(q-1)/q^2 (X/d+A)", "8q+"}},
    {"3d",
     {"1/q^3", "1/q^3", "1/q^3", "6(q-1)/q^3", "6(q-1)"},
     {"1/q^3", "1/q^2", "1/q^3", "(q-1)/q^3 (X+Y)", "8+"}},
};

/* The table's bandwidth in numbers, and with the factor that 2d and 2.5d have too much; ranks = d
 * q^2, or q^3, or P. */
static void bandwidths(size_t table, int32_t ranks, double *stated, double *right)
{
    int32_t q = 1, d = 1;
    while (table == 3 ? q * q * q < ranks : table == 1 && q * q < ranks)
        q++;
    if (table == 2) {
        q = 2;
        d = ranks / 4;
    }
    const double forms[] = {2.0 * (ranks - 1) / ranks, 6.0 * (q - 1) / q,
                            3.0 * (q - 1) * (d + 1) / (d * q), 6.0 * (q - 1) / (q * q * q)};
    *stated = forms[table];
    *right = table == 1 || table == 2 ? forms[table] / q : forms[table];
}

/* Of the rank that has most, in parts of the whole; bandwidth in streams of T h elements. */
struct costs_here {
    double compute, parameters, activations, bandwidth;
    int32_t meetings;
};

static void take(double *most, double n)
{
    *most = n > *most ? n : *most;
}

static void weigh(const struct flow *f, int32_t rank, int32_t rows, struct costs_here *out)
{
    const double stream = (double)rows * (double)f->hidden.units;
    const double each =
        (double)f->latent.value * (f->latent.plain + f->latent.head); /* of a head */
    double macs = 0, held = flow_heads(f, rank) * each, whole = f->heads * each;
    for (size_t i = 0; i < FLOW_OF_LAYER; i++) {
        const enum plan_part part = flow_of_layer[i];
        const struct flow_linear *l = &f->phase[PLAN_PREFILL].linear[part];
        const struct weight_spec mine = flow_weight(f, part, rank);
        held += (double)mine.out * mine.in;
        whole += (double)(l->out.units * l->out.unit) * (double)(l->in.units * l->in.unit);
        macs += (double)flow_work(f, PLAN_PREFILL, part, rows, rank).macs;
    }
    take(&out->compute, macs / (whole * rows));
    take(&out->parameters, held / whole);
    take(&out->activations, (double)parallel_rest_size(f, rank, rows) / stream);
    take(&out->bandwidth, (double)flow_layer_bytes(f, PLAN_PREFILL, rows, rank) / (4 * stream));
    out->meetings = flow_meetings(f, PLAN_PREFILL);
}

/* *suits: do the ranks form such a mesh, for this model? */
static enum status measure(const struct setup *s, const char *mode, int32_t rows, bool *suits,
                           struct costs_here *out, struct err *err)
{
    const struct options *o = &s->options;
    const enum dtype dtype = options_dtype(o, s->model.dtype);
    struct plan *plan = NULL;
    struct flow *flow = NULL;
    struct err why;
    enum status st = plan_load(mode, NULL, NULL, o->tp, &plan, &why);
    if (st == OK)
        st = layout_flow(&s->model, plan, dtype, s->ops, &flow, &why);
    for (int32_t r = 0; st == OK && r < o->tp; r++)
        weigh(flow, r, rows, out);
    flow_close(flow);
    plan_close(plan);
    *suits = st == OK;
    return st == OK || st == ERR_USAGE ? OK : base_fail(err, st, "%s", why.text);
}

static void write_words(const char *name, const char *what, const char *const words[COSTS],
                        struct buf *out)
{
    buf_printf(out, "%-5s %-9s  %9s  %10s  %11s  %18s  %8s\n", name, what, words[0], words[1],
               words[2], words[3], words[4]);
}

enum status plan_costs_table(const struct setup *s, int32_t rows, struct buf *out, struct err *err)
{
    enum status st = OK;
    const char *const heads[COSTS] = {"compute", "parameters", "activations", "bandwidth",
                                      "latency"};
    buf_puts(out,
             "\nCosts as the layouts' tables state them (stated: a linear forward and backward, in "
             "parts of X, A, Y),\nas one layer is served (served: T rows of h, forward only, A "
             "lies still in 3d), and counted here in\nthe form of many rows (bandwidth in T h, "
             "latency in collectives). 2d and 2.5d are stated q times too large.\n");
    write_words("", "", heads, out);
    for (size_t i = 0; i < ARRAY_LEN(tables); i++) {
        struct costs_here here = {0};
        double stated, right;
        bool suits;
        TRY(measure(s, tables[i].mode, rows, &suits, &here, err));
        write_words(tables[i].mode, "stated", tables[i].stated, out);
        write_words("", "served", tables[i].wanted, out);
        if (!suits) {
            buf_printf(out, "      not for this model on %d rank%s\n", s->options.tp,
                       s->options.tp == 1 ? "" : "s");
            continue;
        }
        bandwidths(i, s->options.tp, &stated, &right);
        buf_printf(out, "      %-9s  %9.4f  %10.4f  %11.4f  %18.4f  %8d", "here", here.compute,
                   here.parameters, here.activations, here.bandwidth, here.meetings);
        buf_printf(out, "   stated bandwidth %.4f, right %.4f\n", stated, right);
    }
out:
    return st;
}
