#include "config/model_global.h"

#include <math.h>
#include <stdio.h>

/* Which of the last layers have the keys and values of others: before them there is one of each
 * kind. */
static void read_sharing(struct reader *r, struct model_config *m)
{
    static const char key[] = "num_kv_shared_layers", wide[] = "use_double_wide_mlp";
    bool kinds[2] = {false, false}, wanted[2] = {false, false};
    m->sharing = reader_int(r, key, 0, m->layers - 1, 0);
    for (int32_t i = 0; i < m->layers; i++)
        (i < m->layers - m->sharing ? kinds : wanted)[model_config_slides(m, i)] = true;
    if (r->st == OK && ((wanted[0] && !kinds[0]) || (wanted[1] && !kinds[1])))
        reader_fail(r, key, "so few that a layer of each of their layer_types is before them");
    if (!reader_bool(r, wide, false) || m->sharing == 0)
        return;
    if (m->mixture.kind != MIXTURE_NONE || m->mlp > 1 << 19)
        reader_fail(r, wide, "false (not supported of mixtures, nor of more than 524288 columns)");
    m->sharing_mlp = 2 * m->mlp;
}

/* Rows that layers take of each token. transformers rounds the scale to the table's type. */
static void read_inputs(struct reader *r, const struct family *f, struct model_config *m)
{
    static const char key[] = "vocab_size_per_layer_input";
    char wanted[64];
    float scale;
    if (f->layer_input > 0) /* else the key is not theirs */
        m->inputs.dim = reader_int(r, "hidden_size_per_layer_input", 0, 1 << 14, f->layer_input);
    if (m->inputs.dim == 0)
        return;
    m->inputs.vocab = reader_int(r, key, 1, 1 << 20, 262144);
    dtype_store(&scale, m->dtype, 0, sqrtf((float)m->inputs.dim));
    m->inputs.scale = dtype_load(&scale, m->dtype, 0);
    snprintf(wanted, sizeof wanted, "at least vocab_size, which is %d", (int)m->vocab);
    if (r->st == OK && m->inputs.vocab < m->vocab)
        reader_fail(r, key, wanted);
    if (r->st == OK && (int64_t)m->inputs.dim * m->layers > 1 << 20)
        reader_fail(r, "hidden_size_per_layer_input", "at most 1048576 of all layers together");
}

static int32_t read_head_dim(struct reader *r, const char *key, int32_t fallback)
{
    /* at most what the kernels compute (BACKEND_HEAD_DIM_MAX) */
    const int32_t dim = reader_int(r, key, 2, 512, fallback);
    if (r->st == OK && dim % 2 != 0)
        reader_fail(r, key, "an even number from 2 to 512");
    return dim;
}

/* By its number, which may have zeros in front: so all keys have as many digits. */
static const struct jdoc *find_layer(const struct jdoc *layers, int32_t layer)
{
    const struct jdoc *found = NULL;
    for (int digits = 1; digits <= 4 && !found; digits++) {
        char number[16];
        snprintf(number, sizeof number, "%0*d", digits, (int)layer);
        found = jdoc_get_value(layers, number);
    }
    return found;
}

/* What per_layer_config, as newer transformers write it, says of a layer; all layers of a kind have
 * to be alike. */
static void read_layer(struct reader *r, const struct jdoc *layers, struct model_config *m,
                       int32_t layer, struct head_shape *shape, bool first)
{
    static const char key[] = "per_layer_config";
    const struct jdoc *outer = r->object;
    struct head_shape own = {m->kv_heads, m->head_dim, m->head_dim};
    const struct jdoc *said = find_layer(layers, layer);
    if (said && jdoc_type(said) != JDOC_OBJECT) {
        reader_fail(r, key, "an object with an object of each layer that differs");
        return;
    }
    if (said) {
        r->object = said;
        own.head_dim = own.rotary_dim = read_head_dim(r, "head_dim", own.head_dim);
        own.kv_heads = reader_int(r, "num_key_value_heads", 1, 4096, own.kv_heads);
        r->object = outer;
    }
    if (first)
        *shape = own;
    if (own.head_dim != shape->head_dim || own.kv_heads != shape->kv_heads)
        reader_fail(r, key, "the same of all layers that attend to everything, nothing of others");
}

static void read_layers(struct reader *r, const struct jdoc *layers, struct model_config *m)
{
    struct head_shape local = {m->kv_heads, m->head_dim, m->head_dim};
    bool first = true;
    for (int32_t i = 0; i < m->layers && r->st == OK; i++) {
        const bool slides = model_config_slides(m, i);
        read_layer(r, layers, m, i, slides ? &local : &m->global, !slides && first);
        first = first && slides;
    }
}

void model_global_read(struct reader *r, const struct family *f, struct model_config *m)
{
    static const char key[] = "per_layer_config", few[] = "num_global_key_value_heads";
    const struct jdoc *layers = jdoc_get_value(r->object, key);
    char wanted[80];
    if (f->global_dim == 0)
        return;
    read_sharing(r, m);
    read_inputs(r, f, m);
    m->keys_as_values = reader_bool(r, "attention_k_eq_v", false);
    if (layers && jdoc_type(layers) != JDOC_OBJECT)
        reader_fail(r, key, "an object");
    else if (layers) {
        read_layers(r, layers, m);
    } else {
        m->global.head_dim = read_head_dim(r, "global_head_dim", f->global_dim);
        m->global.kv_heads =
            m->keys_as_values ? reader_int(r, few, 1, 4096, m->kv_heads) : m->kv_heads;
        m->global.rotary_dim = m->global.head_dim;
    }
    snprintf(wanted, sizeof wanted, "a divisor of num_attention_heads, which is %d", (int)m->heads);
    if (r->st == OK && m->heads % m->global.kv_heads != 0)
        reader_fail(r, layers ? key : few, wanted);
}
