/* DESIGN: each key is one line (reader.h). An unknown model_type and a feature we do not compute
 * are refused by name: serving a model approximately is worse than not. */
#include "config/model_config.h"

#include "config/file.h"
#include "config/reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What transformers' configuration classes say where config.json does not, and what their models
 * compute whatever it says. */
struct family {
    const char *model_type;
    int32_t max_position;
    int32_t kv_heads; /* 0: as many as query heads, which null means in all of them */
    int32_t head_dim; /* 0: hidden_size / num_attention_heads */
    int32_t window;   /* sliding_window; 0: the key is not theirs; WINDOW_NONE: none */
    bool window_off;  /* unless use_sliding_window and a layer that slides */
    bool fused, qkv_bias, head_norm;
    double theta, norm_eps; /* 0: 10000 and 1e-6 */
    struct mixture_config mixture;
};
#define WINDOW_NONE (-1)
static const struct family families[] = {
    {.model_type = "llama", .max_position = 2048},
    {.model_type = "mistral", .max_position = 131072, .kv_heads = 8, .window = 4096},
    {.model_type = "mixtral",
     .max_position = 131072,
     .kv_heads = 8,
     .window = WINDOW_NONE,
     .theta = 1e6,
     .norm_eps = 1e-5,
     .mixture = {MIXTURE_MIXTRAL, 8, 2, true}},
    {.model_type = "phi3",
     .max_position = 4096,
     .window = WINDOW_NONE,
     .fused = true,
     .norm_eps = 1e-5},
    {.model_type = "qwen2",
     .max_position = 32768,
     .kv_heads = 32,
     .window = 4096,
     .window_off = true,
     .qkv_bias = true},
    {.model_type = "qwen3",
     .max_position = 32768,
     .kv_heads = 32,
     .head_dim = 128,
     .window = 4096,
     .window_off = true,
     .head_norm = true},
    {.model_type = "qwen3_moe",
     .max_position = 32768,
     .kv_heads = 4,
     .window = 4096,
     .window_off = true,
     .head_norm = true,
     .mixture = {MIXTURE_QWEN, 128, 8, false}},
};

static void read_dtype(struct reader *r, struct model_config *m)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {{"float32", DTYPE_F32}, {"float16", DTYPE_F16}, {"bfloat16", DTYPE_BF16}};
    const char *key = jdoc_get_value(r->object, "dtype") ? "dtype" : "torch_dtype";
    const char *text = reader_string(r, key);
    m->dtype = DTYPE_F32; /* transformers' default */
    if (!text)
        return;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(names[i].name, text) == 0) {
            m->dtype = names[i].dtype;
            return;
        }
    }
    reader_fail(r, key, "float32, float16 or bfloat16");
}

static void read_llama3(struct reader *r, struct rope_config *rope)
{
    rope->factor = reader_number(r, "factor", 1, 1e6, NAN);
    rope->low_freq_factor = reader_number(r, "low_freq_factor", 1e-6, 1e6, NAN);
    rope->high_freq_factor = reader_number(r, "high_freq_factor", 1e-6, 1e6, NAN);
    rope->original_max_position = reader_int(r, "original_max_position_embeddings", 1, 1 << 24, -1);
    if (r->st == OK && rope->high_freq_factor <= rope->low_freq_factor)
        reader_fail(r, "high_freq_factor", "more than low_freq_factor");
}

/* What the paper advises, so that attention stays as sharp over more positions. */
static double yarn_scale(double factor, double by)
{
    return factor <= 1 ? 1 : 0.1 * by * log(factor) + 1;
}

static void read_yarn(struct reader *r, const struct model_config *m, struct rope_config *rope)
{
    rope->factor = reader_number(r, "factor", 1, 1e6, NAN);
    const double by = reader_number(r, "mscale", 0, 1e6, 0);
    const double all = reader_number(r, "mscale_all_dim", 0, 1e6, 0);
    const double scale = by > 0 && all > 0
                             ? yarn_scale(rope->factor, by) / yarn_scale(rope->factor, all)
                             : yarn_scale(rope->factor, 1);
    rope->original_max_position =
        reader_int(r, "original_max_position_embeddings", 1, 1 << 24, m->max_position);
    rope->attention_factor = reader_number(r, "attention_factor", 1e-6, 1e6, scale);
    rope->beta_fast = reader_number(r, "beta_fast", 1e-6, 1e6, 32);
    rope->beta_slow = reader_number(r, "beta_slow", 1e-6, 1e6, 1);
    rope->truncate = reader_bool(r, "truncate", true);
    if (r->st == OK && rope->beta_fast < rope->beta_slow)
        reader_fail(r, "beta_fast", "at least beta_slow");
    if (r->st == OK && rope->theta <= 1)
        reader_fail(r, "rope_theta", "more than 1");
}

