/* The inner kernels for weights of I8, I4, U4 and F4_E2M1, a part of micro.h: sixteen outputs are
 * sixteen sums of 32 bits (q16), each of quads of codes. Integers, so their order does not matter;
 * what follows each run is one fused multiply-add, the same in every variant. What codes have in
 * them beside their value is taken from the sums at once: so much times the sum of x's codes. */
#ifndef TESSERA_KERNELS_CPU_MICRO_INT_H
#define TESSERA_KERNELS_CPU_MICRO_INT_H

#define CODE4_OFFSET 8 /* added to stored codes of I4 */

struct run_args {
    struct cpu_run_tile t;
    int32_t rows; /* of the whole tile */
};

V16_INLINE ptrdiff_t run_quads(const enum cpu_bits bits)
{
    return bits == CPU_BITS_8 ? 1 : 2;
}

/* What codes have in them beside their value; of U4 the zero of their group. */
V16_INLINE int32_t run_offset(const enum cpu_bits bits)
{
    return bits == CPU_BITS_8 ? Q16_CODE8_OFFSET : bits == CPU_BITS_4 ? CODE4_OFFSET : E2M1_OFFSET;
}

/* The products of one line of each panel: one quad of I8, two of 4 bits. */
V16_TEMPLATE void run_line(q16 *sums, const struct run_args *a, const int32_t *x,
                           const unsigned char *w, const int rows, const int panels, const int cols,
                           const ptrdiff_t side, const enum cpu_bits bits)
{
    const ptrdiff_t quads = run_quads(bits);
    foreach(q, panels) {
        const unsigned char *p = w + (size_t)q * a->t.panel_bytes;
        q16 v[2][2], *sum = sums + q * rows * cols;
        v16_prefetch(p + AHEAD / panels);
        v16_prefetch(p + AHEAD / panels + 64);
        foreach(c, cols) {
            const q16 line = q16_load(p + 64 * (side + c));
            v[0][c] = bits == CPU_BITS_8 ? q16_code8(line) : q16_low(line);
            if (bits != CPU_BITS_8)
                v[1][c] = q16_high(line);
            if (bits == CPU_BITS_E2M1) {
                v[0][c] = q16_e2m1(v[0][c]);
                v[1][c] = q16_e2m1(v[1][c]);
            }
        }
        foreach(l, quads) {
            foreach(i, rows) {
                const int32_t quad = x[l * a->rows + i];
                foreach(c, cols)
                    sum[i * cols + c] = bits == CPU_BITS_8
                                            ? q16_dot8(sum[i * cols + c], v[l][c], quad)
                                            : q16_dot4(sum[i * cols + c], v[l][c], quad);
            }
        }
    }
}

/* Before the first line, in the order of tile_place. zeros: behind those of the first panel. */
V16_TEMPLATE void run_begin(q16 *sums, const struct run_args *a, const int32_t *codes,
                            const unsigned char *zeros, const int rows, const int panels,
                            const int cols, const ptrdiff_t side, const enum cpu_bits bits)
{
    const int32_t offset = run_offset(bits);
    foreach(q, panels) {
        const unsigned char *p = zeros + (size_t)q * a->t.panel_bytes;
        q16 zero[2];
        foreach(c, cols)
            zero[c] = bits == CPU_BITS_U4 ? q16_bytes(p + 16 * (side + c)) : q16_set1(0);
        foreach(i, rows) {
            foreach(c, cols)
                sums[(q * rows + i) * cols + c] = bits == CPU_BITS_U4
                                                      ? q16_times(zero[c], -codes[i])
                                                      : q16_set1(-offset * codes[i]);
        }
    }
}

/* The sums of one run, times their scales, onto the accumulators. */
V16_TEMPLATE void run_fold(const q16 *sums, const struct run_args *a, const int32_t *x,
                           const unsigned char *w, const int rows, const int panels, const int cols,
                           const ptrdiff_t side, bool first)
{
    const float *scale = (const float *)(const void *)(x + (ptrdiff_t)CPU_RUN_QUADS * a->rows);
    foreach(q, panels) {
        const void *scales = w + (size_t)q * a->t.panel_bytes;
        v16 by[2];
        foreach(c, cols)
            by[c] = a->t.scales_f32 ? v16_load((const float *)scales + 16 * (side + c))
                                    : v16_load_bf16((const uint16_t *)scales + 16 * (side + c));
        foreach(i, rows) {
            const v16 r = v16_set1(scale[i]);
            foreach(c, cols) {
                const ptrdiff_t at = (q * rows + i) * cols + c;
                float *place = tile_place(a->t.acc, a->rows, rows, cols, side, at);
                const v16 sum = q16_to_v16(sums[at]);
                const v16 before = first ? v16_zero() : v16_load(place);
                v16_store(place, v16_fma(sum, v16_mul(by[c], r), before));
            }
        }
    }
}

/* A register block, as tile_block of micro.h. */
V16_TEMPLATE void run_block(const struct run_args *a, const int rows, const int panels,
                            const int cols, const ptrdiff_t side, const enum cpu_bits bits)
{
    const ptrdiff_t quads = run_quads(bits), lines = CPU_RUN_QUADS / quads;
    const ptrdiff_t all = lines * CPU_PANEL * CPU_QUAD;
    const ptrdiff_t scales = CPU_PANEL * (a->t.scales_f32 ? sizeof(float) : sizeof(uint16_t));
    const unsigned char *w = a->t.w;
    const int32_t *x = a->t.x;
    for (int32_t run = 0; run < a->t.runs; run++, x += (ptrdiff_t)CPU_RUN_WORDS * a->rows) {
        const int32_t *codes = x + (ptrdiff_t)(CPU_RUN_QUADS + 1) * a->rows; /* their sums */
        q16 sums[V16_ROWS * V16_COLS + 8];
        run_begin(sums, a, codes, w + all + scales, rows, panels, cols, side, bits);
        foreach(l, lines)
            run_line(sums, a, x + l * quads * a->rows, w + l * CPU_PANEL * CPU_QUAD, rows, panels,
                     cols, side, bits);
        w += all;
        run_fold(sums, a, x, w, rows, panels, cols, side, a->t.first && run == 0);
        w += scales + (bits == CPU_BITS_U4 ? CPU_PANEL : 0);
    }
}

