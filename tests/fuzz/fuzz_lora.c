/* Arbitrary bytes as an adapter: the first says the scale of the list, then come
 * adapter_config.json and, behind a zero byte, the header of adapter_model.safetensors. What was
 * accepted must be pairs of matrices with one rank, or whole, in order, and can be applied. */
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

/* lora_A and lora_B. */
static void check_pair(const struct lora_part *x)
{
    const size_t n = strlen(x->tensor), end = strlen(".weight");
    CHECK(x->ndim == 2 && x->rank >= 1 && x->rank <= LORA_CONFIG_RANK_MAX && isfinite(x->scale));
    CHECK(x->a->ndim == 2 && x->a->shape[0] == x->rank && x->a->shape[1] == x->cols);
    CHECK(x->b->ndim == 2 && x->b->shape[0] == x->rows && x->b->shape[1] == x->rank);
    CHECK(dtype_is_compute(x->a->dtype) && dtype_is_compute(x->b->dtype));
    CHECK(n > end && strcmp(x->tensor + n - end, ".weight") == 0);
}

static void check_whole(const struct lora_part *x)
{
    CHECK(!x->a && !x->b && x->rank == 0 && (x->ndim == 1 || x->ndim == 2));
    CHECK(x->whole->ndim == x->ndim && x->whole->shape[x->ndim - 1] == x->cols);
    CHECK(x->rows == (x->ndim == 2 ? x->whole->shape[0] : 1));
    CHECK(dtype_is_compute(x->whole->dtype));
}

/* Where the first part of a tensor has the shape that all have, as they must in a checkpoint. */
static void check_applied(const struct lora *l, const struct lora_part *x)
{
    struct err err = {""};
    float values[DATA_BYTES * DATA_BYTES] = {0};
    const struct span rows = {0, x->rows}, cols = {0, x->cols};
    int32_t count = 0;
    CHECK(lora_find(l, x->tensor, &count) == x && count >= 1 && count <= 2);
    CHECK(lora_adapts(l, x->tensor) && lora_replaces(l, x->tensor) == (x->whole != NULL));
    if ((count == 2 && (x[1].rows != x->rows || x[1].cols != x->cols)) || x->rows * x->cols == 0)
        return;
    CHECK(x->rows <= DATA_BYTES && x->cols <= DATA_BYTES); /* there are no more values */
    CHECK(lora_apply(l, x->tensor, DTYPE_F32, rows, cols, values, DTYPE_F32, values, &err) == OK);
    for (int64_t i = 0; i < x->rows * x->cols; i++)
        CHECK(isfinite(values[i]));
}

static void check_promises(const struct lora *l)
{
    const struct lora_part *before = NULL;
    CHECK(lora_count(l) >= 1 && strcmp(lora_adapter(l, 0), dir) == 0);
    for (int32_t i = 0; i < lora_count(l); i++) {
        const struct lora_part *x = lora_at(l, i);
        const int order = before ? strcmp(before->tensor, x->tensor) : -1;
        CHECK(order < 0 || (order == 0 && before->whole && !x->whole));
        CHECK(x->adapter == 0 && strlen(x->tensor) < PLACEMENT_NAME_MAX);
        if (x->whole)
            check_whole(x);
        else
            check_pair(x);
        if (order < 0)
            check_applied(l, x);
        before = x;
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
