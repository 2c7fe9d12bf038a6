/* Inside of the CUDA backend: one device, one stream, everything in its order. Ops that live in .cu
 * files have the signatures of struct backend_ops. Third-party types stay out of this header. */
#ifndef TESSERA_KERNELS_CUDA_CUDA_H
#define TESSERA_KERNELS_CUDA_CUDA_H

#include "kernels/handles.h"

#include <pthread.h>

#define CUDA_WATCH_NS 1000000
#define CUDA_STAGES 16
#define CUDA_STAGE_BYTES ((size_t)4 << 20)
#define CUDA_PACK_BYTES ((size_t)1 << 20)
#define CUDA_PACK_MOST ((size_t)64 << 10)    /* of one upload; bigger ones take a stage */
#define CUDA_SAMPLE_ROWS 64                  /* rows sampled at once: bounds their scratch */
#define CUDA_SKETCH_BYTES ((size_t)11 << 10) /* of such a row, besides a logit and a count of */
#define CUDA_SAMPLE_BYTES(cols) ((cols) * (sizeof(float) + sizeof(int32_t)) + CUDA_SKETCH_BYTES)
#define CUDA_WORKSPACE_BYTES ((size_t)32 << 20) /* cuBLAS's advice for Hopper */
#ifndef CUDA_PARTIAL_BYTES
#define CUDA_PARTIAL_BYTES ((size_t)36 << 20) /* of split attention: 64 rows, 32 heads of 128 */
#endif
#ifndef CUDA_TILE_BYTES
#define CUDA_TILE_BYTES ((size_t)32 << 20) /* of a weight of codes, widened */
#endif

/* A pinned host buffer on its way to the device. The lock is held while it is filled; the event
 * tells when it may be filled again. */
struct cuda_stage {
    pthread_mutex_t lock;
    unsigned char *host;
    void *event; /* cudaEvent_t */
};

/* Small uploads lie one after the other in a pinned buffer, then in the next: steps have many, and
 * one event is enough for hundreds of them. */
struct cuda_pack {
    pthread_mutex_t lock;
    unsigned char *host[2];
    void *event[2]; /* cudaEvent_t: it may be filled again */
    int32_t now;    /* the one that is being filled, */
    size_t used;    /* so far */
};

/* Downloads nobody waits for yet, in a pinned buffer. */
struct cuda_flight {
    unsigned char *host;
    void *event; /* cudaEvent_t: all of it is there */
    size_t used;
    int32_t pieces;
    struct cuda_piece {
        void *dst;
        size_t at, bytes;
    } piece[BACKEND_FETCHES];
};

struct cuda_scratch {
    void *data;
    size_t bytes;
};

/* Bytes of the scratch for ops of these sizes: all that a backend takes for itself on the device.
 */
struct cuda_sizes {
    size_t x, partial, sample, workspace, tile;
};

struct blas; /* blas.h */

/* The last answer to how many blocks of attention are a cluster: all layers of a step ask the same,
 * and the driver needs microseconds for it. */
struct cuda_clusters {
    const void *kernel;
    unsigned x, y, z, size;
};

struct cuda_backend {
    struct backend base;
    int32_t device;
    int processors; /* of the device */
    int shared;     /* bytes of memory of each of them */
    void *stream;   /* cudaStream_t */
    struct blas *blas;
    struct pool *pool;
    struct cuda_stage stages[CUDA_STAGES];
    _Atomic uint32_t next_stage;
    struct cuda_pack pack;
    struct cuda_flight flights[BACKEND_FLIGHTS];
    /* Device scratch: x in the type of the weight; partial attention; rows being sampled; cuBLAS's;
     * what a product of a weight of codes makes of it; the order of rows by expert, their products.
     */
    struct cuda_scratch x, partial, sample, workspace, tile, experts;
    struct cuda_scratch tables; /* of pointers, of all mixtures that are open, */
    size_t table_pointers;      /* one after the other until none is */
    int32_t tables_open;
    struct cuda_clusters clusters;
    /* Between record and record_end; a failure then is no failure of the ops. */
    bool recording, unrecordable;
    /* Asked every CUDA_WATCH_NS while the host waits; NULL: nobody. */
    enum status (*watch)(void *arg, struct err *err);
    void *watch_arg;
    int64_t watched;          /* ns, when last */
    pthread_mutex_t watching; /* by one thread at a time; the others need not wait for it */
    /* The first thing that went wrong, told by every download and land from then on. */
    pthread_mutex_t failure_lock;
    enum status failed;
    struct err failure;
};

static inline struct cuda_backend *cuda_of(struct backend *b)
{
    return (struct cuda_backend *)b;
}

#define CUDA_VECTOR 16 /* bytes: rows of weights begin at, and consist of, whole ones */
#define CUDA_LINE 128  /* bytes of the cache, in which memory is read */

