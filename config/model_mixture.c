#include "config/model_mixture.h"

#include <stdio.h>
#include <string.h>

/* Some layers may be without experts; we compute only models in which none is. */
static void expect_all_layers(struct reader *r)
{
    const struct jdoc *none = jdoc_get_value(r->object, "mlp_only_layers");
    if (none && (jdoc_type(none) != JDOC_ARRAY || jdoc_size(none) > 0))
        reader_fail(r, "mlp_only_layers",
                    "an empty list (layers without experts are not supported)");
    if (reader_int(r, "decoder_sparse_step", 0, 1 << 20, 1) != 1)
        reader_fail(r, "decoder_sparse_step", "1 (layers without experts are not supported)");
}

#define GPT_OSS_COLUMNS_MAX (1 << 28) /* their biases are one vector */

/* What its experts compute beside their products (numerics_swiglu), and that they come as MXFP4. */
static void expect_gpt_oss(struct reader *r, const struct model_config *m)
{
    const struct mixture_config *x = &m->mixture;
    if (reader_number(r, "swiglu_limit", 0, 1e6, 7) != 7)
        reader_fail(r, "swiglu_limit", "7");
    if (reader_number(r, "swiglu_alpha", 0, 1e6, 1.702) != 1.702)
        reader_fail(r, "swiglu_alpha", "1.702");
    if (!jdoc_get_value(r->object, "quantization_config"))
        reader_fail(r, "quantization_config",
                    "quant_method \"mxfp4\" (experts in other types are "
                    "not supported)");
    if (x->experts * (int64_t)m->mlp > GPT_OSS_COLUMNS_MAX)
        reader_fail(r, "intermediate_size", "at most 268435456 of all experts together");
    if (!jdoc_get_value(r->object, "rope_scaling") && !jdoc_get_value(r->object, "rope_parameters"))
        reader_fail(r, "rope_scaling", "an object");
}

/* The shared expert of Qwen2's is as many as are as wide as the others. */
static void read_shared_width(struct reader *r, const struct family *f,
                              const struct model_config *m, struct mixture_config *x)
{
    const int32_t width =
        reader_int(r, "shared_expert_intermediate_size", 1, 1 << 20, f->shared_mlp);
    char wanted[80];
    snprintf(wanted, sizeof wanted, "a multiple of moe_intermediate_size, which is %d",
             (int)m->mlp);
    x->shared = m->mlp > 0 ? width / m->mlp : 0;
    if (r->st == OK && width % m->mlp != 0)
        reader_fail(r, "shared_expert_intermediate_size", wanted);
}

/* Is it without experts, in a family of mixtures that allows it? */
bool model_mixture_is_plain(struct reader *r, const struct family *f)
{
    return f->plain_too && reader_int(r, "num_experts", 0, 1024, f->mixture.experts) == 0;
}

/* The family's key, or DeepSeek's. */
static const char *or_deepseek(const char *key, const char *deepseek)
{
    return key ? key : deepseek;
}

/* The other name of it that transformers' class knows, where only that is there. */
static const char *or_other(const struct reader *r, const char *key, const char *other)
{
    return !jdoc_get_value(r->object, key) && jdoc_get_value(r->object, other) ? other : key;
}

static bool is_deepseek_v2(const struct family *f)
{
    return f->mixture.softmax && !f->mixture.among;
}

/* How tokens choose. dots.llm1 calls its scores by the method. norm_topk_prob of DeepSeek-V2, which
 * no published model sets to true, means something else to its own code than to others', and
 * nothing to transformers. */
