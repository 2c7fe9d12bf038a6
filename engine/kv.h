/* KV block pool: who owns which block of the cache, and what the full ones hold. Integers only, no
 * device memory. Not thread-safe: the engine thread's.
 *
 * A block is owned by the sequences whose block tables name it, or by none. Once it is full it can
 * be made findable by its content; then it may have several owners, and when the last one lets go
 * it is kept until its place is needed, least recently used first. */
#ifndef TESSERA_ENGINE_KV_H
#define TESSERA_ENGINE_KV_H

#include "kernels/backend.h"

/* The content of a full block: its tokens, what they follow (the name of the block before; 0: they
 * begin the text) and who may find it. Names are never reused, so equal keys mean equal text from
 * the first token on: a find compares all of it, and the hash only says where to look. Where layers
 * have several tables (engine/kv_groups.h) this is the block of the first; in group g > 0 the block
 * of the same positions has the name of that one before it, and -g instead of tokens. */
struct kv_key {
    uint64_t salt, before;
    int32_t tokens[BACKEND_BLOCK_TOKENS];
};

struct kv_pool;

/* The secret keeps clients from choosing texts whose hashes collide. */
enum status kv_open(int32_t blocks, const uint64_t secret[2], struct kv_pool **out,
                    struct err *err) MUST_USE;
void kv_close(struct kv_pool *p);

/* A block for one owner: one without content, else the least recently used of those kept, whose
 * content is forgotten. -1: all are owned. */
int32_t kv_take(struct kv_pool *p);
/* One owner more. */
void kv_share(struct kv_pool *p, int32_t block);
/* One owner less for each. The later ones count as used longer ago, so that a text is forgotten
 * from its end. */
void kv_release(struct kv_pool *p, const int32_t *blocks, int32_t n);

/* The block with this content, -1: none. */
int32_t kv_find(const struct kv_pool *p, const struct kv_key *key);
/* Makes an owned full block findable, stamped with the step that computes it. Where another block
 * with this content is findable already, that one stays the one. Returns the content's name. */
uint64_t kv_publish(struct kv_pool *p, int32_t block, const struct kv_key *key, uint64_t stamp);
/* Of a findable block. */
uint64_t kv_name(const struct kv_pool *p, int32_t block);
uint64_t kv_stamp(const struct kv_pool *p, int32_t block);
/* Nothing is findable any more: the contents are lost. */
void kv_forget(struct kv_pool *p);

int32_t kv_used(const struct kv_pool *p); /* owned */
int32_t kv_free(const struct kv_pool *p); /* the others */
int32_t kv_kept(const struct kv_pool *p); /* owned by none and findable */
int32_t kv_owners(const struct kv_pool *p, int32_t block);
/* Aborts when the books do not balance; tests call it after every step. */
void kv_check(const struct kv_pool *p);

#endif
