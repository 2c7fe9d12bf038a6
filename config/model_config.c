/* DESIGN: each key is one line (reader.h). An unknown model_type and a feature we do not compute
 * are refused by name: serving a model approximately is worse than not. */
#include "config/model_config.h"

#include "config/family.h"
#include "config/file.h"
#include "config/lora_config.h"
#include "config/model_attention.h"
#include "config/model_global.h"
#include "config/model_mixture.h"
#include "config/model_quant.h"
#include "config/model_recurrent.h"
#include "config/reader.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static void read_dtype(struct reader *r, struct model_config *m)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {{"float32", DTYPE_F32}, {"float16", DTYPE_F16}, {"bfloat16", DTYPE_BF16}};
    const char *key = jdoc_get_value(r->object, "dtype") ? "dtype" : "torch_dtype";
    const char *text = reader_string(r, key);
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

static void fail_eos(struct reader *r, bool in_list, const struct jdoc *id)
{
    static const char wanted[] = "ids below vocab_size";
    char value[32];
    if (r->st != OK || !in_list) {
        reader_fail(r, "eos_token_id", wanted);
        return;
    }
    snprintf(value, sizeof value, "%s", jdoc_type_name(jdoc_type(id)));
    if (jdoc_type(id) == JDOC_INT)
        snprintf(value, sizeof value, "%lld", (long long)jdoc_int(id));
    r->st = base_fail(r->err, ERR_MODEL, "%s: eos_token_id is an array with %s, expected %s",
                      r->where, value, wanted);
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
            fail_eos(r, id != v, id);
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

/* What transformers' models read: the newer Gemmas a key of their own; and the first takes gelu for
 * its approximation. */
static void expect_activation(struct reader *r, const struct family *f)
{
    const bool newer = f->gemma && f->post_norms != POST_NORMS_NONE;
    const char *key = newer ? "hidden_activation" : "hidden_act";
    const char *wanted = f->gemma ? "gelu_pytorch_tanh" : "silu";
    const char *act = reader_string(r, key);
    const bool first = f->gemma && !newer && act && strcmp(act, "gelu") == 0;
    if (act && strcmp(act, wanted) != 0 && !first)
        reader_fail(r, key, f->gemma ? "\"gelu_pytorch_tanh\"" : "\"silu\"");
}

/* Qwen2 has its biases whatever attention_bias says; with Qwen3 and Llama it means o's, too. */
static void read_biases(struct reader *r, const struct family *f, struct model_config *m)
{
    if (f->qkv_bias_key)
        m->qkv_bias = reader_bool(r, f->qkv_bias_key, f->qkv_bias);
    if (f->o_bias_key)
        m->o_bias = reader_bool(r, f->o_bias_key, f->o_bias);
    if (!f->qkv_bias && !f->qkv_bias_key && reader_bool(r, "attention_bias", false))
        reader_fail(r, "attention_bias",
                    f->latent.value > 0 ? "false (biases of latents are not supported)"
                    : f->attention_gate ? "false (biases of gates and of o_proj are not supported)"
                    : f->joint_norm
                        ? "false (biases in front of norms of q and k are not supported)"
                        : "false (a bias of o_proj is not supported)");
    if (f->o_bias && !reader_bool(r, "attention_bias", true))
        reader_fail(r, "attention_bias", "true");
    if (reader_bool(r, "mlp_bias", false))
        reader_fail(r, "mlp_bias", "false (biases of the MLP are not supported)");
    if (reader_bool(r, "use_bias", false))
        reader_fail(r, "use_bias", "false (biases of all linears are not supported)");
}

/* The nearest family where model_type is none, which is then reported. */
static const struct family *read_family(struct reader *r, struct model_config *m)
{
    const char *type = reader_string(r, "model_type");
    const char *word = type ? type : "";
    int distance;
    const struct family *f = family_find(word, &distance);
    const bool meant = distance <= ((int)strlen(word) + 2) / 3; /* what is further away was not */
    char names[FAMILY_NAMES_MAX], wanted[FAMILY_NAMES_MAX + 48];
    family_names(names, sizeof names);
    snprintf(wanted, sizeof wanted, "%s%s%s", meant ? f->model_type : "",
             meant ? " (the nearest) or another of " : "", names);
    if (distance > 0)
        reader_fail(r, "model_type", wanted);
    snprintf(m->model_type, sizeof m->model_type, "%s", f->model_type);
    m->fused_qkv = f->fused_qkv;
    m->fused_gate_up = f->fused_gate_up;
    m->qkv_bias = f->qkv_bias;
    m->o_bias = f->o_bias;
    m->sinks = f->sinks;
    m->head_norm = f->head_norm;
    m->joint_norm = f->joint_norm;
    m->interleaved = f->interleaved;
    m->tied = f->tied;
    m->gelu = f->gemma;
    m->norm_offset = (f->gemma && f->global_dim == 0) || f->norm_offset;
    m->value_norm = m->layer_scale = f->global_dim > 0;
    m->post_norms = f->post_norms;
    return f;
}

/* What Gemma's models multiply embeddings with, in the checkpoint's own type. */
static float embed_scale(const struct model_config *m)
{
    float scale;
    dtype_store(&scale, m->dtype, 0, (float)sqrt((double)m->hidden));
    return dtype_load(&scale, m->dtype, 0);
}

/* That of scores is read with them. */
static void read_multipliers(struct reader *r, struct model_config *m)
{
    m->embed_scale = (float)reader_number(r, "embedding_multiplier", 1e-6, 1e6, 1);
    m->residual_scale = (float)reader_number(r, "residual_multiplier", 1e-6, 1e6, 1);
    m->logit_scale = (float)(1 / reader_number(r, "logits_scaling", 1e-6, 1e6, 1));
}

/* How wide heads are, and how many of keys and values there are. */
static void read_heads(struct reader *r, const struct family *f, struct model_config *m)
{
    char wanted[80];
    snprintf(wanted, sizeof wanted, "a divisor of num_attention_heads, which is %d", (int)m->heads);
    if (m->heads % m->kv_heads != 0)
        reader_fail(r, "num_key_value_heads", wanted);
    const bool own =
        f->head_dim > 0 && !jdoc_get(r->object, "head_dim"); /* null is not the default */
    const int32_t head_dim = own ? f->head_dim : m->hidden / m->heads;
    if (!jdoc_get_value(r->object, "head_dim") && !own && m->hidden % m->heads != 0)
        reader_fail(r, "head_dim",
                    "a value, since hidden_size is no multiple of num_attention_heads");
    /* at most what the kernels compute (BACKEND_HEAD_DIM_MAX) */
    m->head_dim = reader_int(r, "head_dim", 2, 512, head_dim);
    if (r->st == OK && (m->head_dim < 2 || m->head_dim > 512 || m->head_dim % 2 != 0))
        reader_fail(r, "head_dim", "an even number from 2 to 512");
}

/* What the kernels compute (BACKEND_KEY_DIM_MAX, BACKEND_HEAD_DIM_MAX, ROPE_PAIRS_MAX,
 * BACKEND_EXPERTS_MAX). */
#define LATENT_KEY_MAX 576
#define LATENT_HEAD_MAX 512
#define LATENT_TURNS_MAX (2 * ROPE_PAIRS_MAX)
#define LATENT_HEADS_MAX 1024
#define LATENT_UNIT 16

/* null, which is not the family's, where queries are made of the row. */
static int32_t read_query_latent(struct reader *r, const struct family *f)
{
    return reader_is_null(r, "q_lora_rank")
               ? 0
               : reader_int(r, "q_lora_rank", 1, 1 << 17, f->latent.query);
}

/* Keys and values of all heads are made of latents, so there are as many, and head_dim, which
 * transformers writes, says nothing. */
static void read_latent(struct reader *r, const struct family *f, struct model_config *m)
{
    struct latent_config *l = &m->latent;
    const struct {
        const char *key;
        int32_t *to;
        int32_t max;
    } sizes[] = {{"kv_lora_rank", &l->value, LATENT_HEAD_MAX},
                 {"qk_rope_head_dim", &l->turns, LATENT_TURNS_MAX},
                 {"qk_nope_head_dim", &l->plain, LATENT_HEAD_MAX},
                 {"v_head_dim", &l->head, LATENT_HEAD_MAX}};
    char all[80], most[96];
    *l = f->latent;
    l->query = read_query_latent(r, f);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        *sizes[i].to = reader_int(r, sizes[i].key, LATENT_UNIT, sizes[i].max, *sizes[i].to);
        if (r->st == OK && *sizes[i].to % LATENT_UNIT != 0)
            reader_fail(r, sizes[i].key, "a multiple of 16");
    }
    snprintf(all, sizeof all, "num_attention_heads, which is %d", (int)m->heads);
    snprintf(most, sizeof most, "at most %d less qk_rope_head_dim, which is %d", LATENT_KEY_MAX,
             (int)l->turns);
    if (r->st == OK && m->kv_heads != m->heads)
        reader_fail(r, "num_key_value_heads", all);
    if (r->st == OK && l->value + l->turns > LATENT_KEY_MAX)
        reader_fail(r, "kv_lora_rank", most);
    m->kv_heads = 1;
    m->head_dim = l->turns + l->value;
    if (f->interleaved_key)
        m->interleaved = reader_bool(r, f->interleaved_key, f->interleaved);
}

