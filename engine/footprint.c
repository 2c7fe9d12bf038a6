/* DESIGN: automatic sizes are arithmetic on the model and on free memory, never a trial run: the KV
 * cache takes what max-num-seqs full contexts need, at most a sixteenth of free memory; the context
 * is what the model allows and the cache holds. Each is printed at start. */
#include "engine/footprint.h"

#include "engine/cores.h"
#include "engine/model/model.h"
#include "engine/parallel/sampler.h"
#include "engine/quota.h"
#include "engine/rank_state.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

enum status footprint_available(const char *meminfo, size_t *out, struct err *err)
{
    char line[128];
    unsigned long long kilobytes = 0;
    bool found = false;
    FILE *f = fopen(meminfo, "re");
    while (f && !found && fgets(line, sizeof line, f))
        found = sscanf(line, "MemAvailable: %llu", &kilobytes) == 1;
    if (f)
        fclose(f);
    if (!found)
        return base_fail(err, ERR_DEVICE,
                         "how much memory is free cannot be read: %s %s; is /proc mounted?",
                         meminfo, f ? "has no line MemAvailable" : "cannot be opened");
    const size_t here = (size_t)kilobytes * 1024;
    const size_t room = quota_memory(QUOTA_GROUPS, QUOTA_SELF);
    *out = room < here ? room : here;
    return OK;
}

/* Of so many layers and blocks, without a stride. */
static struct kv_spec plain_kv(const struct footprint *f, const struct model_config *m,
                               const struct flow *flow, int32_t rank, int32_t kind)
{
    const int32_t heads = (int32_t)span_len(layout_kv_heads(m, flow, rank, kind));
    return (struct kv_spec){.layers = kv_groups_layers(&f->limits.groups, kind),
                            .heads = heads,
                            .head_dim = model_config_shape(m, kind).head_dim,
                            .latent = m->latent.value,
                            .blocks = f->limits.blocks,
                            .dtype = f->kv_dtype};
}

struct kv_spec footprint_kv(const struct footprint *f, const struct model_config *m,
                            const struct flow *flow, int32_t rank, int32_t kind)
{
    struct kv_spec spec = plain_kv(f, m, flow, rank, kind);
    for (int32_t i = 0; i < model_config_kinds(m) && model_config_kinds(m) > 1; i++) {
        struct kv_spec one = plain_kv(f, m, flow, rank, i);
        one.blocks = 1;
        spec.stride = base_max_size(spec.stride, flow->ops->kv_bytes(&one));
    }
    return spec;
}

int32_t footprint_threads(const struct options *o)
{
    if (o->threads_per_rank > 0)
        return o->threads_per_rank;
    cpu_set_t set;
    const int32_t cores =
        sched_getaffinity(0, sizeof set, &set) == 0 ? cores_count(CORES_SYS, &set) : 1;
    const int32_t usable = quota_cores(cores);
    return usable / o->tp > 0 ? usable / o->tp : 1;
}

int32_t footprint_samples(const struct options *o, int32_t slots)
{
    const int32_t guesses = o->speculation.tokens;
    return (int32_t)base_min64(slots > guesses ? slots : 1 + guesses, o->max_num_batched_tokens);
}

int32_t footprint_context_blocks(const struct footprint *f)
{
    const struct step_limits *l = &f->limits;
    return (int32_t)kv_groups_need(&l->groups, f->max_model_len, l->home_rows);
}

size_t footprint_shared_bytes(const struct footprint *f)
{
    return f->on_device ? COMM_BOOTSTRAP_BYTES : f->comm_bytes;
}

/* Of a device's memory, for what is loaded there when it is first used (kernels, NCCL's buffers,
 * recorded steps): running out of it would end a rank in the middle of serving. */
#define DEVICE_RESERVE ((size_t)1 << 30)

