/* tessera plan: from headers alone, what each rank would hold and send, and whether it fits. */
#include "config/buf.h"
#include "engine/model/model.h"
#include "engine/parallel/sampler.h"
#include "server/commands.h"
#include "server/plan_costs.h"
#include "server/plan_modes.h"
#include "server/remarks.h"
#include "server/setup.h"

#include <stdio.h>
#include <string.h>

static uint64_t layer_bytes(const struct setup *s, int32_t rank, int32_t rows)
{
    return flow_layer_bytes(s->flow, flow_phase_of(s->flow, rows), rows, rank);
}

/* Of the rows sampled and of what is before and after the layers, for a step of one row. */
static uint64_t ends_bytes(const struct setup *s, int32_t rank)
{
    return flow_ends_bytes(s->flow, flow_phase_of(s->flow, 1), 1, 1, rank);
}

/* A row of the distributed sampler: with top-k 1 to the most that are sent, or greedy (0). */
static uint64_t election_bytes(const struct setup *s, int32_t places)
{
    const int32_t vocab = s->model.vocab;
    return sampler_row_bytes(s->options.tp, places < vocab ? places : vocab);
}

static uint64_t weight_elements(const struct layout *l)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < l->count; i++)
        n += (uint64_t)l->weights[i].spec.out * (uint64_t)l->weights[i].spec.in;
    return n;
}

/* The layout's other placement of the KV cache, where there is one: KV bytes of a token on each
 * rank that has it, and the number of homes; 0: the layout has only the one it is in. */
static int32_t other_placement(const struct setup *s, const struct footprint *f,
                               size_t bytes[COMM_RANKS_MAX])
{
    enum status st = OK;
    const char *text = plan_text(s->plan);
    const char *other = plan_is_home(s->plan) ? "heads" : "home";
    struct plan *plan = NULL;
    struct flow *flow = NULL;
    struct err ignored;
    int32_t homes = 0;
    TRY(plan_open(text, strlen(text), plan_where(s->plan), f->ranks, &plan, &ignored));
    TRY(plan_set_placement(plan, other, &ignored));
    TRY(layout_flow(&s->model, plan, f->dtype, s->ops, &flow, &ignored));
    for (int32_t r = 0; r < f->ranks; r++)
        bytes[r] = layout_kv_bytes_per_token(&s->model, flow, r, f->kv_dtype);
    homes = flow_homes(flow);
out:
    flow_close(flow);
    plan_close(plan);
    return homes;
}

/* KV bytes of a token, on each rank that has it, by placement. */
struct placements {
    struct {
        int32_t homes; /* 0: the layout has no such placement */
        size_t bytes[COMM_RANKS_MAX];
    } at[2];
};
static const char *const placement_names[] = {"heads", "home"};

static void find_placements(const struct setup *s, const struct footprint *f, struct placements *p)
{
    const int now = plan_is_home(s->plan);
    p->at[now].homes = f->limits.homes;
    for (int32_t r = 0; r < f->ranks; r++)
        p->at[now].bytes[r] = f->rank[r].kv_per_token;
    p->at[!now].homes = other_placement(s, f, p->at[!now].bytes);
}

static void json_placements(const struct setup *s, const struct footprint *f, struct buf *b)
{
    struct placements p;
    find_placements(s, f, &p);
    buf_printf(b, "  \"kv_placement\": \"%s\", \"kv_homes\": %d, \"kv_placements\": {",
               placement_names[plan_is_home(s->plan)], f->limits.homes);
    for (int i = 0, n = 0; i < 2; i++) {
        if (p.at[i].homes == 0)
            continue;
        buf_printf(b, "%s\"%s\": {\"homes\": %d, \"bytes_per_token\": [", n++ ? ", " : "",
                   placement_names[i], p.at[i].homes);
        for (int32_t r = 0; r < f->ranks; r++)
            buf_printf(b, "%s%zu", r ? ", " : "", p.at[i].bytes[r]);
        buf_puts(b, "]}");
    }
    buf_puts(b, "},\n");
}

/* What a rank's KV cache holds per token of all sequences, when homes are even. */
static void print_placements(const struct setup *s, const struct footprint *f, struct buf *b)
{
    struct placements p;
    find_placements(s, f, &p);
    if (p.at[0].homes == 0 || p.at[1].homes < 2)
        return;
    buf_puts(b, "KV bytes of a rank per token of all sequences, at most:");
    for (int i = 0; i < 2; i++) {
        size_t most = 0;
        for (int32_t r = 0; r < f->ranks; r++)
            most = p.at[i].bytes[r] > most ? p.at[i].bytes[r] : most;
        buf_printf(b, "%s %zu by %s", i ? "," : "", most / (size_t)p.at[i].homes,
                   placement_names[i]);
    }
    buf_printf(b, " (%zu of a token of one of %d homes); --kv-placement says which\n",
               p.at[1].bytes[0], p.at[1].homes);
}

