/* DESIGN: all checks that need no memory and no rank happen here, in milliseconds, so that a wrong
 * model is refused before anything is started. */
#include "server/setup.h"

#include "config/buf.h"
#include "engine/model/model.h"
#include "server/hub_cache.h"
#include "server/plan_modes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *plural(int32_t n)
{
    return n == 1 ? "" : "s";
}

static enum status open_flow(const struct setup *s, struct flow **out, struct err *err)
{
    return layout_flow(&s->model, s->plan, options_dtype(&s->options, s->model.dtype), s->ops, out,
                       err);
}

static enum status open_layouts(struct setup *s, struct err *err)
{
    enum status st = OK;
    struct local_weight *weights[COMM_RANKS_MAX];
    int32_t counts[COMM_RANKS_MAX];
    TRY(open_flow(s, &s->flow, err));
    for (int32_t r = 0; r < s->options.tp; r++) {
        TRY(layout_open(&s->model, s->flow, r, &s->layouts[r], err));
        weights[r] = s->layouts[r]->weights;
        counts[r] = s->layouts[r]->count;
    }
    TRY(placement_prove(weights, counts, s->options.tp, err));
out:
    return st;
}

/* From how many rows on steps take the plan's second form: as told, else where modelled times
 * cross. Becomes part of the plan, and an option that ranks are given. */
static enum status choose_form(struct setup *s, struct err *err)
{
    enum status st = OK;
    struct options *o = &s->options;
    struct flow *flow = NULL;
    s->form_reason = o->prefill_rows > 0              ? "--prefill-rows says"
                     : plan_prefill_rows(s->plan) > 0 ? "the plan says"
                                                      : "fewer bytes are received";
    if (o->prefill_rows == 0 && s->priced && plan_has_prefill(s->plan) &&
        plan_prefill_rows(s->plan) == 0) {
        s->form_reason = "less time is modelled";
        TRY(open_flow(s, &flow, err));
        o->prefill_rows = price_crossover(&s->price, flow, s->model.layers);
    }
    if (o->prefill_rows > 0)
        TRY(plan_set_prefill_rows(s->plan, o->prefill_rows, err));
out:
    flow_close(flow);
    return st;
}

static enum status open_checkpoint(struct setup *s, struct err *err)
{
    if (s->checkpoint)
        return OK;
    enum status st = checkpoint_open(s->options.model, &s->checkpoint, err);
    if (st == OK)
        st = checkpoint_adapt(s->checkpoint, s->options.lora, err);
    /* Whoever trained it may have had a head of its own: nobody says so. */
    if (st == OK && s->model.tied && !s->model.pooling &&
        lora_adapts(checkpoint_lora(s->checkpoint), "model.embed_tokens.weight"))
        st = base_fail(err, ERR_MODEL,
                       "--lora: an adapter changes model.embed_tokens.weight, which this model's "
                       "head is tied to: that is not supported");
    return st;
}

/* The files say which linears are left as they are; those of MXFP4 are by their names. */
static enum status find_left_out(struct setup *s, struct err *err)
{
    const struct quant_config *q = &s->model.quant;
    if (q->kind != QUANT_FILE || q->code == DTYPE_F4_E2M1 || options_dummy(&s->options))
        return OK;
    const enum status st = open_checkpoint(s, err);
    if (st == OK)
        layout_left_out(s->checkpoint, &s->model);
    return st;
}

/* As --kv-placement says. Where layouts are compared (--modes) it says which of them are: the one
 * in use keeps its own when it has no other. */
static enum status place(struct setup *s, struct err *err)
{
    enum status st = OK;
    const struct options *o = &s->options;
    struct flow *flow = NULL;
    const char *own = plan_is_home(s->plan) ? "home" : "heads";
    if (!o->kv_placement)
        return OK;
    TRY(plan_set_placement(s->plan, o->kv_placement, err));
    if (!o->modes)
        return OK;
    st = open_flow(s, &flow, err);
    flow_close(flow);
    if (st == ERR_USAGE)
        st = plan_set_placement(s->plan, own, err);
out:
    return st;
}

static bool is_named(const char *parser)
{
    return parser && strcmp(parser, "auto") != 0 && strcmp(parser, "none") != 0;
}

/* What decides how tokens come and what becomes of them is refused. */
static enum status check_pooling(const struct options *o, struct err *err)
{
    const char *name = options_distributed(o)          ? "sampler distributed"
                       : o->speculation.tokens > 0     ? "speculative-config"
                       : is_named(o->tool_call_parser) ? "tool-call-parser"
                       : is_named(o->reasoning_parser) ? "reasoning-parser"
                                                       : NULL;
    return name ? base_fail(err, ERR_USAGE,
                            "--%s is for models that make tokens; of this one vectors are wanted "
                            "(--runner pooling)",
                            name)
                : OK;
}

/* Tokens or vectors? As --runner says, else as the model was published: with the files of
 * sentence-transformers, or as a class without a head. */
