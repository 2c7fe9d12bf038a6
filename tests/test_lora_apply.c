/* What adapters add: against a plain loop in double, in every cut of a tensor the same bits, with
 * one rounding however many there are, and nothing that is not finite; and what of it comes out of
 * a checkpoint, in whichever form. How they are opened: tests/test_lora.c. */
#include "tests/adapter_files.h"
#include "tests/toy_plan.h"
#include "weights/checkpoint.h"
#include "weights/lora.h"
#include "weights/shard.h"

#include <float.h>
#include <math.h>

static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
static const int64_t shapes[][2] = {{1, 1},  {1, 70},   {70, 1},  {5, 64},
                                    {3, 65}, {13, 129}, {40, 200}};
static const int32_t ranks[] = {1, 3, 4, 5, 16, 33};
#define CASES (ARRAY_LEN(shapes) * ARRAY_LEN(ranks))
#define ELEMENTS_MAX (40 * 200)

static struct lora *must_open(const char *list)
{
    struct lora *l = NULL;
    struct err err = {{0}};
    if (lora_open(list, &l, &err) != OK)
        fail_msg("%s: %s", list, err.text);
    return l;
}

static void must_add(const struct lora *l, const char *tensor, enum dtype dtype, struct span rows,
                     struct span cols, void *values)
{
    struct err err = {{0}};
    if (lora_apply(l, tensor, dtype, rows, cols, values, dtype, values, &err) != OK)
        fail_msg("%s: %s", tensor, err.text);
}

/* ---- many linears ---- */

static uint32_t draws = 1;

static uint32_t draw(void)
{
    draws = draws * 1664525u + 1013904223u;
    return draws >> 8;
}

/* As that type has it: small whole numbers, or anything around zero. */
static void fill(float *values, size_t n, enum dtype dtype, bool whole)
{
    uint64_t room;
    for (size_t i = 0; i < n; i++) {
        const float v =
            whole ? (float)((int32_t)(draw() % 7) - 3) : ((float)draw() - 0x1p23f) * 0x1p-23f;
        dtype_store(&room, dtype, 0, v);
        values[i] = dtype_load(&room, dtype, 0);
    }
}

struct linears {
    char names[2 * CASES][64];
    struct adapter_tensor tensors[2 * CASES];
    float *values[2 * CASES];
};

/* A linear of each shape and rank in one adapter, whose ranks and alphas are all in patterns:
 * scale is 2 with whole numbers, else 5 / rank. */
static void open_linears(struct linears *all, const char *dir, enum dtype dtype, bool whole)
{
    struct buf config;
    buf_init(&config, 1 << 16);
    buf_puts(&config, "{\"peft_type\":\"LORA\",\"r\":7,\"lora_alpha\":5,\"rank_pattern\":{");
    for (size_t i = 0; i < CASES; i++) {
        const int64_t *shape = shapes[i / ARRAY_LEN(ranks)], rank = ranks[i % ARRAY_LEN(ranks)];
        for (int b = 0; b < 2; b++) {
            const size_t at = 2 * i + (size_t)b, n = (size_t)(shape[!b] * rank);
            snprintf(all->names[at], sizeof all->names[at], "m.c%zu.lora_%c.weight", i,
                     b ? 'B' : 'A');
            all->values[at] = calloc(n, sizeof(float));
            assert_non_null(all->values[at]);
            fill(all->values[at], n, dtype, whole);
            all->tensors[at] = (struct adapter_tensor){all->names[at],
                                                       dtype,
                                                       2,
                                                       {b ? shape[0] : rank, b ? rank : shape[1]},
                                                       all->values[at]};
        }
        buf_printf(&config, "%s\"c%zu\":%d", i ? "," : "", i, (int)rank);
    }
    buf_puts(&config, "},\"alpha_pattern\":{");
    for (size_t i = 0; whole && i < CASES; i++)
        buf_printf(&config, "%s\"c%zu\":%d", i ? "," : "", i, 2 * ranks[i % ARRAY_LEN(ranks)]);
    buf_puts(&config, "}}");
    assert_false(config.failed);
    adapter_put(dir, config.data, all->tensors, 2 * CASES);
    buf_free(&config);
}

static void close_linears(struct linears *all)
{
    for (size_t i = 0; i < 2 * CASES; i++)
        free(all->values[i]);
}