static void expect_scores(struct reader *r, const struct family *f, const struct mixture_config *x)
{
    static const char noaux[] = "noaux_tc"; /* sigmoids and corrections */
    const char *scores = reader_string(r, "scoring_func");
    if (scores && (x->softmax || strcmp(scores, noaux) != 0))
        reader_expect(r, "scoring_func", x->softmax ? "softmax" : "sigmoid");
    if (!x->softmax && jdoc_get_value(r->object, "topk_method"))
        reader_expect(r, "topk_method", noaux);
    if (is_deepseek_v2(f) && x->among)
        reader_fail(r, "norm_topk_prob", "false (not supported of this family)");
    if (reader_int(r, "moe_layer_freq", 0, 1 << 20, 1) != 1)
        reader_fail(r, "moe_layer_freq", "1 (others are not supported)");
}

/* Does config.json ask for groups? They are every family's but DeepSeek-V2's, which says so, and
 * those of other softmaxes: Mistral 4's class could, and no published model does. */
static bool wants_groups(struct reader *r, const struct family *f)
{
    if (!f->mixture.softmax)
        return true;
    if (!is_deepseek_v2(f)) {
        if (reader_int(r, "n_group", 1, 1024, 1) != 1)
            reader_fail(r, "n_group", "1 (groups are not supported of this family)");
        return false;
    }
    const char *method = reader_string(r, "topk_method");
    const bool greedy = !method || strcmp(method, "greedy") == 0;
    if (!greedy && strcmp(method, "group_limited_greedy") != 0)
        reader_fail(r, "topk_method", "\"greedy\" or \"group_limited_greedy\"");
    return !greedy;
}

/* None where a token keeps all of them. */
static void read_groups(struct reader *r, const struct family *f, struct mixture_config *x)
{
    const int32_t one = x->softmax ? -1 : 1; /* V2's class has no number of its own */
    const int32_t groups = reader_is_null(r, "n_group")
                               ? 1
                               : reader_int(r, "n_group", 1, 1024, x->groups > 0 ? x->groups : one);
    const int32_t kept = reader_is_null(r, "topk_group")
                             ? groups
                             : reader_int(r, "topk_group", 1, 1024, x->kept > 0 ? x->kept : one);
    x->groups = x->kept = 0;
    if (r->st != OK)
        return;
    const char *experts = or_deepseek(f->keys.experts, "n_routed_experts");
    char divisor[80], half[80], most[80], least[96];
    snprintf(divisor, sizeof divisor, "a divisor of %s, which is %d", experts, (int)x->experts);
    snprintf(half, sizeof half, "at most half of %s", experts);
    snprintf(most, sizeof most, "at most n_group, which is %d", (int)groups);
    snprintf(least, sizeof least, "groups of %d experts that have num_experts_per_tok, which is %d",
             (int)(x->experts / groups), (int)x->chosen);
    if (x->experts % groups != 0)
        reader_fail(r, "n_group", divisor);
    else if (!x->softmax && groups > 1 && x->experts / groups < 2)
        reader_fail(r, "n_group", half);
    else if (kept > groups)
        reader_fail(r, "topk_group", most);
    else if (kept < groups && kept * (x->experts / groups) < x->chosen)
        reader_fail(r, "topk_group", least);
    x->groups = kept < groups ? groups : 0;
    x->kept = kept < groups ? kept : 0;
}

/* So many of the first layers have no experts; a list of all layers wins, in which no other may. */
static int32_t count_dense(struct reader *r, const struct family *f, const struct model_config *m)
{
    static const char key[] = "mlp_layer_types";
    const char *number = or_deepseek(f->keys.dense, "first_k_dense_replace");
    const struct jdoc *types = jdoc_get_value(r->object, key);
    int32_t dense = reader_int(r, number, 0, MODEL_LAYERS_MAX, f->mixture.dense);
    bool good = !types || (jdoc_type(types) == JDOC_ARRAY && jdoc_size(types) == (size_t)m->layers);
    if (types)
        dense = 0;
    for (int32_t i = 0; types && good && i < m->layers; i++) {
        const struct jdoc *v = jdoc_at(types, (size_t)i);
        const char *type = jdoc_type(v) == JDOC_STRING ? jdoc_string(v) : "";
        const bool plain = strcmp(type, "dense") == 0 && dense == i;
        dense += plain;
        good = plain || strcmp(type, "sparse") == 0;
    }
    if (!good)
        reader_fail(r, key, "a list of as many as num_hidden_layers, \"dense\" before \"sparse\"");
    if (r->st == OK && dense >= m->layers)
        reader_fail(r, types ? key : number, "less than num_hidden_layers");
    return dense;
}

