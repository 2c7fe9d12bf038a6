/* DESIGN: headers are read whole and kept, since the vocabulary is borrowed from the first one;
 * tensors are read with pread. mmap was rejected: a file that shrinks while it is read must be an
 * error, not a SIGBUS. A split model is its parts' tensors in one list, with the first part's keys.
 * Invariant: every tensor of an open model lies inside its file. */
#include "weights/gguf/gguf.h"
#include "weights/gguf/gguf_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_BYTES (1u << 20) /* that are read of a header; doubled until it ends */
#define FILES_MAX 512

/* ---- values ---- */

const struct gguf_value *gguf_get(const struct gguf *g, const char *key)
{
    const size_t n = strlen(key);
    for (int32_t i = 0; i < g->value_count; i++) {
        const struct gguf_string *k = &g->values[i].key;
        if (k->n == n && memcmp(k->bytes, key, n) == 0)
            return &g->values[i];
    }
    return NULL;
}

/* Element i as it lies in the file. */
#define LOAD(v, i, type, out)                                                                      \
    do {                                                                                           \
        type x;                                                                                    \
        memcpy(&x, (v)->bytes + (i) * sizeof x, sizeof x);                                         \
        *(out) = x;                                                                                \
    } while (0)

static bool load_int(const struct gguf_value *v, size_t i, int64_t *out)
{
    uint64_t large;
    switch (v->type) {
    case GGUF_U8:
    case GGUF_BOOL:
        LOAD(v, i, uint8_t, out);
        return true;
    case GGUF_I8:
        LOAD(v, i, int8_t, out);
        return true;
    case GGUF_U16:
        LOAD(v, i, uint16_t, out);
        return true;
    case GGUF_I16:
        LOAD(v, i, int16_t, out);
        return true;
    case GGUF_U32:
        LOAD(v, i, uint32_t, out);
        return true;
    case GGUF_I32:
        LOAD(v, i, int32_t, out);
        return true;
    case GGUF_I64:
        LOAD(v, i, int64_t, out);
        return true;
    case GGUF_U64:
        LOAD(v, i, uint64_t, &large);
        if (large > INT64_MAX)
            return false;
        *out = (int64_t)large;
        return true;
    case GGUF_F32:
    case GGUF_F64:
    case GGUF_STRING:
    case GGUF_ARRAY:
        return false;
    }
    return false;
}

static bool load_number(const struct gguf_value *v, size_t i, double *out)
{
    int64_t whole;
    uint64_t large;
    float single;
    if (v->type == GGUF_F32) {
        LOAD(v, i, float, &single);
        *out = (double)single;
    } else if (v->type == GGUF_F64) {
        LOAD(v, i, double, out);
    } else if (v->type == GGUF_U64) {
        LOAD(v, i, uint64_t, &large);
        *out = (double)large;
    } else if (v->type != GGUF_BOOL && load_int(v, i, &whole)) {
        *out = (double)whole;
    } else {
        return false;
    }
    return true;
}

static struct gguf_string load_text(const struct gguf_value *v, size_t i)
{
    uint64_t n;
    const char *at = v->bytes + (v->places ? v->places[i] : 0);
    memcpy(&n, at, sizeof n);
    return (struct gguf_string){at + sizeof n, (size_t)n};
}

bool gguf_int(const struct gguf_value *v, int64_t *out)
{
    return v && !v->is_array && v->type != GGUF_BOOL && load_int(v, 0, out);
}

bool gguf_number(const struct gguf_value *v, double *out)
{
    return v && !v->is_array && load_number(v, 0, out);
}

bool gguf_bool(const struct gguf_value *v, bool *out)
{
    if (!v || v->is_array || v->type != GGUF_BOOL)
        return false;
    *out = v->bytes[0] != 0;
    return true;
}

bool gguf_text(const struct gguf_value *v, struct gguf_string *out)
{
    if (!v || v->is_array || v->type != GGUF_STRING)
        return false;
    *out = load_text(v, 0);
    return true;
}

size_t gguf_array_size(const struct gguf_value *v)
{
    return v && v->is_array ? v->count : 0;
}

bool gguf_array_int(const struct gguf_value *v, size_t i, int64_t *out)
{
    return i < gguf_array_size(v) && load_int(v, i, out);
}

bool gguf_array_number(const struct gguf_value *v, size_t i, double *out)
{
    return i < gguf_array_size(v) && load_number(v, i, out);
}

bool gguf_array_text(const struct gguf_value *v, size_t i, struct gguf_string *out)
{
    if (i >= gguf_array_size(v) || v->type != GGUF_STRING)
        return false;
    *out = load_text(v, i);
    return true;
}

/* ---- tensors ---- */

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

int32_t gguf_tensor_count(const struct gguf *g)
{
    return g->tensor_count;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, int32_t i)
{
    CHECK(i >= 0 && i < g->tensor_count);
    return &g->tensors[i];
}

