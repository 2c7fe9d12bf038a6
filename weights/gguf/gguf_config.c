/* DESIGN: a key is a row: what differs between families stands in tables. The ranges of values are
 * left to model_config, which reads what this writes; here is refused what config.json has no words
 * for. */
#include "weights/gguf/gguf_config.h"

#include "weights/gguf/gguf_arch.h"
#include "weights/gguf/gguf_gemma4.h"
#include "weights/gguf/gguf_put.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- keys ---- */

enum kind { WHOLE, REAL, TRUTH };

#define NEEDED NULL
#define LEFT_OUT ""

/* A key of config.json and where its value is. */
struct key_row {
    const char *json, *key;
    enum kind kind;
    const char *missing; /* what is written where the file has none; NEEDED, LEFT_OUT */
    const char *only;    /* architectures, each in blanks, behind a ! all but these; NULL: all */
};

#define HYBRID_QWENS " qwen3next qwen35moe "
#define QWENS " qwen2moe qwen3moe " HYBRID_QWENS
#define GLMS " glm4moe " GGUF_ARCH_DEEPSEEKS
#define SCORED " dots1 exaone-moe " /* by sigmoids, and the file has to say so */
#define ERNIES " ernie4_5-moe "
#define PARTIAL " phi3 glm4 glm4moe " GGUF_ARCH_HYBRIDS /* may turn a part of a head only */

