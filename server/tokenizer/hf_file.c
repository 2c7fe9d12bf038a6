/* DESIGN: the file's strings are copied once, into views as decoding wants them and into bpe as
 * encoding does; with ByteLevel both are the bytes that the characters of GPT-2's alphabet spell. A
 * piece that is not spelt in it can be decoded, but no text leads to it. */
#include "server/tokenizer/hf_file.h"

#include "config/utf8.h"

#include <stdlib.h>
#include <string.h>

#define SPACE_MARK "\xe2\x96\x81" /* U+2581 */
#define PIECE_MAX BPE_PIECE_BYTES_MAX

struct parser {
    struct hf_json json;
    struct hf_file *file;
    int32_t ids;
    char *text_end;         /* where the next view's text goes */
    int16_t byte_of[0x144]; /* character of GPT-2's alphabet to byte; -1: none */
};

/* ---- GPT-2's alphabet ---- */

/* Bytes that are printable in Latin-1 are themselves, the others U+0100 and up, in order. */
static void fill_alphabet(struct parser *p)
{
    int next = 0x100;
    memset(p->byte_of, 0xff, sizeof p->byte_of);
    for (int byte = 0; byte < 256; byte++) {
        bool same = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
        p->byte_of[same ? byte : next++] = (int16_t)byte;
    }
}

/* The bytes that a string spells; 0: it has other characters. `to` has room for n. */
static size_t spell_bytes(const struct parser *p, const char *text, size_t n, char *to)
{
    size_t count = 0;
    for (size_t i = 0; i < n;) {
        const unsigned char *c = (const unsigned char *)text + i;
        size_t k = utf8_char(text + i, n - i);
        size_t code = k == 1   ? c[0]
                      : k == 2 ? (size_t)(c[0] & 0x1f) << 6 | (c[1] & 0x3f)
                               : SIZE_MAX;
        if (code >= ARRAY_LEN(p->byte_of) || p->byte_of[code] < 0)
            return 0;
        to[count++] = (char)p->byte_of[code];
        i += k;
    }
    return count;
}

/* ---- what tokens read as ---- */

static int hex(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = memchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c, 16);
    return at ? (int)(at - digits) : -1;
}

static int byte_token(const char *text, size_t n)
{
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>' || hex(text[3]) < 0)
        return -1;
    return hex(text[4]) < 0 ? -1 : hex(text[3]) * 16 + hex(text[4]);
}

static size_t copy_spaced(const char *text, size_t n, char *to)
{
    size_t count = 0;
    for (size_t i = 0; i < n;) {
        bool mark = n - i >= 3 && memcmp(text + i, SPACE_MARK, 3) == 0;
        to[count++] = mark ? ' ' : text[i];
        i += mark ? 3 : 1;
    }
    return count;
}

static void set_view(struct parser *p, int32_t id, enum token_kind kind, size_t n)
{
    char *to = p->text_end;
    if (kind == TOKEN_TEXT && !utf8_is_valid(to, n))
        kind = TOKEN_BYTE;
    p->file->views[id] = (struct token_view){.kind = kind,
                                             .text = to,
                                             .len = (int32_t)n,
                                             .starts_word = kind == TOKEN_TEXT && to[0] == ' '};
    p->text_end += n;
    if (id >= p->file->count)
        p->file->count = id + 1;
}

/* ---- model.vocab ---- */

static enum status add_piece(struct parser *p, const char *text, int64_t id)
{
    const struct hf_steps *steps = &p->file->steps;
    const char *piece = text;
    size_t n = strlen(text), length = n;
    char *to = p->text_end;
    int byte = -1;
    if (id < 0 || id >= p->ids)
        return hf_json_bad(&p->json, "model.vocab",
                           "\"%.60s\" has id %lld, but the model has only %d token ids", text,
                           (long long)id, p->ids);
    if (n == 0 || n > PIECE_MAX)
        return hf_json_bad(&p->json, "model.vocab", "id %lld has %zu bytes, expected 1 to %d",
                           (long long)id, n, PIECE_MAX);
    if (p->file->views[id].text)
        return hf_json_bad(&p->json, "model.vocab", "two pieces have id %lld", (long long)id);
    if (steps->byte_level) {
        length = spell_bytes(p, text, n, to);
        piece = length > 0 ? to : NULL;
    }
    if (piece && !bpe_add_piece(p->file->bpe, (int32_t)id, piece, length))
        return base_fail(p->json.err, ERR_NOMEM, "%s: no memory for its pieces", p->json.where);
    if (steps->byte_tokens)
        byte = byte_token(text, n);
    if (byte >= 0) {
        to[0] = (char)byte;
        set_view(p, (int32_t)id, TOKEN_BYTE, 1);
        return OK;
    }
    if (steps->space_marks)
        length = copy_spaced(text, n, to);
    else if (!steps->byte_level || !piece)
        memcpy(to, text, length = n);
    set_view(p, (int32_t)id, TOKEN_TEXT, length);
    return OK;
}

