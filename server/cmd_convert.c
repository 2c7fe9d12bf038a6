/* tessera convert, shard and synth: checkpoints in, checkpoints out. */
#include "config/buf.h"
#include "config/file.h"
#include "engine/model/layout.h"
#include "engine/quota.h"
#include "server/commands.h"
#include "server/setup.h"
#include "weights/gguf/gguf_config.h"
#include "weights/gguf/gguf_convert.h"
#include "weights/gguf/gguf_model.h"
#include "weights/outdir.h"
#include "weights/shard.h"
#include "weights/synth.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t caught;

static void on_signal(int number)
{
    caught = number;
    outdir_stop();
}

/* What is written from now on is removed before the signal ends us; a second one does not wait. */
static void watch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM};
    const struct sigaction act = {.sa_handler = on_signal,
                                  .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    struct sigaction old;
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &act, NULL);
    }
}

/* Ends as whoever sent the signal expects. */
static void obey_signal(enum status st, const char *path)
{
    if (st != ERR_CANCELLED)
        return;
    base_log(LOG_WARN, "stopped; what was written to %s is removed", path);
    raise(caught);
}

enum status commands_shard(const struct options *o, struct err *err)
{
    enum status st = OK;
    struct setup s = {0};
    struct local_weight *weights[COMM_RANKS_MAX];
    int32_t counts[COMM_RANKS_MAX];
    TRY(setup_open(o, &s, err));
    for (int32_t r = 0; r < o->tp; r++) {
        weights[r] = s.layouts[r]->weights;
        counts[r] = s.layouts[r]->count;
    }
    watch_signals();
    TRY(shard_write(o->model, s.checkpoint, weights, counts, o->tp, o->output, err));
    printf("wrote %s: %d rank%s\n", o->output, o->tp, o->tp == 1 ? "" : "s");
out:
    setup_close(&s);
    obey_signal(st, o->output);
    return st;
}

/* Is a tensor among the last of these? It is another part of one: of shared experts' gates and ups
 * by turns, of queries and what is beside them. */
static bool is_listed(const struct synth_tensor *out, int32_t n, const char *name)
{
    enum { FAR = 3 };
    for (int32_t i = n - 1; i >= 0 && i >= n - FAR; i--)
        if (strcmp(out[i].name, name) == 0)
            return true;
    return false;
}

/* The model's tensors, whole, from the slices of a single rank. */
static int32_t whole_tensors(const struct layout *l, struct synth_tensor *out)
{
    int32_t n = 0;
    for (int32_t i = 0; i < l->count; i++) {
        for (int32_t j = 0; j < l->weights[i].slice_count; j++) {
            const struct tensor_slice *k = &l->weights[i].slices[j];
            if (is_listed(out, n, k->tensor))
                continue;
            out[n++] = (struct synth_tensor){k->tensor, k->ndim, k->shape[0], k->shape[1]};
        }
    }
    return n;
}

/* What a single rank has of a model: all of it. */
struct whole {
    struct plan *plan;
    struct flow *flow;
    struct layout *layout;
    struct synth_tensor *tensors;
    int32_t count;
};

static enum status whole_open(const struct model_config *m, struct whole *w, struct err *err)
{
    enum status st = OK;
    TRY(plan_load("1d", NULL, NULL, 1, &w->plan, err));
    TRY(layout_flow(m, w->plan, m->dtype, backend_find("ref"), &w->flow, err));
    TRY(layout_open(m, w->flow, 0, &w->layout, err));
    w->tensors =
        calloc(placement_slices(w->layout->weights, w->layout->count) + 1, sizeof *w->tensors);
    if (!w->tensors)
        st = base_fail(err, ERR_NOMEM, "no memory for the list of tensors");
    else
        w->count = whole_tensors(w->layout, w->tensors);
out:
    return st;
}

static void whole_close(struct whole *w)
{
    free(w->tensors);
    layout_close(w->layout);
    flow_close(w->flow);
    plan_close(w->plan);
}

static int32_t own_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? quota_cores(CPU_COUNT(&set)) : 1;
}

enum status commands_synth(const struct options *o, struct err *err)
{
    enum status st = OK;
    const struct file_spec f = {.path = o->synth_config,
                                .what = "--config ",
                                .bytes_max = 1u << 20,
                                .failure = ERR_USAGE,
                                .pipes = true};
    char *text = NULL;
    size_t len = 0;
    struct model_config m;
    struct whole w = {0};
    TRY(file_read(&f, &text, &len, err));
    TRY(model_config_parse(text, len, o->synth_config, &m, err));
    if (m.quant.kind != QUANT_NONE) {
        st = base_fail(err, ERR_USAGE, "%s: quantization_config: synth writes plain values; %s",
                       o->synth_config,
                       m.mixture.kind == MIXTURE_GPT_OSS
                           ? "gpt_oss has experts of MXFP4 only; serve it with --load-format dummy"
                           : "leave it out and serve with --quantization fp8");
        goto out;
    }
    TRY(whole_open(&m, &w, err));
    struct synth_rules rules = layout_synth_rules(&m, (uint64_t)o->seed);
    rules.taps = m.recurrent.taps;
    watch_signals();
    TRY(synth_write(o->output, text, &rules, w.tensors, w.count, m.dtype, m.vocab, own_cores(),
                    err));
    printf("wrote %s\n", o->output);
out:
    whole_close(&w);
    free(text);
    obey_signal(st, o->output);
    return st;
}

/* The type that is asked for, or the file's own. */
static enum dtype converted_dtype(const struct options *o, const struct gguf *g)
{
    return strcmp(o->dtype, "float32") == 0    ? DTYPE_F32
           : strcmp(o->dtype, "float16") == 0  ? DTYPE_F16
           : strcmp(o->dtype, "bfloat16") == 0 ? DTYPE_BF16
                                               : gguf_model_dtype(g);
}

enum status commands_convert(const struct options *o, struct err *err)
{
    enum status st = OK;
    struct gguf *g = NULL;
    struct buf config;
    struct model_config m;
    struct whole w = {0};
    buf_init(&config, 4u << 20); /* a word for each layer of the most there may be */
    TRY(gguf_open(o->model, &g, err));
    const enum dtype dtype = converted_dtype(o, g);
    TRY(gguf_config_put(g, dtype, &config, err));
    TRY(model_config_parse(config.data, config.len, o->model, &m, err));
    TRY(whole_open(&m, &w, err));
    watch_signals();
    TRY(gguf_convert(g, o->output, config.data, w.tensors, &w.count, &m, dtype, own_cores(), err));
    printf("wrote %s: %s, %d tensors of %s\n", o->output, m.model_type, (int)w.count,
           dtype_name(dtype));
out:
    whole_close(&w);
    buf_free(&config);
    gguf_close(g);
    obey_signal(st, o->output);
    return st;
}
