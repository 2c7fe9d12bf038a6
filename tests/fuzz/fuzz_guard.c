/* Arbitrary bytes as the head of a request. A verdict must not depend on how the bytes were cut
 * into packets, and what was accepted must hold nothing that a second, simpler reader could take
 * for something else. */
#include "server/http/http_guard.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct http_limits limits = {.header_bytes = 512, .target_bytes = 64, .headers = 8};

/* Lines of the head, CRLF before them, that begin with this name. */
static int count(const char *head, size_t n, const char *name)
{
    int found = 0;
    for (size_t i = 0; i + strlen(name) <= n; i++)
        found += strncasecmp(head + i, name, strlen(name)) == 0;
    return found;
}

static void check_accepted(const char *head, size_t n)
{
    size_t end = 0;
    while (memcmp(head + end, "\r\n\r\n", 4) != 0) {
        end++;
        CHECK(end + 4 <= n);
    }
    end += 4;
    CHECK(end <= limits.header_bytes);
    for (size_t i = 0; i < end; i++) {
        CHECK(head[i] != '\0' && head[i] != 0x7f);
        CHECK((head[i] == '\r') == (i + 1 < end && head[i + 1] == '\n'));
        CHECK(head[i] != '\n' || i + 1 == end || (head[i + 1] != ' ' && head[i + 1] != '\t'));
    }
    const bool is_old = strncmp(strchr(strchr(head, ' ') + 1, ' '), " HTTP/1.0", 9) == 0;
    CHECK(count(head, end, "\r\nHost:") <= 1);
    CHECK(is_old || count(head, end, "\r\nHost:") == 1);
    CHECK(count(head, end, "\r\nContent-Length:") + count(head, end, "\r\nTransfer-Encoding:") <=
          1);
    CHECK(count(head, end, "\r\nContent-Length ") == 0);
}

/* From memory of exactly that size, so that a sanitizer sees a read behind it. */
static enum http_guard_verdict judge(const uint8_t *data, size_t size)
{
    struct api_error e = {0};
    char *exact = malloc(size ? size : 1);
    CHECK(exact != NULL);
    if (size > 0)
        memcpy(exact, data, size);
    enum http_guard_verdict v = http_guard_bytes(&limits, exact, size, &e);
    CHECK((v == HTTP_GUARD_REFUSE) == (e.http_status >= 400 && e.http_status < 600));
    if (v == HTTP_GUARD_PASS)
        check_accepted(exact, size);
    free(exact);
    return v;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum http_guard_verdict before = HTTP_GUARD_MORE;
    if (size > 2 * limits.header_bytes)
        size = 2 * limits.header_bytes;
    for (size_t n = 0; n <= size; n++) {
        enum http_guard_verdict v = judge(data, n);
        CHECK(before == HTTP_GUARD_MORE || v == before);
        before = v;
    }
    return 0;
}
