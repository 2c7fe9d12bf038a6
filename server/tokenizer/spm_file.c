/* DESIGN: SentencePiece's loader has had overflows on hostile files, and the packaged version is
 * old; so what it is given has passed here first. A window (struct span) only ever shrinks, hence
 * no length can reach outside its parent. Unknown fields are skipped, as protobuf wants. */
#include "server/tokenizer/spm_file.h"

#include "config/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Unread bytes. */
struct span {
    const unsigned char *at;
    size_t n;
};

struct proto_field {
    uint32_t number;
    uint64_t value;    /* varint, or the bits of a fixed32/64 */
    struct span bytes; /* length-delimited; of a varint where it begins */
    int wire;
};

struct parser {
    struct spm_file *file;
    int32_t capacity;
    const char *where;
    const unsigned char *begin; /* of the file */
    struct span charsmap;
    struct err *err;
};

#define BAD(p, ...) base_fail((p)->err, ERR_MODEL, __VA_ARGS__)

/* ---- protobuf ---- */

static bool take_varint(struct span *s, uint64_t *out)
{
    uint64_t x = 0;
    for (int i = 0; i < 10 && s->n > 0; i++) {
        unsigned char c = *s->at++;
        s->n--;
        x |= (uint64_t)(c & 0x7f) << (7 * i);
        if (c < 0x80) {
            *out = x;
            return true;
        }
    }
    return false;
}

static bool take_fixed(struct span *s, size_t width, uint64_t *out)
{
    if (s->n < width)
        return false;
    *out = 0;
    for (size_t i = width; i-- > 0;)
        *out = *out << 8 | s->at[i];
    s->at += width;
    s->n -= width;
    return true;
}

static bool take_field(struct span *s, struct proto_field *f)
{
    uint64_t key, length;
    if (!take_varint(s, &key) || key >> 3 == 0 || key >> 3 > 0x1fffffff)
        return false;
    f->number = (uint32_t)(key >> 3);
    f->wire = (int)(key & 7);
    switch (f->wire) {
    case 0:
        f->bytes = (struct span){s->at, 0};
        return take_varint(s, &f->value);
    case 1:
        return take_fixed(s, 8, &f->value);
    case 5:
        return take_fixed(s, 4, &f->value);
    case 2:
        if (!take_varint(s, &length) || length > s->n)
            return false;
        f->bytes = (struct span){s->at, (size_t)length};
        s->at += length;
        s->n -= (size_t)length;
        return true;
    default:
        return false;
    }
}

static enum status malformed(struct parser *p)
{
    return BAD(p, "%s: not a SentencePiece model: malformed at its protobuf level", p->where);
}

static int32_t small_int(uint64_t value)
{
    int64_t x = (int64_t)value;
    return x < -1 || x > INT32_MAX ? INT32_MAX : (int32_t)x;
}

/* ---- pieces ---- */

static enum status check_piece(struct parser *p, const struct spm_piece *piece, float score)
{
    const int32_t id = p->file->count;
    if (piece->len < 1 || piece->len > SPM_FILE_PIECE_BYTES_MAX)
        return BAD(p, "%s: piece %d has %d bytes, expected 1 to %d", p->where, id, piece->len,
                   SPM_FILE_PIECE_BYTES_MAX);
    if (!isfinite(score))
        return BAD(p, "%s: piece %d has a score that is not finite", p->where, id);
    if (piece->type < SPM_NORMAL || piece->type > SPM_BYTE)
        return BAD(p, "%s: piece %d has type %d, expected 1 to 6", p->where, id, (int)piece->type);
    for (size_t i = 0, n = (size_t)piece->len; i < n;) {
        size_t k = utf8_char(piece->text + i, n - i);
        if (k == 0 || piece->text[i] == '\0')
            return BAD(p, "%s: piece %d is not UTF-8 text", p->where, id);
        i += k;
    }
    return OK;
}

static enum status add_piece(struct parser *p, struct span s)
{
    struct spm_file *file = p->file;
    struct spm_piece piece = {.text = "", .type = SPM_NORMAL};
    struct proto_field f;
    float score = 0;
    while (s.n > 0) {
        if (!take_field(&s, &f))
            return malformed(p);
        if (f.number == 1 && f.wire == 2) {
            piece.text = (const char *)f.bytes.at;
            piece.len = f.bytes.n > INT32_MAX ? INT32_MAX : (int32_t)f.bytes.n;
        } else if (f.number == 2 && f.wire == 5) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&score, &bits, sizeof score);
        } else if (f.number == 3 && f.wire == 0) {
            piece.type = f.value > SPM_BYTE ? 0 : (enum spm_piece_type)f.value;
            piece.type_at = (size_t)(f.bytes.at - p->begin);
        }
    }
    enum status st = check_piece(p, &piece, score);
    if (st != OK)
        return st;
    if (file->count == SPM_FILE_PIECES_MAX)
        return BAD(p, "%s: more than %d pieces", p->where, SPM_FILE_PIECES_MAX);
    if (file->count == p->capacity) {
        int32_t capacity = p->capacity ? p->capacity * 2 : 1024;
        struct spm_piece *more = realloc(file->pieces, (size_t)capacity * sizeof *more);
        if (!more)
            return base_fail(p->err, ERR_NOMEM, "%s: no memory for its pieces", p->where);
        file->pieces = more;
        p->capacity = capacity;
    }
    file->pieces[file->count++] = piece;
    return OK;
}

