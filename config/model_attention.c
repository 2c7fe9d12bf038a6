#include "config/model_attention.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- rotation ---- */

/* How long contexts were before they were stretched: transformers takes what stands beside the
 * rotation, in `outer`, before what stands in it; Phi-3's configuration class always has it there.
 */
static int32_t original_length(struct reader *r, const struct family *f, const struct jdoc *outer,
                               int64_t least, int64_t fallback)
{
    static const char key[] = "original_max_position_embeddings";
    const struct jdoc *inner = r->object;
    if (jdoc_get_value(outer, key) || f->original > 0)
        r->object = outer;
    const int32_t length =
        reader_int(r, key, least, 1 << 24, f->original > 0 ? f->original : fallback);
    r->object = inner;
    return length;
}

static void read_llama3(struct reader *r, const struct family *f, const struct jdoc *outer,
                        struct rope_config *rope)
{
    rope->factor = reader_number(r, "factor", 1, 1e6, NAN);
    rope->low_freq_factor = reader_number(r, "low_freq_factor", 1e-6, 1e6, NAN);
    rope->high_freq_factor = reader_number(r, "high_freq_factor", 1e-6, 1e6, NAN);
    rope->original_max_position = original_length(r, f, outer, 1, -1);
    if (r->st == OK && rope->high_freq_factor <= rope->low_freq_factor)
        reader_fail(r, "high_freq_factor", "more than low_freq_factor");
}

/* What the paper advises, so that attention stays as sharp over more positions. */
static double yarn_scale(double factor, double by)
{
    return factor <= 1 ? 1 : 0.1 * by * log(factor) + 1;
}

static void read_yarn(struct reader *r, const struct family *f, const struct jdoc *outer,
                      const struct model_config *m, struct rope_config *rope)
{
    rope->factor = reader_number(r, "factor", 1, 1e6, NAN);
    const double by = reader_number(r, "mscale", 0, 1e6, 0);
    const double all = reader_number(r, "mscale_all_dim", 0, 1e6, 0);
    const double scale = by > 0 && all > 0
                             ? yarn_scale(rope->factor, by) / yarn_scale(rope->factor, all)
                             : yarn_scale(rope->factor, 1);
    rope->original_max_position = original_length(r, f, outer, 1, m->max_position);
    rope->attention_factor = reader_number(r, "attention_factor", 1e-6, 1e6, scale);
    rope->beta_fast = reader_number(r, "beta_fast", 1e-6, 1e6, 32);
    rope->beta_slow = reader_number(r, "beta_slow", 1e-6, 1e6, 1);
    rope->truncate = reader_bool(r, "truncate", true);
    if (r->st == OK && rope->beta_fast < rope->beta_slow)
        reader_fail(r, "beta_fast", "at least beta_slow");
    if (r->st == OK && rope->theta <= 1)
        reader_fail(r, "rope_theta", "more than 1");
}

/* A number for each pair that turns. */
static void read_factors(struct reader *r, const char *key, int32_t pairs,
                         float factors[ROPE_PAIRS_MAX])
{
    const struct jdoc *v = jdoc_get_value(r->object, key);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "a list of %d numbers from 0.001 to 1000000", (int)pairs);
    bool good = v && jdoc_type(v) == JDOC_ARRAY && jdoc_size(v) == (size_t)pairs;
    for (int32_t i = 0; good && i < pairs; i++) {
        const double f = jdoc_number(jdoc_at(v, (size_t)i));
        good = f >= 1e-3 && f <= 1e6;
        factors[i] = good ? (float)f : 0;
    }
    if (!good)
        reader_fail(r, key, wanted);
}

static void read_long(struct reader *r, const struct family *f, const struct jdoc *outer,
                      const struct model_config *m, struct rope_config *rope)
{
    const int32_t original = original_length(r, f, outer, 2, m->max_position);
    rope->original_max_position = original;
    rope->factor = reader_number(r, "factor", 1, 1e6, fmax(1, (double)m->max_position / original));
    const double scale = rope->factor > 1 ? sqrt(1 + log(rope->factor) / log((double)original)) : 1;
    rope->attention_factor = reader_number(r, "attention_factor", 1e-6, 1e6, scale);
    read_factors(r, "short_factor", m->rotary_dim / 2, rope->short_factor);
    read_factors(r, "long_factor", m->rotary_dim / 2, rope->long_factor);
}

