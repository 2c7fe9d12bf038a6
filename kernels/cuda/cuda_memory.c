/* DESIGN: host memory reaches the device through a ring of pinned stages. Loader threads fill
 * stages (and convert) while copies of earlier ones are under way, so reading files and copying
 * overlap and the caller's buffer is free on return. One stream carries the copies and the ops, so
 * what was uploaded is there for the ops that follow. What steps upload and fetch is small and
 * much: it shares pinned buffers, of which uploads have two, and waits for the device in land and
 * where both are under way. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/entry.h"
#include "kernels/numerics.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define STORAGE_ALIGN 256

/* ---- opening --------------------------------------------------------------------------------- */

static enum status failed(const struct cuda_backend *c, cudaError_t e, size_t bytes,
                          struct err *err)
{
    if (e == cudaSuccess)
        return OK;
    return base_fail(err, e == cudaErrorMemoryAllocation ? ERR_NOMEM : ERR_DEVICE,
                     "device %d: %zu bytes: %s", (int)c->device, bytes, cudaGetErrorString(e));
}

enum status cuda_memory_grow(struct cuda_backend *c, struct cuda_scratch *s, size_t bytes,
                             struct err *err)
{
    void *p = NULL;
    if (bytes <= s->bytes)
        return OK;
    enum status st = failed(c, cudaMalloc(&p, bytes), bytes, err);
    if (st != OK)
        return st;
    cudaFree(s->data); /* waits for what still uses it */
    s->data = p;
    s->bytes = bytes;
    return OK;
}

struct cuda_sizes cuda_memory_sizes(int32_t rows_max, int32_t in_max, int32_t out_max)
{
    const size_t rows = (size_t)rows_max,
                 samples = rows < CUDA_SAMPLE_ROWS ? rows : CUDA_SAMPLE_ROWS;
    return (struct cuda_sizes){
        .x = base_align(rows, 32) * base_align((size_t)in_max, CUDA_STEP) * sizeof(float),
        .partial = CUDA_PARTIAL_BYTES,
        .sample = samples * CUDA_SAMPLE_BYTES((size_t)out_max),
        .workspace = CUDA_WORKSPACE_BYTES,
        .tile = CUDA_TILE_BYTES,
    };
}

size_t cuda_memory_scratch_bytes(int32_t rows_max, int32_t in_max, int32_t out_max)
{
    const struct cuda_sizes s = cuda_memory_sizes(rows_max, in_max, out_max);
    return s.x + s.partial + s.sample + s.workspace + s.tile;
}

/* A pinned buffer and the event that tells when it is free. */
static enum status open_pinned(struct cuda_backend *c, unsigned char **host, void **event,
                               size_t bytes, struct err *err)
{
    enum status st = OK;
    void *p = NULL;
    cudaEvent_t e = NULL;
    TRY(failed(c, cudaMallocHost(&p, bytes), bytes, err));
    *host = p;
    TRY(failed(c, cudaEventCreateWithFlags(&e, cudaEventDisableTiming), 0, err));
    *event = e;
out:
    return st;
}

static void close_pinned(unsigned char *host, void *event)
{
    if (event != NULL)
        cudaEventDestroy(event);
    if (host != NULL)
        cudaFreeHost(host);
}

enum status cuda_memory_open(struct cuda_backend *c, struct err *err)
{
    enum status st = OK;
    struct cuda_pack *p = &c->pack;
    pthread_mutex_init(&p->lock, NULL);
    for (int i = 0; i < CUDA_STAGES; i++) {
        struct cuda_stage *s = &c->stages[i];
        pthread_mutex_init(&s->lock, NULL);
        TRY(open_pinned(c, &s->host, &s->event, CUDA_STAGE_BYTES, err));
    }
    for (int i = 0; i < 2; i++)
        TRY(open_pinned(c, &p->host[i], &p->event[i], CUDA_PACK_BYTES, err));
    for (int i = 0; i < BACKEND_FLIGHTS; i++)
        TRY(open_pinned(c, &c->flights[i].host, &c->flights[i].event, BACKEND_FETCH_MAX, err));
    const struct cuda_sizes sizes = cuda_memory_sizes(0, 0, 0);
    TRY(cuda_memory_grow(c, &c->partial, sizes.partial, err));
    TRY(failed(c, cudaMemsetAsync(c->partial.data, 0, sizes.partial, c->stream), 0, err));
    TRY(cuda_memory_grow(c, &c->workspace, sizes.workspace, err));
    TRY(cuda_memory_grow(c, &c->tile, sizes.tile, err));
out:
    return st;
}

