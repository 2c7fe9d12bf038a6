/* Rows that an op has rounded for the product behind it: products of them are those of rows that a
 * product rounds itself, to the last bit, whatever has happened to them in between; and it is one
 * launch less. On the device of a CUDA module beside the test. */
#include "tests/emulate/calls.h"
#include "tests/only.h"
#include "tests/subjects.h"

enum { ROWS = 37, IN = 72, OUT = 21, WIDE = 2 * IN };

/* On the device. */
static struct {
    struct backend *b;
    emulated_calls_fn *count; /* NULL: a real one */
    float *x, *wide, *narrow, *gain, *rows, *same, *y;
    void *storage;
    struct weight *w;
} on;

static struct view view(float *data, int32_t rows, int32_t cols)
{
    return view_f32(data, rows, cols);
}

static void fill(float *to, uint64_t seed, size_t n)
{
    float *from = generated(seed, n);
    on.b->ops->upload(on.b, to, from, n * sizeof *from);
    guarded_free(from, n);
}

static uint64_t launches(void)
{
    struct emulated_calls calls = {0};
    if (on.count)
        on.count(&calls);
    return calls.launches;
}

static void multiply(float *y, float *x, int32_t rows)
{
    ok(backend_linear(on.b, view(y, rows, OUT), cview_of(view(x, rows, IN)), on.w, &err));
}

/* The product of the first rows; ready: they are rounded. */
static void expect_product(const char *what, int32_t rows, bool ready)
{
    const size_t n = (size_t)rows * OUT;
    float *got = guarded(n), *want = guarded(n);
    const uint64_t before = launches();
    multiply(on.y, on.rows, rows);
    const uint64_t now = launches();
    ok(on.b->ops->download(on.b, got, on.y, n * sizeof *got, &err));
    on.b->ops->copy(on.b, on.same, IN, on.rows, IN, rows, IN);
    const uint64_t again = launches();
    multiply(on.y, on.same, rows);
    if (on.count && launches() - again != now - before + ready)
        fail_msg("%s: rows %s rounded again", what, ready ? "are" : "are not");
    ok(on.b->ops->download(on.b, want, on.y, n * sizeof *want, &err));
    assert_bits(what, got, want, n);
    guarded_free(got, n);
    guarded_free(want, n);
}

static void norm(uint64_t seed)
{
    fill(on.x, seed, ROWS * IN);
    ok(backend_rmsnorm(on.b, view(on.rows, ROWS, IN), cview_of(view(on.x, ROWS, IN)), on.gain,
                       1e-5f, &err));
}

static void activate(enum activation act, bool narrow)
{
    const struct cview wide = {on.wide, DTYPE_F32, ROWS, WIDE};
    const struct cview gu = {on.narrow, DTYPE_BF16, ROWS, WIDE};
    ok(backend_act_mul(on.b, view(on.rows, ROWS, IN), narrow ? gu : wide, act, &err));
}

/* What a product in 16 bits might have given. */
static void fill_narrow(void)
{
    static uint16_t from[ROWS * WIDE];
    for (size_t i = 0; i < ROWS * WIDE; i++)
        dtype_store(from, DTYPE_BF16, i, gen(4, i));
    on.b->ops->upload(on.b, on.narrow, from, sizeof from);
}

static void open_all(struct backend *b, enum dtype dtype)
{
    const struct weight_spec spec = {
        .out = OUT, .in = IN, .leaves = 1, .dtype = dtype, .cut = {0, IN}};
    const size_t n = OUT * IN;
    float *values = generated(5, n);
    on.b = b;
    on.count = emulated_calls_of((const void *)b->ops);
    on.x = must(b->ops->alloc(b, ROWS * IN * sizeof(float)));
    on.wide = must(b->ops->alloc(b, ROWS * WIDE * sizeof(float)));
    on.narrow = must(b->ops->alloc(b, ROWS * WIDE * sizeof(uint16_t)));
    on.gain = must(b->ops->alloc(b, IN * sizeof(float)));
    on.rows = must(b->ops->alloc(b, ROWS * IN * sizeof(float)));
    on.same = must(b->ops->alloc(b, ROWS * IN * sizeof(float)));
    on.y = must(b->ops->alloc(b, ROWS * OUT * sizeof(float)));
    on.storage = must(b->ops->alloc(b, b->ops->weight_bytes(&spec)));
    on.w = must(b->ops->weight_open(b, &spec, on.storage));
    b->ops->weight_put(on.w, 0, OUT, values, DTYPE_F32, IN * sizeof(float));
    guarded_free(values, n);
    fill(on.wide, 2, ROWS * WIDE);
    fill_narrow();
    fill(on.gain, 3, IN);
    ok(backend_reserve(b, ROWS, IN, OUT, &err));
}

