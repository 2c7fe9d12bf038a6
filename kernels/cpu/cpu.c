/* DESIGN: one op table per variant, the same functions behind all; the instance holds the variant's
 * inner kernels. Ops run synchronously on the caller and the pool, so sync has nothing to wait for.
 * Scratch grows in cpu_grow alone, and cpu_reserve makes sure that this happens before serving. */
#include "kernels/cpu/cpu.h"
#include "kernels/host_memory.h"

#include <stdlib.h>

static void cpu_close(struct backend *b)
{
    struct cpu_backend *c = cpu_of(b);
    pool_close(c->pool);
    free(c->packed);
    free(c->partial);
    free(c->list);
    free(c);
}

static void cpu_sync(struct backend *b)
{
    (void)b;
}

/* *block = at least `count` elements of `size` for each of `copies`, when it has only *have. */
static enum status grow(void **block, size_t *have, size_t count, size_t size, size_t copies,
                        struct err *err)
{
    size_t bytes;
    if (count <= *have)
        return OK;
    count = base_align(count, 16);
    if (!base_mul(count, size * copies, &bytes))
        return base_fail(err, ERR_LIMIT, "scratch of %zu elements is too large", count);
    void *p = aligned_alloc(64, base_align(bytes, 64));
    if (p == NULL)
        return base_fail(err, ERR_NOMEM, "no memory for %zu bytes of scratch", bytes);
    free(*block);
    *block = p;
    *have = count;
    return OK;
}

enum status cpu_grow(struct cpu_backend *c, size_t packed_floats, size_t partial_floats,
                     size_t list_ids, struct err *err)
{
    enum status st;
    const size_t threads = (size_t)pool_threads(c->pool);
    void *packed = c->packed, *partial = c->partial, *list = c->list;
    TRY(grow(&packed, &c->packed_floats, packed_floats, sizeof(float), 1, err));
    TRY(grow(&partial, &c->partial_floats, partial_floats, sizeof(float), threads, err));
    TRY(grow(&list, &c->list_ids, list_ids, sizeof(int32_t), threads, err));
out:
    c->packed = packed;
    c->partial = partial;
    c->list = list;
    return st;
}

static enum status cpu_reserve(struct backend *b, int32_t rows_max, int32_t in_max, int32_t out_max,
                               struct err *err)
{
    enum status st;
    TRY(linear_reserve(cpu_of(b), rows_max, in_max, err));
    TRY(sample_reserve(cpu_of(b), out_max, err));
out:
    return st;
}

static void cpu_parallel(struct backend *b, int64_t count, int64_t grain,
                         void (*fn)(void *arg, int64_t begin, int64_t end), void *arg)
{
    pool_share(cpu_of(b)->pool, count, grain, fn, arg);
}

#define CPU_OPS(variant)                                                                           \
    {                                                                                              \
        .name = (variant), .weight_bytes = layout_weight_bytes, .kv_bytes = layout_kv_bytes,       \
        .weight_scale = layout_weight_scale, .probe = host_memory_probe,                           \
        .scratch_bytes = host_memory_scratch_bytes, .record = host_memory_record,                  \
        .record_end = host_memory_record_end, .replay = host_memory_replay,                        \
        .recording_close = host_memory_recording_close, .alloc = host_memory_alloc,                \
        .free = host_memory_free, .upload = host_memory_upload, .download = host_memory_download,  \
        .fetch = host_memory_fetch, .landed = host_memory_landed, .land = host_memory_land,        \
        .close = cpu_close, .sync = cpu_sync, .reserve = cpu_reserve, .parallel = cpu_parallel,    \
        .weight_open = layout_weight_open, .weight_close = layout_weight_close,                    \
        .weight_put = layout_weight_put, .weight_get = layout_weight_get,                          \
        .kv_open = layout_kv_open, .kv_close = layout_kv_close, .resolve = rowops_resolve,         \
        .experts_open = experts_open, .experts_close = host_memory_experts_close,                  \
        .experts_bytes = host_memory_experts_bytes, .route = experts_route,                        \
        .expert_linear = experts_linear, .expert_sum = experts_sum,                                \
        .head_linear = head_linear_run, .latent = rowops_latent, .embed = rowops_embed,            \
        .linear = linear_run, .linear_fuses = host_memory_linear_fuses,                            \
        .linear_fused = host_memory_linear_fused, .linear_in = host_memory_linear_type,            \
        .linear_out = host_memory_linear_type, .add_bias = rowops_add_bias,                        \
        .expert_bias = rowops_expert_bias, .expert_bias_sum = rowops_expert_bias_sum,              \
        .rmsnorm = rowops_rmsnorm, .add_rmsnorm = rowops_add_rmsnorm,                              \
        .square_sum = rowops_square_sum, .rms_scale = rowops_rms_scale, .add = rowops_add,         \
        .joint_squares = rowops_joint_squares, .joint_scale = rowops_joint_scale,                  \
        .scale_queries = rowops_scale_queries, .rope_table = rowops_rope_table,                    \
        .rope_kv = attend_rope_kv, .attend = attend_run, .delta_rule = recurrent_delta_rule,       \
        .gate = rowops_gate, .act_mul = rowops_act_mul, .scale = rowops_scale,                     \
        .softcap = rowops_softcap, .select = rowops_select, .copy = rowops_copy,                   \
        .sum_tree = rowops_sum_tree, .sample = sample_run, .survey = elect_survey,                 \
        .nominate = elect_nominate, .elect = elect_run, .logprobs = logprobs_run,                  \
        .rope_attend = host_memory_rope_attend, .act_by = rowops_act_by,                           \
    }

