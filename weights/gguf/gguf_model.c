/* DESIGN: an architecture is a row, and a key or a tensor's name is one, too: what differs between
 * families stands in tables. Names are looked up from the checkpoint's side, so whoever knows which
 * tensors a model has (engine/model/layout) asks for each, and what nobody asked for is an error
 * there. Reading the values' ranges is left to model_config, which checks what this writes. */
#include "weights/gguf/gguf_model.h"

#include "config/buf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct arch {
    const char *name;       /* general.architecture */
    const char *model_type; /* Hugging Face's */
    bool pairs;             /* the converter moved the rows of q and k */
    bool gemma;             /* and added one to the gains of norms */
    const char *keys;       /* further lines of config.json */
};

static const struct arch archs[] = {
    {.name = "llama",
     .model_type = "llama",
     .pairs = true}, /* Mixtral, too: that is a llama with experts */
    {.name = "mixtral", .model_type = "mixtral", .pairs = true},
    {.name = "qwen2", .model_type = "qwen2"},
    {.name = "qwen3", .model_type = "qwen3"},
    {.name = "qwen3moe", .model_type = "qwen3_moe", .keys = "  \"norm_topk_prob\": true,\n"},
    {.name = "qwen2moe", .model_type = "qwen2_moe", .keys = "  \"norm_topk_prob\": false,\n"},
    {.name = "gemma", .model_type = "gemma", .gemma = true},
    {.name = "gemma2", .model_type = "gemma2", .gemma = true},
    {.name = "gemma3", .model_type = "gemma3_text", .gemma = true},
    {.name = "phi3", .model_type = "phi3"},
    {.name = "granite", .model_type = "granite", .pairs = true},
    {.name = "smollm3", .model_type = "smollm3", .pairs = true},
    {.name = "seed_oss", .model_type = "seed_oss"},
    {.name = "ernie4_5", .model_type = "ernie4_5"},
    {.name = "glm4", .model_type = "glm4"},
    {.name = "glm4moe", .model_type = "glm4_moe"},
};

/* ---- values by key; "%s" is the architecture ---- */

static const struct gguf_value *get(const struct gguf *g, const char *arch, const char *key)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", arch, key);
    return gguf_get(g, name);
}

static enum status no_key(const struct gguf *g, const char *arch, const char *key, const char *what,
                          struct err *err)
{
    return base_fail(err, ERR_MODEL, "%s: %s.%s: expected %s, got %s", gguf_path(g), arch, key,
                     what, get(g, arch, key) ? "something else" : "nothing");
}

/* *out is as it was where there is no such key. */
static enum status optional_number(const struct gguf *g, const char *arch, const char *key,
                                   double *out, struct err *err)
{
    const struct gguf_value *v = get(g, arch, key);
    double found = 0;
    if (!v)
        return OK;
    if (!gguf_number(v, &found) || !isfinite(found))
        return no_key(g, arch, key, "a finite number", err);
    *out = found;
    return OK;
}

/* Likewise. */
static enum status optional_int(const struct gguf *g, const char *arch, const char *key,
                                int64_t least, int64_t most, int64_t *out, struct err *err)
{
    const struct gguf_value *v = get(g, arch, key);
    int64_t found = 0;
    if (!v)
        return OK;
    if (!gguf_int(v, &found) || found < least || found > most)
        return base_fail(err, ERR_MODEL, "%s: %s.%s: expected an integer from %lld to %lld, got %s",
                         gguf_path(g), arch, key, (long long)least, (long long)most,
                         gguf_int(v, &found) ? "another" : "another type");
    *out = found;
    return OK;
}

/* The shortest text that reads as this float: keys are stored in fp32. */
static void put_float(struct buf *b, float v)
{
    char text[48];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v)
            break;
    }
    buf_puts(b, text);
    if (!strpbrk(text, ".eE"))
        buf_puts(b, ".0");
}

#define LAYERS_MAX 100000 /* far beyond what model_config takes */

enum kind { WHOLE, REAL, TRUTH };

/* A key of config.json and where its value is; not `needed`: left out where it is missing. */
struct key_row {
    const char *json, *key;
    enum kind kind;
    bool needed;
    const char *only; /* architectures, each in blanks; NULL: all */
};

