/* DESIGN: texts stay where the file has them; a table of hashes finds those that are there twice,
 * and later the halves of merges. */
#include "weights/gguf/gguf_vocab.h"

#include "config/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY(name) "tokenizer.ggml." name

/* ---- tokens ---- */

bool gguf_vocab_is_text(const char *bytes, size_t n)
{
    return utf8_is_valid(bytes, n) && !memchr(bytes, '\0', n);
}

struct gguf_vocab_shown gguf_vocab_show(struct gguf_string s)
{
    struct gguf_vocab_shown shown = {""};
    size_t n = s.n < sizeof shown.text ? s.n : sizeof shown.text - 1;
    for (size_t i = 0; i < n; i++)
        shown.text[i] = s.bytes[i] >= ' ' && s.bytes[i] <= '~' ? s.bytes[i] : '?';
    return shown;
}

static size_t slot_of(const struct gguf_vocab *v, const char *text, size_t n)
{
    size_t at = base_hash(BASE_HASH_INIT, text, n) & (v->slots - 1);
    for (; v->table[at]; at = (at + 1) & (v->slots - 1)) {
        const struct gguf_string *other = &v->texts[v->table[at] - 1];
        if (other->n == n && memcmp(other->bytes, text, n) == 0)
            break;
    }
    return at;
}

int32_t gguf_vocab_find(const struct gguf_vocab *v, const char *text, size_t n)
{
    return v->table[slot_of(v, text, n)] - 1;
}

static enum status add_token(struct gguf_vocab *v, const struct gguf_value *tokens, int32_t id,
                             struct err *err)
{
    struct gguf_string *s = &v->texts[id];
    if (!gguf_array_text(tokens, (size_t)id, s))
        return base_fail(err, ERR_MODEL, "%s: " KEY("tokens") ": an array of strings expected",
                         gguf_path(v->g));
    if (s->n > GGUF_VOCAB_BYTES_MAX)
        return base_fail(err, ERR_MODEL,
                         "%s: " KEY("tokens[%d]") " has %zu bytes, at most %d are "
                                                  "supported",
                         gguf_path(v->g), id, s->n, GGUF_VOCAB_BYTES_MAX);
    if (s->n == 0)
        return OK;
    if (!gguf_vocab_is_text(s->bytes, s->n))
        return base_fail(err, ERR_MODEL, "%s: " KEY("tokens[%d]") " is not UTF-8 text",
                         gguf_path(v->g), id);
    const size_t at = slot_of(v, s->bytes, s->n);
    if (v->table[at])
        return base_fail(err, ERR_MODEL, "%s: " KEY("tokens[%d]") " and [%d] are the same",
                         gguf_path(v->g), v->table[at] - 1, id);
    v->table[at] = id + 1;
    return OK;
}

static enum status add_type(struct gguf_vocab *v, const struct gguf_value *types, int32_t id,
                            struct err *err)
{
    int64_t type = 0;
    if (!gguf_array_int(types, (size_t)id, &type))
        return base_fail(err, ERR_MODEL, "%s: " KEY("token_type") ": an array of integers expected",
                         gguf_path(v->g));
    if (type < GGUF_VOCAB_NORMAL || type > GGUF_VOCAB_BYTE)
        return base_fail(err, ERR_MODEL, "%s: " KEY("token_type[%d]") " is %lld, 1 to 6 expected",
                         gguf_path(v->g), id, (long long)type);
    v->types[id] = (uint8_t)type;
    return OK;
}

static enum status read_tokens(struct gguf_vocab *v, struct err *err)
{
    const struct gguf_value *tokens = gguf_get(v->g, KEY("tokens"));
    const struct gguf_value *types = gguf_get(v->g, KEY("token_type"));
    const size_t count = gguf_array_size(tokens), type_count = gguf_array_size(types);
    if (count == 0 || count > GGUF_VOCAB_TOKENS_MAX)
        return base_fail(err, ERR_MODEL, "%s: " KEY("tokens") " has %zu strings, 1 to %d expected",
                         gguf_path(v->g), count, GGUF_VOCAB_TOKENS_MAX);
    if (type_count != count)
        return base_fail(err, ERR_MODEL,
                         "%s: " KEY("token_type") " has %zu integers, one for each of %zu tokens "
                                                  "expected",
                         gguf_path(v->g), type_count, count);
    for (v->slots = 64; v->slots < 2 * count;)
        v->slots *= 2;
    v->texts = calloc(count, sizeof *v->texts);
    v->types = calloc(count, sizeof *v->types);
    v->table = calloc(v->slots, sizeof *v->table);
    if (!v->texts || !v->types || !v->table)
        return base_fail(err, ERR_NOMEM, "%s: no memory for %zu tokens", gguf_path(v->g), count);
    v->count = (int32_t)count;
    enum status st = OK;
    for (int32_t id = 0; id < v->count && st == OK; id++) {
        st = add_token(v, tokens, id, err);
        if (st == OK)
            st = add_type(v, types, id, err);
    }
    return st;
}

bool gguf_vocab_is_filler(const struct gguf_vocab *v, int32_t id)
{
    char name[32];
    if (v->types[id] != GGUF_VOCAB_USER_DEFINED && v->types[id] != GGUF_VOCAB_UNUSED)
        return false;
    const int n = snprintf(name, sizeof name, "[PAD%d]", id);
    return v->texts[id].n == (size_t)n && memcmp(v->texts[id].bytes, name, (size_t)n) == 0;
}

