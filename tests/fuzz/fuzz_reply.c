/* Arbitrary bytes as the answer of a measured server: the first byte says how they are cut into
 * reads. What is said about a response must not depend on how it was cut. */
#include "server/bench/chunk.h"
#include "server/bench/reply.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

struct summary {
    uint64_t hash; /* of all events */
    size_t events;
    int64_t tokens;
    int32_t http_status;
    size_t body;
    enum status st;
};

static void on_event(void *ctx, const char *data, size_t n)
{
    struct summary *s = ctx;
    struct chunk chunk;
    CHECK(n <= REPLY_LINE_BYTES_MAX);
    s->events++;
    s->hash = base_hash(base_hash(s->hash, &n, sizeof n), data, n);
    if (!chunk_read(data, n, &chunk))
        return;
    CHECK(chunk.tokens >= 0);
    CHECK(chunk.prompt_tokens >= -1);
    CHECK(chunk.completion_tokens >= -1);
    s->tokens += chunk.tokens;
}

static struct summary read_in_pieces(const uint8_t *data, size_t size, size_t piece)
{
    struct reply r;
    struct err err = {""};
    struct summary s = {.hash = BASE_HASH_INIT};
    reply_init(&r, on_event, &s);
    for (size_t at = 0; at < size && s.st == OK; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        char *copy = malloc(n); /* exactly as long, so that the sanitizer sees its end */
        CHECK(copy != NULL);
        memcpy(copy, data + at, n);
        s.st = reply_feed(&r, copy, n, &err);
        free(copy);
    }
    if (s.st == OK)
        s.st = reply_close(&r, &err);
    CHECK(s.st == OK || (s.st == ERR_INPUT && err.text[0]));
    CHECK(s.st != OK || reply_is_complete(&r));
    s.http_status = r.http_status;
    s.body = r.body.len;
    reply_free(&r);
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct summary whole = read_in_pieces(data + 1, size - 1, size);
    struct summary cut = read_in_pieces(data + 1, size - 1, 1u + data[0] % 64);
    CHECK(whole.st == cut.st);
    CHECK(whole.events == cut.events);
    CHECK(whole.hash == cut.hash);
    CHECK(whole.tokens == cut.tokens);
    CHECK(whole.http_status == cut.http_status);
    CHECK(whole.st != OK || whole.body == cut.body);
    return 0;
}
