/* DESIGN: layers that recur on a device: results and states against ref, and against themselves to
 * the bit, however rows are divided into steps and whatever the host knows of them, which chooses
 * other kernels. One row of each case is kept in the last slot, too. A row's inputs come from its
 * slot and position. A slot that begins has NaN where its state will be, and padding has it
 * everywhere.
 */
#include "tests/only.h"
#include "tests/subjects.h"

#define ROWS_MAX 160
#define SLOTS 6 /* the last one has no rows */
#define EPS 1e-6f

/* Rows of a slot that stand together, the first at this position; slot -1: padding. */
struct run {
    int32_t slot, start, rows;
};

struct recurrent_case {
    int32_t keys, values, key_dim, value_dim, taps;
    const struct run *runs;
    int32_t count;
    enum dtype out;
    float strong; /* factor of gates; 0: 3 */
};

static const struct run one[] = {{0, 0, 1}};
static const struct run decodes[] = {{3, 9, 1}, {-1, 0, 1}, {0, 0, 1}, {1, 1, 1}, {-1, 0, 2}};
static const struct run mixed[] = {{-1, 0, 1}, {2, 0, 7}, {0, 5, 8}, {-1, 0, 1},
                                   {4, 30, 1}, {1, 2, 9}, {3, 0, 2}};
static const struct run chunk[] = {{1, 0, 70}};
static const struct run chunks[] = {{2, 0, 33}, {0, 40, 64}, {4, 3, 1},
                                    {3, 0, 1},  {-1, 0, 2},  {1, 1, 17}};
static const struct run later[] = {{0, 11, 65}, {1, 0, 16}};
#define RUNS(r) r, ARRAY_LEN(r)

struct scene {
    const struct recurrent_case *c;
    struct recurrent_heads heads;
    struct recurrent_rules rules;
    int32_t n, slot[ROWS_MAX], position[ROWS_MAX], keep[ROWS_MAX], channels, cols, outs;
    float *conv, *decay, *bias, *gain;
    size_t matrix, kept; /* words of a slot */
    bool begins[SLOTS];
};

/* Another row than the case before. */
static void keep_one(struct scene *s)
{
    static int32_t turn;
    int32_t t = turn++ * 5 % s->n;
    while (s->slot[t] < 0)
        t = (t + 1) % s->n;
    s->keep[t] = SLOTS - 1;
}

static struct scene scene_of(const struct recurrent_case *c)
{
    struct scene s = {.c = c};
    s.heads = (struct recurrent_heads){c->keys, c->values, c->key_dim, c->value_dim, c->taps};
    s.channels = backend_channels(&s.heads);
    s.outs = c->values * c->value_dim;
    s.cols = s.channels + s.outs;
    s.conv = generated(2, (size_t)(s.channels * c->taps));
    s.decay = generated(3, (size_t)c->values);
    s.bias = generated(4, (size_t)c->values);
    s.gain = generated(5, (size_t)c->value_dim);
    s.rules = (struct recurrent_rules){s.conv, s.decay, s.bias, s.gain, EPS};
    s.matrix = (size_t)(c->values * c->key_dim * c->value_dim);
    s.kept = (size_t)((c->taps - 1) * s.channels);
    for (int32_t i = 0; i < c->count; i++) {
        const struct run *r = &c->runs[i];
        if (r->slot >= 0)
            s.begins[r->slot] = r->start == 0;
        for (int32_t k = 0; k < r->rows; k++, s.n++) {
            s.slot[s.n] = r->slot;
            s.position[s.n] = r->slot < 0 ? 1 << 30 : r->start + k;
            s.keep[s.n] = -1;
        }
    }
    keep_one(&s);
    return s;
}

static void scene_close(const struct scene *s)
{
    guarded_free(s->conv, (size_t)(s->channels * s->c->taps));
    guarded_free(s->decay, (size_t)s->c->values);
    guarded_free(s->bias, (size_t)s->c->values);
    guarded_free(s->gain, (size_t)s->c->value_dim);
}

static size_t results_of(const struct scene *s)
{
    return (size_t)s->n * (size_t)s->outs;
}

static size_t words_of(const struct scene *s)
{
    return results_of(s) + SLOTS * (s->matrix + s->kept);
}

