/* DESIGN: encoding is SentencePiece's; decoding is ours, from a table made once: views into one
 * block of text in which the word mark is a space already. So a stream decodes token by token
 * without a call into C++, and without losing spaces, which SentencePiece drops from each piece
 * decoded alone. */
#include "server/tokenizer/tokenizer.h"

#include "config/buf.h"
#include "config/file.h"
#include "server/tokenizer/spm.h"
#include "server/tokenizer/spm_file.h"
#include "server/tokenizer/tokenizer_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX (64u << 20)
#define IDS_BYTES_MAX ((size_t)1 << 30)
/* Without byte pieces, SentencePiece joins runs of unknown characters in quadratic time. */
#define UNKNOWN_TEXT_BYTES_MAX (256u << 10)
#define WORD_MARK "\xe2\x96\x81" /* U+2581 */

struct tokenizer {
    struct spm *spm;
    struct token_view *views; /* [count] */
    char *text;               /* what the views point into */
    int32_t count, bos, eos;
    int32_t bytes_max; /* of the longest view */
    struct tokenizer_config config;
    int32_t *names; /* [name_count] control tokens, which a text may spell out */
    int32_t name_count;
    bool name_first[256]; /* bytes that one of them begins with */
    bool add_dummy_prefix, remove_extra_whitespaces, has_bytes;
};

/* ---- the table ---- */

/* Copies a piece with each word mark as a space; returns the bytes written. */
static int32_t copy_spaced(const char *text, int32_t len, char *to)
{
    int32_t n = 0;
    for (int32_t i = 0; i < len;) {
        if (len - i >= 3 && memcmp(text + i, WORD_MARK, 3) == 0) {
            to[n++] = ' ';
            i += 3;
        } else {
            to[n++] = text[i++];
        }
    }
    return n;
}

static struct token_view make_view(const struct spm_file *file, const struct spm_piece *piece,
                                   char *to)
{
    struct token_view v = {.kind = TOKEN_TEXT, .text = to};
    switch (piece->type) {
    case SPM_CONTROL:
        v.kind = TOKEN_HIDDEN;
        v.len = piece->len;
        memcpy(to, piece->text, (size_t)piece->len);
        break;
    case SPM_BYTE:
        v.kind = TOKEN_BYTE;
        to[0] = (char)strtol((char[]){piece->text[3], piece->text[4], '\0'}, NULL, 16);
        v.len = 1;
        break;
    case SPM_UNKNOWN:
        v.len = (int32_t)file->unk_surface_len;
        memcpy(to, file->unk_surface, file->unk_surface_len);
        break;
    case SPM_NORMAL:
    case SPM_USER_DEFINED:
    case SPM_UNUSED:
        v.len = copy_spaced(piece->text, piece->len, to);
        v.starts_word = piece->len >= 3 && memcmp(piece->text, WORD_MARK, 3) == 0;
        break;
    }
    return v;
}

static enum status make_table(struct tokenizer *t, const struct spm_file *file, struct err *err)
{
    size_t total = file->unk_surface_len + 1, names = 1;
    CHECK(file->count > 0);
    for (int32_t id = 0; id < file->count; id++) {
        total += (size_t)file->pieces[id].len;
        names += file->pieces[id].type == SPM_CONTROL;
    }
    t->views = calloc((size_t)file->count, sizeof *t->views);
    t->names = calloc(names, sizeof *t->names);
    t->text = malloc(total);
    if (!t->views || !t->names || !t->text)
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory for %d pieces", file->count);
    char *to = t->text;
    for (int32_t id = 0; id < file->count; id++) {
        t->views[id] = make_view(file, &file->pieces[id], to);
        to += t->views[id].len;
        if (t->views[id].len > t->bytes_max)
            t->bytes_max = t->views[id].len;
        t->has_bytes = t->has_bytes || t->views[id].kind == TOKEN_BYTE;
        if (t->views[id].kind == TOKEN_HIDDEN) {
            t->names[t->name_count++] = id;
            t->name_first[(unsigned char)t->views[id].text[0]] = true;
        }
    }
    t->count = file->count;
    return OK;
}

/* ---- opening ---- */

