/* The inner kernels, written once over v16 (sixteen floats). Each of cpu_generic.c, cpu_avx2.c,
 * cpu_avx512.c, cpu_vnni.c, cpu_bf16.c, cpu_neon.c and cpu_dotprod.c includes its vector type first
 * and this file second; because the sequence of operations per lane is this text, the variants
 * agree bit for bit. Built with -ffp-contract=off: only v16_fma fuses.
 *
 * Everything is static; the table at the end is the only thing that leaves. */
#include "kernels/cpu/cpu.h"
#include "kernels/numerics.h"

#include <assert.h>

#define AHEAD 4096 /* bytes of prefetch into L2, shared by the panels in flight */

static_assert(BACKEND_BLOCK_TOKENS == 16, "a block of keys is one v16");
static_assert(CPU_PANEL == 32, "a line of a panel is two v16");

/* ---- linear ---------------------------------------------------------------------------------- */

/* v16_load_f8 and v16_line_f8 give values so many times too small; exact to undo. */
#define F8_SCALE 0x1p8f
#define F8_LINE_SCALE 0x1p120f

/* Lines that lie together, see layout_place. */
V16_TEMPLATE ptrdiff_t line_group(const enum dtype t)
{
    return t == DTYPE_F8_E4M3 || t == DTYPE_BF16 ? 2 : 1;
}

/* Outputs 0..15 (side 0) or 16..31 (side 1) of a line of a panel; of F8_E4M3 and BF16 of a line of
 * a pair, of F8_E4M3 before the scale. */
V16_TEMPLATE v16 line_load(const enum dtype t, const unsigned char *w, const ptrdiff_t line,
                           const ptrdiff_t side)
{
    if (t == DTYPE_F8_E4M3)
        return v16_line_f8(w, line, side);
    if (t == DTYPE_BF16)
        return line == 0 ? v16_odd_bf16(w + side * CPU_LINE) : v16_even_bf16(w + side * CPU_LINE);
    if (t == DTYPE_F16)
        return v16_load_f16((const uint16_t *)(const void *)w + 16 * side);
    return v16_load((const float *)(const void *)w + 16 * side);
}

struct tile_args {
    struct cpu_tile t; /* acc and x: of the first row of the block */
    int32_t rows;      /* of the whole tile = stride of x */
};

/* Where accumulator i of a register block rests between calls, of a tile of `all` rows. */
V16_TEMPLATE float *tile_place(float *acc, const int32_t all, const int rows, const int cols,
                               const ptrdiff_t side, const ptrdiff_t i)
{
    const ptrdiff_t c = i % cols, row = i / cols % rows, q = i / cols / rows;
    return acc + (q * all + row) * CPU_PANEL + 16 * (side + c);
}

/* Scale i of a register block, of `cols` halves of each panel. */
V16_TEMPLATE v16 tile_scale(const struct tile_args *a, const int cols, const ptrdiff_t side,
                            const ptrdiff_t i)
{
    const size_t panel = (size_t)(i / cols) * (a->t.panel_bytes / sizeof(float));
    return v16_mul(v16_load(a->t.scale + panel + 16 * (side + i % cols)), v16_set1(F8_LINE_SCALE));
}

/* What stays in registers over all of k. */
struct tile_sums {
    v16 acc[V16_ROWS * V16_COLS + 8], scale[8];
};

/* Of a word of two BF16: the first, in its upper half, or the second. */
V16_INLINE float word_half(float word, ptrdiff_t which)
{
    uint32_t u;
    memcpy(&u, &word, sizeof u);
    u = which == 0 ? u & 0xffff0000u : u << 16;
    memcpy(&word, &u, sizeof u);
    return word;
}

/* x of row i, `line` lines of a group from its first on, of which x has those from `first` on. */
V16_INLINE float tile_x(const struct tile_args *a, const float *x, const ptrdiff_t first,
                        const ptrdiff_t line, const ptrdiff_t i, const enum dtype t)
{
    if (t == DTYPE_BF16 && V16_BF16_WORD == 2)
        return word_half(x[i], line);
    return x[(line - first) * a->rows + i];
}

