#include "weights/gguf/gguf_arch.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct gguf_arch archs[] = {
    {.name = "llama",
     .model_type = "llama",
     .pairs = true}, /* Mixtral, too: that is a llama with experts */
    {.name = "mixtral",
     .prefix = "llama",
     .key = "expert_count",
     .least = 1,
     .model_type = "mixtral",
     .pairs = true},
    /* Mistral Small 3.1; Mistral's own class has a window where a config says nothing of one */
    {.name = "mistral3", .model_type = "llama", .pairs = true},
    {.name = "ministral3",
     .prefix = "mistral3",
     .key = "attention.temperature_scale",
     .model_type = "ministral3",
     .pairs = true},
    {.name = "qwen2", .model_type = "qwen2"},
    {.name = "qwen3", .model_type = "qwen3"},
    {.name = "qwen3moe", .model_type = "qwen3_moe", .keys = "  \"norm_topk_prob\": true,\n"},
    {.name = "qwen2moe", .model_type = "qwen2_moe", .keys = "  \"norm_topk_prob\": false,\n"},
    {.name = "gemma", .model_type = "gemma", .gemma = true, .more = true},
    {.name = "gemma2", .model_type = "gemma2", .gemma = true, .more = true},
    {.name = "gemma3", .model_type = "gemma3_text", .gemma = true, .more = true},
    {.name = "gemma4", .model_type = "gemma4_text", .gemma = true},
    {.name = "phi3", .model_type = "phi3"},
    {.name = "granite", .model_type = "granite", .pairs = true},
    {.name = "smollm3", .model_type = "smollm3", .pairs = true},
    {.name = "seed_oss", .model_type = "seed_oss"},
    {.name = "ernie4_5", .model_type = "ernie4_5"},
    {.name = "ernie4_5-moe", .model_type = "ernie4_5_moe"},
    {.name = "exaone4", .model_type = "exaone4"},
    {.name = "exaone-moe", .model_type = "exaone_moe"},
    {.name = "glm4", .model_type = "glm4"},
    {.name = "glm4moe", .model_type = "glm4_moe"},
    /* whose class has a window from a layer on, as no file of llama.cpp's has */
    {.name = "dots1", .model_type = "dots1", .keys = "  \"sliding_window\": null,\n"},
    {.name = "qwen3next",
     .model_type = "qwen3_next",
     .more = true,
     .keys = "  \"norm_topk_prob\": true,\n"},
    {.name = "qwen35", .model_type = "qwen3_5_text", .more = true, .tiled = true},
    {.name = "deepseek2", .model_type = "deepseek_v2"},
    {.name = "deepseek_v3", /* scores by sigmoid */
     .prefix = "deepseek2",
     .key = "expert_gating_func",
     .least = 2,
     .model_type = "deepseek_v3"},
    {.name = "qwen35moe", .model_type = "qwen3_5_moe_text", .more = true, .tiled = true},
};

const char *gguf_arch_prefix(const struct gguf_arch *a)
{
    return a->prefix ? a->prefix : a->name;
}

bool gguf_arch_is(const struct gguf_arch *a, const char *names)
{
    const size_t n = strlen(a->name);
    for (const char *at = names; (at = strstr(at, a->name)) != NULL; at++)
        if (at[-1] == ' ' && at[n] == ' ')
            return true;
    return false;
}

/* The architecture, or the one behind it that shares its keys, if the file has what tells them
 * apart. */
static const struct gguf_arch *variant(const struct gguf *g, const struct gguf_arch *a)
{
    double value = 0;
    if (a + 1 == archs + ARRAY_LEN(archs) || !a[1].prefix || strcmp(a[1].prefix, a->name) != 0)
        return a;
    if (!gguf_number(gguf_arch_get(g, a, a[1].key), &value))
        return a;
    const bool its = a[1].least > 0 ? value >= (double)a[1].least : value != 0;
    return its ? a + 1 : a;
}

const struct gguf_arch *gguf_arch_find(const struct gguf *g, struct err *err)
{
    struct gguf_string name = {"", 0};
    char known[320] = "", word[40];
    size_t n = 0;
    gguf_text(gguf_get(g, "general.architecture"), &name);
    snprintf(word, sizeof word, "%.*s", (int)(name.n < 39 ? name.n : 39), name.bytes);
    for (size_t i = 0; i < ARRAY_LEN(archs); i++) {
        const struct gguf_arch *a = &archs[i];
        if (a->prefix)
            continue;
        if (strcmp(a->name, word) == 0)
            return variant(g, a);
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n > 0 ? ", " : "", a->name);
    }
    (void)base_fail(err, ERR_MODEL, "%s: general.architecture is \"%s\"; expected one of %s",
                    gguf_path(g), word, known);
    return NULL;
}

