/* DESIGN: a file whose way to cut texts is not known is refused, as one that is cut otherwise
 * answers worse, and nobody sees why. */
#include "weights/gguf/gguf_tokenizer.h"

#include "config/buf.h"
#include "weights/gguf/gguf_bpe.h"
#include "weights/gguf/gguf_pre.h"
#include "weights/gguf/gguf_spm.h"
#include "weights/gguf/gguf_vocab.h"

#include <string.h>

#define FILE_BYTES_MAX ((size_t)1 << 30)

/* ---- what the file says ---- */

static bool is(struct gguf_string s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.bytes, text, s.n) == 0;
}

static enum status read_text(const struct gguf *g, const char *key, struct gguf_string *out,
                             struct err *err)
{
    const struct gguf_value *value = gguf_get(g, key);
    if (!value)
        return base_fail(err, ERR_MODEL, "%s: %s: is not there, a string expected", gguf_path(g),
                         key);
    if (!gguf_text(value, out))
        return base_fail(err, ERR_MODEL, "%s: %s: a string expected", gguf_path(g), key);
    return OK;
}

static enum status read_pre(const struct gguf *g, const struct gguf_pre **out, struct err *err)
{
    static const char key[] = "tokenizer.ggml.pre";
    struct gguf_string name;
    if (!gguf_get(g, key))
        return base_fail(err, ERR_MODEL,
                         "%s: %s: is not there, so how this tokenizer cuts a text is not known "
                         "(files of before May 2024 lack it: convert the model again)",
                         gguf_path(g), key);
    enum status st = read_text(g, key, &name, err);
    if (st != OK)
        return st;
    *out = gguf_pre_find(name.bytes, name.n);
    const struct gguf_vocab_shown shown = gguf_vocab_show(name);
    if (!*out)
        return base_fail(err, ERR_MODEL,
                         "%s: %s \"%s\" is not supported: how it cuts a text is not known; the "
                         "nearest known name is \"%s\", others are llama-bpe, qwen2, gpt-4o, "
                         "tekken, deepseek-v3, gpt-2",
                         gguf_path(g), key, shown.text, gguf_pre_nearest(shown.text));
    return OK;
}

/* Unless the file says so, SentencePiece's models begin a text with a token, others by name. */
static void set_begin(struct gguf_vocab *v, bool by_default)
{
    if (!v->add_bos_said)
        v->add_bos = by_default && v->bos >= 0;
}

/* ---- tokenizer_config.json ---- */

static void put_token(const struct gguf_vocab *v, const char *key, int32_t id, struct buf *out)
{
    if (id < 0)
        return;
    buf_printf(out, ",\n\"%s\":", key);
    buf_json(out, v->texts[id].bytes, v->texts[id].n);
}

/* A tokenizer.model has them as pieces, but not that a text may spell them out. */
static void put_added(const struct gguf_vocab *v, struct buf *out)
{
    const char *comma = "";
    buf_puts(out, ",\n\"added_tokens_decoder\":{");
    for (int32_t id = 0; id < v->count; id++) {
        if (!gguf_vocab_is_added(v, id))
            continue;
        buf_printf(out, "%s\n\"%d\":{\"content\":", comma, id);
        buf_json(out, v->texts[id].bytes, v->texts[id].n);
        buf_printf(out,
                   ",\"lstrip\":false,\"normalized\":false,\"rstrip\":false,"
                   "\"single_word\":false,\"special\":%s}",
                   v->types[id] == GGUF_VOCAB_CONTROL ? "true" : "false");
        comma = ",";
    }
    buf_puts(out, "}");
}

/* A template that is used with tools, beside the usual one, has its place in this file only. */
struct templates {
    struct gguf_string usual, tools; /* n = 0: none */
};

static void put_templates(const struct templates *t, struct buf *out)
{
    if (t->tools.n == 0)
        return;
    buf_puts(out, ",\n\"chat_template\":[{\"name\":\"default\",\"template\":");
    buf_json(out, t->usual.bytes, t->usual.n);
    buf_puts(out, "},{\"name\":\"tool_use\",\"template\":");
    buf_json(out, t->tools.bytes, t->tools.n);
    buf_puts(out, "}]");
}

static void put_config(const struct gguf_vocab *v, bool spm, const struct templates *t,
                       struct buf *out)
{
    buf_printf(out,
               "{\"tokenizer_class\":\"%s\",\n\"add_bos_token\":%s,\n\"add_eos_token\":%s,\n"
               "\"clean_up_tokenization_spaces\":false",
               spm ? "LlamaTokenizer" : "PreTrainedTokenizerFast", v->add_bos ? "true" : "false",
               v->add_eos ? "true" : "false");
    put_token(v, "bos_token", v->bos, out);
    put_token(v, "eos_token", v->eos, out);
    put_token(v, "unk_token", v->unk, out);
    put_token(v, "pad_token", v->pad, out);
    if (spm)
        put_added(v, out);
    put_templates(t, out);
    buf_puts(out, "}\n");
}

/* ---- files ---- */