/* rope.dimension_sections says which of several positions turns a pair: all are one in a text. */
static const struct key_row key_rows[] = {
    {"hidden_size", "embedding_length", WHOLE, NEEDED, NULL},
    {"num_hidden_layers", "block_count", WHOLE, NEEDED, NULL},
    {"num_attention_heads", "attention.head_count", WHOLE, NEEDED, NULL},
    {"num_key_value_heads", "attention.head_count_kv", WHOLE, LEFT_OUT,
     "!" GGUF_ARCH_DEEPSEEKS GGUF_ARCH_GEMMA4},
    {"intermediate_size", "feed_forward_length", WHOLE, NEEDED, "!" HYBRID_QWENS GGUF_ARCH_GEMMA4},
    {"intermediate_size", "feed_forward_length", WHOLE, LEFT_OUT, HYBRID_QWENS}, /* not theirs */
    {"moe_intermediate_size", "expert_feed_forward_length", WHOLE, NEEDED,
     QWENS GLMS SCORED ERNIES},
    {"shared_expert_intermediate_size", "expert_shared_feed_forward_length", WHOLE, NEEDED,
     " qwen2moe " HYBRID_QWENS},
    {"num_experts", "expert_count", WHOLE, NEEDED, QWENS " exaone-moe "},
    {"num_local_experts", "expert_count", WHOLE, NEEDED, " mixtral "},
    {"num_experts", "expert_count", WHOLE, LEFT_OUT, GGUF_ARCH_GEMMA4},
    {"top_k_experts", "expert_used_count", WHOLE, LEFT_OUT, GGUF_ARCH_GEMMA4},
    {"moe_intermediate_size", "expert_feed_forward_length", WHOLE, LEFT_OUT, GGUF_ARCH_GEMMA4},
    {"n_routed_experts", "expert_count", WHOLE, NEEDED, GLMS " dots1 "},
    {"n_shared_experts", "expert_shared_count", WHOLE, NEEDED, GLMS " dots1 "},
    {"num_shared_experts", "expert_shared_count", WHOLE, NEEDED, " exaone-moe "},
    {"num_experts_per_tok", "expert_used_count", WHOLE, NEEDED, QWENS GLMS SCORED " mixtral "},
    {"first_k_dense_replace", "leading_dense_block_count", WHOLE, NEEDED, GLMS},
    {"first_k_dense_replace", "leading_dense_block_count", WHOLE, "0", SCORED},
    {"routed_scaling_factor", "expert_weights_scale", REAL, NEEDED, " glm4moe "},
    {"norm_topk_prob", "expert_weights_norm", TRUTH, NEEDED, " glm4moe "},
    /* what llama.cpp takes for a key that is missing, not always what the family's class does */
    {"routed_scaling_factor", "expert_weights_scale", REAL, "1.0", GGUF_ARCH_DEEPSEEKS SCORED},
    {"norm_topk_prob", "expert_weights_norm", TRUTH, "false", GGUF_ARCH_DEEPSEEKS SCORED},
    {"n_group", "expert_group_count", WHOLE, "1", GGUF_ARCH_DEEPSEEKS SCORED},
    {"topk_group", "expert_group_used_count", WHOLE, "1", GGUF_ARCH_DEEPSEEKS SCORED},
    {"q_lora_rank", "attention.q_lora_rank", WHOLE, "null", GGUF_ARCH_DEEPSEEKS},
    {"kv_lora_rank", "attention.kv_lora_rank", WHOLE, NEEDED, GGUF_ARCH_DEEPSEEKS},
    {"qk_rope_head_dim", "rope.dimension_count", WHOLE, NEEDED, GGUF_ARCH_DEEPSEEKS},
    {"n_group", "expert_group_count", WHOLE, LEFT_OUT, " glm4moe " ERNIES},
    {"topk_group", "expert_group_used_count", WHOLE, LEFT_OUT, " glm4moe "},
    {"moe_num_experts", "expert_count", WHOLE, NEEDED, ERNIES},
    {"moe_k", "expert_used_count", WHOLE, NEEDED, ERNIES},
    {"moe_layer_interval", "interleave_moe_layer_step", WHOLE, NEEDED, ERNIES},
    {"moe_layer_start_index", "leading_dense_block_count", WHOLE, "0", ERNIES},
    {"moe_num_shared_experts", "expert_shared_count", WHOLE, "0", ERNIES},
    {"max_position_embeddings", "context_length", WHOLE, NEEDED, NULL},
    {"rms_norm_eps", "attention.layer_norm_rms_epsilon", REAL, NEEDED, NULL},
    {"head_dim", "attention.key_length", WHOLE, LEFT_OUT, "!" GGUF_ARCH_DEEPSEEKS GGUF_ARCH_GEMMA4},
    {"head_dim", "attention.key_length_swa", WHOLE, NEEDED, GGUF_ARCH_GEMMA4},
    {"global_head_dim", "attention.key_length", WHOLE, NEEDED, GGUF_ARCH_GEMMA4},
    {"num_kv_shared_layers", "attention.shared_kv_layers", WHOLE, "0", GGUF_ARCH_GEMMA4},
    {"hidden_size_per_layer_input", "embedding_length_per_layer_input", WHOLE, NEEDED,
     GGUF_ARCH_GEMMA4},
    {"linear_num_key_heads", "ssm.group_count", WHOLE, NEEDED, GGUF_ARCH_HYBRIDS},
    {"linear_num_value_heads", "ssm.time_step_rank", WHOLE, NEEDED, GGUF_ARCH_HYBRIDS},
    {"linear_key_head_dim", "ssm.state_size", WHOLE, NEEDED, GGUF_ARCH_HYBRIDS},
    {"linear_conv_kernel_dim", "ssm.conv_kernel", WHOLE, NEEDED, GGUF_ARCH_HYBRIDS},
    {"full_attention_interval", "full_attention_interval", WHOLE, LEFT_OUT, GGUF_ARCH_HYBRIDS},
    {"sliding_window", "attention.sliding_window", WHOLE, NEEDED,
     " gemma2 gemma3 exaone-moe " GGUF_ARCH_GEMMA4},
    {"sliding_window", "attention.sliding_window", WHOLE, "null", " exaone4 "},
    {"sliding_window_pattern", "attention.sliding_window_pattern", WHOLE, LEFT_OUT, " gemma3 "},
    {"rope_local_base_freq", "rope.freq_base_swa", REAL, LEFT_OUT, " gemma3 "},
    {"attn_logit_softcapping", "attn_logit_softcapping", REAL, LEFT_OUT, " gemma2 "},
    {"final_logit_softcapping", "final_logit_softcapping", REAL, LEFT_OUT,
     " gemma2 " GGUF_ARCH_GEMMA4},
    {"attention_multiplier", "attention.scale", REAL, NEEDED, " granite "},
    {"embedding_multiplier", "embedding_scale", REAL, NEEDED, " granite "},
    {"residual_multiplier", "residual_scale", REAL, NEEDED, " granite "},
    {"logits_scaling", "logit_scale", REAL, NEEDED, " granite "},
};

