/* Which names of requests have been seen: 64-bit hashes under a secret key, at most 32 bytes of
 * memory for each name however long it is. Of ten million names two have one hash in fewer than one
 * of 100,000 batches; the second would then count as a repeated one. For one thread at a time. */
#ifndef TESSERA_SERVER_BENCH_BATCH_IDS_H
#define TESSERA_SERVER_BENCH_BATCH_IDS_H

#include "config/base.h"

struct batch_ids {
    uint64_t secret[2];
    uint64_t *slots; /* 0: free */
    size_t count, cap;
};

enum batch_ids_found { BATCH_IDS_NEW, BATCH_IDS_ANSWERED, BATCH_IDS_REPEATED };

/* ERR_INTERNAL: no random numbers. */
enum status batch_ids_init(struct batch_ids *s, struct err *err) MUST_USE;
void batch_ids_free(struct batch_ids *s);
/* An earlier run has answered that name. */
enum status batch_ids_answered(struct batch_ids *s, const char *id, size_t n,
                               struct err *err) MUST_USE;
/* The name of a request. The first time: is it new, or was it answered before? Then: repeated. */
enum status batch_ids_see(struct batch_ids *s, const char *id, size_t n,
                          enum batch_ids_found *found, struct err *err) MUST_USE;

#endif
