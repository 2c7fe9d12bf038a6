/* Arbitrary bytes as a text for byte-level tokens; the first byte says of which file. Every byte
 * comes back, and no text has fewer tokens than is promised. */
#include "config/file.h"
#include "config/utf8.h"
#include "server/tokenizer/detok.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

#define IDS 1000

static struct tokenizer *open_model(const char *name)
{
    char path[PATH_MAX], *json = NULL;
    size_t n = 0;
    struct err err = {""};
    struct tokenizer *t = NULL;
    const struct file_spec f = {.path = path, .bytes_max = 1 << 20, .failure = ERR_MODEL};
    snprintf(path, sizeof path, TEST_DATA_DIR "/corpus/hf/%s.json", name);
    CHECK(file_read(&f, &json, &n, &err) == OK);
    const struct tokenizer_bytes b = {.json = json, .json_n = n, .where = path};
    CHECK(tokenizer_open_bytes(&b, IDS, &t, &err) == OK);
    free(json);
    return t;
}

static void check_round_trip(const struct tokenizer *t, const char *text, size_t n)
{
    struct err err = {""};
    int32_t *ids = NULL, count = 0;
    struct detok d;
    struct buf out;
    enum status st = tokenizer_encode(t, text, n, false, &ids, &count, &err);
    if (st != OK) {
        CHECK(st == ERR_INPUT && (n == 0 || !utf8_is_valid(text, n)));
        return;
    }
    CHECK((size_t)count >= tokenizer_tokens_min(t, n));
    buf_init(&out, 1 << 24);
    detok_init(&d, t, NULL, 0);
    for (int32_t i = 0; i < count; i++) {
        const size_t before = out.len;
        CHECK(tokenizer_view(t, ids[i]).kind != TOKEN_HIDDEN); /* nothing is forged */
        detok_push(&d, ids[i], &out);
        CHECK(out.len == before || utf8_is_valid(out.data + before, out.len - before));
    }
    detok_finish(&d, &out);
    CHECK(out.len == n && memcmp(out.data, text, n) == 0);
    buf_free(&out);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tokenizer *models[2];
    if (!models[0]) {
        models[0] = open_model("llama3");
        models[1] = open_model("deepseek");
    }
    if (size > 0)
        check_round_trip(models[data[0] & 1], (const char *)data + 1, size - 1);
    return 0;
}