/* ---- values by key ---- */

const struct gguf_value *gguf_arch_get(const struct gguf *g, const struct gguf_arch *a,
                                       const char *key)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", gguf_arch_prefix(a), key);
    return gguf_get(g, name);
}

enum status gguf_arch_wrong(const struct gguf *g, const struct gguf_arch *a, const char *key,
                            const char *what, struct err *err)
{
    return base_fail(err, ERR_MODEL, "%s: %s.%s: expected %s, got %s", gguf_path(g),
                     gguf_arch_prefix(a), key, what,
                     gguf_arch_get(g, a, key) ? "something else" : "nothing");
}

enum status gguf_arch_number(const struct gguf *g, const struct gguf_arch *a, const char *key,
                             double *out, struct err *err)
{
    const struct gguf_value *v = gguf_arch_get(g, a, key);
    double found = 0;
    if (!v)
        return OK;
    if (!gguf_number(v, &found) || !(fabs(found) <= FLT_MAX))
        return gguf_arch_wrong(g, a, key, "a finite number", err);
    *out = found;
    return OK;
}

enum status gguf_arch_unstretched(const struct gguf *g, const struct gguf_arch *a, struct err *err)
{
    static const char *const keys[] = {"rope.scaling.factor", "rope.scale_linear"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        double by = 0; /* as llama.cpp has it: none */
        const enum status st = gguf_arch_number(g, a, keys[i], &by, err);
        if (st != OK)
            return st;
        if (by != 0 && by != 1)
            return gguf_arch_wrong(g, a, keys[i], "1 where there is no rope.scaling.type", err);
    }
    return OK;
}

enum status gguf_arch_int(const struct gguf *g, const struct gguf_arch *a, const char *key,
                          int64_t least, int64_t most, int64_t *out, struct err *err)
{
    const struct gguf_value *v = gguf_arch_get(g, a, key);
    int64_t found = 0;
    if (!v)
        return OK;
    if (!gguf_int(v, &found) || found < least || found > most)
        return base_fail(err, ERR_MODEL, "%s: %s.%s: expected an integer from %lld to %lld, got %s",
                         gguf_path(g), gguf_arch_prefix(a), key, (long long)least, (long long)most,
                         gguf_int(v, &found) ? "another" : "another type");
    *out = found;
    return OK;
}

/* gguf_config has seen that there are fewer than layers. */
int64_t gguf_arch_guessing(const struct gguf *g, const struct gguf_arch *a)
{
    int64_t n = 0;
    const bool said = gguf_int(gguf_arch_get(g, a, "nextn_predict_layers"), &n);
    return said && n > 0 && n < GGUF_ARCH_LAYERS_MAX ? n : 0;
}

int64_t gguf_arch_sharing(const struct gguf *g, const struct gguf_arch *a)
{
    int64_t n = 0;
    const bool said = gguf_int(gguf_arch_get(g, a, "attention.shared_kv_layers"), &n);
    return said && n > 0 && n < GGUF_ARCH_LAYERS_MAX ? n : 0;
}

int64_t gguf_arch_blocks(const struct gguf *g, const struct gguf_arch *a)
{
    int64_t blocks = 0;
    gguf_int(gguf_arch_get(g, a, "block_count"), &blocks);
    return blocks;
}

int32_t gguf_arch_factors(const struct gguf *g, const char *name, float out[GGUF_ARCH_PAIRS_MAX],
                          struct err *err)
{
    const struct gguf_tensor *t = gguf_find_tensor(g, name);
    if (!t)
        return 0;
    if (t->block == GGUF_BLOCK_F32 && t->ndim == 1 && t->shape[0] <= GGUF_ARCH_PAIRS_MAX &&
        t->shape[0] > 0)
        return gguf_read_rows(g, t, 0, 1, out, err) == OK ? (int32_t)t->shape[0] : -1;
    (void)base_fail(err, ERR_MODEL, "%s: %s: expected 1 to %d values of F32 in one dimension",
                    gguf_path(g), name, GGUF_ARCH_PAIRS_MAX);
    return -1;
}
