/* DESIGN: a block is made into codes of one byte first, and those into values by one loop for all
 * forms: both halves are loops of a known length over bytes, which compilers make vectors of. The
 * products and sums are in the reference's order, and none may be fused, so that every bit is the
 * same.
 * Of 32 values in bytes of two codes the lower halves are values 0 to 15 and the upper ones 16 to
 * 31; of 256 values likewise 32 each. */
#include "weights/gguf/gguf_blocks.h"

#include "config/dtype.h"

#include <string.h>

#define SMALL 32  /* values of a block of the older forms, */
#define LARGE 256 /* and of those with scales of its parts */
#define HALF 16

static float half_at(const uint8_t *bytes)
{
    return dtype_from_f16((uint16_t)(bytes[0] | bytes[1] << 8));
}

/* ---- from codes to values ---- */

static void scale(float *y, const int8_t *codes, int32_t n, float d)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = d * (float)codes[i];
}

static void scale_add(float *y, const int8_t *codes, int32_t n, float d, float m)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = d * (float)codes[i] + m;
}

/* ---- from bits to codes ---- */

/* n bytes of two codes: the lower ones, then the upper ones. */
static void split_halves(int8_t *codes, const uint8_t *bytes, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        codes[i] = (int8_t)(bytes[i] & 15);
        codes[n + i] = (int8_t)(bytes[i] >> 4);
    }
}

/* The fifth bits of 32 codes, one after the other. */
static void add_fifth(int8_t *codes, const uint8_t *bits)
{
    for (int32_t i = 0; i < SMALL; i++)
        codes[i] = (int8_t)(codes[i] | (bits[i / 8] >> i % 8 & 1) << 4);
}

static void subtract(int8_t *codes, int32_t n, int8_t zero)
{
    for (int32_t i = 0; i < n; i++)
        codes[i] = (int8_t)(codes[i] - zero);
}

static void look_up(int8_t *codes, int32_t n, const int8_t table[16])
{
    for (int32_t i = 0; i < n; i++)
        codes[i] = table[codes[i]];
}

/* ---- blocks of 32 ---- */

/* Scale; 16 bytes of codes from -8. */
static void block_q4_0(const uint8_t *b, float *y)
{
    int8_t codes[SMALL];
    split_halves(codes, b + 2, HALF);
    subtract(codes, SMALL, 8);
    scale(y, codes, SMALL, half_at(b));
}

/* Scale, least value; 16 bytes of codes. */
static void block_q4_1(const uint8_t *b, float *y)
{
    int8_t codes[SMALL];
    split_halves(codes, b + 4, HALF);
    scale_add(y, codes, SMALL, half_at(b), half_at(b + 2));
}

/* Scale; 4 bytes of fifth bits, 16 of lower bits, of codes from -16. */
static void block_q5_0(const uint8_t *b, float *y)
{
    int8_t codes[SMALL];
    split_halves(codes, b + 6, HALF);
    add_fifth(codes, b + 2);
    subtract(codes, SMALL, 16);
    scale(y, codes, SMALL, half_at(b));
}

/* Scale, least value; 4 bytes of fifth bits, 16 of lower bits. */
static void block_q5_1(const uint8_t *b, float *y)
{
    int8_t codes[SMALL];
    split_halves(codes, b + 8, HALF);
    add_fifth(codes, b + 4);
    scale_add(y, codes, SMALL, half_at(b), half_at(b + 2));
}

/* Scale; 32 bytes of signed codes. */
static void block_q8_0(const uint8_t *b, float *y)
{
    int8_t codes[SMALL];
    memcpy(codes, b + 2, sizeof codes);
    scale(y, codes, SMALL, half_at(b));
}

