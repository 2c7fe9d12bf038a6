/* Arbitrary bytes as a model's config.json. Of every family, what was accepted must lie within what
 * the rest of the program sizes its memory by, and be what it does not ask again. */
#include "config/model_config.h"
#include "engine/kv_groups.h"
#include "engine/model/rope.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool in(int32_t v, int32_t min, int32_t max)
{
    return v >= min && v <= max;
}

static bool is_within(double v, double min, double max)
{
    return isfinite(v) && v >= min && v <= max;
}

/* The frequencies of what turns, in contexts of either length. */
static void check_frequencies(const struct rope_config *r, int32_t rotary_dim)
{
    float found[ROPE_PAIRS_MAX];
    CHECK(in(rotary_dim, 2, 2 * ROPE_PAIRS_MAX) && rotary_dim % 2 == 0);
    for (int32_t longer = 0; longer < 2; longer++) {
        rope_frequencies(r, rotary_dim, longer ? 1 << 24 : 1, found);
        for (int32_t i = 0; i < rotary_dim / 2; i++)
            CHECK(is_within((double)found[i], 0, 2e6));
    }
}

static void check_rope(const struct rope_config *r, int32_t rotary_dim)
{
    CHECK(is_within(r->theta, 1, 1e12));
    if (r->kind == ROPE_LLAMA3)
        CHECK(r->original_max_position >= 1 && r->high_freq_factor > r->low_freq_factor &&
              r->low_freq_factor > 0);
    if (r->kind == ROPE_YARN)
        CHECK(r->original_max_position >= 1 && r->theta > 1 && r->beta_slow > 0 &&
              r->beta_fast >= r->beta_slow && r->attention_factor > 0);
    if (r->kind == ROPE_LONG)
        CHECK(r->original_max_position >= 2 && r->attention_factor > 0);
    for (int32_t i = 0; r->kind == ROPE_LONG && i < rotary_dim / 2; i++)
        CHECK(r->short_factor[i] >= 0.0009f && r->long_factor[i] >= 0.0009f);
    if (r->kind == ROPE_PROPORTIONAL)
        CHECK(r->factor > 0 && is_within(r->part, 0, 1));
    else
        CHECK(r->kind == ROPE_DEFAULT || is_within(r->factor, 1, 1e6));
    CHECK(is_within(r->query_beta, 0, 1e3) && (r->query_beta == 0 || r->original_max_position > 0));
    check_frequencies(r, rotary_dim);
}

/* What the forward pass does in one order, and multiplies with. */
static void check_form(const struct model_config *m)
{
    CHECK(m->model_type[0] && memchr(m->model_type, '\0', sizeof m->model_type));
    CHECK(m->head_norm || !m->joint_norm);
    CHECK(!m->joint_norm || !m->qkv_bias); /* it would come behind the norm */
    CHECK(in((int32_t)m->post_norms, POST_NORMS_NONE, POST_NORMS_OLMO));
    CHECK(is_within((double)m->embed_scale, 0, 2e6) && m->embed_scale > 0);
    CHECK(is_within((double)m->residual_scale, 0, 2e6) && m->residual_scale > 0);
    CHECK(is_within((double)m->logit_scale, 0, 2e6) && m->logit_scale > 0);
    CHECK(is_within((double)m->attention_scale, 0, 1e6) && m->attention_scale > 0);
    CHECK(is_within((double)m->attention_softcap, 0, 1e3));
    CHECK(is_within((double)m->final_softcap, 0, 1e3));
    CHECK(is_within((double)m->norm_eps, 0, 1) && dtype_is_compute(m->dtype));
}

static void check_quant(const struct model_config *m)
{
    const struct quant_config *q = &m->quant;
    const bool mxfp4 = m->mixture.kind == MIXTURE_GPT_OSS;
    CHECK(mxfp4 == (q->code == DTYPE_F4_E2M1));
    CHECK(q->kind == QUANT_NONE || q->kind == QUANT_FILE); /* none is asked for yet */
    CHECK(q->form == QUANT_BYTES ||
          (q->kind == QUANT_FILE && q->rows == 1 && q->cols >= 0 && q->cols % 32 == 0 &&
           (q->code == DTYPE_I8 || q->code == DTYPE_I4 || q->code == DTYPE_U4)));
    CHECK(q->form != QUANT_AWQ || q->code == DTYPE_U4);
    CHECK(!mxfp4 || (m->hidden % 32 == 0 && m->mlp % 32 == 0 &&
                     (int64_t)m->mlp * m->mixture.experts <= 1 << 28));
}

