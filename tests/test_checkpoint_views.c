/* Tensors that are read as what they hold: expected elements are those of the file, by hand. */
#include "weights/checkpoint.h"

#include "tests/scratch.h"
#include "tests/toy_plan.h"

#include <sys/stat.h>

static struct checkpoint *must_open(const char *dir)
{
    struct checkpoint *c = NULL;
    struct err err = {{0}};
    if (checkpoint_open(dir, &c, &err) != OK)
        fail_msg("%s", err.text);
    return c;
}

/* A file of one tensor of bytes 0, 1, 2, ..., as BF16. */
static void put_tensor(const char *path, const char *name, int32_t ndim, const int64_t *shape)
{
    struct safetensors_entry e = {
        .name = (char *)(uintptr_t)name, .dtype = DTYPE_BF16, .ndim = ndim};
    struct safetensors_writer *w = NULL;
    struct err err = {{0}};
    unsigned char bytes[512];
    size_t n = 2;
    for (int32_t d = 0; d < ndim; d++) {
        e.shape[d] = shape[d];
        n *= (size_t)shape[d];
    }
    assert_true(n <= sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)i;
    assert_int_equal(safetensors_create(path, &e, 1, NULL, &w, &err), OK);
    assert_int_equal(safetensors_write(w, bytes, n, &err), OK);
    assert_int_equal(safetensors_finish(w, &err), OK);
}

/* That tensor's elements from the first on, row after row. */
static void check_view(const struct checkpoint *c, const char *name, int32_t ndim, int64_t rows,
                       int64_t cols, int32_t first)
{
    const struct checkpoint_tensor *t = checkpoint_find(c, name);
    unsigned char got[512];
    struct err err = {{0}};
    if (!t)
        fail_msg("%s is not found", name);
    assert_true(t->ndim == ndim && t->rows == rows && t->cols == cols);
    assert_int_equal(
        checkpoint_read(c, t, (struct span){0, rows}, (struct span){0, cols}, 0, got, &err), OK);
    for (int64_t i = 0; i < 2 * rows * cols; i++)
        assert_int_equal(got[i], (2 * first + i) % 256);
    if (rows < 2)
        return;
    assert_int_equal(
        checkpoint_read(c, t, (struct span){1, rows}, (struct span){1, cols}, 0, got, &err), OK);
    assert_int_equal(got[0], (2 * (first + cols + 1)) % 256); /* a part of it, too */
}

static struct checkpoint *open_tensor(const char *name, int32_t ndim, const int64_t *shape)
{
    assert_true(access(scratch_path("views"), F_OK) == 0 ||
                mkdir(scratch_path("views"), 0777) == 0);
    put_tensor(scratch_path("views/model.safetensors"), name, ndim, shape);
    return must_open(scratch_path("views"));
}

static void put_index(const char *tensor)
{
    char text[256];
    const int n =
        snprintf(text, sizeof text, "{\"weight_map\":{\"%s\":\"a.safetensors\"}}", tensor);
    scratch_write(scratch_path("views/model.safetensors.index.json"), text, (size_t)n);
}

#define LAYER "model.layers.7."

/* All experts in one tensor are experts, and channels' taps a vector, also by an index; what is not
 * quite so is what it is. */
