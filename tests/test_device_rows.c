/* Where the device's memory has the rows of a weight (cuda.h): those of codes begin at lines, and
 * what that takes is little. The rule as figures, for shapes of models; by its words, for all; and
 * in the memory of a CUDA module beside the test. */
#include "kernels/cuda/cuda.h"
#include "tests/only.h"
#include "tests/subjects.h"

enum { OUT = 40, LINE = 128 };

/* groups_at 0: behind the codes of all rows. */
static const struct {
    enum dtype dtype;
    int32_t in, scale_cols, scales_f32;
    size_t codes, pitch, zeros, groups, groups_at;
} shapes[] = {
    {DTYPE_F8_E4M3, 4096, 0, 0, 4096, 4096, 0, 4, 0},
    {DTYPE_F8_E4M3, 14336, 0, 0, 14336, 14336, 0, 4, 0},
    {DTYPE_F8_E4M3, 896, 0, 0, 896, 896, 0, 4, 0},
    {DTYPE_F8_E4M3, 576, 0, 0, 576, 576, 0, 4, 0}, /* a line would add 11 % */
    {DTYPE_F8_E4M3, 7056, 0, 0, 7056, 7056, 0, 4, 0},
    {DTYPE_F8_E4M3, 7161, 0, 0, 7168, 7168, 0, 4, 0},
    {DTYPE_F8_E4M3, 7184, 0, 0, 7184, 7296, 0, 4, 0},
    {DTYPE_F8_E4M3, 4096, 128, 0, 4096, 4096, 0, 128, 0},
    {DTYPE_F8_E4M3, 576, 128, 0, 576, 576, 0, 20, 0},
    {DTYPE_F8_E4M3, 112, 128, 0, 112, 112, 0, 4, 0},
    {DTYPE_I8, 4096, 32, 0, 4096, 4352, 0, 256, 4096},
    {DTYPE_I8, 896, 32, 0, 896, 896, 0, 56, 0},
    {DTYPE_I4, 4096, 32, 0, 2048, 2304, 0, 256, 2048},
    {DTYPE_I4, 14336, 32, 0, 7168, 8064, 0, 896, 7168},
    {DTYPE_I4, 896, 32, 0, 448, 512, 0, 56, 448},
    {DTYPE_I4, 11008, 32, 0, 5504, 5504, 0, 688, 0},
    {DTYPE_I4, 576, 32, 0, 288, 288, 0, 36, 0},
    {DTYPE_U4, 4096, 32, 1, 2048, 2688, 128, 640, 2048},
    {DTYPE_U4, 3584, 32, 1, 1792, 1792, 112, 560, 0},
    {DTYPE_U4, 150, 32, 0, 80, 80, 8, 18, 0},
    {DTYPE_F4_E2M1, 2880, 32, 0, 1440, 1536, 0, 90, 1440},
    {DTYPE_F4_E2M1, 2048, 32, 0, 1024, 1024, 0, 64, 0},
};

static struct weight_spec spec_of(enum dtype dtype, int32_t in, int32_t scale_cols, int32_t f32)
{
    return (struct weight_spec){.out = OUT,
                                .in = in,
                                .dtype = dtype,
                                .leaves = 1,
                                .cut = {0, in},
                                .scale_cols = scale_cols,
                                .scales_f32 = f32};
}

static void test_shapes_of_models(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        const struct weight_spec spec =
            spec_of(shapes[i].dtype, shapes[i].in, shapes[i].scale_cols, shapes[i].scales_f32);
        const struct cuda_layout l = cuda_layout_of(&spec);
        const bool apart = shapes[i].groups_at == 0;
        const size_t pitch = shapes[i].pitch, groups = shapes[i].groups;
        const size_t end = OUT * pitch + (apart ? OUT * groups : 0);
        assert_int_equal(l.codes, shapes[i].codes);
        assert_int_equal(l.pitch, pitch);
        assert_int_equal(l.zeros, shapes[i].zeros);
        assert_int_equal(l.groups, groups);
        assert_int_equal(l.groups_at, apart ? OUT * pitch : shapes[i].groups_at);
        assert_int_equal(l.groups_pitch, apart ? groups : pitch);
        assert_int_equal(l.end, end);
        if (device)
            assert_int_equal(device->ops->weight_bytes(&spec), base_align(end, 256));
    }
}