#define QWENS " qwen2moe qwen3moe "

static const struct key_row key_rows[] = {
    {"hidden_size", "embedding_length", WHOLE, true, NULL},
    {"num_hidden_layers", "block_count", WHOLE, true, NULL},
    {"num_attention_heads", "attention.head_count", WHOLE, true, NULL},
    {"num_key_value_heads", "attention.head_count_kv", WHOLE, false, NULL},
    {"intermediate_size", "feed_forward_length", WHOLE, true, NULL},
    {"moe_intermediate_size", "expert_feed_forward_length", WHOLE, true, QWENS " glm4moe "},
    {"shared_expert_intermediate_size", "expert_shared_feed_forward_length", WHOLE, true,
     " qwen2moe "},
    {"num_experts", "expert_count", WHOLE, true, QWENS},
    {"num_local_experts", "expert_count", WHOLE, true, " mixtral "},
    {"n_routed_experts", "expert_count", WHOLE, true, " glm4moe "},
    {"n_shared_experts", "expert_shared_count", WHOLE, true, " glm4moe "},
    {"num_experts_per_tok", "expert_used_count", WHOLE, true, QWENS " mixtral glm4moe "},
    {"first_k_dense_replace", "leading_dense_block_count", WHOLE, true, " glm4moe "},
    {"routed_scaling_factor", "expert_weights_scale", REAL, true, " glm4moe "},
    {"norm_topk_prob", "expert_weights_norm", TRUTH, true, " glm4moe "},
    {"n_group", "expert_group_count", WHOLE, false, " glm4moe "},
    {"topk_group", "expert_group_used_count", WHOLE, false, " glm4moe "},
    {"max_position_embeddings", "context_length", WHOLE, true, NULL},
    {"rms_norm_eps", "attention.layer_norm_rms_epsilon", REAL, true, NULL},
    {"head_dim", "attention.key_length", WHOLE, false, NULL},
    {"sliding_window", "attention.sliding_window", WHOLE, true, " gemma2 gemma3 "},
    {"sliding_window_pattern", "attention.sliding_window_pattern", WHOLE, false, " gemma3 "},
    {"rope_local_base_freq", "rope.freq_base_swa", REAL, false, " gemma3 "},
    {"attn_logit_softcapping", "attn_logit_softcapping", REAL, false, " gemma2 "},
    {"final_logit_softcapping", "final_logit_softcapping", REAL, false, " gemma2 "},
    {"attention_multiplier", "attention.scale", REAL, true, " granite "},
    {"embedding_multiplier", "embedding_scale", REAL, true, " granite "},
    {"residual_multiplier", "residual_scale", REAL, true, " granite "},
    {"logits_scaling", "logit_scale", REAL, true, " granite "},
};

static bool is_among(const char *names, const char *arch)
{
    const size_t n = strlen(arch);
    for (const char *at = names; (at = strstr(at, arch)) != NULL; at++)
        if (at[-1] == ' ' && at[n] == ' ')
            return true;
    return false;
}

/* ---- architectures ---- */

static const struct arch *find_arch(const struct gguf *g, const char **prefix, struct err *err)
{
    struct gguf_string name = {"", 0};
    char known[256] = "", word[40];
    int64_t experts = 0;
    size_t n = 0;
    gguf_text(gguf_get(g, "general.architecture"), &name);
    snprintf(word, sizeof word, "%.*s", (int)(name.n < 39 ? name.n : 39), name.bytes);
    for (size_t i = 0; i < ARRAY_LEN(archs); i++) {
        const struct arch *a = &archs[i];
        *prefix = a->name;
        if (strcmp(a->name, word) == 0 && strcmp(word, "mixtral") != 0) {
            const bool mixture = strcmp(word, "llama") == 0 &&
                                 gguf_int(get(g, word, "expert_count"), &experts) && experts > 0;
            return mixture ? &archs[i + 1] : a;
        }
        if (strcmp(a->name, "mixtral") != 0)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n > 0 ? ", " : "", a->name);
    }
    (void)base_fail(err, ERR_MODEL, "%s: general.architecture is \"%s\"; expected one of %s",
                    gguf_path(g), word, known);
    return NULL;
}