static inline bool cuda_is_nibbles(enum dtype dtype)
{
    return dtype == DTYPE_I4 || dtype == DTYPE_U4 || dtype == DTYPE_F4_E2M1;
}

/* Elements of a stored row: the tail beyond `in` is zero bits. */
static inline size_t cuda_pitch(int32_t in, enum dtype dtype)
{
    const size_t n = cuda_is_nibbles(dtype) ? 2 * CUDA_VECTOR : CUDA_VECTOR / dtype_size(dtype);
    return ((size_t)in + n - 1) / n * n; /* n: of a vector */
}

/* Of a row's codes or values alone. 4 bits: a word has eight elements, those of even number in its
 * lower half (forms.cuh); an I4 is its code plus 8, a U4 its code plus the zero of its group. */
static inline size_t cuda_values_bytes(int32_t in, enum dtype dtype)
{
    const size_t pitch = cuda_pitch(in, dtype);
    return cuda_is_nibbles(dtype) ? pitch / 2 : pitch * dtype_size(dtype);
}

/* Of F4_E2M1 a scale is an exponent, biased as those of bf16, of the values' scale. Those in F32 of
 * integers are two bf16, the larger first: 11 bits of them, all that an fp16 or a bf16 has. */
static inline size_t cuda_scale_bytes(const struct weight_spec *s)
{
    return s->dtype == DTYPE_F4_E2M1 ? 1 : dtype_is_int(s->dtype) && !s->scales_f32 ? 2 : 4;
}

/* In whole lines, if that adds a 64th at most: always from 7 KiB on, of multiples of a vector. */
static inline size_t cuda_in_lines(size_t bytes)
{
    const size_t lines = base_align(bytes, CUDA_LINE);
    return (lines - bytes) * 64 <= bytes ? lines : bytes;
}

/* Where a stored weight has what, in bytes. Rows of codes are to begin at lines: one that begins
 * elsewhere takes more reads, which few rows of x have nothing to hide behind. So the zeros and
 * scales of a row follow its codes only where that makes a row of whole lines, and never of
 * F8_E4M3. Else they lie apart, row by row, behind the codes of all rows, which are in whole lines
 * if that is cheap. A scale for each row of F8_E4M3 is a list as cuBLAS wants it. */
struct cuda_layout {
    size_t codes, pitch;  /* of a row's codes or values; and from one row's to the next's */
    size_t zeros, groups; /* of a row's zeros (U4: a byte for each group), and with its scales */
    size_t groups_at, groups_pitch; /* where those of the first row are; and of the next */
    size_t end;
};

static inline struct cuda_layout cuda_layout_of(const struct weight_spec *s)
{
    const size_t out = (size_t)s->out, scales = (size_t)backend_scales(s);
    struct cuda_layout l;
    l.codes = cuda_values_bytes(s->in, s->dtype);
    l.zeros = s->dtype == DTYPE_U4 ? base_align(scales, sizeof(uint32_t)) : 0;
    l.groups = l.zeros + scales * cuda_scale_bytes(s);
    l.pitch = l.groups_pitch = base_align(l.codes + l.groups, CUDA_VECTOR);
    l.groups_at = l.codes;
    l.end = out * l.pitch;
    if (scales > 0 && (s->dtype == DTYPE_F8_E4M3 || l.pitch % CUDA_LINE != 0)) {
        l.pitch = cuda_in_lines(l.codes);
        l.groups_pitch = l.groups;
        l.groups_at = out * l.pitch;
        l.end = l.groups_at + out * l.groups;
    }
    return l;
}

/* Remembers the first failure of an asynchronous op; code is a cudaError_t, 0 is none. */
void cuda_note(struct cuda_backend *c, const char *what, int code);
/* The same with words of another library. */
void cuda_note_text(struct cuda_backend *c, const char *what, const char *text);

/* > 0. ERR_DEVICE: no driver, no device. */
enum status cuda_count_devices(int *count, struct err *err) MUST_USE;

/* Until all that was enqueued is done, or ended by the watcher; the same for what was enqueued
 * before a cudaEvent_t was recorded. */
void cuda_wait(struct cuda_backend *c, const char *what);
void cuda_wait_event(struct cuda_backend *c, void *event, const char *what);
/* Whether all that was enqueued before a cudaEvent_t was recorded is; asks the watcher, too. */
bool cuda_passed(struct cuda_backend *c, void *event, const char *what);
/* What went wrong first, if anything. */
enum status cuda_told(struct cuda_backend *c, struct err *err);