/* ---- rotation ---- */

/* Llama 3's factor of a pair's wavelength (Llama 3.1's model card; transformers'
 * _compute_llama3_parameters), with the 1 and 4 that all its models have. */
static double llama3_factor(double theta, int32_t i, int32_t pairs, double factor, double original)
{
    const double wavelength = 2 * M_PI * pow(theta, (double)i / pairs);
    if (wavelength < original / 4)
        return 1;
    if (wavelength > original)
        return factor;
    const double smooth = (original / wavelength - 1) / 3;
    return 1 / ((1 - smooth) / factor + smooth);
}

static bool is_llama3(const float *factors, int32_t pairs, double theta, double original)
{
    for (int32_t i = 0; i < pairs; i++) {
        const double f = llama3_factor(theta, i, pairs, factors[pairs - 1], original);
        if (!(fabs(factors[i] - f) <= 1e-4 * f))
            return false;
    }
    return true;
}

/* The file has the factors of the pairs; config.json what they are made of. */
static enum status put_llama3(const struct gguf *g, const float *factors, int32_t pairs,
                              double theta, struct buf *b, struct err *err)
{
    int32_t original = 8192; /* that of all models there are; others are looked for */
    for (int32_t n = 32; !is_llama3(factors, pairs, theta, original); n *= 2) {
        if (n > 1 << 20)
            return base_fail(err, ERR_MODEL,
                             "%s: rope_freqs.weight: expected the factors of Llama 3's rotation",
                             gguf_path(g));
        original = n;
    }
    buf_puts(b, "  \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": ");
    gguf_put_float(b, factors[pairs - 1]);
    buf_printf(b,
               ", \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
               "\"original_max_position_embeddings\": %d},\n",
               (int)original);
    return OK;
}

static void put_list(struct buf *b, const char *name, const float *v, int32_t n)
{
    buf_printf(b, ", \"%s\": [", name);
    for (int32_t i = 0; i < n; i++) {
        buf_puts(b, i > 0 ? ", " : "");
        gguf_put_float(b, v[i]);
    }
    buf_puts(b, "]");
}

static enum status put_long(const struct gguf *g, const struct gguf_arch *a, struct buf *b,
                            struct err *err)
{
    float shorter[GGUF_ARCH_PAIRS_MAX], longer[GGUF_ARCH_PAIRS_MAX];
    int64_t original = 0;
    const int32_t n = gguf_arch_factors(g, "rope_factors_short.weight", shorter, err);
    const int32_t m = n > 0 ? gguf_arch_factors(g, "rope_factors_long.weight", longer, err) : n;
    if (n < 0 || m < 0)
        return ERR_MODEL;
    if (n == 0)
        return OK;
    if (m != n)
        return base_fail(err, ERR_MODEL, "%s: %d short factors of rotation, but %d long ones",
                         gguf_path(g), (int)n, (int)m);
    if (!gguf_int(gguf_arch_get(g, a, "rope.scaling.original_context_length"), &original))
        return gguf_arch_wrong(g, a, "rope.scaling.original_context_length", "an integer", err);
    buf_puts(b, "  \"rope_scaling\": {\"rope_type\": \"longrope\"");
    put_list(b, "short_factor", shorter, n);
    put_list(b, "long_factor", longer, m);
    buf_printf(b, "},\n  \"original_max_position_embeddings\": %lld,\n", (long long)original);
    return OK;
}

/* The shortest text of which a tenth reads as this float. */
static void put_tenfold(struct buf *b, float v)
{
    char text[48];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, 10 * (double)v);
        if ((float)(0.1 * strtod(text, NULL)) == v)
            break;
    }
    buf_puts(b, text);
}