bool gguf_vocab_is_added(const struct gguf_vocab *v, int32_t id)
{
    const bool added =
        v->types[id] == GGUF_VOCAB_CONTROL || v->types[id] == GGUF_VOCAB_USER_DEFINED;
    return added && v->texts[id].n > 0 && !gguf_vocab_is_filler(v, id);
}

/* ---- ids ---- */

static enum status read_id(const struct gguf_vocab *v, const char *key, int32_t fallback,
                           int32_t *out, struct err *err)
{
    const struct gguf_value *value = gguf_get(v->g, key);
    int64_t id = fallback < v->count ? fallback : -1;
    if (value && (!gguf_int(value, &id) || id < 0 || id >= v->count))
        return base_fail(err, ERR_MODEL, "%s: %s: an id below %d expected", gguf_path(v->g), key,
                         v->count);
    const bool text = id >= 0 && v->texts[id].n > 0 && !gguf_vocab_is_filler(v, (int32_t)id);
    if (value && !text)
        return base_fail(err, ERR_MODEL, "%s: %s is %lld, which has no text", gguf_path(v->g), key,
                         (long long)id);
    *out = text ? (int32_t)id : -1;
    return OK;
}

static enum status read_flag(const struct gguf_vocab *v, const char *key, bool *out, bool *said,
                             struct err *err)
{
    const struct gguf_value *value = gguf_get(v->g, key);
    *said = value != NULL;
    if (value && !gguf_bool(value, out))
        return base_fail(err, ERR_MODEL, "%s: %s: a boolean expected", gguf_path(v->g), key);
    return OK;
}

static void add_end(struct gguf_vocab *v, int32_t id)
{
    bool known = id < 0 || v->end_count == GGUF_VOCAB_ENDS_MAX;
    for (int32_t i = 0; i < v->end_count; i++)
        known = known || v->ends[i] == id;
    if (!known)
        v->ends[v->end_count++] = id;
}

static int32_t find_special(const struct gguf_vocab *v, const char *name)
{
    const int32_t id = gguf_vocab_find(v, name, strlen(name));
    return id >= 0 && gguf_vocab_is_added(v, id) ? id : -1;
}

/* Most files name one end only; llama.cpp knows others by what they are called. In the harmony
 * format <|end|> ends a message of an answer, not the answer. */
static void add_known_ends(struct gguf_vocab *v)
{
    static const char *const names[] = {"<|eot_id|>",
                                        "<|im_end|>",
                                        "<|return|>",
                                        "<|call|>",
                                        "<|flush|>",
                                        "<|calls|>",
                                        "<end_of_turn>",
                                        "<|endoftext|>",
                                        "<|eom_id|>",
                                        "<EOT>",
                                        "_<EOT>",
                                        "[EOT]",
                                        "[EOS]",
                                        "<turn|>",
                                        "<|tool_response>",
                                        "<|end_of_text|>",
                                        "[e~[",
                                        "<\xef\xbd\x9c"
                                        "end\xe2\x96\x81of\xe2\x96\x81"
                                        "sentence\xef\xbd\x9c>",
                                        "<end_of_utterance>"};
    const bool parts = (find_special(v, "<|return|>") >= 0 && find_special(v, "<|call|>") >= 0) ||
                       (find_special(v, "<|calls|>") >= 0 && find_special(v, "<|flush|>") >= 0);
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        add_end(v, find_special(v, names[i]));
    if (!parts)
        add_end(v, find_special(v, "<|end|>"));
}

static enum status read_ids(struct gguf_vocab *v, const struct gguf_vocab_defaults *d,
                            struct err *err)
{
    int32_t eot = -1, eom = -1;
    bool said = false;
    enum status st = OK;
    TRY(read_id(v, KEY("bos_token_id"), d->bos, &v->bos, err));
    TRY(read_id(v, KEY("eos_token_id"), d->eos, &v->eos, err));
    TRY(read_id(v, KEY("unknown_token_id"), d->unk, &v->unk, err));
    TRY(read_id(v, KEY("padding_token_id"), -1, &v->pad, err));
    TRY(read_id(v, KEY("eot_token_id"), -1, &eot, err));
    TRY(read_id(v, KEY("eom_token_id"), -1, &eom, err));
    TRY(read_flag(v, KEY("add_bos_token"), &v->add_bos, &v->add_bos_said, err));
    TRY(read_flag(v, KEY("add_eos_token"), &v->add_eos, &said, err));
    if (v->add_bos && v->bos < 0)
        st = base_fail(err, ERR_MODEL,
                       "%s: " KEY("add_bos_token") " is true, but there is no " KEY("bos_token_id"),
                       gguf_path(v->g));
    else if (v->add_eos && v->eos < 0)
        st = base_fail(err, ERR_MODEL,
                       "%s: " KEY("add_eos_token") " is true, but there is no " KEY("eos_token_id"),
                       gguf_path(v->g));
    add_end(v, v->eos);
    add_end(v, eot);
    add_end(v, eom);
    add_known_ends(v);
out:
    return st;
}

enum status gguf_vocab_open(const struct gguf *g, const struct gguf_vocab_defaults *defaults,
                            struct gguf_vocab *out, struct err *err)
{
    struct gguf_vocab v = {.g = g};
    enum status st = OK;
    TRY(read_tokens(&v, err));
    TRY(read_ids(&v, defaults, err));
    *out = v;
out:
    if (st != OK)
        gguf_vocab_free(&v);
    return st;
}

void gguf_vocab_free(struct gguf_vocab *v)
{
    free(v->texts);
    free(v->types);
    free(v->table);
    *v = (struct gguf_vocab){0};
}
