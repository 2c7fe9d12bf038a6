/* Inside of the CPU backend: one set of loops (linear, attend, rowops, sample, ...) over a table
 * of inner kernels per instruction set. Nothing here is for other folders. */
#ifndef TESSERA_KERNELS_CPU_CPU_H
#define TESSERA_KERNELS_CPU_CPU_H

#include "kernels/cpu/e2m1.h"
#include "kernels/cpu/pool.h"
#include "kernels/handles.h"

#define CPU_PANEL 32                   /* outputs per weight panel */
#define CPU_LINE 64                    /* bytes of a line of a panel of 16-bit types */
#define CPU_TILE_ROWS 12               /* most rows of one inner kernel of linear */
#define CPU_WIDE_ROWS 4                /* up to here there are kernels over several panels */
#define CPU_DTYPES (DTYPE_F8_E4M3 + 1) /* F32, F16, BF16, F8_E4M3 */
#define CPU_HEADS 4                    /* most query heads of one inner kernel of attend */
#define CPU_LATENT_HEADS 16            /* with latents: a lane each */
#define CPU_STAGE 128                  /* columns per step of weight_put */
#define CPU_QUAD 4                     /* codes of I8 that are multiplied and added at once */
#define CPU_RUN_QUADS (BACKEND_GROUP / CPU_QUAD)
#define CPU_RUN_WORDS (CPU_RUN_QUADS + 2) /* of packed x, per row and run */

/* acc[panels][rows][32] (+)= x[k][rows] * panel[k][32], ascending k, fused; `first` starts from 0.
 * Panels lie panel_bytes apart. With F8_E4M3 and BF16 w is a pair of lines, and odd when k begins
 * with the second of it. Only with F8_E4M3 there are scales, [32], panel_bytes apart, too, which
 * hold for all of these k. Only with BF16 x may be words of two columns, of which odd has one. */
struct cpu_tile {
    float *acc;
    const float *x;
    const unsigned char *w;
    const float *scale;
    size_t panel_bytes;
    int32_t k;
    bool first, odd;
};
typedef void (*cpu_tile_fn)(const struct cpu_tile *tile);

/* The same for weights of integers: acc (+)= the runs of x times the groups of each panel, one
 * after the other. x as pack_run writes it, w: the first group. */
struct cpu_run_tile {
    float *acc;
    const int32_t *x;
    const unsigned char *w;
    size_t panel_bytes;
    int32_t runs;
    bool first, scales_f32;
};
typedef void (*cpu_run_fn)(const struct cpu_run_tile *tile);
enum cpu_bits { CPU_BITS_8, CPU_BITS_4, CPU_BITS_U4, CPU_BITS_E2M1, CPU_BITS };

/* Query heads that share the keys of one segment: s[h][256] and o[h][stride]. */
struct cpu_scores {
    float *s;
    const float *const *q;
    int32_t heads;                      /* 1 .. CPU_HEADS, with latents CPU_LATENT_HEADS */
    const unsigned char *const *blocks; /* keys [head_dim][16] or values [16][padded head_dim], */
                                        /* or latents [dim][16] */
    int32_t keys;                       /* 1 .. BACKEND_SEGMENT */
    int32_t skip;                       /* so many of them, < 16, are not seen */
    int32_t dim;                        /* head_dim for keys, padded to 16 for values */
    enum dtype dtype;
    float scale;
    float *o; /* [heads][BACKEND_HEAD_DIM_MAX] */
};

/* One value head of the rows of a sequence, of the gated delta rule: q and k are of unit length, v
 * becomes what is asked for q. */
struct cpu_delta {
    float *state;       /* [keys][values] */
    const float *q, *k; /* of the first row, `stride` from one to the next */
    float *v;           /* so, too */
    const float *b, *a; /* gates, `gates_stride` from one to the next */
    float decay, bias;  /* of the head */
    ptrdiff_t stride, gates_stride;
    int32_t rows, keys, values;
    bool begins; /* with zeros for a state */
};

struct cpu_isa {
    const char *name;

