/* DESIGN: Hugging Face's tokenizers give added tokens the next free ids unless the vocabulary has
 * them, so it has all. Fillers are left out: no text is to become one. */
#include "weights/gguf/gguf_bpe.h"

#include <string.h>

static bool is_written(const struct gguf_vocab *v, int32_t id)
{
    return v->texts[id].n > 0 && !gguf_vocab_is_filler(v, id);
}

static void put_text(const struct gguf_vocab *v, int32_t id, struct buf *out)
{
    buf_json(out, v->texts[id].bytes, v->texts[id].n);
}

static void put_added(const struct gguf_vocab *v, struct buf *out)
{
    const char *comma = "";
    buf_puts(out, "\"added_tokens\":[");
    for (int32_t id = 0; id < v->count; id++) {
        if (!gguf_vocab_is_added(v, id))
            continue;
        buf_printf(out, "%s\n{\"id\":%d,\"content\":", comma, id);
        put_text(v, id, out);
        buf_printf(out,
                   ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                   "\"normalized\":false,\"special\":%s}",
                   v->types[id] == GGUF_VOCAB_CONTROL ? "true" : "false");
        comma = ",";
    }
    buf_puts(out, "],\n");
}

/* ---- around the model ---- */

static void put_steps(const struct gguf_pre *pre, struct buf *out)
{
    if (!pre) {
        buf_puts(out, "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
                      "\"content\":\"\xe2\x96\x81\"},\n"
                      "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},"
                      "\"behavior\":\"MergedWithPrevious\",\"invert\":false},\n"
                      "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
                      "\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},"
                      "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},\n");
        return;
    }
    buf_printf(out, "\"normalizer\":%s,\n\"pre_tokenizer\":",
               pre->flags & GGUF_PRE_NFC ? "{\"type\":\"NFC\"}" : "null");
    gguf_pre_write(pre, out);
    buf_puts(out, ",\n\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
                  "\"trim_offsets\":true,\"use_regex\":true},\n");
}

static void put_special(const struct gguf_vocab *v, int32_t id, int32_t sequence, struct buf *out)
{
    buf_puts(out, "{\"SpecialToken\":{\"id\":");
    put_text(v, id, out);
    buf_printf(out, ",\"type_id\":%d}}", sequence);
}

static void put_sequence(const struct gguf_vocab *v, int32_t sequence, struct buf *out)
{
    if (v->add_bos) {
        put_special(v, v->bos, sequence, out);
        buf_puts(out, ",");
    }
    buf_printf(out, "{\"Sequence\":{\"id\":\"%c\",\"type_id\":%d}}", 'A' + (char)sequence,
               sequence);
    if (v->add_eos) {
        buf_puts(out, ",");
        put_special(v, v->eos, sequence, out);
    }
}

static void put_ids_of(const struct gguf_vocab *v, int32_t id, struct buf *out)
{
    put_text(v, id, out);
    buf_puts(out, ":{\"id\":");
    put_text(v, id, out);
    buf_printf(out, ",\"ids\":[%d],\"tokens\":[", id);
    put_text(v, id, out);
    buf_puts(out, "]}");
}