/* Steps that are finer around zero. */
static const int8_t iq4_steps[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

/* Scale; 16 bytes of steps' numbers. */
static void block_iq4_nl(const uint8_t *b, float *y)
{
    int8_t codes[SMALL];
    split_halves(codes, b + 2, HALF);
    look_up(codes, SMALL, iq4_steps);
    scale(y, codes, SMALL, half_at(b));
}

/* Half of a scale of E8M0, 2^(code - 128). Its NaN is no exception to the reference. */
static float half_scale(uint8_t code)
{
    const uint32_t bits = code < 2 ? 0x200000u << code : (code - 1u) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Scale of E8M0; 16 bytes of codes of E2M1, which the table has twice. */
static void block_mxfp4(const uint8_t *b, float *y)
{
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    int8_t codes[SMALL];
    split_halves(codes, b + 1, HALF);
    look_up(codes, SMALL, doubled);
    scale(y, codes, SMALL, half_scale(b[0]));
}

/* ---- blocks of 256 ---- */

/* 64 bytes of four codes: of each 32 bytes the lowest bits are 32 codes, the next 32 more. */
static void split_quarters(int8_t codes[LARGE], const uint8_t *bytes)
{
    for (int32_t part = 0; part < 8; part++) {
        const uint8_t *from = bytes + part / 4 * 32;
        for (int32_t i = 0; i < 32; i++)
            codes[part * 32 + i] = (int8_t)(from[i] >> part % 4 * 2 & 3);
    }
}

/* 128 bytes of two codes, of which 32 each are 64 values. */
static void split_large(int8_t codes[LARGE], const uint8_t *bytes)
{
    for (int32_t part = 0; part < 4; part++)
        split_halves(codes + part * 64, bytes + part * 32, 32);
}

/* 16 bytes of scales in the lower half and minima in the upper one, each of 16 values; 64 bytes of
 * codes; scales of both. */
static void block_q2_k(const uint8_t *b, float *y)
{
    const float d = half_at(b + 80), m = half_at(b + 82);
    int8_t codes[LARGE];
    split_quarters(codes, b + 16);
    for (int32_t i = 0; i < LARGE / 16; i++)
        scale_add(y + i * 16, codes + i * 16, 16, d * (float)(b[i] & 15),
                  -(m * (float)(b[i] >> 4)));
}

/* 16 scales of 6 bits from -32: bytes 0 to 7 have the lower four of numbers i and i + 8, bytes 8 to
 * 11 the upper two of numbers i, i + 4, i + 8 and i + 12. */
static int32_t q3_scale(const uint8_t *scales, int32_t i)
{
    const int32_t lower = scales[i % 8] >> i / 8 * 4 & 15;
    const int32_t upper = scales[8 + i % 4] >> i / 4 * 2 & 3;
    return (lower | upper << 4) - 32;
}

/* 32 bytes of third bits, of which byte i has those of values i, i + 32, ...; 64 bytes of lower
 * bits, of codes from -4; 12 bytes of scales of 16 values each; their scale. */
static void block_q3_k(const uint8_t *b, float *y)
{
    const float d = half_at(b + 108);
    int8_t codes[LARGE];
    split_quarters(codes, b + 32);
    for (int32_t part = 0; part < 8; part++) {
        for (int32_t i = 0; i < 32; i++)
            codes[part * 32 + i] = (int8_t)((codes[part * 32 + i] | (b[i] >> part & 1) << 2) - 4);
    }
    for (int32_t i = 0; i < LARGE / 16; i++)
        scale(y + i * 16, codes + i * 16, 16, d * (float)q3_scale(b + 96, i));
}

/* Codes with scales and minima of 32 values each, of 6 bits: bytes 0 to 3 have the first four
 * scales, 4 to 7 their minima; 8 to 11 the lower four bits of the others, whose upper two are those
 * of bytes 0 to 7. In front of them the scales of both. */
static void scale_parts(float *y, const int8_t codes[LARGE], const uint8_t *b)
{
    const float d = half_at(b), m = half_at(b + 2);
    const uint8_t *s = b + 4;
    for (int32_t i = 0; i < 8; i++) {
        const int32_t k = i % 4;
        const int32_t sc = i < 4 ? s[k] & 63 : (s[8 + k] & 15) | s[k] >> 6 << 4;
        const int32_t least = i < 4 ? s[4 + k] & 63 : s[8 + k] >> 4 | s[4 + k] >> 6 << 4;
        scale_add(y + i * 32, codes + i * 32, 32, d * (float)sc, -(m * (float)least));
    }
}

/* Scales, as above, 16 bytes; 128 bytes of codes. */
static void block_q4_k(const uint8_t *b, float *y)
{
    int8_t codes[LARGE];
    split_large(codes, b + 16);
    scale_parts(y, codes, b);
}

/* As Q4_K, with 32 bytes of fifth bits before the lower ones: byte i has those of values i, i + 32,
 * and so on. */
static void block_q5_k(const uint8_t *b, float *y)
{
    int8_t codes[LARGE];
    split_large(codes, b + 48);
    for (int32_t part = 0; part < 8; part++) {
        for (int32_t i = 0; i < 32; i++)
            codes[part * 32 + i] = (int8_t)(codes[part * 32 + i] | (b[16 + i] >> part & 1) << 4);
    }
    scale_parts(y, codes, b);
}

/* 128 bytes of lower bits, of which 64 each are 128 values; 64 bytes of upper two bits, of codes
 * from -32; 16 signed scales of 16 values each; their scale. */
static void block_q6_k(const uint8_t *b, float *y)
{
    const float d = half_at(b + 208);
    int8_t codes[LARGE], upper[LARGE], scales[LARGE / 16];
    split_halves(codes, b, 64);
    split_halves(codes + 128, b + 64, 64);
    split_quarters(upper, b + 128);
    memcpy(scales, b + 192, sizeof scales);
    for (int32_t i = 0; i < LARGE; i++)
        codes[i] = (int8_t)((codes[i] | upper[i] << 4) - 32);
    for (int32_t i = 0; i < LARGE / 16; i++)
        scale(y + i * 16, codes + i * 16, 16, d * (float)scales[i]);
}

/* Scale; scales of 6 bits from -32 of 32 values each: 2 bytes of upper two bits, 4 of lower four;
 * 128 bytes of steps' numbers, in parts as the blocks of 32. */
static void block_iq4_xs(const uint8_t *b, float *y)
{
    const float d = half_at(b);
    const int32_t upper = b[2] | b[3] << 8;
    int8_t codes[LARGE];
    for (int32_t i = 0; i < LARGE / SMALL; i++)
        split_halves(codes + i * SMALL, b + 8 + i * HALF, HALF);
    look_up(codes, LARGE, iq4_steps);
    for (int32_t i = 0; i < LARGE / SMALL; i++) {
        const int32_t lower = b[4 + i / 2] >> i % 2 * 4 & 15;
        const int32_t sc = (lower | (upper >> i * 2 & 3) << 4) - 32;
        scale(y + i * SMALL, codes + i * SMALL, SMALL, d * (float)sc);
    }
}

/* ---- plain values ---- */

static void plain_f32(const uint8_t *b, int64_t n, float *y)
{
    memcpy(y, b, (size_t)n * sizeof *y);
}

static void plain_f16(const uint8_t *b, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = half_at(b + 2 * i);
}

static void plain_bf16(const uint8_t *b, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, b + 2 * i, sizeof h);
        y[i] = dtype_from_bf16(h);
    }
}