/* [results | states | rows before] */
static struct recurrent_state state_in(const struct scene *s, float *out)
{
    float *matrix = out + results_of(s);
    return (struct recurrent_state){matrix, matrix + SLOTS * s->matrix, NULL};
}

static void state_init(const struct scene *s, float *out)
{
    const struct recurrent_state state = state_in(s, out);
    for (size_t slot = 0; slot < SLOTS; slot++) {
        for (size_t i = 0; i < s->matrix; i++)
            state.matrix[slot * s->matrix + i] = s->begins[slot] ? NAN : gen(20 + slot, i);
        for (size_t i = 0; i < s->kept; i++)
            state.rows[slot * s->kept + i] = s->begins[slot] ? NAN : gen(30 + slot, i);
    }
}

/* Rows [first, first + n) of the scene as a step. knows: the host does, what it can. */
static void run_step(struct backend *b, const struct scene *s, int32_t first, int32_t n, bool knows,
                     float *out)
{
    const int32_t pairs = 2 * s->c->values;
    const enum dtype type = b == ref ? DTYPE_F32 : s->c->out;
    const size_t words = (size_t)(n * s->outs);
    float *a = guarded((size_t)(n * s->cols)), *gates = guarded((size_t)(n * pairs));
    unsigned char *y = aligned_bytes(words * 4, 0x5a);
    struct rows rows = {.count = n, .slot = s->slot + first, .position = s->position + first};
    struct recurrent_state state = state_in(s, out);
    state.keep = s->keep + first;
    for (int32_t t = 0; t < n; t++) {
        const bool pad = rows.slot[t] < 0;
        const uint64_t seed = (uint64_t)(1000 * (rows.slot[t] + 1)) + (uint64_t)rows.position[t];
        for (int32_t i = 0; i < s->cols; i++)
            a[t * s->cols + i] = pad ? NAN : 2 * gen(seed, (size_t)i);
        for (int32_t i = 0; i < pairs; i++)
            gates[t * pairs + i] =
                pad ? NAN : (s->c->strong > 0 ? s->c->strong : 3) * gen(~seed, (size_t)i);
    }
    const int32_t *slot = rows.slot;
    while (knows && rows.head + 1 < n && slot[rows.head] >= 0 &&
           (slot[rows.head] == slot[rows.head + 1] ||
            (rows.head > 0 && slot[rows.head] == slot[rows.head - 1])))
        rows.head++;
    while (knows && rows.head + rows.tail + 1 < n && slot[n - 1 - rows.tail] >= 0 &&
           (slot[n - 1 - rows.tail] == slot[n - 2 - rows.tail] ||
            (rows.tail > 0 && slot[n - 1 - rows.tail] == slot[n - rows.tail])))
        rows.tail++;
    ok(backend_delta_rule(b, (struct view){y, type, n, s->outs}, view_f32(a, n, s->cols),
                          (struct cview){gates, DTYPE_F32, n, pairs}, &s->heads, &s->rules, &rows,
                          &state, &err));
    for (size_t i = 0; i < words; i++)
        out[(size_t)(first * s->outs) + i] = dtype_load(y, type, i);
    assert_int_equal(y[words * dtype_size(type)], 0x5a);
    free(y);
    guarded_free(a, (size_t)(n * s->cols));
    guarded_free(gates, (size_t)(n * pairs));
}

/* All rows, up to `most` in a step. */
static float *run_steps(struct backend *b, const struct scene *s, int32_t most, bool knows)
{
    float *out = guarded(words_of(s));
    state_init(s, out);
    for (int32_t t = 0; t < s->n; t += most)
        run_step(b, s, t, s->n - t < most ? s->n - t : most, knows, out);
    return out;
}

static void assert_same(const char *what, const struct scene *s, const float *want, float *got)
{
    assert_bits(what, got, want, words_of(s));
    guarded_free(got, words_of(s));
}

