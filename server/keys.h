/* API keys: who may ask. Only hashes of the keys are kept. All functions but open and close are
 * safe from any thread. */
#ifndef TESSERA_SERVER_KEYS_H
#define TESSERA_SERVER_KEYS_H

#include "config/base.h"

struct keys;

/* One key a line; blank lines and those that begin with '#' say nothing. A key has 8 to 256
 * printable characters. ERR_USAGE naming file and line, or when the file is not its owner's alone:
 * nobody else may read it, and with group_may_read, nobody outside the group. */
enum status keys_open(const char *file, bool group_may_read, struct keys **out,
                      struct err *err) MUST_USE;
void keys_close(struct keys *k); /* NULL is fine */
/* Reads the file again. On failure the old keys stay. */
enum status keys_reload(struct keys *k, struct err *err) MUST_USE;
int32_t keys_count(struct keys *k);
/* The values of the headers Authorization and X-Api-Key (NULL: there was none): an identity of the
 * key that is never 0 and the same in every start, or 0 when the one is not "Bearer KEY" with one
 * of the keys and the other is none of them. Takes the same time for every key of one length. */
uint64_t keys_check(struct keys *k, const char *authorization, const char *api_key);

#endif
