/* DESIGN: the gated delta rule and the gate by the rules of subjects.h, and stricter: ref states
 * the same operations, so all have its bits. A row's inputs come from its slot and position, so
 * that however rows are divided into calls, whoever else is in these and whatever the states of
 * slots held before, results and states must be the same bits. How far they are from the formulas
 * is told by a statement of these in doubles, written from transformers' modeling_qwen3_5.py. */
#include "tests/only.h"
#include "tests/subjects.h"

#include <float.h>

#define SLOTS 4 /* the last one is never used */
#define LENGTH_MAX 80
#define EPS 1e-6f

struct shape {
    int32_t keys, values, key_dim, value_dim, taps;
};

/* Rows of a call that stand together; PAD: of padding, END: the next call. */
enum { PAD = -1, END = -2 };
struct part {
    int32_t slot, rows;
};

/* The row of slot 2 that goes into another slot, too. */
struct kept {
    int32_t row, slot;
};

struct delta_case {
    struct shape shape;
    const struct part *parts;
    int32_t count;
    int32_t start[SLOTS]; /* position of the first row of a slot */
    float strong;         /* factor of the gates */
};

struct made {
    const struct delta_case *c;
    struct recurrent_heads heads;
    struct recurrent_rules rules;
    int32_t channels, cols, outs, length[SLOTS], at[SLOTS]; /* at: row of `out` of the first */
    float *conv, *decay, *bias, *gain;
    size_t matrix, before;   /* words of a slot */
    const struct kept *kept; /* [3]; NULL: none is */
};

static struct made make(const struct delta_case *c)
{
    const struct shape *s = &c->shape;
    struct made m = {.c = c};
    m.heads = (struct recurrent_heads){s->keys, s->values, s->key_dim, s->value_dim, s->taps};
    m.channels = backend_channels(&m.heads);
    m.outs = s->values * s->value_dim;
    m.cols = m.channels + m.outs;
    m.conv = generated(2, (size_t)(m.channels * s->taps));
    m.decay = generated(3, (size_t)s->values);
    m.bias = generated(4, (size_t)s->values);
    m.gain = generated(5, (size_t)s->value_dim);
    for (int32_t i = 0; i < s->values; i++)
        m.decay[i] = 2 * m.decay[i] - 1;
    for (int32_t i = 0; i < s->value_dim; i++)
        m.gain[i] = 1 + 0.5f * m.gain[i];
    m.rules = (struct recurrent_rules){m.conv, m.decay, m.bias, m.gain, EPS};
    m.matrix = (size_t)(s->values * s->key_dim * s->value_dim);
    m.before = (size_t)((s->taps - 1) * m.channels);
    for (int32_t i = 0; i < c->count; i++)
        if (c->parts[i].slot >= 0)
            m.length[c->parts[i].slot] += c->parts[i].rows;
    for (int32_t i = 1; i < SLOTS; i++)
        m.at[i] = m.at[i - 1] + m.length[i - 1];
    return m;
}

static void unmake(const struct made *m)
{
    const struct shape *s = &m->c->shape;
    guarded_free(m->conv, (size_t)(m->channels * s->taps));
    guarded_free(m->decay, (size_t)s->values);
    guarded_free(m->bias, (size_t)s->values);
    guarded_free(m->gain, (size_t)s->value_dim);
}

/* ---- inputs and states ----------------------------------------------------------------------- */

/* Element i of [q | k | v | z] of a row, and of its gates [b | a]. */
static float input(int32_t slot, int32_t row, int32_t i)
{
    return 2 * gen(100 + (uint64_t)(slot * LENGTH_MAX + row), (size_t)i);
}

static float gate_of(const struct made *m, int32_t slot, int32_t row, int32_t i)
{
    return m->c->strong * gen(1000 + (uint64_t)(slot * LENGTH_MAX + row), (size_t)i);
}

/* What a slot that begins later has from before: NaN where none of it may be read. */
static float old_matrix(const struct made *m, int32_t slot, size_t i)
{
    return m->c->start[slot] > 0 ? gen(7 + (uint64_t)slot, i) : NAN;
}

static float old_row(const struct made *m, int32_t slot, size_t i)
{
    return m->c->start[slot] > 0 ? gen(17 + (uint64_t)slot, i) : NAN;
}