/* The two numbers for how sharp attention stays. The file has the second, or in DeepSeek's a tenth
 * of it; the first is the same in all models there are of DeepSeek's, and 1 in Mistral's. */
static enum status put_sharpness(const struct gguf *g, const struct gguf_arch *a, struct buf *b,
                                 struct err *err)
{
    double v = NAN;
    enum status st = gguf_arch_number(g, a, "rope.scaling.yarn_log_multiplier", &v, err);
    if (st != OK || isnan(v))
        return st;
    if (gguf_arch_is(a, GGUF_ARCH_DEEPSEEKS)) {
        buf_puts(b, ", \"mscale\": ");
        put_tenfold(b, (float)v);
        buf_puts(b, ", \"mscale_all_dim\": ");
        put_tenfold(b, (float)v);
    } else if (gguf_arch_is(a, GGUF_ARCH_MISTRALS)) {
        buf_puts(b, ", \"mscale\": 1.0, \"mscale_all_dim\": ");
        gguf_put_float(b, (float)v);
    }
    return OK;
}

static const char growth_key[] = "attention.temperature_scale";

/* By how much queries grow with their positions. */
static enum status put_growth(const struct gguf *g, const struct gguf_arch *a, struct buf *b,
                              struct err *err)
{
    double v = NAN;
    if (strcmp(a->name, "ministral3") != 0)
        return OK;
    const enum status st = gguf_arch_number(g, a, growth_key, &v, err);
    buf_puts(b, ", \"llama_4_scaling_beta\": ");
    gguf_put_float(b, (float)v);
    return st;
}

/* What is written of a stretched context, by a key in the file. */
static enum status put_stretched(const struct gguf *g, const struct gguf_arch *a, bool yarn,
                                 struct buf *b, struct err *err)
{
    static const struct {
        const char *json, *key;
    } numbers[] = {{"beta_fast", "rope.scaling.yarn_beta_fast"},
                   {"beta_slow", "rope.scaling.yarn_beta_slow"},
                   {"attention_factor", "rope.scaling.yarn_attn_factor"}};
    enum status st = OK;
    double v = NAN;
    int64_t original = 0;
    TRY(gguf_arch_number(g, a, "rope.scaling.factor", &v, err));
    if (isnan(v)) {
        st = gguf_arch_wrong(g, a, "rope.scaling.factor", "a number", err);
        goto out;
    }
    buf_printf(
        b, "  \"rope_scaling\": {\"rope_type\": \"%s\", \"factor\": ", yarn ? "yarn" : "linear");
    gguf_put_float(b, (float)v);
    TRY(gguf_arch_int(g, a, "rope.scaling.original_context_length", 1, INT32_MAX, &original, err));
    if (yarn && original > 0)
        buf_printf(b, ", \"original_max_position_embeddings\": %lld", (long long)original);
    for (size_t i = 0; yarn && i < ARRAY_LEN(numbers); i++) {
        v = NAN;
        TRY(gguf_arch_number(g, a, numbers[i].key, &v, err));
        if (isnan(v))
            continue;
        buf_printf(b, ", \"%s\": ", numbers[i].json);
        gguf_put_float(b, (float)v);
    }
    TRY(put_sharpness(g, a, b, err));
    TRY(put_growth(g, a, b, err));
    buf_puts(b, "},\n");
out:
    return st;
}

static bool is_text(const struct gguf_value *v, const char *text)
{
    struct gguf_string s;
    return gguf_text(v, &s) && s.n == strlen(text) && memcmp(s.bytes, text, s.n) == 0;
}