static int by_name(const void *key, const void *element)
{
    const struct gguf_tensor *const *t = element;
    return strcmp(key, (*t)->name);
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    const struct gguf_tensor *const *found =
        bsearch(name, g->by_name, (size_t)g->tensor_count, sizeof *g->by_name, by_name);
    return found ? *found : NULL;
}

static enum status read_at(const struct gguf_file *f, uint64_t offset, void *dst, size_t n,
                           struct err *err)
{
    size_t got = 0;
    while (got < n) {
        const ssize_t r = pread(f->fd, (char *)dst + got, n - got, (off_t)(offset + got));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return base_fail_errno(err, ERR_IO, "%s: reading %zu bytes at %llu", f->path, n - got,
                                   (unsigned long long)(offset + got));
        if (r == 0)
            return base_fail(err, ERR_MODEL,
                             "%s: expected %zu bytes at %llu, found %zu: the file was truncated",
                             f->path, n, (unsigned long long)offset, got);
        got += (size_t)r;
    }
    return OK;
}

enum status gguf_read_rows(const struct gguf *g, const struct gguf_tensor *t, int64_t first,
                           int64_t count, void *dst, struct err *err)
{
    int64_t rows = 1;
    for (int32_t d = 0; d < t->ndim - 1; d++)
        rows *= t->shape[d];
    if (first < 0 || count < 0 || first > rows || count > rows - first)
        return base_fail(err, ERR_INTERNAL, "%s: rows %lld + %lld of tensor %s, which has %lld",
                         g->path, (long long)first, (long long)count, t->name, (long long)rows);
    const uint64_t row_bytes = t->bytes / (uint64_t)rows;
    return read_at(&g->files[t->file], t->offset + (uint64_t)first * row_bytes, dst,
                   (size_t)((uint64_t)count * row_bytes), err);
}

/* ---- one file ---- */

/* Parses the header of f, of which as much is read as it needs. */
static enum status read_header(struct gguf_file *f, uint64_t file_bytes, struct gguf **out,
                               struct err *err)
{
    size_t n = 0;
    bool wants_more = true;
    enum status st = OK;
    while (wants_more) {
        const size_t from = n, most = n == 0 ? FIRST_BYTES : 2 * n;
        n = most < file_bytes ? most : (size_t)file_bytes;
        if (n > GGUF_HEADER_BYTES_MAX)
            return st; /* which says that the header does not end in what was read */
        char *grown = realloc(f->header, n + 1);
        if (!grown)
            return base_fail(err, ERR_NOMEM, "%s: no memory for its header", f->path);
        f->header = grown;
        st = read_at(f, from, f->header + from, n - from, err);
        if (st != OK)
            return st;
        st = gguf_parse_part(f->header, n, file_bytes, f->path, out, &wants_more, err);
    }
    return st;
}

static void close_file(struct gguf_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    free(f->header);
    free(f->path);
    *f = (struct gguf_file){.fd = -1};
}

static enum status open_part(const char *path, struct gguf **out, struct err *err)
{
    struct stat sb;
    struct gguf *g = NULL;
    enum status st = OK;
    struct gguf_file f = {.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)}; /* no FIFO's wait */
    if (f.fd < 0)
        return base_fail_errno(err, errno == ENOENT ? ERR_MODEL : ERR_IO, "%s", path);
    f.path = strdup(path);
    if (!f.path) {
        st = base_fail(err, ERR_NOMEM, "%s: no memory", path);
        goto out;
    }
    if (fstat(f.fd, &sb) != 0) {
        st = base_fail_errno(err, ERR_IO, "%s", path);
        goto out;
    }
    if (!S_ISREG(sb.st_mode)) {
        st = base_fail(err, ERR_MODEL, "%s: not a regular file", path);
        goto out;
    }
    TRY(read_header(&f, (uint64_t)sb.st_size, &g, err));
    g->files[0] = f;
    f = (struct gguf_file){.fd = -1};
    *out = g;
out:
    close_file(&f);
    return st;
}

static void free_values(struct gguf *g)
{
    for (int32_t i = 0; i < g->value_count; i++)
        free(g->values[i].places);
    free(g->values);
    g->values = NULL;
    g->value_count = 0;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    for (int32_t i = 0; i < g->file_count; i++)
        close_file(&g->files[i]);
    for (int32_t i = 0; i < g->tensor_count; i++)
        free(g->tensors[i].name);
    free_values(g);
    free(g->by_name);
    free(g->tensors);
    free(g->files);
    free(g->path);
    free(g);
}

/* ---- split models ---- */

/* What a part says of itself. */
struct split {
    int64_t number, count, tensors; /* tensors: of all parts, -1 where it does not say */
};

