/* DESIGN: one pass over the header's bytes with a cursor that is never behind their end. Every
 * count is held against what the rest of the file could hold before memory is taken for it, so a
 * small file cannot ask for much. Where the header goes on behind the bytes at hand, the pass ends
 * and is made again over more: simpler than a cursor over moving memory, and the second pass costs
 * milliseconds. Values stay where they are and are borrowed.
 * Tensors must follow each other as llama.cpp itself demands: none overlaps another. */
#include "weights/gguf/gguf_parts.h"

#include "config/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "GGUF"
#define VERSION_MIN 2
#define VERSION_MAX 3
#define KEYS_MAX 65536
#define NAME_BYTES_MAX 127 /* of a tensor; llama.cpp reads 63 */
#define KEY_BYTES_MAX 65535
#define KEY_BYTES_MIN (8 + 1 + 4 + 1)        /* in the file: a key of one letter, and a byte */
#define TENSOR_BYTES_MIN (8 + 1 + 4 + 4 + 8) /* a name of one letter, and no dimensions */
#define STRING_BYTES_MIN 8                   /* its length */
#define ALIGNMENT_DEFAULT 32
#define ALIGNMENT_MIN 8
#define ALIGNMENT_MAX (1 << 20)

struct parser {
    const char *bytes;
    size_t n, at;
    uint64_t file_bytes;
    const char *where;
    char what[160]; /* "key NAME: " or "tensor NAME: ", empty outside of them */
    bool wants_more;
    struct err *err;
};

static enum status PRINTF_LIKE(2, 3) refuse(struct parser *p, const char *fmt, ...)
{
    struct err reason;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(reason.text, sizeof reason.text, fmt, ap);
    va_end(ap);
    return base_fail(p->err, ERR_MODEL, "%.200s: %s%.200s", p->where, p->what, reason.text);
}

static enum status no_memory(struct parser *p)
{
    return base_fail(p->err, ERR_NOMEM, "%s: no memory for its header", p->where);
}

/* ---- the cursor ---- */

static uint64_t rest_of_file(const struct parser *p)
{
    return p->file_bytes - p->at;
}

/* The next n bytes. */
static enum status take(struct parser *p, uint64_t n, const char **out)
{
    if (n > rest_of_file(p))
        return refuse(p,
                      "expected %llu bytes at offset %zu, but the file ends at %llu (truncated?)",
                      (unsigned long long)n, p->at, (unsigned long long)p->file_bytes);
    if (n > p->n - p->at) {
        p->wants_more = true;
        return refuse(p, "the header does not end in the file's first %zu bytes", p->n);
    }
    *out = p->bytes + p->at;
    p->at += (size_t)n;
    return OK;
}

static uint64_t little_endian(const char *bytes, int32_t n)
{
    uint64_t v = 0;
    for (int32_t i = n - 1; i >= 0; i--)
        v = v << 8 | (unsigned char)bytes[i];
    return v;
}

static enum status take_u32(struct parser *p, uint32_t *out)
{
    const char *bytes = NULL;
    const enum status st = take(p, 4, &bytes);
    if (st == OK)
        *out = (uint32_t)little_endian(bytes, 4);
    return st;
}

static enum status take_u64(struct parser *p, uint64_t *out)
{
    const char *bytes = NULL;
    const enum status st = take(p, 8, &bytes);
    if (st == OK)
        *out = little_endian(bytes, 8);
    return st;
}

static enum status take_string(struct parser *p, struct gguf_string *out)
{
    uint64_t n = 0;
    const char *bytes = NULL;
    enum status st = take_u64(p, &n);
    if (st == OK)
        st = take(p, n, &bytes);
    if (st == OK)
        *out = (struct gguf_string){bytes, (size_t)n};
    return st;
}

/* Of a key or a tensor (what), and it goes into messages: printable ASCII. */
static enum status take_name(struct parser *p, const char *what, size_t bytes_max,
                             struct gguf_string *out)
{
    enum status st = take_string(p, out);
    if (st != OK)
        return st;
    if (out->n == 0 || out->n > bytes_max)
        return refuse(p, "the name of a %s has %zu bytes, expected 1 to %zu", what, out->n,
                      bytes_max);
    for (size_t i = 0; i < out->n; i++) {
        if (out->bytes[i] < 0x20 || out->bytes[i] > 0x7e)
            return refuse(p, "the name of a %s has byte 0x%02x at %zu, expected printable ASCII",
                          what, (unsigned char)out->bytes[i], i);
    }
    snprintf(p->what, sizeof p->what, "%s %.*s: ", what, (int)(out->n < 120 ? out->n : 120),
             out->bytes);
    return OK;
}

/* ---- keys and values ---- */