static void check_rule(const struct weight_spec *spec)
{
    const struct cuda_layout l = cuda_layout_of(spec);
    const size_t out = (size_t)spec->out, need = l.codes + l.groups;
    const bool apart = l.groups_at >= out * l.pitch;
    assert_int_equal(l.pitch % 16, 0);
    assert_true(l.codes * 8 >= (size_t)spec->in * (cuda_is_nibbles(spec->dtype) ? 4 : 8));
    if (l.codes % LINE == 0 || l.codes >= 7168)
        assert_int_equal(l.pitch % LINE, 0);
    if (apart) {
        assert_true(l.pitch >= l.codes && l.groups_pitch == l.groups);
        assert_true((l.pitch - l.codes) * 64 <= l.codes);
        assert_int_equal(l.end, l.groups_at + out * l.groups);
    } else {
        assert_true(l.pitch % LINE == 0 && l.pitch - need < 16);
        assert_true(l.groups_at == l.codes && l.groups_pitch == l.pitch);
        assert_int_equal(l.end, out * l.pitch);
    }
    if (spec->dtype == DTYPE_F8_E4M3)
        assert_true(apart);
}

static void test_rule(void **state UNUSED)
{
    static const enum dtype types[] = {DTYPE_F8_E4M3, DTYPE_I8, DTYPE_I4, DTYPE_U4, DTYPE_F4_E2M1};
    for (int32_t in = 1; in < 17000; in += 1 + in % 5)
        for (size_t t = 0; t < ARRAY_LEN(types); t++)
            for (int32_t n = 0; n < 2; n++) {
                const bool f8 = types[t] == DTYPE_F8_E4M3;
                struct weight_spec spec =
                    spec_of(types[t], in, f8 ? n * 128 : 32, types[t] != DTYPE_F4_E2M1 && !f8 && n);
                spec.scale_skip = spec.scale_cols > 0 ? in % spec.scale_cols : 0;
                check_rule(&spec);
            }
}

/* All codes of a weight and its scales, each put in two parts, and where they then are. */
static void check_memory(struct backend *b, const struct weight_spec *spec)
{
    const struct cuda_layout l = cuda_layout_of(spec);
    const size_t in = (size_t)spec->in, scales = (size_t)backend_scales(spec);
    const size_t bytes = b->ops->weight_bytes(spec);
    unsigned char *codes = aligned_bytes(OUT * in, 0), *memory = aligned_bytes(bytes, 0);
    float *scale = aligned_bytes(OUT * scales * sizeof(float), 0);
    for (size_t i = 0; i < OUT * in; i++)
        codes[i] = (unsigned char)(numerics_mix(i) % 0x7f);
    for (size_t i = 0; i < OUT * scales; i++)
        scale[i] = (float)(1 + i);
    void *storage = must(b->ops->alloc(b, bytes));
    struct weight *w = must(b->ops->weight_open(b, spec, storage));
    b->ops->weight_put(w, 32, OUT - 32, codes + 32 * in, spec->dtype, in);
    b->ops->weight_put(w, 0, 32, codes, spec->dtype, in);
    b->ops->weight_scale(w, 32, OUT - 32, scale + 32 * scales);
    b->ops->weight_scale(w, 0, 32, scale);
    ok(b->ops->download(b, memory, storage, bytes, &err));
    for (size_t r = 0; r < OUT; r++) {
        const unsigned char *groups = memory + l.groups_at + r * l.groups_pitch;
        assert_memory_equal(memory + r * l.pitch, codes + r * in, in);
        if (spec->dtype == DTYPE_F8_E4M3)
            assert_memory_equal(groups, scale + r * scales, scales * sizeof(float));
        for (size_t i = 0; spec->dtype == DTYPE_I8 && i < scales; i++)
            assert_true(dtype_load(groups, DTYPE_BF16, i) ==
                        dtype_from_bf16(dtype_to_bf16(scale[r * scales + i])));
    }
    b->ops->weight_close(w);
    b->ops->free(b, storage);
    free(codes);
    free(memory);
    free(scale);
}

static void test_memory(void **state)
{
    struct backend *b = NULL;
    if (backend_open("cuda", 1, &b, &err) != OK) {
        print_message("skipped: %s\n", err.text);
        (void)state;
        skip();
    }
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        const struct weight_spec spec =
            spec_of(shapes[i].dtype, shapes[i].in, shapes[i].scale_cols, shapes[i].scales_f32);
        if (!cuda_is_nibbles(spec.dtype)) /* whose codes are put in another order */
            check_memory(b, &spec);
    }
    backend_close(b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes_of_models),
        cmocka_unit_test(test_rule),
        cmocka_unit_test(test_memory),
    };
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_subjects, close_subjects);
}