static enum status read_vocab(struct parser *p, const struct jdoc *vocab)
{
    const char *text;
    const struct jdoc *id;
    enum status st = OK;
    for (void *i = jdoc_iter(vocab, NULL, &text, &id); i && st == OK;
         i = jdoc_iter(vocab, i, &text, &id)) {
        st = hf_json_check(&p->json, id, "model.vocab", JDOC_INT);
        if (st == OK)
            st = add_piece(p, text, jdoc_int(id));
    }
    return st;
}

/* ---- model.merges ---- */

/* Id of a piece of the vocabulary by the spelling of the file; -1: none, -2: no text leads to it.
 */
static int32_t find_piece(const struct parser *p, const char *text, size_t n)
{
    char bytes[2 * PIECE_MAX];
    if (!p->file->steps.byte_level)
        return bpe_find(p->file->bpe, text, n);
    if (n > sizeof bytes)
        return -1;
    size_t length = spell_bytes(p, text, n, bytes);
    return length > 0 ? bpe_find(p->file->bpe, bytes, length) : -2;
}

static enum status add_merge(struct parser *p, size_t i, const char *left, size_t left_n,
                             const char *right, size_t right_n)
{
    char both[2 * PIECE_MAX];
    if (left_n == 0 || right_n == 0 || left_n + right_n > PIECE_MAX)
        return hf_json_bad(&p->json, hf_json_place("model.merges[%zu]", i).text,
                           "two texts of 1 to %d bytes together expected", PIECE_MAX);
    memcpy(both, left, left_n);
    memcpy(both + left_n, right, right_n);
    int32_t a = find_piece(p, left, left_n), b = find_piece(p, right, right_n);
    int32_t joined = find_piece(p, both, left_n + right_n);
    if (a == -1 || b == -1 || joined == -1)
        return hf_json_bad(&p->json, hf_json_place("model.merges[%zu]", i).text,
                           "\"%.*s\" is not in the vocabulary",
                           (int)(a == -1   ? left_n
                                 : b == -1 ? right_n
                                           : left_n + right_n),
                           a == -1   ? left
                           : b == -1 ? right
                                     : both);
    if (a >= 0 && b >= 0)
        bpe_add_merge(p->file->bpe, a, b, joined);
    return OK;
}

/* "left right" or ["left", "right"] */
static enum status read_merge(struct parser *p, const struct jdoc *v, size_t i)
{
    if (jdoc_type(v) == JDOC_STRING) {
        const char *text = jdoc_string(v), *space = strchr(text, ' ');
        if (space && !strchr(space + 1, ' '))
            return add_merge(p, i, text, (size_t)(space - text), space + 1, strlen(space + 1));
    } else if (jdoc_type(v) == JDOC_ARRAY && jdoc_size(v) == 2) {
        const struct jdoc *left = jdoc_at(v, 0), *right = jdoc_at(v, 1);
        if (jdoc_type(left) == JDOC_STRING && jdoc_type(right) == JDOC_STRING)
            return add_merge(p, i, jdoc_string(left), jdoc_string_len(left), jdoc_string(right),
                             jdoc_string_len(right));
    }
    return hf_json_bad(&p->json, hf_json_place("model.merges[%zu]", i).text,
                       "expected \"left right\" or [\"left\", \"right\"]");
}

/* ---- model ---- */