static int32_t size_of(uint32_t type)
{
    static const int8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return sizes[type];
}

static enum status take_type(struct parser *p, enum gguf_type *out)
{
    uint32_t type = 0;
    const enum status st = take_u32(p, &type);
    if (st != OK)
        return st;
    if (type > GGUF_F64)
        return refuse(p, "unknown type of value %u, expected 0 to %d", type, GGUF_F64);
    *out = (enum gguf_type)type;
    return OK;
}

static enum status take_strings(struct parser *p, struct gguf_value *v)
{
    struct gguf_string s;
    if (v->is_array) {
        v->places = calloc(v->count + 1, sizeof *v->places);
        if (!v->places)
            return no_memory(p);
    }
    v->bytes = p->bytes + p->at;
    for (size_t i = 0; i < v->count; i++) {
        if (v->is_array)
            v->places[i] = (uint32_t)(p->bytes + p->at - v->bytes);
        const enum status st = take_string(p, &s);
        if (st != OK)
            return st;
    }
    return OK;
}

static enum status take_numbers(struct parser *p, struct gguf_value *v)
{
    const enum status st = take(p, v->count * (size_t)size_of(v->type), &v->bytes);
    for (size_t i = 0; st == OK && v->type == GGUF_BOOL && i < v->count; i++) {
        if (v->bytes[i] != 0 && v->bytes[i] != 1)
            return refuse(p, "expected a truth value of 0 or 1, found %d", (uint8_t)v->bytes[i]);
    }
    return st;
}

static enum status take_array_size(struct parser *p, struct gguf_value *v)
{
    uint64_t count = 0;
    v->is_array = true;
    enum status st = take_type(p, &v->type);
    if (st == OK && v->type == GGUF_ARRAY)
        return refuse(p, "an array of arrays, which is not read");
    if (st == OK)
        st = take_u64(p, &count);
    if (st != OK)
        return st;
    const int32_t least = v->type == GGUF_STRING ? STRING_BYTES_MIN : size_of(v->type);
    if (count > rest_of_file(p) / (uint64_t)least)
        return refuse(p, "an array of %llu elements does not fit the file's other %llu bytes",
                      (unsigned long long)count, (unsigned long long)rest_of_file(p));
    if (count > GGUF_HEADER_BYTES_MAX / (uint64_t)least)
        return refuse(p, "an array of %llu elements, at most %u bytes are read",
                      (unsigned long long)count, GGUF_HEADER_BYTES_MAX);
    if (count * (uint64_t)least > p->n - p->at) { /* before memory is taken for their places */
        const char *bytes;
        return take(p, count * (uint64_t)least, &bytes);
    }
    v->count = (size_t)count;
    return OK;
}

static enum status take_value(struct parser *p, struct gguf_value *v)
{
    p->what[0] = '\0';
    enum status st = take_name(p, "key", KEY_BYTES_MAX, &v->key);
    if (st == OK)
        st = take_type(p, &v->type);
    v->count = 1;
    if (st == OK && v->type == GGUF_ARRAY)
        st = take_array_size(p, v);
    if (st != OK)
        return st;
    return v->type == GGUF_STRING ? take_strings(p, v) : take_numbers(p, v);
}

