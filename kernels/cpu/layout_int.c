/* DESIGN: a panel of I8, I4, U4 or F4_E2M1 is its groups one after the other, codes, scales and, of
 * U4, zeros, so that one stream of bytes feeds a product. Four codes of an output that follow each
 * other in k are one word of 32 bits (a quad), because processors multiply and add four bytes at
 * once; a line is a quad of each of the 32 outputs. I8 has eight lines a group. The others have
 * four: a byte holds a code of quad 2i in its low bits and that of quad 2i + 1 in its high ones, of
 * I4 each plus 8, of U4 each plus the zero, of F4_E2M1 as the format has them. A product depends on
 * codes less their zero alone, so that is what comes here, and of the zeros that leave 0 to 15 the
 * least is held. Columns that a cut weight lacks of its first or last group are zeros that no code
 * of x ever meets. */
#include "kernels/cpu/cpu.h"
#include "kernels/numerics.h"

#define LINE (CPU_PANEL * CPU_QUAD) /* bytes */

static size_t code_bytes(enum dtype dtype)
{
    return (size_t)LINE * CPU_RUN_QUADS / (dtype == DTYPE_I8 ? 1 : 2);
}

static size_t scale_size(const struct weight_spec *spec)
{
    return spec->scales_f32 ? sizeof(float) : sizeof(uint16_t);
}

/* Where a group has its zeros. */
static size_t before_zeros(const struct weight_spec *spec)
{
    return code_bytes(spec->dtype) + CPU_PANEL * scale_size(spec);
}

size_t layout_int_group_bytes(const struct weight_spec *spec)
{
    return before_zeros(spec) + (spec->dtype == DTYPE_U4 ? CPU_PANEL : 0);
}

/* Columns of the weight in group g: [begin, end), of which the first has place `skip`. */
struct part {
    int32_t begin, end, skip;
};

static struct part part_of(const struct weight_spec *spec, int32_t g)
{
    const int32_t first = g * BACKEND_GROUP - spec->scale_skip, last = first + BACKEND_GROUP;
    const int32_t begin = first > 0 ? first : 0;
    return (struct part){begin, last < spec->in ? last : spec->in, begin - first};
}

/* The four bits of a code; zero: what is added. */
static uint32_t nibble(enum dtype dtype, int8_t code, int32_t zero)
{
    if (dtype == DTYPE_F4_E2M1) {
        CHECK(code >= -12 && code <= 12);
        return numerics_e2m1_code(code);
    }
    CHECK(code + zero >= 0 && code + zero <= 15);
    return (uint32_t)(code + zero);
}

/* The least that makes no code of a group negative. */
static int32_t zero_of(enum dtype dtype, const int8_t group[BACKEND_GROUP])
{
    int32_t least = 0;
    if (dtype == DTYPE_I4)
        return 8;
    for (int i = 0; i < BACKEND_GROUP; i++)
        least = group[i] < least ? group[i] : least;
    return -least;
}

/* Two quads of codes, both of each byte. */
static uint32_t packed(enum dtype dtype, const int8_t *codes, int32_t zero)
{
    uint32_t word = 0;
    for (int i = 0; i < CPU_QUAD; i++)
        word |= (nibble(dtype, codes[i], zero) | nibble(dtype, codes[CPU_QUAD + i], zero) << 4)
                << 8 * i;
    return word;
}

/* The codes of output j in a group, and their zero. */
static void put_group(const struct weight_spec *spec, unsigned char *at, int32_t j,
                      const struct part *p, const int8_t *codes)
{
    const enum dtype dtype = spec->dtype;
    unsigned char *word = at + (size_t)j * CPU_QUAD;
    int8_t group[BACKEND_GROUP] = {0};
    memcpy(group + p->skip, codes + p->begin, (size_t)(p->end - p->begin));
    const int32_t zero = zero_of(dtype, group);
    if (dtype == DTYPE_U4)
        at[before_zeros(spec) + (size_t)j] = (unsigned char)zero;
    for (size_t q = 0; q < CPU_RUN_QUADS; q++) {
        if (dtype == DTYPE_I8)
            memcpy(word + q * LINE, group + q * CPU_QUAD, CPU_QUAD);
        else if (q % 2 == 0)
            memcpy(word + q / 2 * LINE, &(uint32_t){packed(dtype, group + q * CPU_QUAD, zero)},
                   CPU_QUAD);
    }
}

void layout_int_put(const struct weight_spec *spec, unsigned char *panel, int32_t j, int32_t n,
                    const int8_t *codes, size_t stride)
{
    const size_t bytes = layout_int_group_bytes(spec);
    for (int32_t g = 0; g < backend_scales(spec); g++) { /* by groups, which stay in the cache */
        const struct part p = part_of(spec, g);
        unsigned char *group = panel + (size_t)g * bytes;
        for (int32_t i = 0; i < n; i++)
            put_group(spec, group, j + i, &p, codes + (size_t)i * stride);
    }
}

static unsigned char *scale_place(const struct weight_spec *spec, const unsigned char *panel,
                                  int32_t g, int32_t j)
{
    const size_t at = (size_t)g * layout_int_group_bytes(spec) + code_bytes(spec->dtype);
    return (unsigned char *)(uintptr_t)panel + at + (size_t)j * scale_size(spec);
}

void layout_int_scale(const struct weight_spec *spec, unsigned char *panel, int32_t j,
                      const float *scale)
{
    for (int32_t g = 0; g < backend_scales(spec); g++) {
        const enum dtype to = spec->scales_f32 ? DTYPE_F32 : DTYPE_BF16;
        dtype_store(scale_place(spec, panel, g, j), to, 0, scale[g]);
    }
}

/* Code of output j at place p of a group. */
static int32_t code_at(const struct weight_spec *spec, const unsigned char *group, int32_t p,
                       int32_t j)
{
    static const uint8_t e2m1[] = {E2M1_CODES};
    const int32_t q = p / CPU_QUAD, place = j * CPU_QUAD + p % CPU_QUAD;
    if (spec->dtype == DTYPE_I8)
        return (int8_t)group[q * LINE + place];
    const uint32_t bits = group[q / 2 * LINE + place] >> q % 2 * 4 & 15u;
    if (spec->dtype == DTYPE_F4_E2M1)
        return e2m1[bits] - E2M1_OFFSET;
    return (int32_t)bits - (spec->dtype == DTYPE_I4 ? 8 : group[before_zeros(spec) + (size_t)j]);
}

void layout_int_get(const struct weight_spec *spec, const unsigned char *panel, int32_t j,
                    float *dst)
{
    const size_t stride = layout_int_group_bytes(spec);
    const enum dtype scales = spec->scales_f32 ? DTYPE_F32 : DTYPE_BF16;
    for (int32_t g = 0; g < backend_scales(spec); g++, panel += stride) {
        const struct part p = part_of(spec, g);
        const float scale = dtype_load(scale_place(spec, panel, 0, j), scales, 0);
        for (int32_t k = p.begin; k < p.end; k++)
            dst[k] = scale * (float)code_at(spec, panel, p.skip + k - p.begin, j);
    }
}