static enum status check_model(struct parser *p, const struct jdoc *model)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const struct jdoc *type = NULL, *dropout = jdoc_get_value(model, "dropout");
    enum status st = OK;
    TRY(hf_json_optional(&p->json, model, "model", "type", JDOC_STRING, &type));
    if (type && strcmp(jdoc_string(type), "BPE") != 0)
        TRY(hf_json_unsupported(&p->json, "model.type", jdoc_string(type)));
    for (size_t i = 0; i < ARRAY_LEN(affixes); i++) {
        const struct jdoc *affix = NULL;
        TRY(hf_json_optional(&p->json, model, "model", affixes[i], JDOC_STRING, &affix));
        if (affix && jdoc_string_len(affix) > 0)
            TRY(hf_json_unsupported(&p->json, "model", affixes[i]));
    }
    if (dropout && ((jdoc_type(dropout) != JDOC_INT && jdoc_type(dropout) != JDOC_REAL) ||
                    jdoc_number(dropout) != 0))
        TRY(hf_json_unsupported(&p->json, "model", "dropout"));
out:
    return st;
}

static enum status open_bpe(struct parser *p, const struct jdoc *model, const struct jdoc *merges)
{
    struct bpe_settings s = {.ids = p->ids,
                             .merges = (int32_t)jdoc_size(merges),
                             .units_are_bytes = p->file->steps.byte_level};
    enum status st = OK;
    TRY(hf_json_bool(&p->json, model, "model", "byte_fallback", &s.byte_fallback));
    TRY(hf_json_bool(&p->json, model, "model", "fuse_unk", &s.fuse_unknown));
    TRY(hf_json_bool(&p->json, model, "model", "ignore_merges", &s.ignore_merges));
    st = bpe_open(&s, &p->file->bpe, p->json.err);
out:
    return st;
}

static enum status read_unknown(struct parser *p, const struct jdoc *model)
{
    const struct jdoc *name = NULL;
    enum status st = hf_json_optional(&p->json, model, "model", "unk_token", JDOC_STRING, &name);
    if (st != OK || !name)
        return st;
    int32_t id = find_piece(p, jdoc_string(name), jdoc_string_len(name));
    if (id < 0 && p->file->steps.byte_level) /* which knows every byte */
        return OK;
    if (id < 0)
        return hf_json_bad(&p->json, "model.unk_token", "\"%.60s\" is not in the vocabulary",
                           jdoc_string(name));
    bpe_set_unknown(p->file->bpe, id);
    return OK;
}

/* ---- added_tokens ---- */

static enum status read_flags(const struct hf_json *j, const struct jdoc *v, const char *place,
                              struct hf_added *a)
{
    bool single_word = false;
    enum status st = OK;
    TRY(hf_json_bool(j, v, place, "special", &a->name.control));
    TRY(hf_json_bool(j, v, place, "normalized", &a->normalized));
    TRY(hf_json_bool(j, v, place, "lstrip", &a->name.takes_before));
    TRY(hf_json_bool(j, v, place, "rstrip", &a->name.takes_after));
    TRY(hf_json_bool(j, v, place, "single_word", &single_word));
    if (single_word)
        st = hf_json_unsupported(j, place, "single_word");
out:
    return st;
}

static enum status read_added(struct parser *p, const struct jdoc *v, const char *place,
                              struct hf_added *a)
{
    const struct jdoc *id = NULL, *content = NULL;
    enum status st = OK;
    TRY(hf_json_check(&p->json, v, place, JDOC_OBJECT));
    TRY(hf_json_member(&p->json, v, place, "id", JDOC_INT, &id));
    TRY(hf_json_member(&p->json, v, place, "content", JDOC_STRING, &content));
    TRY(read_flags(&p->json, v, place, a));
    const char *text = jdoc_string(content);
    const size_t n = jdoc_string_len(content);
    if (jdoc_int(id) < 0 || jdoc_int(id) >= p->ids)
        TRY(hf_json_bad(&p->json, place, "id %lld, but the model has only %d token ids",
                        (long long)jdoc_int(id), p->ids));
    if (n == 0 || n > PIECE_MAX)
        TRY(hf_json_bad(&p->json, place, "%zu bytes, expected 1 to %d", n, PIECE_MAX));
    a->name.id = (int32_t)jdoc_int(id);
    /* in the vocabulary under this id, or not at all */
    int32_t in_vocab = find_piece(p, text, n);
    const struct token_view *taken = &p->file->views[a->name.id];
    bool other = in_vocab < 0 && taken->text &&
                 ((size_t)taken->len != n || memcmp(taken->text, text, n) != 0);
    if (other || (in_vocab >= 0 && in_vocab != a->name.id))
        TRY(hf_json_bad(&p->json, place, "id %d is not that of \"%.60s\" in the vocabulary",
                        a->name.id, text));
    memcpy(p->text_end, text, n);
    a->name.text = p->text_end;
    a->name.len = (int32_t)n;
    if (p->file->steps.space_marks && !a->name.control) { /* it reads as other pieces do */
        p->text_end += n;
        set_view(p, a->name.id, TOKEN_TEXT, copy_spaced(text, n, p->text_end));
    } else {
        set_view(p, a->name.id, a->name.control ? TOKEN_HIDDEN : TOKEN_TEXT, n);
    }
    if (in_vocab >= 0 && a->name.control)
        bpe_hide(p->file->bpe, in_vocab);
out:
    return st;
}