static void json_span(struct buf *b, const char *name, struct span s)
{
    buf_printf(b, "\"%s\": [%lld, %lld], ", name, (long long)s.begin, (long long)s.end);
}

static void json_rank(const struct setup *s, const struct footprint *f, int32_t r, struct buf *b)
{
    const struct layout *l = s->layouts[r];
    buf_printf(b, "    {\"rank\": %d, ", r);
    json_span(b, "heads", l->heads);
    json_span(b, "kv_heads", l->kv_heads[0]);
    if (model_config_kinds(&s->model) > 1)
        json_span(b, "global_kv_heads", l->kv_heads[1]);
    json_span(b, "mlp_columns", l->mlp);
    json_span(b, "vocab_rows", l->vocab);
    buf_printf(b, "\"weight_bytes\": %zu, \"weight_elements\": %llu, \"read_bytes\": %llu, ",
               f->rank[r].weights, (unsigned long long)weight_elements(l),
               (unsigned long long)setup_read_bytes(s, r));
    buf_printf(b, "\"kv_bytes_per_token\": %zu, \"kv_bytes\": %zu, \"activation_bytes\": %zu, ",
               f->rank[r].kv_per_token, f->rank[r].kv, f->rank[r].activations);
    buf_printf(b, "\"comm_buffer_bytes\": %zu, ", f->comm_bytes);
    if (model_config_recurring(&s->model) > 0)
        buf_printf(b, "\"state_bytes_per_sequence\": %zu, ", f->rank[r].state);
    if (f->on_device)
        buf_printf(b, "\"scratch_bytes\": %zu, ", f->rank[r].scratch);
    buf_printf(b, "\"received_bytes_per_layer\": {\"decode_1\": %llu, \"prefill_%d\": %llu}, ",
               (unsigned long long)layer_bytes(s, r, 1), f->limits.rows,
               (unsigned long long)layer_bytes(s, r, f->limits.rows));
    if (options_distributed(&s->options))
        buf_printf(b, "\"received_election_bytes_per_row\": {\"greedy\": %llu, \"most\": %llu}, ",
                   (unsigned long long)election_bytes(s, 0),
                   (unsigned long long)election_bytes(s, SAMPLE_PLACES_MAX));
    buf_printf(b, "\"residual_bytes\": %zu, \"received_bytes_around_layers\": %llu}%s\n",
               4 * parallel_rest_size(s->flow, r, f->limits.rows),
               (unsigned long long)ends_bytes(s, r), r + 1 < f->ranks ? "," : "");
}

