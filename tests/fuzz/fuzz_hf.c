/* Arbitrary bytes as a tokenizer.json. What was accepted must encode a text to ids that the model
 * has, and decode any of its ids to whole characters. */
#include "config/utf8.h"
#include "server/tokenizer/detok.h"
#include "tests/fuzz/fuzz.h"

#define IDS 1000

static void use(const struct tokenizer *t, bool named)
{
    static const char text[] =
        "Once upon a time \xe4\xbd\xa0 \xf0\x9f\xa6\x8a 123  don't\n\n <s>ab";
    struct err err = {""};
    int32_t *ids = NULL, n = 0;
    enum status st = (named ? tokenizer_encode_named : tokenizer_encode)(t, text, sizeof text - 1,
                                                                         true, &ids, &n, &err);
    CHECK(st == OK || err.text[0]);
    if (st == OK)
        CHECK((size_t)n >= tokenizer_tokens_min(t, sizeof text - 1));
    for (int32_t i = 0; st == OK && i < n; i++)
        CHECK(ids[i] >= 0 && ids[i] < IDS);
    free(ids);
}

static void show_all(const struct tokenizer *t)
{
    struct detok d;
    struct buf out;
    buf_init(&out, 1 << 20);
    detok_init(&d, t, NULL, 0);
    for (int32_t id = 0; id < tokenizer_count(t); id++)
        detok_push(&d, id, &out);
    detok_finish(&d, &out);
    CHECK(utf8_is_valid(out.data ? out.data : "", out.len));
    buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct tokenizer_bytes b = {.json = (const char *)data, .json_n = size, .where = "input"};
    struct tokenizer *t = NULL;
    struct err err = {""};
    enum status st = tokenizer_open_bytes(&b, IDS, &t, &err);
    if (st != OK) {
        CHECK(st == ERR_MODEL || st == ERR_NOMEM);
        CHECK(err.text[0]);
        return 0;
    }
    CHECK(tokenizer_count(t) > 0 && tokenizer_count(t) <= IDS);
    use(t, false);
    use(t, true);
    show_all(t);
    tokenizer_close(t);
    return 0;
}
