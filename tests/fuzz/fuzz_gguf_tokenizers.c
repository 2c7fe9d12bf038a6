/* Arbitrary bytes as a GGUF file with a vocabulary. What is written of one that was accepted must
 * be a tokenizer that can be read again. */
#include "server/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"
#include "weights/gguf/gguf_bpe.h"
#include "weights/gguf/gguf_spm.h"

#include <string.h>

static void check(enum status st, const struct err *err)
{
    CHECK(st == OK || st == ERR_MODEL || st == ERR_NOMEM);
    CHECK(st == OK || (err->text[0] != '\0' && !strchr(err->text, '\n')));
}

static void read_again(const struct tokenizer_bytes *b, int32_t count)
{
    struct err err = {""};
    struct tokenizer *t = NULL;
    const enum status st = tokenizer_open_bytes(b, count, &t, &err);
    CHECK(st == OK || st == ERR_NOMEM);
    CHECK(st != OK || tokenizer_count(t) <= count);
    tokenizer_close(t);
}

static void write_json(const struct gguf_vocab *v, const struct gguf_pre *pre)
{
    struct err err = {""};
    struct buf b;
    buf_init(&b, 1 << 24);
    const enum status st = gguf_bpe_write(v, pre, &b, &err);
    check(st, &err);
    const struct tokenizer_bytes bytes = {.json = b.data, .json_n = b.len, .where = "written"};
    if (st == OK)
        read_again(&bytes, v->count);
    buf_free(&b);
}

static void write_model(const struct gguf_vocab *v)
{
    struct err err = {""};
    struct buf b;
    buf_init(&b, 1 << 24);
    const enum status st = gguf_spm_write(v, &b, &err);
    check(st, &err);
    const struct tokenizer_bytes bytes = {.model = b.data, .model_n = b.len, .where = "written"};
    if (st == OK)
        read_again(&bytes, v->count);
    buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct gguf_vocab_defaults defaults = {1, 2, 0};
    struct gguf *g = NULL;
    struct gguf_vocab v;
    struct err err = {""};
    if (gguf_parse((const char *)data, size, size, "input", &g, &err) != OK)
        return 0;
    const enum status st = gguf_vocab_open(g, &defaults, &v, &err);
    check(st, &err);
    if (st == OK) {
        write_json(&v, gguf_pre_at((int32_t)(size % 8)));
        write_json(&v, NULL);
        write_model(&v);
        gguf_vocab_free(&v);
    }
    gguf_close(g);
    return 0;
}
