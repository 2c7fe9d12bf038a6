#include "config/model_recurrent.h"

#include <stdio.h>
#include <string.h>

/* What the kernels compute (BACKEND_STATE_DIM_MAX, BACKEND_TAPS_MAX). */
#define HEADS_MAX 1024
#define DIM_MAX 256
#define DIM_UNIT 16
#define TAPS_MAX 8

/* Every so manieth layer attends, where nothing names the layers. Keys and values are what says
 * how long a context is, so a model without any is none. */
static void read_layers(struct reader *r, const struct family *f, struct model_config *m)
{
    static const char key[] = "full_attention_interval";
    const struct jdoc *types = jdoc_get_value(r->object, "layer_types");
    if (types)
        reader_layers(r, types, m->layers, "linear_attention", m->recurs);
    const int32_t every = types ? 1 : reader_int(r, key, 1, 1 << 20, f->attends);
    for (int32_t i = 0; i < m->layers && r->st == OK; i++)
        if ((i + 1) % every != 0)
            reader_set_layer(m->recurs, i);
    if (r->st == OK && model_config_recurring(m) == m->layers)
        reader_fail(r, types ? "layer_types" : key,
                    types ? "a list with full_attention (a model in which no layer attends is not "
                            "supported)"
                          : "at most num_hidden_layers (a model in which no layer attends is not "
                            "supported)");
}

static int32_t read_dim(struct reader *r, const char *key, int32_t fallback)
{
    const int32_t dim = reader_int(r, key, DIM_UNIT, DIM_MAX, fallback);
    if (r->st == OK && dim % DIM_UNIT != 0)
        reader_fail(r, key, "a multiple of 16");
    return dim;
}

static void read_sizes(struct reader *r, const struct family *f, struct recurrent_config *c)
{
    char wanted[80];
    *c = f->recurrent;
    c->keys = reader_int(r, "linear_num_key_heads", 1, HEADS_MAX, c->keys);
    c->values = reader_int(r, "linear_num_value_heads", 1, HEADS_MAX, c->values);
    c->key_dim = read_dim(r, "linear_key_head_dim", c->key_dim);
    c->value_dim = read_dim(r, "linear_value_head_dim", c->value_dim);
    c->taps = reader_int(r, "linear_conv_kernel_dim", 2, TAPS_MAX, c->taps);
    snprintf(wanted, sizeof wanted, "a multiple of linear_num_key_heads, which is %d",
             (int)c->keys);
    if (r->st == OK && c->values % c->keys != 0)
        reader_fail(r, "linear_num_value_heads", wanted);
}

void model_recurrent_read(struct reader *r, const struct family *f, struct model_config *m)
{
    m->attention_gate = f->attention_gate;
    if (f->attends == 0)
        return;
    /* what other engines can do without, and transformers does not look at */
    if (!reader_bool(r, "attn_output_gate", true))
        reader_fail(r, "attn_output_gate", "true");
    read_layers(r, f, m);
    read_sizes(r, f, &m->recurrent);
    if (r->st == OK && model_config_recurring(m) == 0)
        memset(&m->recurrent, 0, sizeof m->recurrent);
}