/* How far a stretched context reaches. YaRN's configurations say either length as theirs. */
static int32_t stretched(const struct rope_config *rope, int32_t positions)
{
    const double from = rope->kind == ROPE_YARN ? rope->original_max_position : positions;
    const double to = from * rope->factor;
    return to < 1 << 24 ? (int32_t)to : 1 << 24;
}

static void read_kind(struct reader *r, const struct family *f, const struct jdoc *outer,
                      const struct model_config *m, struct rope_config *rope)
{
    const char *kind = reader_string(r, "rope_type");
    if (!kind)
        kind = reader_string(r, "type");
    if (!kind || strcmp(kind, "default") == 0 || (f->sections && strcmp(kind, "mrope") == 0))
        return;
    const double all = reader_number(r, "mscale_all_dim", 0, 1e6, 0);
    /* Mistral 4 stretches without it: Mistral's own format says apply_scale false, and vLLM and
     * SGLang measured what it costs otherwise; transformers from July 2026 on multiplies. */
    const double mscale = m->latent.value > 0 && all > 0 && !f->query_beta
                              ? yarn_scale(reader_number(r, "factor", 1, 1e6, NAN), all)
                              : 1;
    rope->score_factor = mscale * mscale;
    const bool phi3 = f->original > 0; /* whose class takes these two for longrope */
    if (strcmp(kind, "llama3") == 0) {
        rope->kind = ROPE_LLAMA3;
        read_llama3(r, f, outer, rope);
    } else if ((strcmp(kind, "longrope") == 0 && f->global_dim == 0) || /* pairs of one size */
               (phi3 && (strcmp(kind, "su") == 0 || strcmp(kind, "yarn") == 0))) {
        rope->kind = ROPE_LONG;
        read_long(r, f, outer, m, rope);
    } else if (strcmp(kind, "yarn") == 0) {
        rope->kind = ROPE_YARN;
        read_yarn(r, f, outer, m, rope);
    } else if (strcmp(kind, "proportional") == 0 && f->global_dim > 0) {
        rope->kind = ROPE_PROPORTIONAL;
        rope->factor = reader_number(r, "factor", 1e-6, 1e6, 1);
        rope->part = reader_number(r, "partial_rotary_factor", 0, 1, 1);
    } else if (strcmp(kind, "linear") == 0) {
        rope->kind = ROPE_LINEAR;
        rope->factor = reader_number(r, "factor", 1, 1e6, NAN);
    } else {
        reader_fail(r, jdoc_get(r->object, "rope_type") ? "rope_type" : "type",
                    f->global_dim > 0 ? "default, linear, llama3, proportional or yarn"
                                      : "default, linear, llama3, longrope or yarn");
    }
}

/* Wherever partial_rotary_factor is. Mistral 4 says what part of a query turns that way, too. */
static void read_partial(struct reader *r, const struct family *f, struct model_config *m)
{
    const struct jdoc *v = jdoc_get_value(r->object, "partial_rotary_factor");
    const double part = v ? jdoc_number(v) : 1;
    const bool known =
        m->latent.value > 0 && model_config_query_dim(m) * part == (double)m->latent.turns;
    if (v && f->partial > 0 && part > 0 && part <= 1)
        m->rotary_dim = (int32_t)(m->head_dim * part);
    else if (known)
        m->rotary_dim = m->latent.turns;
    else if (v && part != 1)
        reader_fail(r, "partial_rotary_factor",
                    f->partial > 0 ? "a number above 0, to 1" : "1 (others are not supported)");
    if (m->rotary_dim < 2 || m->rotary_dim % 2 != 0)
        reader_fail(r, !v && f->rotary_key ? "rotary_dim" : "partial_rotary_factor",
                    "one by which an even number of elements turns");
}