/* How far a stretched context reaches. YaRN's configurations say either length as theirs. */
static int32_t stretched(const struct rope_config *rope, int32_t positions)
{
    const double from = rope->kind == ROPE_YARN ? rope->original_max_position : positions;
    const double to = from * rope->factor;
    return to < 1 << 24 ? (int32_t)to : 1 << 24;
}

static void read_rope_kind(struct reader *r, struct model_config *m)
{
    struct rope_config *rope = &m->rope;
    const char *kind = reader_string(r, "rope_type");
    if (!kind)
        kind = reader_string(r, "type");
    if (!kind || strcmp(kind, "default") == 0)
        return;
    if (strcmp(kind, "llama3") == 0) {
        rope->kind = ROPE_LLAMA3;
        read_llama3(r, rope);
    } else if (strcmp(kind, "yarn") == 0) {
        rope->kind = ROPE_YARN;
        read_yarn(r, m, rope);
    } else if (strcmp(kind, "linear") == 0) {
        rope->kind = ROPE_LINEAR;
        rope->factor = reader_number(r, "factor", 1, 1e6, NAN);
    } else {
        reader_fail(r, jdoc_get(r->object, "rope_type") ? "rope_type" : "type",
                    "default, linear, llama3 or yarn");
    }
    if (r->st == OK && (rope->kind == ROPE_YARN || rope->kind == ROPE_LINEAR))
        m->max_position = stretched(rope, m->max_position);
}

static void expect_whole_heads(struct reader *r)
{
    const struct jdoc *v = jdoc_get_value(r->object, "partial_rotary_factor");
    if (v && jdoc_number(v) != 1)
        reader_fail(r, "partial_rotary_factor", "1 (others are not supported)");
}

/* New dialect: rope_parameters holds theta too. Old: rope_theta beside rope_scaling, which wins in
 * transformers where both have something. */
static void read_rope(struct reader *r, const struct family *f, struct model_config *m)
{
    const struct jdoc *outer = r->object;
    m->rope.theta = reader_number(r, "rope_theta", 1, 1e12, f->theta > 0 ? f->theta : 10000);
    const char *key = "rope_scaling";
    const struct jdoc *inner = jdoc_get_value(outer, key);
    if (!inner || (jdoc_type(inner) == JDOC_OBJECT && jdoc_size(inner) == 0)) {
        key = "rope_parameters";
        inner = jdoc_get_value(outer, key);
    }
    expect_whole_heads(r);
    if (!inner)
        return;
    if (jdoc_type(inner) != JDOC_OBJECT) {
        reader_fail(r, key, "an object");
        return;
    }
    r->object = inner;
    m->rope.theta = reader_number(r, "rope_theta", 1, 1e12, m->rope.theta);
    read_rope_kind(r, m);
    expect_whole_heads(r);
    r->object = outer;
}

/* An integer or a list of them, added to what is there. */
static void read_eos(struct reader *r, struct model_config *m)
{
    const struct jdoc *v = jdoc_get_value(r->object, "eos_token_id");
    if (!v)
        return;
    const size_t count = jdoc_type(v) == JDOC_ARRAY ? jdoc_size(v) : 1;
    for (size_t i = 0; i < count; i++) {
        const struct jdoc *id = jdoc_type(v) == JDOC_ARRAY ? jdoc_at(v, i) : v;
        int64_t n;
        if (!jdoc_whole(id, &n) || n < 0 || n >= m->vocab) {
            reader_fail(r, "eos_token_id", "ids below vocab_size");
            return;
        }
        bool known = false;
        for (int32_t j = 0; j < m->eos_count; j++)
            known = known || m->eos[j] == n;
        if (known)
            continue;
        if (m->eos_count == MODEL_EOS_MAX) {
            reader_fail(r, "eos_token_id", "at most 8 ids");
            return;
        }
        m->eos[m->eos_count++] = (int32_t)n;
    }
}