static void check_groups(const struct mixture_config *x)
{
    CHECK(in(x->groups, 0, x->experts) && in(x->kept, 0, 1024));
    if (x->groups == 0) {
        CHECK(x->kept == 0);
        return;
    }
    CHECK(x->kind == MIXTURE_GLM && x->experts % x->groups == 0 && in(x->kept, 1, x->groups - 1));
    CHECK(x->kept * (x->experts / x->groups) >= x->chosen);
    CHECK(x->softmax || x->experts / x->groups >= 2);
}

static void check_mixture(const struct model_config *m)
{
    const struct mixture_config *x = &m->mixture;
    const bool glm = x->kind == MIXTURE_GLM, beside = mixture_is_beside(x);
    check_groups(x);
    CHECK((x->kind == MIXTURE_NONE) == (x->experts == 0) && in(x->experts, 0, 1024));
    CHECK(in(x->chosen, x->experts > 0, 64) && x->chosen <= x->experts);
    CHECK(in(mixture_experts(x), 0, 1024) && in(mixture_chosen(x), 0, 64));
    CHECK(mixture_experts(x) * (m->layers - x->dense) <= MODEL_EXPERTS_MAX);
    CHECK(in(x->shared, x->kind == MIXTURE_QWEN2, glm || x->kind == MIXTURE_QWEN2 ? 63 : 0));
    CHECK(in(x->dense, 0, glm ? m->layers - 1 : 0));
    CHECK((x->scale > 0) == (x->experts > 0) && is_within((double)x->scale, 0, 1e6));
    CHECK(glm || (!x->softmax && x->scale == (x->experts > 0)));
    CHECK(!beside || m->post_norms == POST_NORMS_GEMMA);
}

/* What stands in the place of experts, beside them, or is wider than others. */
static void check_mlps(const struct model_config *m)
{
    CHECK(in(m->mlp, 1, 1 << 20) && in(model_config_other_mlp(m), 0, 1 << 20));
    CHECK(m->sharing_mlp == 0 || (m->sharing > 0 && m->mixture.kind == MIXTURE_NONE));
    for (int32_t i = 0; i < m->layers; i++) {
        const bool other = model_config_has_other_mlp(m, i);
        CHECK(!other || model_config_other_mlp(m) > 0);
        CHECK(other || m->mixture.kind == MIXTURE_NONE || !model_config_is_dense(m, i));
    }
}

static void check_latents(const struct model_config *m)
{
    const struct latent_config *l = &m->latent;
    if (l->value == 0)
        return;
    CHECK(in(l->query, 0, 1 << 17) && in(l->value, 16, 512) && in(l->turns, 16, 512));
    CHECK(in(l->plain, 16, 512) && in(l->head, 16, 512) && l->latent_eps > 0);
    CHECK(l->value % 16 == 0 && l->turns % 16 == 0 && l->plain % 16 == 0 && l->head % 16 == 0);
    CHECK(m->kv_heads == 1 && m->heads <= 1024 && m->rotary_dim == l->turns);
    CHECK(m->head_dim == l->value + l->turns);
    CHECK(m->rope.kind == ROPE_DEFAULT || is_within(m->rope.score_factor, 1, 1e6));
    CHECK(m->window == 0 && model_config_kinds(m) == 1 && model_config_recurring(m) == 0);
    CHECK(!m->qkv_bias && !m->head_norm && !m->sinks && !m->attention_gate);
}

static void check_recurrent(const struct model_config *m)
{
    const struct recurrent_config *c = &m->recurrent;
    const int32_t layers = model_config_recurring(m);
    CHECK(in(layers, 0, m->layers - 1) && (layers > 0) == (c->keys > 0));
    CHECK(in(c->keys, 0, 1024) && in(c->values, c->keys, 1024));
    if (layers == 0)
        return;
    CHECK(c->values % c->keys == 0 && in(c->taps, 2, 8));
    CHECK(in(c->key_dim, 16, 256) && c->key_dim % 16 == 0);
    CHECK(in(c->value_dim, 16, 256) && c->value_dim % 16 == 0);
    CHECK(m->window == 0 && model_config_kinds(m) == 1 && m->sharing == 0);
}