/* Bytes of the files of a model; NULL: there is no such file. */
struct parts {
    const char *model, *config, *chat_template;
    size_t model_n, config_n;
};

static const char *name_of(const struct tokenizer *t, int32_t id, char *text, size_t cap)
{
    struct token_view v = tokenizer_view(t, id);
    snprintf(text, cap, "%.*s", (int)v.len, v.text);
    return v.len > 0 ? text : NULL;
}

static enum status read_config(struct tokenizer *t, const struct parts *p, struct err *err)
{
    char bos[SPM_FILE_PIECE_BYTES_MAX + 1], eos[SPM_FILE_PIECE_BYTES_MAX + 1];
    const struct tokenizer_config_more more = {
        .bos = name_of(t, t->bos, bos, sizeof bos),
        .eos = name_of(t, t->eos, eos, sizeof eos),
        .chat_template = p->chat_template,
    };
    return tokenizer_config_parse(p->config, p->config_n, &more, &t->config, err);
}

static enum status open_parts(const struct parts *p, int32_t vocab, const char *where,
                              struct tokenizer **out, struct err *err)
{
    enum status st = OK;
    struct spm_file file = {0};
    char text[256];
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory");
    TRY(spm_file_parse(p->model, p->model_n, where, &file, err));
    if (file.count > vocab) {
        st = base_fail(err, ERR_MODEL, "%s: %d pieces, but the model has only %d token ids", where,
                       file.count, vocab);
        goto out;
    }
    if (spm_open(p->model, p->model_n, &t->spm, text, sizeof text) != 0) {
        st = base_fail(err, ERR_MODEL, "%s: %s", where, text);
        goto out;
    }
    if (spm_count(t->spm) != file.count) {
        st = base_fail(err, ERR_MODEL, "%s: SentencePiece sees %d pieces, we see %d", where,
                       spm_count(t->spm), file.count);
        goto out;
    }
    TRY(make_table(t, &file, err));
    t->bos = file.bos;
    t->eos = file.eos;
    t->add_dummy_prefix = file.add_dummy_prefix;
    t->remove_extra_whitespaces = file.remove_extra_whitespaces;
    TRY(read_config(t, p, err));
    *out = t;
    t = NULL;
out:
    tokenizer_close(t);
    spm_file_free(&file);
    return st;
}

enum status tokenizer_open_bytes(const void *model, size_t n, const char *config, size_t config_n,
                                 int32_t vocab, const char *where, struct tokenizer **out,
                                 struct err *err)
{
    const struct parts p = {.model = model, .model_n = n, .config = config, .config_n = config_n};
    return open_parts(&p, vocab, where, out, err);
}

enum status tokenizer_open(const char *model_dir, int32_t vocab, struct tokenizer **out,
                           struct err *err)
{
    static const char *const names[] = {"tokenizer_config.json", "chat_template.jinja",
                                        "tokenizer.model"};
    enum status st = OK;
    char path[4096], *bytes[ARRAY_LEN(names)] = {NULL};
    size_t n[ARRAY_LEN(names)] = {0};
    struct tokenizer *t = NULL;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (snprintf(path, sizeof path, "%s/%s", model_dir, names[i]) >= (int)sizeof path) {
            st = base_fail(err, ERR_MODEL, "%.100s...: path too long", model_dir);
            goto out;
        }
        const struct file_spec f = {
            .path = path, .bytes_max = FILE_BYTES_MAX, .failure = ERR_MODEL, .optional = true};
        TRY(file_read(&f, &bytes[i], &n[i], err));
    }
    const struct parts p = {bytes[2], bytes[0], bytes[1], n[2], n[0]};
    if (p.model)
        TRY(open_parts(&p, vocab, path, &t, err));
    *out = t;
out:
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        free(bytes[i]);
    return st;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    spm_close(t->spm);
    free(t->config.info);
    free(t->names);
    free(t->views);
    free(t->text);
    free(t);
}

/* ---- use ---- */

static enum status add_text(const struct tokenizer *t, const char *text, size_t n, struct buf *out,
                            struct err *err)
{
    char message[200];
    int32_t *ids = NULL, count = 0;
    if (n == 0)
        return OK;
    if (spm_encode(t->spm, text, n, &ids, &count, message, sizeof message) != 0)
        return base_fail(err, ERR_NOMEM, "tokenizer: %s", message);
    buf_add(out, ids, (size_t)count * sizeof *ids);
    free(ids);
    return OK;
}