/* Qwen2 has its biases whatever attention_bias says; with Qwen3 and Llama it means o's, too. */
static void refuse_unsupported(struct reader *r, const struct family *f)
{
    if (!f->qkv_bias && reader_bool(r, "attention_bias", false))
        reader_fail(r, "attention_bias", "false (a bias of o_proj is not supported)");
    if (reader_bool(r, "mlp_bias", false))
        reader_fail(r, "mlp_bias", "false (biases of the MLP are not supported)");
    const char *act = reader_string(r, "hidden_act");
    if (act && strcmp(act, "silu") != 0)
        reader_fail(r, "hidden_act", "\"silu\"");
    if (f->window == 0 && jdoc_get_value(r->object, "sliding_window"))
        reader_fail(r, "sliding_window", "null (not supported)");
}

/* ---- mixtures of experts ---- */

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

/* at most what the kernels compute (BACKEND_EXPERTS_MAX, BACKEND_CHOSEN_MAX) */
static void read_mixture(struct reader *r, const struct family *f, struct model_config *m)
{
    struct mixture_config *x = &m->mixture;
    const bool local = jdoc_get_value(r->object, "num_local_experts");
    *x = f->mixture;
    if (x->kind == MIXTURE_NONE)
        return;
    x->experts = reader_int(r, local ? "num_local_experts" : "num_experts", 1, 1024, x->experts);
    x->chosen = reader_int(r, "num_experts_per_tok", 1, 64, x->chosen);
    if (x->kind == MIXTURE_QWEN) {
        x->among = reader_bool(r, "norm_topk_prob", x->among);
        expect_all_layers(r);
    }
    char wanted[80];
    snprintf(wanted, sizeof wanted, "at most as many as there are experts, %d", (int)x->experts);
    if (r->st == OK && x->chosen > x->experts)
        reader_fail(r, "num_experts_per_tok", wanted);
    if (r->st == OK && x->experts * m->layers > MODEL_EXPERTS_MAX)
        r->st = base_fail(
            r->err, ERR_MODEL, "%s: %d experts in %d layers are %d, expected at most %d", r->where,
            (int)x->experts, (int)m->layers, (int)(x->experts * m->layers), MODEL_EXPERTS_MAX);
}

/* ---- sliding windows ---- */

/* Does layer_types, which must name each layer's, have a sliding one? */
static bool read_layer_types(struct reader *r, const struct jdoc *types, int32_t layers)
{
    bool slides = false;
    if (jdoc_type(types) != JDOC_ARRAY || jdoc_size(types) != (size_t)layers) {
        reader_fail(r, "layer_types", "a list of as many as num_hidden_layers");
        return false;
    }
    for (size_t i = 0; i < jdoc_size(types) && r->st == OK; i++) {
        const struct jdoc *v = jdoc_at(types, i);
        const char *type = jdoc_type(v) == JDOC_STRING ? jdoc_string(v) : "no string";
        const bool sliding = strcmp(type, "sliding_attention") == 0;
        if (!sliding && strcmp(type, "full_attention") != 0)
            r->st = base_fail(r->err, ERR_MODEL,
                              "%s: layer_types[%zu] is %.40s, expected full_attention or "
                              "sliding_attention",
                              r->where, i, type);
        slides = slides || sliding;
    }
    return slides;
}

/* Mistral's layers all have the window, whatever layer_types says. Qwen's have it where that is
 * switched on: those that layer_types names, or else those from max_window_layers on, or all of a
 * mixture's. */
static void read_window(struct reader *r, const struct family *f, struct model_config *m)
{
    const struct jdoc *types = jdoc_get_value(r->object, "layer_types");
    bool slides = true;
    if (types)
        slides = read_layer_types(r, types, m->layers);
    else if (f->window_off && f->mixture.kind == MIXTURE_NONE)
        slides = reader_int(r, "max_window_layers", 0, 1 << 20, 28) < m->layers;
    if (f->window_off && !reader_bool(r, "use_sliding_window", false)) {
        if (types && slides)
            reader_fail(r, "use_sliding_window", "true, since layer_types has sliding_attention");
        return;
    }
    const bool null = jdoc_get(r->object, "sliding_window") != NULL; /* which is no default */
    const bool none =
        !jdoc_get_value(r->object, "sliding_window") && (null || f->window == WINDOW_NONE);
    const int32_t window = reader_int(r, "sliding_window", 1, 1 << 24, none ? 0 : f->window);
    if (f->window_off && !slides)
        return;
    m->window = window;
}

/* ---- quantization_config ---- */