static size_t words_out(const struct made *m)
{
    const size_t rows = (size_t)(m->at[SLOTS - 1] + m->length[SLOTS - 1]);
    return rows * (size_t)m->outs + SLOTS * (m->matrix + m->before);
}

/* Where in `out` the states of all slots are, behind the rows. */
static struct recurrent_state state_in(const struct made *m, float *out)
{
    float *matrix = out + words_out(m) - SLOTS * (m->matrix + m->before);
    return (struct recurrent_state){matrix, matrix + SLOTS * m->matrix, NULL};
}

static void state_init(const struct made *m, float *out)
{
    const struct recurrent_state s = state_in(m, out);
    for (int32_t slot = 0; slot < SLOTS; slot++) {
        for (size_t i = 0; i < m->matrix; i++)
            s.matrix[(size_t)slot * m->matrix + i] = old_matrix(m, slot, i);
        for (size_t i = 0; i < m->before; i++)
            s.rows[(size_t)slot * m->before + i] = old_row(m, slot, i);
    }
}

/* ---- one case -------------------------------------------------------------------------------- */

struct call {
    const struct made *m;
    int32_t n, slot[3 * LENGTH_MAX], row[3 * LENGTH_MAX], position[3 * LENGTH_MAX];
    int32_t keep[3 * LENGTH_MAX];
};

/* In which slot row r of a slot is kept, too; -1: none. */
static int32_t kept_in(const struct made *m, int32_t slot, int32_t r)
{
    for (int32_t i = 0; slot == 2 && m->kept && i < 3; i++)
        if (m->kept[i].row == r)
            return m->kept[i].slot;
    return -1;
}

static void fill(const struct call *c, float *a, float *gates)
{
    const int32_t values = c->m->heads.values;
    for (int32_t t = 0; t < c->n; t++) {
        const bool pad = c->slot[t] < 0;
        for (int32_t i = 0; i < c->m->cols; i++)
            a[t * c->m->cols + i] = pad ? NAN : input(c->slot[t], c->row[t], i);
        for (int32_t i = 0; i < 2 * values; i++)
            gates[t * 2 * values + i] = pad ? NAN : gate_of(c->m, c->slot[t], c->row[t], i);
    }
}

static void check_call(const struct call *c, const float *a, const float *gates, const float *y)
{
    const struct made *m = c->m;
    const size_t words = (size_t)(c->n * m->cols), pairs = (size_t)(c->n * 2 * m->heads.values);
    float *before = guarded(words), *unchanged = guarded(pairs);
    fill(c, before, unchanged);
    assert_bits("gates", gates, unchanged, pairs);
    for (int32_t t = 0; t < c->n; t++) {
        if (c->slot[t] < 0)
            assert_bits("a padded row", a + t * m->cols, before + t * m->cols, (size_t)m->cols);
        for (int32_t i = 0; c->slot[t] < 0 && i < m->outs; i++)
            assert_true(y[t * m->outs + i] == 0 && !signbit(y[t * m->outs + i]));
    }
    guarded_free(before, words);
    guarded_free(unchanged, pairs);
}

static void run_call(struct backend *b, const struct call *c, float *out)
{
    const struct made *m = c->m;
    const int32_t pair = 2 * m->heads.values;
    const size_t words = (size_t)(c->n * m->cols), pairs = (size_t)(c->n * pair);
    const size_t results = (size_t)(c->n * m->outs);
    float *a = guarded(words), *gates = guarded(pairs), *y = guarded(results);
    struct recurrent_state state = state_in(m, out);
    state.keep = m->kept ? c->keep : NULL;
    const struct rows rows = {.count = c->n, .slot = c->slot, .position = c->position};
    fill(c, a, gates);
    ok(backend_delta_rule(b, view_f32(y, c->n, m->outs), view_f32(a, c->n, m->cols),
                          (struct cview){gates, DTYPE_F32, c->n, pair}, &m->heads, &m->rules, &rows,
                          &state, &err));
    check_call(c, a, gates, y);
    for (int32_t t = 0; t < c->n; t++)
        if (c->slot[t] >= 0)
            memcpy(out + (ptrdiff_t)(m->at[c->slot[t]] + c->row[t]) * m->outs,
                   y + (ptrdiff_t)t * m->outs, (size_t)m->outs * sizeof *y);
    guarded_free(a, words);
    guarded_free(gates, pairs);
    guarded_free(y, results);
}