/* ---- rotation ---- */

#define PAIRS_MAX 256

/* The factors of a tensor of rotations; 0: the file has none of this name, -1: of a wrong shape. */
static int32_t read_factors(const struct gguf *g, const char *name, float out[PAIRS_MAX],
                            struct err *err)
{
    const struct gguf_tensor *t = gguf_find_tensor(g, name);
    if (!t)
        return 0;
    if (t->block == GGUF_BLOCK_F32 && t->ndim == 1 && t->shape[0] <= PAIRS_MAX && t->shape[0] > 0)
        return gguf_read_rows(g, t, 0, 1, out, err) == OK ? (int32_t)t->shape[0] : -1;
    (void)base_fail(err, ERR_MODEL, "%s: %s: expected 1 to %d values of F32 in one dimension",
                    gguf_path(g), name, PAIRS_MAX);
    return -1;
}

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
    put_float(b, factors[pairs - 1]);
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
        put_float(b, v[i]);
    }
    buf_puts(b, "]");
}

static enum status put_long(const struct gguf *g, const char *arch, struct buf *b, struct err *err)
{
    float shorter[PAIRS_MAX], longer[PAIRS_MAX];
    int64_t original = 0;
    const int32_t n = read_factors(g, "rope_factors_short.weight", shorter, err);
    const int32_t m = n > 0 ? read_factors(g, "rope_factors_long.weight", longer, err) : n;
    if (n < 0 || m < 0)
        return ERR_MODEL;
    if (n == 0)
        return OK;
    if (m != n)
        return base_fail(err, ERR_MODEL, "%s: %d short factors of rotation, but %d long ones",
                         gguf_path(g), (int)n, (int)m);
    if (!gguf_int(get(g, arch, "rope.scaling.original_context_length"), &original))
        return no_key(g, arch, "rope.scaling.original_context_length", "an integer", err);
    buf_puts(b, "  \"rope_scaling\": {\"rope_type\": \"longrope\"");
    put_list(b, "short_factor", shorter, n);
    put_list(b, "long_factor", longer, m);
    buf_printf(b, "},\n  \"original_max_position_embeddings\": %lld,\n", (long long)original);
    return OK;
}

/* What is written of a stretched context, by a key in the file. */
static enum status put_stretched(const struct gguf *g, const char *arch, bool yarn, struct buf *b,
                                 struct err *err)
{
    static const struct {
        const char *json, *key;
    } numbers[] = {{"beta_fast", "rope.scaling.yarn_beta_fast"},
                   {"beta_slow", "rope.scaling.yarn_beta_slow"},
                   {"attention_factor", "rope.scaling.yarn_attn_factor"}};
    enum status st = OK;
    double v = NAN;
    int64_t original = 0;
    TRY(optional_number(g, arch, "rope.scaling.factor", &v, err));
    if (isnan(v)) {
        st = no_key(g, arch, "rope.scaling.factor", "a number", err);
        goto out;
    }
    buf_printf(
        b, "  \"rope_scaling\": {\"rope_type\": \"%s\", \"factor\": ", yarn ? "yarn" : "linear");
    put_float(b, (float)v);
    TRY(optional_int(g, arch, "rope.scaling.original_context_length", 1, INT32_MAX, &original,
                     err));
    if (yarn && original > 0)
        buf_printf(b, ", \"original_max_position_embeddings\": %lld", (long long)original);
    for (size_t i = 0; yarn && i < ARRAY_LEN(numbers); i++) {
        v = NAN;
        TRY(optional_number(g, arch, numbers[i].key, &v, err));
        if (isnan(v))
            continue;
        buf_printf(b, ", \"%s\": ", numbers[i].json);
        put_float(b, (float)v);
    }
    buf_puts(b, "},\n");
out:
    return st;
}

static bool is_text(const struct gguf_value *v, const char *text)
{
    struct gguf_string s;
    return gguf_text(v, &s) && s.n == strlen(text) && memcmp(s.bytes, text, s.n) == 0;
}

