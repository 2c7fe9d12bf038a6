/* DESIGN: a file has one list or one number of KV heads, and no word for values that are what keys
 * are made of: those layers have no tensor of values. The part of the pairs that turns is in the
 * factors of their frequencies, which are 1, or so large that nothing turns. */
#include "weights/gguf/gguf_gemma4.h"

#include "weights/gguf/gguf_put.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define STILL 1e29f /* the converter writes 1e30 */

static const char slides_key[] = "attention.sliding_window_pattern";

static bool slides(const struct gguf *g, const struct gguf_arch *a, int64_t layer)
{
    int64_t its = 0;
    return gguf_array_int(gguf_arch_get(g, a, slides_key), (size_t)layer, &its) && its == 1;
}

/* Of layers that slide, and of the others. */
struct kv_heads {
    int64_t local, global;
};

static enum status read_kv_heads(const struct gguf *g, const struct gguf_arch *a, int64_t layers,
                                 struct kv_heads *out, struct err *err)
{
    static const char key[] = "attention.head_count_kv";
    const struct gguf_value *v = gguf_arch_get(g, a, key);
    *out = (struct kv_heads){0, 0};
    if (gguf_int(v, &out->local)) {
        out->global = out->local;
        return OK;
    }
    if (gguf_array_size(v) != (size_t)layers)
        return gguf_arch_wrong(g, a, key, "an integer, or one of each layer", err);
    for (int64_t i = 0; i < layers; i++) {
        int64_t its = 0, *known = slides(g, a, i) ? &out->local : &out->global;
        if (!gguf_array_int(v, (size_t)i, &its) || its < 1)
            return gguf_arch_wrong(g, a, key, "positive integers", err);
        if (*known > 0 && its != *known)
            return gguf_arch_wrong(g, a, key, "as many in all layers that slide, and in all others",
                                   err);
        *known = its;
    }
    if (out->local == 0) /* no layer slides */
        out->local = out->global;
    return OK;
}

/* Has the last layer that does not slide, and has its own keys, a tensor of values? */
static bool has_values(const struct gguf *g, const struct gguf_arch *a, int64_t layers)
{
    char name[64];
    int64_t last = layers - gguf_arch_sharing(g, a) - 1;
    while (last >= 0 && slides(g, a, last))
        last--;
    last = last < 0 ? layers - 1 : last; /* there is none, which model_config refuses */
    snprintf(name, sizeof name, "blk.%d.attn_v.weight", (int)last);
    return gguf_find_tensor(g, name) != NULL;
}

static enum status put_heads(const struct gguf *g, const struct gguf_arch *a, int64_t layers,
                             struct buf *b, struct err *err)
{
    struct kv_heads heads;
    const enum status st = read_kv_heads(g, a, layers, &heads, err);
    if (st != OK)
        return st;
    const bool joint = !has_values(g, a, layers);
    if (!joint && heads.global != heads.local)
        return gguf_arch_wrong(g, a, "attention.head_count_kv",
                               "as many in all layers, where all have values of their own", err);
    buf_printf(b,
               "  \"num_key_value_heads\": %lld,\n  \"num_global_key_value_heads\": %lld,\n"
               "  \"attention_k_eq_v\": %s,\n",
               (long long)heads.local, (long long)heads.global, joint ? "true" : "false");
    return OK;
}

/* Widths that config.json has once. */
static enum status check_widths(const struct gguf *g, const struct gguf_arch *a, struct err *err)
{
    static const struct {
        const char *key, *same[2];
    } rows[] = {
        {"attention.key_length", {"attention.value_length", "rope.dimension_count"}},
        {"attention.key_length_swa", {"attention.value_length_swa", "rope.dimension_count_swa"}}};
    enum status st = OK;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int64_t width = 0, its = 0;
        TRY(gguf_arch_int(g, a, rows[i].key, 1, INT32_MAX, &width, err));
        if (width == 0)
            return gguf_arch_wrong(g, a, rows[i].key, "an integer", err);
        for (size_t j = 0; j < ARRAY_LEN(rows[i].same); j++)
            TRY(gguf_arch_int(g, a, rows[i].same[j], width, width, &its, err));
    }
out:
    return st;
}

/* So written that of as many pairs as many turn, whoever multiplies and cuts. */
static void put_part(struct buf *b, int32_t turning, int32_t pairs)
{
    char text[32];
    double part = (double)turning / pairs;
    for (int digits = 1; digits <= 10; digits++) {
        if (digits == 10) /* none is */
            part = (turning + 0.5) / pairs;
        snprintf(text, sizeof text, "%.*g", digits, part);
        if ((int32_t)(strtod(text, NULL) * (2 * pairs) / 2) == turning &&
            fabs(strtod(text, NULL) - part) < 0.25 / pairs)
            break;
    }
    buf_puts(b, text);
}