/* Between what the two ends of all that float sums may give are rounded to; *sum has no error. */
static void check_element(const struct linears *all, size_t i, enum dtype dtype, size_t at,
                          float before, float got, bool whole)
{
    const int64_t cols = shapes[i / ARRAY_LEN(ranks)][1], rank = ranks[i % ARRAY_LEN(ranks)];
    const int64_t row = (int64_t)at / cols, col = (int64_t)at % cols;
    const double scale = whole ? 2 : 5.0 / (double)rank;
    double sum = 0, size = 0;
    uint64_t room[2];
    for (int64_t k = 0; k < rank; k++) {
        const double term = (double)all->values[2 * i + 1][row * rank + k] *
                            (double)all->values[2 * i][k * cols + col];
        sum += term;
        size += fabs(term);
    }
    sum = before + scale * sum;
    const double error =
        whole ? 0 : (double)(rank + 4) * 0x1p-24 * (fabs((double)before) + fabs(scale) * size);
    dtype_store(&room[0], dtype, 0, (float)(sum - error));
    dtype_store(&room[1], dtype, 0, (float)(sum + error));
    if (!(got >= dtype_load(&room[0], dtype, 0) && got <= dtype_load(&room[1], dtype, 0)))
        fail_msg("case %zu, row %d column %d as %s: %.9g, expected %.9g to %.9g", i, (int)row,
                 (int)col, dtype_name(dtype), (double)got, sum - error, sum + error);
}

/* Any rectangle has the bits of the whole, and nothing is written behind it. */
static void check_part(const struct lora *l, const char *tensor, enum dtype dtype,
                       const char *before, const char *after, int64_t width, struct span rows,
                       struct span cols)
{
    static char part[ELEMENTS_MAX * 4 + 8];
    const size_t item = dtype_size(dtype), n = (size_t)span_len(cols) * item;
    const size_t bytes = n * (size_t)span_len(rows);
    memset(part + bytes, 0x5a, 8);
    for (int64_t r = rows.begin; r < rows.end; r++)
        memcpy(part + (size_t)(r - rows.begin) * n,
               before + (size_t)(r * width + cols.begin) * item, n);
    must_add(l, tensor, dtype, rows, cols, part);
    for (int64_t r = rows.begin; r < rows.end; r++)
        if (memcmp(part + (size_t)(r - rows.begin) * n,
                   after + (size_t)(r * width + cols.begin) * item, n) != 0)
            fail_msg("%s as %s: row %d of rows [%d, %d) columns [%d, %d) differs", tensor,
                     dtype_name(dtype), (int)r, (int)rows.begin, (int)rows.end, (int)cols.begin,
                     (int)cols.end);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(part[bytes + i], 0x5a);
}

static void check_parts(const struct lora *l, const char *tensor, enum dtype dtype,
                        const char *before, const char *after, const int64_t shape[2])
{
    const struct span all_rows = {0, shape[0]}, all_cols = {0, shape[1]};
    for (int32_t parts = 2; parts <= 3; parts++)
        for (int32_t p = 0; p < parts; p++) { /* some of them are empty */
            check_part(l, tensor, dtype, before, after, shape[1],
                       placement_block(shape[0], parts, p), all_cols);
            check_part(l, tensor, dtype, before, after, shape[1], all_rows,
                       placement_block(shape[1], parts, p));
        }
    const struct span inner = {shape[0] > 2, shape[0] - (shape[0] > 2)};
    check_part(l, tensor, dtype, before, after, shape[1], inner,
               (struct span){shape[1] > 2, shape[1] - (shape[1] > 2)});
}

static void check_case(const struct lora *l, const struct linears *all, size_t i, enum dtype dtype,
                       bool whole)
{
    static char before[ELEMENTS_MAX * 4], after[ELEMENTS_MAX * 4];
    static float values[ELEMENTS_MAX];
    char tensor[32];
    const int64_t *shape = shapes[i / ARRAY_LEN(ranks)];
    const size_t n = (size_t)(shape[0] * shape[1]);
    snprintf(tensor, sizeof tensor, "m.c%zu.weight", i);
    fill(values, n, dtype, whole);
    for (size_t k = 0; k < n; k++)
        dtype_store(before, dtype, k, values[k]);
    memcpy(after, before, n * dtype_size(dtype));
    must_add(l, tensor, dtype, (struct span){0, shape[0]}, (struct span){0, shape[1]}, after);
    for (size_t k = 0; k < n; k++)
        check_element(all, i, dtype, k, values[k], dtype_load(after, dtype, k), whole);
    if (!whole)
        check_parts(l, tensor, dtype, before, after, shape);
}

static void test_products(void **state)
{
    (void)state;
    static struct linears all;
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (int whole = 0; whole < 2; whole++) {
            open_linears(&all, scratch_path("many"), types[t], whole);
            struct lora *l = must_open(scratch_path("many"));
            assert_int_equal(lora_count(l), CASES);
            for (size_t i = 0; i < CASES; i++)
                for (size_t d = 0; d < ARRAY_LEN(types); d++)
                    check_case(l, &all, i, types[d], whole);
            lora_close(l);
            close_linears(&all);
        }
}

/* ---- one value in a row of three ---- */

#define ROWS 3
#define ONE "{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":1}"