static enum status put_rotation(const struct gguf *g, const struct arch *a, const char *prefix,
                                struct buf *b, struct err *err)
{
    enum status st = OK;
    float factors[PAIRS_MAX];
    struct gguf_string type = {"none", 4};
    double theta = strcmp(a->name, "gemma3") == 0 ? 1e6 : 1e4;
    const int32_t pairs = read_factors(g, "rope_freqs.weight", factors, err);
    const struct gguf_value *v = get(g, prefix, "rope.scaling.type");
    if (pairs < 0)
        return ERR_MODEL;
    if (v && !gguf_text(v, &type))
        return no_key(g, prefix, "rope.scaling.type", "a string", err);
    TRY(optional_number(g, prefix, "rope.freq_base", &theta, err));
    buf_puts(b, "  \"rope_theta\": ");
    put_float(b, (float)theta);
    buf_puts(b, ",\n");
    const bool yarn = is_text(v, "yarn");
    if (pairs > 0)
        st = put_llama3(g, factors, pairs, theta, b, err);
    else if (yarn || is_text(v, "linear"))
        st = put_stretched(g, prefix, yarn, b, err);
    else if (!v || is_text(v, "none") || is_text(v, "longrope"))
        st = put_long(g, prefix, b, err);
    else
        st = base_fail(err, ERR_MODEL,
                       "%s: %s.rope.scaling.type is \"%.*s\"; expected none, linear, yarn or "
                       "longrope",
                       gguf_path(g), prefix, (int)(type.n < 40 ? type.n : 40), type.bytes);
out:
    return st;
}

/* ---- config.json ---- */

/* The types that config.json gives by name. */
static const char *type_name(enum dtype t)
{
    return t == DTYPE_F32 ? "float32" : t == DTYPE_F16 ? "float16" : "bfloat16";
}

/* Layers that guess the token after next follow the others; they are left out. check_values has
 * seen that there are not more than layers. */
static int64_t guessing_layers(const struct gguf *g, const char *prefix)
{
    int64_t n = 0;
    return gguf_int(get(g, prefix, "nextn_predict_layers"), &n) && n > 0 && n < LAYERS_MAX ? n : 0;
}

static enum status put_key(const struct gguf *g, const struct key_row *r, const char *prefix,
                           struct buf *b, struct err *err)
{
    static const char *const wanted[] = {"an integer", "a number", "a boolean"};
    const struct gguf_value *v = get(g, prefix, r->key);
    double real = 0;
    int64_t whole = 0;
    bool truth = false;
    const bool read = r->kind == WHOLE  ? gguf_int(v, &whole)
                      : r->kind == REAL ? gguf_number(v, &real) && isfinite(real)
                                        : gguf_bool(v, &truth);
    if (!read)
        return no_key(g, prefix, r->key, wanted[r->kind], err);
    if (strcmp(r->key, "block_count") == 0 && whole > 0)
        whole -= guessing_layers(g, prefix);
    buf_printf(b, "  \"%s\": ", r->json);
    if (r->kind == WHOLE)
        buf_printf(b, "%lld", (long long)whole);
    else if (r->kind == REAL)
        put_float(b, (float)real);
    else
        buf_puts(b, truth ? "true" : "false");
    buf_puts(b, ",\n");
    return OK;
}

static enum status put_keys(const struct gguf *g, const struct arch *a, const char *prefix,
                            struct buf *b, struct err *err)
{
    enum status st = OK;
    for (size_t i = 0; i < ARRAY_LEN(key_rows) && st == OK; i++) {
        const struct key_row *r = &key_rows[i];
        const bool its = !r->only || is_among(r->only, a->name);
        if (its && (r->needed || get(g, prefix, r->key)))
            st = put_key(g, r, prefix, b, err);
    }
    return st;
}