static void read_shape(struct reader *r, const struct family *f, struct model_config *m)
{
    const bool all_kv = f->kv_heads == 0 || jdoc_get(r->object, "num_key_value_heads");
    m->hidden = reader_int(r, "hidden_size", 1, 1 << 17, -1);
    m->layers = reader_int(r, "num_hidden_layers", 1, MODEL_LAYERS_MAX, -1);
    m->heads =
        reader_int(r, "num_attention_heads", 1, f->latent.value > 0 ? LATENT_HEADS_MAX : 4096,
                   f->heads > 0 ? f->heads : -1);
    m->kv_heads = reader_int(r, "num_key_value_heads", 1, 4096, all_kv ? m->heads : f->kv_heads);
    if (f->expert_mlp > 0 &&
        !model_mixture_is_plain(r, f)) /* intermediate_size is that of layers without experts */
        m->mlp = reader_int(r, "moe_intermediate_size", 1, 1 << 20, f->expert_mlp);
    else
        m->mlp = reader_int(r, "intermediate_size", 1, 1 << 20, -1);
    m->vocab = reader_int(r, "vocab_size", 1, 1 << 20, f->vocab > 0 ? f->vocab : -1);
    m->max_position = reader_int(r, "max_position_embeddings", 1, 1 << 24, f->max_position);
    m->norm_eps =
        (float)reader_number(r, "rms_norm_eps", 0, 1, f->norm_eps > 0 ? f->norm_eps : 1e-6);
    m->tied = reader_bool(r, "tie_word_embeddings", m->tied);
    if (f->head_norm_key)
        m->head_norm = reader_bool(r, f->head_norm_key, f->head_norm);
    if (r->st == OK && f->latent.value > 0)
        read_latent(r, f, m);
    else if (r->st == OK)
        read_heads(r, f, m);
}