/* Lines [first, last) of a group. */
V16_TEMPLATE void tile_lines(struct tile_sums *b, const struct tile_args *a, const float *x,
                             const unsigned char *w, const int rows, const int panels,
                             const int cols, const ptrdiff_t side, const enum dtype t,
                             const ptrdiff_t first, const ptrdiff_t last)
{
    foreach(q, panels) {
        const unsigned char *p = w + (size_t)q * a->t.panel_bytes;
        v16_prefetch(p + AHEAD / panels);
        if (t == DTYPE_F32 || t == DTYPE_BF16)
            v16_prefetch(p + AHEAD / panels + 64);
        v16 *sum = b->acc + q * rows * cols;
        foreach(l, last - first) {
            v16 v[2];
            foreach(c, cols) {
                v[c] = line_load(t, p, first + l, side + c);
                if (t == DTYPE_F8_E4M3)
                    v[c] = v16_mul(v[c], b->scale[q * cols + c]);
            }
            foreach(i, rows) {
                v16 r = v16_set1(tile_x(a, x, first, first + l, i, t));
                foreach(c, cols)
                    sum[i * cols + c] = v16_fma(r, v[c], sum[i * cols + c]);
            }
        }
    }
}

#if V16_BF16_WORD == 2
/* Both lines of a pair of BF16. */
V16_TEMPLATE void tile_pair(struct tile_sums *b, const struct tile_args *a, const float *x,
                            const unsigned char *w, const int rows, const int panels,
                            const int cols, const ptrdiff_t side)
{
    foreach(q, panels) {
        const unsigned char *p = w + (size_t)q * a->t.panel_bytes;
        v16_prefetch(p + AHEAD / panels);
        v16_prefetch(p + AHEAD / panels + 64);
        v16 *sum = b->acc + q * rows * cols, v[2];
        foreach(c, cols)
            v[c] = v16_load((const float *)(const void *)(p + (side + c) * CPU_LINE));
        foreach(i, rows) {
            v16 r = v16_set1(x[i]);
            foreach(c, cols)
                sum[i * cols + c] = v16_dot_bf16(sum[i * cols + c], v[c], r);
        }
    }
}
#endif

/* All lines of a group. */
V16_TEMPLATE void tile_group(struct tile_sums *b, const struct tile_args *a, const float *x,
                             const unsigned char *w, const int rows, const int panels,
                             const int cols, const ptrdiff_t side, const enum dtype t)
{
#if V16_BF16_WORD == 2
    if (t == DTYPE_BF16) {
        tile_pair(b, a, x, w, rows, panels, cols, side);
        return;
    }
#endif
    tile_lines(b, a, x, w, rows, panels, cols, side, t, 0, line_group(t));
}

/* A register block: `rows` rows, `panels` panels, `cols` halves of each beginning with `side`. */
V16_TEMPLATE void tile_block(const struct tile_args *a, const int rows, const int panels,
                             const int cols, const ptrdiff_t side, const enum dtype t)
{
    struct tile_sums b;
    const int32_t lines = (int32_t)line_group(t);
    const size_t bytes = t == DTYPE_F32 || t == DTYPE_BF16 ? 2 * CPU_LINE : CPU_LINE;
    const ptrdiff_t word = t == DTYPE_BF16 ? V16_BF16_WORD : 1; /* columns in a word of x */
    const ptrdiff_t sums = (ptrdiff_t)panels * rows * cols;
    foreach(i, sums)
        b.acc[i] =
            a->t.first ? v16_zero() : v16_load(tile_place(a->t.acc, a->rows, rows, cols, side, i));
    const ptrdiff_t scales = t == DTYPE_F8_E4M3 ? (ptrdiff_t)panels * cols : 0;
    foreach(i, scales)
        b.scale[i] = tile_scale(a, cols, side, i);
    const float *x = a->t.x;
    const unsigned char *w = a->t.w;
    int32_t k = a->t.k;
    if (lines == 2 && a->t.odd && k > 0) {
        tile_lines(&b, a, x, w, rows, panels, cols, side, t, 1, 2);
        x += a->rows;
        w += bytes;
        k--;
    }
    for (; k >= lines; k -= lines, x += lines / word * a->rows, w += bytes)
        tile_group(&b, a, x, w, rows, panels, cols, side, t);
    if (lines == 2 && k > 0)
        tile_lines(&b, a, x, w, rows, panels, cols, side, t, 0, 1);
    foreach(i, sums)
        v16_store(tile_place(a->t.acc, a->rows, rows, cols, side, i), b.acc[i]);
}

#if V16_COLS == 1
/* Both halves of the panel for up to V16_ROWS rows: functions, since tiles of most sizes are made
 * of these few and a compiler takes minutes to write them out in each. The full tile has its own,
 * which know the distance between columns of x: of many rows that is a twentieth of the time. */
