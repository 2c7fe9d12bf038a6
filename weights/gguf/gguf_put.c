#include "weights/gguf/gguf_put.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void gguf_put_float(struct buf *b, float v)
{
    char text[48];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v)
            break;
    }
    buf_puts(b, text);
    if (!strpbrk(text, ".eE"))
        buf_puts(b, ".0");
}

enum status gguf_put_kinds(const struct gguf *g, const struct gguf_arch *a, const char *key,
                           const char *kind, struct buf *b, struct err *err)
{
    const struct gguf_value *v = gguf_arch_get(g, a, key);
    const int64_t blocks = gguf_arch_blocks(g, a), layers = blocks - gguf_arch_guessing(g, a);
    const size_t n = gguf_array_size(v);
    int64_t its = 0;
    if (n != (size_t)blocks && (gguf_arch_is(a, GGUF_ARCH_HYBRIDS) || n != (size_t)layers))
        return base_fail(err, ERR_MODEL, "%s: %s.%s: expected %lld truth values, got %zu",
                         gguf_path(g), gguf_arch_prefix(a), key, (long long)blocks, n);
    buf_puts(b, "  \"layer_types\": [");
    for (int64_t i = 0; i < layers; i++) {
        if (!gguf_array_int(v, (size_t)i, &its) || its < 0 || its > 1)
            return gguf_arch_wrong(g, a, key, "truth values", err);
        buf_printf(b, "%s\"%s\"", i > 0 ? ", " : "", its ? kind : "full_attention");
    }
    buf_puts(b, "],\n");
    return OK;
}