/* NULL, reported, when absent or not an object; at most one of them is open at a time. */
static const struct jdoc *enter(struct reader *r, const char *key)
{
    const struct jdoc *v = jdoc_get_value(r->object, key);
    if (!v || jdoc_type(v) != JDOC_OBJECT) {
        reader_fail(r, key, "an object");
        return NULL;
    }
    r->object = v;
    return v;
}

static void expect(struct reader *r, const char *key, const char *value)
{
    const char *text = reader_string(r, key);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "\"%s\"", value);
    if (!text || strcmp(text, value) != 0)
        reader_fail(r, key, wanted);
}

static void expect_absent(struct reader *r, const char *key)
{
    if (jdoc_get_value(r->object, key))
        reader_fail(r, key, "null (not supported)");
}

/* [rows, cols] of the blocks that have a scale. */
static void read_block(struct reader *r, const char *key, struct quant_config *q)
{
    const struct jdoc *v = jdoc_get_value(r->object, key);
    int64_t size[2] = {0};
    for (size_t i = 0; v && i < 2 && jdoc_type(v) == JDOC_ARRAY && jdoc_size(v) == 2; i++)
        if (jdoc_type(jdoc_at(v, i)) == JDOC_INT)
            size[i] = jdoc_int(jdoc_at(v, i));
    if (size[0] < 1 || size[1] < 1 || size[0] > 1 << 20 || size[1] > 1 << 20)
        reader_fail(r, key, "two numbers from 1 to 1048576");
    q->rows = (int32_t)size[0];
    q->cols = (int32_t)size[1];
}

/* As DeepSeek and Qwen publish them: blocks with X_scale_inv, or one X_scale per tensor. */
static void read_quant_fp8(struct reader *r, struct quant_config *q)
{
    if (jdoc_get_value(r->object, "fmt"))
        expect(r, "fmt", "e4m3");
    if (!jdoc_get_value(r->object, "weight_block_size"))
        return;
    read_block(r, "weight_block_size", q);
    q->inverse = true;
}

/* Activations stay as they are here, so input_activations and its scales are not asked for. */
static void read_quant_compressed(struct reader *r, struct quant_config *q)
{
    const char *name;
    const struct jdoc *group = NULL;
    expect(r, "format", "float-quantized");
    expect_absent(r, "kv_cache_scheme");
    const struct jdoc *groups = enter(r, "config_groups");
    if (!groups)
        return;
    if (jdoc_size(groups) == 1)
        jdoc_iter(groups, NULL, &name, &group);
    if (!group || jdoc_type(group) != JDOC_OBJECT) {
        r->object = groups;
        reader_fail(r, "config_groups", "an object with one group");
        return;
    }
    r->object = group;
    if (!enter(r, "weights"))
        return;
    reader_int(r, "num_bits", 8, 8, -1);
    expect(r, "type", "float");
    if (!reader_bool(r, "symmetric", true))
        reader_fail(r, "symmetric", "true");
    const char *strategy = reader_string(r, "strategy");
    if (strategy && strcmp(strategy, "channel") == 0)
        q->rows = 1;
    else if (strategy && strcmp(strategy, "block") == 0)
        read_block(r, "block_structure", q);
    else if (!strategy || strcmp(strategy, "tensor") != 0)
        reader_fail(r, "strategy", "\"channel\", \"tensor\" or \"block\"");
}

static void read_quant(struct reader *r, struct quant_config *q)
{
    const struct jdoc *outer = r->object;
    if (!jdoc_get_value(outer, "quantization_config") || !enter(r, "quantization_config"))
        return;
    const char *method = reader_string(r, "quant_method");
    q->kind = QUANT_FILE;
    q->code = DTYPE_F8_E4M3;
    if (method && strcmp(method, "fp8") == 0)
        read_quant_fp8(r, q);
    else if (method && strcmp(method, "compressed-tensors") == 0)
        read_quant_compressed(r, q);
    else
        reader_fail(r, "quant_method", "\"fp8\" or \"compressed-tensors\" (of E4M3 weights)");
    r->object = outer;
}

enum status model_config_quantize(struct model_config *m, enum dtype code, struct err *err)
{
    if (code == DTYPE_F32 || (m->quant.kind == QUANT_FILE && code == m->quant.code))
        return OK;
    if (m->quant.kind == QUANT_FILE)
        return base_fail(err, ERR_USAGE,
                         "--quantization %s: the checkpoint's weights are fp8 already; it takes "
                         "one in float32, float16 or bfloat16",
                         code == DTYPE_I8 ? "int8" : "int4");
    m->quant = (struct quant_config){.kind = QUANT_LOAD, .code = code, .rows = 1};
    return OK;
}