/* cuda_memory.c */
struct cuda_sizes cuda_memory_sizes(int32_t rows_max, int32_t in_max, int32_t out_max);
size_t cuda_memory_scratch_bytes(int32_t rows_max, int32_t in_max, int32_t out_max);
enum status cuda_memory_open(struct cuda_backend *c, struct err *err) MUST_USE;
void cuda_memory_close(struct cuda_backend *c);
enum status cuda_memory_grow(struct cuda_backend *c, struct cuda_scratch *s, size_t bytes,
                             struct err *err) MUST_USE;
void *cuda_memory_alloc(struct backend *b, size_t bytes);
void cuda_memory_free(struct backend *b, void *p);
void cuda_memory_upload(struct backend *b, void *dst, const void *src, size_t bytes);
enum status cuda_memory_download(struct backend *b, void *dst, const void *src, size_t bytes,
                                 struct err *err);
void cuda_memory_fetch(struct backend *b, int32_t flight, void *dst, const void *src, size_t bytes);
bool cuda_memory_landed(struct backend *b, int32_t flight);
enum status cuda_memory_land(struct backend *b, int32_t flight, struct err *err);
size_t cuda_memory_weight_bytes(const struct weight_spec *spec);
void cuda_memory_weight_scale(struct weight *w, int32_t row, int32_t rows, const float *scale);
size_t cuda_memory_kv_bytes(const struct kv_spec *spec);
void cuda_memory_weight_put(struct weight *w, int32_t row, int32_t rows, const void *src,
                            enum dtype src_dtype, size_t stride);
void cuda_memory_weight_get(const struct weight *w, int32_t row, float *dst);

/* record.c */
bool record_begin(struct backend *b);
struct recording *record_end(struct backend *b);
void record_replay(struct backend *b, const struct recording *r);
void record_close(struct recording *r);

/* rowops.cu */
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
void rowops_latent(struct backend *b, struct view query, struct view qkv, struct cview a,
                   const struct latent_rules *rules);
void rowops_square_sum(struct backend *b, float *sums, struct view x, struct cview delta,
                       struct pieces pieces);
void rowops_rms_scale(struct backend *b, struct view y, struct cview x, const float *sums,
                      int32_t width, const float *gain, float eps);
void rowops_add(struct backend *b, struct view x, struct cview delta, const float *scale);
void rowops_joint_squares(struct backend *b, struct view squares, struct cview qkv,
                          const struct joint_norm *n, const struct heads *h);
void rowops_joint_scale(struct backend *b, struct view qkv, struct cview squares,
                        const struct joint_norm *n, const struct heads *h);
void rowops_scale(struct backend *b, struct view y, struct cview x, float by);
void rowops_softcap(struct backend *b, struct view x, float cap);
void rowops_select(struct backend *b, struct view y, struct cview x, const int32_t *index);
void rowops_copy(struct backend *b, float *dst, size_t dst_stride, const float *src,
                 size_t src_stride, int32_t rows, int32_t cols);
void rowops_sum_tree(struct backend *b, float *y, const float *const *addends, int32_t count,
                     size_t n);

/* act.cu */
void act_mul(struct backend *b, struct view y, struct cview gu, enum activation act);
void act_by(struct backend *b, struct view y, struct cview x, const float *by, size_t stride,
            enum activation act);
void act_gate(struct backend *b, struct view y, struct cview x);

/* rope.cu */
void rope_scale_queries(struct backend *b, struct view qkv, const struct heads *h,
                        const int32_t *position, float beta, int32_t original);
void rope_table(struct backend *b, struct view table, const int32_t *position,
                const float *inv_freq, float scale);
void rope_kv(struct backend *b, struct view qkv, const struct qkv_rules *rules, struct cview table,
             const struct heads *h, const struct rows *rows, struct kv_cache *kv, int32_t layer);

/* linear.cu. invariant: a row's bits depend on no other row, and leaves are those of the spec. */
void linear_run(struct backend *b, struct view y, struct cview x, const struct weight *w);
void linear_invariant(struct backend *b, struct view y, struct cview x, const struct weight *w);
bool linear_fuses(struct backend *b, const struct weight *w, int32_t rows,
                  const struct linear_fusion *f);
bool linear_invariant_fuses(struct backend *b, const struct weight *w, int32_t rows,
                            const struct linear_fusion *f);
void linear_fused(struct backend *b, struct view y, struct cview x, const struct weight *w,
                  const struct linear_fusion *f);
enum dtype linear_in(struct backend *b, const struct weight *w, int32_t rows);
enum dtype linear_out(struct backend *b, const struct weight *w, int32_t rows);
enum dtype linear_invariant_type(struct backend *b, const struct weight *w, int32_t rows);

#define CUDA_STEP 128 /* columns of x that narrow.cu fills up to */
/* gemv.cu: the same for few rows at a time, GEMV_ROWS of them in one pass over the weight.
 * gemm.cu: for many, with the same bits, in tiles of GEMM_ROWS. experts: of each pair of a row and
 * one of its experts, where p's x and y are those of all pairs. */
