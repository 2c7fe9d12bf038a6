/* KV block pool bookkeeping: integers only, no device memory. A sequence reserves all the blocks it
 * can ever need when it is admitted, and takes them one by one as it grows; so a running sequence
 * never runs out. Not thread-safe: the engine thread's. */
#ifndef TESSERA_ENGINE_KV_H
#define TESSERA_ENGINE_KV_H

#include "config/base.h"

struct kv_pool;

enum status kv_open(int32_t blocks, struct kv_pool **out, struct err *err) MUST_USE;
void kv_close(struct kv_pool *p);

/* Blocks for this many positions. */
int32_t kv_blocks_for(int32_t positions);
/* False, and nothing changes, when fewer than n unreserved blocks are left. */
bool kv_reserve(struct kv_pool *p, int32_t n) MUST_USE;
/* Takes one block out of a reservation. */
int32_t kv_take(struct kv_pool *p);
/* Gives n taken blocks back, and `untaken` blocks of the reservation that were never taken. */
void kv_release(struct kv_pool *p, const int32_t *blocks, int32_t n, int32_t untaken);

int32_t kv_total(const struct kv_pool *p);
int32_t kv_used(const struct kv_pool *p);     /* taken */
int32_t kv_reserved(const struct kv_pool *p); /* reserved and not taken */
/* Aborts when a block is free twice or lost; tests call it after every step. */
void kv_check(const struct kv_pool *p);

#endif