/* All calls of a case: rows of slot 0, of slot 1, ..., then the states. */
static void run_calls(struct backend *b, const struct made *m, float *out)
{
    int32_t done[SLOTS] = {0};
    struct call c = {.m = m};
    state_init(m, out);
    for (int32_t i = 0; i < m->c->count; i++) {
        const struct part *p = &m->c->parts[i];
        for (int32_t r = 0; r < p->rows; r++, c.n++) {
            assert_true(c.n < (int32_t)ARRAY_LEN(c.slot));
            c.slot[c.n] = p->slot;
            c.row[c.n] = p->slot < 0 ? 0 : done[p->slot]++;
            c.position[c.n] = p->slot < 0 ? 0 : m->c->start[p->slot] + c.row[c.n];
            c.keep[c.n] = kept_in(m, p->slot, c.row[c.n]);
        }
        if (p->slot == END || i + 1 == m->c->count) {
            run_call(b, &c, out);
            c.n = 0;
        }
    }
}

/* ---- the formulas ---------------------------------------------------------------------------- */

/* Of one slot: rows of x[T, C + V * value_dim], state and result in doubles. */
struct formula {
    const struct made *m;
    int32_t slot;
    double *conv; /* [T, C] */
    double *s;    /* [V, key_dim, value_dim] */
    double *y;    /* [T, V * value_dim] */
};

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* causal_conv1d_fn with SiLU, over what was there before, too. */
static void formula_conv(const struct formula *f, int32_t row)
{
    const struct made *m = f->m;
    const int32_t taps = m->heads.taps;
    for (int32_t c = 0; c < m->channels; c++) {
        double sum = 0;
        for (int32_t i = 0; i < taps; i++) {
            const int32_t from = row + i - (taps - 1);
            double x = 0;
            if (from >= 0)
                x = (double)input(f->slot, from, c);
            else if (m->c->start[f->slot] > 0)
                x = (double)old_row(m, f->slot, (size_t)((taps - 1 + from) * m->channels + c));
            sum += x * (double)m->conv[c * taps + i];
        }
        f->conv[row * m->channels + c] = sum * sigmoid(sum);
    }
}

static double l2norm(const double *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return 1 / sqrt(sum + 1e-6);
}

/* torch_recurrent_gated_delta_rule of one row and value head: o[value_dim]. */
static void formula_head(const struct formula *f, int32_t row, int32_t head, double *o)
{
    const struct made *m = f->m;
    const int32_t keys = m->heads.key_dim, dim = m->heads.value_dim, V = m->heads.values;
    const double *x = f->conv + (ptrdiff_t)row * m->channels;
    const double *q = x + head / (V / m->heads.keys) * keys, *k = q + m->heads.keys * keys;
    const double *v = x + 2 * m->heads.keys * keys + head * dim;
    const double a = (double)gate_of(m, f->slot, row, V + head) + (double)m->bias[head];
    const double g = -exp((double)m->decay[head]) * (a > 20 ? a : log1p(exp(a)));
    const double beta = sigmoid((double)gate_of(m, f->slot, row, head));
    const double of_q = l2norm(q, keys) / sqrt(keys), of_k = l2norm(k, keys);
    double *s = f->s + (ptrdiff_t)head * keys * dim;
    for (int32_t j = 0; j < dim; j++) {
        double mem = 0;
        for (int32_t i = 0; i < keys; i++) {
            s[i * dim + j] *= exp(g);
            mem += s[i * dim + j] * k[i] * of_k;
        }
        const double delta = (v[j] - mem) * beta;
        o[j] = 0;
        for (int32_t i = 0; i < keys; i++) {
            s[i * dim + j] += k[i] * of_k * delta;
            o[j] += s[i * dim + j] * q[i] * of_q;
        }
    }
}