/* Heads of both kinds. */
static void check_heads(const struct model_config *m)
{
    CHECK(in(m->heads, 1, 4096));
    for (int32_t i = 0; i < model_config_kinds(m); i++) {
        const struct head_shape s = model_config_shape(m, i);
        CHECK(in(s.kv_heads, 1, m->heads) && m->heads % s.kv_heads == 0);
        CHECK(in(s.head_dim, 2, m->latent.value > 0 ? 576 : 512) && s.head_dim % 2 == 0);
        CHECK(in(s.rotary_dim, 2, s.head_dim) && s.rotary_dim % 2 == 0);
        check_rope(i < model_config_kinds(m) - 1 ? &m->local_rope : &m->rope, s.rotary_dim);
    }
    if (model_config_kinds(m) == 1) {
        CHECK(!m->keys_as_values);
        check_rope(&m->local_rope, m->rotary_dim);
        return;
    }
    CHECK(model_config_storing(m, 1) > 0); /* blocks are made for such layers */
    CHECK(!m->joint_norm && !m->qkv_bias && !m->fused_qkv && !m->attention_gate);
}

/* Layers with keys and values have a place of their own for them, and the others that of one before
 * them, of their kind. */
static void check_places(const struct model_config *m)
{
    const size_t bytes[MODEL_KINDS] = {4096, 8192};
    if (m->layers > 48) /* the best groups are looked for among all */
        return;
    const struct kv_groups g = kv_groups_find(m, bytes, m->max_position, 16);
    CHECK(in(kv_groups_count(&g), 1, KV_GROUPS_MAX) && kv_groups_bytes(&g, bytes) > 0);
    for (int32_t i = 0; i < m->layers; i++) {
        if (model_config_recurs(m, i))
            continue;
        const struct kv_group_place at = kv_groups_place(&g, m, i);
        CHECK(in(at.group, 0, kv_groups_count(&g) - 1));
        CHECK(in(at.layer, 0, kv_groups_layers(&g, at.group < g.keep) - 1));
        for (int32_t j = 0; j < i; j++) {
            const bool both = model_config_stores(m, i) && model_config_stores(m, j);
            const struct kv_group_place other = kv_groups_place(&g, m, j);
            CHECK(!both || at.group != other.group || at.layer != other.layer);
        }
    }
}

static void check_sharing(const struct model_config *m)
{
    CHECK(in(m->sharing, 0, m->layers - 1));
    for (int32_t i = 0; i < m->layers; i++) {
        int32_t source = m->layers - m->sharing - 1; /* the last that stores alike */
        while (source >= 0 && model_config_slides(m, source) != model_config_slides(m, i))
            source--;
        CHECK(model_config_stores(m, i) || model_config_recurs(m, i) ||
              (source >= 0 && model_config_source(m, i) == source));
        CHECK(!model_config_stores(m, i) || model_config_source(m, i) == i);
        CHECK(model_config_kind(m, model_config_source(m, i)) == model_config_kind(m, i));
    }
    check_places(m);
}

static void check_inputs(const struct model_config *m)
{
    const struct layer_inputs_config *x = &m->inputs;
    if (x->dim == 0) {
        CHECK(x->vocab == 0 && x->scale == 0);
        return;
    }
    CHECK(in(x->dim, 1, 1 << 14) && (int64_t)x->dim * m->layers <= 1 << 20);
    CHECK(in(x->vocab, m->vocab, 1 << 20) && is_within((double)x->scale, 1, 129));
    CHECK(m->residual_scale == 1); /* of what layers make of them nothing else is said */
}

static void check_layers(const struct model_config *m)
{
    bool slides = false;
    for (int32_t i = 0; i < m->layers; i++) {
        slides = slides || model_config_slides(m, i);
        CHECK(!model_config_slides(m, i) || !model_config_recurs(m, i));
    }
    for (int32_t i = m->layers; i < MODEL_LAYERS_MAX; i++)
        CHECK(!model_config_slides(m, i) && !model_config_recurs(m, i) && model_config_turns(m, i));
    CHECK(slides == (m->window > 0) && in(m->window, 0, 1 << 24));
}

static void check_promises(const struct model_config *m)
{
    CHECK(in(m->hidden, 1, 1 << 17) && in(m->layers, 1, MODEL_LAYERS_MAX));
    CHECK(in(m->vocab, 1, 1 << 20) && in(m->max_position, 1, 1 << 24));
    CHECK(in(m->bos, -1, m->vocab - 1) && in(m->eos_count, 0, MODEL_EOS_MAX));
    for (int32_t i = 0; i < m->eos_count; i++)
        CHECK(in(m->eos[i], 0, m->vocab - 1));
    check_form(m);
    check_quant(m);
    check_mixture(m);
    check_mlps(m);
    check_layers(m);
    check_sharing(m);
    check_heads(m);
    check_latents(m);
    check_recurrent(m);
    check_inputs(m);
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
