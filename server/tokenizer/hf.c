/* DESIGN: a text goes through five stages, each of which hands what it leaves as text to the next:
 * names in the text, normalizers, names in what they made, pre-tokenizers, byte pairs. */
#include "server/tokenizer/hf.h"

#include "config/utf8.h"

#include <stdlib.h>
#include <string.h>

#define SPACE_MARK "\xe2\x96\x81" /* U+2581 */

struct hf {
    struct hf_file file;
    struct names *names, *normalized_names;
    struct names *spelt_names;  /* names, and control tokens of the others as they are spelt */
    struct buf normalized_text; /* what the latter point into */
    struct buf shown_text;      /* as these names read */
    int32_t bytes_max;
};

struct encoder {
    const struct hf *hf;
    bool named;
    struct regex_work *regex;
    struct textstep_work normalizer, pieces;
    struct bpe_work bpe;
    struct buf *ids;
};

/* ---- encoding: the last stage first ---- */

static enum status encode_piece(void *ctx, const char *text, size_t n, bool first, struct err *err)
{
    struct encoder *e = ctx;
    (void)first;
    return bpe_encode(e->hf->file.bpe, &e->bpe, text, n, e->ids, err);
}

static enum status cut_pieces(void *ctx, const char *text, size_t n, bool first, struct err *err)
{
    struct encoder *e = ctx;
    return textstep_run(&e->hf->file.steps.pieces, &e->pieces, text, n, first, encode_piece, e,
                        err);
}

static enum status add_token(void *ctx, int32_t id, struct err *err)
{
    struct encoder *e = ctx;
    (void)err;
    buf_add(e->ids, &id, sizeof id);
    return OK;
}

static enum status cut_normalized(void *ctx, const char *text, size_t n, bool first,
                                  struct err *err)
{
    struct encoder *e = ctx;
    const struct names_sink sink = {.text = cut_pieces, .token = add_token, .ctx = e};
    const struct names_allow allow = {.control = e->named};
    return names_cut(e->hf->normalized_names, text, n, allow, first, &sink, err);
}

static enum status normalize(void *ctx, const char *text, size_t n, bool first, struct err *err)
{
    struct encoder *e = ctx;
    return textstep_run(&e->hf->file.steps.normalizer, &e->normalizer, text, n, first,
                        cut_normalized, e, err);
}

/* What comes from whom is known of the text as it is, not of what normalizers make of it: where
 * that counts, all control tokens are looked for before them. In the few files that have them
 * after, the text behind such a token then begins as one of its own does. */
enum status hf_encode(const struct hf *h, const char *text, size_t n, struct names_allow allow,
                      struct buf *ids, struct err *err)
{
    struct encoder e = {.hf = h, .named = allow.control && !allow.foreign, .ids = ids};
    const struct names_sink sink = {.text = normalize, .token = add_token, .ctx = &e};
    if (!utf8_is_valid(text, n))
        return base_fail(err, ERR_INPUT, "the text is not UTF-8");
    enum status st = regex_work_open(&e.regex, err);
    if (st != OK)
        return st;
    textstep_work_init(&e.normalizer, e.regex);
    textstep_work_init(&e.pieces, e.regex);
    st = names_cut(allow.foreign ? h->spelt_names : h->names, text, n, allow, true, &sink, err);
    textstep_work_free(&e.normalizer);
    textstep_work_free(&e.pieces);
    bpe_work_free(&e.bpe);
    regex_work_close(e.regex);
    return st;
}

/* ---- opening ---- */

static enum status collect(void *ctx, const char *text, size_t n, bool first, struct err *err)
{
    (void)first;
    (void)err;
    buf_add(ctx, text, n);
    return OK;
}

/* A name as the normalizers leave it. Its text is an offset until the last one is there. */
static enum status normalize_name(struct hf *h, struct textstep_work *w, struct name *name,
                                  struct err *err)
{
    const size_t begin = h->normalized_text.len;
    enum status st = textstep_run(&h->file.steps.normalizer, w, name->text, (size_t)name->len, true,
                                  collect, &h->normalized_text, err);
    if (st == OK && h->normalized_text.failed)
        st = base_fail(err, ERR_NOMEM, "tokenizer: no memory for its names");
    name->len = (int32_t)(h->normalized_text.len - begin);
    return st;
}

static void show(struct hf *h, const struct name *name, struct buf *out)
{
    for (int32_t i = 0; i < name->len;) {
        bool mark = h->file.steps.space_marks && name->len - i >= 3 &&
                    memcmp(name->text + i, SPACE_MARK, 3) == 0;
        buf_add(out, mark ? " " : name->text + i, 1);
        i += mark ? 3 : 1;
    }
}

