/* DESIGN: open addressing, never more than half full. The lowest bit of a slot says whether the
 * name was answered by an earlier run and not seen in the input yet; the others are the hash. */
#include "server/bench/batch_ids.h"

#include <stdlib.h>
#include <sys/random.h>

enum { FIRST_CAP = 1024 };

enum status batch_ids_init(struct batch_ids *s, struct err *err)
{
    *s = (struct batch_ids){.count = 0};
    if (getrandom(s->secret, sizeof s->secret, 0) != (ssize_t)sizeof s->secret)
        return base_fail_errno(err, ERR_INTERNAL, "getrandom");
    return OK;
}

void batch_ids_free(struct batch_ids *s)
{
    free(s->slots);
    s->slots = NULL;
    s->count = s->cap = 0;
}

/* That of the hash, or the free one where it belongs. */
static uint64_t *slot_of(uint64_t *slots, size_t cap, uint64_t hash)
{
    size_t i = (size_t)(hash >> 1) & (cap - 1);
    while (slots[i] != 0 && (slots[i] ^ hash) >> 1 != 0)
        i = (i + 1) & (cap - 1);
    return &slots[i];
}

static enum status grow(struct batch_ids *s, struct err *err)
{
    const size_t cap = s->cap ? 2 * s->cap : FIRST_CAP;
    uint64_t *slots = calloc(cap, sizeof *slots);
    if (!slots)
        return base_fail(err, ERR_NOMEM, "no memory for the names of %zu requests", s->count);
    for (size_t i = 0; i < s->cap; i++)
        if (s->slots[i])
            *slot_of(slots, cap, s->slots[i]) = s->slots[i];
    free(s->slots);
    s->slots = slots;
    s->cap = cap;
    return OK;
}

/* *slot: that of the name, which is *hash; 0 in it: it is new, and counted already. */
static enum status find(struct batch_ids *s, const char *id, size_t n, uint64_t **slot,
                        uint64_t *hash, struct err *err)
{
    if (2 * s->count >= s->cap) {
        enum status st = grow(s, err);
        if (st != OK)
            return st;
    }
    *hash = base_siphash(s->secret, id, n) & ~UINT64_C(1);
    *hash = *hash ? *hash : 2; /* 0 is a free slot */
    *slot = slot_of(s->slots, s->cap, *hash);
    s->count += **slot == 0;
    return OK;
}

enum status batch_ids_answered(struct batch_ids *s, const char *id, size_t n, struct err *err)
{
    uint64_t *slot, hash;
    enum status st = find(s, id, n, &slot, &hash, err);
    if (st == OK)
        *slot = hash | 1;
    return st;
}

enum status batch_ids_see(struct batch_ids *s, const char *id, size_t n,
                          enum batch_ids_found *found, struct err *err)
{
    uint64_t *slot, hash;
    enum status st = find(s, id, n, &slot, &hash, err);
    if (st != OK)
        return st;
    *found = *slot == 0 ? BATCH_IDS_NEW : *slot & 1 ? BATCH_IDS_ANSWERED : BATCH_IDS_REPEATED;
    *slot = hash;
    return OK;
}
