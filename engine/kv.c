/* DESIGN: a stack of free block numbers plus a count of promised ones. Last in, first out keeps the
 * recently used, cache-warm blocks in use. */
#include "engine/kv.h"

#include "kernels/backend.h"

#include <stdlib.h>

struct kv_pool {
    int32_t total, free_count, reserved;
    int32_t *free; /* stack */
    bool *taken;   /* per block */
};

enum status kv_open(int32_t blocks, struct kv_pool **out, struct err *err)
{
    struct kv_pool *p = calloc(1, sizeof *p);
    if (p) {
        p->free = calloc((size_t)blocks + 1, sizeof *p->free);
        p->taken = calloc((size_t)blocks + 1, sizeof *p->taken);
    }
    if (!p || !p->free || !p->taken) {
        kv_close(p);
        return base_fail(err, ERR_NOMEM, "KV pool: no memory for %d blocks", blocks);
    }
    p->total = p->free_count = blocks;
    for (int32_t i = 0; i < blocks; i++)
        p->free[i] = blocks - 1 - i;
    *out = p;
    return OK;
}

void kv_close(struct kv_pool *p)
{
    if (!p)
        return;
    free(p->free);
    free(p->taken);
    free(p);
}

int32_t kv_blocks_for(int32_t positions)
{
    return (positions + BACKEND_BLOCK_TOKENS - 1) / BACKEND_BLOCK_TOKENS;
}

bool kv_reserve(struct kv_pool *p, int32_t n)
{
    if (n > p->free_count - p->reserved)
        return false;
    p->reserved += n;
    return true;
}

int32_t kv_take(struct kv_pool *p)
{
    CHECK(p->reserved > 0);
    CHECK(p->free_count > 0);
    p->reserved--;
    int32_t block = p->free[--p->free_count];
    CHECK(!p->taken[block]);
    p->taken[block] = true;
    return block;
}

void kv_release(struct kv_pool *p, const int32_t *blocks, int32_t n, int32_t untaken)
{
    for (int32_t i = n - 1; i >= 0; i--) {
        CHECK(p->taken[blocks[i]]);
        p->taken[blocks[i]] = false;
        p->free[p->free_count++] = blocks[i];
    }
    CHECK(untaken >= 0);
    CHECK(untaken <= p->reserved);
    p->reserved -= untaken;
}

int32_t kv_total(const struct kv_pool *p)
{
    return p->total;
}

int32_t kv_used(const struct kv_pool *p)
{
    return p->total - p->free_count;
}

int32_t kv_reserved(const struct kv_pool *p)
{
    return p->reserved;
}

void kv_check(const struct kv_pool *p)
{
    int32_t taken = 0;
    for (int32_t i = 0; i < p->total; i++)
        taken += p->taken[i];
    CHECK(taken + p->free_count == p->total);
    CHECK(p->reserved <= p->free_count);
    for (int32_t i = 0; i < p->free_count; i++) {
        CHECK(!p->taken[p->free[i]]);
        for (int32_t j = 0; j < i; j++)
            CHECK(p->free[j] != p->free[i]);
    }
}