/* An adapter of rank 1 that adds these to the column of "m.q". */
static void put_column(const char *name, float a, const float b[ROWS])
{
    const struct adapter_tensor pair[] = {{"m.q.lora_A.weight", DTYPE_F32, 2, {1, 1}, &a},
                                          {"m.q.lora_B.weight", DTYPE_F32, 2, {ROWS, 1}, b}};
    adapter_put(scratch_path(name), ONE, pair, 2);
}

/* What becomes of `before` in the middle row. */
static enum status add_one(const char *list, enum dtype dtype, float before, float *after,
                           struct err *err)
{
    uint32_t values[ROWS] = {0};
    struct lora *l = must_open(list);
    dtype_store(values, dtype, 1, before);
    const enum status st = lora_apply(l, "m.q.weight", dtype, (struct span){0, ROWS},
                                      (struct span){0, 1}, values, dtype, values, err);
    *after = dtype_load(values, dtype, 1);
    lora_close(l);
    return st;
}

/* In the list's order, in float, and rounded at the end. */
static void test_several(void **state)
{
    (void)state;
    char list[512];
    float after;
    struct err err;
    put_column("half", 1, (float[]){0, 0x1p-8f, 0}); /* of a step of BF16 at 1 */
    put_column("up", 1, (float[]){0, 0x1p24f, 0});
    put_column("down", 1, (float[]){0, -0x1p24f, 0});
    snprintf(list, sizeof list, "%s", scratch_path("half"));
    assert_int_equal(add_one(list, DTYPE_BF16, 1, &after, &err), OK);
    assert_true(after == 1); /* a tie goes to even */
    snprintf(list, sizeof list, "%s,%s", scratch_path("half"), scratch_path("half"));
    assert_int_equal(add_one(list, DTYPE_BF16, 1, &after, &err), OK);
    assert_true(after == 1 + 0x1p-7f);
    snprintf(list, sizeof list, "%s,%s:-1", scratch_path("half"), scratch_path("half"));
    assert_int_equal(add_one(list, DTYPE_BF16, 1, &after, &err), OK);
    assert_true(after == 1);
    snprintf(list, sizeof list, "%s,%s", scratch_path("up"), scratch_path("down"));
    assert_int_equal(add_one(list, DTYPE_F32, 1, &after, &err), OK);
    assert_true(after == 0); /* 1 was lost in 2^24 */
    snprintf(list, sizeof list, "%s,%s", scratch_path("down"), scratch_path("up"));
    assert_int_equal(add_one(list, DTYPE_F32, 1, &after, &err), OK);
    assert_true(after == 1);
}

static void test_scales(void **state)
{
    (void)state;
    static const struct {
        const char *suffix;
        float after;
    } cases[] = {{"", 7}, {":0", 4}, {":-1", 1}, {":0.5", 5.5f}, {":1e3", 3004}};
    char list[512];
    put_column("scaled", 3, (float[]){9, 1, 9});
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (size_t t = 0; t < ARRAY_LEN(types); t++) {
            float after;
            uint64_t room;
            struct err err;
            snprintf(list, sizeof list, "%s%s", scratch_path("scaled"), cases[i].suffix);
            assert_int_equal(add_one(list, types[t], 4, &after, &err), OK);
            dtype_store(&room, types[t], 0, cases[i].after);
            assert_true(after == dtype_load(&room, types[t], 0));
        }
}

/* The last value that is rounded to a finite one, and the first that is not; of either sign. */
static void test_beyond(void **state)
{
    (void)state;
    static const struct {
        enum dtype dtype;
        float before, fits, beyond;
    } cases[] = {
        {DTYPE_F16, 65504, 16 - 0x1p-8f, 16},
        {DTYPE_BF16, 0x1.fep127f, 0x1.fffcp118f, 0x1p119f},
        {DTYPE_F32, FLT_MAX, 0x1.fffffep102f, 0x1p103f},
    };
    struct err err;
    float after;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (float sign = -1; sign < 2; sign += 2) {
            char words[128];
            put_column("bound", sign, (float[]){0, cases[i].fits, 0});
            assert_int_equal(add_one(scratch_path("bound"), cases[i].dtype, sign * cases[i].before,
                                     &after, &err),
                             OK);
            assert_true(after == sign * cases[i].before);
            put_column("bound", sign, (float[]){0, cases[i].beyond, 0});
            assert_int_equal(add_one(scratch_path("bound"), cases[i].dtype, sign * cases[i].before,
                                     &after, &err),
                             ERR_MODEL);
            snprintf(words, sizeof words,
                     "bound: makes a value of m.q.weight, row 1, not finite as %s",
                     dtype_name(cases[i].dtype));
            assert_non_null(strstr(err.text, words));
        }
}