static enum status put_rotations(const struct gguf *g, const struct gguf_arch *a, struct buf *b,
                                 struct err *err)
{
    static const char name[] = "rope_freqs.weight", global_key[] = "rope.freq_base",
                      local_key[] = "rope.freq_base_swa";
    enum status st = OK;
    float factors[GGUF_ARCH_PAIRS_MAX];
    double global = NAN, local = NAN;
    int32_t turning = 0;
    const int32_t pairs = gguf_arch_factors(g, name, factors, err);
    if (pairs < 0)
        return ERR_MODEL;
    TRY(gguf_arch_number(g, a, global_key, &global, err));
    TRY(gguf_arch_number(g, a, local_key, &local, err));
    if (isnan(global) || isnan(local))
        return gguf_arch_wrong(g, a, isnan(global) ? global_key : local_key, "a number", err);
    if (gguf_arch_get(g, a, "rope.scaling.type"))
        return gguf_arch_wrong(g, a, "rope.scaling.type", "nothing", err);
    TRY(gguf_arch_unstretched(g, a, err));
    while (turning < pairs && factors[turning] == 1)
        turning++;
    for (int32_t i = turning; i < pairs; i++)
        if (!(factors[i] >= STILL))
            st = ERR_MODEL;
    if (pairs == 0 || st != OK)
        return base_fail(err, ERR_MODEL,
                         "%s: %s: expected 1 for each pair that turns, then 1e30 for the others",
                         gguf_path(g), name);
    buf_puts(b, "  \"rope_parameters\": {\n    \"full_attention\": {\"rope_type\": "
                "\"proportional\", \"partial_rotary_factor\": ");
    put_part(b, turning, pairs);
    buf_puts(b, ", \"rope_theta\": ");
    gguf_put_float(b, (float)global);
    buf_puts(b, "},\n    \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": ");
    gguf_put_float(b, (float)local);
    buf_puts(b, "}\n  },\n");
out:
    return st;
}

/* Columns of MLPs: of each layer as many, or twice as many of those that share keys and values. */
static enum status put_mlp(const struct gguf *g, const struct gguf_arch *a, int64_t layers,
                           struct buf *b, struct err *err)
{
    static const char key[] = "feed_forward_length";
    const struct gguf_value *v = gguf_arch_get(g, a, key);
    const int64_t own = layers - gguf_arch_sharing(g, a);
    int64_t columns = 0, last = 0, its = 0;
    bool fits = gguf_array_size(v) == (size_t)layers;
    if (gguf_int(v, &columns)) {
        buf_printf(b, "  \"intermediate_size\": %lld,\n", (long long)columns);
        return OK;
    }
    (void)gguf_array_int(v, 0, &columns);
    fits = fits && gguf_array_int(v, (size_t)layers - 1, &last) && columns > 0 &&
           columns < INT32_MAX && (last == columns || (own < layers && last == 2 * columns));
    for (int64_t i = 0; i < layers && fits; i++)
        fits = gguf_array_int(v, (size_t)i, &its) && its == (i < own ? columns : last);
    if (!fits)
        return gguf_arch_wrong(
            g, a, key, "an integer, or one of each layer, twice as many where layers share", err);
    buf_printf(b, "  \"intermediate_size\": %lld,\n  \"use_double_wide_mlp\": %s,\n",
               (long long)columns, last != columns ? "true" : "false");
    return OK;
}

/* Of the rows that layers take of each token, how many there are. */
static enum status put_inputs(const struct gguf *g, const struct gguf_arch *a, struct buf *b,
                              struct err *err)
{
    static const char name[] = "per_layer_token_embd.weight";
    const struct gguf_tensor *t = gguf_find_tensor(g, name);
    int64_t dim = 0;
    const enum status st =
        gguf_arch_int(g, a, "embedding_length_per_layer_input", 0, INT32_MAX, &dim, err);
    if (st != OK || dim == 0)
        return st;
    if (!t || t->ndim != 2)
        return base_fail(err, ERR_MODEL, "%s: %s: expected a matrix, got %s", gguf_path(g), name,
                         t ? "another shape" : "nothing");
    buf_printf(b, "  \"vocab_size_per_layer_input\": %lld,\n", (long long)t->shape[0]);
    return OK;
}

enum status gguf_gemma4_put(const struct gguf *g, const struct gguf_arch *a, struct buf *b,
                            struct err *err)
{
    enum status st = OK;
    int64_t experts = 0;
    const int64_t layers = gguf_arch_blocks(g, a);
    if (!gguf_arch_is(a, GGUF_ARCH_GEMMA4))
        return OK;
    TRY(check_widths(g, a, err));
    TRY(gguf_put_kinds(g, a, slides_key, "sliding_attention", b, err));
    if (slides(g, a, layers - 1))
        return gguf_arch_wrong(g, a, slides_key, "false of the last layer", err);
    TRY(put_heads(g, a, layers, b, err));
    TRY(put_mlp(g, a, layers, b, err));
    TRY(put_inputs(g, a, b, err));
    TRY(put_rotations(g, a, b, err));
    TRY(gguf_arch_int(g, a, "expert_count", 0, INT32_MAX, &experts, err));
    buf_printf(b, "  \"enable_moe_block\": %s,\n", experts > 0 ? "true" : "false");
out:
    return st;
}
