/* For tests of GGUF files: opening one, and a small one that is made in memory, with the places
 * where it can be made wrong. Included once. */
#ifndef TESSERA_TESTS_GGUF_IMAGE_H
#define TESSERA_TESTS_GGUF_IMAGE_H

#include "tests/scratch.h"
#include "weights/gguf/gguf.h"

#include <string.h>

static inline struct gguf *open_good(const char *path)
{
    struct gguf *g = NULL;
    struct err err = {{0}};
    if (gguf_open(path, &g, &err) != OK)
        fail_msg("%s", err.text);
    return g;
}

static inline void open_bad(const char *path, enum status wanted, const char *words)
{
    struct gguf *g = NULL;
    struct err err = {{0}};
    const enum status st = gguf_open(path, &g, &err);
    assert_null(g);
    if (st != wanted || !strstr(err.text, words))
        fail_msg("expected %d and \"%s\", found %d: %s", (int)wanted, words, (int)st, err.text);
}

static inline void read_rows(const struct gguf *g, const struct gguf_tensor *t, int64_t first,
                             int64_t count, void *dst)
{
    struct err err = {{0}};
    if (gguf_read_rows(g, t, first, count, dst, &err) != OK)
        fail_msg("%s", err.text);
}

/* ---- a file in memory ---- */

struct image {
    char *bytes;
    size_t n, room;
};

static inline void put(struct image *m, const void *bytes, size_t n)
{
    if (m->n + n > m->room) {
        m->room = 2 * (m->n + n);
        m->bytes = realloc(m->bytes, m->room);
        assert_non_null(m->bytes);
    }
    memcpy(m->bytes + m->n, bytes, n);
    m->n += n;
}

static inline void put_int(struct image *m, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++, v >>= 8)
        put(m, &(char){(char)(v & 255)}, 1);
}

static inline void put_text(struct image *m, const char *text)
{
    put_int(m, strlen(text), 8);
    put(m, text, strlen(text));
}

/* Places of the small file. */
enum place {
    MAGIC,
    VERSION,
    TENSORS,
    KEYS,
    ALIGNMENT_TYPE,
    ALIGNMENT,
    TRUTH_KEY,
    TRUTH_TYPE,
    TRUTH,
    LIST_KEY_SIZE,
    LIST_KEY,
    LIST_TYPE,
    LIST_SIZE,
    LIST_TEXT,
    EMPTY_TYPE,
    NAME_SIZE,
    NAME,
    DIMENSIONS,
    WIDTH_0,
    HEIGHT_0,
    BLOCK,
    OFFSET_0,
    NAME_1,
    WIDTH_1,
    BLOCK_1,
    OFFSET_1,
    HEADER_END,
    PLACES
};

static inline void put_keys(struct image *m, size_t at[PLACES])
{
    put_text(m, "general.alignment");
    at[ALIGNMENT_TYPE] = m->n, put_int(m, GGUF_U32, 4);
    at[ALIGNMENT] = m->n, put_int(m, 32, 4);
    at[TRUTH_KEY] = m->n + 8, put_text(m, "b");
    at[TRUTH_TYPE] = m->n, put_int(m, GGUF_BOOL, 4);
    at[TRUTH] = m->n, put_int(m, 1, 1);
    at[LIST_KEY_SIZE] = m->n, at[LIST_KEY] = m->n + 8, put_text(m, "a");
    put_int(m, GGUF_ARRAY, 4);
    at[LIST_TYPE] = m->n, put_int(m, GGUF_STRING, 4);
    at[LIST_SIZE] = m->n, put_int(m, 2, 8);
    at[LIST_TEXT] = m->n, put_text(m, "x");
    put_text(m, "");
    put_text(m, "empty");
    put_int(m, GGUF_ARRAY, 4);
    at[EMPTY_TYPE] = m->n, put_int(m, GGUF_I32, 4);
    put_int(m, 0, 8);
}

/* Two rows of a block of Q8_0, and 3 values of fp32. */
static inline struct image small_file(size_t at[PLACES])
{
    struct image m = {0};
    at[MAGIC] = m.n, put(&m, "GGUF", 4);
    at[VERSION] = m.n, put_int(&m, 3, 4);
    at[TENSORS] = m.n, put_int(&m, 2, 8);
    at[KEYS] = m.n, put_int(&m, 4, 8);
    put_keys(&m, at);
    at[NAME_SIZE] = m.n, at[NAME] = m.n + 8, put_text(&m, "s");
    at[DIMENSIONS] = m.n, put_int(&m, 2, 4);
    at[WIDTH_0] = m.n, put_int(&m, 32, 8);
    at[HEIGHT_0] = m.n, put_int(&m, 2, 8);
    at[BLOCK] = m.n, put_int(&m, GGUF_BLOCK_Q8_0, 4);
    at[OFFSET_0] = m.n, put_int(&m, 0, 8);
    at[NAME_1] = m.n + 8, put_text(&m, "t");
    put_int(&m, 1, 4);
    at[WIDTH_1] = m.n, put_int(&m, 3, 8);
    at[BLOCK_1] = m.n, put_int(&m, GGUF_BLOCK_F32, 4);
    at[OFFSET_1] = m.n, put_int(&m, 96, 8);
    at[HEADER_END] = m.n;
    put_int(&m, 0, base_align(m.n, 32) - m.n);
    for (int32_t i = 0; i < 96 + 12; i++)
        put_int(&m, (uint64_t)i, 1);
    return m;
}

#endif
