/* DESIGN: two kinds of files, one tokenizer. Encoding is SentencePiece's (spm.h), or that of a
 * tokenizer.json (hf.h); decoding is ours, from a table made once: views into one block of text in
 * which the word mark is a space already. So a stream decodes token by token without a call into
 * C++, and without losing spaces, which SentencePiece drops from each piece decoded alone.
 *
 * SentencePiece finds pieces that a user has defined wherever they are spelt out, and knows nothing
 * of who has written a text. So those that may mark turns are control tokens to it, and found here,
 * where that is allowed; the text between two is encoded by itself. Where a model begins every text
 * with a word mark, or drops spaces, ids would then differ from SentencePiece's own: there it sees
 * such pieces itself, in all texts but those in which a message has spelt one out. */
#include "server/tokenizer/tokenizer.h"

#include "config/buf.h"
#include "config/file.h"
#include "server/tokenizer/hf.h"
#include "server/tokenizer/names.h"
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

/* Ids around every text. */
struct fringe {
    int32_t ids[HF_FILE_TEMPLATE_MAX];
    int32_t count;
};

struct tokenizer {
    struct spm *spm;                /* of a tokenizer.model, or */
    struct hf *hf;                  /* of a tokenizer.json */
    const struct token_view *views; /* [count] */
    int32_t count;
    int32_t bytes_max; /* of the longest piece; 0: any text can be few tokens */
    struct fringe before, after;
    struct tokenizer_config config;
    bool drops_first_space, drops_all_first_spaces;
    /* of a tokenizer.model: */
    struct token_view *own_views;
    char *text;                /* what they point into */
    struct names *names;       /* control tokens and marks, which a text may spell out */
    struct names *spelt_names; /* the same where it counts who has: marks are control tokens */
    struct {                   /* SentencePiece with the marks as they are, and what is left */
        struct spm *spm;       /* to be found here; NULL: they can be cut out of any text */
        struct names *names;
    } marked;
    bool has_bytes;
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
    size_t total = file->unk_surface_len + 1;
    int32_t longest = 0;
    CHECK(file->count > 0);
    for (int32_t id = 0; id < file->count; id++) {
        total += (size_t)file->pieces[id].len;
        longest = file->pieces[id].len > longest ? file->pieces[id].len : longest;
    }
    t->own_views = calloc((size_t)file->count, sizeof *t->own_views);
    t->text = malloc(total);
    if (!t->own_views || !t->text)
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory for %d pieces", file->count);
    char *to = t->text;
    for (int32_t id = 0; id < file->count; id++) {
        t->own_views[id] = make_view(file, &file->pieces[id], to);
        to += t->own_views[id].len;
        t->has_bytes = t->has_bytes || t->own_views[id].kind == TOKEN_BYTE;
    }
    t->views = t->own_views;
    t->count = file->count;
    /* where runs of spaces become one, text of any length can be few tokens */
    t->bytes_max = file->remove_extra_whitespaces ? 0 : longest;
    return OK;
}

/* Has the user defined it, without a word mark, which is no text? */
static bool is_name(const struct tokenizer *t, const struct spm_file *file, int32_t id)
{
    const struct spm_piece *piece = &file->pieces[id];
    return piece->type == SPM_USER_DEFINED && piece->len == t->views[id].len;
}

/* As a tokenizer.json would have them. */
static void hide_specials(struct tokenizer *t, const struct spm_file *file)
{
    for (int32_t i = 0; i < t->config.special_count; i++) {
        const int32_t id = t->config.special_ids[i];
        if (id < t->count && is_name(t, file, id))
            t->own_views[id].kind = TOKEN_HIDDEN;
    }
}

static enum status open_spelt(struct tokenizer *t, const struct name *list, int32_t count,
                              struct err *err)
{
    struct name *controls = calloc((size_t)count + 1, sizeof *controls);
    if (!controls)
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory for %d names", count);
    for (int32_t i = 0; i < count; i++) {
        controls[i] = list[i];
        controls[i].control = true;
    }
    const enum status st = names_open(controls, count, &t->spelt_names, err);
    free(controls);
    return st;
}