static void test_not_numbers(void **state)
{
    (void)state;
    static const float wrong[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        for (size_t t = 0; t < ARRAY_LEN(types); t++) {
            uint32_t values[1] = {0};
            struct err err = {{0}};
            put_column("wrong", 1, (float[]){0, 0, wrong[i]});
            struct lora *l = must_open(scratch_path("wrong")); /* reads no values */
            must_add(l, "m.q.weight", types[t], (struct span){0, 2}, (struct span){0, 1},
                     (uint32_t[2]){0});
            assert_int_equal(lora_apply(l, "m.q.weight", types[t], (struct span){2, 3},
                                        (struct span){0, 1}, values, types[t], values, &err),
                             ERR_MODEL); /* the row is that of the tensor */
            assert_non_null(strstr(err.text, "makes a value of m.q.weight, row 2, not finite"));
            lora_close(l);
        }
}

static void test_nothing(void **state)
{
    (void)state;
    const struct span none = {1, 1}, one = {1, 2}, first = {0, 1};
    uint32_t value = 0x12345678;
    put_column("q", 1, (float[]){1, 1, 1});
    struct lora *l = must_open(scratch_path("q"));
    must_add(l, "m.z.weight", DTYPE_F32, one, first, &value); /* of no adapter, of any type */
    must_add(l, "m.z.weight", DTYPE_I32, one, first, &value);
    must_add(l, "m.q.weight", DTYPE_F32, none, first, &value);
    must_add(l, "m.q.weight", DTYPE_F32, one, none, &value);
    assert_int_equal(value, 0x12345678);
    lora_close(l);
}

/* A tensor that is there whole is read in the place of what was there, of any type, and added to.
 */
static void test_whole(void **state)
{
    (void)state;
    static const float whole[6] = {1, 2, 3, 4, 5, 6}, norm[3] = {7, 8, 9};
    static const float a[3] = {1, 10, 100}, b[2] = {1, -1};
    const struct adapter_tensor tensors[] = {
        {"base_model.model.lm_head.base_layer.weight", DTYPE_F16, 2, {2, 3}, whole},
        {"base_model.model.lm_head.lora_A.weight", DTYPE_F32, 2, {1, 3}, a},
        {"base_model.model.lm_head.lora_B.weight", DTYPE_F32, 2, {2, 1}, b},
        {"base_model.model.m.norm.weight", DTYPE_BF16, 1, {3}, norm}};
    adapter_put(scratch_path("whole"), ONE, tensors, ARRAY_LEN(tensors));
    struct lora *l = must_open(scratch_path("whole"));
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        uint32_t values[6];
        memset(values, 0xff, sizeof values); /* of NaN, were they read */
        must_add(l, "lm_head.weight", types[t], (struct span){0, 2}, (struct span){0, 3}, values);
        for (size_t i = 0; i < 6; i++)
            assert_true(dtype_load(values, types[t], i) == whole[i] + b[i / 3] * a[i % 3]);
        memset(values, 0xff, sizeof values);
        must_add(l, "lm_head.weight", types[t], (struct span){1, 2}, (struct span){1, 3}, values);
        assert_true(dtype_load(values, types[t], 0) == 5 - 10);
        assert_true(dtype_load(values, types[t], 1) == 6 - 100);
        must_add(l, "m.norm.weight", types[t], (struct span){0, 1}, (struct span){1, 3}, values);
        assert_true(dtype_load(values, types[t], 0) == 8 && dtype_load(values, types[t], 1) == 9);
    }
    lora_close(l);
}

/* Of the checkpoint nothing is read then: not even bytes that are no longer there. */
static void test_whole_of_a_checkpoint(void **state)
{
    (void)state;
    static const float ones[6] = {1, 1, 1, 1, 1, 1};
    const struct adapter_tensor there = {"m.q.weight", DTYPE_BF16, 2, {2, 3}, ones};
    const struct adapter_tensor instead = {"m.q.weight", DTYPE_F32, 2, {2, 3}, ones};
    struct checkpoint *c = NULL;
    struct err err = {{0}};
    uint16_t got[6];
    char path[PATH_MAX];
    assert_int_equal(mkdir(scratch_path("base"), 0777), 0);
    snprintf(path, sizeof path, "%s", scratch_path("base/model.safetensors"));
    adapter_put_tensors(path, &there, 1);
    adapter_put(scratch_path("instead"), ONE, &instead, 1);
    assert_int_equal(checkpoint_open(scratch_path("base"), &c, &err), OK);
    assert_int_equal(checkpoint_adapt(c, scratch_path("instead"), &err), OK);
    assert_int_equal(truncate(path, 8), 0);
    if (checkpoint_read(c, checkpoint_at(c, 0), (struct span){0, 2}, (struct span){0, 3}, 0, got,
                        &err) != OK)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(got[i], 0x3f80);
    checkpoint_close(c);
}