static bool same_piece(const struct spm_piece *a, const struct spm_piece *b)
{
    return a->len == b->len && memcmp(a->text, b->text, (size_t)a->len) == 0;
}

/* Open addressing, at most half full. */
static enum status check_distinct(struct parser *p)
{
    const struct spm_file *file = p->file;
    enum status st = OK;
    size_t slots = 64;
    while (slots < 2 * (size_t)file->count)
        slots *= 2;
    int32_t *table = calloc(slots, sizeof *table); /* id + 1 */
    if (!table)
        return base_fail(p->err, ERR_NOMEM, "%s: no memory for its pieces", p->where);
    for (int32_t id = 0; id < file->count && st == OK; id++) {
        const struct spm_piece *piece = &file->pieces[id];
        size_t at = base_hash(BASE_HASH_INIT, piece->text, (size_t)piece->len) & (slots - 1);
        for (; table[at] && st == OK; at = (at + 1) & (slots - 1))
            if (same_piece(&file->pieces[table[at] - 1], piece))
                st = BAD(p, "%s: pieces %d and %d are the same", p->where, table[at] - 1, id);
        table[at] = id + 1;
    }
    free(table);
    return st;
}

static bool is_byte_form(const struct spm_piece *piece)
{
    static const char digits[] = "0123456789ABCDEF";
    return piece->len == 6 && memcmp(piece->text, "<0x", 3) == 0 && piece->text[5] == '>' &&
           strchr(digits, piece->text[3]) && strchr(digits, piece->text[4]);
}

static enum status check_ids(struct parser *p)
{
    struct spm_file *file = p->file;
    int32_t unknown = 0;
    for (int32_t id = 0; id < file->count; id++) {
        const struct spm_piece *piece = &file->pieces[id];
        if (piece->type == SPM_UNKNOWN) {
            file->unk = id;
            unknown++;
        }
        if (piece->type == SPM_BYTE && !is_byte_form(piece))
            return BAD(p, "%s: byte piece %d is not of the form <0xNN>", p->where, id);
    }
    if (unknown != 1)
        return BAD(p, "%s: %d unknown pieces, expected one", p->where, unknown);
    if (file->bos >= file->count || file->eos >= file->count)
        return BAD(p, "%s: bos %d or eos %d is not among its %d pieces", p->where, file->bos,
                   file->eos, file->count);
    return OK;
}

/* ---- settings ---- */

static enum status read_trainer(struct parser *p, struct span s)
{
    struct spm_file *file = p->file;
    struct proto_field f;
    while (s.n > 0) {
        if (!take_field(&s, &f))
            return malformed(p);
        if (f.number == 41 && f.wire == 0)
            file->bos = small_int(f.value);
        else if (f.number == 42 && f.wire == 0)
            file->eos = small_int(f.value);
        else if (f.number == 24 && f.wire == 0 && f.value)
            return BAD(p, "%s: treat_whitespace_as_suffix is not supported", p->where);
        else if (f.number == 44 && f.wire == 2) {
            file->unk_surface = (const char *)f.bytes.at;
            file->unk_surface_len = f.bytes.n;
        }
    }
    for (size_t i = 0; i < file->unk_surface_len;) {
        size_t k = utf8_char(file->unk_surface + i, file->unk_surface_len - i);
        if (k == 0 || file->unk_surface_len > SPM_FILE_PIECE_BYTES_MAX)
            return BAD(p, "%s: unk_surface is not a short UTF-8 text", p->where);
        i += k;
    }
    return OK;
}

static enum status read_normalizer(struct parser *p, struct span s)
{
    struct proto_field f;
    while (s.n > 0) {
        if (!take_field(&s, &f))
            return malformed(p);
        if (f.number == 2 && f.wire == 2)
            p->charsmap = f.bytes;
        else if (f.number == 3 && f.wire == 0)
            p->file->add_dummy_prefix = f.value != 0;
        else if (f.number == 4 && f.wire == 0)
            p->file->remove_extra_whitespaces = f.value != 0;
        else if (f.number == 5 && f.wire == 0 && !f.value)
            return BAD(p, "%s: escape_whitespaces = false is not supported", p->where);
    }
    return OK;
}

