/* DESIGN: beside each number stands the closed form that it has where blocks are even, with what
 * goes into it; where they are not, it says "about". */
#include "config/buf.h"
#include "engine/model/model.h"
#include "server/plan_modes.h"

/* A form of a step, for so many rows, as one rank sees it. */
struct form {
    const struct flow *f;
    enum plan_phase phase;
    int32_t rows, rank;
    struct buf *out;
};

static void line(const struct form *v, const char *where, const char *when, const char *what,
                 uint64_t bytes, double closed, const char *formula)
{
    buf_printf(v->out, "  %-12s  %-6s  %-32s  %14llu  %s %s", where, when, what,
               (unsigned long long)bytes, (double)bytes == closed ? "=    " : "about", formula);
}

/* Bytes of the rank's part. */
static int64_t size_of(const struct form *v, const struct matrix *x, const struct spread *s)
{
    int64_t n = sizeof(float);
    for (int32_t dim = 0; dim < SPREAD_DIMS; dim++)
        n *= span_len(redistribute_held(&v->f->mesh, x, s, dim, v->rank));
    return n;
}

static void explain_move(const struct form *v, const char *where, const char *when,
                         const struct matrix *x, const struct move *m)
{
    const struct mesh *mesh = &v->f->mesh;
    const int32_t n = mesh->axis[m->axis].size;
    const uint64_t bytes = 4 * (uint64_t)redistribute_received(mesh, x, m, v->rank);
    const bool sums = m->kind == MOVE_REDUCE || m->kind == MOVE_SCATTER;
    const int64_t size = size_of(v, x, sums ? &m->before : &m->after);
    const char *formula = "(n-1)/n N";
    double parts = (n - 1.0) / n;
    char text[REDISTRIBUTE_TEXT_MAX];
    if (m->kind == MOVE_SLICE || m->kind == MOVE_CLAIM)
        return;
    if (m->kind == MOVE_SWAP) {
        formula = "N";
        parts = 1;
    } else if (m->kind == MOVE_REDUCE) {
        const bool once = n == 2 || size <= COMM_ONESHOT_MAX_BYTES;
        formula = once ? "(n-1) N" : "2(n-1)/n N";
        parts = once ? n - 1 : 2 * parts;
    }
    line(v, where, when, redistribute_text(mesh, m, text), bytes, parts * (double)size, formula);
    buf_printf(v->out, "; n %d, N %lld\n", n, (long long)size);
}

static void explain_route(const struct form *v, const char *where, const char *when,
                          const struct route *r, int32_t rows, struct extent cols)
{
    const struct matrix x = flow_matrix(rows, cols);
    for (int32_t i = 0; i < r->count; i++)
        explain_move(v, where, when, &x, &r->move[i]);
}

/* Panels of x come from the others of the row, blocks of the weight from those of the column. */
static void explain_summa(const struct form *v, const char *where, enum plan_part part)
{
    const struct flow_linear *l = &v->f->phase[v->phase].linear[part];
    const struct weight_spec mine = flow_weight(v->f, part, v->rank);
    const struct matrix x = flow_matrix(v->rows, l->in);
    const int32_t n = v->f->mesh.axis[v->f->choice[part].weight.axis[SPREAD_COLS][0]].size;
    const int64_t panel = size_of(v, &x, &l->uses) * n,
                  block = (int64_t)v->f->ops->weight_bytes(&mine);
    line(v, where, "", "broadcasts of x and weight", flow_summa_bytes(v->f, part, v->rows, v->rank),
         (n - 1.0) / n * (double)panel + (n - 1.0) * (double)block, "(n-1)/n N + (n-1) B");
    buf_printf(v->out, "; n %d, N %lld, B %lld\n", n, (long long)panel, (long long)block);
}

static void explain_gathered(const struct form *v, const char *where, enum plan_part part)
{
    const struct weight_spec whole = flow_weight(v->f, part, v->rank);
    const int32_t n = v->f->mesh.axis[v->f->choice[part].over].size;
    const int64_t bytes = (int64_t)v->f->ops->weight_bytes(&whole);
    line(v, where, "", "all-gather of the weight", flow_gathered_bytes(v->f, part, v->rank),
         (n - 1.0) / n * (double)bytes, "(n-1)/n N");
    buf_printf(v->out, "; n %d, N %lld\n", n, (long long)bytes);
}