static enum status choose_runner(struct setup *s, struct err *err)
{
    enum status st = OK;
    const struct options *o = &s->options;
    const bool told = strcmp(o->runner, "auto") != 0;
    if (strcmp(o->runner, "generate") == 0)
        return OK;
    TRY(pooling_load(o->model, &s->pooling, err));
    if (!told && !s->model.headless && !s->pooling.found)
        return OK;
    if (!told && !s->model.headless && o->command == COMMAND_SHARD) /* its head goes along */
        return OK;
    TRY(check_pooling(o, err));
    model_config_pool(&s->model);
    if (s->pooling.longest > 0 && s->pooling.longest < s->model.max_position)
        s->model.max_position = s->pooling.longest;
out:
    return st;
}

/* What a layer that recurs remembers of a text is one state, that of its last token: there is none
 * to go back to when a guess was wrong. */
static enum status check_recurrent(const struct setup *s, struct err *err)
{
    const struct options *o = &s->options;
    const bool recurs = model_config_recurring(&s->model) > 0;
    if (!recurs && o->state_cache_memory > 0)
        return base_fail(err, ERR_USAGE,
                         "--state-cache-memory is for models with layers that recur "
                         "(linear_attention); this one has none");
    if (recurs && o->speculation.tokens > 0)
        return base_fail(err, ERR_USAGE,
                         "--speculative-config is for models that keep keys and values of all "
                         "tokens; layers that recur (linear_attention) keep one state");
    return OK;
}

enum status setup_open(const struct options *o, struct setup *out, struct err *err)
{
    enum status st = OK;
    memset(out, 0, sizeof *out);
    out->options = *o;
    if (!o->dtype)
        out->options.dtype = "auto";
    TRY(backend_table(options_backend(o), &out->ops, err));
    TRY(model_config_load(o->model, &out->model, &out->defaults, err));
    TRY(model_config_quantize(&out->model, options_quantization(o), options_widen(o), err));
    TRY(choose_runner(out, err));
    TRY(check_recurrent(out, err));
    if (o->max_num_queued_reqs == 0)
        out->options.max_num_queued_reqs =
            out->model.pooling ? OPTIONS_QUEUED_VECTORS : OPTIONS_QUEUED_DEFAULT;
    TRY(find_left_out(out, err));
    out->priced = o->prices || o->measure || o->pick_layout;
    if (out->priced)
        TRY(o->prices ? price_load(o->prices, &out->price, err) : plan_modes_measure(out, err));
    if (o->pick_layout)
        TRY(plan_modes_pick(out, err));
    o = &out->options;
    TRY(plan_load(o->parallel_mode, o->mesh, o->plan_file, o->tp, &out->plan, err));
    TRY(place(out, err));
    TRY(choose_form(out, err));
    TRY(open_layouts(out, err));
    if (options_dummy(o) && o->lora)
        TRY(base_fail(err, ERR_USAGE,
                      "--lora needs weights that are read, and --load-format dummy reads none"));
    if (options_dummy(o))
        goto out;
    TRY(open_checkpoint(out, err));
    TRY(layout_check(out->layouts[0], out->checkpoint, &out->ignored, err));
out:
    return st;
}

enum status setup_check_head(const struct setup *s, struct err *err)
{
    if (!s->checkpoint || !s->model.tied || s->model.pooling)
        return OK;
    const struct checkpoint_tensor *head = checkpoint_find(s->checkpoint, "lm_head.weight");
    const struct checkpoint_tensor *embedding =
        checkpoint_find(s->checkpoint, "model.embed_tokens.weight");
    bool same = true;
    enum status st =
        head && embedding ? checkpoint_same(s->checkpoint, head, embedding, &same, err) : OK;
    if (st != OK || same)
        return st;
    return base_fail(err, ERR_MODEL,
                     "%s: lm_head.weight is not model.embed_tokens.weight, as config.json says by "
                     "tie_word_embeddings: set it to false, or leave out the tensor",
                     s->options.model);
}

void setup_close(struct setup *s)
{
    for (int32_t r = 0; r < COMM_RANKS_MAX; r++)
        layout_close(s->layouts[r]);
    flow_close(s->flow);
    checkpoint_close(s->checkpoint);
    plan_close(s->plan);
    memset(s, 0, sizeof *s);
}

uint64_t setup_read_bytes(const struct setup *s, int32_t rank)
{
    uint64_t n = 0;
    const struct layout *l = s->layouts[rank];
    for (int32_t i = 0; s->checkpoint && i < l->count; i++)
        n += checkpoint_read_bytes(s->checkpoint, &l->weights[i]);
    return n;
}

static void write_order(const struct setup *s, const struct footprint *f, struct buf *out)
{
    const char *order = "this layout's own order: outputs are a single rank's but for rounding";
    if (f->on_device && !s->options.deterministic)
        order = "an order that depends on what else is in a step: outputs are a single rank's but "
                "for rounding (--deterministic keeps to one order)";
    else if (flow_keeps_order(s->flow))
        order = "the order of a single rank: outputs have its bits";
    buf_printf(out, "sums are added in %s\n", order);
}