/* Some of those that were trained anew to give vectors see what follows. */
static void expect_causal(struct reader *r)
{
    if (!reader_bool(r, "is_causal", true))
        reader_fail(r, "is_causal", "true (attention to what follows is not supported)");
}

/* All but what stands beside the description of a model that is one of several. */
static void read_model(struct reader *r, const struct family *f, struct model_config *m)
{
    if (jdoc_get_value(r->object, "dtype") || jdoc_get_value(r->object, "torch_dtype"))
        read_dtype(r, m);
    read_shape(r, f, m);
    model_mixture_read(r, f, m);
    m->embed_scale = f->gemma ? embed_scale(m) : 1;
    m->residual_scale = 1;
    m->logit_scale = 1;
    if (f->multipliers)
        read_multipliers(r, m);
    if (r->st == OK)
        model_attention_read(r, f, m);
    if (r->st == OK)
        model_global_read(r, f, m);
    if (r->st == OK)
        model_recurrent_read(r, f, m);
    read_biases(r, f, m);
    expect_activation(r, f);
    expect_causal(r);
}

static void read_ends(struct reader *r, struct model_config *m)
{
    if (r->st == OK && jdoc_get_value(r->object, "bos_token_id"))
        m->bos = reader_int(r, "bos_token_id", 0, m->vocab - 1, -1);
    if (r->st == OK)
        read_eos(r, m);
}

/* transformers' class: XModel is XForCausalLM without a head. */
static void read_class(const struct reader *r, struct model_config *m)
{
    static const char ending[] = "Model";
    const struct jdoc *v = jdoc_get_value(r->object, "architectures");
    const struct jdoc *first =
        v && jdoc_type(v) == JDOC_ARRAY && jdoc_size(v) > 0 ? jdoc_at(v, 0) : NULL;
    const size_t n = sizeof ending - 1;
    if (!first || jdoc_type(first) != JDOC_STRING || jdoc_string_len(first) < n)
        return;
    m->headless = strcmp(jdoc_string(first) + jdoc_string_len(first) - n, ending) == 0;
}