/* ---- all forms ---- */

struct form {
    struct gguf_block_info info;
    void (*block)(const uint8_t *block, float *values);
    void (*plain)(const uint8_t *bytes, int64_t n, float *values);
    /* neither: only the name is known */
};

/* By ggml's numbers. */
static const struct form forms[] = {
    [GGUF_BLOCK_F32] = {{"F32", 1, 4}, .plain = plain_f32},
    [GGUF_BLOCK_F16] = {{"F16", 1, 2}, .plain = plain_f16},
    [GGUF_BLOCK_Q4_0] = {{"Q4_0", SMALL, 18}, .block = block_q4_0},
    [GGUF_BLOCK_Q4_1] = {{"Q4_1", SMALL, 20}, .block = block_q4_1},
    [GGUF_BLOCK_Q5_0] = {{"Q5_0", SMALL, 22}, .block = block_q5_0},
    [GGUF_BLOCK_Q5_1] = {{"Q5_1", SMALL, 24}, .block = block_q5_1},
    [GGUF_BLOCK_Q8_0] = {{"Q8_0", SMALL, 34}, .block = block_q8_0},
    [9] = {.info.name = "Q8_1"},
    [GGUF_BLOCK_Q2_K] = {{"Q2_K", LARGE, 84}, .block = block_q2_k},
    [GGUF_BLOCK_Q3_K] = {{"Q3_K", LARGE, 110}, .block = block_q3_k},
    [GGUF_BLOCK_Q4_K] = {{"Q4_K", LARGE, 144}, .block = block_q4_k},
    [GGUF_BLOCK_Q5_K] = {{"Q5_K", LARGE, 176}, .block = block_q5_k},
    [GGUF_BLOCK_Q6_K] = {{"Q6_K", LARGE, 210}, .block = block_q6_k},
    [15] = {.info.name = "Q8_K"},
    [16] = {.info.name = "IQ2_XXS"},
    [17] = {.info.name = "IQ2_XS"},
    [18] = {.info.name = "IQ3_XXS"},
    [19] = {.info.name = "IQ1_S"},
    [GGUF_BLOCK_IQ4_NL] = {{"IQ4_NL", SMALL, 18}, .block = block_iq4_nl},
    [21] = {.info.name = "IQ3_S"},
    [22] = {.info.name = "IQ2_S"},
    [GGUF_BLOCK_IQ4_XS] = {{"IQ4_XS", LARGE, 136}, .block = block_iq4_xs},
    [24] = {.info.name = "I8"},
    [25] = {.info.name = "I16"},
    [26] = {.info.name = "I32"},
    [27] = {.info.name = "I64"},
    [28] = {.info.name = "F64"},
    [29] = {.info.name = "IQ1_M"},
    [GGUF_BLOCK_BF16] = {{"BF16", 1, 2}, .plain = plain_bf16},
    [34] = {.info.name = "TQ1_0"},
    [35] = {.info.name = "TQ2_0"},
    [GGUF_BLOCK_MXFP4] = {{"MXFP4", SMALL, 17}, .block = block_mxfp4},
    [40] = {.info.name = "NVFP4"},
    [41] = {.info.name = "Q1_0"},
    [42] = {.info.name = "Q2_0"},
};

const struct gguf_block_info *gguf_block_info(uint32_t ggml_type)
{
    if (ggml_type >= ARRAY_LEN(forms) || forms[ggml_type].info.values == 0)
        return NULL;
    return &forms[ggml_type].info;
}

const char *gguf_block_name(uint32_t ggml_type)
{
    const bool known = ggml_type < ARRAY_LEN(forms) && forms[ggml_type].info.name;
    return known ? forms[ggml_type].info.name : "?";
}

void gguf_dequantize(enum gguf_block block, const void *src, int64_t n, float *dst)
{
    const struct form *f = &forms[block];
    const uint8_t *bytes = src;
    CHECK(gguf_block_info((uint32_t)block) != NULL);
    CHECK(n % f->info.values == 0);
    if (f->plain) {
        f->plain(bytes, n, dst);
        return;
    }
    for (int64_t i = 0; i < n / f->info.values; i++)
        f->block(bytes + i * f->info.bytes, dst + i * f->info.values);
}