    /* linear */
    cpu_tile_fn tile[CPU_DTYPES][CPU_TILE_ROWS + 1]; /* [dtype][rows], one panel */
    cpu_tile_fn wide[CPU_DTYPES][CPU_WIDE_ROWS + 1]; /* wide_panels[rows] panels at once */
    /* n lines of F8_E4M3 as F32, once for many tiles */
    void (*widen)(float *lines, const unsigned char *w, const float *scale, bool odd, int32_t n);
    int32_t wide_panels[CPU_WIDE_ROWS + 1];
    /* False: keep the k of one call in the L1 cache, the kernel reads it twice. */
    bool tile_streams;
    cpu_run_fn run_tile[CPU_BITS][CPU_TILE_ROWS + 1], run_wide[CPU_BITS][CPU_WIDE_ROWS + 1];
    /* Row `row` of `rows` of a run: the columns [from, to) of its group, of which the first is *x.
     * dst: quads of codes [CPU_RUN_QUADS][rows], scales [rows] (as bits), sums of codes [rows]. */
    void (*pack_run)(int32_t *dst, int32_t rows, int32_t row, const float *x, int32_t from,
                     int32_t to);
    /* dst[k][rows] = x[row][k] for rows <= 12; may write up to 16 floats behind. For weights of
     * BF16 rounded to it, and with bf16_word 2 two columns in a word: [(k + 1) / 2][rows], columns
     * 2i in the upper halves. */
    void (*pack)(float *dst, const float *x, size_t stride, int32_t rows, int32_t k);
    void (*pack_bf16)(float *dst, const float *x, size_t stride, int32_t rows, int32_t k);
    int32_t bf16_word;

    /* weight_put: n elements converted; then k lines of a panel from 32 staged rows, where `pitch`
     * is the bytes per staged row and rows are readable up to a multiple of 64 bytes. */
    void (*convert)(void *dst, enum dtype to, const void *src, enum dtype from, int32_t n);
    void (*interleave)(unsigned char *panel, const unsigned char *stage, size_t pitch, int32_t k,
                       enum dtype dtype);

    /* rows */
    void (*add)(float *dst, const float *src, int64_t n); /* dst += src */
    float (*sum_squares)(const float *x, int32_t n);
    void (*norm)(float *y, const float *x, const float *gain, float r, int32_t n);
    /* by enum activation; of pairs all are behind `gate` */
    void (*act_mul[ACT_COUNT])(float *y, const float *gate, const float *up, int32_t n);
    void (*softcap)(float *x, float cap, int32_t n);
    void (*rotate)(float *head, const float *cos_sin, int32_t half);
    void (*sum_tree)(float *y, const float *const *addends, int32_t count, int64_t begin,
                     int64_t end);

    /* attention */
    void (*scores)(const struct cpu_scores *a);           /* s = (q . k) * scale */
    float (*softmax)(float *s, int32_t keys, float *max); /* s = exp(s - max); the sum */
    void (*weigh)(const struct cpu_scores *a); /* o = sum s * v, ascending keys from skip on */
    void (*weigh_latents)(const struct cpu_scores *a);
    void (*merge)(float *o, const float *add, float a, float b, int32_t n); /* o * a + add * b */
    void (*divide)(float *dst, const float *o, float by, int32_t n);

    /* layers that recur: y = silu of sum rows[i] * taps[i][n], ascending; n a multiple of 16 */
    void (*convolve)(float *y, const float *const *rows, const float *taps, int32_t count,
                     int32_t n);
    void (*delta)(const struct cpu_delta *d, int32_t column, int32_t columns); /* of the values */
    int32_t delta_columns;                                                     /* done best */
    void (*gate)(float *y, const float *x, int32_t n);                         /* y *= sigmoid(x) */

    /* sampling */
    float (*maximum)(const float *x, int32_t n, bool *bad);       /* bad: a NaN or +inf */
    int32_t (*find)(const float *x, int32_t n, float value);      /* first equal element, or n */
    void (*scale)(float *z, const float *x, float by, int32_t n); /* x / by + 0 */
    void (*exp)(float *e, const float *z, float max, int32_t n);  /* exp(z - max) */
};

struct cpu_backend {
    struct backend base;
    const struct cpu_isa *isa;
    struct pool *pool;
    /* Scratch, grown by cpu_reserve only. */
    float *packed; /* rows of x by tiles */
    size_t packed_floats;
    float *partial;        /* per thread: accumulators of linear, or z and masses of sample */
    size_t partial_floats; /* of one thread */
    int32_t *list;         /* per thread: counters of rules, then candidate ids of sample; or the
                              order of experts, in that of the first */
    size_t list_ids;       /* of one thread */
};

/* cpu.c */
enum status cpu_open(const char *name, int32_t threads, struct backend **out,
                     struct err *err) MUST_USE;
const struct backend_ops *cpu_find(const char *name); /* NULL: no such variant on this machine */
const char *cpu_variant(void);
const char *cpu_names(void); /* of all variants of this processor's family, for messages */
static inline struct cpu_backend *cpu_of(struct backend *b)
{
    return (struct cpu_backend *)b;
}
/* Makes each scratch at least this large; the old contents are lost. */
enum status cpu_grow(struct cpu_backend *c, size_t packed_floats, size_t partial_floats,
                     size_t list_ids, struct err *err) MUST_USE;