static void close_all(void)
{
    struct backend *b = on.b;
    float *const all[] = {on.x, on.wide, on.narrow, on.gain, on.rows, on.same, on.y, on.storage};
    b->ops->weight_close(on.w);
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        b->ops->free(b, all[i]);
}

/* What changes rows that are rounded. */
static void expect_changes(void)
{
    norm(11);
    fill(on.rows, 12, ROWS * IN);
    expect_product("after an upload", ROWS, false);
    norm(13);
    ok(backend_scale(on.b, view(on.rows, ROWS, IN), cview_of(view(on.rows, ROWS, IN)), 3, &err));
    expect_product("after a scale", ROWS, false);
    norm(14);
    on.b->ops->copy(on.b, on.rows + 3, IN, NULL, 0, ROWS, 5);
    expect_product("after a copy", ROWS, false);
    norm(15);
    multiply(on.rows, on.rows + 20 * IN, 17); /* y lies in what was rounded */
    expect_product("after a product", ROWS, false);
    norm(16);
    on.b->ops->free(on.b, on.rows);
    on.rows = must(on.b->ops->alloc(on.b, ROWS * IN * sizeof(float)));
    expect_product("of new memory", ROWS, false);
}

static void expect_ready(void)
{
    norm(21);
    expect_product("of a norm", ROWS, true);
    norm(22);
    multiply(on.y, on.rows, ROWS);
    expect_product("once more", ROWS, true);
    norm(23);
    expect_product("of the first rows", 20, true);
    norm(24);
    expect_product("of few rows", 3, false);
    for (int act = ACT_SILU; act <= ACT_SWIGLU_PAIRS; act++) {
        activate((enum activation)act, false);
        expect_product("of an activation", ROWS, true);
        activate((enum activation)act, true);
        expect_product("of an activation of 16 bits", ROWS, true);
    }
    ok(backend_add_rmsnorm(on.b, view(on.rows, ROWS, IN), view(on.x, ROWS, IN),
                           cview_of(view(on.wide, ROWS, IN)), on.gain, 1e-5f, &err));
    expect_product("of a norm of a sum", ROWS, true);
}

/* What is recorded does not begin with what was rounded before, nor leave anything. */
static void expect_recorded(void)
{
    norm(31);
    if (!on.b->ops->record(on.b))
        return;
    multiply(on.y, on.rows, ROWS);
    ok(backend_rmsnorm(on.b, view(on.rows, ROWS, IN), cview_of(view(on.x, ROWS, IN)), on.gain,
                       1e-5f, &err));
    struct recording *r = must(on.b->ops->record_end(on.b));
    expect_product("behind a recording", ROWS, false);
    fill(on.x, 32, ROWS * IN);
    on.b->ops->replay(on.b, r);
    expect_product("behind a replay", ROWS, false);
    fill(on.rows, 33, ROWS * IN);
    const size_t n = ROWS * OUT;
    float *got = guarded(n), *want = guarded(n);
    multiply(on.y, on.rows, ROWS);
    ok(on.b->ops->download(on.b, want, on.y, n * sizeof *want, &err));
    activate(ACT_SILU, false); /* other rows are in its place */
    multiply(on.y, on.rows, ROWS);
    fill(on.rows, 33, ROWS * IN);
    on.b->ops->replay(on.b, r);
    ok(on.b->ops->download(on.b, got, on.y, n * sizeof *got, &err));
    assert_bits("of a replay", got, want, n);
    on.b->ops->recording_close(r);
    guarded_free(got, n);
    guarded_free(want, n);
}

static void test_rounded_rows(void **state)
{
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct backend *b = NULL;
        if (backend_open("cuda", 1, &b, &err) != OK) {
            print_message("skipped: %s\n", err.text);
            skip();
        }
        open_all(b, types[i]);
        norm(1);
        expect_product("the first one", ROWS, false); /* nobody knows yet */
        expect_ready();
        expect_changes();
        expect_recorded();
        close_all();
        backend_close(b);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rounded_rows)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
