/* Arbitrary bytes as a model's config.json. What was accepted must lie within what the rest of the
 * program sizes its memory by. */
#include "config/model_config.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool in(int32_t v, int32_t min, int32_t max)
{
    return v >= min && v <= max;
}

static void check_rope(const struct rope_config *r, int32_t rotary_dim)
{
    CHECK(isfinite(r->theta) && r->theta >= 1);
    if (r->kind == ROPE_LLAMA3)
        CHECK(r->factor >= 1 && r->original_max_position >= 1 &&
              r->high_freq_factor > r->low_freq_factor && r->low_freq_factor > 0);
    if (r->kind == ROPE_YARN)
        CHECK(r->original_max_position >= 1 && r->theta > 1 && r->beta_slow > 0 &&
              r->beta_fast >= r->beta_slow && r->attention_factor > 0);
    if (r->kind == ROPE_LONG)
        CHECK(r->original_max_position >= 2 && r->attention_factor > 0);
    for (int32_t i = 0; r->kind == ROPE_LONG && i < rotary_dim / 2; i++)
        CHECK(r->short_factor[i] >= 0.0009f && r->long_factor[i] >= 0.0009f);
    CHECK((r->kind == ROPE_DEFAULT) == (r->factor < 1));
    CHECK(r->kind == ROPE_DEFAULT || (isfinite(r->score_factor) && r->score_factor >= 1));
}

static bool is(const struct model_config *m, const char *family)
{
    return strcmp(m->model_type, family) == 0;
}

static bool may_recur(const struct model_config *m)
{
    return is(m, "qwen3_next") || strncmp(m->model_type, "qwen3_5", 7) == 0;
}

static bool has_latents(const struct model_config *m)
{
    return strncmp(m->model_type, "deepseek", 8) == 0 || is(m, "kimi_k2") || is(m, "glm4_moe_lite");
}

static void check_family(const struct model_config *m)
{
    static const char *const families[] = {
        "llama",       "mistral",         "mixtral",    "phi3",        "qwen2",
        "qwen3",       "qwen3_moe",       "gemma",      "gemma2",      "gemma3_text",
        "gemma3",      "mistral3",        "qwen2_vl",   "qwen2_5_vl",  "qwen3_vl",
        "gpt_oss",     "smollm3",         "seed_oss",   "ernie4_5",    "glm",
        "glm4",        "granite",         "qwen2_moe",  "glm4_moe",    "olmo2",
        "olmo3",       "olmoe",           "minimax_m2", "deepseek_v2", "deepseek_v3",
        "kimi_k2",     "glm4_moe_lite",   "qwen3_next", "qwen3_5",     "qwen3_5_text",
        "qwen3_5_moe", "qwen3_5_moe_text"};
    bool known = false;
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        known = known || is(m, families[i]);
    CHECK(known);
    const bool phi3 = is(m, "phi3"), gpt_oss = is(m, "gpt_oss"), granite = is(m, "granite");
    const bool glm = is(m, "glm") || is(m, "glm4");
    const bool glm_moe = is(m, "glm4_moe"), qwen2_moe = is(m, "qwen2_moe");
    CHECK(m->fused_qkv == phi3 && m->fused_gate_up == (phi3 || glm));
    const bool latents = has_latents(m);
    CHECK(m->interleaved == (glm || is(m, "ernie4_5") || is(m, "deepseek_v2")) ||
          (latents && !is(m, "deepseek_v2")));
    const bool olmo = is(m, "olmo2") || is(m, "olmo3"), minimax = is(m, "minimax_m2");
    CHECK(m->joint_norm == (olmo || minimax || is(m, "olmoe")));
    CHECK(m->rotary_dim == m->head_dim || latents || phi3 || glm || glm_moe || minimax ||
          may_recur(m));
    const bool either = glm || glm_moe || granite || qwen2_moe || is(m, "smollm3") ||
                        is(m, "seed_oss"); /* the file says */
    CHECK(either || m->qkv_bias == (gpt_oss || strncmp(m->model_type, "qwen2", 5) == 0));
    CHECK((either || m->o_bias == gpt_oss) && m->sinks == gpt_oss);
    CHECK(!(glm || glm_moe || qwen2_moe) || !m->o_bias);
    const bool gemma = strncmp(m->model_type, "gemma", 5) == 0;
    CHECK(glm_moe || m->head_norm == (m->joint_norm || strncmp(m->model_type, "qwen3", 5) == 0 ||
                                      strncmp(m->model_type, "gemma3", 6) == 0));
    CHECK(m->gelu == gemma && m->norm_offset == (gemma || may_recur(m)));
    CHECK(m->attention_gate == may_recur(m));
    CHECK(m->post_norms == (gemma && m->model_type[5] != '\0' ? POST_NORMS_GEMMA
                            : is(m, "glm4")                   ? POST_NORMS_GLM4
                            : olmo                            ? POST_NORMS_OLMO
                                                              : POST_NORMS_NONE));
    CHECK(gemma ? m->embed_scale >= 1 && m->embed_scale < 400
                : m->embed_scale == 1 || (granite && m->embed_scale > 0 && m->embed_scale < 2e6f));
    CHECK(granite || (m->residual_scale == 1 && m->logit_scale == 1));
    CHECK(m->residual_scale > 0 && m->residual_scale < 2e6f);
    CHECK(m->logit_scale > 0 && m->logit_scale < 2e6f);
}