/* ---- normalisation map: u32 size of a double array, the array, NUL-terminated texts ---- */

static uint32_t unit_at(struct span units, size_t i)
{
    const unsigned char *u = units.at + 4 * i;
    return (uint32_t)u[0] | (uint32_t)u[1] << 8 | (uint32_t)u[2] << 16 | (uint32_t)u[3] << 24;
}

/* Visits every node that some text can reach; each step of each must stay inside, and each value
 * must be the start of a text. seen has a byte per unit, stack room for as many indices. */
static bool walk_charsmap(struct span units, struct span texts, unsigned char *seen, size_t *stack)
{
    const size_t count = units.n / 4;
    size_t depth = 0;
    stack[depth++] = 0;
    seen[0] = 1;
    while (depth > 0) {
        size_t at = stack[--depth];
        uint32_t unit = unit_at(units, at);
        size_t base = at ^ ((unit >> 10) << ((unit & (1u << 9)) >> 6));
        if ((base | 0xff) >= count)
            return false;
        if (unit >> 8 & 1) { /* has a value, at label 0 */
            uint32_t value = unit_at(units, base) & 0x7fffffffu;
            if (value >= texts.n)
                return false;
        }
        for (size_t label = 1; label < 256; label++) {
            size_t next = base ^ label;
            if ((unit_at(units, next) & 0x800000ffu) != label || seen[next])
                continue;
            seen[next] = 1;
            stack[depth++] = next;
        }
    }
    return true;
}

static enum status check_charsmap(struct parser *p)
{
    struct span texts = p->charsmap;
    uint64_t size;
    if (texts.n == 0)
        return OK;
    if (!take_fixed(&texts, 4, &size) || size >= texts.n || size % 1024 != 0 || size == 0)
        return BAD(p, "%s: its normalisation map has a wrong size", p->where);
    struct span units = {texts.at, (size_t)size};
    texts.at += size;
    texts.n -= (size_t)size;
    unsigned char *seen = calloc(units.n / 4, 1);
    size_t *stack = calloc(units.n / 4, sizeof *stack);
    bool good =
        seen && stack && texts.at[texts.n - 1] == '\0' && walk_charsmap(units, texts, seen, stack);
    enum status st = OK;
    if (!seen || !stack)
        st = base_fail(p->err, ERR_NOMEM, "%s: no memory to check it", p->where);
    else if (!good)
        st = BAD(p, "%s: its normalisation map points outside itself", p->where);
    free(seen);
    free(stack);
    return st;
}

/* ---- the whole ---- */

static enum status parse(struct parser *p, struct span s)
{
    enum status st = OK;
    struct proto_field f;
    while (s.n > 0 && st == OK) {
        if (!take_field(&s, &f))
            return malformed(p);
        if (f.wire != 2)
            continue;
        if (f.number == 1)
            st = add_piece(p, f.bytes);
        else if (f.number == 2)
            st = read_trainer(p, f.bytes);
        else if (f.number == 3)
            st = read_normalizer(p, f.bytes);
        else if (f.number == 5 && f.bytes.n > 0)
            st = BAD(p, "%s: denormalisation is not supported", p->where);
    }
    if (st == OK && p->file->count == 0)
        st = BAD(p, "%s: has no pieces", p->where);
    if (st == OK)
        st = check_distinct(p);
    if (st == OK)
        st = check_ids(p);
    return st == OK ? check_charsmap(p) : st;
}

enum status spm_file_parse(const void *bytes, size_t n, const char *where, struct spm_file *out,
                           struct err *err)
{
    struct spm_file file = {
        .unk = -1,
        .bos = 1,
        .eos = 2,
        .unk_surface = " \xe2\x81\x87 ",
        .unk_surface_len = 5,
        .add_dummy_prefix = true,
        .remove_extra_whitespaces = true,
    };
    struct parser p = {.file = &file, .where = where, .begin = bytes, .err = err};
    enum status st = parse(&p, (struct span){bytes, n});
    if (st == OK)
        *out = file;
    else
        spm_file_free(&file);
    return st;
}

void spm_file_free(struct spm_file *f)
{
    free(f->pieces);
    f->pieces = NULL;
    f->count = 0;
}

/* All types fit into the low bits of a varint's first byte. */
void spm_file_make_control(const struct spm_piece *piece, char *bytes)
{
    CHECK(piece->type_at > 0);
    bytes[piece->type_at] = (char)((bytes[piece->type_at] & 0x80) | SPM_CONTROL);
}