/* Qwen3_5RMSNormGated */
static void formula_norm(const struct formula *f, int32_t row, int32_t head, const double *o)
{
    const int32_t dim = f->m->heads.value_dim, at = head * dim;
    double mean = 0;
    for (int32_t j = 0; j < dim; j++)
        mean += o[j] * o[j] / dim;
    for (int32_t j = 0; j < dim; j++) {
        const double z = (double)input(f->slot, row, f->m->channels + at + j);
        f->y[row * f->m->outs + at + j] =
            o[j] / sqrt(mean + (double)EPS) * (double)f->m->gain[j] * z * sigmoid(z);
    }
}

static void formula_run(const struct formula *f)
{
    double o[BACKEND_STATE_DIM_MAX];
    for (size_t i = 0; i < f->m->matrix; i++)
        f->s[i] = f->m->c->start[f->slot] > 0 ? (double)old_matrix(f->m, f->slot, i) : 0;
    for (int32_t row = 0; row < f->m->length[f->slot]; row++) {
        formula_conv(f, row);
        for (int32_t head = 0; head < f->m->heads.values; head++) {
            formula_head(f, row, head, o);
            formula_norm(f, row, head, o);
        }
    }
}

static double worst; /* of all, of the largest */

static void assert_close(const char *what, const float *got, const double *want, size_t n)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(want[i]));
    for (size_t i = 0; i < n; i++) {
        const double off = fabs((double)got[i] - want[i]) / largest;
        worst = fmax(worst, off);
        if (!(off <= 1e-5))
            fail_msg("%s: element %zu is %.9g, not %.9g, the largest is %.3g", what, i,
                     (double)got[i], want[i], largest);
    }
}

static double *doubles(size_t n)
{
    return must(calloc(n + 1, sizeof(double)));
}

static void assert_formula(const char *what, const struct made *m, float *out)
{
    for (int32_t slot = 0; slot < SLOTS; slot++) {
        const size_t rows = (size_t)m->length[slot], results = rows * (size_t)m->outs;
        const struct recurrent_state state = state_in(m, out);
        struct formula f = {m, slot, doubles(rows * (size_t)m->channels), doubles(m->matrix),
                            doubles(results)};
        if (rows > 0) {
            formula_run(&f);
            assert_close(what, out + (ptrdiff_t)m->at[slot] * m->outs, f.y, results);
            assert_close(what, state.matrix + (size_t)slot * m->matrix, f.s, m->matrix);
        }
        free(f.conv);
        free(f.s);
        free(f.y);
    }
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* The last of the rows as they came, of a slot that has had so many. */
static void assert_states(const struct made *m, float *out)
{
    const struct recurrent_state state = state_in(m, out);
    const int32_t kept = m->heads.taps - 1;
    for (int32_t slot = 0; slot < SLOTS; slot++)
        for (int32_t i = 0; m->length[slot] > 0 && i < kept; i++)
            for (int32_t c = 0; c < m->channels; c++) {
                const int32_t from = m->length[slot] - kept + i;
                const bool is_old = m->c->start[slot] > 0;
                const size_t at = (size_t)((kept + from) * m->channels + c);
                const float want = from >= 0 ? input(slot, from, c)
                                   : is_old  ? old_row(m, slot, at)
                                             : 0;
                assert_true(state.rows[(size_t)slot * m->before + (size_t)(i * m->channels + c)] ==
                            want);
            }
    float *fresh = guarded(words_out(m));
    state_init(m, fresh);
    const struct recurrent_state old = state_in(m, fresh);
    for (size_t slot = 0; slot < SLOTS; slot++) {
        if (m->length[slot] > 0)
            continue;
        assert_bits("another slot", state.matrix + slot * m->matrix, old.matrix + slot * m->matrix,
                    m->matrix);
        assert_bits("another slot", state.rows + slot * m->before, old.rows + slot * m->before,
                    m->before);
    }
    guarded_free(fresh, words_out(m));
}

/* The bits that all have, in words that the caller frees. */
static float *everywhere(const char *what, const struct made *m)
{
    const size_t n = words_out(m);
    float *want = guarded(n), *got = guarded(n);
    run_calls(ref, m, want);
    assert_formula(what, m, want);
    assert_states(m, want);
    for (int i = 0; i < subject_count; i++) {
        char where[128];
        snprintf(where, sizeof where, "%.80s, %s with %d threads", what, subjects[i]->ops->name,
                 subject_threads[i]);
        run_calls(subjects[i], m, got);
        assert_bits(where, got, want, n);
    }
    guarded_free(got, n);
    return want;
}

static void check_case(const struct delta_case *c)
{
    char what[96];
    const struct shape *s = &c->shape;
    snprintf(what, sizeof what, "%d/%d heads of %d, %d, %d taps, %d parts", s->keys, s->values,
             s->key_dim, s->value_dim, s->taps, c->count);
    const struct made m = make(c);
    guarded_free(everywhere(what, &m), words_out(&m));
    unmake(&m);
}

static const struct part one[] = {{0, 1}};
static const struct part two[] = {{1, 2}, {PAD, 1}};
static const struct part mixed[] = {{PAD, 1}, {0, 2},   {PAD, 1}, {1, 3}, {2, 1},
                                    {PAD, 2}, {END, 0}, {2, 1},   {0, 1}, {1, 1},
                                    {END, 0}, {1, 5},   {0, 17}};
static const struct part whole[] = {{2, 70}};
static const struct part beside[] = {{0, 33}, {2, 70}, {PAD, 3}, {1, 1}};
#define PARTS(p) p, ARRAY_LEN(p)

static void test_shapes(void **state UNUSED)
{
    static const struct shape shapes[] = {
        {1, 1, 16, 16, 2},  {2, 4, 32, 48, 4},  {3, 9, 64, 32, 8},   {2, 2, 48, 64, 4},
        {3, 3, 16, 256, 2}, {2, 6, 128, 16, 4}, {1, 3, 256, 48, 8},  {1, 2, 256, 256, 4},
        {3, 6, 64, 128, 3}, {1, 1, 16, 96, 7},  {16, 16, 16, 16, 4}, {16, 48, 32, 32, 4}};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        check_case(&(struct delta_case){shapes[i], PARTS(one), {0}, 3});
        check_case(&(struct delta_case){shapes[i], PARTS(two), {0, 7}, 3});
        check_case(&(struct delta_case){shapes[i], PARTS(mixed), {0, 9, 1}, 3});
    }
    check_case(&(struct delta_case){{16, 32, 128, 128, 4}, PARTS(one), {5}, 3});
    check_case(&(struct delta_case){{16, 32, 128, 128, 4}, PARTS(two), {0}, 3});
}