static enum status put_file(const struct gguf_vocab *v, const struct outdir *d, const char *name,
                            const struct buf *b, struct err *err)
{
    if (b->failed)
        return base_fail(err, ERR_NOMEM, "%s: no memory for %s", gguf_path(v->g), name);
    return outdir_put(d, name, b->data, b->len, err);
}

static enum status read_template(const struct gguf *g, const char *key, struct gguf_string *out,
                                 struct err *err)
{
    *out = (struct gguf_string){"", 0};
    if (!gguf_get(g, key))
        return OK;
    const enum status st = read_text(g, key, out, err);
    if (st == OK && !gguf_vocab_is_text(out->bytes, out->n))
        return base_fail(err, ERR_MODEL, "%s: %s: not UTF-8 text", gguf_path(g), key);
    return st;
}

/* Tokens that are never drawn: Gemma 4's unified models name those of pictures and sounds. */
static enum status put_suppressed(const struct gguf_vocab *v, struct buf *out, struct err *err)
{
    static const char key[] = "tokenizer.ggml.suppress_tokens";
    const struct gguf_value *value = gguf_get(v->g, key);
    const size_t count = gguf_array_size(value);
    if (value && count == 0)
        return base_fail(err, ERR_MODEL, "%s: %s: an array of ids expected", gguf_path(v->g), key);
    for (size_t i = 0; i < count; i++) {
        int64_t id = -1;
        if (!gguf_array_int(value, i, &id) || id < 0 || id >= v->count)
            return base_fail(err, ERR_MODEL, "%s: %s: an array of ids below %d expected",
                             gguf_path(v->g), key, v->count);
        buf_printf(out, "%s%d", i > 0 ? "," : ",\n\"suppress_tokens\":[", (int)id);
    }
    buf_puts(out, count > 0 ? "]" : "");
    return OK;
}

static enum status put_generation(const struct gguf_vocab *v, struct buf *out, struct err *err)
{
    const char *comma = "";
    buf_puts(out, "{");
    if (v->bos >= 0)
        buf_printf(out, "\"bos_token_id\":%d,\n", v->bos);
    if (v->pad >= 0)
        buf_printf(out, "\"pad_token_id\":%d,\n", v->pad);
    buf_puts(out, "\"eos_token_id\":[");
    for (int32_t i = 0; i < v->end_count; i++, comma = ",")
        buf_printf(out, "%s%d", comma, v->ends[i]);
    buf_puts(out, "]");
    const enum status st = put_suppressed(v, out, err);
    buf_puts(out, "}\n");
    return st;
}

static enum status write_settings(const struct gguf_vocab *v, bool spm, const struct outdir *d,
                                  struct buf *b, struct err *err)
{
    struct templates t;
    enum status st = OK;
    TRY(read_template(v->g, "tokenizer.chat_template", &t.usual, err));
    TRY(read_template(v->g, "tokenizer.chat_template.tool_use", &t.tools, err));
    if (t.usual.n == 0)
        t.tools.n = 0;
    buf_clear(b);
    put_config(v, spm, &t, b);
    TRY(put_file(v, d, "tokenizer_config.json", b, err));
    if (t.usual.n > 0 && t.tools.n == 0)
        TRY(outdir_put(d, "chat_template.jinja", t.usual.bytes, t.usual.n, err));
    buf_clear(b);
    TRY(put_generation(v, b, err));
    TRY(put_file(v, d, "generation_config.json", b, err));
out:
    return st;
}

static enum status write_model(struct gguf_vocab *v, bool spm, const struct gguf_pre *pre,
                               const struct outdir *d, struct buf *b, struct err *err)
{
    enum status st = OK;
    if (spm)
        TRY(gguf_spm_write(v, b, err));
    else
        TRY(gguf_bpe_write(v, pre, b, err));
    TRY(put_file(v, d, spm ? "tokenizer.model" : "tokenizer.json", b, err));
out:
    return st;
}

enum status gguf_tokenizer_write(const struct gguf *g, const struct outdir *out, struct err *err)
{
    static const struct gguf_vocab_defaults none = {-1, -1, -1}, llama = {1, 2, 0};
    const struct gguf_pre *pre = NULL;
    struct gguf_vocab v = {0};
    struct gguf_string model;
    struct buf b;
    enum status st = OK;
    buf_init(&b, FILE_BYTES_MAX);
    TRY(read_text(g, "tokenizer.ggml.model", &model, err));
    const bool spm = is(model, "llama"), bytes = is(model, "gpt2");
    if (!spm && !bytes && !is(model, "gemma4")) {
        st = base_fail(err, ERR_MODEL,
                       "%s: tokenizer.ggml.model \"%s\" is not supported: \"gpt2\", \"gemma4\" "
                       "or \"llama\" expected",
                       gguf_path(g), gguf_vocab_show(model).text);
        goto out;
    }
    if (bytes)
        TRY(read_pre(g, &pre, err));
    TRY(gguf_vocab_open(g, spm ? &llama : &none, &v, err));
    set_begin(&v, !pre || pre->flags & GGUF_PRE_ADDS_BOS);
    TRY(write_model(&v, spm, pre, out, &b, err));
    TRY(write_settings(&v, spm, out, &b, err));
out:
    buf_free(&b);
    gguf_vocab_free(&v);
    return st;
}