static enum status read_all_added(struct parser *p, const struct jdoc *root)
{
    const struct jdoc *list = NULL;
    enum status st =
        hf_json_optional(&p->json, root, "the tokenizer", "added_tokens", JDOC_ARRAY, &list);
    if (st != OK || !list)
        return st;
    p->file->added = calloc(jdoc_size(list) + 1, sizeof *p->file->added);
    if (!p->file->added)
        return base_fail(p->json.err, ERR_NOMEM, "%s: no memory for its tokens", p->json.where);
    for (size_t i = 0; i < jdoc_size(list) && st == OK; i++)
        st = read_added(p, jdoc_at(list, i), hf_json_place("added_tokens[%zu]", i).text,
                        &p->file->added[p->file->added_count++]);
    return st;
}

/* ---- post_processor ---- */

static enum status add_template_ids(struct parser *p, const struct jdoc *ids, const char *place,
                                    bool is_after)
{
    int32_t *list = is_after ? p->file->after : p->file->before;
    int32_t *count = is_after ? &p->file->after_count : &p->file->before_count;
    for (size_t i = 0; i < jdoc_size(ids); i++) {
        int64_t id = 0;
        if (!jdoc_whole(jdoc_at(ids, i), &id) || id < 0 || id >= p->ids)
            return hf_json_bad(&p->json, place, "an id is not among the %d of the model", p->ids);
        if (*count == HF_FILE_TEMPLATE_MAX)
            return hf_json_bad(&p->json, place, "more than %d tokens", HF_FILE_TEMPLATE_MAX);
        list[(*count)++] = (int32_t)id;
    }
    return OK;
}

/* {"SpecialToken": {"id": NAME}} of single, whose ids special_tokens has. */
static enum status read_special(struct parser *p, const struct jdoc *v, const struct jdoc *token,
                                const char *place, bool is_after)
{
    const struct jdoc *tokens = NULL, *entry = NULL, *ids = NULL;
    const char *name = NULL;
    enum status st = OK;
    TRY(hf_json_string(&p->json, token, place, "id", &name));
    TRY(hf_json_member(&p->json, v, place, "special_tokens", JDOC_OBJECT, &tokens));
    TRY(hf_json_member(&p->json, tokens, place, name, JDOC_OBJECT, &entry));
    TRY(hf_json_member(&p->json, entry, place, "ids", JDOC_ARRAY, &ids));
    st = add_template_ids(p, ids, place, is_after);
out:
    return st;
}

static enum status read_template(struct parser *p, const struct jdoc *v, const char *place)
{
    const struct jdoc *single = NULL;
    int texts = 0;
    enum status st = OK;
    TRY(hf_json_member(&p->json, v, place, "single", JDOC_ARRAY, &single));
    for (size_t i = 0; i < jdoc_size(single); i++) {
        const struct hf_json_place at = hf_json_place("%s.single[%zu]", place, i);
        const struct jdoc *piece = jdoc_at(single, i), *token = NULL;
        TRY(hf_json_check(&p->json, piece, at.text, JDOC_OBJECT));
        TRY(hf_json_optional(&p->json, piece, at.text, "SpecialToken", JDOC_OBJECT, &token));
        if (token)
            TRY(read_special(p, v, token, at.text, texts > 0));
        else
            texts++;
    }
    if (texts != 1)
        st = hf_json_bad(&p->json, place, "%d texts, expected one", texts);
out:
    return st;
}