#define GEMV_ROWS 16
#define GEMM_ROWS 64
struct product; /* product.cuh */
struct mixture;
void gemv_run(struct cuda_backend *c, const struct weight_spec *s, const struct product *p);
void gemm_run(struct cuda_backend *c, const struct weight_spec *s, const struct product *p);
void gemv_experts(struct cuda_backend *c, const struct weight_spec *s, const struct product *p,
                  const struct mixture *m);
/* The same added to y, of up to 8 rows. */
void gemv_add(struct cuda_backend *c, const struct weight_spec *s, const struct product *p);
/* gemv_fused.cu: linear_fuses and linear_fused of such a product. */
bool gemv_fuses(const struct weight_spec *s, const struct product *p,
                const struct linear_fusion *f);
void gemv_fused(struct cuda_backend *c, const struct weight_spec *s, const struct product *p,
                const struct linear_fusion *f);
void gemm_experts(struct cuda_backend *c, const struct weight_spec *s, const struct product *p,
                  const struct mixture *m);

/* narrow.cu: weights of 4 and 8 bits and up to NARROW_ROWS rows, more than those of gemv.cu; x is
 * rounded to bf16. false: there is no kernel for where its scales change, nothing has been done. */
#define NARROW_ROWS 256
bool narrow_run(struct cuda_backend *c, const struct weight_spec *s, const struct product *p);
/* The same with the bits of gemv.cu, of integers, for any number of rows. */
bool narrow_exact(struct cuda_backend *c, const struct weight_spec *s, const struct product *p);

/* route.cu */
void route_run(struct backend *b, const struct routing *r, struct cview logits,
               const struct routing_rules *rules);

/* experts.cu. invariant: leaves are those of the spec. */
struct experts *experts_open(struct backend *b, const struct weight *const *weight, int32_t count,
                             int32_t chosen, int32_t rows_max);
void experts_close(struct experts *e);
size_t experts_bytes(const struct weight_spec *spec, int32_t count, int32_t chosen,
                     int32_t rows_max);
void experts_linear(struct backend *b, struct view y, struct cview x, const struct experts *w,
                    const struct routing *r);
void experts_sum(struct backend *b, struct view y, struct cview x, const struct experts *w,
                 const struct routing *r);
void experts_sum_invariant(struct backend *b, struct view y, struct cview x,
                           const struct experts *w, const struct routing *r);
/* Where the weights of each lie, on the device. */
const unsigned char *const *experts_table(const struct experts *w);

/* attend.cu. invariant: a row's bits do not depend on which rows of its sequence are in the step.
 */
void attend_run(struct backend *b, struct view out, struct cview qkv, const struct heads *h,
                const struct attention *how, const struct rows *rows, const struct kv_cache *kv,
                int32_t layer);
void attend_invariant(struct backend *b, struct view out, struct cview qkv, const struct heads *h,
                      const struct attention *how, const struct rows *rows,
                      const struct kv_cache *kv, int32_t layer);
/* Of both: decodes in one launch where there is a kernel for it. */
void attend_rope_run(struct backend *b, struct view out, struct view qkv,
                     const struct qkv_rules *rules, struct cview table, const struct heads *h,
                     const struct attention *how, const struct rows *rows, struct kv_cache *kv,
                     int32_t layer);

/* head_linear.cu */
void head_linear_run(struct backend *b, struct view y, struct cview x, const struct experts *w,
                     int32_t kept);

/* delta_rule.cu */
void delta_rule_run(struct backend *b, struct view out, struct view a, struct cview gates,
                    const struct recurrent_heads *h, const struct recurrent_rules *rules,
                    const struct rows *rows, const struct recurrent_state *state);

/* sample.cu */
void sample_resolve(struct backend *b, int32_t *ids, const int32_t *token, const struct rows *rows,
                    const struct sample_slots *slots);
void sample_run(struct backend *b, int32_t *ids, struct cview logits,
                const struct sample_rows *rows, const struct sample_slots *slots);
void sample_logprobs(struct backend *b, float *logprob, struct token_top *best, int32_t stride,
                     struct cview logits, const int32_t *ids, const int32_t *top);

/* elect.cu */
void elect_survey(struct backend *b, struct sample_survey *out, struct cview logits, int32_t first,
                  const struct sample_election *e, const struct sample_rows *rows,
                  const struct sample_slots *slots);
void elect_nominate(struct backend *b, union sample_ballot *ballot, struct cview logits,
                    int32_t first, const struct sample_election *e, const struct sample_rows *rows,
                    const struct sample_slots *slots);
void elect_run(struct backend *b, int32_t *ids, const struct sample_election *e,
               const struct sample_rows *rows, const struct sample_slots *slots);

#endif