static enum status put_rotation(const struct gguf *g, const struct gguf_arch *a, struct buf *b,
                                struct err *err)
{
    enum status st = OK;
    float factors[GGUF_ARCH_PAIRS_MAX];
    struct gguf_string type = {"none", 4};
    double theta = strcmp(a->name, "gemma3") == 0 ? 1e6 : 1e4;
    const int32_t pairs = gguf_arch_factors(g, "rope_freqs.weight", factors, err);
    const struct gguf_value *v = gguf_arch_get(g, a, "rope.scaling.type");
    if (pairs < 0)
        return ERR_MODEL;
    if (v && !gguf_text(v, &type))
        return gguf_arch_wrong(g, a, "rope.scaling.type", "a string", err);
    if (!v)
        TRY(gguf_arch_unstretched(g, a, err));
    TRY(gguf_arch_number(g, a, "rope.freq_base", &theta, err));
    buf_puts(b, "  \"rope_theta\": ");
    gguf_put_float(b, (float)theta);
    buf_puts(b, ",\n");
    const bool yarn = is_text(v, "yarn");
    if (pairs > 0)
        st = put_llama3(g, factors, pairs, theta, b, err);
    else if (yarn || is_text(v, "linear"))
        st = put_stretched(g, a, yarn, b, err);
    else if (!v || is_text(v, "none") || is_text(v, "longrope"))
        st = put_long(g, a, b, err);
    else
        st = base_fail(err, ERR_MODEL,
                       "%s: %s.rope.scaling.type is \"%.*s\"; expected none, linear, yarn or "
                       "longrope",
                       gguf_path(g), gguf_arch_prefix(a), (int)(type.n < 40 ? type.n : 40),
                       type.bytes);
out:
    return st;
}

/* ---- config.json ---- */

/* The types that config.json gives by name. */
static const char *type_name(enum dtype t)
{
    return t == DTYPE_F32 ? "float32" : t == DTYPE_F16 ? "float16" : "bfloat16";
}

static enum status put_key(const struct gguf *g, const struct key_row *r, const struct gguf_arch *a,
                           struct buf *b, struct err *err)
{
    static const char *const wanted[] = {"an integer", "a number", "a boolean"};
    const struct gguf_value *v = gguf_arch_get(g, a, r->key);
    double real = 0;
    int64_t whole = 0;
    bool truth = false;
    const bool read = r->kind == WHOLE  ? gguf_int(v, &whole)
                      : r->kind == REAL ? gguf_number(v, &real) && isfinite(real)
                                        : gguf_bool(v, &truth);
    if (!read)
        return gguf_arch_wrong(g, a, r->key, wanted[r->kind], err);
    if (strcmp(r->key, "block_count") == 0 && whole > 0)
        whole -= gguf_arch_guessing(g, a);
    buf_printf(b, "  \"%s\": ", r->json);
    if (r->kind == WHOLE)
        buf_printf(b, "%lld", (long long)whole);
    else if (r->kind == REAL)
        gguf_put_float(b, (float)real);
    else
        buf_puts(b, truth ? "true" : "false");
    buf_puts(b, ",\n");
    return OK;
}

static bool is_its(const struct gguf_arch *a, const struct key_row *r)
{
    return !r->only || (*r->only == '!') != gguf_arch_is(a, r->only);
}

static enum status put_keys(const struct gguf *g, const struct gguf_arch *a, struct buf *b,
                            struct err *err)
{
    enum status st = OK;
    for (size_t i = 0; i < ARRAY_LEN(key_rows) && st == OK; i++) {
        const struct key_row *r = &key_rows[i];
        if (!is_its(a, r))
            continue;
        if (r->missing == NEEDED || gguf_arch_get(g, a, r->key))
            st = put_key(g, r, a, b, err);
        else if (*r->missing)
            buf_printf(b, "  \"%s\": %s,\n", r->json, r->missing);
    }
    return st;
}