/* The nearest family where model_type is none, which is then reported. */
static const struct family *read_family(struct reader *r, struct model_config *m)
{
    const char *type = reader_string(r, "model_type");
    const char *word = type ? type : "";
    const struct family *f = families;
    for (size_t i = 1; i < ARRAY_LEN(families); i++)
        if (base_edit_distance(word, families[i].model_type) <
            base_edit_distance(word, f->model_type))
            f = &families[i];
    const int distance = base_edit_distance(word, f->model_type);
    const bool meant = distance <= ((int)strlen(word) + 2) / 3; /* what is further away was not */
    char wanted[96];
    snprintf(wanted, sizeof wanted, "llama, mistral, mixtral, phi3, qwen2, qwen3 or qwen3_moe%s%s",
             meant ? "; the nearest is " : "", meant ? f->model_type : "");
    if (distance > 0)
        reader_fail(r, "model_type", wanted);
    snprintf(m->model_type, sizeof m->model_type, "%s", f->model_type);
    m->fused = f->fused;
    m->qkv_bias = f->qkv_bias;
    m->head_norm = f->head_norm;
    return f;
}

static void read_shape(struct reader *r, const struct family *f, struct model_config *m)
{
    const bool all_kv = f->kv_heads == 0 || jdoc_get(r->object, "num_key_value_heads");
    m->hidden = reader_int(r, "hidden_size", 1, 1 << 17, -1);
    m->layers = reader_int(r, "num_hidden_layers", 1, 1024, -1);
    m->heads = reader_int(r, "num_attention_heads", 1, 4096, -1);
    m->kv_heads = reader_int(r, "num_key_value_heads", 1, 4096, all_kv ? m->heads : f->kv_heads);
    if (f->mixture.kind == MIXTURE_QWEN) /* intermediate_size is that of layers without experts */
        m->mlp = reader_int(r, "moe_intermediate_size", 1, 1 << 20, 768);
    else
        m->mlp = reader_int(r, "intermediate_size", 1, 1 << 20, -1);
    m->vocab = reader_int(r, "vocab_size", 1, 1 << 20, -1);
    m->max_position = reader_int(r, "max_position_embeddings", 1, 1 << 24, f->max_position);
    m->norm_eps =
        (float)reader_number(r, "rms_norm_eps", 0, 1, f->norm_eps > 0 ? f->norm_eps : 1e-6);
    m->tied = reader_bool(r, "tie_word_embeddings", false);
    if (r->st != OK)
        return;
    char wanted[80];
    snprintf(wanted, sizeof wanted, "a divisor of num_attention_heads, which is %d", (int)m->heads);
    if (m->heads % m->kv_heads != 0)
        reader_fail(r, "num_key_value_heads", wanted);
    const int32_t head_dim = f->head_dim > 0 ? f->head_dim : m->hidden / m->heads;
    if (!jdoc_get_value(r->object, "head_dim") && f->head_dim == 0 && m->hidden % m->heads != 0)
        reader_fail(r, "head_dim",
                    "a value, since hidden_size is no multiple of num_attention_heads");
    /* at most what the kernels compute (BACKEND_HEAD_DIM_MAX) */
    m->head_dim = reader_int(r, "head_dim", 2, 512, head_dim);
    if (r->st == OK && (m->head_dim < 2 || m->head_dim > 512 || m->head_dim % 2 != 0))
        reader_fail(r, "head_dim", "an even number from 2 to 512");
}