/* How queries grow. The length is the rotation's own, where that has one: only for such kinds
 * transformers takes what stands beside it. */
static void read_growth(struct reader *r, const struct family *f, const struct jdoc *outer,
                        struct rope_config *rope)
{
    const bool own = rope->kind == ROPE_DEFAULT || rope->kind == ROPE_LINEAR;
    const int32_t known = rope->original_max_position > 0 ? rope->original_max_position : -1;
    rope->query_beta = reader_number(r, "llama_4_scaling_beta", 0, 1e3, NAN);
    rope->original_max_position = original_length(r, f, own ? r->object : outer, 1, known);
}

static bool is_proportional(struct reader *r, const struct family *f)
{
    const struct jdoc *kind = f->global_dim > 0 ? jdoc_get_value(r->object, "rope_type") : NULL;
    return kind && jdoc_type(kind) == JDOC_STRING && strcmp(jdoc_string(kind), "proportional") == 0;
}

/* The members of one rotation; what they leave out stays. */
static void read_rotation(struct reader *r, const struct family *f, const struct jdoc *object,
                          const char *key, struct model_config *m, struct rope_config *rope)
{
    const struct jdoc *outer = r->object;
    if (jdoc_type(object) != JDOC_OBJECT) {
        reader_fail(r, key, "an object");
        return;
    }
    r->object = object;
    rope->theta = reader_number(r, "rope_theta", 1, 1e12, rope->theta);
    if (f->global_dim > 0) /* the default of one is no default of what is said */
        rope->kind = ROPE_DEFAULT;
    if (!is_proportional(r, f)) /* which reads the part itself */
        read_partial(r, f, m);
    read_kind(r, f, outer, m, rope);
    if (f->query_beta)
        read_growth(r, f, outer, rope);
    r->object = outer;
}

/* Each kind of layer has its own in rope_parameters. */
static void read_both(struct reader *r, const struct family *f, const struct jdoc *object,
                      struct model_config *m)
{
    static const char *const keys[] = {"full_attention", "sliding_attention"};
    struct rope_config *const ropes[] = {&m->rope, &m->local_rope};
    const struct jdoc *outer = r->object;
    r->object = object;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const struct jdoc *of_kind = jdoc_get_value(object, keys[i]);
        if (of_kind)
            read_rotation(r, f, of_kind, keys[i], m, ropes[i]);
    }
    r->object = outer;
}

static bool is_filled(const struct jdoc *v)
{
    return v && !(jdoc_type(v) == JDOC_OBJECT && jdoc_size(v) == 0);
}

static bool is_by_kind(const struct jdoc *v)
{
    return jdoc_type(v) == JDOC_OBJECT &&
           (jdoc_get(v, "full_attention") || jdoc_get(v, "sliding_attention"));
}

/* New dialect: rope_parameters holds theta too. Old: rope_theta beside rope_scaling, which wins in
 * transformers where both have something; where rope_parameters says it of each kind of layer, it
 * is about those that do not slide. */
static void read_rotations(struct reader *r, const struct family *f, struct model_config *m)
{
    static const char old[] = "rope_scaling", key[] = "rope_parameters";
    const bool local = f->local_theta > 0 || f->local_plain;
    const struct jdoc *scaling = jdoc_get_value(r->object, old);
    const struct jdoc *parameters = jdoc_get_value(r->object, key);
    if (is_filled(parameters) && (local || !is_filled(scaling))) {
        if (local && is_by_kind(parameters))
            read_both(r, f, parameters, m);
        else if (f->local_theta > 0)
            reader_fail(r, key, "full_attention and sliding_attention, each with a rotation");
        else if (is_by_kind(parameters))
            reader_fail(r, key, "one rotation for all layers of this family");
        else
            read_rotation(r, f, parameters, key, m, &m->rope);
        if (f->local_plain && !is_by_kind(parameters))
            m->local_rope.theta = m->rope.theta;
    }
    if (is_filled(scaling) && is_by_kind(scaling))
        reader_fail(r, old, "one rotation");
    else if (is_filled(scaling))
        read_rotation(r, f, scaling, old, m, &m->rope);
    if (f->query_beta && !is_filled(parameters) && !is_filled(scaling))
        reader_fail(r, key, "an object with llama_4_scaling_beta");
}