/* layout_int.c: panels of integers, [groups] of codes, then scales [32], of U4 then zeros [32] */
size_t layout_int_group_bytes(const struct weight_spec *spec);
/* Outputs [j, j + n) of a panel, whose codes begin `stride` bytes apart. */
void layout_int_put(const struct weight_spec *spec, unsigned char *panel, int32_t j, int32_t n,
                    const int8_t *codes, size_t stride);
void layout_int_scale(const struct weight_spec *spec, unsigned char *panel, int32_t j,
                      const float *scale);
void layout_int_get(const struct weight_spec *spec, const unsigned char *panel, int32_t j,
                    float *dst);

/* layout.c: weights and caches in memory */
size_t layout_weight_bytes(const struct weight_spec *spec);
size_t layout_panel_bytes(const struct weight_spec *spec);
/* The scales of column k in a panel: [32]. */
float *layout_scale(const struct weight_spec *spec, const unsigned char *panel, int32_t k);
/* Byte of output j of 32 in line k of a panel. */
size_t layout_place(enum dtype t, int32_t k, int32_t j);
/* Byte of line k of a panel, or of the pair that it belongs to. */
size_t layout_line(enum dtype t, int32_t k);
struct weight *layout_weight_open(struct backend *b, const struct weight_spec *spec, void *storage);
void layout_weight_close(struct weight *w);
void layout_weight_put(struct weight *w, int32_t row, int32_t rows, const void *src,
                       enum dtype src_dtype, size_t stride);
void layout_weight_scale(struct weight *w, int32_t row, int32_t rows, const float *scale);
void layout_weight_get(const struct weight *w, int32_t row, float *dst);
size_t layout_kv_bytes(const struct kv_spec *spec);
struct kv_cache *layout_kv_open(struct backend *b, const struct kv_spec *spec, void *storage);
void layout_kv_close(struct kv_cache *kv);
/* The keys [head_dim][16] of one block and head; its values [16][layout_kv_dim] follow, but for
 * latents [latent][16], which are among them. */
unsigned char *layout_kv_block(const struct kv_cache *kv, int32_t layer, int32_t block,
                               int32_t head);
size_t layout_kv_values(const struct kv_spec *spec); /* bytes from keys to values */
int32_t layout_kv_dim(const struct kv_spec *spec);   /* head_dim rounded up to 16 */

/* linear.c */
enum status linear_reserve(struct cpu_backend *c, int32_t rows, int32_t in,
                           struct err *err) MUST_USE;
void linear_run(struct backend *b, struct view y, struct cview x, const struct weight *w);

/* experts.c */
struct experts *experts_open(struct backend *b, const struct weight *const *weight, int32_t count,
                             int32_t chosen, int32_t rows_max);
void experts_route(struct backend *b, const struct routing *r, struct cview logits,
                   const struct routing_rules *rules);
void experts_linear(struct backend *b, struct view y, struct cview x, const struct experts *w,
                    const struct routing *r);
void experts_sum(struct backend *b, struct view y, struct cview x, const struct experts *w,
                 const struct routing *r);

/* head_linear.c */
enum status head_linear_reserve(struct cpu_backend *c, const struct weight_spec *spec, int32_t rows,
                                struct err *err) MUST_USE;
void head_linear_run(struct backend *b, struct view y, struct cview x, const struct experts *w,
                     int32_t kept);

/* attend.c */
void attend_rope_kv(struct backend *b, struct view qkv, const struct qkv_rules *rules,
                    struct cview table, const struct heads *h, const struct rows *rows,
                    struct kv_cache *kv, int32_t layer);
void attend_run(struct backend *b, struct view out, struct cview qkv, const struct heads *h,
                const struct attention *how, const struct rows *rows, const struct kv_cache *kv,
                int32_t layer);

/* recurrent.c */
void recurrent_delta_rule(struct backend *b, struct view out, struct view a, struct cview gates,
                          const struct recurrent_heads *h, const struct recurrent_rules *rules,
                          const struct rows *rows, const struct recurrent_state *state);

/* rowops.c */
void rowops_resolve(struct backend *b, int32_t *ids, const int32_t *token, const struct rows *rows,
                    const struct sample_slots *slots);
void rowops_embed(struct backend *b, struct view y, const int32_t *ids, const struct weight *w,
                  int32_t first, float scale);