enum status model_config_parse(const char *text, size_t n, const char *where,
                               struct model_config *out, struct err *err)
{
    struct jdoc *doc = NULL;
    enum status st = jdoc_parse(text, n, &jdoc_limits_config, where, &doc, err);
    if (st != OK)
        return st == ERR_NOMEM ? st : ERR_MODEL;
    struct model_config m;
    memset(&m, 0, sizeof m); /* padding too: the hash below reads all bytes */
    struct reader r = {where, doc, err, OK};
    if (jdoc_type(doc) != JDOC_OBJECT) {
        st = base_fail(err, ERR_MODEL, "%s: expected a JSON object", where);
        goto out;
    }
    const struct family *f = read_family(&r, &m);
    read_shape(&r, f, &m);
    read_mixture(&r, f, &m);
    if (r.st == OK && f->window != 0)
        read_window(&r, f, &m);
    read_dtype(&r, &m);
    read_rope(&r, f, &m);
    read_quant(&r, &m.quant);
    refuse_unsupported(&r, f);
    m.bos = -1;
    if (r.st == OK && jdoc_get_value(doc, "bos_token_id"))
        m.bos = reader_int(&r, "bos_token_id", 0, m.vocab - 1, -1);
    if (r.st == OK)
        read_eos(&r, &m);
    TRY(r.st);
    m.hash = base_hash(BASE_HASH_INIT, &m, sizeof m);
    *out = m;
out:
    jdoc_close(doc);
    return st;
}

static enum status read_generation(const char *path, struct model_config *m,
                                   struct generation_defaults *d, struct err *err)
{
    struct jdoc *doc = NULL;
    enum status st = jdoc_load(path, &doc, err);
    if (st != OK)
        return st == ERR_NOMEM ? st : ERR_MODEL;
    struct reader r = {path, doc, err, OK};
    if (jdoc_type(doc) != JDOC_OBJECT) {
        st = base_fail(err, ERR_MODEL, "%s: expected a JSON object", path);
        goto out;
    }
    read_eos(&r, m);
    if (jdoc_get_value(doc, "temperature"))
        d->temperature = (float)reader_number(&r, "temperature", 0, 2, 1);
    if (jdoc_get_value(doc, "top_p"))
        d->top_p = (float)reader_number(&r, "top_p", 1e-6, 1, 1);
    if (jdoc_get_value(doc, "min_p"))
        d->min_p = (float)reader_number(&r, "min_p", 0, 1, 0);
    if (jdoc_get_value(doc, "repetition_penalty"))
        d->repetition_penalty = (float)reader_number(&r, "repetition_penalty", 1e-6, 100, 1);
    if (jdoc_get_value(doc, "top_k"))
        d->top_k = reader_int(&r, "top_k", 0, 1 << 20, 0);
    /* transformers' do_sample: false means greedy whatever the temperature says */
    if (!reader_bool(&r, "do_sample", true))
        d->temperature = 0;
    st = r.st;
out:
    jdoc_close(doc);
    return st;
}

/* "org/name" or "host:8000" is no directory by mistake: what the user may have meant. */
static enum status no_directory(const char *dir, struct err *err)
{
    const char *slash = strchr(dir, '/'), *colon = strrchr(dir, ':');
    if (access(dir, F_OK) == 0)
        return base_fail(err, ERR_MODEL,
                         "%s is not a directory; expected one with config.json and safetensors "
                         "files, as Hugging Face publishes them",
                         dir);
    if (colon && colon[1] && colon[1 + strspn(colon + 1, "0123456789")] == '\0')
        return base_fail(err, ERR_MODEL, "%s: no such model directory (a server is http://%s)", dir,
                         dir);
    if (slash && slash > dir && dir[0] != '.' && slash[1] && !strchr(slash + 1, '/'))
        return base_fail(
            err, ERR_MODEL,
            "%s: no such model directory; models are not downloaded, if that is a name "
            "on the Hugging Face Hub: hf download %s --local-dir DIR",
            dir, dir);
    return base_fail(err, ERR_MODEL, "%s: no such model directory", dir);
}

enum status model_config_load(const char *dir, struct model_config *out,
                              struct generation_defaults *defaults, struct err *err)
{
    char path[4096];
    char *text = NULL;
    size_t n = 0;
    enum status st = OK;
    struct model_config m;
    struct generation_defaults d = model_config_no_defaults();
    struct stat sb;
    if (stat(dir, &sb) != 0 || !S_ISDIR(sb.st_mode))
        return no_directory(dir, err);
    if (snprintf(path, sizeof path, "%s/config.json", dir) >= (int)sizeof path)
        return base_fail(err, ERR_MODEL, "%.100s...: path too long", dir);
    const struct file_spec f = {.path = path, .bytes_max = 1u << 20, .failure = ERR_MODEL};
    TRY(file_read(&f, &text, &n, err));
    TRY(model_config_parse(text, n, path, &m, err));
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    if (stat(path, &sb) == 0)
        TRY(read_generation(path, &m, &d, err));
    *out = m;
    if (defaults)
        *defaults = d;
out:
    free(text);
    return st;
}