static void test_long(void **state UNUSED)
{
    static const struct shape shapes[] = {
        {1, 1, 16, 16, 2}, {2, 4, 32, 48, 4}, {3, 9, 64, 32, 8}, {1, 1, 128, 128, 4}};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        check_case(&(struct delta_case){shapes[i], PARTS(whole), {0}, 3});
        check_case(&(struct delta_case){shapes[i], PARTS(beside), {3, 0, 1}, 3});
        /* gates that are all but shut, or open */
        check_case(&(struct delta_case){shapes[i], PARTS(beside), {0}, 60});
    }
    print_message("at most %.2g of the largest from the formulas\n", worst);
}

/* ---- divisions ------------------------------------------------------------------------------- */

/* What is of slot 2 in two results. */
static void assert_same_slot(const char *what, const struct made *m, float *got,
                             const struct made *n, float *want)
{
    enum { SLOT = 2 };
    const struct recurrent_state a = state_in(m, got), b = state_in(n, want);
    assert_int_equal(m->length[SLOT], n->length[SLOT]);
    assert_bits(what, got + (ptrdiff_t)m->at[SLOT] * m->outs,
                want + (ptrdiff_t)n->at[SLOT] * n->outs, (size_t)(m->length[SLOT] * m->outs));
    assert_bits(what, a.matrix + SLOT * m->matrix, b.matrix + SLOT * m->matrix, m->matrix);
    assert_bits(what, a.rows + SLOT * m->before, b.rows + SLOT * m->before, m->before);
}