static void check_case(const struct recurrent_case *c)
{
    char what[160];
    const struct scene s = scene_of(c);
    const size_t results = results_of(&s), states = SLOTS * s.matrix;
    const double eps = c->out == DTYPE_F32 ? 1e-5 : c->out == DTYPE_F16 ? 0x1p-10 : 0x1p-7;
    float *want = run_steps(ref, &s, s.n, true);
    for (int i = subject_count + 1; nth_backend(i) != NULL; i++) {
        struct backend *b = nth_backend(i);
        float *got = run_steps(b, &s, s.n, true);
        snprintf(what, sizeof what, "%s: %d/%d heads of %d/%d, %d taps, %d rows to %s",
                 b->ops->name, c->keys, c->values, c->key_dim, c->value_dim, c->taps, s.n,
                 dtype_name(c->out));
        assert_near(what, got, want, results, 2e-5, eps);
        assert_near(what, got + results, want + results, states, 5e-6, 2e-6);
        assert_bits(what, got + results + states, want + results + states, SLOTS * s.kept);
        assert_same("without what the host knows", &s, got, run_steps(b, &s, s.n, false));
        assert_same("one by one", &s, got, run_steps(b, &s, 1, true));
        assert_same("eleven at a time", &s, got, run_steps(b, &s, 11, false));
        guarded_free(got, words_of(&s));
    }
    guarded_free(want, words_of(&s));
    scene_close(&s);
}

#define F32 DTYPE_F32
#define F16 DTYPE_F16
#define BF16 DTYPE_BF16

static void check_all(const struct recurrent_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++)
        check_case(&cases[i]);
}

static void test_decodes(void **state UNUSED)
{
    static const struct recurrent_case cases[] = {{1, 1, 16, 16, 4, RUNS(one), .out = F32},
                                                  {2, 4, 128, 128, 4, RUNS(decodes), .out = F32},
                                                  {16, 32, 16, 16, 4, RUNS(decodes), .out = F32},
                                                  {1, 3, 128, 128, 4, RUNS(decodes), .out = BF16},
                                                  {2, 2, 64, 128, 2, RUNS(decodes), .out = F16},
                                                  {3, 6, 32, 48, 8, RUNS(decodes), .out = F32},
                                                  {1, 1, 256, 256, 5, RUNS(decodes), .out = F32},
                                                  {1, 2, 256, 16, 3, RUNS(decodes), .out = BF16},
                                                  {2, 2, 16, 256, 7, RUNS(decodes), .out = F16},
                                                  {0, 0, 16, 16, 4, RUNS(decodes), .out = F32}};
    check_all(cases, ARRAY_LEN(cases));
}

/* Short runs beside each other. */
static void test_mixed(void **state UNUSED)
{
    static const struct recurrent_case cases[] = {
        {1, 2, 128, 128, 4, RUNS(mixed), .out = F32},
        {2, 6, 16, 16, 2, RUNS(mixed), .out = F32},
        {3, 3, 48, 80, 6, RUNS(mixed), .out = BF16},
        {1, 1, 144, 112, 4, RUNS(mixed), .out = F32},
        {1, 2, 96, 144, 3, RUNS(mixed), .out = F16},
        {2, 2, 208, 32, 8, RUNS(mixed), .out = F32},
        {1, 1, 240, 240, 4, RUNS(mixed), .out = F32},
        {5, 5, 80, 64, 5, RUNS(mixed), .out = F32},
        {4, 8, 32, 96, 7, RUNS(mixed), .out = F32, .strong = 60}};
    check_all(cases, ARRAY_LEN(cases));
}

/* Chunks of prompts, whose results are normed apart. */
static void test_chunks(void **state UNUSED)
{
    static const struct recurrent_case cases[] = {
        {1, 2, 128, 128, 4, RUNS(chunk), .out = F32},
        {1, 1, 128, 128, 4, RUNS(later), .out = BF16},
        {1, 1, 128, 128, 4, RUNS(chunks), .out = F32},
        {2, 4, 32, 32, 2, RUNS(chunks), .out = F32},
        {1, 3, 64, 80, 3, RUNS(chunks), .out = F16},
        {1, 1, 16, 112, 8, RUNS(later), .out = F32},
        {1, 1, 48, 160, 5, RUNS(chunks), .out = F32},
        {1, 1, 256, 64, 6, RUNS(chunk), .out = F32},
        {1, 2, 16, 256, 7, RUNS(later), .out = BF16},
        {1, 1, 128, 128, 4, RUNS(later), .out = F32, .strong = 60}};
    check_all(cases, ARRAY_LEN(cases));
}