/* What one family alone has, and its keys do not say. */
static void put_own(const struct gguf *g, const struct gguf_arch *a, struct buf *b)
{
    int64_t hidden = 0, heads = 0, layers = 0, rotating = 0, head_dim = 0, window = 0;
    const bool newer = a->gemma && strcmp(a->name, "gemma") != 0;
    gguf_int(gguf_arch_get(g, a, "embedding_length"), &hidden);
    gguf_int(gguf_arch_get(g, a, "attention.head_count"), &heads);
    gguf_int(gguf_arch_get(g, a, "block_count"), &layers);
    head_dim = heads > 0 ? hidden / heads : 0;
    gguf_int(gguf_arch_get(g, a, "attention.key_length"), &head_dim);
    buf_printf(b, "  \"%s\": \"%s\",\n", newer ? "hidden_activation" : "hidden_act",
               a->gemma ? "gelu_pytorch_tanh" : "silu");
    /* The 27B's scores are scaled by another width; llama.cpp, too, knows them by their layers. */
    if (newer && heads > 0 && !gguf_arch_is(a, GGUF_ARCH_GEMMA4))
        buf_printf(b, "  \"query_pre_attn_scalar\": %lld,\n",
                   (long long)(layers == 46 || layers == 62 ? hidden / heads : head_dim));
    if (strcmp(a->name, "phi3") == 0) {
        gguf_int(gguf_arch_get(g, a, "attention.sliding_window"), &window);
        if (window > 0)
            buf_printf(b, "  \"sliding_window\": %lld,\n", (long long)window);
        else
            buf_puts(b, "  \"sliding_window\": null,\n");
    }
    const bool partial = gguf_arch_is(a, PARTIAL);
    if (partial && gguf_int(gguf_arch_get(g, a, "rope.dimension_count"), &rotating) &&
        head_dim > 0) {
        buf_puts(b, "  \"partial_rotary_factor\": ");
        gguf_put_float(b, (float)rotating / (float)head_dim);
        buf_puts(b, ",\n");
    }
}

/* Which layers slide in a family that has to be told: those of a list, or all but every so manieth.
 * With a window and no more llama.cpp takes that for the fourth; without a window none slides. */
static enum status put_sliding(const struct gguf *g, const struct gguf_arch *a, struct buf *b,
                               struct err *err)
{
    static const char key[] = "attention.sliding_window_pattern";
    enum status st = OK;
    int64_t period = gguf_arch_get(g, a, "attention.sliding_window") ? 4 : 1;
    if (!gguf_arch_is(a, GGUF_ARCH_EXAONES))
        return OK;
    if (gguf_array_size(gguf_arch_get(g, a, key)) > 0)
        return gguf_put_kinds(g, a, key, "sliding_attention", b, err);
    TRY(gguf_arch_int(g, a, key, 1, INT32_MAX, &period, err));
    buf_puts(b, "  \"layer_types\": [");
    for (int64_t i = 0; i < gguf_arch_blocks(g, a) - gguf_arch_guessing(g, a); i++)
        buf_printf(b, "%s\"%s_attention\"", i > 0 ? ", " : "",
                   (i + 1) % period != 0 ? "sliding" : "full");
    buf_puts(b, "],\n");
out:
    return st;
}

/* What layers that recur have beyond single keys. */
static enum status put_recurrent(const struct gguf *g, const struct gguf_arch *a, struct buf *b,
                                 struct err *err)
{
    static const char key[] = "ssm.inner_size", list[] = "attention.recurrent_layers";
    enum status st = OK;
    int64_t heads = 0, inner = 0;
    if (!gguf_arch_is(a, GGUF_ARCH_HYBRIDS))
        return OK;
    if (gguf_arch_get(g, a, list))
        TRY(gguf_put_kinds(g, a, list, "linear_attention", b, err));
    TRY(gguf_arch_int(g, a, "ssm.time_step_rank", 1, INT32_MAX, &heads, err));
    TRY(gguf_arch_int(g, a, key, 1, INT32_MAX, &inner, err));
    if (inner == 0)
        st = gguf_arch_wrong(g, a, key, "an integer", err);
    else if (inner % heads != 0)
        st = base_fail(err, ERR_MODEL,
                       "%s: %s.%s: expected a multiple of ssm.time_step_rank, which is %lld, got "
                       "%lld",
                       gguf_path(g), gguf_arch_prefix(a), key, (long long)heads, (long long)inner);
    else
        buf_printf(b, "  \"linear_value_head_dim\": %lld,\n", (long long)(inner / heads));
out:
    return st;
}

/* Widths of heads, where keys and values are made of latents. Earlier files have them where later
 * ones have those of the latents. */