static void print_json(const struct setup *s, const struct footprint *f, bool fits, struct buf *b)
{
    char name[256];
    setup_model_name(&s->options, name, sizeof name);
    buf_puts(b, "{\n  \"model\": ");
    buf_json(b, name, strnlen(name, sizeof name));
    buf_printf(b, ",\n  \"ranks\": %d, \"threads_per_rank\": %d, \"mode\": \"%s\",\n", f->ranks,
               f->threads, plan_mode(s->plan));
    const char *codes = model_config_codes(&s->model), *quote = codes ? "\"" : "";
    buf_printf(b, "  \"dtype\": \"%s\", \"kv_dtype\": \"%s\", \"quantization\": %s%s%s,\n",
               dtype_name(f->dtype), dtype_name(f->kv_dtype), quote, codes ? codes : "null", quote);
    buf_printf(b,
               "  \"max_model_len\": %d, \"max_num_seqs\": %d, \"max_num_batched_tokens\": %d,\n",
               f->max_model_len, f->limits.slots, f->limits.rows);
    if (f->limits.recurs)
        buf_printf(b, "  \"kept_states\": %d,\n", f->limits.states);
    const struct kv_groups *groups = &f->limits.groups;
    buf_printf(b, "  \"kv_blocks\": %d, \"block_tokens\": %d, \"block_layers\": %d,\n",
               f->limits.blocks, BACKEND_BLOCK_TOKENS, groups->layers);
    if (groups->keep_layers > 0)
        buf_printf(b, "  \"global_block_layers\": %d,\n", groups->keep_layers);
    buf_printf(b, "  \"kv_groups\": {\"keep\": %d, \"slide\": %d}, \"context_blocks\": %d,\n",
               groups->keep, groups->slide, footprint_context_blocks(f));
    const struct mixture_config *x = &s->model.mixture;
    buf_printf(b, "  \"experts\": %d, \"experts_per_token\": %d, \"shared_experts\": %d,\n",
               x->experts, x->chosen, x->shared);
    buf_printf(b, "  \"dense_layers\": %d,\n", x->dense);
    buf_printf(b, "  \"sliding_window\": %d, \"sliding_layers\": %d,\n", s->model.window,
               model_config_sliding(&s->model));
    json_placements(s, f, b);
    buf_printf(b, "  \"fits\": %s, \"total_bytes\": %zu, \"available_bytes\": %zu,\n",
               fits ? "true" : "false", f->total, f->available);
    const struct flow *flow = s->flow;
    buf_puts(b, "  \"mesh\": {");
    for (int32_t i = 0; i < flow->mesh.axes; i++)
        buf_printf(b, "%s\"%s\": %d", i ? ", " : "", flow->mesh.axis[i].name,
                   flow->mesh.axis[i].size);
    buf_printf(b, "}, \"collectives_per_layer\": {\"few_rows\": %d, \"many_rows\": %d},\n",
               flow_meetings(flow, PLAN_DECODE), flow_meetings(flow, PLAN_PREFILL));
    if (flow->prefill_rows < INT32_MAX)
        buf_printf(b, "  \"many_rows_from\": %d,\n", flow->prefill_rows);
    if (s->priced) {
        buf_puts(b, "  \"prices\": ");
        price_write(&s->price, b);
        buf_puts(b, ",\n");
    }
    buf_printf(b, "  \"oneshot_max_bytes\": %u,\n", COMM_ONESHOT_MAX_BYTES);
    buf_puts(b, "  \"per_rank\": [\n");
    for (int32_t r = 0; r < f->ranks; r++)
        json_rank(s, f, r, b);
    buf_puts(b, "  ]\n}\n");
}

static void print_text(const struct setup *s, const struct footprint *f, struct buf *b)
{
    char one[32], many[32], ends[32], read[32];
    setup_table(s, f, b);
    buf_printf(b,
               "\nrank  reads       KV per token  received per layer: 1 row, %d rows; around the "
               "layers\n",
               f->limits.rows);
    for (int32_t r = 0; r < f->ranks; r++)
        buf_printf(b, "%4d  %-10s  %7zu B     %s, %s; %s\n", r,
                   base_human_bytes(read, sizeof read, setup_read_bytes(s, r)),
                   f->rank[r].kv_per_token, base_human_bytes(one, sizeof one, layer_bytes(s, r, 1)),
                   base_human_bytes(many, sizeof many, layer_bytes(s, r, f->limits.rows)),
                   base_human_bytes(ends, sizeof ends, ends_bytes(s, r)));
    print_placements(s, f, b);
}

/* What was asked for besides the plan itself. */
static enum status write_layouts(const struct setup *s, int32_t rows, struct buf *out,
                                 struct err *err)
{
    enum status st = OK;
    const struct options *o = &s->options;
    if (o->explain) {
        plan_modes_explain(s, rows, out);
        TRY(plan_costs_table(s, rows, out, err));
    }
    if (s->priced && !o->json)
        plan_modes_price(s, out);
    if (o->kv_placement && strcmp(o->kv_placement, placement_names[plan_is_home(s->plan)]) != 0)
        buf_printf(out, "\n%s has no --kv-placement %s: above, every rank has %s\n",
                   plan_mode(s->plan), o->kv_placement,
                   plan_is_home(s->plan) ? "the sequences of its home" : "all sequences");
    if (o->modes)
        TRY(plan_modes_table(s, rows, out, err));
out:
    return st;
}

enum status commands_plan(const struct options *o, struct err *err)
{
    enum status st = OK;
    struct setup s = {0};
    struct footprint f;
    struct buf text;
    buf_init(&text, 1 << 22);
    TRY(setup_open(o, &s, err));
    if (o->print_plan) {
        fputs(plan_text(s.plan), stdout);
        goto out;
    }
    st = footprint_plan(&s.options, &s.model, s.flow, &f, err);
    if (st != OK && st != ERR_LIMIT)
        goto out;
    if (o->json)
        print_json(&s, &f, st == OK, &text);
    else
        print_text(&s, &f, &text);
    remarks_on_sizes(&s, &f);
    enum status more = write_layouts(&s, f.limits.rows, &text, err);
    st = more == OK ? st : more;
    more = buf_write(&text, stdout, "stdout", err);
    st = more == OK ? st : more;
out:
    buf_free(&text);
    setup_close(&s);
    return st;
}