/* What goes around every text. */
static void put_processor(const struct gguf_vocab *v, struct buf *out)
{
    const bool both = v->add_bos && v->add_eos && v->bos != v->eos;
    if (!v->add_bos && !v->add_eos) {
        buf_puts(out, "\"post_processor\":null,\n");
        return;
    }
    buf_puts(out, "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
    put_sequence(v, 0, out);
    buf_puts(out, "],\"pair\":[");
    put_sequence(v, 0, out);
    buf_puts(out, ",");
    put_sequence(v, 1, out);
    buf_puts(out, "],\"special_tokens\":{");
    put_ids_of(v, v->add_bos ? v->bos : v->eos, out);
    if (both) {
        buf_puts(out, ",");
        put_ids_of(v, v->eos, out);
    }
    buf_puts(out, "}},\n");
}

/* ---- the model ---- */

static void put_vocab(const struct gguf_vocab *v, struct buf *out)
{
    const char *comma = "";
    buf_puts(out, "\"vocab\":{");
    for (int32_t id = 0; id < v->count; id++) {
        if (!is_written(v, id))
            continue;
        buf_puts(out, comma);
        put_text(v, id, out);
        buf_printf(out, ":%d", id);
        comma = ",\n";
    }
    buf_puts(out, "},\n");
}

static bool is_token(const struct gguf_vocab *v, const char *text, size_t n)
{
    const int32_t id = gguf_vocab_find(v, text, n);
    return id >= 0 && is_written(v, id);
}

/* "left right", each of them and both together a token. */
static enum status put_merge(const struct gguf_vocab *v, size_t i, struct gguf_string s,
                             struct buf *out, struct err *err)
{
    char both[2 * GGUF_VOCAB_BYTES_MAX];
    const char *space = s.n > 0 ? memchr(s.bytes, ' ', s.n) : NULL;
    const size_t left = space ? (size_t)(space - s.bytes) : 0;
    const size_t right = space ? s.n - left - 1 : 0;
    if (left == 0 || right == 0 || left + right > sizeof both || memchr(space + 1, ' ', right))
        return base_fail(err, ERR_MODEL,
                         "%s: tokenizer.ggml.merges[%zu]: two tokens with a space between them "
                         "expected, found \"%s\"",
                         gguf_path(v->g), i, gguf_vocab_show(s).text);
    memcpy(both, s.bytes, left);
    memcpy(both + left, space + 1, right);
    if (!is_token(v, both, left) || !is_token(v, both + left, right) ||
        !is_token(v, both, left + right))
        return base_fail(err, ERR_MODEL,
                         "%s: tokenizer.ggml.merges[%zu], \"%s\": a part of it, or the whole, is "
                         "no token",
                         gguf_path(v->g), i, gguf_vocab_show(s).text);
    buf_puts(out, i > 0 ? ",\n[" : "[");
    buf_json(out, both, left);
    buf_puts(out, ",");
    buf_json(out, both + left, right);
    buf_puts(out, "]");
    return OK;
}

static enum status put_merges(const struct gguf_vocab *v, struct buf *out, struct err *err)
{
    const struct gguf_value *merges = gguf_get(v->g, "tokenizer.ggml.merges");
    const size_t count = gguf_array_size(merges);
    enum status st = OK;
    if (count == 0)
        return base_fail(err, ERR_MODEL, "%s: tokenizer.ggml.merges: an array of strings expected",
                         gguf_path(v->g));
    buf_puts(out, "\"merges\":[");
    for (size_t i = 0; i < count && st == OK; i++) {
        struct gguf_string s = {NULL, 0};
        if (!gguf_array_text(merges, i, &s))
            return base_fail(err, ERR_MODEL,
                             "%s: tokenizer.ggml.merges: an array of strings expected",
                             gguf_path(v->g));
        st = put_merge(v, i, s, out, err);
    }
    buf_puts(out, "]");
    return st;
}

static enum status put_model(const struct gguf_vocab *v, const struct gguf_pre *pre,
                             struct buf *out, struct err *err)
{
    const bool spelt = !pre; /* bytes are tokens <0xNN> */
    buf_puts(out, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (spelt && v->unk >= 0)
        put_text(v, v->unk, out);
    else
        buf_puts(out, "null");
    buf_printf(out,
               ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
               "\"fuse_unk\":%s,\"byte_fallback\":%s,\"ignore_merges\":%s,\n",
               spelt ? "true" : "false", spelt ? "true" : "false",
               pre && pre->flags & GGUF_PRE_IGNORE_MERGES ? "true" : "false");
    put_vocab(v, out);
    const enum status st = put_merges(v, out, err);
    buf_puts(out, "}");
    return st;
}

enum status gguf_bpe_write(const struct gguf_vocab *v, const struct gguf_pre *pre, struct buf *out,
                           struct err *err)
{
    buf_puts(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
    put_added(v, out);
    put_steps(pre, out);
    put_processor(v, out);
    const enum status st = put_model(v, pre, out, err);
    buf_puts(out, "}\n");
    if (st == OK && out->failed)
        return base_fail(err, ERR_NOMEM, "%s: no memory for a tokenizer of %d tokens",
                         gguf_path(v->g), v->count);
    return st;
}