static enum status read_processor(struct parser *p, const struct jdoc *v, const char *place)
{
    const char *type = NULL;
    const struct jdoc *list = NULL;
    enum status st = OK;
    TRY(hf_json_check(&p->json, v, place, JDOC_OBJECT));
    TRY(hf_json_string(&p->json, v, place, "type", &type));
    if (strcmp(type, "ByteLevel") == 0) /* about offsets, which nobody asks for */
        return OK;
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(p, v, place);
    if (strcmp(type, "Sequence") != 0)
        return hf_json_unsupported(&p->json, place, type);
    TRY(hf_json_member(&p->json, v, place, "processors", JDOC_ARRAY, &list));
    for (size_t i = 0; i < jdoc_size(list); i++)
        TRY(read_processor(p, jdoc_at(list, i),
                           hf_json_place("%s.processors[%zu]", place, i).text));
out:
    return st;
}

/* ---- the whole ---- */

/* Decoded, no string is longer than it stands in the file; of an added token, which may stand there
 * twice, there are its name and what it reads as once more. */
static enum status make_room(struct parser *p, size_t n)
{
    p->file->views = calloc((size_t)p->ids, sizeof *p->file->views);
    p->file->text = malloc(2 * n);
    if (!p->file->views || !p->file->text)
        return base_fail(p->json.err, ERR_NOMEM, "%s: no memory for %d pieces", p->json.where,
                         p->ids);
    for (int32_t id = 0; id < p->ids; id++)
        p->file->views[id].kind = TOKEN_HIDDEN;
    p->text_end = p->file->text;
    return OK;
}

static enum status read_file(struct parser *p, const struct jdoc *root, size_t n)
{
    const struct jdoc *model = NULL, *vocab = NULL, *merges = NULL, *post = NULL;
    enum status st = OK;
    TRY(hf_json_check(&p->json, root, "the tokenizer", JDOC_OBJECT));
    TRY(hf_steps_parse(&p->json, root, &p->file->steps));
    TRY(hf_json_member(&p->json, root, "the tokenizer", "model", JDOC_OBJECT, &model));
    TRY(check_model(p, model));
    TRY(hf_json_member(&p->json, model, "model", "vocab", JDOC_OBJECT, &vocab));
    TRY(hf_json_member(&p->json, model, "model", "merges", JDOC_ARRAY, &merges));
    TRY(make_room(p, n));
    TRY(open_bpe(p, model, merges));
    TRY(read_vocab(p, vocab));
    TRY(read_unknown(p, model));
    TRY(read_all_added(p, root));
    for (size_t i = 0; i < jdoc_size(merges); i++)
        TRY(read_merge(p, jdoc_at(merges, i), i));
    TRY(hf_json_optional(&p->json, root, "the tokenizer", "post_processor", JDOC_OBJECT, &post));
    if (post)
        TRY(read_processor(p, post, "post_processor"));
    if (p->file->count == 0)
        st = hf_json_bad(&p->json, "model.vocab", "has no pieces");
    for (int32_t id = 0; id < p->file->count; id++)
        if (!p->file->views[id].text)
            p->file->views[id].text = "";
out:
    return st;
}

enum status hf_file_parse(const char *json, size_t n, const char *where, int32_t ids,
                          struct hf_file *out, struct err *err)
{
    struct hf_file file = {.count = 0};
    struct parser p = {.json = {where, err}, .file = &file, .ids = ids};
    struct jdoc *root = NULL;
    enum status st = OK;
    CHECK(ids > 0);
    fill_alphabet(&p);
    TRY(jdoc_parse(json, n, &jdoc_limits_file, where, &root, err));
    TRY(read_file(&p, root, n));
out:
    jdoc_close(root);
    if (st == OK)
        *out = file;
    else
        hf_file_free(&file);
    return st == ERR_INPUT ? ERR_MODEL : st;
}

void hf_file_free(struct hf_file *f)
{
    hf_steps_free(&f->steps);
    bpe_close(f->bpe);
    free(f->views);
    free(f->text);
    free(f->added);
}