/* ---- recordings ---- */

/* What a recorded step reads and writes on the device: a copy of an array of the host. */
static void *copied(struct backend *b, const void *host, size_t words)
{
    void *p = must(b->ops->alloc(b, words * 4));
    b->ops->upload(b, p, host, words * 4);
    return p;
}

struct recorded {
    struct scene s;
    int32_t *slot, *position, *keep; /* on the device, as all but `fills`, */
    float *a, *gates, *y;
    float *kept, *fills; /* states, and what they begin with */
    struct recurrent_rules rules;
};

static void call(struct backend *b, const struct recorded *x)
{
    const struct scene *s = &x->s;
    const struct rows rows = {.count = s->n, .slot = x->slot, .position = x->position};
    const struct recurrent_state state = {x->kept, x->kept + SLOTS * s->matrix, x->keep};
    ok(backend_delta_rule(b, view_f32(x->y, s->n, s->outs), view_f32(x->a, s->n, s->cols),
                          (struct cview){x->gates, DTYPE_F32, s->n, 2 * s->c->values}, &s->heads,
                          &x->rules, &rows, &state, &err));
}

/* The step of the scene's rows as they are now, replayed or, without a recording, run. */
static float *run_recorded(struct backend *b, const struct recorded *x, const struct recording *r)
{
    const struct scene *s = &x->s;
    const size_t n = (size_t)s->n, words = words_of(s), states = words - results_of(s);
    float *out = guarded(words), *a = generated(91, n * (size_t)s->cols);
    b->ops->upload(b, x->slot, s->slot, n * 4);
    b->ops->upload(b, x->position, s->position, n * 4);
    b->ops->upload(b, x->keep, s->keep, n * 4);
    b->ops->upload(b, x->a, a, n * (size_t)s->cols * 4);
    b->ops->upload(b, x->kept, x->fills, states * 4);
    if (r != NULL)
        b->ops->replay(b, r);
    else
        call(b, x);
    ok(b->ops->download(b, out, x->y, results_of(s) * 4, &err));
    ok(b->ops->download(b, out + results_of(s), x->kept, states * 4, &err));
    guarded_free(a, n * (size_t)s->cols);
    return out;
}

/* A replay finds the runs that there are then. */
static void recorded_case(struct backend *b, const struct recurrent_case *c)
{
    static const int32_t slots[][9] = {
        {0, 1, 2, 3, 4, -1, -1, -1, -1}, {3, 3, 3, -1, 0, 0, 2, 4, 4}, {1, 1, 1, 1, 1, 1, 1, 1, 1}};
    struct recorded x = {.s = scene_of(c)};
    struct scene *s = &x.s;
    const size_t states = words_of(s) - results_of(s), V = (size_t)c->values;
    x.fills = generated(92, states);
    float *words = generated(93, (size_t)(s->n * s->cols));
    x.slot = copied(b, s->slot, (size_t)s->n);
    x.position = copied(b, s->position, (size_t)s->n);
    x.keep = copied(b, s->keep, (size_t)s->n);
    x.a = copied(b, words, (size_t)(s->n * s->cols));
    x.gates = copied(b, words, (size_t)s->n * 2 * V);
    x.y = copied(b, words, results_of(s));
    x.kept = copied(b, x.fills, states);
    x.rules = (struct recurrent_rules){copied(b, s->conv, (size_t)(s->channels * c->taps)),
                                       copied(b, s->decay, V), copied(b, s->bias, V),
                                       copied(b, s->gain, (size_t)c->value_dim), EPS};
    guarded_free(run_recorded(b, &x, NULL), words_of(s));
    assert_true(b->ops->record(b));
    call(b, &x);
    struct recording *r = must(b->ops->record_end(b));
    for (size_t i = 0; i < ARRAY_LEN(slots); i++) {
        for (int32_t t = 0; t < s->n; t++) {
            s->slot[t] = slots[i][t];
            s->position[t] = t > 0 && s->slot[t] == s->slot[t - 1] ? s->position[t - 1] + 1
                                                                   : (int32_t)i * s->slot[t];
            s->keep[t] = t == (int32_t)i ? SLOTS - 1 : -1;
        }
        float *want = run_recorded(b, &x, NULL);
        assert_same("replayed", s, want, run_recorded(b, &x, r));
        guarded_free(want, words_of(s));
    }
    b->ops->recording_close(r);
    void *const arrays[] = {x.slot, x.position, x.keep, x.a, x.gates, x.y, x.kept};
    for (size_t i = 0; i < ARRAY_LEN(arrays); i++)
        b->ops->free(b, arrays[i]);
    const float *const rules[] = {x.rules.conv, x.rules.decay, x.rules.decay_bias, x.rules.gain};
    for (size_t i = 0; i < ARRAY_LEN(rules); i++)
        b->ops->free(b, (void *)(uintptr_t)rules[i]);
    guarded_free(x.fills, states);
    guarded_free(words, (size_t)(s->n * s->cols));
    scene_close(s);
}