static void explain_linear(const struct form *v, const char *where, enum plan_part part,
                           int32_t rows)
{
    const struct flow_linear *l = &v->f->phase[v->phase].linear[part];
    if (part != PLAN_EMBED)
        explain_route(v, where, "before", &l->before, rows, l->in);
    if (l->summa)
        explain_summa(v, where, part);
    if (l->gathered)
        explain_gathered(v, where, part);
    explain_route(v, where, "after", &l->after, rows, part == PLAN_EMBED ? v->f->hidden : l->out);
}

static void explain_form(const struct form *v)
{
    const struct flow_phase *p = &v->f->phase[v->phase];
    const struct extent one = {.units = 1, .unit = 1};
    char rest[SPREAD_TEXT_MAX];
    buf_printf(v->out, "  residual stream %s\n", spread_text(&v->f->mesh, &p->rest, rest));
    explain_linear(v, "embed_tokens", PLAN_EMBED, v->rows);
    explain_route(v, "each norm", "", &p->sums, v->rows, one);
    explain_linear(v, "gates", PLAN_ATTENTION_GATE, v->rows);
    explain_linear(v, "qkv_proj", PLAN_QKV, v->rows);
    explain_linear(v, "latents", PLAN_LATENT, v->rows);
    explain_route(v, "q and k norm", "", &v->f->joint.sums, v->rows, v->f->joint.heads);
    explain_linear(v, "o_proj", PLAN_O, v->rows);
    explain_linear(v, "gate_up_proj", PLAN_GATE_UP, v->rows);
    explain_linear(v, "down_proj", PLAN_DOWN, v->rows);
    explain_linear(v, "lm_head", PLAN_HEAD, 1);
    explain_route(v, "logits", "", &v->f->whole, 1, p->linear[PLAN_HEAD].out);
}

void plan_modes_explain(const struct setup *s, int32_t rows, struct buf *out)
{
    const struct flow *f = s->flow;
    struct form v = {.f = f, .rows = rows, .rank = mesh_ranks(&f->mesh) > 1, .out = out};
    buf_printf(out, "\n%s, mesh", plan_where(s->plan));
    for (int32_t i = 0; i < f->mesh.axes; i++)
        buf_printf(out, " %s=%d", f->mesh.axis[i].name, f->mesh.axis[i].size);
    const bool two = f->prefill_rows < INT32_MAX;
    if (two)
        buf_printf(out, "; steps of %d rows or more take the second form", f->prefill_rows);
    char at[SPREAD_TEXT_MAX];
    buf_printf(out, "\nattention %s: ", spread_text(&f->mesh, &f->attention, at));
    if (flow_homes(f) > 1)
        buf_printf(out, "a rank has the KV cache of the sequences of one of %d homes",
                   flow_homes(f));
    else
        buf_puts(out, "a rank has the KV cache of all sequences, for its heads");
    buf_printf(out,
               "\nbytes rank %d receives for %d rows, one of them sampled, and their closed form\n",
               v.rank, rows);
    buf_puts(out, two ? "steps of few rows:\n" : "");
    explain_form(&v);
    if (two) {
        buf_puts(out, "steps of many rows:\n");
        v.phase = PLAN_PREFILL;
        explain_form(&v);
    }
    buf_puts(
        out,
        "Bytes a rank receives per layer for T rows (fp32 activations; h hidden, W weights of "
        "the layer,\nS_in sum of the linears' inputs; exchanges of attention, latents and norms "
        "besides):\n"
        "  1d                   one-shot 2(P-1) T h 4, above 256 KiB 4(P-1)/P T h 4\n"
        "  1d_sp                4(P-1)/P T h 4\n"
        "  stationary (w,a,b)   T [4h(a-1) + (W/h)(b-1)] / P 4\n"
        "  ... weights gathered and (w-1)/P W bytes stored\n"
        "  summa q x q, depth d (q-1)/q^2 [T S_in/d 4 + W bytes stored]\n");
}
