/* DESIGN: blocks that double up to a size, each used from its start. Nothing is given back before
 * the whole, so cleaning up after an error is one line. */
#include "server/template/jinja_arena.h"

#include <stdlib.h>

#define BLOCK_MIN 4096u
#define BLOCK_MAX (1u << 20)

/* Under AddressSanitizer a piece is a block of its own, so that a step past its end is seen. */
#if defined(__SANITIZE_ADDRESS__)
#define PIECES_APART true
#elif defined(__clang__)
#if __has_feature(address_sanitizer)
#define PIECES_APART true
#endif
#endif
#ifndef PIECES_APART
#define PIECES_APART false
#endif

struct arena_block {
    struct arena_block *older;
    size_t used, size;
    max_align_t bytes[];
};

void jinja_arena_init(struct arena *a, size_t bytes_max)
{
    *a = (struct arena){.left = bytes_max};
}

static size_t block_size(const struct arena *a, size_t n)
{
    size_t size = a->newest ? 2 * a->newest->size : BLOCK_MIN;
    if (size > BLOCK_MAX)
        size = BLOCK_MAX;
    return PIECES_APART || size < n ? n : size;
}

static struct arena_block *add_block(struct arena *a, size_t n)
{
    const size_t size = block_size(a, n);
    struct arena_block *b = calloc(1, sizeof *b + size);
    if (!b)
        return NULL;
    b->older = a->newest;
    b->size = size;
    a->newest = b;
    return b;
}

void *jinja_arena_take(struct arena *a, size_t n)
{
    struct arena_block *b = a->newest;
    if (n > a->left) {
        a->full = true;
        return NULL;
    }
    const size_t aligned = base_align(n, sizeof(max_align_t));
    if (PIECES_APART)
        b = add_block(a, n);
    else if (!b || aligned > b->size - b->used)
        b = add_block(a, aligned);
    if (!b)
        return NULL;
    char *piece = (char *)b->bytes + b->used;
    b->used += aligned;
    a->left -= aligned < a->left ? aligned : a->left;
    return piece;
}

void *jinja_arena_array(struct arena *a, size_t count, size_t size)
{
    size_t n = 0;
    if (base_mul(count, size, &n))
        return jinja_arena_take(a, n);
    a->full = true;
    return NULL;
}

void jinja_arena_free(struct arena *a)
{
    for (struct arena_block *b = a->newest, *older; b; b = older) {
        older = b->older;
        free(b);
    }
    *a = (struct arena){.newest = NULL};
}