void cuda_memory_close(struct cuda_backend *c)
{
    for (int i = 0; i < CUDA_STAGES; i++)
        close_pinned(c->stages[i].host, c->stages[i].event);
    for (int i = 0; i < 2; i++)
        close_pinned(c->pack.host[i], c->pack.event[i]);
    for (int i = 0; i < BACKEND_FLIGHTS; i++)
        close_pinned(c->flights[i].host, c->flights[i].event);
    cudaFree(c->x.data);
    cudaFree(c->partial.data);
    cudaFree(c->sample.data);
    cudaFree(c->workspace.data);
    cudaFree(c->tile.data);
    cudaFree(c->experts.data);
    cudaFree(c->tables.data);
}

void *cuda_stream(struct backend *b)
{
    return cuda_of(b)->stream;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

void *cuda_memory_alloc(struct backend *b, size_t bytes)
{
    struct cuda_backend *c = cuda_of(b);
    void *p = NULL;
    bytes = bytes > 0 ? bytes : 1;
    if (cudaMalloc(&p, bytes) != cudaSuccess) {
        (void)cudaGetLastError(); /* told by the NULL; not to be found by the next launch */
        return NULL;
    }
    cuda_note(c, "alloc", cudaMemsetAsync(p, 0, bytes, c->stream));
    return p;
}

void cuda_memory_free(struct backend *b, void *p)
{
    cuda_note(cuda_of(b), "free", cudaFree(p));
}

/* A stage that may be filled, locked. Threads without a device of their own get c's. */
static struct cuda_stage *take_stage(struct cuda_backend *c)
{
    const uint32_t n = atomic_fetch_add_explicit(&c->next_stage, 1, memory_order_relaxed);
    struct cuda_stage *s = &c->stages[n % CUDA_STAGES];
    pthread_mutex_lock(&s->lock);
    cuda_note(c, "upload", cudaSetDevice(c->device));
    cuda_wait_event(c, s->event, "upload");
    return s;
}

static void give_stage(struct cuda_backend *c, struct cuda_stage *s)
{
    cuda_note(c, "upload", cudaEventRecord(s->event, c->stream));
    pthread_mutex_unlock(&s->lock);
}

/* The buffer that is full goes on its way; the other one may still be. */
static void turn_pack(struct cuda_backend *c, struct cuda_pack *p)
{
    cuda_note(c, "upload", cudaEventRecord(p->event[p->now], c->stream));
    p->now = 1 - p->now;
    p->used = 0;
    cuda_wait_event(c, p->event[p->now], "upload");
}

static void upload_packed(struct cuda_backend *c, void *dst, const void *src, size_t bytes)
{
    struct cuda_pack *p = &c->pack;
    pthread_mutex_lock(&p->lock);
    cuda_note(c, "upload", cudaSetDevice(c->device));
    if (bytes > CUDA_PACK_BYTES - p->used)
        turn_pack(c, p);
    unsigned char *at = p->host[p->now] + p->used;
    memcpy(at, src, bytes);
    p->used += base_align(bytes, 64);
    cuda_note(c, "upload", cudaMemcpyAsync(dst, at, bytes, cudaMemcpyHostToDevice, c->stream));
    pthread_mutex_unlock(&p->lock);
}

void cuda_memory_upload(struct backend *b, void *dst, const void *src, size_t bytes)
{
    struct cuda_backend *c = cuda_of(b);
    if (bytes > 0 && bytes <= CUDA_PACK_MOST) {
        upload_packed(c, dst, src, bytes);
        return;
    }
    for (size_t at = 0, n; at < bytes; at += n) {
        struct cuda_stage *s = take_stage(c);
        n = bytes - at < CUDA_STAGE_BYTES ? bytes - at : CUDA_STAGE_BYTES;
        memcpy(s->host, (const unsigned char *)src + at, n);
        cuda_note(c, "upload",
                  cudaMemcpyAsync((unsigned char *)dst + at, s->host, n, cudaMemcpyHostToDevice,
                                  c->stream));
        give_stage(c, s);
    }
}

enum status cuda_memory_download(struct backend *b, void *dst, const void *src, size_t bytes,
                                 struct err *err)
{
    struct cuda_backend *c = cuda_of(b);
    for (size_t at = 0, n; at < bytes; at += n) {
        struct cuda_stage *s = take_stage(c);
        n = bytes - at < CUDA_STAGE_BYTES ? bytes - at : CUDA_STAGE_BYTES;
        cuda_note(c, "download",
                  cudaMemcpyAsync(s->host, (const unsigned char *)src + at, n,
                                  cudaMemcpyDeviceToHost, c->stream));
        cuda_wait(c, "download");
        memcpy((unsigned char *)dst + at, s->host, n);
        pthread_mutex_unlock(&s->lock);
    }
    return cuda_told(c, err);
}

void cuda_memory_fetch(struct backend *b, int32_t flight, void *dst, const void *src, size_t bytes)
{
    struct cuda_backend *c = cuda_of(b);
    struct cuda_flight *f = &c->flights[flight];
    CHECK(bytes <= BACKEND_FETCH_MAX - f->used && f->pieces < BACKEND_FETCHES);
    if (bytes > 0) {
        cuda_note(
            c, "fetch",
            cudaMemcpyAsync(f->host + f->used, src, bytes, cudaMemcpyDeviceToHost, c->stream));
        f->piece[f->pieces++] = (struct cuda_piece){dst, f->used, bytes};
        f->used += bytes;
    }
    cuda_note(c, "fetch", cudaEventRecord(f->event, c->stream));
}

bool cuda_memory_landed(struct backend *b, int32_t flight)
{
    return cuda_passed(cuda_of(b), cuda_of(b)->flights[flight].event, "fetch");
}

enum status cuda_memory_land(struct backend *b, int32_t flight, struct err *err)
{
    struct cuda_backend *c = cuda_of(b);
    struct cuda_flight *f = &c->flights[flight];
    while (!cuda_passed(c, f->event, "fetch"))
        ;
    for (int32_t i = 0; i < f->pieces; i++)
        memcpy(f->piece[i].dst, f->host + f->piece[i].at, f->piece[i].bytes);
    f->pieces = 0;
    f->used = 0;
    return cuda_told(c, err);
}

/* ---- weights and caches ---------------------------------------------------------------------- */

static size_t values_bytes(const struct weight_spec *spec)
{
    return cuda_values_bytes(spec->in, spec->dtype);
}

size_t cuda_memory_weight_bytes(const struct weight_spec *spec)
{
    return base_align(cuda_layout_of(spec).end, STORAGE_ALIGN);
}

size_t cuda_memory_kv_bytes(const struct kv_spec *s)
{
    const size_t sides = s->latent > 0 ? 1 : 2;
    if (s->stride > 0)
        return (size_t)s->blocks * s->stride;
    return base_align((size_t)s->layers * (size_t)s->blocks * (size_t)s->heads * sides *
                          BACKEND_BLOCK_TOKENS * (size_t)s->head_dim * dtype_size(s->dtype),
                      STORAGE_ALIGN);
}

/* Where a word of 4 bits has element k: cuda_values_bytes. */
static int place_in_word(int32_t k)
{
    return 16 * (k % 2) + 4 * (k % 8 / 2);
}

static uint32_t nibble_at(const unsigned char *row, int32_t k)
{
    uint32_t word;
    memcpy(&word, row + k / 8 * (ptrdiff_t)sizeof word, sizeof word);
    return word >> place_in_word(k) & 15u;
}

/* Of each group the least that makes no code negative. */
static void find_zeros(unsigned char *zeros, const struct weight_spec *spec, const int8_t *codes)
{
    for (int32_t k = 0, end; k < spec->in; k = end) {
        int32_t least = 0;
        end = backend_scale_end(spec, k);
        for (int32_t i = k; i < end; i++)
            least = codes[i] < least ? codes[i] : least;
        zeros[backend_scale_of(spec, k)] = (unsigned char)-least;
    }
}

static uint32_t nibble_of(enum dtype dtype, int32_t code, int32_t zero)
{
    if (dtype == DTYPE_F4_E2M1) {
        CHECK(code >= -12 && code <= 12);
        return numerics_e2m1_code((int8_t)code);
    }
    CHECK(code + zero >= 0 && code + zero <= 15);
    return (uint32_t)(code + zero);
}

static void pack_nibbles(unsigned char *dst, const struct weight_spec *spec, const int8_t *codes)
{
    unsigned char *zeros = dst + values_bytes(spec);
    if (spec->dtype == DTYPE_U4)
        find_zeros(zeros, spec, codes);
    for (int32_t k = 0; k < spec->in; k += 8, dst += sizeof(uint32_t)) {
        uint32_t word = 0;
        for (int32_t i = k; i < spec->in && i < k + 8; i++) {
            const int32_t group = (spec->scale_skip + i) / BACKEND_GROUP;
            const int32_t zero = spec->dtype == DTYPE_U4 ? zeros[group] : 8;
            word |= nibble_of(spec->dtype, codes[i], zero) << place_in_word(i);
        }
        memcpy(dst, &word, sizeof word);
    }
}

static float int_scale(const unsigned char *scales, const struct weight_spec *spec, size_t group)
{
    if (!spec->scales_f32)
        return dtype_load(scales, DTYPE_BF16, group);
    return dtype_load(scales, DTYPE_BF16, 2 * group) +
           dtype_load(scales, DTYPE_BF16, 2 * group + 1);
}

/* Element k of a stored row, whose zeros and scales follow here. */
static float value_at(const unsigned char *row, const struct weight_spec *spec, int32_t k)
{
    const struct cuda_layout l = cuda_layout_of(spec);
    const size_t group = (size_t)backend_scale_of(spec, k);
    const unsigned char *zeros = row + l.codes, *scales = zeros + l.zeros;
    const enum dtype dtype = spec->dtype;
    if (dtype == DTYPE_F4_E2M1)
        return (float)numerics_e2m1_twice(nibble_at(row, k)) * ldexpf(0.5f, scales[group] - 127);
    if (dtype == DTYPE_I4 || dtype == DTYPE_U4) {
        const int32_t zero = dtype == DTYPE_U4 ? zeros[group] : 8;
        return (float)((int32_t)nibble_at(row, k) - zero) * int_scale(scales, spec, group);
    }
    const float value = dtype_load(row, dtype, (size_t)k);
    return dtype == DTYPE_I8        ? value * int_scale(scales, spec, group)
           : dtype == DTYPE_F8_E4M3 ? value * dtype_load(scales, DTYPE_F32, group)
                                    : value;
}

/* Codes of one row and, of U4, its zeros, in the storage's type; the tail is zero bits. */
static void convert_row(unsigned char *dst, const struct weight_spec *spec, const void *src,
                        enum dtype src_dtype)
{
    const size_t in = (size_t)spec->in, used = in * dtype_size(spec->dtype);
    if (cuda_is_nibbles(spec->dtype)) {
        memset(dst, 0, cuda_layout_of(spec).codes + cuda_layout_of(spec).zeros);
        pack_nibbles(dst, spec, src);
        return;
    }
    if (src_dtype == spec->dtype)
        memcpy(dst, src, used);
    else
        for (size_t k = 0; k < in; k++)
            dtype_store(dst, spec->dtype, k, dtype_load(src, src_dtype, k));
    memset(dst + used, 0, values_bytes(spec) - used);
}

/* n times so many bytes, `stride` from each other in a stage and `pitch` in the weight. */
static void put_rows(struct cuda_backend *c, const char *what, unsigned char *dst, size_t pitch,
                     const unsigned char *src, size_t stride, size_t bytes, int32_t n)
{
    if (bytes > 0)
        cuda_note(c, what,
                  cudaMemcpy2DAsync(dst, pitch, src, stride, bytes, (size_t)n,
                                    cudaMemcpyHostToDevice, c->stream));
}

void cuda_memory_weight_put(struct weight *w, int32_t row, int32_t rows, const void *src,
                            enum dtype src_dtype, size_t stride)
{
    struct cuda_backend *c = cuda_of(w->backend);
    const struct cuda_layout l = cuda_layout_of(&w->spec);
    const size_t bytes = l.codes + l.zeros;
    CHECK(dtype_is_int(w->spec.dtype) == (src_dtype == DTYPE_I8));
    if (rows == 0 || bytes == 0)
        return;
    CHECK(bytes <= CUDA_STAGE_BYTES);
    const int32_t most = (int32_t)(CUDA_STAGE_BYTES / bytes);
    for (int32_t at = 0, n; at < rows; at += n) {
        struct cuda_stage *s = take_stage(c);
        n = rows - at < most ? rows - at : most;
        for (int32_t r = 0; r < n; r++)
            convert_row(s->host + (size_t)r * bytes, &w->spec,
                        (const unsigned char *)src + (size_t)(at + r) * stride, src_dtype);
        const size_t first = (size_t)(row + at);
        put_rows(c, "weight_put", w->storage + first * l.pitch, l.pitch, s->host, bytes, l.codes,
                 n);
        put_rows(c, "weight_put", w->storage + l.groups_at + first * l.groups_pitch, l.groups_pitch,
                 s->host + l.codes, bytes, l.zeros, n);
        give_stage(c, s);
    }
}

/* Those of F4_E2M1 are of twice the values. */
static unsigned char exponent_of(float scale)
{
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    CHECK((bits & 0x807fffffu) == 0 && bits > 0 && bits < 0xfeu << 23);
    return (unsigned char)((bits >> 23) + 1);
}

/* Rounded to 11 bits, which two bf16 have, such that products of 4 bits with either are exact. */
static void store_split(unsigned char *dst, size_t i, float scale)
{
    uint32_t bits, high;
    float rounded, larger;
    memcpy(&bits, &scale, sizeof bits);
    bits = (bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu;
    high = bits & 0xffff0000u;
    memcpy(&rounded, &bits, sizeof rounded);
    memcpy(&larger, &high, sizeof larger);
    dtype_store(dst, DTYPE_BF16, 2 * i, larger);
    dtype_store(dst, DTYPE_BF16, 2 * i + 1, rounded - larger);
}

static void convert_scales(unsigned char *dst, const struct weight_spec *spec, const float *scale,
                           size_t n)
{
    if (spec->dtype == DTYPE_F8_E4M3) {
        memcpy(dst, scale, n * sizeof *scale);
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (spec->dtype == DTYPE_F4_E2M1)
            dst[i] = exponent_of(scale[i]);
        else if (spec->scales_f32)
            store_split(dst, i, scale[i]);
        else
            dtype_store(dst, DTYPE_BF16, i, scale[i]);
}

void cuda_memory_weight_scale(struct weight *w, int32_t row, int32_t rows, const float *scale)
{
    struct cuda_backend *c = cuda_of(w->backend);
    const size_t scales = (size_t)backend_scales(&w->spec);
    const struct cuda_layout l = cuda_layout_of(&w->spec);
    const size_t bytes = l.groups - l.zeros;
    if (rows == 0 || scales == 0)
        return;
    CHECK(bytes <= CUDA_STAGE_BYTES);
    const int32_t most = (int32_t)(CUDA_STAGE_BYTES / bytes);
    for (int32_t at = 0, n; at < rows; at += n) {
        struct cuda_stage *s = take_stage(c);
        n = rows - at < most ? rows - at : most;
        convert_scales(s->host, &w->spec, scale + (size_t)at * scales, (size_t)n * scales);
        put_rows(c, "weight_scale",
                 w->storage + l.groups_at + (size_t)(row + at) * l.groups_pitch + l.zeros,
                 l.groups_pitch, s->host, bytes, bytes, n);
        give_stage(c, s);
    }
}

void cuda_memory_weight_get(const struct weight *w, int32_t row, float *dst)
{
    struct cuda_backend *c = cuda_of(w->backend);
    struct cuda_stage *s = take_stage(c);
    const struct weight_spec *spec = &w->spec;
    const struct cuda_layout l = cuda_layout_of(spec);
    const size_t at = (size_t)row * l.pitch, groups_at = (size_t)row * l.groups_pitch + l.groups_at;
    CHECK(l.codes + l.groups <= CUDA_STAGE_BYTES);
    cuda_note(
        c, "weight_get",
        cudaMemcpyAsync(s->host, w->storage + at, l.codes, cudaMemcpyDeviceToHost, c->stream));
    cuda_note(c, "weight_get",
              cudaMemcpyAsync(s->host + l.codes, w->storage + groups_at, l.groups,
                              cudaMemcpyDeviceToHost, c->stream));
    cuda_wait(c, "weight_get");
    for (int32_t k = 0; k < spec->in; k++)
        dst[k] = value_at(s->host, spec, k);
    pthread_mutex_unlock(&s->lock);
}
