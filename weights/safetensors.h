/* One safetensors file, in and out. Every rule is checked before any bulk read: file >= 8 bytes,
 * header <= 100 MB and inside the file, starts with '{', valid UTF-8 JSON without duplicate keys,
 * known dtypes, <= 100 000 tensors, <= 8 dimensions, sizes without overflow, byte length =
 * elements x size, offsets contiguous from 0, last end = end of file.
 * Format: https://github.com/huggingface/safetensors (README, "Format"). */
#ifndef TESSERA_WEIGHTS_SAFETENSORS_H
#define TESSERA_WEIGHTS_SAFETENSORS_H

#include "config/base.h"
#include "config/dtype.h"

#define SAFETENSORS_DIMS_MAX 8
#define SAFETENSORS_TENSORS_MAX 100000

struct safetensors_entry {
    char *name;
    enum dtype dtype;
    int32_t ndim;
    int64_t shape[SAFETENSORS_DIMS_MAX];
    uint64_t offset; /* of the first byte, from the start of the file */
    uint64_t bytes;
};

/* An open file; immutable, so any thread may read through it. */
struct safetensors {
    int fd;
    char *path;
    uint64_t file_bytes, header_bytes; /* header_bytes includes the 8 of its length */
    int64_t modified_ns;               /* when it was last written, by its file system */
    struct safetensors_entry *entries; /* in order of their bytes */
    int32_t count;
    char *metadata; /* the "__metadata__" object as JSON text, NULL when absent */
};

/* Checks a header of n bytes (without the 8-byte length) for a file of file_bytes; fills entries,
 * count and metadata of *out (fd and path are not touched). For tests and fuzzing too. */
enum status safetensors_parse(const char *header, size_t n, uint64_t file_bytes, const char *where,
                              struct safetensors *out, struct err *err) MUST_USE;
/* ERR_MODEL names file, tensor, expected, found. Follows symlinks: whether that is right is the
 * caller's matter (weights/checkpoint does not). */
enum status safetensors_open(const char *path, struct safetensors *out, struct err *err) MUST_USE;
/* The same over an open descriptor, which it owns from here on, also on failure. `path` is only for
 * messages. */
enum status safetensors_adopt(int fd, const char *path, struct safetensors *out,
                              struct err *err) MUST_USE;
void safetensors_close(struct safetensors *st); /* NULL and a zeroed struct are fine */
/* NULL when absent. Linear: for a few look-ups, not for a table. */
const struct safetensors_entry *safetensors_find(const struct safetensors *st, const char *name);

/* pread of exactly n bytes at offset; a short file is ERR_MODEL. */
enum status safetensors_read(const struct safetensors *st, uint64_t offset, void *dst, size_t n,
                             struct err *err) MUST_USE;

/* ---- writing: declare all tensors, then stream their bytes in the declared order ---- */
struct safetensors_writer;
/* entries need name, dtype, ndim, shape; offsets are computed. metadata: JSON object text of
 * string values, or NULL. The file appears under its name only at finish. */
enum status safetensors_create(const char *path, const struct safetensors_entry *entries,
                               int32_t count, const char *metadata, struct safetensors_writer **out,
                               struct err *err) MUST_USE;
enum status safetensors_write(struct safetensors_writer *w, const void *bytes, size_t n,
                              struct err *err) MUST_USE;
/* Checks that exactly the declared bytes were written, renames into place, frees w (also on
 * failure). */
enum status safetensors_finish(struct safetensors_writer *w, struct err *err) MUST_USE;
void safetensors_discard(struct safetensors_writer *w); /* removes the unfinished file; NULL ok */

#endif
