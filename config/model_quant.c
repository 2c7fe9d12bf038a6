/* DESIGN: of each method the keys that change what its numbers mean are read, and what we do not
 * compute is refused by the key's name; keys that say how a checkpoint was made are not looked at.
 * Which linears are left as they are (`ignore`, `modules_to_not_convert`) is for the files to say:
 * the lists have a syntax for each method, and an entry that matches nothing is no error there. */
#include "config/model_quant.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define GROUP 32 /* columns that share a scale as weights are held (BACKEND_GROUP) */

static void expect_absent(struct reader *r, const char *key)
{
    const struct jdoc *v = jdoc_get_value(r->object, key);
    if (v && !(jdoc_type(v) == JDOC_OBJECT && jdoc_size(v) == 0))
        reader_fail(r, key, "null (not supported)");
}

/* ---- E4M3 ---- */

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

/* As DeepSeek and Qwen publish them: blocks with X_scale_inv; or one scale per tensor, which is
 * X_scale_inv, too, where transformers wrote it (as Ministral 3 is published). */
static void read_fp8(struct reader *r, struct quant_config *q)
{
    const char *fmt = reader_string(r, "fmt");
    if (fmt && strcmp(fmt, "float8_e4m3fn") != 0) /* PyTorch's name, which MiniMax uses */
        reader_expect(r, "fmt", "e4m3");
    q->inverse = jdoc_get_value(r->object, "weight_block_size") != NULL;
    q->either = !q->inverse;
    if (q->inverse)
        read_block(r, "weight_block_size", q);
}