static void read_rope(struct reader *r, const struct family *f, struct model_config *m)
{
    m->rope.theta = reader_number(r, "rope_theta", 1, 1e12, f->theta > 0 ? f->theta : 10000);
    m->local_rope.theta = m->rope.theta;
    if (f->local_theta > 0)
        m->local_rope.theta = reader_number(r, "rope_local_base_freq", 1, 1e12, f->local_theta);
    m->rotary_dim = m->latent.value > 0 ? m->latent.turns : m->head_dim;
    if (f->partial > 0 &&
        !jdoc_get(r->object, "partial_rotary_factor")) /* null is not the default */
        m->rotary_dim = (int32_t)(m->head_dim * f->partial);
    if (f->rotary_key)
        m->rotary_dim = reader_int(r, "rotary_dim", 2, m->head_dim, m->head_dim);
    read_partial(r, f, m);
    if (f->global_dim > 0) { /* where nothing is said of it */
        m->rope.kind = ROPE_PROPORTIONAL;
        m->rope.factor = 1;
        m->rope.part = 0.25;
    }
    read_rotations(r, f, m);
    const enum rope_kind kind = m->rope.kind;
    if (r->st == OK && !f->reaches && (kind == ROPE_YARN || kind == ROPE_LINEAR))
        m->max_position = stretched(&m->rope, m->max_position);
    if (f->local_theta <= 0 && !f->local_plain)
        m->local_rope = m->rope;
}

/* Which layers do not turn: those with a 0 in a list, or every so manieth. */
static void read_no_rope(struct reader *r, const struct family *f, struct model_config *m)
{
    static const char key[] = "no_rope_layers";
    const struct jdoc *list = jdoc_get_value(r->object, key);
    const int32_t interval =
        reader_int(r, "no_rope_layer_interval", 1, 1 << 20, f->no_rope_interval);
    if (list && (jdoc_type(list) != JDOC_ARRAY || jdoc_size(list) < (size_t)m->layers)) {
        reader_fail(r, key, "a list of at least as many as num_hidden_layers");
        return;
    }
    for (int32_t i = 0; i < m->layers && r->st == OK; i++) {
        int64_t turns = (i + 1) % interval != 0;
        if (list && (!jdoc_whole(jdoc_at(list, (size_t)i), &turns) || turns < 0 || turns > 1))
            reader_fail(r, key, "a list of 0 (a layer without rotation) and 1");
        else if (!turns)
            reader_set_layer(m->no_rope, i);
    }
}

/* ---- windows ---- */

/* As the family has it where nothing names the layers. */
static void slide_by_rule(struct reader *r, const struct family *f, struct model_config *m)
{
    int32_t period = f->period, from = 0;
    if (f->period > 0 && (f->local_theta > 0 || f->window_turns))
        period = reader_int(r, "sliding_window_pattern", 1, 1 << 20, period);
    if (f->window_from > 0)
        from = reader_int(r, "max_window_layers", 0, 1 << 20, f->window_from);
    for (int32_t i = from; i < m->layers && r->st == OK; i++)
        if (f->no_rope_interval > 0 ? !model_config_turns(m, i)
                                    : period == 0 || (i + 1) % period != 0)
            reader_set_layer(m->slides, i);
}

/* Layers of Mistral, Mixtral and Phi-3 all slide, whatever layer_types says, which is read all the
 * same. */