/* A file that shrinks after it was opened. */
static void test_shrinks(void **state)
{
    (void)state;
    const float ones[] = {1, 1, 1};
    float values[ROWS] = {0};
    put_column("short", 1, ones);
    const char *path = scratch_path("short/adapter_model.safetensors");
    struct lora *l = must_open(scratch_path("short"));
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    for (off_t cut = sb.st_size - 1; cut > 0; cut -= 13) {
        struct err err = {{0}};
        assert_int_equal(truncate(path, cut), 0);
        assert_int_equal(lora_apply(l, "m.q.weight", DTYPE_F32, (struct span){0, ROWS},
                                    (struct span){0, 1}, values, DTYPE_F32, values, &err),
                         ERR_MODEL);
        assert_non_null(strstr(err.text, "adapter_model.safetensors"));
        assert_non_null(strstr(err.text, "truncated"));
    }
    lora_close(l);
}

/* ---- checkpoints ---- */

static const struct toy model = {20, 6, 2, 4, 29, 37};

static struct checkpoint *open_adapted(const char *dir, const char *list)
{
    struct checkpoint *c = NULL;
    struct err err = {{0}};
    if (checkpoint_open(dir, &c, &err) != OK || checkpoint_adapt(c, list, &err) != OK)
        fail_msg("%s", err.text);
    return c;
}

/* An adapter of rank 3 for q, down and the embedding. */
static void put_toy_adapter(const char *dir)
{
    static float values[3 * 64];
    fill(values, ARRAY_LEN(values), DTYPE_F32, false);
    const struct adapter_tensor tensors[] = {
        {"base_model.model.l.q.lora_A.weight", DTYPE_BF16, 2, {3, 20}, values},
        {"base_model.model.l.q.lora_B.weight", DTYPE_F32, 2, {24, 3}, values + 7},
        {"base_model.model.l.down.lora_A.weight", DTYPE_F32, 2, {3, 29}, values + 2},
        {"base_model.model.l.down.lora_B.weight", DTYPE_F16, 2, {20, 3}, values + 5},
        {"base_model.model.embed.lora_A.weight", DTYPE_F32, 2, {3, 20}, values + 9},
        {"base_model.model.embed.lora_B.weight", DTYPE_F32, 2, {37, 3}, values + 1},
    };
    adapter_put(dir, "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6}", tensors,
                ARRAY_LEN(tensors));
}

static void make_model(const char *dir)
{
    const struct synth_rules rules = {.seed = 7, .std = 0.02f, .embed = "embed.weight"};
    struct synth_tensor tensors[TOY_TENSORS];
    struct err err = {{0}};
    toy_tensors(&model, tensors);
    if (synth_write(dir, "{}\n", &rules, tensors, TOY_TENSORS, DTYPE_BF16, 300, 2, &err) != OK)
        fail_msg("%s", err.text);
}

static void write_shards(const struct checkpoint *c, const char *from, int32_t count,
                         const char *to)
{
    struct local_weight plan[8][TOY_WEIGHTS], *weights[8];
    int32_t counts[8];
    struct err err = {{0}};
    for (int32_t r = 0; r < count; r++) {
        toy_plan(&model, r, count, DTYPE_BF16, plan[r]);
        weights[r] = plan[r];
        counts[r] = TOY_WEIGHTS;
    }
    if (shard_write(from, c, weights, counts, count, to, &err) != OK)
        fail_msg("%s", err.text);
}

static void read_part(const struct checkpoint *c, const char *name, struct span rows,
                      struct span cols, int32_t prefer, void *out)
{
    const struct checkpoint_tensor *t = checkpoint_find(c, name);
    struct err err = {{0}};
    assert_non_null(t);
    if (checkpoint_read(c, t, rows, cols, prefer, out, &err) != OK)
        fail_msg("%s", err.text);
}

/* All tensors in the cuts of some ranks are the same in both. */
static void check_same(const struct checkpoint *a, const struct checkpoint *b)
{
    static uint16_t x[37 * 29], y[37 * 29];
    assert_int_equal(checkpoint_count(a), checkpoint_count(b));
    for (int32_t i = 0; i < checkpoint_count(a); i++) {
        const struct checkpoint_tensor *t = checkpoint_at(a, i);
        for (int32_t part = 0; part < 9; part++) {
            const struct span rows = placement_block(t->rows, 3, part / 3);
            const struct span cols = placement_block(t->cols, 3, part % 3);
            read_part(a, t->name, rows, cols, 0, x);
            read_part(b, t->name, rows, cols, part % 3, y);
            assert_memory_equal(x, y, (size_t)(span_len(rows) * span_len(cols)) * sizeof *x);
        }
    }
}