static void check_quant(const struct model_config *m)
{
    const struct quant_config *q = &m->quant;
    const bool gpt_oss = is(m, "gpt_oss");
    CHECK(gpt_oss == (q->code == DTYPE_F4_E2M1));
    CHECK(q->form == QUANT_BYTES ||
          (q->kind == QUANT_FILE && q->rows == 1 && q->cols >= 0 && q->cols % 32 == 0 &&
           (q->code == DTYPE_I8 || q->code == DTYPE_I4 || q->code == DTYPE_U4)));
    CHECK(q->form != QUANT_AWQ || q->code == DTYPE_U4);
    CHECK(!gpt_oss || (m->hidden % 32 == 0 && m->mlp % 32 == 0 &&
                       (int64_t)m->mlp * m->mixture.experts <= 1 << 28));
}

static void check_groups(const struct mixture_config *x, bool softmax)
{
    CHECK((x->softmax != 0) == softmax && in(x->groups, 0, x->experts) && in(x->kept, 0, 1024));
    if (x->groups == 0) {
        CHECK(x->kept == 0);
        return;
    }
    CHECK(x->kind == MIXTURE_GLM && x->experts % x->groups == 0 && in(x->kept, 1, x->groups - 1));
    CHECK(x->kept * (x->experts / x->groups) >= x->chosen);
    CHECK(softmax || x->experts / x->groups >= 2);
}

static void check_latents(const struct model_config *m)
{
    const struct latent_config *l = &m->latent;
    CHECK(has_latents(m) == (l->value > 0));
    if (!has_latents(m))
        return;
    CHECK(in(l->query, 0, 1 << 17) && in(l->value, 16, 512) && in(l->turns, 16, 512));
    CHECK(in(l->plain, 16, 512) && in(l->head, 16, 512) && l->latent_eps > 0);
    CHECK(l->value % 16 == 0 && l->turns % 16 == 0 && l->plain % 16 == 0 && l->head % 16 == 0);
    CHECK(m->kv_heads == 1 && m->heads <= 1024 && m->rotary_dim == l->turns);
    CHECK(m->head_dim == l->value + l->turns);
}