static void read_window(struct reader *r, const struct family *f, struct model_config *m)
{
    const struct jdoc *types = jdoc_get_value(r->object, "layer_types");
    if (types)
        reader_layers(r, types, m->layers, "sliding_attention", m->slides);
    if (!types || (!f->window_off && f->period == 0 && f->window_from == 0))
        slide_by_rule(r, f, m);
    const int32_t last = m->layers - 1;
    if (f->global_dim > 0) /* transformers: whatever is said of it */
        m->slides[last / 32] &= ~(1u << last % 32);
    const bool slides = model_config_sliding(m) > 0;
    if (f->window_off && !reader_bool(r, "use_sliding_window", false)) {
        if (types && slides)
            reader_fail(r, "use_sliding_window", "true, since layer_types has sliding_attention");
        memset(m->slides, 0, sizeof m->slides);
        return;
    }
    const bool null = jdoc_get(r->object, "sliding_window") != NULL; /* which is no default */
    const bool none =
        !jdoc_get_value(r->object, "sliding_window") && (null || f->window == FAMILY_NO_WINDOW);
    if (none && (f->period > 0 || (types && f->window_off)) && slides)
        reader_fail(r, "sliding_window", "a number, since some layers slide");
    m->window = reader_int(r, "sliding_window", 1, 1 << 24, none ? 0 : f->window);
    if (!slides)
        m->window = 0;
    if (m->window == 0)
        memset(m->slides, 0, sizeof m->slides);
    for (int32_t i = 0; i < m->layers && f->window_turns && !none; i++)
        if (!model_config_slides(m, i))
            reader_set_layer(m->no_rope, i);
}

/* ---- scores ---- */

/* null is no cap, and not the family's. */
static float read_cap(struct reader *r, const char *key, double fallback)
{
    return (float)reader_number(r, key, 1e-3, 1e3, reader_is_null(r, key) ? 0 : fallback);
}

/* Some that were trained anew see what follows. Gemma 4's see so within pictures, which are not
 * taken here. */
static void expect_one_direction(struct reader *r, const struct family *f)
{
    static const char key[] = "use_bidirectional_attention";
    const struct jdoc *v = jdoc_get_value(r->object, key);
    const bool pictures = f->global_dim > 0 && v && jdoc_type(v) == JDOC_STRING &&
                          strcmp(jdoc_string(v), "vision") == 0;
    if (!pictures && reader_bool(r, key, false))
        reader_fail(r, key, "false (a model that generates)");
}

static void read_scores(struct reader *r, const struct family *f, struct model_config *m)
{
    m->attention_scale = 1.0f / sqrtf((float)model_config_query_dim(m));
    if (m->latent.value > 0 && m->rope.kind != ROPE_DEFAULT)
        m->attention_scale =
            (float)(m->rope.score_factor / sqrt((double)model_config_query_dim(m)));
    if (f->query_scalar > 0)
        m->attention_scale =
            (float)pow(reader_number(r, "query_pre_attn_scalar", 1e-3, 1e6, f->query_scalar), -0.5);
    if (f->global_dim > 0)
        m->attention_scale = 1;
    if (f->multipliers)
        m->attention_scale = (float)reader_number(r, "attention_multiplier", 1e-6, 1e6, 1);
    if (f->attention_softcap > 0)
        m->attention_softcap = read_cap(r, "attn_logit_softcapping", f->attention_softcap);
    else if (jdoc_get_value(r->object, "attn_logit_softcapping"))
        reader_fail(r, "attn_logit_softcapping", "null (not of this family)");
    if (jdoc_get_value(r->object, "clip_qkv"))
        reader_fail(r, "clip_qkv", "null (not supported)");
    if (f->gemma && f->post_norms != POST_NORMS_NONE)
        m->final_softcap = read_cap(r, "final_logit_softcapping", f->final_softcap);
    expect_one_direction(r, f);
}

void model_attention_read(struct reader *r, const struct family *f, struct model_config *m)
{
    if (f->no_rope_interval > 0)
        read_no_rope(r, f, m);
    if (r->st == OK && f->window != 0)
        read_window(r, f, m);
    else if (jdoc_get_value(r->object, "sliding_window") &&
             reader_bool(r, "use_sliding_window", true))
        reader_fail(r, "sliding_window", "null (not supported)");
    read_rope(r, f, m);
    read_scores(r, f, m);
}