#if V16_COLS == 1
typedef void (*run_part_fn)(const struct run_args *a);

#define RUN_PART(name, rows, what)                                                                 \
    static __attribute__((noinline)) void name(const struct run_args *a)                           \
    {                                                                                              \
        run_block(a, rows, 1, 1, 0, what);                                                         \
        run_block(a, rows, 1, 1, 1, what);                                                         \
    }

EACH_PART(RUN_PART, runs_part, 8, CPU_BITS_8)
EACH_PART(RUN_PART, runs_part, 4, CPU_BITS_4)
EACH_PART(RUN_PART, runs_part, u4, CPU_BITS_U4)
EACH_PART(RUN_PART, runs_part, e2m1, CPU_BITS_E2M1)

static const run_part_fn run_parts[CPU_BITS][V16_ROWS + 1] = {
    [CPU_BITS_8] = PART_TABLE(runs_part, 8),
    [CPU_BITS_4] = PART_TABLE(runs_part, 4),
    [CPU_BITS_U4] = PART_TABLE(runs_part, u4),
    [CPU_BITS_E2M1] = PART_TABLE(runs_part, e2m1),
};

/* As tile_part and tile_by_parts of micro.h. */
V16_TEMPLATE void run_part(const struct run_args *a, const int rows, const enum cpu_bits bits)
{
    if (a->rows < CPU_TILE_ROWS) {
        run_parts[bits][rows](a);
        return;
    }
    run_block(a, rows, 1, 1, 0, bits);
    run_block(a, rows, 1, 1, 1, bits);
}

V16_TEMPLATE void run_by_parts(struct run_args *a, const int rows, const enum cpu_bits bits)
{
    run_part(a, rows > V16_ROWS ? V16_ROWS : rows, bits);
    if (rows > V16_ROWS) {
        a->t.acc += (ptrdiff_t)V16_ROWS * CPU_PANEL;
        a->t.x += V16_ROWS;
        run_part(a, rows - V16_ROWS, bits);
    }
}
#endif

/* As tile_rows of micro.h. */
V16_TEMPLATE void run_rows(const struct cpu_run_tile *tile, const int rows, const int panels,
                           const enum cpu_bits bits)
{
    struct run_args a = {*tile, rows};
#if V16_COLS == 1
    if (rows > 2) {
        run_by_parts(&a, rows, bits);
        return;
    }
#endif
    run_block(&a, rows, panels, 2, 0, bits);
}

#define RUN_TILE(name, rows, panels, bits)                                                         \
    static void name(const struct cpu_run_tile *tile)                                              \
    {                                                                                              \
        run_rows(tile, rows, panels, bits);                                                        \
    }

EACH_TILE(RUN_TILE, run, runs, 8, CPU_BITS_8)
EACH_TILE(RUN_TILE, run, runs, 4, CPU_BITS_4)
EACH_TILE(RUN_TILE, run, runs, u4, CPU_BITS_U4)
EACH_TILE(RUN_TILE, run, runs, e2m1, CPU_BITS_E2M1)

/* The rounding constant leaves each code in the low bits of a float, as in exp. */
static void pack_run(int32_t *dst, int32_t rows, int32_t row, const float *x, int32_t from,
                     int32_t to)
{
    ALIGNED64 float v[BACKEND_GROUP] = {0};
    uint32_t bits[BACKEND_GROUP];
    int8_t code[BACKEND_GROUP];
    int32_t sum = 0;
    memcpy(v + from, x, (size_t)(to - from) * sizeof *v);
    v16 a = v16_load(v), b = v16_load(v + 16);
    const v16 low = v16_max(a, v16_sub(v16_zero(), a)), high = v16_max(b, v16_sub(v16_zero(), b));
    const bool bad = (v16_bad(low) | v16_bad(high)) != 0;
    const float max = bad ? 0.0f : v16_fold_max(v16_max(low, high));
    const bool zeros = max < NUMERICS_CODE_SMALL;
    const v16 by = v16_set1(zeros ? 0.0f : NUMERICS_CODE_MAX / max);
    float scale = bad ? NAN : zeros ? 0.0f : max / NUMERICS_CODE_MAX;
    v16_store(v, v16_add(v16_mul(a, by), v16_set1(NUMERICS_ROUND)));
    v16_store(v + 16, v16_add(v16_mul(b, by), v16_set1(NUMERICS_ROUND)));
    memcpy(bits, v, sizeof bits);
    for (int i = 0; i < BACKEND_GROUP; i++) {
        code[i] = bad ? 0 : (int8_t)(bits[i] & 0xffu);
        sum += code[i];
    }
    for (ptrdiff_t q = 0; q < CPU_RUN_QUADS; q++)
        memcpy(dst + q * rows + row, code + q * CPU_QUAD, CPU_QUAD);
    memcpy(dst + (ptrdiff_t)CPU_RUN_QUADS * rows + row, &scale, sizeof scale);
    dst[(ptrdiff_t)(CPU_RUN_QUADS + 1) * rows + row] = sum;
}

#endif