/* The 70 rows of slot 2 at once, and divided into calls and among others' rows. */
static void check_divided(struct backend *b, const struct shape *shape, int32_t start)
{
    static const struct part first[] = {{2, 1}, {END, 0}, {2, 69}};
    static const struct part halves[] = {{2, 35}, {END, 0}, {2, 35}};
    static const struct part uneven[] = {{2, 2},  {END, 0}, {2, 3}, {END, 0},
                                         {2, 64}, {END, 0}, {2, 1}};
    static const struct part among[] = {{1, 9},   {2, 35}, {PAD, 2}, {0, 16},  {END, 0}, {0, 1},
                                        {PAD, 1}, {2, 17}, {1, 1},   {END, 0}, {2, 18},  {0, 2}};
    struct part single[140];
    for (int32_t i = 0; i < 140; i++)
        single[i] = i % 2 == 0 ? (struct part){2, 1} : (struct part){END, 0};
    const struct delta_case cases[] = {
        {*shape, PARTS(whole), {0, 0, start}, 3},  {*shape, PARTS(first), {0, 0, start}, 3},
        {*shape, PARTS(halves), {0, 0, start}, 3}, {*shape, PARTS(uneven), {0, 0, start}, 3},
        {*shape, PARTS(among), {4, 0, start}, 3},  {*shape, PARTS(single), {0, 0, start}, 3}};
    struct made at_once = make(&cases[0]);
    float *want = guarded(words_out(&at_once));
    run_calls(b, &at_once, want);
    for (size_t i = 1; i < ARRAY_LEN(cases); i++) {
        char what[96];
        const struct made m = make(&cases[i]);
        float *got = guarded(words_out(&m));
        snprintf(what, sizeof what, "%s, divided in way %zu", b->ops->name, i);
        run_calls(b, &m, got);
        assert_same_slot(what, &m, got, &at_once, want);
        guarded_free(got, words_out(&m));
        unmake(&m);
    }
    guarded_free(want, words_out(&at_once));
    unmake(&at_once);
}

static void test_divisions(void **state UNUSED)
{
    static const struct shape shapes[] = {
        {1, 2, 16, 16, 8}, {2, 2, 48, 80, 4}, {1, 1, 128, 32, 2}, {2, 4, 32, 64, 3}};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        for (int s = 0; s <= subject_count; s++)
            for (int32_t start = 0; start < 2; start++)
                check_divided(nth_backend(s), &shapes[i], 3 * start);
}

/* What a row left in another slot is what its own has when the rows end with it, and nothing else
 * is different. */
static void check_kept(struct backend *b, const struct delta_case *c, const struct kept *kept)
{
    struct made m = make(c);
    float *got = guarded(words_out(&m)), *want = guarded(words_out(&m));
    run_calls(b, &m, want);
    m.kept = kept;
    run_calls(b, &m, got);
    assert_same_slot("kept", &m, got, &m, want);
    for (int32_t i = 0; i < 3; i++) {
        const struct part begin = {2, kept[i].row + 1};
        const struct delta_case ends = {c->shape, &begin, 1, {0, 0, c->start[2]}, c->strong};
        const struct made e = make(&ends);
        float *part = guarded(words_out(&e));
        run_calls(b, &e, part);
        const struct recurrent_state is = state_in(&m, got), be = state_in(&e, part);
        const size_t slot = (size_t)kept[i].slot;
        assert_bits("kept", is.matrix + slot * m.matrix, be.matrix + 2 * m.matrix, m.matrix);
        assert_bits("kept", is.rows + slot * m.before, be.rows + 2 * m.before, m.before);
        guarded_free(part, words_out(&e));
        unmake(&e);
    }
    guarded_free(got, words_out(&m));
    guarded_free(want, words_out(&m));
    unmake(&m);
}

static void test_kept(void **state UNUSED)
{
    static const struct shape shapes[] = {
        {1, 2, 16, 16, 8}, {2, 2, 48, 80, 4}, {1, 1, 128, 32, 2}, {2, 4, 32, 64, 3}};
    static const struct part some[] = {{2, 16},  {END, 0}, {PAD, 2}, {2, 1},
                                       {PAD, 1}, {END, 0}, {2, 53}};
    static const struct kept kept[][3] = {
        {{15, 0}, {31, 1}, {68, 3}}, {{0, 3}, {1, 0}, {69, 1}}, {{16, 1}, {17, 3}, {24, 0}}};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        for (int s = 0; s <= subject_count; s++)
            for (size_t k = 0; k < ARRAY_LEN(kept); k++) {
                const struct delta_case at_once = {shapes[i], PARTS(whole), {0, 0, k % 2 * 3}, 3};
                const struct delta_case parts = {shapes[i], PARTS(some), {0, 0, k % 2 * 3}, 3};
                check_kept(nth_backend(s), &at_once, kept[k]);
                check_kept(nth_backend(s), &parts, kept[k]);
            }
}