static void test_views(void **state)
{
    (void)state;
    struct err err = {{0}};
    static const int64_t pairs[] = {2, 6, 5}, downs[] = {3, 5, 3}, taps[] = {4, 1, 3};
    static const int64_t odd[] = {2, 5, 5}, wide[] = {4, 2, 3}, many[] = {1025, 0, 1};
    const char *const name = "model.language_model.layers.7.mlp.experts.gate_up_proj";
    struct checkpoint *c = open_tensor(name, 3, pairs);
    assert_int_equal(checkpoint_count(c), 4);
    check_view(c, LAYER "mlp.experts.0.gate_proj.weight", 2, 3, 5, 0);
    check_view(c, LAYER "mlp.experts.0.up_proj.weight", 2, 3, 5, 15);
    check_view(c, LAYER "mlp.experts.1.gate_proj.weight", 2, 3, 5, 30);
    check_view(c, LAYER "mlp.experts.1.up_proj.weight", 2, 3, 5, 45);
    checkpoint_close(c);
    assert_int_equal(
        rename(scratch_path("views/model.safetensors"), scratch_path("views/a.safetensors")), 0);
    put_index(name);
    c = must_open(scratch_path("views"));
    check_view(c, LAYER "mlp.experts.1.up_proj.weight", 2, 3, 5, 45);
    checkpoint_close(c);
    const char *const expert = LAYER "mlp.experts.0.gate_proj.weight";
    put_index(expert);
    assert_int_equal(checkpoint_open(scratch_path("views"), &c, &err), ERR_MODEL);
    assert_non_null(strstr(err.text, "gate_up_proj is not in"));

    c = open_tensor(LAYER "mlp.experts.down_proj", 3, downs);
    assert_int_equal(checkpoint_count(c), 3);
    check_view(c, LAYER "mlp.experts.2.down_proj.weight", 2, 5, 3, 30);
    checkpoint_close(c);
    c = open_tensor(LAYER "linear_attn.conv1d.weight", 3, taps);
    check_view(c, LAYER "linear_attn.conv1d.weight", 1, 1, 12, 0);
    checkpoint_close(c);

    static const struct {
        const char *name;
        const int64_t *shape;
        int32_t ndim;
    } plain[] = {{LAYER "mlp.experts.gate_up_proj", odd, 3},
                 {LAYER "conv1d.weight", wide, 3},
                 {LAYER "mlp.experts.down_proj", many, 3},
                 {LAYER "mlp.experts.down_proj", wide, 2},
                 {LAYER "mlp.experts.gate_up_proj_bias", pairs, 3}};
    for (size_t i = 0; i < ARRAY_LEN(plain); i++) {
        c = open_tensor(plain[i].name, plain[i].ndim, plain[i].shape);
        assert_int_equal(checkpoint_count(c), 1);
        assert_non_null(checkpoint_find(c, plain[i].name));
        checkpoint_close(c);
    }
}

static void check_refused(const struct checkpoint *c, const struct local_weight *w, int32_t count,
                          const char *words)
{
    struct err err = {{0}};
    assert_int_equal(checkpoint_check(c, w, count, NULL, 0, NULL, &err), ERR_MODEL);
    if (!strstr(err.text, words))
        fail_msg("expected \"%s\" in \"%s\"", words, err.text);
}

/* Messages name the tensor that is in the file, and what is wrong of it. */
static void test_views_in_messages(void **state)
{
    (void)state;
    static const int64_t pairs[] = {2, 6, 5};
    static const char *const file = "model.language_model.layers.7.mlp.experts.gate_up_proj";
    char words[256];
    struct local_weight w;
    struct checkpoint *c = open_tensor(file, 3, pairs);
    const struct span three = {0, 3}, four = {0, 4}, five = {0, 5};
    toy_begin(&w, "up", 5, DTYPE_BF16);
    toy_slice(&w, LAYER "mlp.experts.1.up_proj.weight", 4, 5, four, five);
    snprintf(words, sizeof words, "tensor %s, read as %s: expected 2-d [4, 5], found 2-d [3, 5]",
             file, LAYER "mlp.experts.1.up_proj.weight");
    check_refused(c, &w, 1, words);
    w.slice_count = 0;
    toy_slice(&w, LAYER "mlp.experts.2.up_proj.weight", 3, 5, three, five);
    snprintf(words, sizeof words, "2.up_proj.weight is missing (nearest: %s)", file);
    check_refused(c, &w, 1, words);
    snprintf(words, sizeof words, "unexpected tensor %s, read as %s: this model has no place", file,
             LAYER "mlp.experts.0.gate_proj.weight");
    check_refused(c, &w, 0, words);
    checkpoint_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_views_in_messages),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