static enum status put_latent(const struct gguf *g, const struct gguf_arch *a, struct buf *b,
                              struct err *err)
{
    enum status st = OK;
    int64_t turns = 0, key = 0, value = 0, heads = 0, groups = 0;
    if (!gguf_arch_is(a, GGUF_ARCH_DEEPSEEKS))
        return OK;
    const bool later = gguf_arch_get(g, a, "attention.key_length_mla") != NULL;
    const char *const keys[] = {later ? "attention.key_length_mla" : "attention.key_length",
                                later ? "attention.value_length_mla" : "attention.value_length"};
    TRY(gguf_arch_int(g, a, "attention.head_count", 1, INT32_MAX, &heads, err));
    TRY(gguf_arch_int(g, a, "rope.dimension_count", 1, INT32_MAX, &turns, err));
    TRY(gguf_arch_int(g, a, keys[0], turns + 1, INT32_MAX, &key, err));
    TRY(gguf_arch_int(g, a, keys[1], 1, INT32_MAX, &value, err));
    if (key == 0 || value == 0) {
        st = gguf_arch_wrong(g, a, keys[key > 0], "an integer", err);
        goto out;
    }
    buf_printf(b,
               "  \"num_key_value_heads\": %lld,\n  \"qk_nope_head_dim\": %lld,\n"
               "  \"v_head_dim\": %lld,\n",
               (long long)heads, (long long)(key - turns), (long long)value);
    gguf_int(gguf_arch_get(g, a, "expert_group_count"), &groups);
    if (strcmp(a->name, "deepseek2") == 0)
        buf_printf(b, "  \"topk_method\": \"%s\",\n",
                   groups > 1 ? "group_limited_greedy" : "greedy");
out:
    return st;
}

/* Queries that grow with their positions do so in Ministral 3 by lengths of the context that yarn
 * stretches, and in no other family here, which would answer without a word of it. */
static enum status check_growth(const struct gguf *g, const struct gguf_arch *a, struct err *err)
{
    static const char length_key[] = "attention.temperature_length";
    static const char original_key[] = "rope.scaling.original_context_length";
    static const char type_key[] = "rope.scaling.type";
    enum status st = OK;
    double scale = 0;
    int64_t original = 0, length = 0;
    TRY(gguf_arch_number(g, a, growth_key, &scale, err));
    if (scale == 0)
        return OK;
    if (strcmp(a->name, "ministral3") != 0)
        return base_fail(err, ERR_MODEL,
                         "%s: %s.%s is %g: queries that grow with their positions are not "
                         "supported in this architecture",
                         gguf_path(g), gguf_arch_prefix(a), growth_key, scale);
    if (!is_text(gguf_arch_get(g, a, type_key), "yarn") || gguf_find_tensor(g, "rope_freqs.weight"))
        return gguf_arch_wrong(g, a, type_key, "yarn alone beside attention.temperature_scale",
                               err);
    TRY(gguf_arch_int(g, a, original_key, 1, INT32_MAX, &original, err));
    if (original == 0)
        return gguf_arch_wrong(g, a, original_key, "an integer", err);
    TRY(gguf_arch_int(g, a, length_key, original, original, &length, err));
out:
    return st;
}

/* What config.json has no words for has to be as the family has it. */
static enum status check_values(const struct gguf *g, const struct gguf_arch *a, struct err *err)
{
    static const char gating_key[] = "expert_gating_func";
    enum status st = OK;
    const bool partial = gguf_arch_is(a, PARTIAL GGUF_ARCH_DEEPSEEKS);
    const bool sigmoid = gguf_arch_is(a, " glm4moe deepseek_v3 " SCORED);
    int64_t blocks = 1, hidden = 0, heads = 0, head_dim = 0, ignored = 0;
    TRY(gguf_arch_int(g, a, "block_count", 1, GGUF_ARCH_LAYERS_MAX, &blocks, err));
    TRY(gguf_arch_int(g, a, "nextn_predict_layers", 0, blocks - 1, &ignored, err));
    TRY(gguf_arch_int(g, a, "embedding_length", 1, INT32_MAX, &hidden, err));
    TRY(gguf_arch_int(g, a, "attention.head_count", 1, INT32_MAX, &heads, err));
    head_dim = heads > 0 ? hidden / heads : 1;
    TRY(gguf_arch_int(g, a, "attention.key_length", 1, INT32_MAX, &head_dim, err));
    TRY(gguf_arch_int(g, a, "rope.dimension_count", partial ? 1 : head_dim, head_dim, &ignored,
                      err));
    TRY(check_growth(g, a, err));
    if (gguf_arch_is(a, SCORED) && !gguf_arch_get(g, a, gating_key))
        return gguf_arch_wrong(g, a, gating_key, "an integer", err);
    TRY(gguf_arch_int(g, a, gating_key, sigmoid ? 2 : 1, sigmoid ? 2 : 1, &ignored, err));
    const struct gguf_tensor *factors = gguf_find_tensor(g, "rope_freqs.weight");
    if (factors && factors->ndim == 1 && 2 * factors->shape[0] != head_dim)
        st = base_fail(err, ERR_MODEL, "%s: %s: expected %lld factors, got %lld", gguf_path(g),
                       factors->name, (long long)(head_dim / 2), (long long)factors->shape[0]);
out:
    return st;
}