/* More threads than cores, and than there is work. */
static void test_threads(void **state UNUSED)
{
    static const struct shape shapes[] = {{2, 4, 32, 48, 4}, {4, 8, 64, 128, 4}, {1, 1, 16, 16, 2}};
    struct backend *b = NULL;
    ok(backend_open("cpu", 4, &b, &err));
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        for (int repeat = 0; repeat < 4; repeat++) {
            const struct delta_case c = {shapes[i], PARTS(beside), {3, 0, 1}, 3};
            const struct made m = make(&c);
            const size_t n = words_out(&m);
            float *want = guarded(n), *got = guarded(n);
            run_calls(ref, &m, want);
            run_calls(b, &m, got);
            assert_bits("4 threads", got, want, n);
            guarded_free(want, n);
            guarded_free(got, n);
            unmake(&m);
        }
    backend_close(b);
}

/* ---- parts of it ----------------------------------------------------------------------------- */

/* Every float on a grid from -130 to 130, and some on both sides of where something begins. */
static void test_softplus(void **state UNUSED)
{
    double most = 0;
    for (int32_t i = -130 * 4096; i <= 130 * 4096; i++) {
        const float x = (float)i / 4096;
        const double want = x > 20 ? (double)x : log1p(exp((double)x)), got = numerics_softplus(x);
        if (x < NUMERICS_EXP_LOW) {
            assert_true(got == 0);
            continue;
        }
        most = fmax(most, fabs(got - want) / want);
        if (x > 20)
            assert_true(got == (double)x);
    }
    print_message("softplus: at most %.3g of itself off\n", most);
    assert_true(most < 3 * 0x1p-23);
    assert_true(isnan(numerics_softplus(NAN)));
    assert_true(numerics_softplus(INFINITY) == INFINITY && numerics_softplus(-INFINITY) == 0);
    assert_true(numerics_softplus(FLT_MAX) == FLT_MAX);
    assert_true(numerics_decay(0, -INFINITY, 0) == 1 && numerics_decay(0, 100, 0) == 0);
}

static void gate_case(struct backend *b, const void *arg, float *out)
{
    const int32_t *shape = arg, n = shape[0] * shape[1];
    float *x = generated(31, (size_t)n);
    for (int32_t i = 0; i < n; i++) {
        out[i] = gen(32, (size_t)i);
        x[i] *= i % 7 == 0 ? 200 : 9;
    }
    ok(backend_gate(b, view_f32(out, shape[0], shape[1]),
                    (struct cview){x, DTYPE_F32, shape[0], shape[1]}, &err));
    for (int32_t i = 0; i < n; i++) {
        const double want = (double)gen(32, (size_t)i) * sigmoid((double)x[i]);
        if (!(fabs((double)out[i] - want) <= 3e-7 * fabs(want) + 1e-37))
            fail_msg("gate: element %d is %.9g, not %.9g", i, (double)out[i], want);
    }
    guarded_free(x, (size_t)n);
}

