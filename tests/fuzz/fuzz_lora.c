/* Arbitrary bytes as an adapter: the first says the scale of the list, then come
 * adapter_config.json and, behind a zero byte, the header of adapter_model.safetensors. What was
 * accepted must be pairs of matrices with one rank, in order, and can be added. */
#include "config/lora_config.h"
#include "tests/fuzz/fuzz.h"
#include "weights/lora.h"
#include "weights/safetensors.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#define DATA_BYTES 64

static char dir[] = "/tmp/tessera-fuzz-XXXXXX";

static void path_of(char path[128], const char *name)
{
    snprintf(path, 128, "%s/%s", dir, name);
}

static void write_file(const char *name, const void *bytes, size_t n)
{
    char path[128];
    path_of(path, name);
    unlink(path);
    FILE *f = fopen(path, "we");
    CHECK(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

/* Values that are finite and small in each type. */
static void write_tensors(const char *header, size_t n)
{
    static char text[8 + 65536 + DATA_BYTES];
    memset(text, 0, 8);
    text[0] = (char)(n & 255);
    text[1] = (char)(n >> 8 & 255);
    memcpy(text + 8, header, n);
    memset(text + 8 + n, 0x3c, DATA_BYTES);
    write_file("adapter_model.safetensors", text, 8 + n + DATA_BYTES);
}

static void leave(void)
{
    char path[128];
    path_of(path, LORA_CONFIG_NAME);
    unlink(path);
    path_of(path, "adapter_model.safetensors");
    unlink(path);
    rmdir(dir);
}

static void check_linear(const struct lora *l, const struct lora_linear *x)
{
    struct err err = {""};
    float values[DATA_BYTES * DATA_BYTES] = {0};
    const struct span rows = {0, x->out}, cols = {0, x->in};
    CHECK(x->adapter == 0 && x->rank >= 1 && x->rank <= LORA_CONFIG_RANK_MAX);
    CHECK(isfinite(x->scale));
    CHECK(x->a->ndim == 2 && x->a->shape[0] == x->rank && x->a->shape[1] == x->in);
    CHECK(x->b->ndim == 2 && x->b->shape[0] == x->out && x->b->shape[1] == x->rank);
    CHECK(dtype_is_compute(x->a->dtype) && dtype_is_compute(x->b->dtype));
    const size_t n = strlen(x->tensor), end = strlen(".weight");
    CHECK(n > end && n < PLACEMENT_NAME_MAX && strcmp(x->tensor + n - end, ".weight") == 0);
    CHECK(lora_adapts(l, x->tensor));
    CHECK(x->out <= DATA_BYTES && x->in <= DATA_BYTES); /* there are no more values */
    CHECK(lora_add(l, x->tensor, DTYPE_F32, rows, cols, values, &err) == OK);
    for (int64_t i = 0; i < x->out * x->in; i++)
        CHECK(isfinite(values[i]) && (x->scale < 0 ? values[i] <= 0 : values[i] >= 0));
}

static void check_promises(const struct lora *l)
{
    const char *before = "";
    CHECK(lora_count(l) >= 1 && strcmp(lora_adapter(l, 0), dir) == 0);
    for (int32_t i = 0; i < lora_count(l); i++) {
        const struct lora_linear *x = lora_at(l, i);
        CHECK(strcmp(before, x->tensor) < 0);
        before = x->tensor;
        check_linear(l, x);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const scales[] = {"", ":1e6", ":-0.5"};
    const char *text = (const char *)data + 1;
    char list[64];
    struct lora *l = NULL;
    struct err err = {""};
    const char *zero = size > 0 && size <= 65536 ? memchr(text, '\0', size - 1) : NULL;
    if (!zero)
        return 0;
    static bool made;
    if (!made) {
        CHECK(mkdtemp(dir));
        atexit(leave);
        made = true;
    }
    write_file(LORA_CONFIG_NAME, text, (size_t)(zero - text));
    write_tensors(zero + 1, size - 2 - (size_t)(zero - text));
    snprintf(list, sizeof list, "%s%s", dir, scales[data[0] % ARRAY_LEN(scales)]);
    const enum status st = lora_open(list, &l, &err);
    if (st == OK)
        check_promises(l);
    else
        CHECK(st == ERR_NOMEM || (st == ERR_MODEL && strstr(err.text, dir)));
    lora_close(l);
    return 0;
}