/* Where the ranks' memory is and how much of it there is for them. */
static enum status find_memory(struct footprint *f, const struct options *o,
                               const struct backend_ops *ops, struct err *err)
{
    const int32_t share = o->ranks_per_device > 1 ? o->ranks_per_device : 1;
    size_t bytes = 0;
    enum status st = ops->probe((o->tp + share - 1) / share, &bytes, err);
    if (st != OK)
        return st;
    const char *gpu_only = share > 1                      ? "ranks-per-device"
                           : o->enforce_eager             ? "enforce-eager"
                           : o->disable_custom_all_reduce ? "disable-custom-all-reduce"
                                                          : NULL;
    if (bytes == 0 && gpu_only)
        return base_fail(err, ERR_USAGE, "--%s is for GPUs, --device is %s", gpu_only, ops->name);
    f->on_device = bytes > 0;
    bytes -= bytes / 16 < DEVICE_RESERVE ? bytes / 16 : DEVICE_RESERVE;
    if (!f->on_device)
        return footprint_available(FOOTPRINT_MEMINFO, &f->available, err);
    f->available = bytes / (size_t)share * (size_t)o->tp;
    return OK;
}

size_t footprint_state(const struct footprint *f)
{
    size_t most = 0;
    for (int32_t r = 0; r < f->ranks; r++)
        most = base_max_size(most, f->rank[r].state);
    return most;
}

/* What the weights of the rank that has most, and so many bytes more, leave of a rank's memory. */
static size_t left_by(const struct footprint *f, size_t bytes)
{
    const size_t each = f->available / (size_t)f->ranks;
    size_t most = 0;
    for (int32_t r = 0; r < f->ranks; r++)
        most = base_max_size(most, f->rank[r].weights);
    return each > most + bytes ? each - most - bytes : 0;
}

/* Of all slots, and those that are kept. */
static size_t states_of(const struct footprint *f)
{
    return (size_t)f->limits.slots + (size_t)f->limits.states;
}

/* Automatic size of a rank's KV cache: modest in the host's memory, which others use too; on a
 * device most of what the weights leave. */
static size_t kv_automatic(const struct footprint *f)
{
    if (!f->on_device)
        return f->available / (size_t)f->ranks / 16;
    return left_by(f, footprint_state(f) * states_of(f)) / 8 * 7;
}

/* Sequences at once: as --max-num-seqs says, or, by default, no more than their states have room
 * for in a sixteenth of a rank's memory, or a quarter of what weights leave of a device's. */
static int32_t count_slots(const struct footprint *f, const struct options *o)
{
    const size_t each = f->available / (size_t)f->ranks, state = footprint_state(f);
    const size_t room = f->on_device ? left_by(f, 0) / 4 : each / 16;
    const int32_t slots = (int32_t)base_min64(o->max_num_seqs, o->max_num_batched_tokens);
    if (o->said.max_num_seqs || state * (size_t)slots <= room)
        return slots;
    return room < state ? 1 : (int32_t)(room / state);
}

/* More than a few of each sequence would be of texts that nobody goes on with. */
#define STATES_EACH 4

/* States that are kept beside those of slots, for the prefix cache: by default no more than have
 * room in a quarter of what all that is said leaves, and on the host in a sixteenth of all. */
static int32_t count_states(const struct footprint *f, const struct options *o)
{
    const size_t each = f->available / (size_t)f->ranks, state = footprint_state(f);
    const size_t said = state * (size_t)f->limits.slots + (size_t)o->kv_cache_memory;
    if (state == 0 || !o->prefix_caching)
        return 0;
    if (o->state_cache_memory > 0)
        return (int32_t)base_min64(o->state_cache_memory / (int64_t)state, 1 << 20);
    size_t room = left_by(f, said) / 4;
    room = !f->on_device && room > each / 16 ? each / 16 : room;
    return (int32_t)base_min64((int64_t)(room / state), (int64_t)STATES_EACH * f->limits.slots);
}