/* Biases that a family may have or not; config.json says which. */
static void put_biases(const struct gguf *g, const struct gguf_arch *a, struct buf *b)
{
    const bool q = gguf_find_tensor(g, "blk.0.attn_q.bias") != NULL;
    const bool o = gguf_find_tensor(g, "blk.0.attn_output.bias") != NULL;
    if (!gguf_arch_is(a, " qwen2 qwen2moe "))
        buf_printf(b, "  \"attention_bias\": %s,\n", q ? "true" : "false");
    if (strcmp(a->name, "seed_oss") == 0)
        buf_printf(b, "  \"attention_out_bias\": %s,\n", o ? "true" : "false");
    if (strcmp(a->name, "glm4moe") == 0)
        buf_printf(b, "  \"use_qk_norm\": %s,\n",
                   gguf_find_tensor(g, "blk.0.attn_q_norm.weight") ? "true" : "false");
}

static void put_ends(const struct gguf *g, struct buf *b)
{
    static const struct {
        const char *json, *key;
    } ends[] = {{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                {"eos_token_id", "tokenizer.ggml.eos_token_id"}};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        int64_t id;
        if (gguf_int(gguf_get(g, ends[i].key), &id))
            buf_printf(b, "  \"%s\": %lld,\n", ends[i].json, (long long)id);
    }
}

enum status gguf_config_put(const struct gguf *g, enum dtype dtype, struct buf *json,
                            struct err *err)
{
    enum status st = OK;
    const struct gguf_arch *a = gguf_arch_find(g, err);
    const struct gguf_tensor *embed = gguf_find_tensor(g, "token_embd.weight");
    if (!a)
        return ERR_MODEL;
    if (!embed || embed->ndim != 2)
        return base_fail(err, ERR_MODEL, "%s: token_embd.weight: expected a matrix, got %s",
                         gguf_path(g), embed ? "another shape" : "nothing");
    buf_printf(json, "{\n  \"model_type\": \"%s\",\n", a->model_type);
    TRY(check_values(g, a, err));
    TRY(put_keys(g, a, json, err));
    TRY(put_sliding(g, a, json, err));
    TRY(put_recurrent(g, a, json, err));
    TRY(put_latent(g, a, json, err));
    TRY(gguf_gemma4_put(g, a, json, err));
    if (!gguf_arch_is(a, GGUF_ARCH_GEMMA4))
        TRY(put_rotation(g, a, json, err));
    put_own(g, a, json);
    put_biases(g, a, json);
    put_ends(g, json);
    buf_printf(json,
               "%s  \"vocab_size\": %lld,\n  \"tie_word_embeddings\": %s,\n"
               "  \"torch_dtype\": \"%s\"\n}\n",
               a->keys ? a->keys : "", (long long)embed->shape[0],
               gguf_find_tensor(g, "output.weight") ? "false" : "true", type_name(dtype));
    if (json->failed)
        st = base_fail(err, ERR_NOMEM, "%s: no memory for config.json", gguf_path(g));
out:
    return st;
}