static void read_config(struct reader *r, struct model_config *m)
{
    const struct jdoc *outer = r->object;
    const struct family *f = read_family(r, m);
    m->bos = -1;
    m->dtype = f->dtype;
    read_class(r, m);
    if (f->inner && !(f->flat && !jdoc_get_value(outer, "text_config"))) {
        const bool said = jdoc_get_value(outer, "tie_word_embeddings") != NULL;
        const bool tied = reader_bool(r, "tie_word_embeddings", m->tied);
        read_dtype(r, m);
        model_quant_read(r, m);
        if (!reader_enter(r, "text_config"))
            return;
        const char *inner = reader_string(r, "model_type");
        const struct family *of_text = inner ? family_inner(f, inner) : f;
        char inners[128];
        family_inner_names(f, inners, sizeof inners);
        if (of_text)
            f = of_text;
        else
            reader_fail(r, "model_type", inners);
        read_model(r, f, m);
        read_ends(r, m);
        r->object = outer;
        if (said) /* transformers: what is outside counts; Qwen2's take either */
            m->tied = tied || (f->flat && m->tied);
    } else {
        read_model(r, f, m);
        model_quant_read(r, m);
    }
    read_ends(r, m);
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
    read_config(&r, &m);
    TRY(r.st);
    m.hash = base_hash(BASE_HASH_INIT, &m, sizeof m);
    *out = m;
out:
    jdoc_close(doc);
    return st;
}

void model_config_pool(struct model_config *m)
{
    m->pooling = true;
    m->tied = true; /* what a tied checkpoint may repeat as a head is none of it */
    m->hash = base_hash(m->hash, "pooling", 7);
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

static bool is_gguf(const char *name)
{
    const size_t n = strlen(name);
    return n > 5 && strcasecmp(name + n - 5, ".gguf") == 0;
}

static enum status no_config(const char *dir, struct err *err)
{
    char gguf[400] = "", adapter[4096];
    if (snprintf(adapter, sizeof adapter, "%s/" LORA_CONFIG_NAME, dir) < (int)sizeof adapter &&
        access(adapter, F_OK) == 0)
        return base_fail(err, ERR_MODEL,
                         "%.150s: an adapter, not a model; expected the model's directory, with "
                         "--lora %.150s (" LORA_CONFIG_NAME " says which: base_model_name_or_path)",
                         dir, dir);
    DIR *entries = opendir(dir);
    for (const struct dirent *e = entries ? readdir(entries) : NULL; e; e = readdir(entries))
        if (is_gguf(e->d_name))
            snprintf(gguf, sizeof gguf, "; one is made by: tessera convert %.200s/%.80s -o DIR",
                     dir, e->d_name);
    if (entries)
        closedir(entries);
    return base_fail(err, ERR_MODEL,
                     "%.200s: no config.json in it; expected a directory as Hugging Face publishes "
                     "models, with config.json and *.safetensors%s",
                     dir, gguf);
}

/* "org/name" or "host:8000" is no directory by mistake: what the user may have meant. */
static enum status no_directory(const char *dir, struct err *err)
{
    const char *slash = strchr(dir, '/'), *colon = strrchr(dir, ':');
    if (access(dir, F_OK) == 0)
        return base_fail(err, ERR_MODEL,
                         "%.200s is not a directory; expected one with config.json and safetensors "
                         "files, as Hugging Face publishes them%s%.200s%s",
                         dir, is_gguf(dir) ? "; one is made by: tessera convert " : "",
                         is_gguf(dir) ? dir : "", is_gguf(dir) ? " -o DIR" : "");
    if (colon && colon[1] && colon[1 + strspn(colon + 1, "0123456789")] == '\0')
        return base_fail(err, ERR_MODEL, "%s: no such model directory (a server is http://%s)", dir,
                         dir);
    if (slash && slash > dir && dir[0] != '.' && slash[1] && !strchr(slash + 1, '/'))
        return base_fail(err, ERR_MODEL,
                         "%s: no such model directory, nor in Hugging Face's cache; models are not "
                         "downloaded, if that is a name on the Hub: hf download %s",
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
    if (stat(path, &sb) != 0 && errno == ENOENT)
        return no_config(dir, err);
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
