/* DESIGN: one array of blocks, one list of those without an owner, one hash table of those that are
 * findable. The list runs from the block to take next: blocks without content go to its front (the
 * one just freed is warm in the caches), kept ones to its back. Names are serial numbers, so a
 * block whose predecessor was forgotten is never found by mistake: it is not found at all. */
#include "engine/kv.h"

#include <stdlib.h>
#include <string.h>

struct block {
    struct kv_key key;
    uint64_t name, stamp; /* name 0: not findable */
    int32_t owners;
    int32_t prev, next; /* in the list while owners == 0 */
    int32_t chain;      /* next in its bucket */
};

struct kv_pool {
    int32_t total, used, kept;
    uint64_t secret[2], names;
    struct block *blocks; /* [total + 1]; the last is the list's head and end */
    int32_t *buckets;     /* [mask + 1] first of each, -1: none */
    uint32_t mask;
};

enum status kv_open(int32_t blocks, const uint64_t secret[2], struct kv_pool **out, struct err *err)
{
    struct kv_pool *p = calloc(1, sizeof *p);
    if (p) {
        while (p->mask < (uint32_t)blocks)
            p->mask = 2 * p->mask + 1;
        p->blocks = calloc((size_t)blocks + 1, sizeof *p->blocks);
        p->buckets = calloc((size_t)p->mask + 1, sizeof *p->buckets);
    }
    if (!p || !p->blocks || !p->buckets) {
        kv_close(p);
        return base_fail(err, ERR_NOMEM, "KV pool: no memory for %d blocks", blocks);
    }
    memcpy(p->secret, secret, sizeof p->secret);
    p->total = blocks;
    for (int32_t i = 0; i <= blocks; i++) {
        p->blocks[i].next = i < blocks ? i + 1 : 0;
        p->blocks[i].prev = i > 0 ? i - 1 : blocks;
    }
    for (uint32_t i = 0; i <= p->mask; i++)
        p->buckets[i] = -1;
    *out = p;
    return OK;
}

void kv_close(struct kv_pool *p)
{
    if (!p)
        return;
    free(p->blocks);
    free(p->buckets);
    free(p);
}

static struct block *at(const struct kv_pool *p, int32_t block)
{
    CHECK(block >= 0);
    CHECK(block < p->total);
    return &p->blocks[block];
}

/* ---- by content ---- */

static int32_t *bucket_of(const struct kv_pool *p, const struct kv_key *key)
{
    return &p->buckets[base_siphash(p->secret, key, sizeof *key) & p->mask];
}

int32_t kv_find(const struct kv_pool *p, const struct kv_key *key)
{
    int32_t b = *bucket_of(p, key);
    while (b >= 0 && memcmp(&p->blocks[b].key, key, sizeof *key) != 0)
        b = p->blocks[b].chain;
    return b;
}

uint64_t kv_publish(struct kv_pool *p, int32_t block, const struct kv_key *key, uint64_t stamp)
{
    struct block *b = at(p, block);
    int32_t known = kv_find(p, key);
    CHECK(b->owners > 0);
    CHECK(b->name == 0);
    if (known >= 0)
        return p->blocks[known].name;
    int32_t *bucket = bucket_of(p, key);
    b->key = *key;
    b->name = ++p->names;
    b->stamp = stamp;
    b->chain = *bucket;
    *bucket = block;
    return b->name;
}

static void forget(struct kv_pool *p, int32_t block)
{
    struct block *b = &p->blocks[block];
    int32_t *from = bucket_of(p, &b->key);
    while (*from != block)
        from = &p->blocks[*from].chain;
    *from = b->chain;
    b->name = 0;
    p->kept -= b->owners == 0;
}

uint64_t kv_name(const struct kv_pool *p, int32_t block)
{
    return at(p, block)->name;
}

uint64_t kv_stamp(const struct kv_pool *p, int32_t block)
{
    return at(p, block)->stamp;
}

void kv_forget(struct kv_pool *p)
{
    for (int32_t i = 0; i < p->total; i++)
        if (p->blocks[i].name)
            forget(p, i);
}

/* ---- by owner ---- */

static void unlist(struct kv_pool *p, int32_t block)
{
    struct block *b = &p->blocks[block];
    p->blocks[b->prev].next = b->next;
    p->blocks[b->next].prev = b->prev;
}

/* Lists the block behind `prev`. */
static void list(struct kv_pool *p, int32_t block, int32_t prev)
{
    struct block *b = &p->blocks[block];
    b->prev = prev;
    b->next = p->blocks[prev].next;
    p->blocks[b->next].prev = block;
    p->blocks[prev].next = block;
}

int32_t kv_take(struct kv_pool *p)
{
    int32_t block = p->blocks[p->total].next;
    if (block == p->total)
        return -1;
    if (p->blocks[block].name)
        forget(p, block);
    kv_share(p, block);
    return block;
}

void kv_share(struct kv_pool *p, int32_t block)
{
    struct block *b = at(p, block);
    if (b->owners++ > 0)
        return;
    unlist(p, block);
    p->kept -= b->name != 0;
    p->used++;
}

void kv_release(struct kv_pool *p, const int32_t *blocks, int32_t n)
{
    for (int32_t i = n - 1; i >= 0; i--) {
        struct block *b = at(p, blocks[i]);
        CHECK(b->owners > 0);
        if (--b->owners > 0)
            continue;
        list(p, blocks[i], b->name ? p->blocks[p->total].prev : p->total);
        p->kept += b->name != 0;
        p->used--;
    }
}

int32_t kv_used(const struct kv_pool *p)
{
    return p->used;
}

int32_t kv_free(const struct kv_pool *p)
{
    return p->total - p->used;
}

int32_t kv_kept(const struct kv_pool *p)
{
    return p->kept;
}

int32_t kv_owners(const struct kv_pool *p, int32_t block)
{
    return at(p, block)->owners;
}

void kv_check(const struct kv_pool *p)
{
    int32_t used = 0, kept = 0, named = 0, listed = 0, found = 0;
    for (int32_t i = 0; i < p->total; i++) {
        const struct block *b = &p->blocks[i];
        CHECK(b->owners >= 0);
        used += b->owners > 0;
        kept += b->owners == 0 && b->name;
        named += b->name != 0;
    }
    for (int32_t i = p->blocks[p->total].next; i != p->total; i = p->blocks[i].next) {
        CHECK(p->blocks[i].owners == 0);
        CHECK(p->blocks[p->blocks[i].next].prev == i);
        listed++;
    }
    for (uint32_t i = 0; i <= p->mask; i++)
        for (int32_t b = p->buckets[i]; b >= 0; b = p->blocks[b].chain) {
            CHECK(p->blocks[b].name != 0);
            CHECK(kv_find(p, &p->blocks[b].key) == b);
            found++;
        }
    CHECK(used == p->used);
    CHECK(kept == p->kept);
    CHECK(listed == p->total - used);
    CHECK(found == named);
}