/* The control token whose name the text begins with, the longest if several do; -1: none. */
static int32_t named_at(const struct tokenizer *t, const char *text, size_t n)
{
    int32_t found = -1, longest = 0;
    if (!t->name_first[(unsigned char)text[0]])
        return -1;
    for (int32_t i = 0; i < t->name_count; i++) {
        const struct token_view *v = &t->views[t->names[i]];
        if (v->len > longest && (size_t)v->len <= n && memcmp(v->text, text, (size_t)v->len) == 0) {
            found = t->names[i];
            longest = v->len;
        }
    }
    return found;
}

static enum status add_named_text(const struct tokenizer *t, const char *text, size_t n,
                                  struct buf *out, struct err *err)
{
    enum status st = OK;
    size_t start = 0;
    for (size_t i = 0; i < n && st == OK;) {
        int32_t id = named_at(t, text + i, n - i);
        if (id < 0) {
            i++;
            continue;
        }
        st = add_text(t, text + start, i - start, out, err);
        buf_add(out, &id, sizeof id);
        start = i += (size_t)t->views[id].len;
    }
    return st == OK ? add_text(t, text + start, n - start, out, err) : st;
}

static enum status encode(const struct tokenizer *t, const char *text, size_t n, bool special,
                          bool named, int32_t **ids, int32_t *count, struct err *err)
{
    struct buf all;
    size_t bytes;
    enum status st = OK;
    if (!t->has_bytes && n > UNKNOWN_TEXT_BYTES_MAX)
        return base_fail(err, ERR_INPUT, "a text of %zu bytes: this tokenizer takes at most %u", n,
                         UNKNOWN_TEXT_BYTES_MAX);
    buf_init(&all, IDS_BYTES_MAX);
    if (special && t->config.add_bos && t->bos >= 0)
        buf_add(&all, &t->bos, sizeof t->bos);
    TRY(named ? add_named_text(t, text, n, &all, err) : add_text(t, text, n, &all, err));
    if (special && t->config.add_eos && t->eos >= 0)
        buf_add(&all, &t->eos, sizeof t->eos);
    int32_t *found = (int32_t *)(void *)buf_take(&all, &bytes);
    if (!found) {
        st = base_fail(err, ERR_NOMEM, "tokenizer: no memory for the ids of %zu bytes", n);
        goto out;
    }
    *ids = found;
    *count = (int32_t)(bytes / sizeof *found);
out:
    buf_free(&all);
    return st;
}

enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, bool special,
                             int32_t **ids, int32_t *count, struct err *err)
{
    int32_t *found = NULL, found_count = 0;
    enum status st = encode(t, text, n, special, false, &found, &found_count, err);
    if (st != OK)
        return st;
    if (found_count == 0) {
        free(found);
        return base_fail(err, ERR_INPUT, "the text has no tokens");
    }
    *ids = found;
    *count = found_count;
    return OK;
}

enum status tokenizer_encode_named(const struct tokenizer *t, const char *text, size_t n,
                                   bool special, int32_t **ids, int32_t *count, struct err *err)
{
    return encode(t, text, n, special, true, ids, count, err);
}

size_t tokenizer_tokens_min(const struct tokenizer *t, size_t n)
{
    /* where runs of spaces become one, text of any length can be few tokens */
    return t->remove_extra_whitespaces ? 0 : n / ((size_t)t->bytes_max + 1);
}

struct token_view tokenizer_view(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->count ? t->views[id]
                                    : (struct token_view){TOKEN_HIDDEN, "", 0, false};
}

const char *tokenizer_info(const struct tokenizer *t)
{
    return t->config.info;
}

int32_t tokenizer_count(const struct tokenizer *t)
{
    return t->count;
}

bool tokenizer_drops_first_space(const struct tokenizer *t)
{
    return t->add_dummy_prefix || t->remove_extra_whitespaces;
}

bool tokenizer_drops_all_first_spaces(const struct tokenizer *t)
{
    return t->remove_extra_whitespaces;
}