/* Of each tensor what the file has and lora_apply adds. */
static void check_adapted(const struct checkpoint *c, const struct checkpoint *plain,
                          const struct lora *l)
{
    static uint16_t x[37 * 29], y[37 * 29];
    static const char *const names[] = {"l.q.weight", "l.down.weight", "embed.weight"};
    for (int32_t i = 0; i < checkpoint_count(c); i++) {
        const struct checkpoint_tensor *t = checkpoint_at(c, i);
        const struct span rows = {0, t->rows}, cols = {0, t->cols};
        const size_t bytes = (size_t)(t->rows * t->cols) * sizeof *x;
        bool adapted = false;
        read_part(c, t->name, rows, cols, 0, x);
        read_part(plain, t->name, rows, cols, 0, y);
        for (size_t k = 0; k < ARRAY_LEN(names); k++)
            adapted = adapted || strcmp(names[k], t->name) == 0;
        assert_int_equal(lora_adapts(l, t->name), adapted);
        assert_int_equal(memcmp(x, y, bytes) != 0, adapted);
        must_add(l, t->name, t->dtype, rows, cols, y);
        assert_memory_equal(x, y, bytes);
    }
}

static void test_checkpoints(void **state)
{
    (void)state;
    char list[PATH_MAX];
    snprintf(list, sizeof list, "%s", scratch_path("toy-adapter"));
    make_model(scratch_path("plain"));
    put_toy_adapter(list);
    struct lora *l = must_open(list);
    struct checkpoint *plain = open_adapted(scratch_path("plain"), NULL);
    assert_null(checkpoint_lora(plain));
    struct checkpoint *adapted = open_adapted(scratch_path("plain"), list);
    assert_int_equal(lora_count(checkpoint_lora(adapted)), 3);
    assert_true(checkpoint_stamp(adapted) != checkpoint_stamp(plain));
    assert_true(checkpoint_stamp(adapted) == lora_stamp(l, checkpoint_stamp(plain)));
    check_adapted(adapted, plain, l);
    write_shards(plain, scratch_path("plain"), 3, scratch_path("three"));
    write_shards(adapted, scratch_path("plain"), 2, scratch_path("merged"));
    struct checkpoint *three = open_adapted(scratch_path("three"), list);
    struct checkpoint *merged = open_adapted(scratch_path("merged"), NULL);
    check_same(adapted, three);
    check_same(adapted, merged); /* what is written has been added */
    checkpoint_close(merged);
    checkpoint_close(three);
    checkpoint_close(adapted);
    checkpoint_close(plain);
    lora_close(l);
}

/* A damaged adapter is an error of the read of what it adapts, of nothing else. */
static void test_read_fails(void **state)
{
    (void)state;
    static uint16_t x[37 * 29];
    struct err err = {{0}};
    put_toy_adapter(scratch_path("cut"));
    struct checkpoint *c = open_adapted(scratch_path("plain"), scratch_path("cut"));
    assert_int_equal(truncate(scratch_path("cut/adapter_model.safetensors"), 9), 0);
    assert_int_equal(checkpoint_read(c, checkpoint_find(c, "l.q.weight"), (struct span){0, 1},
                                     (struct span){0, 20}, 0, x, &err),
                     ERR_MODEL);
    assert_non_null(strstr(err.text, "cut/adapter_model.safetensors"));
    read_part(c, "l.k.weight", (struct span){0, 8}, (struct span){0, 20}, 0, x);
    checkpoint_close(c);
}

/* A model of one of each, and an adapter of one pair for `module`, which is [out, in]. */
static void put_fit(const char *module, int64_t out, int64_t in)
{
    static const struct adapter_tensor tensors[] = {
        {"m.q.weight", DTYPE_F32, 2, {3, 4}, NULL},
        {"m.norm.weight", DTYPE_F32, 1, {4}, NULL},
        {"m.conv.weight", DTYPE_F32, 3, {3, 2, 2}, NULL},
        {"m.f8.weight", DTYPE_F8_E4M3, 2, {3, 4}, NULL},
        {"m.u8.weight", DTYPE_U8, 2, {3, 4}, NULL},
        {"m.i32.weight", DTYPE_I32, 2, {3, 4}, NULL},
        {"m.rotary.weight", DTYPE_BF16, 2, {3, 4}, NULL},
        {"layers.0.q.weight", DTYPE_BF16, 2, {3, 4}, NULL}};
    char a[128], b[128];
    const struct adapter_tensor pair[] = {{a, DTYPE_F32, 2, {1, in}, NULL},
                                          {b, DTYPE_F32, 2, {out, 1}, NULL}};
    snprintf(a, sizeof a, "base_model.model.%s.lora_A.weight", module);
    snprintf(b, sizeof b, "base_model.model.%s.lora_B.weight", module);
    adapter_put(scratch_path("fit"), ONE, pair, 2);
    if (access(scratch_path("mixed"), F_OK) != 0) {
        assert_int_equal(mkdir(scratch_path("mixed"), 0777), 0);
        adapter_put_tensors(scratch_path("mixed/model.safetensors"), tensors, ARRAY_LEN(tensors));
    }
}