static void check_mixture(const struct model_config *m)
{
    const struct mixture_config *x = &m->mixture;
    const bool glm = is(m, "glm4_moe") || has_latents(m);
    check_groups(x, is(m, "deepseek_v2"));
    CHECK(is(m, "gpt_oss") == (x->kind == MIXTURE_GPT_OSS));
    CHECK((x->kind == MIXTURE_NONE) == (x->experts == 0) && in(x->experts, 0, 1024));
    CHECK(in(x->chosen, x->experts > 0, 64) && x->chosen <= x->experts);
    CHECK(in(mixture_experts(x), 0, 1024) && in(mixture_chosen(x), 0, 64));
    CHECK(mixture_experts(x) * (m->layers - x->dense) <= MODEL_EXPERTS_MAX);
    CHECK((x->shared > 0) == (glm || x->kind == MIXTURE_QWEN2) && in(x->shared, 0, 63));
    CHECK((x->kind == MIXTURE_QWEN2) ==
          (is(m, "qwen2_moe") || (is(m, "qwen3_next") && x->experts > 0) ||
           strncmp(m->model_type, "qwen3_5_moe", 11) == 0));
    CHECK(in(x->dense, 0, glm ? m->layers - 1 : 0) && in(x->dense_mlp, glm, 1 << 20));
    CHECK((x->scale > 0) == (x->experts > 0) && (glm || x->scale == (x->experts > 0)));
}

static void check_recurrent(const struct model_config *m)
{
    const struct recurrent_config *c = &m->recurrent;
    const int32_t layers = model_config_recurring(m);
    CHECK(in(layers, 0, m->layers - 1) && (layers > 0) == (c->keys > 0));
    CHECK(layers == 0 || may_recur(m));
    CHECK(in(c->keys, 0, 1024) && in(c->values, c->keys, 1024));
    for (int32_t i = m->layers; i < MODEL_LAYERS_MAX; i++)
        CHECK(!model_config_recurs(m, i));
    if (layers == 0)
        return;
    CHECK(c->values % c->keys == 0 && in(c->taps, 2, 8));
    CHECK(in(c->key_dim, 16, 256) && c->key_dim % 16 == 0);
    CHECK(in(c->value_dim, 16, 256) && c->value_dim % 16 == 0);
}

static void check_promises(const struct model_config *m)
{
    check_family(m);
    check_quant(m);
    check_mixture(m);
    check_latents(m);
    check_recurrent(m);
    CHECK(isfinite(m->attention_scale) && m->attention_scale > 0);
    CHECK(m->attention_softcap >= 0 && m->attention_softcap <= 1e3f && m->final_softcap >= 0 &&
          m->final_softcap <= 1e3f);
    bool slides = false;
    for (int32_t i = 0; i < MODEL_LAYERS_MAX; i++)
        slides = slides || model_config_slides(m, i);
    for (int32_t i = m->layers; i < MODEL_LAYERS_MAX; i++)
        CHECK(!model_config_slides(m, i));
    CHECK(slides == (m->window > 0));
    CHECK(in(m->window, 0, 1 << 24));
    CHECK(in(m->hidden, 1, 1 << 17) && in(m->layers, 1, 1024) && in(m->mlp, 1, 1 << 20));
    CHECK(in(m->heads, 1, 4096) && in(m->kv_heads, 1, m->heads) && m->heads % m->kv_heads == 0);
    CHECK(in(m->head_dim, 2, m->latent.value > 0 ? 576 : 512) && m->head_dim % 2 == 0);
    CHECK(in(m->rotary_dim, 2, m->head_dim) && m->rotary_dim % 2 == 0);
    CHECK(in(m->vocab, 1, 1 << 20) && in(m->max_position, 1, 1 << 24));
    CHECK(m->norm_eps >= 0 && m->norm_eps <= 1);
    CHECK(dtype_is_compute(m->dtype));
    check_rope(&m->rope, m->rotary_dim);
    check_rope(&m->local_rope, m->rotary_dim);
    CHECK(in(m->bos, -1, m->vocab - 1) && in(m->eos_count, 0, MODEL_EOS_MAX));
    for (int32_t i = 0; i < m->eos_count; i++)
        CHECK(in(m->eos[i], 0, m->vocab - 1));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model_config m, again;
    struct err err = {{0}};
    enum status st = model_config_parse((const char *)data, size, "input", &m, &err);
    if (st != OK) {
        CHECK(st == ERR_MODEL);
        CHECK(strncmp(err.text, "input: ", 7) == 0);
        return 0;
    }
    check_promises(&m);
    CHECK(model_config_parse((const char *)data, size, "input", &again, &err) == OK);
    CHECK(m.hash == again.hash);
    return 0;
}
