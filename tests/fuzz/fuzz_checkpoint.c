/* Arbitrary bytes as the index of a checkpoint, or (first byte odd) as its shards.json and the
 * header of a rank's file, which a zero byte separates. What was accepted must hold the promises of
 * a checkpoint: every tensor can be read whole. */
#include "tests/fuzz/fuzz.h"
#include "weights/checkpoint.h"

#include <string.h>
#include <unistd.h>

static char dir[] = "/tmp/tessera-fuzz-XXXXXX";

static void write_file(const char *name, const void *head, size_t n, const void *more, size_t m)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "we");
    CHECK(f && fwrite(head, 1, n, f) == n && fwrite(more, 1, m, f) == m && fclose(f) == 0);
}

static void write_tensors(const char *name, const char *header, size_t n)
{
    static const char data[24];
    char text[8 + 65536] = {(char)(n & 255), (char)(n >> 8 & 255), (char)(n >> 16)};
    CHECK(n <= sizeof text - 8);
    if (n > 0)
        memcpy(text + 8, header, n);
    write_file(name, text, 8 + n, data, sizeof data);
}

static void remove_all(void)
{
    static const char *const names[] = {"a.safetensors", "b.safetensors", "shards.json",
                                        "model.safetensors.index.json"};
    char path[64];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
}

static void leave(void)
{
    remove_all();
    rmdir(dir);
}

static void check_promises(const struct checkpoint *c)
{
    char dst[64];
    struct err err = {""};
    for (int32_t i = 0; i < checkpoint_count(c); i++) {
        const struct checkpoint_tensor *t = checkpoint_at(c, i);
        const size_t bytes = (size_t)t->rows * (size_t)t->cols * dtype_size(t->dtype);
        CHECK(t->rows >= 0 && t->cols >= 0 && checkpoint_find(c, t->name) == t);
        CHECK(bytes <= 24 || checkpoint_ranks(c) > 0); /* overlapping parts are fine */
        if (bytes <= sizeof dst)
            CHECK(checkpoint_read(c, t, (struct span){0, t->rows}, (struct span){0, t->cols}, 0,
                                  dst, &err) == OK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char a[] = "{\"x\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}";
    static const char b[] = "{\"y\":{\"dtype\":\"BF16\",\"shape\":[12],\"data_offsets\":[0,24]}}";
    const char *text = (const char *)data + 1;
    struct checkpoint *c = NULL;
    struct err err = {""};
    if (size == 0 || size > 65536)
        return 0;
    static bool made;
    if (!made) {
        CHECK(mkdtemp(dir));
        atexit(leave);
        made = true;
    }
    remove_all();
    const char *zero = data[0] % 2 ? memchr(text, '\0', size - 1) : NULL;
    const size_t n = zero ? (size_t)(zero - text) : size - 1;
    write_file(zero ? "shards.json" : "model.safetensors.index.json", text, n, "", 0);
    write_tensors("a.safetensors", zero ? zero + 1 : a, zero ? size - 2 - n : sizeof a - 1);
    write_tensors("b.safetensors", b, sizeof b - 1);
    const enum status st = checkpoint_open(dir, &c, &err);
    if (st == OK)
        check_promises(c);
    else
        CHECK((st == ERR_MODEL || st == ERR_NOMEM) && err.text[0]);
    checkpoint_close(c);
    return 0;
}