static int by_key(const void *a, const void *b)
{
    const struct gguf_string *x = &((const struct gguf_value *)a)->key;
    const struct gguf_string *y = &((const struct gguf_value *)b)->key;
    const int order = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

static enum status take_values(struct parser *p, uint64_t count, struct gguf *g)
{
    if (count > KEYS_MAX)
        return refuse(p, "%llu keys, at most %d are read", (unsigned long long)count, KEYS_MAX);
    if (count > rest_of_file(p) / KEY_BYTES_MIN)
        return refuse(p, "%llu keys do not fit the file's other %llu bytes",
                      (unsigned long long)count, (unsigned long long)rest_of_file(p));
    g->values = calloc((size_t)count + 1, sizeof *g->values);
    if (!g->values)
        return no_memory(p);
    for (; g->value_count < (int32_t)count; g->value_count++) {
        const enum status st = take_value(p, &g->values[g->value_count]);
        if (st != OK) {
            free(g->values[g->value_count].places);
            return st;
        }
    }
    p->what[0] = '\0';
    qsort(g->values, (size_t)count, sizeof *g->values, by_key);
    for (int32_t i = 1; i < g->value_count; i++) {
        const struct gguf_string *key = &g->values[i].key;
        if (by_key(&g->values[i - 1], &g->values[i]) == 0)
            return refuse(p, "key %.*s comes twice", (int)(key->n < 120 ? key->n : 120),
                          key->bytes);
    }
    return OK;
}

static enum status find_alignment(struct parser *p, const struct gguf *g, uint64_t *out)
{
    const struct gguf_value *v = gguf_get(g, "general.alignment");
    int64_t alignment = ALIGNMENT_DEFAULT;
    if (v && !gguf_int(v, &alignment))
        return refuse(p, "expected general.alignment to be an integer");
    if (alignment < ALIGNMENT_MIN || alignment > ALIGNMENT_MAX ||
        (alignment & (alignment - 1)) != 0)
        return refuse(p, "general.alignment is %lld, expected a power of two from %d to %d",
                      (long long)alignment, ALIGNMENT_MIN, ALIGNMENT_MAX);
    *out = (uint64_t)alignment;
    return OK;
}

/* ---- tensors ---- */

/* The file has the row's length first. */
static enum status take_shape(struct parser *p, struct gguf_tensor *t)
{
    uint32_t ndim = 0;
    enum status st = take_u32(p, &ndim);
    if (st == OK && ndim > GGUF_DIMS_MAX)
        return refuse(p, "%u dimensions, at most %d are read", ndim, GGUF_DIMS_MAX);
    t->ndim = (int32_t)ndim;
    for (int32_t d = t->ndim - 1; st == OK && d >= 0; d--) {
        uint64_t extent = 0;
        st = take_u64(p, &extent);
        if (st == OK && (extent < 1 || extent > INT64_MAX))
            return refuse(p, "dimension %d is %llu, expected 1 or more", d,
                          (unsigned long long)extent);
        t->shape[d] = (int64_t)extent;
    }
    return st;
}

/* Bytes of all rows, each of which is whole blocks. */
static enum status measure(struct parser *p, struct gguf_tensor *t)
{
    const struct gguf_block_info *info = gguf_block_info(t->block);
    const int64_t width = t->ndim > 0 ? t->shape[t->ndim - 1] : 1;
    if (width % info->values != 0)
        return refuse(p, "rows of %lld values are not whole blocks of %s, which have %d",
                      (long long)width, info->name, info->values);
    size_t bytes = (size_t)(width / info->values);
    bool fits = base_mul(bytes, (size_t)info->bytes, &bytes);
    for (int32_t d = 0; d < t->ndim - 1; d++)
        fits = fits && base_mul(bytes, (size_t)t->shape[d], &bytes);
    if (!fits || bytes > INT64_MAX)
        return refuse(p, "the size of its shape overflows");
    t->bytes = bytes;
    return OK;
}

/* Leaves t->offset relative to the data. */
static enum status take_tensor(struct parser *p, struct gguf_tensor *t)
{
    struct gguf_string name = {NULL, 0};
    uint32_t type = 0;
    enum status st = OK;
    p->what[0] = '\0';
    TRY(take_name(p, "tensor", NAME_BYTES_MAX, &name));
    TRY(take_shape(p, t));
    TRY(take_u32(p, &type));
    if (!gguf_block_info(type))
        return refuse(p, "type %u of ggml (%s) is not read", type, gguf_block_name(type));
    t->block = (enum gguf_block)type;
    TRY(measure(p, t));
    TRY(take_u64(p, &t->offset));
    t->name = strndup(name.bytes, name.n);
    if (!t->name)
        return no_memory(p);
out:
    return st;
}

/* Demands that the tensors follow each other, each from the next multiple of the alignment, inside
 * the file; makes offsets absolute. */
static enum status place_tensors(struct parser *p, struct gguf *g, uint64_t alignment)
{
    const uint64_t begin = base_align(p->at, (size_t)alignment);
    uint64_t at = 0; /* behind `begin` */
    for (int32_t i = 0; i < g->tensor_count; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        snprintf(p->what, sizeof p->what, "tensor %.120s: ", t->name);
        if (t->offset != at)
            return refuse(p, "expected its bytes to begin at offset %llu, found %llu",
                          (unsigned long long)at, (unsigned long long)t->offset);
        if (begin > p->file_bytes || at > p->file_bytes - begin ||
            t->bytes > p->file_bytes - begin - at)
            return refuse(p,
                          "expected %llu bytes at offset %llu, but the file ends at %llu "
                          "(truncated?)",
                          (unsigned long long)t->bytes, (unsigned long long)(begin + at),
                          (unsigned long long)p->file_bytes);
        t->offset += begin;
        at = base_align(at + t->bytes, (size_t)alignment);
    }
    p->what[0] = '\0';
    return OK;
}

static enum status take_tensors(struct parser *p, uint64_t count, struct gguf *g)
{
    if (count > GGUF_TENSORS_MAX)
        return refuse(p, "%llu tensors, at most %d are read", (unsigned long long)count,
                      GGUF_TENSORS_MAX);
    if (count > rest_of_file(p) / TENSOR_BYTES_MIN)
        return refuse(p, "%llu tensors do not fit the file's other %llu bytes",
                      (unsigned long long)count, (unsigned long long)rest_of_file(p));
    g->tensors = calloc((size_t)count + 1, sizeof *g->tensors);
    if (!g->tensors)
        return no_memory(p);
    for (; g->tensor_count < (int32_t)count; g->tensor_count++) {
        const enum status st = take_tensor(p, &g->tensors[g->tensor_count]);
        if (st != OK)
            return st;
    }
    return OK;
}

static int by_name(const void *a, const void *b)
{
    const struct gguf_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

enum status gguf_parse_names(struct gguf *g, struct err *err)
{
    const size_t count = (size_t)g->tensor_count;
    g->by_name = calloc(count + 1, sizeof(const struct gguf_tensor *));
    if (!g->by_name)
        return base_fail(err, ERR_NOMEM, "%s: no memory for its header", g->path);
    for (size_t i = 0; i < count; i++)
        g->by_name[i] = &g->tensors[i];
    qsort(g->by_name, count, sizeof(const struct gguf_tensor *), by_name);
    for (size_t i = 1; i < count; i++) {
        if (by_name(&g->by_name[i - 1], &g->by_name[i]) == 0)
            return base_fail(err, ERR_MODEL, "%.200s: tensor %.127s comes twice", g->path,
                             g->by_name[i]->name);
    }
    return OK;
}

/* ---- the file ---- */

static enum status take_version(struct parser *p)
{
    const char *magic = NULL;
    uint32_t version = 0;
    if (file_is_lfs_pointer(p->bytes, p->n))
        return base_fail(p->err, ERR_MODEL, "%.200s " FILE_LFS_MEANING, p->where);
    enum status st = take(p, strlen(MAGIC), &magic);
    if (st == OK && memcmp(magic, MAGIC, strlen(MAGIC)) != 0)
        return refuse(
            p, "expected a GGUF file, which begins with " MAGIC ", found bytes %02x %02x %02x %02x",
            (uint8_t)magic[0], (uint8_t)magic[1], (uint8_t)magic[2], (uint8_t)magic[3]);
    if (st == OK)
        st = take_u32(p, &version);
    if (st == OK && version != 0 && (version & 0xffff) == 0)
        return refuse(p, "its numbers are big-endian, expected little-endian ones");
    if (st == OK && (version < VERSION_MIN || version > VERSION_MAX))
        return refuse(p, "GGUF version %u, expected %d or %d", version, VERSION_MIN, VERSION_MAX);
    return st;
}

static enum status parse(struct parser *p, struct gguf *g)
{
    enum status st = OK;
    uint64_t tensors = 0, values = 0, alignment = 0;
    TRY(take_version(p));
    TRY(take_u64(p, &tensors));
    TRY(take_u64(p, &values));
    TRY(take_values(p, values, g));
    TRY(find_alignment(p, g, &alignment));
    TRY(take_tensors(p, tensors, g));
    TRY(place_tensors(p, g, alignment));
out:
    return st;
}

enum status gguf_parse_part(const char *bytes, size_t n, uint64_t file_bytes, const char *where,
                            struct gguf **out, bool *wants_more, struct err *err)
{
    enum status st = OK;
    struct parser p = {.bytes = bytes, .file_bytes = file_bytes, .where = where, .err = err};
    struct gguf *g = calloc(1, sizeof *g);
    *wants_more = false;
    p.n = n < GGUF_HEADER_BYTES_MAX ? n : GGUF_HEADER_BYTES_MAX;
    if (!g || !(g->path = strdup(where)) || !(g->files = calloc(1, sizeof *g->files))) {
        st = no_memory(&p);
        goto out;
    }
    g->file_count = 1;
    g->files[0].fd = -1;
    if (n > file_bytes || file_bytes > INT64_MAX) {
        st = base_fail(err, ERR_INTERNAL, "%s: %zu bytes of a file of %llu", where, n,
                       (unsigned long long)file_bytes);
        goto out;
    }
    TRY(parse(&p, g));
    *out = g;
    g = NULL;
out:
    *wants_more = p.wants_more;
    gguf_close(g);
    return st;
}

enum status gguf_parse(const char *bytes, size_t n, uint64_t file_bytes, const char *where,
                       struct gguf **out, struct err *err)
{
    bool wants_more;
    struct gguf *g = NULL;
    enum status st = gguf_parse_part(bytes, n, file_bytes, where, &g, &wants_more, err);
    if (st == OK)
        st = gguf_parse_names(g, err);
    if (st == OK)
        *out = g;
    else
        gguf_close(g);
    return st;
}