static void misfits(const char *module, int64_t out, int64_t in, const char *words)
{
    struct checkpoint *c = NULL;
    struct err err = {{0}};
    char begin[PATH_MAX];
    put_fit(module, out, in);
    assert_int_equal(checkpoint_open(scratch_path("mixed"), &c, &err), OK);
    assert_int_equal(checkpoint_adapt(c, scratch_path("fit"), &err), ERR_MODEL);
    snprintf(begin, sizeof begin, "%s: adapts %s", scratch_path("fit"), words);
    if (strncmp(err.text, begin, strlen(begin)) != 0)
        fail_msg("\"%s\", expected \"%s\"", err.text, begin);
    assert_non_null(strstr(err.text, scratch_path("mixed")));
    checkpoint_close(c);
}

static void test_misfits(void **state)
{
    (void)state;
    struct err err = {{0}};
    struct checkpoint *c;
    misfits("m.p", 3, 4, "m.p.weight, which ");
    misfits("m.q.weight", 3, 4, "m.q.weight.weight, which ");
    misfits("m.q", 4, 3, "m.q.weight as [4, 3], which is [3, 4] in ");
    misfits("m.q", 3, 5, "m.q.weight as [3, 5], which is [3, 4] in ");
    misfits("m.q", 2, 4, "m.q.weight as [2, 4], which is [3, 4] in ");
    misfits("m.norm", 1, 4, "m.norm.weight as [1, 4], which is [1, 4] in ");
    misfits("m.conv", 6, 2, "m.conv.weight as [6, 2], which is ");
    misfits("m.f8", 3, 4, "m.f8.weight, which is F8_E4M3 in ");
    misfits("m.u8", 3, 4, "m.u8.weight, which is U8 in ");
    misfits("m.i32", 3, 4, "m.i32.weight, which is I32 in ");
    misfits("layers.1.q", 3, 4, "model.layers.1.q.weight, which ");
    for (int i = 0; i < 2; i++) { /* either spelling */
        put_fit(i ? "layers.0.q" : "model.layers.0.q", 3, 4);
        checkpoint_close(open_adapted(scratch_path("mixed"), scratch_path("fit")));
    }
    assert_int_equal(checkpoint_open(scratch_path("mixed"), &c, &err), OK);
    assert_int_equal(checkpoint_adapt(c, "nowhere", &err), ERR_MODEL);
    assert_null(checkpoint_lora(c));
    assert_int_equal(checkpoint_adapt(c, "", &err), ERR_USAGE);
    assert_null(checkpoint_lora(c));
    checkpoint_close(c);
}

/* As many as a mixture has: the time must not grow with pairs of names. */
static void test_many(void **state)
{
    (void)state;
    enum { MANY = 4000 };
    static char names[3][MANY][80];
    static struct adapter_tensor model_tensors[MANY], pairs[2 * MANY];
    for (int i = 0; i < MANY; i++) {
        snprintf(names[0][i], 80, "model.layers.%d.mlp.experts.%d.gate_proj.weight", i / 64, i);
        for (int b = 0; b < 2; b++) {
            snprintf(names[1 + b][i], 80, "model.layers.%d.mlp.experts.%d.gate_proj.lora_%c.weight",
                     i / 64, i, b ? 'B' : 'A');
            pairs[2 * i + b] = (struct adapter_tensor){names[1 + b][i], DTYPE_F32, 2, {1, 1}, NULL};
        }
        model_tensors[i] = (struct adapter_tensor){names[0][i], DTYPE_F32, 2, {1, 1}, NULL};
    }
    assert_int_equal(mkdir(scratch_path("mixture"), 0777), 0);
    adapter_put_tensors(scratch_path("mixture/model.safetensors"), model_tensors, MANY);
    adapter_put(scratch_path("mixture"), ONE, pairs, 2 * MANY);
    const double begin = base_now();
    struct checkpoint *c = open_adapted(scratch_path("mixture"), scratch_path("mixture"));
    assert_int_equal(lora_count(checkpoint_lora(c)), MANY);
    assert_true(base_now() - begin < 5); /* 0.1 s; a minute where it does */
    checkpoint_close(c);
}

/* Of integers in words the tensor has another name; and a tied head has none. */
static void test_codes_and_heads(void **state)
{
    (void)state;
    const struct adapter_tensor tensors[] = {{"m.a.qweight", DTYPE_I32, 2, {3, 4}, NULL},
                                             {"m.b.weight_packed", DTYPE_I32, 2, {3, 4}, NULL}};
    static const char *const cases[][2] = {{"m.a", "m.a.qweight, which is I32 in "},
                                           {"m.b", "m.b.weight_packed, which is I32 in "},
                                           {"lm_head", "lm_head.weight, which "},
                                           {"m", "m.weight, which "}};
    static const char *const advice[] = {"nothing can be added to codes", "before they were made",
                                         "a head that is tied to the embedding cannot be adapted",
                                         "is the adapter of this model?"};
    char path[PATH_MAX];
    put_fit("m.q", 3, 4);
    snprintf(path, sizeof path, "%s", scratch_path("mixed/model.safetensors"));
    adapter_put_tensors(path, tensors, 2);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct checkpoint *c = NULL;
        struct err err = {{0}};
        put_fit(cases[i][0], 3, 4);
        assert_int_equal(checkpoint_open(scratch_path("mixed"), &c, &err), OK);
        assert_int_equal(checkpoint_adapt(c, scratch_path("fit"), &err), ERR_MODEL);
        assert_non_null(strstr(err.text, cases[i][1]));
        assert_non_null(strstr(err.text, advice[i]));
        checkpoint_close(c);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(scratch_path("mixed")), 0);
}