/* bytes, marked: copies of the file, for SentencePiece; the second with its marks. */
static enum status open_names(struct tokenizer *t, const struct spm_file *file, char *bytes,
                              char *marked, struct err *err)
{
    int32_t count = 0;
    struct name *list = calloc((size_t)t->count, sizeof *list);
    if (!list)
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory for %d names", t->count);
    for (int32_t id = 0; id < t->count; id++) {
        const struct token_view v = t->views[id];
        const bool control = v.kind == TOKEN_HIDDEN;
        if (!control && !(is_name(t, file, id) && names_is_mark(v.text, v.len)))
            continue;
        if (file->pieces[id].type == SPM_USER_DEFINED)
            spm_file_make_control(&file->pieces[id], bytes);
        if (file->pieces[id].type == SPM_USER_DEFINED && control)
            spm_file_make_control(&file->pieces[id], marked);
        list[count++] = (struct name){v.text, v.len, id, .control = control};
    }
    enum status st = names_open(list, count, &t->names, err);
    if (st == OK)
        st = open_spelt(t, list, count, err);
    int32_t controls = 0;
    for (int32_t i = 0; i < count; i++) {
        if (list[i].control)
            list[controls++] = list[i];
    }
    if (st == OK && controls < count && (file->add_dummy_prefix || file->remove_extra_whitespaces))
        st = names_open(list, controls, &t->marked.names, err);
    free(list);
    return st;
}

/* ---- opening ---- */

static const char *name_of(const struct tokenizer *t, int32_t id, char *text, size_t cap)
{
    struct token_view v = tokenizer_view(t, id);
    snprintf(text, cap, "%.*s", (int)v.len, v.text);
    return v.len > 0 ? text : NULL;
}

static enum status read_config(struct tokenizer *t, const struct tokenizer_bytes *p, int32_t bos,
                               int32_t eos, const char *class, struct err *err)
{
    char bos_name[SPM_FILE_PIECE_BYTES_MAX + 1], eos_name[SPM_FILE_PIECE_BYTES_MAX + 1];
    const struct tokenizer_config_more more = {
        .bos = name_of(t, bos, bos_name, sizeof bos_name),
        .eos = name_of(t, eos, eos_name, sizeof eos_name),
        .class = class,
        .chat_template = p->chat_template,
        .chat_json = p->chat_json,
        .chat_json_n = p->chat_json_n,
    };
    return tokenizer_config_parse(p->config, p->config_n, &more, &t->config, err);
}

static enum status load_spm(struct tokenizer *t, const struct tokenizer_bytes *p,
                            const struct spm_file *file, struct err *err)
{
    char text[256], *bytes = malloc(2 * p->model_n), *marked = bytes ? bytes + p->model_n : NULL;
    enum status st = OK;
    if (!bytes)
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory for %zu bytes", p->model_n);
    memcpy(bytes, p->model, p->model_n);
    memcpy(marked, p->model, p->model_n);
    TRY(open_names(t, file, bytes, marked, err));
    if (spm_open(bytes, p->model_n, &t->spm, text, sizeof text) != 0)
        st = base_fail(err, ERR_MODEL, "%s: %s", p->where, text);
    else if (spm_count(t->spm) != file->count)
        st = base_fail(err, ERR_MODEL, "%s: SentencePiece sees %d pieces, we see %d", p->where,
                       spm_count(t->spm), file->count);
    else if (t->marked.names &&
             spm_open(marked, p->model_n, &t->marked.spm, text, sizeof text) != 0)
        st = base_fail(err, ERR_MODEL, "%s: %s", p->where, text);
out:
    free(bytes);
    return st;
}

static enum status open_spm(struct tokenizer *t, const struct tokenizer_bytes *p,
                            const struct spm_file *file, int32_t vocab, struct err *err)
{
    enum status st = OK;
    if (file->count > vocab)
        return base_fail(err, ERR_MODEL, "%s: %d pieces, but the model has only %d token ids",
                         p->where, file->count, vocab);
    TRY(make_table(t, file, err));
    TRY(read_config(t, p, file->bos, file->eos, "LlamaTokenizer", err));
    hide_specials(t, file);
    TRY(load_spm(t, p, file, err));
    t->drops_first_space = file->add_dummy_prefix || file->remove_extra_whitespaces;
    t->drops_all_first_spaces = file->remove_extra_whitespaces;
    if (t->config.bos.add && file->bos >= 0)
        t->before = (struct fringe){{file->bos}, 1};
    if (t->config.eos.add && file->eos >= 0)
        t->after = (struct fringe){{file->eos}, 1};
out:
    return st;
}