static enum status check_states(const struct footprint *f, const struct options *o, struct err *err)
{
    if (o->state_cache_memory == 0 || f->limits.states > 0 || footprint_state(f) == 0)
        return OK;
    return base_fail(err, ERR_LIMIT,
                     "--state-cache-memory %lld: a state is %zu bytes on a rank; raise it, or take "
                     "the prefix cache away (--no-enable-prefix-caching)",
                     (long long)o->state_cache_memory, footprint_state(f));
}

/* Bytes of a block on the rank that holds most KV heads. */
static size_t block_bytes(const struct footprint *f)
{
    return kv_groups_bytes(&f->limits.groups, f->kv_block);
}

/* How many blocks, and of what context, with these groups of layers. */
static void count_blocks(struct footprint *f, const struct options *o, int32_t longest)
{
    struct step_limits *l = &f->limits;
    const size_t bytes = o->kv_cache_memory > 0 ? (size_t)o->kv_cache_memory : kv_automatic(f);
    const int64_t fits = (int64_t)(bytes / block_bytes(f));
    const int64_t wanted = ((int64_t)l->slots + l->homes - 1) / l->homes *
                           kv_groups_need(&l->groups, longest, l->home_rows);
    l->blocks = (int32_t)base_min64(o->kv_cache_memory > 0 ? fits : (fits < wanted ? fits : wanted),
                                    1 << 26);
    f->max_model_len = longest;
    if (o->max_model_len == 0)
        f->max_model_len = kv_groups_longest(&l->groups, l->blocks, l->home_rows, longest);
}

static enum status check_context(const struct footprint *f, const struct options *o,
                                 const struct model_config *m, int32_t longest, struct err *err)
{
    const struct step_limits *l = &f->limits;
    if (longest < 2)
        return base_fail(err, ERR_LIMIT,
                         "a context of %d: a prompt and an answer need 2 tokens at least", longest);
    if (kv_groups_need(&l->groups, f->max_model_len, l->home_rows) > l->blocks ||
        f->max_model_len < 2)
        return base_fail(
            err, ERR_LIMIT,
            "%s holds %d positions (%d blocks of %zu bytes per rank), "
            "--max-model-len is %d; raise --kv-cache-memory or lower --max-model-len%s",
            l->homes > 1 ? "each home of the KV cache, of which a request has one,"
                         : "the KV cache",
            kv_groups_longest(&l->groups, l->blocks, l->home_rows, INT32_MAX / 2), l->blocks,
            block_bytes(f), longest,
            footprint_state(f) > 0 ? ", or keep fewer states (--max-num-seqs)" : "");
    if (o->max_model_len > m->max_position)
        return base_fail(err, ERR_LIMIT, "--max-model-len %d: the model allows %d", longest,
                         m->max_position);
    return OK;
}

static enum status size_kv(struct footprint *f, const struct options *o,
                           const struct model_config *m, struct err *err)
{
    const int32_t longest = o->max_model_len > 0 ? o->max_model_len : m->max_position;
    f->max_model_len = longest;
    for (int i = 0; i < 2;
         i++) { /* what has room for less than the longest can do without groups */
        f->limits.groups = kv_groups_find(m, f->kv_block, f->max_model_len, f->limits.home_rows);
        count_blocks(f, o, longest);
    }
    f->limits.table_cols = kv_blocks_for(f->max_model_len);
    f->limits.history_max = f->max_model_len;
    return check_context(f, o, m, longest, err);
}

/* What a rank holds whatever the size of its KV cache. */
static enum status find_weights(struct footprint *f, const struct model_config *m,
                                const struct flow *flow, struct err *err)
{
    enum status st = OK;
    for (int32_t r = 0; r < f->ranks; r++) {
        TRY(layout_arena_bytes(m, flow, r, &f->rank[r].weights, err));
        f->rank[r].kv_per_token = layout_kv_bytes_per_token(m, flow, r, f->kv_dtype);
        for (int32_t i = 0; i < model_config_kinds(m); i++)
            f->kv_block[i] = base_max_size(f->kv_block[i],
                                           BACKEND_BLOCK_TOKENS *
                                               layout_kv_layer_bytes(m, flow, r, i, f->kv_dtype));
        f->rank[r].state = model_state_bytes(m, flow, r);
    }
out:
    return st;
}