/* The layout, and from how many rows on its steps have another form, and why from there. */
static void write_form(const struct setup *s, struct buf *out)
{
    const struct flow *f = s->flow;
    buf_printf(out, "layout %s: mesh", plan_mode(s->plan));
    for (int32_t i = 0; i < f->mesh.axes; i++)
        buf_printf(out, " %s=%d", f->mesh.axis[i].name, f->mesh.axis[i].size);
    buf_printf(out, ", %d collectives per layer", flow_meetings(f, PLAN_DECODE));
    if (f->prefill_rows < INT32_MAX)
        buf_printf(out, ", %d in steps of %d rows or more, where %s",
                   flow_meetings(f, PLAN_PREFILL), f->prefill_rows, s->form_reason);
    buf_puts(out, "\n");
}

static void write_mixture(const struct mixture_config *x, struct buf *out)
{
    buf_printf(out, "%d experts, each with these MLP columns; a token takes %d", x->experts,
               x->chosen);
    if (x->shared > 0)
        buf_printf(out, ", and %d that all share", x->shared);
    if (mixture_is_beside(x))
        buf_printf(out, ", beside an MLP of %d columns", x->dense_mlp);
    if (x->dense == 1)
        buf_printf(out, "; the first layer has an MLP of %d columns instead", x->dense_mlp);
    else if (x->dense > 1)
        buf_printf(out, "; the first %d layers have an MLP of %d columns instead", x->dense,
                   x->dense_mlp);
    buf_puts(out, "\n");
}

void setup_table(const struct setup *s, const struct footprint *f, struct buf *out)
{
    char w[32], k[32], a[32];
    if (s->checkpoint && checkpoint_lora(s->checkpoint))
        lora_describe(checkpoint_lora(s->checkpoint), out);
    buf_printf(out,
               "rank  heads  KV heads  MLP columns  vocabulary     weights    KV cache  other\n");
    for (int32_t r = 0; r < f->ranks; r++) {
        const struct layout *l = s->layouts[r];
        buf_printf(out, "%4d  %5lld  %8lld  %11lld  %10lld  %10s  %10s  %s\n", r,
                   (long long)span_len(l->heads), (long long)span_len(l->kv_heads[0]),
                   (long long)span_len(l->mlp), (long long)span_len(l->vocab),
                   base_human_bytes(w, sizeof w, f->rank[r].weights),
                   base_human_bytes(k, sizeof k, f->rank[r].kv),
                   base_human_bytes(a, sizeof a,
                                    f->rank[r].activations + f->rank[r].scratch + f->comm_bytes));
    }
    write_form(s, out);
    if (s->model.mixture.kind != MIXTURE_NONE)
        write_mixture(&s->model.mixture, out);
    if (s->model.window > 0)
        buf_printf(out, "%d of %d layers attend to the last %d positions only%s\n",
                   model_config_sliding(&s->model), s->model.layers, s->model.window,
                   f->limits.groups.slide > 0 ? ", and keep no others" : "");
    buf_printf(
        out, "context %d, %d sequence%s, steps of up to %d row%s, %d KV block%s of %d tokens",
        f->max_model_len, f->limits.slots, plural(f->limits.slots), f->limits.rows,
        plural(f->limits.rows), f->limits.blocks, plural(f->limits.blocks), BACKEND_BLOCK_TOKENS);
    const struct kv_groups *groups = &f->limits.groups;
    if (groups->keep_layers > 0)
        buf_printf(out, " x %d layers that slide or %d others", groups->layers,
                   groups->keep_layers);
    else if (groups->layers < s->model.layers - model_config_recurring(&s->model))
        buf_printf(out, " x %d layers", groups->layers);
    buf_printf(out, " in %s", dtype_name(f->kv_dtype));
    if (f->limits.homes > 1)
        buf_printf(out, " and %d rows in each of %d homes", f->limits.home_rows, f->limits.homes);
    buf_printf(out, ": room for %.1f whole contexts\n",
               f->max_model_len > 0
                   ? (double)f->limits.homes * f->limits.blocks / footprint_context_blocks(f)
                   : 0);
    const int32_t recurring = model_config_recurring(&s->model);
    if (recurring > 0)
        buf_printf(out,
                   "%d of %d layers recur: a rank keeps up to %s of each sequence for them, and %d "
                   "state%s for prefixes\n",
                   recurring, s->model.layers, base_human_bytes(w, sizeof w, footprint_state(f)),
                   f->limits.states, plural(f->limits.states));
    const struct speculation *guesses = &s->options.speculation;
    if (guesses->tokens > 0)
        buf_printf(out, "up to %d guesses a step and sequence, from n-grams of %d to %d tokens\n",
                   guesses->tokens, guesses->shortest, guesses->longest);
    write_order(s, f, out);
    buf_printf(out, "needs %s in all; %s are free\n", base_human_bytes(w, sizeof w, f->total),
               base_human_bytes(k, sizeof k, f->available));
}

void setup_model_name(const struct options *o, char *name, size_t cap)
{
    char path[4096];
    char *real = realpath(o->model, NULL);
    snprintf(path, sizeof path, "%s", real ? real : o->model);
    free(real);
    if (hub_cache_name(path, name, cap))
        return;
    const char *slash = strrchr(path, '/');
    snprintf(name, cap, "%s", slash && slash[1] ? slash + 1 : path);
}