/* The file's template, unless tokenizer_config.json says otherwise. */
static struct fringe fringe_of(const struct tokenizer *t, const int32_t *ids, int32_t count,
                               const struct tokenizer_config_end *end)
{
    struct fringe f = {.count = count};
    memcpy(f.ids, ids, sizeof f.ids);
    if (end->said && !end->add)
        f.count = 0;
    int32_t id = end->said && end->add && end->name ? hf_find(t->hf, end->name) : -1;
    if (f.count == 0 && id >= 0)
        f = (struct fringe){{id}, 1};
    return f;
}

static enum status open_hf(struct tokenizer *t, const struct tokenizer_bytes *p, int32_t vocab,
                           struct err *err)
{
    enum status st = hf_open(p->json, p->json_n, p->where, vocab, &t->hf, err);
    if (st != OK)
        return st;
    const struct hf_file *file = hf_about(t->hf);
    t->views = file->views;
    t->count = file->count;
    t->bytes_max = hf_bytes_max(t->hf);
    t->drops_first_space = file->steps.drops_space;
    st = read_config(t, p, file->before_count ? file->before[0] : -1,
                     file->after_count ? file->after[0] : -1, "PreTrainedTokenizerFast", err);
    if (st != OK)
        return st;
    t->before = fringe_of(t, file->before, file->before_count, &t->config.bos);
    t->after = fringe_of(t, file->after, file->after_count, &t->config.eos);
    return OK;
}

enum status tokenizer_open_bytes(const struct tokenizer_bytes *p, int32_t vocab,
                                 struct tokenizer **out, struct err *err)
{
    enum status st = OK;
    struct spm_file file = {0};
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory");
    if (p->model) {
        TRY(spm_file_parse(p->model, p->model_n, p->where, &file, err));
        TRY(open_spm(t, p, &file, vocab, err));
    } else {
        TRY(open_hf(t, p, vocab, err));
    }
    *out = t;
    t = NULL;
out:
    tokenizer_close(t);
    spm_file_free(&file);
    return st;
}

enum status tokenizer_open(const char *model_dir, int32_t vocab, struct tokenizer **out,
                           struct err *err)
{
    enum { CONFIG, TEMPLATE, CHAT_JSON, MODEL, JSON, COUNT };
    static const char *const names[] = {"tokenizer_config.json", "chat_template.jinja",
                                        "chat_template.json", "tokenizer.model", "tokenizer.json"};
    enum status st = OK;
    char path[COUNT][4096], *bytes[COUNT] = {NULL};
    size_t n[COUNT] = {0};
    struct tokenizer *t = NULL;
    for (int i = 0; i < COUNT && !(i == JSON && bytes[MODEL]); i++) {
        if (snprintf(path[i], sizeof path[i], "%s/%s", model_dir, names[i]) >=
            (int)sizeof path[i]) {
            st = base_fail(err, ERR_MODEL, "%.100s...: path too long", model_dir);
            goto out;
        }
        const struct file_spec f = {
            .path = path[i], .bytes_max = FILE_BYTES_MAX, .failure = ERR_MODEL, .optional = true};
        TRY(file_read(&f, &bytes[i], &n[i], err));
    }
    const struct tokenizer_bytes b = {.model = bytes[MODEL],
                                      .model_n = n[MODEL],
                                      .json = bytes[JSON],
                                      .json_n = n[JSON],
                                      .config = bytes[CONFIG],
                                      .config_n = n[CONFIG],
                                      .chat_template = bytes[TEMPLATE],
                                      .chat_json = bytes[CHAT_JSON],
                                      .chat_json_n = n[CHAT_JSON],
                                      .where = path[bytes[MODEL] ? MODEL : JSON]};
    if (b.model || b.json)
        TRY(tokenizer_open_bytes(&b, vocab, &t, err));
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
    spm_close(t->marked.spm);
    names_close(t->marked.names);
    hf_close(t->hf);
    names_close(t->names);
    names_close(t->spelt_names);
    tokenizer_config_free(&t->config);
    free(t->own_views);
    free(t->text);
    free(t);
}

/* ---- use ---- */

/* A text that SentencePiece makes ids of. */
struct spm_text {
    const struct spm *spm;
    struct buf *ids;
};

static enum status add_text(void *ctx, const char *text, size_t n, bool first, struct err *err)
{
    const struct spm_text *s = ctx;
    char message[200];
    int32_t *ids = NULL, count = 0;
    (void)first;
    if (spm_encode(s->spm, text, n, &ids, &count, message, sizeof message) != 0)
        return base_fail(err, ERR_NOMEM, "tokenizer: %s", message);
    buf_add(s->ids, ids, (size_t)count * sizeof *ids);
    free(ids);
    return OK;
}

