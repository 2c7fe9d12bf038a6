#include "weights/gguf/gguf_join.h"

#include <stdio.h>
#include <string.h>

/* Is it a part of every expert's, of which a tensor of all is to be called so? */
static bool joined_name(const char *tensor, char out[GGUF_JOIN_NAME])
{
    static const char experts[] = ".experts.";
    static const struct {
        const char *part, *all;
    } parts[] = {{".gate_proj.weight", "gate_up_proj"},
                 {".up_proj.weight", "gate_up_proj"},
                 {".down_proj.weight", "down_proj"}};
    const char *at = strstr(tensor, experts);
    if (!at)
        return false;
    const int stem = (int)(at - tensor) + (int)sizeof experts - 1;
    const char *part = tensor + stem + strspn(tensor + stem, "0123456789");
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (strcmp(part, parts[i].part) == 0)
            return snprintf(out, GGUF_JOIN_NAME, "%.*s%s", stem, tensor, parts[i].all) <
                   GGUF_JOIN_NAME;
    return false;
}

static bool is_alike(const struct safetensors_entry *a, const struct safetensors_entry *b)
{
    return a->dtype == b->dtype && a->ndim == 2 && b->ndim == 2 && a->shape[0] == b->shape[0] &&
           a->shape[1] == b->shape[1];
}

/* Of `parts` matrices that follow each other, an expert has one, or gates and ups. */
static void join(struct safetensors_entry *e, char *name, int32_t parts)
{
    const bool two = strstr(name, "gate_up") != NULL;
    const int64_t rows = e->shape[0], cols = e->shape[1];
    CHECK(!two || parts % 2 == 0);
    e->name = name;
    e->ndim = 3;
    e->shape[0] = two ? parts / 2 : parts;
    e->shape[1] = two ? 2 * rows : rows;
    e->shape[2] = cols;
}

int32_t gguf_join_experts(const struct gguf_arch *a, struct safetensors_entry *entries,
                          int32_t count, char (*names)[GGUF_JOIN_NAME])
{
    int32_t kept = 0, next = 0;
    if (!gguf_arch_is(a, GGUF_ARCH_GEMMA4))
        return count;
    for (int32_t i = 0; i < count; i = next) {
        struct safetensors_entry one = entries[i];
        char name[GGUF_JOIN_NAME];
        const bool joins = joined_name(one.name, names[kept]);
        next = i + 1;
        while (joins && next < count && is_alike(&one, &entries[next]) &&
               joined_name(entries[next].name, name) && strcmp(name, names[kept]) == 0)
            next++;
        if (joins)
            join(&one, names[kept], next - i);
        entries[kept++] = one;
    }
    return kept;
}