/* What ERNIE's class could do otherwise, and no published model does: its layers of experts end
 * before the last one, or are not all from the first one on. */
static void expect_ernie(struct reader *r, const struct model_config *m)
{
    const int32_t last = m->layers - 1;
    const int64_t end = jdoc_get_value(r->object, "moe_layer_end_index")
                            ? reader_int(r, "moe_layer_end_index", -1, MODEL_LAYERS_MAX, last)
                            : last;
    if (end != -1 && end < last)
        reader_fail(
            r, "moe_layer_end_index",
            "the last layer or -1 (layers without experts behind others are not supported)");
    if (reader_int(r, "moe_layer_interval", 0, 1 << 20, 1) != 1)
        reader_fail(r, "moe_layer_interval", "1 (layers without experts are not supported)");
    if (reader_number(r, "moe_norm_min", 0, 1, 1e-12) != 1e-12)
        reader_fail(r, "moe_norm_min", "1e-12");
    if (jdoc_get_value(r->object, "moe_gate_act"))
        reader_expect(r, "moe_gate_act", "softmax");
}

/* GLM's, DeepSeek's and alike. */
static void read_glm(struct reader *r, const struct family *f, const struct model_config *m,
                     struct mixture_config *x)
{
    const char *shared = or_deepseek(f->keys.shared, "n_shared_experts");
    const bool ernie = x->corrections == CORRECTIONS_STATICS;
    const char *experts = or_deepseek(f->keys.experts, "n_routed_experts");
    x->experts = reader_int(r, or_other(r, experts, ernie ? "num_experts" : "num_local_experts"), 1,
                            1024, x->experts);
    x->shared = reader_int(r, shared, f->keys.shared ? 0 : 1, 63, x->shared);
    if (!ernie) /* whose class does not ask */
        x->scale = (float)reader_number(r, "routed_scaling_factor", 1e-6, 1e6, x->scale);
    x->dense = count_dense(r, f, m);
    x->dense_mlp = reader_int(r, "intermediate_size", 1, 1 << 20, x->dense_mlp);
    expect_scores(r, f, x);
    if (wants_groups(r, f))
        read_groups(r, f, x);
    if (ernie)
        expect_ernie(r, m);
}

/* What MiniMax's own class could do otherwise, and no published model does. */
static void expect_minimax(struct reader *r)
{
    const struct jdoc *kinds = jdoc_get_value(r->object, "attn_type_list");
    bool full = !kinds || jdoc_type(kinds) == JDOC_ARRAY;
    for (size_t i = 0; full && kinds && i < jdoc_size(kinds); i++)
        full = jdoc_number(jdoc_at(kinds, i)) == 1;
    if (!full)
        reader_fail(r, "attn_type_list",
                    "a list of 1 (other kinds of attention are not supported)");
    if (jdoc_get_value(r->object, "scoring_func"))
        reader_expect(r, "scoring_func", "sigmoid");
    if (jdoc_get_value(r->object, "qk_norm_type"))
        reader_expect(r, "qk_norm_type", "per_layer");
    if (!reader_bool(r, "use_qk_norm", true))
        reader_fail(r, "use_qk_norm", "true");
    if (!reader_bool(r, "use_routing_bias", true))
        reader_fail(r, "use_routing_bias", "true");
    if (reader_int(r, "shared_intermediate_size", 0, 1 << 20, 0) != 0)
        reader_fail(r, "shared_intermediate_size",
                    "0 (shared experts of this family are not supported)");
}

/* What the kernels compute (BACKEND_EXPERTS_MAX, BACKEND_CHOSEN_MAX), and memory of their tables.
 */