struct variant {
    const struct cpu_isa *isa;
    bool (*usable)(void);
    struct backend_ops ops;
};

static bool usable_always(void)
{
    return true;
}

#if defined(__x86_64__)
#include <cpuid.h>

/* F16C by hand: not every compiler knows its name. The others also check the operating system. */
static bool usable_avx2(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0 &&
           __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool usable_avx512(void)
{
    return usable_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

static bool usable_vnni(void)
{
    return usable_avx512() && __builtin_cpu_supports("avx512vnni");
}

/* By hand, too: bit 5 of EAX of leaf 7.1. */
static bool usable_bf16(void)
{
    unsigned eax, ebx, ecx, edx;
    return usable_vnni() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 &&
           (eax & 1u << 5) != 0;
}

#define CPU_NAMES "cpu-generic, cpu-avx2, cpu-avx512, cpu-vnni, cpu-bf16"

/* Best first. */
static const struct variant variants[] = {
    {&cpu_bf16, usable_bf16, CPU_OPS("cpu-bf16")},
    {&cpu_vnni, usable_vnni, CPU_OPS("cpu-vnni")},
    {&cpu_avx512, usable_avx512, CPU_OPS("cpu-avx512")},
    {&cpu_avx2, usable_avx2, CPU_OPS("cpu-avx2")},
    {&cpu_generic, usable_always, CPU_OPS("cpu-generic")},
};
#elif defined(__aarch64__)
#include <sys/auxv.h>

static bool usable_dotprod(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}

#define CPU_NAMES "cpu-generic, cpu-neon, cpu-dotprod"

static const struct variant variants[] = {
    {&cpu_dotprod, usable_dotprod, CPU_OPS("cpu-dotprod")},
    {&cpu_neon, usable_always, CPU_OPS("cpu-neon")},
    {&cpu_generic, usable_always, CPU_OPS("cpu-generic")},
};
#else
#define CPU_NAMES "cpu-generic"

static const struct variant variants[] = {
    {&cpu_generic, usable_always, CPU_OPS("cpu-generic")},
};
#endif

/* "cpu" is the first that this machine has. */
static const struct variant *variant_find(const char *name)
{
    const bool any = strcmp(name, "cpu") == 0;
    for (size_t i = 0; i < ARRAY_LEN(variants); i++)
        if ((any || strcmp(name, variants[i].ops.name) == 0) && variants[i].usable())
            return &variants[i];
    return NULL;
}

const struct backend_ops *cpu_find(const char *name)
{
    const struct variant *v = variant_find(name);
    return v != NULL ? &v->ops : NULL;
}

const char *cpu_variant(void)
{
    return variant_find("cpu")->ops.name;
}

const char *cpu_names(void)
{
    return CPU_NAMES;
}

enum status cpu_open(const char *name, int32_t threads, struct backend **out, struct err *err)
{
    const struct variant *v = variant_find(name);
    if (v == NULL)
        return base_fail(err, ERR_DEVICE, "this machine lacks the instructions of backend %s",
                         name);
    struct cpu_backend *c = calloc(1, sizeof *c);
    if (c == NULL)
        return base_fail(err, ERR_NOMEM, "no memory for backend %s", name);
    c->base.ops = &v->ops;
    c->isa = v->isa;
    enum status st = pool_open(threads, &c->pool, err);
    if (st != OK) {
        free(c);
        return st;
    }
    *out = &c->base;
    return OK;
}