void rowops_add_bias(struct backend *b, struct view y, struct cview x, const float *bias);
void rowops_expert_bias(struct backend *b, struct view y, const float *bias,
                        const struct routing *r);
void rowops_expert_bias_sum(struct backend *b, struct view y, struct cview x, const float *bias,
                            const struct routing *r);
void rowops_rmsnorm(struct backend *b, struct view y, struct cview x, const float *gain, float eps);
void rowops_add_rmsnorm(struct backend *b, struct view y, struct view x, struct cview delta,
                        const float *gain, float eps);
void rowops_square_sum(struct backend *b, float *sums, struct view x, struct cview delta,
                       struct pieces pieces);
void rowops_rms_scale(struct backend *b, struct view y, struct cview x, const float *sums,
                      int32_t width, const float *gain, float eps);
void rowops_add(struct backend *b, struct view x, struct cview delta, const float *scale);
void rowops_joint_squares(struct backend *b, struct view squares, struct cview qkv,
                          const struct joint_norm *n, const struct heads *h);
void rowops_joint_scale(struct backend *b, struct view qkv, struct cview squares,
                        const struct joint_norm *n, const struct heads *h);
void rowops_latent(struct backend *b, struct view query, struct view qkv, struct cview a,
                   const struct latent_rules *rules);
void rowops_scale_queries(struct backend *b, struct view qkv, const struct heads *h,
                          const int32_t *position, float beta, int32_t original);
void rowops_rope_table(struct backend *b, struct view table, const int32_t *position,
                       const float *inv_freq, float scale);
void rowops_gate(struct backend *b, struct view y, struct cview x);
void rowops_act_mul(struct backend *b, struct view y, struct cview gu, enum activation act);
void rowops_act_by(struct backend *b, struct view y, struct cview x, const float *by, size_t stride,
                   enum activation act);
void rowops_scale(struct backend *b, struct view y, struct cview x, float by);
void rowops_softcap(struct backend *b, struct view x, float cap);
void rowops_select(struct backend *b, struct view y, struct cview x, const int32_t *index);
void rowops_copy(struct backend *b, float *dst, size_t dst_stride, const float *src,
                 size_t src_stride, int32_t rows, int32_t cols);
void rowops_sum_tree(struct backend *b, float *y, const float *const *addends, int32_t count,
                     size_t n);

/* sample.c */
enum status sample_reserve(struct cpu_backend *c, int32_t vocab, struct err *err) MUST_USE;
void sample_run(struct backend *b, int32_t *ids, struct cview logits,
                const struct sample_rows *rows, const struct sample_slots *slots);

/* rules.c: do the rules change the row of the token at `position`? Then apply does, in place, to
 * the part of the row with ids [first, first + n); count: scratch of [n]. */
bool rules_change(const struct sample_rules *r, int32_t position);
void rules_apply(float *x, int32_t first, int32_t n, const struct sample_rules *r,
                 const int32_t *history, int32_t position, int32_t *count);
/* The mask of row r; NULL: it has none. What it lacks of those ids becomes -inf. */
const uint32_t *rules_mask(const struct sample_rows *rows, const struct sample_slots *slots,
                           int64_t r);
void rules_apply_mask(float *x, int32_t first, int32_t n, const uint32_t *mask);

/* elect.c */
void elect_survey(struct backend *b, struct sample_survey *out, struct cview logits, int32_t first,
                  const struct sample_election *e, const struct sample_rows *rows,
                  const struct sample_slots *slots);
void elect_nominate(struct backend *b, union sample_ballot *ballot, struct cview logits,
                    int32_t first, const struct sample_election *e, const struct sample_rows *rows,
                    const struct sample_slots *slots);
void elect_run(struct backend *b, int32_t *ids, const struct sample_election *e,
               const struct sample_rows *rows, const struct sample_slots *slots);

/* logprobs.c */
void logprobs_run(struct backend *b, float *logprob, struct token_top *best, int32_t stride,
                  struct cview logits, const int32_t *ids, const int32_t *top);

/* cpu_generic.c, cpu_avx2.c, cpu_avx512.c, cpu_vnni.c, cpu_bf16.c, cpu_neon.c, cpu_dotprod.c: one
 * source over four vector types */
extern const struct cpu_isa cpu_generic;
extern const struct cpu_isa cpu_avx2;
extern const struct cpu_isa cpu_avx512;
extern const struct cpu_isa cpu_vnni;
extern const struct cpu_isa cpu_bf16;
extern const struct cpu_isa cpu_neon;
extern const struct cpu_isa cpu_dotprod;

#endif