static void expect_countable(struct reader *r, const struct family *f, const struct model_config *m)
{
    const struct mixture_config *x = &m->mixture;
    const int32_t experts = mixture_experts(x), layers = m->layers - x->dense;
    char wanted[80];
    snprintf(wanted, sizeof wanted, "at most as many as there are experts, %d", (int)x->experts);
    if (r->st == OK && x->chosen > x->experts)
        reader_fail(r,
                    mixture_is_beside(x) ? "top_k_experts"
                                         : or_deepseek(f->keys.chosen, "num_experts_per_tok"),
                    wanted);
    if (r->st == OK && (experts > 1024 || mixture_chosen(x) > 64))
        r->st =
            base_fail(r->err, ERR_MODEL,
                      "%s: %d experts of which a token takes %d, shared ones of one width among "
                      "them, expected at most 1024 and 64",
                      r->where, (int)experts, (int)mixture_chosen(x));
    if (r->st == OK && experts * layers > MODEL_EXPERTS_MAX)
        r->st = base_fail(r->err, ERR_MODEL,
                          "%s: %d experts in %d layers are %d, expected at most %d", r->where,
                          (int)experts, (int)layers, (int)(experts * layers), MODEL_EXPERTS_MAX);
}

/* Gemma 4's, where it has any. */
static void read_gemma(struct reader *r, struct model_config *m)
{
    struct mixture_config *x = &m->mixture;
    if (!reader_bool(r, "enable_moe_block", false))
        return;
    *x = (struct mixture_config){.kind = MIXTURE_GEMMA, .among = true, .scale = 1};
    x->experts = reader_int(r, "num_experts", 1, 1024, -1);
    x->chosen = reader_int(r, "top_k_experts", 1, 64, -1);
    x->dense_mlp = m->mlp;
    m->mlp = reader_int(r, "moe_intermediate_size", 1, 1 << 20, -1);
}

void model_mixture_read(struct reader *r, const struct family *f, struct model_config *m)
{
    struct mixture_config *x = &m->mixture;
    const bool local = jdoc_get_value(r->object, "num_local_experts");
    if (model_mixture_is_plain(r, f))
        return;
    if (f->global_dim > 0) {
        read_gemma(r, m);
        expect_countable(r, f, m);
        return;
    }
    *x = f->mixture;
    if (x->kind == MIXTURE_NONE)
        return;
    if (x->kind != MIXTURE_GLM)
        x->scale = 1;
    static const char per_token[] = "num_experts_per_tok";
    x->chosen = reader_int(r, or_other(r, or_deepseek(f->keys.chosen, per_token), per_token), 1, 64,
                           x->chosen);
    if (x->kind != MIXTURE_GLM)
        x->experts =
            reader_int(r, local ? "num_local_experts" : "num_experts", 1, 1024, x->experts);
    if (x->kind == MIXTURE_QWEN || x->kind == MIXTURE_QWEN2 ||
        (x->kind == MIXTURE_GLM && x->corrections != CORRECTIONS_STATICS))
        x->among = reader_bool(r, "norm_topk_prob", x->among);
    if (f->always_among && !x->among)
        reader_fail(r, "norm_topk_prob", "true (of this family)");
    if (x->kind == MIXTURE_QWEN || x->kind == MIXTURE_QWEN2)
        expect_all_layers(r);
    if (x->kind == MIXTURE_MINIMAX)
        expect_minimax(r);
    if (x->kind == MIXTURE_QWEN2)
        read_shared_width(r, f, m, x);
    if (x->kind == MIXTURE_QWEN2 && reader_bool(r, "use_sliding_window", false))
        reader_fail(r, "use_sliding_window", "false (layers that slide are not supported)");
    if (x->kind == MIXTURE_GLM)
        read_glm(r, f, m, x);
    if (x->kind == MIXTURE_GPT_OSS)
        expect_gpt_oss(r, m);
    expect_countable(r, f, m);
}