static void test_recorded(void **state UNUSED)
{
    static const struct run nine[] = {{0, 4, 9}};
    static const struct recurrent_case cases[] = {{2, 4, 32, 48, 4, RUNS(nine), .out = DTYPE_F32},
                                                  {1, 2, 16, 144, 3, RUNS(nine), .out = DTYPE_F32}};
    for (int i = subject_count + 1; nth_backend(i) != NULL; i++)
        for (size_t k = 0; k < ARRAY_LEN(cases); k++)
            recorded_case(staged_of(nth_backend(i))->inner, &cases[k]);
}

/* ---- the gate ---- */

struct gate_case {
    int32_t rows, cols;
    enum dtype y;
    int32_t skip; /* words that y and x begin at */
};

static void gate_case(struct backend *b, const struct gate_case *c, float *out)
{
    const enum dtype type = b == ref ? F32 : c->y;
    const size_t n = (size_t)c->rows * (size_t)c->cols;
    unsigned char *y = aligned_bytes((n + 4) * 4, 0x5a);
    float *x = generated(81, n + 4);
    unsigned char *at = y + (size_t)c->skip * dtype_size(type);
    for (size_t i = 0; i < n; i++)
        dtype_store(at, c->y, i, 3 * gen(82, i));
    for (size_t i = 0; i < n; i++)
        out[i] = dtype_load(at, c->y, i);
    for (size_t i = 0; i < n; i++)
        dtype_store(at, type, i, out[i]);
    for (size_t i = 0; i < n + 4; i++)
        x[i] = i % 7 == 3 ? x[i] * 200 : x[i] * 8;
    ok(backend_gate(b, (struct view){at, type, c->rows, c->cols},
                    (struct cview){x + c->skip, F32, c->rows, c->cols}, &err));
    for (size_t i = 0; i < n; i++)
        out[i] = dtype_load(at, type, i);
    assert_int_equal(at[n * dtype_size(type)], 0x5a);
    guarded_free(x, n + 4);
    free(y);
}

static void test_gate(void **state UNUSED)
{
    static const struct gate_case cases[] = {
        {1, 4096, F32, 0}, {3, 512, BF16, 0}, {5, 77, F32, 1},   {2, 33, F16, 0},  {7, 1, BF16, 1},
        {0, 16, F32, 0},   {2, 0, F32, 0},    {300, 64, F16, 0}, {1, 2050, F32, 3}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct gate_case *c = &cases[i];
        const size_t n = (size_t)c->rows * (size_t)c->cols;
        float *want = guarded(n), *got = guarded(n);
        char what[80];
        snprintf(what, sizeof what, "gate of %d rows of %d in %s", c->rows, c->cols,
                 dtype_name(c->y));
        gate_case(ref, c, want);
        for (int k = subject_count + 1; nth_backend(k) != NULL; k++) {
            gate_case(nth_backend(k), c, got);
            assert_near(what, got, want, n, 1e-6,
                        c->y == F32   ? 1e-6
                        : c->y == F16 ? 0x1p-11
                                      : 0x1p-8);
        }
        guarded_free(want, n);
        guarded_free(got, n);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decodes), cmocka_unit_test(test_mixed), cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_recorded), cmocka_unit_test(test_gate)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_invariant_too, close_subjects);
}