static void test_gate(void **state UNUSED)
{
    static const int32_t shapes[][2] = {{1, 1}, {3, 100}, {70, 16}, {2, 4096}, {0, 8}, {8, 0}};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        run_case("gate", gate_case, shapes[i], (size_t)(shapes[i][0] * shapes[i][1]), 0, 0);
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* What can be wrong with a call of two rows. */
struct wrong {
    const char *what;
    struct shape shape;
    int32_t a_cols, gate_cols, out_cols, count; /* more than right */
    int without; /* bit 0: conv, 1: gain, 2: decay, 3: its bias, 4: matrix, 5: rows, 6: slots */
    bool joined, typed; /* out lies in a; gates are bf16 */
};

static enum status ask(struct backend *b, const struct wrong *w)
{
    static float words[3 * 1024], zeros[1024];
    static const int32_t slot[3] = {0, 0, 0}, position[3] = {0, 1, 2};
    const struct shape *s = &w->shape;
    const struct recurrent_heads h = {s->keys, s->values, s->key_dim, s->value_dim, s->taps};
    const int without = w->without, outs = s->values * s->value_dim + w->out_cols;
    const struct recurrent_rules rules = {without & 1 ? NULL : zeros, without & 4 ? NULL : zeros,
                                          without & 8 ? NULL : zeros, without & 2 ? NULL : zeros,
                                          EPS};
    const struct recurrent_state state = {without & 16 ? NULL : words + 2048,
                                          without & 32 ? NULL : words + 2560, NULL};
    const struct rows rows = {
        .count = 2 + w->count, .slot = without & 64 ? NULL : slot, .position = position};
    const int32_t cols = backend_channels(&h) + s->values * s->value_dim + w->a_cols;
    const struct cview gates = {zeros, w->typed ? DTYPE_BF16 : DTYPE_F32, 2,
                                2 * s->values + w->gate_cols};
    return backend_delta_rule(b, view_f32(w->joined ? words + 16 : words + 1024, 2, outs),
                              view_f32(words, 2, cols), gates, &h, &rules, &rows, &state, &err);
}

static void test_arguments(void **state UNUSED)
{
    static const struct wrong right[] = {
        {"right", {1, 2, 16, 16, 2}, 0, 0, 0, 0, 0, false, false},
        {"no heads", {0, 0, 16, 16, 2}, 0, 0, 0, 0, 63, false, false}};
    static const struct wrong cases[] = {{"keys", {2, 3, 16, 16, 2}, .a_cols = 0},
                                         {"no keys", {0, 1, 16, 16, 2}, .a_cols = 0},
                                         {"no values", {1, 0, 16, 16, 2}, .a_cols = 0},
                                         {"key_dim", {1, 1, 24, 16, 2}, .a_cols = 0},
                                         {"key_dim 0", {1, 1, 0, 16, 2}, .a_cols = 0},
                                         {"value_dim", {1, 1, 16, 8, 2}, .a_cols = 0},
                                         {"large", {1, 1, 16, 272, 2}, .a_cols = 0},
                                         {"one tap", {1, 1, 16, 16, 1}, .a_cols = 0},
                                         {"nine taps", {1, 1, 16, 16, 9}, .a_cols = 0},
                                         {"a", {1, 2, 16, 16, 2}, .a_cols = 1},
                                         {"gates", {1, 2, 16, 16, 2}, .gate_cols = -1},
                                         {"out", {1, 2, 16, 16, 2}, .out_cols = 16},
                                         {"rows", {1, 2, 16, 16, 2}, .count = 1},
                                         {"joined", {1, 2, 16, 16, 2}, .joined = true},
                                         {"typed", {1, 2, 16, 16, 2}, .typed = true}};
    for (int i = 0; i < subject_count; i++) {
        for (size_t c = 0; c < ARRAY_LEN(right); c++)
            ok(ask(subjects[i], &right[c]));
        for (size_t c = 0; c < ARRAY_LEN(cases); c++)
            if (ask(subjects[i], &cases[c]) != ERR_INTERNAL)
                fail_msg("not refused: %s", cases[c].what);
        for (int bit = 0; bit < 7; bit++) {
            struct wrong w = right[0];
            w.without = 1 << bit;
            assert_int_equal(ask(subjects[i], &w), ERR_INTERNAL);
        }
    }
    float x[8] = {0}, y[8] = {0};
    const struct cview in = {x, DTYPE_F32, 2, 4};
    ok(backend_gate(ref, view_f32(y, 2, 4), in, &err));
    assert_int_equal(backend_gate(ref, view_f32(y, 2, 3), in, &err), ERR_INTERNAL);
    assert_int_equal(backend_gate(ref, view_f32(x, 2, 4), in, &err), ERR_INTERNAL);
    assert_int_equal(backend_gate(ref, view_f32(y, 1, 4), in, &err), ERR_INTERNAL);
}

/* No device yet: what it lacks it would fail for. */
static int open_without_device(void **state)
{
    setenv("TEST_WITHOUT_DEVICE", program_invocation_short_name, 1);
    return open_subjects(state);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),    cmocka_unit_test(test_long),
        cmocka_unit_test(test_divisions), cmocka_unit_test(test_kept),
        cmocka_unit_test(test_threads),   cmocka_unit_test(test_softplus),
        cmocka_unit_test(test_gate),      cmocka_unit_test(test_arguments)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_without_device, close_subjects);
}