static enum status split_of(const struct gguf *part, struct split *out, struct err *err)
{
    struct split s = {0, 1, -1};
    const struct gguf_value *number = gguf_get(part, "split.no");
    const struct gguf_value *count = gguf_get(part, "split.count");
    const struct gguf_value *tensors = gguf_get(part, "split.tensors.count");
    if ((number && !gguf_int(number, &s.number)) || (count && !gguf_int(count, &s.count)) ||
        (tensors && !gguf_int(tensors, &s.tensors)))
        return base_fail(err, ERR_MODEL, "%s: expected its split.* to be integers", part->path);
    if (s.count > FILES_MAX)
        return base_fail(err, ERR_MODEL, "%s: one of %lld files, at most %d are read", part->path,
                         (long long)s.count, FILES_MAX);
    if (s.count > 1 && (!number || s.number < 0 || s.number >= s.count))
        return base_fail(err, ERR_MODEL, "%s: split.no is %lld, expected 0 to %lld", part->path,
                         number ? (long long)s.number : -1, (long long)s.count - 1);
    *out = s;
    return OK;
}

/* How the name of part i ends. */
static void name_end(char *end, size_t cap, int64_t i, int64_t count)
{
    snprintf(end, cap, "-%05lld-of-%05lld.gguf", (long long)i + 1, (long long)count);
}

/* Opens parts[0..s->count) of which `path` names number s->number. */
static enum status open_parts(const char *path, const struct split *s, struct gguf **parts,
                              struct err *err)
{
    char end[64], name[PATH_MAX];
    struct split other;
    enum status st = OK;
    name_end(end, sizeof end, s->number, s->count);
    const size_t n = strlen(path), cut = strlen(end);
    if (n < cut || strcmp(path + n - cut, end) != 0)
        return base_fail(err, ERR_MODEL,
                         "%s: part %lld of %lld, so its name is expected to end in %s", path,
                         (long long)s->number + 1, (long long)s->count, end);
    for (int64_t i = 0; i < s->count; i++) {
        if (i == s->number)
            continue;
        name_end(end, sizeof end, i, s->count);
        if ((size_t)snprintf(name, sizeof name, "%.*s%s", (int)(n - cut), path, end) >= sizeof name)
            return base_fail(err, ERR_MODEL, "%.200s: a path of %zu bytes is too long", path, n);
        TRY(open_part(name, &parts[i], err));
        TRY(split_of(parts[i], &other, err));
        if (other.number != i || other.count != s->count)
            return base_fail(err, ERR_MODEL,
                             "%s: expected part %lld of %lld (split.no, split.count), found part "
                             "%lld of %lld",
                             name, (long long)i + 1, (long long)s->count,
                             (long long)other.number + 1, (long long)other.count);
    }
out:
    return st;
}

/* Moves the parts' files and tensors into the first. */
static enum status join(struct gguf **parts, const struct split *s, struct err *err)
{
    struct gguf *g = parts[0];
    int64_t count = 0;
    for (int64_t i = 0; i < s->count; i++)
        count += parts[i]->tensor_count;
    if (count > GGUF_TENSORS_MAX)
        return base_fail(err, ERR_MODEL, "%s: %lld tensors in its parts, at most %d are read",
                         g->path, (long long)count, GGUF_TENSORS_MAX);
    if (s->tensors >= 0 && s->tensors != count)
        return base_fail(err, ERR_MODEL,
                         "%s: expected %lld tensors in its parts (split.tensors.count), found %lld",
                         g->path, (long long)s->tensors, (long long)count);
    struct gguf_file *files = realloc(g->files, (size_t)s->count * sizeof *files);
    g->files = files ? files : g->files;
    struct gguf_tensor *tensors = realloc(g->tensors, (size_t)(count + 1) * sizeof *tensors);
    g->tensors = tensors ? tensors : g->tensors;
    if (!files || !tensors)
        return base_fail(err, ERR_NOMEM, "%s: no memory", g->path);
    for (int32_t i = 1; i < s->count; i++) {
        struct gguf *part = parts[i];
        free_values(part);
        free(part->files[0].header);
        part->files[0].header = NULL;
        g->files[g->file_count++] = part->files[0];
        for (int32_t k = 0; k < part->tensor_count; k++) {
            part->tensors[k].file = i;
            g->tensors[g->tensor_count++] = part->tensors[k];
        }
        part->file_count = part->tensor_count = 0;
    }
    return OK;
}

enum status gguf_open(const char *path, struct gguf **out, struct err *err)
{
    enum status st = OK;
    struct split s = {0, 1, -1};
    struct gguf *given = NULL, **parts = NULL;
    TRY(open_part(path, &given, err));
    TRY(split_of(given, &s, err));
    if (s.count <= 1)
        s = (struct split){0, 1, -1};
    parts = calloc((size_t)s.count, sizeof(struct gguf *));
    if (!parts) {
        st = base_fail(err, ERR_NOMEM, "%s: no memory", path);
        goto out;
    }
    parts[s.number] = given;
    given = NULL;
    if (s.count > 1) {
        TRY(open_parts(path, &s, parts, err));
        TRY(join(parts, &s, err));
    }
    TRY(gguf_parse_names(parts[0], err));
    *out = parts[0];
    parts[0] = NULL;
out:
    gguf_close(given);
    for (int64_t i = 0; parts && i < s.count; i++)
        gguf_close(parts[i]);
    free(parts);
    return st;
}
