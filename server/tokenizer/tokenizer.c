/* DESIGN: encoding is SentencePiece's; decoding is ours, from a table made once: views into one
 * block of text in which the word mark is a space already. So a stream decodes token by token
 * without a call into C++, and without losing spaces, which SentencePiece drops from each piece
 * decoded alone. */
#include "server/tokenizer/tokenizer.h"

#include "config/jdoc.h"
#include "server/tokenizer/spm.h"
#include "server/tokenizer/spm_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX (64u << 20)
/* Without byte pieces, SentencePiece joins runs of unknown characters in quadratic time. */
#define UNKNOWN_TEXT_BYTES_MAX (256u << 10)
#define WORD_MARK "\xe2\x96\x81" /* U+2581 */

struct tokenizer {
    struct spm *spm;
    struct token_view *views; /* [count] */
    char *text;               /* what the views point into */
    int32_t count, bos, eos;
    int32_t bytes_max; /* of the longest view */
    bool add_bos, add_eos;
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
    size_t total = file->unk_surface_len + 1;
    for (int32_t id = 0; id < file->count; id++)
        total += (size_t)file->pieces[id].len;
    t->views = calloc((size_t)file->count, sizeof *t->views);
    t->text = malloc(total);
    if (!t->views || !t->text)
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory for %d pieces", file->count);
    char *to = t->text;
    for (int32_t id = 0; id < file->count; id++) {
        t->views[id] = make_view(file, &file->pieces[id], to);
        to += t->views[id].len;
        if (t->views[id].len > t->bytes_max)
            t->bytes_max = t->views[id].len;
        t->has_bytes = t->has_bytes || t->views[id].kind == TOKEN_BYTE;
    }
    t->count = file->count;
    return OK;
}

/* ---- opening ---- */

static enum status read_flag(const struct jdoc *doc, const char *key, bool *out, struct err *err)
{
    const struct jdoc *v = jdoc_get_value(doc, key);
    if (v && jdoc_type(v) != JDOC_BOOL)
        return base_fail(err, ERR_MODEL, "tokenizer_config.json: %s: expected a boolean", key);
    if (v)
        *out = jdoc_bool(v);
    return OK;
}

static enum status read_config(struct tokenizer *t, const char *config, size_t n, struct err *err)
{
    struct jdoc *doc = NULL;
    enum status st = OK;
    if (!config)
        return OK;
    TRY(jdoc_parse(config, n, &jdoc_limits_file, "tokenizer_config.json", &doc, err));
    if (jdoc_type(doc) != JDOC_OBJECT) {
        st = base_fail(err, ERR_MODEL, "tokenizer_config.json: expected a JSON object");
        goto out;
    }
    TRY(read_flag(doc, "add_bos_token", &t->add_bos, err));
    TRY(read_flag(doc, "add_eos_token", &t->add_eos, err));
out:
    jdoc_close(doc);
    return st == ERR_INPUT ? ERR_MODEL : st;
}

enum status tokenizer_open_bytes(const void *model, size_t n, const char *config, size_t config_n,
                                 int32_t vocab, const char *where, struct tokenizer **out,
                                 struct err *err)
{
    enum status st = OK;
    struct spm_file file = {0};
    char text[256];
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory");
    TRY(spm_file_parse(model, n, where, &file, err));
    if (file.count > vocab) {
        st = base_fail(err, ERR_MODEL, "%s: %d pieces, but the model has only %d token ids", where,
                       file.count, vocab);
        goto out;
    }
    if (spm_open(model, n, &t->spm, text, sizeof text) != 0) {
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
    t->add_bos = true;
    t->add_dummy_prefix = file.add_dummy_prefix;
    t->remove_extra_whitespaces = file.remove_extra_whitespaces;
    TRY(read_config(t, config, config_n, err));
    *out = t;
    t = NULL;
out:
    tokenizer_close(t);
    spm_file_free(&file);
    return st;
}

/* OK with *bytes = NULL when there is no such file. */
static enum status read_file(const char *path, char **bytes, size_t *n, struct err *err)
{
    enum status st = OK;
    FILE *f = fopen(path, "re");
    if (!f)
        return errno == ENOENT ? OK : base_fail_errno(err, ERR_MODEL, "%s", path);
    long size = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    char *text = size >= 0 && (size_t)size <= FILE_BYTES_MAX ? malloc((size_t)size + 1) : NULL;
    if (!text) {
        st = base_fail(err, ERR_MODEL, "%s: not a regular file of at most %u bytes", path,
                       FILE_BYTES_MAX);
    } else if (fseek(f, 0, SEEK_SET) != 0 || fread(text, 1, (size_t)size, f) != (size_t)size) {
        st = base_fail(err, ERR_IO, "%s: cannot be read", path);
    } else {
        *bytes = text;
        *n = (size_t)size;
        text = NULL;
    }
    free(text);
    fclose(f);
    return st;
}

enum status tokenizer_open(const char *model_dir, int32_t vocab, struct tokenizer **out,
                           struct err *err)
{
    enum status st = OK;
    char path[4096], *model = NULL, *config = NULL;
    size_t n = 0, config_n = 0;
    struct tokenizer *t = NULL;
    if (snprintf(path, sizeof path, "%s/tokenizer_config.json", model_dir) >= (int)sizeof path)
        return base_fail(err, ERR_MODEL, "%.100s...: path too long", model_dir);
    TRY(read_file(path, &config, &config_n, err));
    snprintf(path, sizeof path, "%s/tokenizer.model", model_dir);
    TRY(read_file(path, &model, &n, err));
    if (model)
        TRY(tokenizer_open_bytes(model, n, config, config_n, vocab, path, &t, err));
    *out = t;
out:
    free(model);
    free(config);
    return st;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    spm_close(t->spm);
    free(t->views);
    free(t->text);
    free(t);
}

/* ---- use ---- */

enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, bool special,
                             int32_t **ids, int32_t *count, struct err *err)
{
    char message[200];
    int32_t *found = NULL, found_count = 0, all_count = 0;
    if (!t->has_bytes && n > UNKNOWN_TEXT_BYTES_MAX)
        return base_fail(err, ERR_INPUT, "a text of %zu bytes: this tokenizer takes at most %u", n,
                         UNKNOWN_TEXT_BYTES_MAX);
    if (spm_encode(t->spm, text, n, &found, &found_count, message, sizeof message) != 0)
        return base_fail(err, ERR_NOMEM, "tokenizer: %s", message);
    int32_t *all = malloc(((size_t)found_count + 2) * sizeof *all);
    if (!all) {
        free(found);
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory for %d ids", found_count);
    }
    if (special && t->add_bos && t->bos >= 0)
        all[all_count++] = t->bos;
    if (found_count > 0)
        memcpy(all + all_count, found, (size_t)found_count * sizeof *all);
    all_count += found_count;
    if (special && t->add_eos && t->eos >= 0)
        all[all_count++] = t->eos;
    free(found);
    if (all_count == 0) {
        free(all);
        return base_fail(err, ERR_INPUT, "the text has no tokens");
    }
    *ids = all;
    *count = all_count;
    return OK;
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