/* What one family alone has, and its keys do not say. */
static void put_own(const struct gguf *g, const struct arch *a, const char *prefix, struct buf *b)
{
    int64_t hidden = 0, heads = 0, layers = 0, rotating = 0, head_dim = 0, window = 0;
    const bool newer = a->gemma && strcmp(a->name, "gemma") != 0;
    gguf_int(get(g, prefix, "embedding_length"), &hidden);
    gguf_int(get(g, prefix, "attention.head_count"), &heads);
    gguf_int(get(g, prefix, "block_count"), &layers);
    head_dim = heads > 0 ? hidden / heads : 0;
    gguf_int(get(g, prefix, "attention.key_length"), &head_dim);
    buf_printf(b, "  \"%s\": \"%s\",\n", newer ? "hidden_activation" : "hidden_act",
               a->gemma ? "gelu_pytorch_tanh" : "silu");
    /* The 27B's scores are scaled by another width; llama.cpp, too, knows them by their layers. */
    if (newer && heads > 0)
        buf_printf(b, "  \"query_pre_attn_scalar\": %lld,\n",
                   (long long)(layers == 46 || layers == 62 ? hidden / heads : head_dim));
    if (strcmp(a->name, "phi3") == 0) {
        gguf_int(get(g, prefix, "attention.sliding_window"), &window);
        if (window > 0)
            buf_printf(b, "  \"sliding_window\": %lld,\n", (long long)window);
        else
            buf_puts(b, "  \"sliding_window\": null,\n");
    }
    const bool partial = is_among(" phi3 glm4 glm4moe ", a->name);
    if (partial && gguf_int(get(g, prefix, "rope.dimension_count"), &rotating) && head_dim > 0) {
        buf_puts(b, "  \"partial_rotary_factor\": ");
        put_float(b, (float)rotating / (float)head_dim);
        buf_puts(b, ",\n");
    }
}

/* What config.json has no words for has to be as the family has it. */
static enum status check_values(const struct gguf *g, const struct arch *a, const char *prefix,
                                struct err *err)
{
    enum status st = OK;
    const bool partial = is_among(" phi3 glm4 glm4moe ", a->name);
    const bool sigmoid = strcmp(a->name, "glm4moe") == 0;
    int64_t blocks = 1, hidden = 0, heads = 0, head_dim = 0, ignored = 0;
    TRY(optional_int(g, prefix, "block_count", 1, LAYERS_MAX, &blocks, err));
    TRY(optional_int(g, prefix, "nextn_predict_layers", 0, blocks - 1, &ignored, err));
    TRY(optional_int(g, prefix, "embedding_length", 1, INT32_MAX, &hidden, err));
    TRY(optional_int(g, prefix, "attention.head_count", 1, INT32_MAX, &heads, err));
    head_dim = heads > 0 ? hidden / heads : 1;
    TRY(optional_int(g, prefix, "attention.key_length", 1, INT32_MAX, &head_dim, err));
    TRY(optional_int(g, prefix, "rope.dimension_count", partial ? 1 : head_dim, head_dim, &ignored,
                     err));
    TRY(optional_int(g, prefix, "expert_gating_func", sigmoid ? 2 : 1, sigmoid ? 2 : 1, &ignored,
                     err));
    const struct gguf_tensor *factors = gguf_find_tensor(g, "rope_freqs.weight");
    if (factors && factors->ndim == 1 && 2 * factors->shape[0] != head_dim)
        st = base_fail(err, ERR_MODEL, "%s: %s: expected %lld factors, got %lld", gguf_path(g),
                       factors->name, (long long)(head_dim / 2), (long long)factors->shape[0]);
out:
    return st;
}