static enum status add_token(void *ctx, int32_t id, struct err *err)
{
    const struct spm_text *s = ctx;
    (void)err;
    buf_add(s->ids, &id, sizeof id);
    return OK;
}

static enum status note_text(void *ctx, const char *text, size_t n, bool first, struct err *err)
{
    uint64_t *seen = ctx;
    (void)text, (void)first, (void)err;
    *seen = base_hash(*seen, &n, sizeof n);
    return OK;
}

static enum status note_token(void *ctx, int32_t id, struct err *err)
{
    uint64_t *seen = ctx;
    (void)err;
    *seen = base_hash(*seen, &id, sizeof id);
    return OK;
}

/* Is a mark spelt out where it is not allowed? Then a text is not cut as it would be if it were. */
static enum status find_forged(const struct tokenizer *t, const char *text, size_t n,
                               struct names_allow allow, bool *forged, struct err *err)
{
    enum status st = OK;
    uint64_t seen[2] = {BASE_HASH_INIT, BASE_HASH_INIT};
    for (int anywhere = 0; anywhere < 2; anywhere++) {
        const struct names_sink sink = {note_text, note_token, &seen[anywhere]};
        const struct names_allow where = {allow.control, anywhere ? NULL : allow.foreign};
        TRY(names_cut(t->spelt_names, text, n, where, true, &sink, err));
    }
    *forged = seen[0] != seen[1];
out:
    return st;
}

static enum status encode_spm(const struct tokenizer *t, const char *text, size_t n,
                              struct names_allow allow, struct buf *ids, struct err *err)
{
    enum status st = OK;
    bool forged = false;
    struct spm_text s = {t->spm, ids};
    const struct names_sink sink = {.text = add_text, .token = add_token, .ctx = &s};
    const struct names *names = allow.foreign ? t->spelt_names : t->names;
    if (!t->has_bytes && n > UNKNOWN_TEXT_BYTES_MAX)
        return base_fail(err, ERR_INPUT, "a text of %zu bytes: this tokenizer takes at most %u", n,
                         UNKNOWN_TEXT_BYTES_MAX);
    if (t->marked.spm && allow.foreign)
        TRY(find_forged(t, text, n, allow, &forged, err));
    if (t->marked.spm && !forged) {
        s.spm = t->marked.spm;
        names = t->marked.names;
    }
    TRY(names_cut(names, text, n, allow, true, &sink, err));
out:
    return st;
}

int32_t tokenizer_added_behind(const struct tokenizer *t)
{
    return t->after.count;
}

static void add_fringe(const struct fringe *f, struct buf *ids)
{
    buf_add(ids, f->ids, (size_t)f->count * sizeof *f->ids);
}

static enum status encode(const struct tokenizer *t, const char *text, size_t n, bool special,
                          struct names_allow allow, int32_t **ids, int32_t *count, struct err *err)
{
    struct buf all;
    size_t bytes;
    enum status st = OK;
    buf_init(&all, IDS_BYTES_MAX);
    if (special)
        add_fringe(&t->before, &all);
    TRY((t->hf ? hf_encode(t->hf, text, n, allow, &all, err)
               : encode_spm(t, text, n, allow, &all, err)));
    if (special)
        add_fringe(&t->after, &all);
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
    enum status st = encode(t, text, n, special, (struct names_allow){.control = false}, &found,
                            &found_count, err);
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
    return encode(t, text, n, special, (struct names_allow){.control = true}, ids, count, err);
}

enum status tokenizer_encode_marked(const struct tokenizer *t, const struct tokenizer_text *text,
                                    bool special, int32_t **ids, int32_t *count, struct err *err)
{
    const struct names_allow allow = {.control = true, .foreign = text->foreign};
    return encode(t, text->bytes, text->n, special, allow, ids, count, err);
}

size_t tokenizer_tokens_min(const struct tokenizer *t, size_t n)
{
    return t->bytes_max > 0 ? n / ((size_t)t->bytes_max + 1) : 0;
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
    return t->drops_first_space;
}

bool tokenizer_drops_all_first_spaces(const struct tokenizer *t)
{
    return t->drops_all_first_spaces;
}

bool tokenizer_is_byte_level(const struct tokenizer *t)
{
    return t->hf && hf_about(t->hf)->steps.byte_level;
}

const char *tokenizer_kind(const struct tokenizer *t)
{
    return t->hf ? "tokenizer.json" : "tokenizer.model";
}