/* A name that takes a mark of the normalizers with it reads as both. Control tokens keep theirs. */
static enum status show_normalized(struct hf *h, const struct name *list, int32_t count,
                                   struct err *err)
{
    for (int32_t i = 0; i < count; i++) {
        const size_t begin = h->shown_text.len;
        if (list[i].control)
            continue;
        show(h, &list[i], &h->shown_text);
        h->file.views[list[i].id].len = (int32_t)(h->shown_text.len - begin);
    }
    if (h->shown_text.failed)
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory for its names");
    size_t begin = 0;
    for (int32_t i = 0; i < count; i++) {
        struct token_view *v = &h->file.views[list[i].id];
        if (list[i].control || v->len == 0)
            continue;
        v->text = h->shown_text.data + begin;
        v->starts_word = v->text[0] == ' ';
        begin += (size_t)v->len;
    }
    return OK;
}

static enum status open_normalized(struct hf *h, struct name *list, int32_t count, struct err *err)
{
    struct regex_work *regex = NULL;
    struct textstep_work work;
    enum status st = regex_work_open(&regex, err);
    if (st != OK)
        return st;
    textstep_work_init(&work, regex);
    for (int32_t i = 0; i < count && st == OK; i++)
        st = normalize_name(h, &work, &list[i], err);
    size_t begin = 0;
    for (int32_t i = 0; i < count && st == OK; i++) {
        list[i].text = h->normalized_text.data + begin;
        begin += (size_t)list[i].len;
    }
    if (st == OK)
        st = show_normalized(h, list, count, err);
    if (st == OK)
        st = names_open(list, count, &h->normalized_names, err);
    textstep_work_free(&work);
    regex_work_close(regex);
    return st;
}

static enum status open_names(struct hf *h, struct err *err)
{
    const int32_t count = h->file.added_count;
    struct name *plain = calloc((size_t)count + 1, sizeof *plain);
    struct name *normalized = calloc((size_t)count + 1, sizeof *normalized);
    struct name *spelt = calloc((size_t)count + 1, sizeof *spelt);
    int32_t plain_count = 0, normalized_count = 0, spelt_count = 0;
    enum status st = OK;
    if (!plain || !normalized || !spelt) {
        st = base_fail(err, ERR_NOMEM, "tokenizer: no memory for %d names", count);
        goto out;
    }
    for (int32_t i = 0; i < count; i++) {
        const struct hf_added *a = &h->file.added[i];
        if (a->normalized)
            normalized[normalized_count++] = a->name;
        else
            plain[plain_count++] = a->name;
        if (!a->normalized || a->name.control) {
            spelt[spelt_count] = a->name;
            spelt[spelt_count++].control |= names_is_mark(a->name.text, a->name.len);
        }
    }
    TRY(names_open(plain, plain_count, &h->names, err));
    TRY(names_open(spelt, spelt_count, &h->spelt_names, err));
    TRY(open_normalized(h, normalized, normalized_count, err));
out:
    free(plain);
    free(normalized);
    free(spelt);
    return st;
}

/* Where every unit of a text leaves something, a token stands for no more than its own bytes. */
static void set_bytes_max(struct hf *h)
{
    bool bounded = bpe_keeps_all(h->file.bpe) && !h->file.steps.removes_text;
    int32_t max = 1;
    for (int32_t i = 0; i < h->file.added_count; i++)
        if (h->file.added[i].name.takes_before || h->file.added[i].name.takes_after)
            bounded = false;
    for (int32_t id = 0; id < h->file.count; id++) {
        int32_t len = h->file.views[id].len, piece_len = 0;
        if (bpe_piece(h->file.bpe, id, &piece_len) && piece_len > len)
            len = piece_len;
        max = len > max ? len : max;
    }
    h->bytes_max = bounded ? max : 0;
}

enum status hf_open(const char *json, size_t n, const char *where, int32_t ids, struct hf **out,
                    struct err *err)
{
    enum status st = OK;
    struct hf *h = calloc(1, sizeof *h);
    if (!h)
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory");
    buf_init(&h->normalized_text, TEXTSTEP_BYTES_MAX);
    buf_init(&h->shown_text, TEXTSTEP_BYTES_MAX);
    TRY(hf_file_parse(json, n, where, ids, &h->file, err));
    TRY(open_names(h, err));
    set_bytes_max(h);
    *out = h;
    h = NULL;
out:
    hf_close(h);
    return st;
}

void hf_close(struct hf *h)
{
    if (!h)
        return;
    names_close(h->names);
    names_close(h->normalized_names);
    names_close(h->spelt_names);
    buf_free(&h->normalized_text);
    buf_free(&h->shown_text);
    hf_file_free(&h->file);
    free(h);
}

/* ---- what it knows ---- */

const struct hf_file *hf_about(const struct hf *h)
{
    return &h->file;
}

int32_t hf_find(const struct hf *h, const char *name)
{
    const size_t n = strlen(name);
    for (int32_t i = 0; i < h->file.added_count; i++) {
        const struct name *added = &h->file.added[i].name;
        if ((size_t)added->len == n && memcmp(added->text, name, n) == 0)
            return added->id;
    }
    return bpe_find(h->file.bpe, name, n);
}

int32_t hf_bytes_max(const struct hf *h)
{
    return h->bytes_max;
}