/* Biases that a family may have or not; config.json says which. */
static void put_biases(const struct gguf *g, const struct arch *a, struct buf *b)
{
    const bool q = gguf_find_tensor(g, "blk.0.attn_q.bias") != NULL;
    const bool o = gguf_find_tensor(g, "blk.0.attn_output.bias") != NULL;
    if (!is_among(" qwen2 qwen2moe ", a->name))
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

enum status gguf_model_config(const struct gguf *g, enum dtype dtype, struct buf *json,
                              struct err *err)
{
    enum status st = OK;
    const char *prefix;
    const struct arch *a = find_arch(g, &prefix, err);
    const struct gguf_tensor *embed = gguf_find_tensor(g, "token_embd.weight");
    if (!a)
        return ERR_MODEL;
    if (!embed || embed->ndim != 2)
        return base_fail(err, ERR_MODEL, "%s: token_embd.weight: expected a matrix, got %s",
                         gguf_path(g), embed ? "another shape" : "nothing");
    buf_printf(json, "{\n  \"model_type\": \"%s\",\n", a->model_type);
    TRY(check_values(g, a, prefix, err));
    TRY(put_keys(g, a, prefix, json, err));
    TRY(put_rotation(g, a, prefix, json, err));
    put_own(g, a, prefix, json);
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

enum dtype gguf_model_dtype(const struct gguf *g)
{
    static const struct {
        enum gguf_block block;
        enum dtype dtype;
    } plain[] = {{GGUF_BLOCK_F32, DTYPE_F32}, {GGUF_BLOCK_F16, DTYPE_F16}};
    for (size_t i = 0; i < ARRAY_LEN(plain); i++) {
        bool all = true;
        for (int32_t j = 0; j < gguf_tensor_count(g) && all; j++) {
            const struct gguf_tensor *t = gguf_tensor_at(g, j);
            all = t->ndim < 2 || t->block == plain[i].block || strstr(t->name, "ffn_gate_inp");
        }
        if (all)
            return plain[i].dtype;
    }
    return DTYPE_BF16;
}

/* ---- tensors ---- */

#define HEADS 1 /* rows of heads */
#define NORM 2  /* gains */
#define EXACT 3 /* fp32 whatever the others are */

/* In a block of the file, and in a layer of the checkpoint, where "%d" is the expert. */
struct name_row {
    const char *hf, *gguf;
    int what;
    const char *only; /* as in key_row */
};

static const struct name_row whole_rows[] = {
    {"model.embed_tokens.weight", "token_embd.weight", 0, NULL},
    {"model.norm.weight", "output_norm.weight", NORM, NULL},
    {"lm_head.weight", "output.weight", 0, NULL},
};

#define GEMMAS " gemma2 gemma3 "

/* The first row that fits counts. */
static const struct name_row layer_rows[] = {
    {"input_layernorm.weight", "attn_norm.weight", NORM, NULL},
    {"self_attn.q_proj.weight", "attn_q.weight", HEADS, NULL},
    {"self_attn.k_proj.weight", "attn_k.weight", HEADS, NULL},
    {"self_attn.v_proj.weight", "attn_v.weight", 0, NULL},
    {"self_attn.qkv_proj.weight", "attn_qkv.weight", 0, NULL},
    {"self_attn.q_proj.bias", "attn_q.bias", HEADS, NULL},
    {"self_attn.k_proj.bias", "attn_k.bias", HEADS, NULL},
    {"self_attn.v_proj.bias", "attn_v.bias", 0, NULL},
    {"self_attn.o_proj.weight", "attn_output.weight", 0, NULL},
    {"self_attn.o_proj.bias", "attn_output.bias", 0, NULL},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", NORM, NULL},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", NORM, NULL},
    {"post_attention_layernorm.weight", "post_attention_norm.weight", NORM, GEMMAS},
    {"post_attention_layernorm.weight", "post_attention_norm.weight", 0, " seed_oss glm4moe "},
    {"post_attention_layernorm.weight", "ffn_norm.weight", NORM, NULL},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight", NORM, NULL},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight", NORM, NULL},
    {"post_self_attn_layernorm.weight", "post_attention_norm.weight", 0, NULL},
    {"post_mlp_layernorm.weight", "post_ffw_norm.weight", 0, NULL},
    {"mlp.gate_proj.weight", "ffn_gate.weight", 0, NULL},
    {"mlp.up_proj.weight", "ffn_up.weight", 0, NULL},
    {"mlp.gate_up_proj.weight", "ffn_up.weight", 0, NULL},
    {"mlp.down_proj.weight", "ffn_down.weight", 0, NULL},
    {"mlp.gate.weight", "ffn_gate_inp.weight", 0, NULL},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias", EXACT, NULL},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", 0, NULL},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", 0, NULL},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", 0, NULL},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", 0, NULL},
    {"mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight", 0, NULL},
    {"mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight", 0, NULL},
    {"mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight", 0, NULL},
    {"mlp.experts.%d.gate_proj.weight", "ffn_gate_exps.weight", 0, NULL},
    {"mlp.experts.%d.up_proj.weight", "ffn_up_exps.weight", 0, NULL},
    {"mlp.experts.%d.down_proj.weight", "ffn_down_exps.weight", 0, NULL},
    {"block_sparse_moe.gate.weight", "ffn_gate_inp.weight", 0, NULL},
    {"block_sparse_moe.experts.%d.w1.weight", "ffn_gate_exps.weight", 0, NULL},
    {"block_sparse_moe.experts.%d.w3.weight", "ffn_up_exps.weight", 0, NULL},
    {"block_sparse_moe.experts.%d.w2.weight", "ffn_down_exps.weight", 0, NULL},
};