/* Less than half a step of the file's type is there when it is read as floats. */
static void test_exact(void **state)
{
    (void)state;
    static const float ones[6] = {1, 1, 1, 1, 1, 1}, small[3] = {0x1p-12f, 0x1p-12f, 0x1p-12f};
    const struct adapter_tensor there[] = {{"m.q.weight", DTYPE_BF16, 2, {2, 3}, ones},
                                           {"m.z.weight", DTYPE_BF16, 2, {2, 3}, ones}};
    const struct adapter_tensor pair[] = {{"m.q.lora_A.weight", DTYPE_F32, 2, {1, 3}, small},
                                          {"m.q.lora_B.weight", DTYPE_F32, 2, {2, 1}, ones}};
    const struct span rows = {0, 2}, cols = {1, 3};
    struct checkpoint *c = NULL;
    struct err err = {{0}};
    float exact[4];
    uint16_t rounded[4];
    assert_int_equal(mkdir(scratch_path("exact"), 0777), 0);
    adapter_put_tensors(scratch_path("exact/model.safetensors"), there, 2);
    adapter_put(scratch_path("slight"), ONE, pair, 2);
    assert_int_equal(checkpoint_open(scratch_path("exact"), &c, &err), OK);
    assert_int_equal(checkpoint_type(c, checkpoint_at(c, 0)), DTYPE_BF16);
    assert_int_equal(checkpoint_adapt(c, scratch_path("slight"), &err), OK);
    const struct checkpoint_tensor *q = checkpoint_at(c, 0), *z = checkpoint_at(c, 1);
    assert_int_equal(checkpoint_type(c, q), DTYPE_F32);
    assert_int_equal(q->dtype, DTYPE_BF16);
    assert_int_equal(checkpoint_type(c, z), DTYPE_BF16);
    assert_int_equal(checkpoint_read_exact(c, q, rows, cols, 0, exact, &err), OK);
    for (size_t i = 0; i < 4; i++)
        assert_true(exact[i] == 1 + 0x1p-12f);
    assert_int_equal(checkpoint_read(c, q, rows, cols, 0, rounded, &err), OK);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(rounded[i], 0x3f80);
    assert_int_equal(checkpoint_read_exact(c, z, rows, cols, 0, rounded, &err), OK);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(rounded[i], 0x3f80);
    checkpoint_close(c);
}

/* What no weight is made of must not be adapted in vain. */
static void test_ignored(void **state)
{
    (void)state;
    static const char *const ignore[] = {"m.norm.*", "m.conv.*",   "m.f8.*",  "m.u8.*",
                                         "m.i32.*",  "m.rotary.*", "model.**"};
    struct err err = {{0}};
    struct local_weight w;
    int32_t ignored = 0;
    toy_begin(&w, "m.q", 4, DTYPE_F32);
    toy_slice(&w, "m.q.weight", 3, 4, (struct span){0, 3}, (struct span){0, 4});
    put_fit("m.q", 3, 4);
    struct checkpoint *c = open_adapted(scratch_path("mixed"), scratch_path("fit"));
    if (checkpoint_check(c, &w, 1, ignore, ARRAY_LEN(ignore), &ignored, &err) != OK)
        fail_msg("%s", err.text);
    assert_int_equal(ignored, ARRAY_LEN(ignore));
    checkpoint_close(c);
    put_fit("m.rotary", 3, 4);
    c = open_adapted(scratch_path("mixed"), scratch_path("fit"));
    assert_int_equal(checkpoint_check(c, &w, 1, ignore, ARRAY_LEN(ignore), NULL, &err), ERR_MODEL);
    assert_string_equal(err.text, "--lora: an adapter is for m.rotary.weight, which is not used "
                                  "here: leave out that adapter");
    checkpoint_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),    cmocka_unit_test(test_several),
        cmocka_unit_test(test_scales),      cmocka_unit_test(test_beyond),
        cmocka_unit_test(test_not_numbers), cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_shrinks),     cmocka_unit_test(test_checkpoints),
        cmocka_unit_test(test_read_fails),  cmocka_unit_test(test_misfits),
        cmocka_unit_test(test_ignored),     cmocka_unit_test(test_many),
        cmocka_unit_test(test_exact),       cmocka_unit_test(test_codes_and_heads),
        cmocka_unit_test(test_whole),       cmocka_unit_test(test_whole_of_a_checkpoint),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
