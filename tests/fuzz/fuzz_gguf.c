/* Arbitrary bytes as a GGUF file. What was accepted must hold the promises of the reader: every
 * tensor lies inside the file and has the bytes of its shape, and every value can be read. */
#include "weights/gguf/gguf.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#define VALUES_MAX 4096 /* that are dequantised of a tensor */

static void check_tensor(const struct gguf *g, const struct gguf_tensor *t, const uint8_t *data,
                         size_t size)
{
    static float values[VALUES_MAX];
    const struct gguf_block_info *info = gguf_block_info((uint32_t)t->block);
    uint64_t count = 1, bytes;
    CHECK(info && t->ndim >= 0 && t->ndim <= GGUF_DIMS_MAX);
    for (int32_t d = 0; d < t->ndim; d++)
        CHECK(!__builtin_mul_overflow(count, (uint64_t)t->shape[d], &count));
    CHECK(count % (uint64_t)info->values == 0);
    CHECK(!__builtin_mul_overflow(count / (uint64_t)info->values, (uint64_t)info->bytes, &bytes));
    CHECK(t->bytes == bytes);
    CHECK(t->offset <= size && bytes <= size - t->offset);
    CHECK(t->name[0] != '\0');
    CHECK(gguf_find_tensor(g, t->name) == t);
    if (count <= VALUES_MAX)
        gguf_dequantize(t->block, data + t->offset, (int64_t)count, values);
}

/* By the keys that the seeds have. */
static void read_value(const struct gguf_value *v)
{
    int64_t i;
    double d;
    bool b;
    struct gguf_string s;
    uint64_t hash = BASE_HASH_INIT;
    (void)gguf_int(v, &i);
    (void)gguf_number(v, &d);
    (void)gguf_bool(v, &b);
    if (gguf_text(v, &s))
        hash = base_hash(hash, s.bytes, s.n);
    for (size_t k = 0; k < gguf_array_size(v); k++) {
        (void)gguf_array_int(v, k, &i);
        (void)gguf_array_number(v, k, &d);
        if (gguf_array_text(v, k, &s))
            hash = base_hash(hash, s.bytes, s.n);
    }
    CHECK(!gguf_array_int(v, gguf_array_size(v), &i));
    CHECK(hash != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const keys[] = {
        "low.UINT8", "array.UINT64", "array.FLOAT32",     "array.BOOL", "array.STRING", "text.0",
        "text.3",    "split.count",  "general.alignment", "low.BOOL",   "high.UINT64",
    };
    struct gguf *g = NULL;
    struct err err = {{0}};
    const enum status st = gguf_parse((const char *)data, size, size, "input", &g, &err);
    if (st != OK) {
        CHECK(st == ERR_MODEL || st == ERR_NOMEM);
        CHECK(err.text[0] != '\0' && !strchr(err.text, '\n'));
        CHECK(g == NULL);
        return 0;
    }
    for (int32_t i = 0; i < gguf_tensor_count(g); i++)
        check_tensor(g, gguf_tensor_at(g, i), data, size);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        read_value(gguf_get(g, keys[i]));
    gguf_close(g);
    return 0;
}