/* A run of digits below 10^9 at *text, which is moved behind it; -1: none. */
static int32_t take_number(const char **text)
{
    const size_t n = strspn(*text, "0123456789");
    const long v = n > 0 && n < 10 ? strtol(*text, NULL, 10) : -1;
    *text += n;
    return (int32_t)v;
}

/* *expert is -1 where the pattern has none. */
static bool fits(const char *pattern, const char *name, int32_t *expert)
{
    const char *number = strstr(pattern, "%d");
    const size_t n = number ? (size_t)(number - pattern) : 0;
    *expert = -1;
    if (!number)
        return strcmp(pattern, name) == 0;
    if (strncmp(pattern, name, n) != 0)
        return false;
    name += n;
    *expert = take_number(&name);
    return *expert >= 0 && strcmp(number + 2, name) == 0;
}

static const struct name_row *find_row(const struct arch *a, const char *name, int32_t *layer,
                                       int32_t *expert)
{
    static const char layers[] = "model.layers.";
    const bool in_layer = strncmp(name, layers, sizeof layers - 1) == 0;
    const struct name_row *rows = in_layer ? layer_rows : whole_rows;
    const size_t count = in_layer ? ARRAY_LEN(layer_rows) : ARRAY_LEN(whole_rows);
    *layer = -1;
    if (in_layer) {
        name += sizeof layers - 1;
        *layer = take_number(&name);
        if (*layer < 0 || *name++ != '.')
            return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        const bool its = !rows[i].only || is_among(rows[i].only, a->name);
        if (its && fits(rows[i].hf, name, expert))
            return &rows[i];
    }
    return NULL;
}

bool gguf_model_source(const struct gguf *g, const char *name, int32_t head_dim,
                       struct gguf_source *out)
{
    int32_t layer, expert;
    char full[128];
    const char *prefix;
    struct err ignored;
    const struct arch *a = find_arch(g, &prefix, &ignored);
    const struct name_row *row = a ? find_row(a, name, &layer, &expert) : NULL;
    if (!row)
        return false;
    if (layer >= 0)
        snprintf(full, sizeof full, "blk.%d.%s", (int)layer, row->gguf);
    else
        snprintf(full, sizeof full, "%s", row->gguf);
    const struct gguf_tensor *t = gguf_find_tensor(g, full);
    const bool experts = expert >= 0;
    if (!t || t->ndim != (experts ? 3 : t->ndim == 1 ? 1 : 2) || (experts && expert >= t->shape[0]))
        return false;
    *out = (struct gguf_source){
        .tensor = t,
        .rows = t->ndim == 1 ? 1 : t->shape[t->ndim - 2],
        .cols = t->shape[t->ndim - 1],
        .head_dim = row->what == HEADS && a->pairs ? head_dim : 0,
        .less = row->what == NORM && a->gemma ? 1 : 0,
        .exact = row->what == EXACT,
    };
    out->first = experts ? expert * out->rows : 0;
    return true;
}

bool gguf_model_is_left_out(const struct gguf *g, const char *tensor)
{
    static const char *const settings[] = {"rope_freqs.weight", "rope_factors_long.weight",
                                           "rope_factors_short.weight"};
    const char *prefix;
    struct err ignored;
    int64_t blocks = 0;
    for (size_t i = 0; i < ARRAY_LEN(settings); i++)
        if (strcmp(tensor, settings[i]) == 0)
            return true;
    if (strncmp(tensor, "blk.", 4) != 0 || !find_arch(g, &prefix, &ignored))
        return false;
    tensor += 4;
    gguf_int(get(g, prefix, "block_count"), &blocks);
    const int32_t layer = take_number(&tensor);
    return blocks > 0 && layer < blocks && layer >= blocks - guessing_layers(g, prefix);
}
