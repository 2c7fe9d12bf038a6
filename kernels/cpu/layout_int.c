/* DESIGN: a panel of I8, I4 or F4_E2M1 is its groups one after the other, codes and then scales, so
 * that one stream of bytes feeds a product. Four codes of an output that follow each other in k are
 * one word of 32 bits (a quad), because processors multiply and add four bytes at once; a line is a
 * quad of each of the 32 outputs. I8 has eight lines a group. The others have four: a byte holds a
 * code of quad 2i in its low bits and that of quad 2i + 1 in its high ones, of I4 each plus 8, of
 * F4_E2M1 as the format has them. Columns that a cut weight lacks of its first or last group are
 * zeros that no code of x ever meets. */
#include "kernels/cpu/cpu.h"
#include "kernels/numerics.h"

#define LINE (CPU_PANEL * CPU_QUAD) /* bytes */
#define SCALES (CPU_PANEL * sizeof(uint16_t))

static size_t code_bytes(enum dtype dtype)
{
    return (size_t)LINE * CPU_RUN_QUADS / (dtype == DTYPE_I8 ? 1 : 2);
}

size_t layout_int_group_bytes(enum dtype dtype)
{
    return code_bytes(dtype) + SCALES;
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

/* The four bits of a code. */
static uint32_t nibble(enum dtype dtype, int8_t code)
{
    if (dtype == DTYPE_I4)
        return ((uint32_t)code & 15u) ^ 8u;
    CHECK(code >= -12 && code <= 12);
    return numerics_e2m1_code(code);
}

/* Two quads of codes, both of each byte. */
static uint32_t packed(enum dtype dtype, const int8_t *codes)
{
    uint32_t word = 0;
    for (int i = 0; i < CPU_QUAD; i++)
        word |= (nibble(dtype, codes[i]) | nibble(dtype, codes[CPU_QUAD + i]) << 4) << 8 * i;
    return word;
}

/* The codes of one output in a group. */
static void put_group(enum dtype dtype, unsigned char *word, const struct part *p,
                      const int8_t *codes)
{
    int8_t group[BACKEND_GROUP] = {0};
    memcpy(group + p->skip, codes + p->begin, (size_t)(p->end - p->begin));
    for (size_t q = 0; q < CPU_RUN_QUADS; q++) {
        if (dtype == DTYPE_I8)
            memcpy(word + q * LINE, group + q * CPU_QUAD, CPU_QUAD);
        else if (q % 2 == 0)
            memcpy(word + q / 2 * LINE, &(uint32_t){packed(dtype, group + q * CPU_QUAD)}, CPU_QUAD);
    }
}

void layout_int_put(const struct weight_spec *spec, unsigned char *panel, int32_t j, int32_t n,
                    const int8_t *codes, size_t stride)
{
    const size_t bytes = layout_int_group_bytes(spec->dtype);
    for (int32_t g = 0; g < backend_scales(spec); g++) { /* by groups, which stay in the cache */
        const struct part p = part_of(spec, g);
        unsigned char *group = panel + (size_t)g * bytes;
        for (int32_t i = 0; i < n; i++)
            put_group(spec->dtype, group + (size_t)(j + i) * CPU_QUAD, &p,
                      codes + (size_t)i * stride);
    }
}

static unsigned char *scale_place(const struct weight_spec *spec, const unsigned char *panel,
                                  int32_t g, int32_t j)
{
    const size_t at = (size_t)g * layout_int_group_bytes(spec->dtype) + code_bytes(spec->dtype);
    return (unsigned char *)(uintptr_t)panel + at + (size_t)j * sizeof(uint16_t);
}

void layout_int_scale(const struct weight_spec *spec, unsigned char *panel, int32_t j,
                      const float *scale)
{
    for (int32_t g = 0; g < backend_scales(spec); g++) {
        const uint16_t h = dtype_to_bf16(scale[g]);
        memcpy(scale_place(spec, panel, g, j), &h, sizeof h);
    }
}

/* Code of output j at place p of a group. */
static int32_t code_at(const unsigned char *group, enum dtype dtype, int32_t p, int32_t j)
{
    const int32_t q = p / CPU_QUAD, place = j * CPU_QUAD + p % CPU_QUAD;
    if (dtype == DTYPE_I8)
        return (int8_t)group[q * LINE + place];
    static const uint8_t e2m1[] = {E2M1_CODES};
    const uint32_t bits = group[q / 2 * LINE + place] >> q % 2 * 4 & 15u;
    return dtype == DTYPE_I4 ? (int32_t)bits - 8 : e2m1[bits] - E2M1_OFFSET;
}

void layout_int_get(const struct weight_spec *spec, const unsigned char *panel, int32_t j,
                    float *dst)
{
    const size_t stride = layout_int_group_bytes(spec->dtype);
    for (int32_t g = 0; g < backend_scales(spec); g++, panel += stride) {
        const struct part p = part_of(spec, g);
        uint16_t h;
        memcpy(&h, scale_place(spec, panel, 0, j), sizeof h);
        for (int32_t k = p.begin; k < p.end; k++)
            dst[k] =
                dtype_from_bf16(h) * (float)code_at(panel, spec->dtype, p.skip + k - p.begin, j);
    }
}