/* Do ranks elect tokens? Where vectors are wanted there are none. */
static bool elects(const struct options *o, const struct model_config *m)
{
    return options_distributed(o) && !m->pooling;
}

/* The rest of a rank's, for those limits. */
static void find_rest(struct footprint *f, const struct options *o, const struct model_config *m,
                      const struct flow *flow, int32_t r)
{
    const int32_t rows = f->limits.rows, samples = f->limits.samples;
    const struct kv_spec kv = footprint_kv(f, m, flow, r, 0);
    f->rank[r].kv = flow->ops->kv_bytes(&kv);
    const struct model_sizes sizes = {rows, samples, (int32_t)states_of(f)};
    f->rank[r].activations = model_activation_bytes(m, flow, r, &sizes) +
                             sampler_local_bytes(elects(o, m), samples, m->vocab) +
                             rank_state_bytes(&f->limits, f->on_device);
    if (f->on_device) /* what backend and communicator take for themselves */
        f->rank[r].scratch =
            model_scratch_bytes(m, flow, r, rows) + (f->ranks > 1 ? COMM_DEVICE_STAGING_BYTES : 0);
    f->total += f->rank[r].weights + f->rank[r].kv + f->rank[r].activations + f->rank[r].scratch +
                f->comm_bytes;
}

enum status footprint_plan(const struct options *o, const struct model_config *m,
                           const struct flow *flow, struct footprint *out, struct err *err)
{
    struct footprint f;
    memset(&f, 0, sizeof f);
    f.ranks = o->tp;
    f.threads = footprint_threads(o);
    f.dtype = options_dtype(o, m->dtype);
    f.kv_dtype = options_kv_dtype(o, m->dtype);
    f.plan_hash = flow->hash;
    f.left_out = m->quant.left_out;
    enum status st = find_memory(&f, o, flow->ops, err);
    if (st == OK)
        st = find_weights(&f, m, flow, err);
    if (st != OK)
        goto out;
    f.limits.rows = o->max_num_batched_tokens;
    f.limits.slots = count_slots(&f, o);
    f.limits.recurs = model_config_recurring(m) > 0;
    f.limits.states = count_states(&f, o);
    f.limits.samples = footprint_samples(o, f.limits.slots);
    f.limits.vocab = m->vocab;
    f.limits.columns = m->pooling ? m->hidden : 0;
    f.limits.homes = flow_homes(flow);
    f.limits.home_rows = flow_home_rows(flow, f.limits.rows);
    st = size_kv(&f, o, m, err);
    if (st == OK)
        st = check_states(&f, o, err);
    f.comm_bytes = model_comm_bytes(flow, f.limits.rows, f.limits.samples) +
                   sampler_arena_bytes(elects(o, m), f.ranks, f.limits.samples);
    for (int32_t r = 0; r < f.ranks; r++)
        find_rest(&f, o, m, flow, r);
    if (st == OK && f.total > f.available) {
        char need[32], have[32];
        st = base_fail(
            err, ERR_LIMIT,
            "does not fit: %d rank%s %s (%zu bytes), %s (%zu bytes) of memory are free; "
            "--kv-cache-memory makes the cache smaller%s%s",
            f.ranks, f.ranks == 1 ? " needs" : "s need",
            base_human_bytes(need, sizeof need, f.total), f.total,
            base_human_bytes(have, sizeof have, f.available), f.available,
            m->quant.kind == QUANT_NONE ? ", --quantization the weights" : "",
            footprint_state(&f) > 0 ? ", --max-num-seqs and --state-cache-memory the states" : "");
    }
out:
    *out = f;
    return st;
}
