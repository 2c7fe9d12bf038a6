/* What an open GGUF file is made of, between its parser (gguf_parse.c) and its reader (gguf.c). */
#ifndef TESSERA_WEIGHTS_GGUF_GGUF_PARTS_H
#define TESSERA_WEIGHTS_GGUF_GGUF_PARTS_H

#include "weights/gguf/gguf.h"

struct gguf_value {
    struct gguf_string key;
    enum gguf_type type; /* of an array: of its elements */
    bool is_array;
    size_t count;      /* of elements, 1 where it is no array */
    const char *bytes; /* of the first element */
    uint32_t *places;  /* of an array's strings, behind the first; owned */
};

/* One of the files that a model is split into. */
struct gguf_file {
    int fd; /* -1: bytes in memory */
    char *path;
    char *header; /* owned; NULL: the caller's */
};

struct gguf {
    char *path;
    struct gguf_file *files;
    int32_t file_count;
    struct gguf_value *values; /* borrow from the first file's header */
    int32_t value_count;
    struct gguf_tensor *tensors; /* in the files' order */
    int32_t tensor_count;
    const struct gguf_tensor **by_name; /* sorted */
};

/* As gguf_parse, of one file, with its tensors not yet sorted by name. *wants_more: the header goes
 * on behind the n bytes, and the file does, too; the status is ERR_MODEL then. */
enum status gguf_parse_part(const char *bytes, size_t n, uint64_t file_bytes, const char *where,
                            struct gguf **out, bool *wants_more, struct err *err) MUST_USE;
/* Sorts the tensors of all parts by name. ERR_MODEL where one comes twice. */
enum status gguf_parse_names(struct gguf *g, struct err *err) MUST_USE;

#endif
