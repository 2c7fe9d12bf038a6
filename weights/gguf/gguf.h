/* A GGUF file of llama.cpp's, read: one model's settings, vocabulary and tensors in one file, or in
 * several that were split. Every rule is checked before any bulk read: magic, version 2 or 3,
 * little endian, counts and lengths inside the file, names that are not empty and not repeated,
 * known types, at most 4 dimensions, sizes without overflow, whole blocks in a row, tensors that
 * follow each other at multiples of the alignment and inside the file.
 * Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */
#ifndef TESSERA_WEIGHTS_GGUF_GGUF_H
#define TESSERA_WEIGHTS_GGUF_GGUF_H

#include "config/base.h"
#include "weights/gguf/gguf_blocks.h"

#define GGUF_DIMS_MAX 4
#define GGUF_TENSORS_MAX 100000
#define GGUF_HEADER_BYTES_MAX (512u << 20) /* keys, values and the list of tensors, of one file */

/* The values' numbers are the format's own. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
};

/* A string of the file, which need not end in a NUL, hold UTF-8 or be free of NULs. Borrowed. */
struct gguf_string {
    const char *bytes;
    size_t n;
};

struct gguf_value; /* of one key; borrowed from its file */

struct gguf_tensor {
    char *name;
    enum gguf_block block;
    int32_t ndim;
    int64_t shape[GGUF_DIMS_MAX]; /* as safetensors have it: the row's length is the last */
    int32_t file;                 /* of those that it was split into */
    uint64_t offset, bytes;       /* in that file */
};

struct gguf; /* immutable once open, so any thread may read through it */

/* ERR_MODEL names the file, what was expected and what found. Of a split model `path` names any
 * part (NAME-00001-of-00003.gguf); the others are found beside it. */
enum status gguf_open(const char *path, struct gguf **out, struct err *err) MUST_USE;
void gguf_close(struct gguf *g); /* NULL ok */
/* Of a split model the first part's. */
const char *gguf_path(const struct gguf *g);

int32_t gguf_tensor_count(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, int32_t i);
/* NULL when absent. */
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);
/* Bytes of the tensor's rows [first, first + count), which are whole blocks: rows of the last
 * dimension, counted over all the others. A short file is ERR_MODEL. */
enum status gguf_read_rows(const struct gguf *g, const struct gguf_tensor *t, int64_t first,
                           int64_t count, void *dst, struct err *err) MUST_USE;

/* NULL when absent; of a split model the first part's. */
const struct gguf_value *gguf_get(const struct gguf *g, const char *key);
/* False where the value is absent (v NULL) or is no such thing; *out is then as it was. An integer
 * of any width that fits; a number may be an integer, too. */
bool gguf_int(const struct gguf_value *v, int64_t *out);
bool gguf_number(const struct gguf_value *v, double *out);
bool gguf_bool(const struct gguf_value *v, bool *out);
bool gguf_text(const struct gguf_value *v, struct gguf_string *out);
/* Elements of an array, 0 where the value is none. */
size_t gguf_array_size(const struct gguf_value *v);
/* Element i of an array, false also where it has none. Truth values are the integers 0 and 1.
 * Constant time for numbers, and for strings, whose places are found once when the file is opened.
 */
bool gguf_array_int(const struct gguf_value *v, size_t i, int64_t *out);
bool gguf_array_number(const struct gguf_value *v, size_t i, double *out);
bool gguf_array_text(const struct gguf_value *v, size_t i, struct gguf_string *out);

/* The n bytes of a file's beginning as gguf_open checks them, for a file of file_bytes, which are
 * borrowed until the close; its tensors cannot be read. For fuzzing. */
enum status gguf_parse(const char *bytes, size_t n, uint64_t file_bytes, const char *where,
                       struct gguf **out, struct err *err) MUST_USE;

#endif
