/* DESIGN: what a client presents is hashed and compared with every hash, all bytes of each, so time
 * tells neither how much of a key was right nor which it was. A reload fills a new table first and
 * swaps it in under the lock. */
#include "server/keys.h"

#include "config/file.h"

#include <nettle/memops.h>
#include <nettle/sha2.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define KEYS_MAX 1024
#define KEY_BYTES_MIN 8
#define KEY_BYTES_MAX 256
#define FILE_BYTES_MAX (KEYS_MAX * (KEY_BYTES_MAX + 1))

struct hash {
    uint8_t bytes[SHA256_DIGEST_SIZE];
};

struct keys {
    char *file;
    bool group_may_read;
    pthread_rwlock_t lock; /* guards what follows */
    struct hash *hashes;
    int32_t count;
};

static struct hash hash_of(const char *key, size_t n)
{
    struct sha256_ctx ctx;
    struct hash h;
    sha256_init(&ctx);
    sha256_update(&ctx, n, (const uint8_t *)key);
    sha256_digest(&ctx, sizeof h.bytes, h.bytes);
    return h;
}

static enum status add_line(const struct keys *k, char *line, int32_t number, struct hash *hashes,
                            int32_t *count, struct err *err)
{
    char *key = line + strspn(line, " \t");
    size_t n = strlen(key);
    while (n > 0 && strchr(" \t\r", key[n - 1]))
        n--;
    if (n == 0 || key[0] == '#')
        return OK;
    bool good = n >= KEY_BYTES_MIN && n <= KEY_BYTES_MAX;
    for (size_t i = 0; i < n; i++)
        good = good && key[i] > ' ' && key[i] < 0x7f;
    if (!good)
        return base_fail(err, ERR_USAGE,
                         "key file %.200s line %d: a key has %d to %d printable characters",
                         k->file, number, KEY_BYTES_MIN, KEY_BYTES_MAX);
    if (*count == KEYS_MAX)
        return base_fail(err, ERR_USAGE, "key file %.200s line %d: at most %d keys", k->file,
                         number, KEYS_MAX);
    hashes[(*count)++] = hash_of(key, n);
    return OK;
}

/* The lines of text, which is changed. */
static enum status parse(const struct keys *k, char *text, struct hash *hashes, int32_t *count,
                         struct err *err)
{
    int32_t number = 0;
    enum status st = OK;
    *count = 0;
    for (char *line = text, *next; line && st == OK; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        st = add_line(k, line, ++number, hashes, count, err);
    }
    if (st == OK && *count == 0)
        st = base_fail(err, ERR_USAGE, "key file %.200s has no key", k->file);
    return st;
}

enum status keys_reload(struct keys *k, struct err *err)
{
    enum status st = OK;
    const struct file_spec f = {.path = k->file,
                                .what = "key file ",
                                .bytes_max = FILE_BYTES_MAX,
                                .failure = ERR_USAGE,
                                .forbidden = k->group_may_read ? S_IRWXO : S_IRWXG | S_IRWXO};
    int32_t count = 0;
    char *text = NULL;
    size_t n = 0;
    struct hash *hashes = calloc(KEYS_MAX, sizeof *hashes);
    if (!hashes) {
        st = base_fail(err, ERR_NOMEM, "keys: no memory");
        goto out;
    }
    TRY(file_read(&f, &text, &n, err));
    if (memchr(text, '\0', n)) {
        st = base_fail(err, ERR_USAGE, "key file %.200s has a NUL", k->file);
        goto out;
    }
    TRY(parse(k, text, hashes, &count, err));
    pthread_rwlock_wrlock(&k->lock);
    struct hash *old = k->hashes;
    k->hashes = hashes;
    k->count = count;
    pthread_rwlock_unlock(&k->lock);
    hashes = old;
out:
    if (text)
        explicit_bzero(text, n);
    free(text);
    free(hashes);
    return st;
}

enum status keys_open(const char *file, bool group_may_read, struct keys **out, struct err *err)
{
    enum status st = OK;
    struct keys *k = calloc(1, sizeof *k);
    if (!k)
        return base_fail(err, ERR_NOMEM, "keys: no memory");
    pthread_rwlock_init(&k->lock, NULL);
    k->group_may_read = group_may_read;
    k->file = strdup(file);
    if (!k->file) {
        st = base_fail(err, ERR_NOMEM, "keys: no memory");
        goto out;
    }
    TRY(keys_reload(k, err));
    *out = k;
    k = NULL;
out:
    keys_close(k);
    return st;
}

void keys_close(struct keys *k)
{
    if (!k)
        return;
    pthread_rwlock_destroy(&k->lock);
    free(k->hashes);
    free(k->file);
    free(k);
}

int32_t keys_count(struct keys *k)
{
    pthread_rwlock_rdlock(&k->lock);
    int32_t count = k->count;
    pthread_rwlock_unlock(&k->lock);
    return count;
}

/* NULL: it is something else. */
static const char *bearer(const char *authorization)
{
    static const char scheme[] = "Bearer ";
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
        return NULL;
    const char *key = authorization + sizeof scheme - 1;
    return key + strspn(key, " ");
}

/* key NULL: 0. */
static uint64_t identify(struct keys *k, const char *key)
{
    uint64_t identity = 0;
    int found = 0;
    if (!key)
        return 0;
    const struct hash h = hash_of(key, strlen(key));
    pthread_rwlock_rdlock(&k->lock);
    for (int32_t i = 0; i < k->count; i++)
        found |= memeql_sec(h.bytes, k->hashes[i].bytes, sizeof h.bytes);
    pthread_rwlock_unlock(&k->lock);
    memcpy(&identity, h.bytes, sizeof identity);
    return found ? identity | 1 : 0;
}

uint64_t keys_check(struct keys *k, const char *authorization, const char *api_key)
{
    const uint64_t identity = identify(k, bearer(authorization));
    return identity ? identity : identify(k, api_key);
}
