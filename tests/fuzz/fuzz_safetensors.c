/* Arbitrary bytes as a safetensors file. What was accepted must hold the promises of the reader:
 * tensors touch from the header to the end, and no size overflows. */
#include "weights/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

static void check_promises(const struct safetensors *st, uint64_t header_bytes, uint64_t file_bytes)
{
    uint64_t at = header_bytes;
    for (int32_t i = 0; i < st->count; i++) {
        const struct safetensors_entry *e = &st->entries[i];
        uint64_t bytes = dtype_size(e->dtype);
        CHECK(e->ndim >= 0 && e->ndim <= SAFETENSORS_DIMS_MAX);
        for (int32_t d = 0; d < e->ndim; d++)
            CHECK(!__builtin_mul_overflow(bytes, (uint64_t)e->shape[d], &bytes));
        CHECK(e->bytes == bytes);
        CHECK(e->offset == at);
        CHECK(e->name[0] != '\0');
        at += bytes;
    }
    CHECK(at == file_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors st = {.fd = -1};
    struct err err = {{0}};
    uint64_t length = 0;
    if (size < 8)
        return 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | data[i];
    if (length > size - 8)
        return 0;
    enum status s =
        safetensors_parse((const char *)data + 8, (size_t)length, size, "input", &st, &err);
    if (s != OK) {
        CHECK(s == ERR_MODEL || s == ERR_NOMEM);
        CHECK(err.text[0] != '\0');
        CHECK(st.entries == NULL);
        return 0;
    }
    check_promises(&st, 8 + length, size);
    st.path = strdup("input"); /* close frees only what open made */
    safetensors_close(&st);
    return 0;
}