/* The weights of compressed-tensors' float-quantized. */
static void read_floats(struct reader *r, struct quant_config *q)
{
    reader_int(r, "num_bits", 8, 8, -1);
    reader_expect(r, "type", "float");
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

/* ---- integers in words of 32 bits ---- */

/* The type they are held in; of 8 bits less their zero they would need more than 8. */
static void read_integers(struct reader *r, enum quant_form form, const char *bits, bool symmetric,
                          struct quant_config *q)
{
    const struct jdoc *v = jdoc_get_value(r->object, bits);
    const bool eight = v && jdoc_type(v) == JDOC_INT && jdoc_int(v) == 8 && form != QUANT_AWQ;
    if (!eight && reader_int(r, bits, 0, 64, -1) != 4)
        reader_fail(r, bits, form == QUANT_AWQ ? "4" : "4, or 8");
    if (eight && !symmetric)
        reader_fail(r, form == QUANT_GPTQ ? "sym" : "symmetric", "true (with 8 bits)");
    q->form = form;
    q->code = eight ? DTYPE_I8 : symmetric ? DTYPE_I4 : DTYPE_U4;
    q->rows = 1;
}

/* Columns that have one scale; -1: all. */
static void read_group(struct reader *r, const char *key, struct quant_config *q)
{
    const struct jdoc *v = jdoc_get_value(r->object, key);
    int64_t n = 0;
    if (v && !jdoc_whole(v, &n))
        n = 0;
    if (n != -1 && (n < GROUP || n > 1 << 20 || n % GROUP != 0))
        reader_fail(r, key, "a multiple of 32, or -1");
    q->cols = n < 0 ? 0 : (int32_t)n;
}

/* The weights of compressed-tensors' pack-quantized. */
static void read_packed(struct reader *r, struct quant_config *q)
{
    read_integers(r, QUANT_PACKED, "num_bits", reader_bool(r, "symmetric", true), q);
    reader_expect(r, "type", "int");
    const char *strategy = reader_string(r, "strategy");
    if (strategy && strcmp(strategy, "group") == 0)
        read_group(r, "group_size", q);
    else if (!strategy || strcmp(strategy, "channel") != 0)
        reader_fail(r, "strategy", "\"group\" or \"channel\"");
    const struct jdoc *order = jdoc_get_value(r->object, "actorder");
    const char *word = order && jdoc_type(order) == JDOC_STRING ? jdoc_string(order) : "group";
    const bool stays = strcmp(word, "weight") == 0 || strcmp(word, "static") == 0;
    if (order && !stays && !(jdoc_type(order) == JDOC_BOOL && !jdoc_bool(order)))
        reader_fail(r, "actorder",
                    "null or \"static\": columns in another order than the file's are not "
                    "supported; quantise again with one of these");
}

/* Rules for modules by name; "-:..." says that they are left as they are, which the files say, too.
 */
static void expect_left_out(struct reader *r, const char *key)
{
    const struct jdoc *rules = jdoc_get_value(r->object, key), *rule;
    const char *name;
    if (!rules || jdoc_type(rules) != JDOC_OBJECT) {
        expect_absent(r, key);
        return;
    }
    for (void *i = NULL; (i = jdoc_iter(rules, i, &name, &rule));)
        if (strncmp(name, "-:", 2) != 0)
            reader_fail(r, key, "null, or rules \"-:...\" (others are not supported)");
}

/* As AutoGPTQ and GPTQModel write them. In version 1 of the format zeros are stored less one. */
static void read_gptq(struct reader *r, struct quant_config *q)
{
    const char *key =
        jdoc_get_value(r->object, "checkpoint_format") ? "checkpoint_format" : "format";
    const char *format = reader_string(r, key);
    const bool second = format && strcmp(format, "gptq_v2") == 0;
    if (format && !second && strcmp(format, "gptq") != 0)
        reader_fail(r, key, "\"gptq\" or \"gptq_v2\"");
    read_integers(r, QUANT_GPTQ, "bits", reader_bool(r, "sym", true), q);
    read_group(r, "group_size", q);
    q->zero_more = !second;
    /* Groups that were cut before the columns were ordered are those of columns in order, which
     * AutoGPTQ writes (gptq.py, fasterquant). */
    const bool in_order = reader_bool(r, "static_groups", false);
    if (reader_bool(r, "desc_act", false) && !in_order && q->cols > 0)
        reader_fail(r, "desc_act",
                    "false: columns in the order of their activations (g_idx) are not supported; "
                    "quantise again with desc_act false");
    if (reader_bool(r, "is_marlin_format", false))
        reader_fail(r, "is_marlin_format", "false");
    if (reader_bool(r, "lm_head", false))
        reader_fail(r, "lm_head", "false");
    expect_left_out(r, "dynamic");
}

/* As AutoAWQ writes them. */
static void read_awq(struct reader *r, struct quant_config *q)
{
    const char *version = reader_string(r, "version");
    if (version && strcasecmp(version, "gemm") != 0)
        reader_fail(r, "version", "\"gemm\"");
    if (!reader_bool(r, "zero_point", true))
        reader_fail(r, "zero_point", "true");
    read_integers(r, QUANT_AWQ, jdoc_get_value(r->object, "bits") ? "bits" : "w_bit", false, q);
    read_group(r, jdoc_get_value(r->object, "group_size") ? "group_size" : "q_group_size", q);
}

/* ---- methods ---- */

/* What zeros there are among the weights does not matter unless they are left out. */
static void expect_dense(struct reader *r)
{
    const struct jdoc *outer = r->object, *v = jdoc_get_value(outer, "sparsity_config");
    if (v && !(jdoc_type(v) == JDOC_OBJECT && jdoc_size(v) == 0) &&
        reader_enter(r, "sparsity_config"))
        reader_expect(r, "format", "dense");
    r->object = outer;
}

/* One group of linears, which is all of them. Activations stay as they are here, so
 * input_activations and its scales are not asked for. */
static void read_compressed(struct reader *r, struct quant_config *q)
{
    const char *name, *format = reader_string(r, "format");
    const struct jdoc *group = NULL;
    const bool packed = format && strcmp(format, "pack-quantized") == 0;
    if (!packed && (!format || strcmp(format, "float-quantized") != 0))
        reader_fail(r, "format", "\"float-quantized\" or \"pack-quantized\"");
    expect_absent(r, "kv_cache_scheme");
    expect_dense(r);
    expect_absent(r, "transform_config");
    const struct jdoc *groups = reader_enter(r, "config_groups");
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
    if (!reader_enter(r, "weights"))
        return;
    if (packed)
        read_packed(r, q);
    else
        read_floats(r, q);
}

/* As gpt-oss is published: the experts' linears, in groups of 32 columns. */
static void read_mxfp4(struct reader *r, const struct model_config *m, struct quant_config *q)
{
    q->code = DTYPE_F4_E2M1;
    q->rows = 1;
    q->cols = GROUP;
    if (m->mixture.kind != MIXTURE_GPT_OSS)
        reader_fail(r, "quant_method", "another method (mxfp4: of gpt_oss)");
    else if (m->hidden % GROUP != 0 || m->mlp % GROUP != 0)
        reader_fail(r, "quant_method", "hidden_size and intermediate_size in multiples of 32");
}

void model_quant_read(struct reader *r, struct model_config *m)
{
    struct quant_config *q = &m->quant;
    const struct jdoc *outer = r->object;
    if (!jdoc_get_value(outer, "quantization_config") || !reader_enter(r, "quantization_config"))
        return;
    const char *method = reader_string(r, "quant_method"), *word = method ? method : "";
    q->kind = QUANT_FILE;
    q->code = DTYPE_F8_E4M3;
    if (strcmp(word, "fp8") == 0)
        read_fp8(r, q);
    else if (strcmp(word, "compressed-tensors") == 0)
        read_compressed(r, q);
    else if (strcmp(word, "gptq") == 0)
        read_gptq(r, q);
    else if (strcmp(word, "awq") == 0)
        read_awq(r, q);
    else if (strcmp(word, "mxfp4") == 0)
        read_mxfp4(r, m, q);
    else
        reader_fail(r, "quant_method",
                    "\"fp8\", \"compressed-tensors\", \"gptq\", \"awq\" or \"mxfp4\"");
    if (r->st == OK && m->mixture.kind == MIXTURE_GPT_OSS && q->code != DTYPE_F4_E2M1)
        reader_fail(r, "quant_method", "\"mxfp4\" (of gpt_oss)");
    r->object = outer;
}

enum status model_config_quantize(struct model_config *m, enum dtype code, bool widen,
                                  struct err *err)
{
    const char *name = model_config_code_name(code), *has = model_config_code_name(m->quant.code);
    const bool file = m->quant.kind == QUANT_FILE;
    m->quant.widened = widen && file && dtype_is_int(m->quant.code);
    if (code == DTYPE_F32 || (file && strcmp(name, has) == 0))
        return OK;
    if (file)
        return base_fail(err, ERR_USAGE,
                         "--quantization %s: the checkpoint's weights are %s already; it takes "
                         "one in float32, float16 or bfloat16",
                         name, has);
    m->quant = (struct quant_config){.kind = QUANT_LOAD, .code = code, .rows = 1};
    return OK;
}