typedef void (*tile_part_fn)(const struct tile_args *a);

#define TILE_PART(name, rows, what)                                                                \
    static __attribute__((noinline)) void name(const struct tile_args *a)                          \
    {                                                                                              \
        tile_block(a, rows, 1, 1, 0, what);                                                        \
        tile_block(a, rows, 1, 1, 1, what);                                                        \
    }
#define EACH_PART(DEFINE, part, suffix, what)                                                      \
    DEFINE(part##1_##suffix, 1, what)                                                              \
    DEFINE(part##2_##suffix, 2, what)                                                              \
    DEFINE(part##3_##suffix, 3, what)                                                              \
    DEFINE(part##4_##suffix, 4, what)                                                              \
    DEFINE(part##5_##suffix, 5, what)                                                              \
    DEFINE(part##6_##suffix, 6, what)
#define PART_TABLE(part, s)                                                                        \
    {                                                                                              \
        NULL, part##1_##s, part##2_##s, part##3_##s, part##4_##s, part##5_##s, part##6_##s         \
    }
static_assert(V16_ROWS == 6 && V16_WIDE3 == 1 && V16_WIDE4 == 1, "parts are of one panel");

EACH_PART(TILE_PART, part, f32, DTYPE_F32)
EACH_PART(TILE_PART, part, f16, DTYPE_F16)
EACH_PART(TILE_PART, part, bf16, DTYPE_BF16)
EACH_PART(TILE_PART, part, f8, DTYPE_F8_E4M3)

static const tile_part_fn tile_parts[CPU_DTYPES][V16_ROWS + 1] = {
    [DTYPE_F32] = PART_TABLE(part, f32),
    [DTYPE_F16] = PART_TABLE(part, f16),
    [DTYPE_BF16] = PART_TABLE(part, bf16),
    [DTYPE_F8_E4M3] = PART_TABLE(part, f8),
};

V16_TEMPLATE void tile_part(const struct tile_args *a, const int rows, const enum dtype t)
{
    if (a->rows < CPU_TILE_ROWS) {
        tile_parts[t][rows](a);
        return;
    }
    tile_block(a, rows, 1, 1, 0, t);
    tile_block(a, rows, 1, 1, 1, t);
}

/* A tile of more rows than two, by halves of the panel and parts of the rows. */
V16_TEMPLATE void tile_by_parts(struct tile_args *a, const int rows, const enum dtype t)
{
    tile_part(a, rows > V16_ROWS ? V16_ROWS : rows, t);
    if (rows > V16_ROWS) {
        a->t.acc += (ptrdiff_t)V16_ROWS * CPU_PANEL;
        a->t.x += V16_ROWS;
        tile_part(a, rows - V16_ROWS, t);
    }
}
#endif

/* A whole tile: at once where the registers hold it. */
V16_TEMPLATE void tile_rows(const struct cpu_tile *tile, const int rows, const int panels,
                            const enum dtype t)
{
    struct tile_args a = {*tile, rows};
#if V16_COLS == 1
    if (rows > 2) {
        tile_by_parts(&a, rows, t);
        return;
    }
#endif
    tile_block(&a, rows, panels, 2, 0, t);
}

/* n lines of F8_E4M3 as F32 lines; odd: from the second of a pair on. */
static void widen(float *lines, const unsigned char *w, const float *scale, bool odd, int32_t n)
{
    const v16 low = v16_mul(v16_load(scale), v16_set1(F8_LINE_SCALE));
    const v16 high = v16_mul(v16_load(scale + 16), v16_set1(F8_LINE_SCALE));
    for (int32_t k = odd ? -1 : 0; k < n; k += 2, w += CPU_LINE) {
        v16_prefetch(w + AHEAD);
        foreach(l, 2) {
            if (k + l < 0 || k + l == n)
                continue;
            float *line = lines + (k + l) * CPU_PANEL;
            v16_store(line, v16_mul(v16_line_f8(w, l, 0), low));
            v16_store(line + 16, v16_mul(v16_line_f8(w, l, 1), high));
        }
    }
}

#define TILE(name, rows, panels, dtype)                                                            \
    static void name(const struct cpu_tile *tile)                                                  \
    {                                                                                              \
        tile_rows(tile, rows, panels, dtype);                                                      \
    }

/* All sizes of a kernel: DEFINE(name, rows, panels, what). */
#define EACH_TILE(DEFINE, tile, wide, suffix, what)                                                \
    DEFINE(tile##1_##suffix, 1, 1, what)                                                           \
    DEFINE(tile##2_##suffix, 2, 1, what)                                                           \
    DEFINE(tile##3_##suffix, 3, 1, what)                                                           \
    DEFINE(tile##4_##suffix, 4, 1, what)                                                           \
    DEFINE(tile##5_##suffix, 5, 1, what)                                                           \
    DEFINE(tile##6_##suffix, 6, 1, what)                                                           \
    DEFINE(tile##7_##suffix, 7, 1, what)                                                           \
    DEFINE(tile##8_##suffix, 8, 1, what)                                                           \
    DEFINE(tile##9_##suffix, 9, 1, what)                                                           \
    DEFINE(tile##10_##suffix, 10, 1, what)                                                         \
    DEFINE(tile##11_##suffix, 11, 1, what)                                                         \
    DEFINE(tile##12_##suffix, 12, 1, what)                                                         \
    DEFINE(wide##1_##suffix, 1, V16_WIDE1, what)                                                   \
    DEFINE(wide##2_##suffix, 2, V16_WIDE2, what)                                                   \
    DEFINE(wide##3_##suffix, 3, V16_WIDE3, what)                                                   \
    DEFINE(wide##4_##suffix, 4, V16_WIDE4, what)

#define TILE_TABLE(tile, s)                                                                        \
    {                                                                                              \
        NULL, tile##1_##s, tile##2_##s, tile##3_##s, tile##4_##s, tile##5_##s, tile##6_##s,        \
            tile##7_##s, tile##8_##s, tile##9_##s, tile##10_##s, tile##11_##s, tile##12_##s        \
    }
#define WIDE_TABLE(wide, s)                                                                        \
    {                                                                                              \
        NULL, wide##1_##s, wide##2_##s, wide##3_##s, wide##4_##s                                   \
    }

EACH_TILE(TILE, tile, wide, f32, DTYPE_F32)
EACH_TILE(TILE, tile, wide, f16, DTYPE_F16)
EACH_TILE(TILE, tile, wide, bf16, DTYPE_BF16)
EACH_TILE(TILE, tile, wide, f8, DTYPE_F8_E4M3)

/* Full stores in ascending k: what one writes too far, the next overwrites. */
V16_TEMPLATE void pack_as(float *dst, const float *x, size_t stride, int32_t rows, int32_t k,
                          const enum dtype t)
{
    const int32_t word = t == DTYPE_BF16 ? V16_BF16_WORD : 1;
    v16 r[16];
    for (int32_t i = 0; i < 16; i++)
        r[i] = v16_zero();
    for (int32_t c = 0; c < k; c += 16 * word) {
        const int32_t n = k - c < 16 * word ? k - c : 16 * word;
        for (int32_t i = 0; i < 16; i++) {
            const float *from = i < rows ? x + (size_t)i * stride + c : x;
            r[i] = i >= rows         ? v16_zero()
                   : t == DTYPE_BF16 ? v16_words_bf16(from, n)
                                     : v16_load_n(from, n);
        }
        v16_transpose(r);
        for (int32_t i = 0; i < n; i += word, dst += rows)
            v16_store(dst, r[i / word]);
    }
}

static void pack(float *dst, const float *x, size_t stride, int32_t rows, int32_t k)
{
    pack_as(dst, x, stride, rows, k, DTYPE_F32);
}

static void pack_bf16(float *dst, const float *x, size_t stride, int32_t rows, int32_t k)
{
    if (rows > 1) {
        pack_as(dst, x, stride, rows, k, DTYPE_BF16);
        return;
    }
    const int32_t step = 16 * V16_BF16_WORD;
    for (int32_t c = 0; c < k; c += step, dst += 16)
        v16_store(dst, v16_words_bf16(x + c, k - c < step ? k - c : step));
}

#include "kernels/cpu/micro_int.h"

#include "kernels/cpu/micro_storage.h"

/* ---- rows ------------------------------------------------------------------------------------ */

V16_INLINE v16 exp16(v16 x)
{
    v16 c = v16_min(v16_set1(NUMERICS_EXP_HIGH), x);
    v16 t = v16_fma(c, v16_set1(NUMERICS_LOG2E), v16_set1(NUMERICS_ROUND));
    v16 n = v16_sub(t, v16_set1(NUMERICS_ROUND));
    v16 r = v16_fma(n, v16_set1(-NUMERICS_LN2_HI), c);
    r = v16_fma(n, v16_set1(-NUMERICS_LN2_LO), r);
    v16 p = v16_fma(v16_set1(NUMERICS_EXP_C7), r, v16_set1(NUMERICS_EXP_C6));
    p = v16_fma(p, r, v16_set1(NUMERICS_EXP_C5));
    p = v16_fma(p, r, v16_set1(NUMERICS_EXP_C4));
    p = v16_fma(p, r, v16_set1(NUMERICS_EXP_C3));
    p = v16_fma(p, r, v16_set1(NUMERICS_EXP_C2));
    p = v16_fma(p, r, v16_set1(1.0f));
    p = v16_fma(p, r, v16_set1(1.0f));
    return v16_zero_below(x, v16_set1(NUMERICS_EXP_LOW), v16_scale2(p, t));
}

/* Elements of the group of 16 that begins at i of n, and partial access to it. */
V16_INLINE int32_t group(int64_t n, int64_t i)
{
    return n - i < 16 ? (int32_t)(n - i) : 16;
}

V16_INLINE v16 load_group(const float *p, int32_t m)
{
    return m == 16 ? v16_load(p) : v16_load_n(p, m);
}

V16_INLINE void store_group(float *p, v16 a, int32_t m)
{
    if (m == 16)
        v16_store(p, a);
    else
        v16_store_n(p, a, m);
}

static void add(float *dst, const float *src, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16) {
        const int32_t m = group(n, i);
        store_group(dst + i, v16_add(load_group(dst + i, m), load_group(src + i, m)), m);
    }
}

static float sum_squares(const float *x, int32_t n)
{
    v16 sum = v16_zero();
    for (int32_t i = 0; i < n; i += 16) {
        v16 v = load_group(x + i, group(n, i));
        sum = v16_fma(v, v, sum);
    }
    return v16_fold_add(sum);
}

static void norm(float *y, const float *x, const float *gain, float r, int32_t n)
{
    const v16 scale = v16_set1(r);
    for (int32_t i = 0; i < n; i += 16) {
        const int32_t m = group(n, i);
        v16 v = v16_mul(load_group(x + i, m), scale);
        store_group(y + i, v16_mul(v, load_group(gain + i, m)), m);
    }
}

static void silu_mul(float *y, const float *gate, const float *up, int32_t n)
{
    for (int32_t i = 0; i < n; i += 16) {
        const int32_t m = group(n, i);
        v16 g = load_group(gate + i, m);
        v16 e = exp16(v16_sub(v16_zero(), g));
        v16 s = v16_div(g, v16_add(v16_set1(1.0f), e));
        store_group(y + i, v16_mul(s, load_group(up + i, m)), m);
    }
}

static void gelu_mul(float *y, const float *gate, const float *up, int32_t n)
{
    const v16 one = v16_set1(1.0f);
    for (int32_t i = 0; i < n; i += 16) {
        const int32_t m = group(n, i);
        v16 g = load_group(gate + i, m);
        v16 f = v16_fma(v16_mul(g, g), v16_set1(NUMERICS_GELU_3), v16_set1(NUMERICS_GELU_1));
        v16 s = v16_div(g, v16_add(one, exp16(v16_mul(g, f))));
        store_group(y + i, v16_mul(s, load_group(up + i, m)), m);
    }
}

/* Gates and ups take turns, all of them behind `gate`. */
static void swiglu_pairs(float *y, const float *gate, const float *up, int32_t n)
{
    const v16 one = v16_set1(1.0f), limit = v16_set1(NUMERICS_SWIGLU_LIMIT);
    const v16 least = v16_set1(-NUMERICS_SWIGLU_LIMIT), by = v16_set1(-NUMERICS_SWIGLU_ALPHA);
    (void)up;
    for (int32_t i = 0; i < n; i += 16) {
        const int32_t m = group(n, i);
        ALIGNED64 float both[2][16] = {{0}};
        for (int32_t j = 0; j < m; j++) {
            both[0][j] = gate[2 * (i + j)];
            both[1][j] = gate[2 * (i + j) + 1];
        }
        const v16 g = v16_min(limit, v16_load(both[0]));
        const v16 u = v16_max(least, v16_min(limit, v16_load(both[1])));
        const v16 s = v16_div(g, v16_add(one, exp16(v16_mul(g, by))));
        store_group(y + i, v16_mul(v16_add(u, one), s), m);
    }
}

static void softcap(float *x, float cap, int32_t n)
{
    const v16 one = v16_set1(1.0f), by = v16_set1(2.0f / cap);
    for (int32_t i = 0; i < n; i += 16) {
        const int32_t m = group(n, i);
        v16 e = exp16(v16_mul(load_group(x + i, m), by));
        v16 t = v16_div(v16_sub(e, one), v16_add(e, one));
        store_group(x + i, v16_mul(v16_set1(cap), t), m);
    }
}

static void rotate(float *head, const float *cos_sin, int32_t half)
{
    for (int32_t i = 0; i < half; i += 16) {
        const int32_t m = group(half, i);
        v16 a = load_group(head + i, m), b = load_group(head + half + i, m);
        v16 c = load_group(cos_sin + i, m), s = load_group(cos_sin + half + i, m);
        store_group(head + i, v16_sub(v16_mul(a, c), v16_mul(b, s)), m);
        store_group(head + half + i, v16_add(v16_mul(b, c), v16_mul(a, s)), m);
    }
}

/* Tree of stride 1, 2, 4, ...: addend l joins the sums that its low bits say are complete. */
static void sum_tree(float *y, const float *const *addends, int32_t count, int64_t begin,
                     int64_t end)
{
    v16 stack[8];
    for (int64_t i = begin; i < end; i += 16) {
        const int32_t m = group(end, i);
        int32_t top = 0;
        for (int32_t l = 0; l < count; l++) {
            stack[top++] = load_group(addends[l] + i, m);
            for (int32_t full = l; (full & 1) != 0; full >>= 1, top--)
                stack[top - 2] = v16_add(stack[top - 2], stack[top - 1]);
        }
        for (; top > 1; top--)
            stack[top - 2] = v16_add(stack[top - 2], stack[top - 1]);
        store_group(y + i, stack[0], m);
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

V16_INLINE size_t element_size(const enum dtype t)
{
    return t == DTYPE_F32 ? 4 : t == DTYPE_F8_E4M3 ? 1 : 2;
}

/* What load_as leaves out: a power of two, so it can as well be multiplied in later. */
V16_INLINE float element_scale(const enum dtype t)
{
    return t == DTYPE_F8_E4M3 ? F8_SCALE : 1.0f;
}

/* Scores of `heads` heads against `blocks` blocks; blocks beyond the last repeat it and their
 * results are dropped. */
V16_TEMPLATE void scores_block(const struct cpu_scores *a, int32_t head, int32_t block,
                               int32_t last, const int heads, const int blocks, const enum dtype t)
{
    const ptrdiff_t sums = (ptrdiff_t)heads * blocks;
    v16 acc[CPU_HEADS * V16_KEYS];
    const unsigned char *key[V16_KEYS] = {0};
    foreach(b, blocks)
        key[b] = a->blocks[block + b < last ? block + b : last];
    foreach(i, sums)
        acc[i] = v16_zero();
    for (int32_t e = 0; e < a->dim; e++) {
        v16 k[V16_KEYS];
        foreach(b, blocks) {
            k[b] = load_as(t, key[b]);
            key[b] += 16 * element_size(t);
        }
        foreach(h, heads) {
            v16 q = v16_set1(a->q[head + h][e]);
            foreach(b, blocks)
                acc[h * blocks + b] = v16_fma(q, k[b], acc[h * blocks + b]);
        }
    }
    foreach(i, sums) {
        float *s = a->s + (head + i / blocks) * BACKEND_SEGMENT + 16 * (block + i % blocks);
        if (block + i % blocks <= last)
            v16_store(s, v16_mul(acc[i], v16_set1(a->scale * element_scale(t))));
    }
}

V16_TEMPLATE void scores_as(const struct cpu_scores *a, const enum dtype t)
{
    const int32_t last = (a->keys - 1) / 16;
    for (int32_t b = 0; b <= last; b += V16_KEYS) {
        int32_t head = 0;
        for (; head + 4 <= a->heads; head += 4)
            scores_block(a, head, b, last, 4, V16_KEYS, t);
        if (head + 2 <= a->heads) {
            scores_block(a, head, b, last, 2, V16_KEYS, t);
            head += 2;
        }
        if (head < a->heads)
            scores_block(a, head, b, last, 1, V16_KEYS, t);
    }
}

static void scores(const struct cpu_scores *a)
{
    if (a->dtype == DTYPE_F32)
        scores_as(a, DTYPE_F32);
    else if (a->dtype == DTYPE_F16)
        scores_as(a, DTYPE_F16);
    else if (a->dtype == DTYPE_F8_E4M3)
        scores_as(a, DTYPE_F8_E4M3);
    else
        scores_as(a, DTYPE_BF16);
}

static float softmax(float *s, int32_t keys, float *max)
{
    const int32_t last = (keys - 1) / 16 * 16;
    v16_store(s + last, v16_fill_from(v16_load(s + last), keys - last, -INFINITY));
    v16 m = v16_load(s);
    for (int32_t i = 16; i <= last; i += 16)
        m = v16_max(m, v16_load(s + i));
    *max = v16_fold_max(m);
    m = v16_set1(*max);
    v16 sum = v16_zero();
    for (int32_t i = 0; i <= last; i += 16) {
        v16 p = exp16(v16_sub(v16_load(s + i), m));
        v16_store(s + i, p);
        sum = v16_add(sum, p);
    }
    return v16_fold_add(sum);
}

/* Weighted values of `heads` heads, `vecs` vectors of the head from element e on. */
V16_TEMPLATE void weigh_block(const struct cpu_scores *a, int32_t head, int32_t e, const int heads,
                              const int vecs, const enum dtype t)
{
    const size_t size = element_size(t), row = (size_t)a->dim * size;
    const float *s = a->s + (ptrdiff_t)head * BACKEND_SEGMENT;
    const ptrdiff_t sums = (ptrdiff_t)heads * vecs;
    v16 acc[CPU_HEADS * V16_KEYS];
    foreach(i, sums)
        acc[i] = v16_zero();
    for (int32_t key = a->skip; key < a->keys; key++) {
        const unsigned char *v = a->blocks[key / 16] + (size_t)(key % 16) * row + (size_t)e * size;
        v16 x[V16_KEYS];
        foreach(c, vecs)
            x[c] = load_as(t, v + (size_t)c * 16 * size);
        foreach(h, heads) {
            v16 p = v16_set1(s[h * BACKEND_SEGMENT + key]);
            foreach(c, vecs)
                acc[h * vecs + c] = v16_fma(p, x[c], acc[h * vecs + c]);
        }
    }
    foreach(i, sums) {
        float *o = a->o + (head + i / vecs) * BACKEND_HEAD_DIM_MAX + e + 16 * (i % vecs);
        v16_store(o, t == DTYPE_F8_E4M3 ? v16_mul(acc[i], v16_set1(F8_SCALE)) : acc[i]);
    }
}

V16_TEMPLATE void weigh_heads(const struct cpu_scores *a, int32_t head, const int heads,
                              const enum dtype t)
{
    int32_t e = 0;
    for (; e + 16 * V16_KEYS <= a->dim; e += 16 * V16_KEYS)
        weigh_block(a, head, e, heads, V16_KEYS, t);
    for (; e < a->dim; e += 16)
        weigh_block(a, head, e, heads, 1, t);
}

V16_TEMPLATE void weigh_as(const struct cpu_scores *a, const enum dtype t)
{
    if (a->heads == 4) {
        weigh_heads(a, 0, 4, t);
        return;
    }
    if (a->heads >= 2)
        weigh_heads(a, 0, 2, t);
    if (a->heads != 2)
        weigh_heads(a, a->heads - 1, 1, t);
}

static void weigh(const struct cpu_scores *a)
{
    if (a->dtype == DTYPE_F32)
        weigh_as(a, DTYPE_F32);
    else if (a->dtype == DTYPE_F16)
        weigh_as(a, DTYPE_F16);
    else if (a->dtype == DTYPE_F8_E4M3)
        weigh_as(a, DTYPE_F8_E4M3);
    else
        weigh_as(a, DTYPE_BF16);
}

#include "kernels/cpu/micro_latent.h"

#include "kernels/cpu/micro_recurrent.h"

static void merge(float *o, const float *more, float a, float b, int32_t n)
{
    for (int32_t i = 0; i < n; i += 16) {
        const int32_t m = group(n, i);
        v16 scaled = v16_mul(load_group(more + i, m), v16_set1(b));
        store_group(o + i, v16_fma(load_group(o + i, m), v16_set1(a), scaled), m);
    }
}

static void divide(float *dst, const float *o, float by, int32_t n)
{
    for (int32_t i = 0; i < n; i += 16) {
        const int32_t m = group(n, i);
        store_group(dst + i, v16_div(load_group(o + i, m), v16_set1(by)), m);
    }
}

/* ---- sampling -------------------------------------------------------------------------------- */

static float maximum(const float *x, int32_t n, bool *bad)
{
    v16 max = v16_set1(-INFINITY);
    uint32_t wrong = 0;
    for (int32_t i = 0; i < n; i += 16) {
        const int32_t m = group(n, i);
        v16 v = v16_fill_from(load_group(x + i, m), m, -INFINITY);
        wrong |= v16_bad(v);
        max = v16_max(max, v);
    }
    *bad = wrong != 0;
    return v16_fold_max(max);
}

static int32_t find(const float *x, int32_t n, float value)
{
    for (int32_t i = 0; i < n; i += 16) {
        const int32_t m = group(n, i);
        uint32_t equal = v16_equal(load_group(x + i, m), v16_set1(value)) & ((1u << m) - 1);
        if (equal != 0)
            return i + __builtin_ctz(equal);
    }
    return n;
}

static void scale(float *z, const float *x, float by, int32_t n)
{
    for (int32_t i = 0; i < n; i += 16) {
        const int32_t m = group(n, i);
        v16 v = v16_div(load_group(x + i, m), v16_set1(by));
        store_group(z + i, v16_add(v, v16_zero()), m);
    }
}

static void exponentials(float *e, const float *z, float max, int32_t n)
{
    for (int32_t i = 0; i < n; i += 16) {
        const int32_t m = group(n, i);
        store_group(e + i, exp16(v16_sub(load_group(z + i, m), v16_set1(max))), m);
    }
}

#define MICRO_ISA                                                                                  \
    {                                                                                              \
        .name = V16_NAME,                                                                          \
        .tile = {[DTYPE_F32] = TILE_TABLE(tile, f32),                                              \
                 [DTYPE_F16] = TILE_TABLE(tile, f16),                                              \
                 [DTYPE_BF16] = TILE_TABLE(tile, bf16),                                            \
                 [DTYPE_F8_E4M3] = TILE_TABLE(tile, f8)},                                          \
        .wide = {[DTYPE_F32] = WIDE_TABLE(wide, f32),                                              \
                 [DTYPE_F16] = WIDE_TABLE(wide, f16),                                              \
                 [DTYPE_BF16] = WIDE_TABLE(wide, bf16),                                            \
                 [DTYPE_F8_E4M3] = WIDE_TABLE(wide, f8)},                                          \
        .run_tile = {[CPU_BITS_8] = TILE_TABLE(run, 8),                                            \
                     [CPU_BITS_4] = TILE_TABLE(run, 4),                                            \
                     [CPU_BITS_U4] = TILE_TABLE(run, u4),                                          \
                     [CPU_BITS_E2M1] = TILE_TABLE(run, e2m1)},                                     \
        .run_wide = {[CPU_BITS_8] = WIDE_TABLE(runs, 8),                                           \
                     [CPU_BITS_4] = WIDE_TABLE(runs, 4),                                           \
                     [CPU_BITS_U4] = WIDE_TABLE(runs, u4),                                         \
                     [CPU_BITS_E2M1] = WIDE_TABLE(runs, e2m1)},                                    \
        .pack_run = pack_run, .wide_panels = {1, V16_WIDE1, V16_WIDE2, V16_WIDE3, V16_WIDE4},      \
        .bf16_word = V16_BF16_WORD, .tile_streams = V16_COLS == 2, .widen = widen, .pack = pack,   \
        .pack_bf16 = pack_bf16, .convert = convert, .interleave = interleave, .add = add,          \
        .sum_squares = sum_squares, .norm = norm,                                                  \
        .act_mul = {[ACT_SILU] = silu_mul,                                                         \
                    [ACT_GELU_TANH] = gelu_mul,                                                    \
                    [ACT_SWIGLU_PAIRS] = swiglu_pairs},                                            \
        .softcap = softcap, .rotate = rotate, .sum_tree = sum_tree, .scores = scores,              \
        .softmax = softmax, .weigh = weigh, .weigh_latents = weigh_latents, .merge = merge,        \
        .divide = divide, .convolve = convolve, .delta = delta, .delta_columns = 16 * DELTA_VECS,  \
        .gate = gate, .maximum = maximum, .find = find, .scale = scale, .exp = exponentials,       \
    }
