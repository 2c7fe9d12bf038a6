#include "server/remarks.h"

#include "config/log.h"
#include "engine/quota.h"

#include <dirent.h>
#include <sched.h>
#include <string.h>

void remarks_on_sizes(const struct setup *s, const struct footprint *f)
{
    const struct options *o = &s->options;
    if (o->kv_cache_memory == 0 && o->max_model_len == 0 &&
        f->max_model_len < s->model.max_position)
        base_log(LOG_WARN,
                 "context %d of the model's %d: that is what the automatic KV cache has room for; "
                 "--kv-cache-memory N makes it longer, --max-model-len N fixes it",
                 f->max_model_len, s->model.max_position);
    if (footprint_state(f) > 0 && !o->said.max_num_seqs && f->limits.slots < o->max_num_seqs &&
        f->limits.slots < f->limits.rows)
        base_log(LOG_WARN,
                 "%d sequence%s at once: that is what a part of the memory has room for, with what "
                 "layers that recur keep of each; --max-num-seqs N fixes it",
                 f->limits.slots, f->limits.slots == 1 ? "" : "s");
    if (f->limits.recurs && o->prefix_caching && o->state_cache_memory == 0 &&
        f->limits.states == 0)
        base_log(
            LOG_WARN,
            "no prefixes are cached: memory has no room for a state that layers that recur keep "
            "of one; --state-cache-memory N makes room");
    if (o->max_num_seqs > f->limits.slots && o->said.max_num_seqs)
        base_log(LOG_WARN,
                 "--max-num-seqs %d: %d are used, because each running sequence needs a row of a "
                 "step, which has %d; raise --max-num-batched-tokens, too",
                 o->max_num_seqs, f->limits.slots, f->limits.rows);
}

void remarks_on_cores(const struct options *o)
{
    cpu_set_t set;
    const int cores =
        sched_getaffinity(0, sizeof set, &set) == 0 ? quota_cores(CPU_COUNT(&set)) : 1;
    const int threads = footprint_threads(o);
    if (strncmp(o->device, "cuda", 4) == 0 || options_mpi(o) || o->tp * threads <= cores)
        return;
    base_log(LOG_WARN,
             "%d rank%s of %d thread%s on %d core%s: they wait for each other in every collective, "
             "which is to test function only; lower --tensor-parallel-size or --threads-per-rank",
             o->tp, o->tp == 1 ? "" : "s", threads, threads == 1 ? "" : "s", cores,
             cores == 1 ? "" : "s");
}

void remarks_on_nodes(const struct options *o, const struct cores_plan *plan)
{
    if (plan->nodes < 2 || options_mpi(o)) /* whose ranks are elsewhere, too */
        return;
    for (int32_t r = 0; r < plan->ranks; r++) {
        struct buf list;
        buf_init(&list, 4096);
        cores_list(&plan->rank[r], &list);
        if (plan->node[r] >= 0)
            base_log(LOG_INFO, "rank %d keeps to processors %s of NUMA node %d", r,
                     list.data ? list.data : "", plan->node[r]);
        else
            base_log(o->tp < plan->nodes ? LOG_WARN : LOG_INFO,
                     "rank %d keeps to processors %s of several NUMA nodes%s", r,
                     list.data ? list.data : "",
                     o->tp < plan->nodes ? ": with a rank for each its memory would be near" : "");
        buf_free(&list);
    }
}

void remarks_on_neighbours(struct options *o, int32_t threads, struct buf *list)
{
    struct cores_plan plan;
    cpu_set_t allowed, taken, left;
    if (options_mpi(o) || !cores_of(o, threads, &plan) ||
        sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    cores_taken(CORES_PROC, &taken);
    if (CPU_COUNT(&taken) == 0)
        return;
    buf_clear(list);
    if (cores_apart(CORES_SYS, &allowed, &taken, o->tp, threads, &left)) {
        cores_list(&left, list);
        o->cpu_list = list->failed ? NULL : list->data;
        return;
    }
    CPU_AND(&taken, &taken, &allowed);
    cores_list(&taken, list);
    o->cpu_bind = "none";
    base_log(LOG_WARN,
             "ranks of other servers keep to processors %s of %d, which leaves too few for %d "
             "rank%s of %d thread%s: here they keep to none, and share; give each server its own "
             "(deploy/README.md)",
             list->data ? list->data : "", CPU_COUNT(&allowed), o->tp, o->tp == 1 ? "" : "s",
             threads, threads == 1 ? "" : "s");
}

void remarks_on_places(const struct options *o, const struct cores_plan *plan)
{
    struct buf list;
    if (plan->nodes > 1 || options_mpi(o))
        return;
    buf_init(&list, 4096);
    for (int32_t r = 0; r < plan->ranks; r++) {
        buf_printf(&list, r ? ", rank %d to " : "rank %d keeps to processors ", r);
        cores_list(&plan->rank[r], &list);
    }
    base_log(LOG_INFO, "%s", list.data ? list.data : "");
    buf_free(&list);
}

void remarks_on_gpus(const struct options *o, const char *gpus)
{
    int32_t n = 0;
    DIR *entries = strcmp(o->device, "cpu") == 0 ? opendir(gpus) : NULL;
    if (!entries)
        return;
    for (const struct dirent *e = readdir(entries); e; e = readdir(entries))
        n += e->d_name[0] != '.';
    closedir(entries);
    if (n > 0)
        base_log(LOG_INFO, "this runs on processors; %d NVIDIA GPU%s here: --device cuda -tp N", n,
                 n == 1 ? " is" : "s are");
}

/* A word of a shell. */
static void quote(const char *word, struct buf *out)
{
    buf_puts(out, "'");
    for (const char *c = word; *c; c++)
        buf_printf(out, *c == '\'' ? "'\\''" : "%c", *c);
    buf_puts(out, "'");
}

void remarks_page(const char *host, int32_t port, struct buf *out)
{
    if (strcmp(host, "0.0.0.0") == 0)
        host = "127.0.0.1"; /* what listens everywhere is asked at an address */
    else if (strcmp(host, "::") == 0)
        host = "::1";
    const bool v6 = strchr(host, ':') != NULL;
    buf_printf(out, "http://%s%s%s:%d/", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

void remarks_try(const char *host, int32_t port, const char *key_file, bool has_tokenizer,
                 bool pools, struct buf *out)
{
    buf_puts(out, strchr(host, ':') ? "curl -g " : "curl ");
    remarks_page(host, port, out);
    buf_printf(out, "v1/%s -H 'Content-Type: application/json'",
               pools ? "embeddings" : "completions");
    if (key_file) { /* the first line that is a key */
        buf_puts(out, " -H \"Authorization: Bearer $(grep -m1 '^[^#[:space:]]' ");
        quote(key_file, out);
        buf_puts(out, ")\"");
    }
    buf_printf(out, " -d '{\"%s\": %s%s}'", pools ? "input" : "prompt",
               has_tokenizer ? "\"Once upon a time\"" : "[1, 2, 3]",
               pools ? "" : ", \"max_tokens\": 64");
}
