/* Arbitrary bytes as the head of a request, and as all that comes on a connection. A verdict must
 * not depend on how the bytes were cut into packets, and what was accepted must hold nothing that a
 * second, simpler reader could take for something else. */
#include "server/http/http_guard.h"
#include "server/http/http_intake.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct http_routes no_routes;
static const struct http_limits limits = {.header_bytes = 512, .target_bytes = 64, .headers = 8};

/* Lines of the head, CRLF before them, that begin with this name. */
static int count(const char *head, size_t n, const char *name)
{
    int found = 0;
    for (size_t i = 0; i + strlen(name) <= n; i++)
        found += strncasecmp(head + i, name, strlen(name)) == 0;
    return found;
}

static void check_accepted(const char *head, size_t end)
{
    CHECK(memmem(head, end, "\r\n\r\n", 4) == head + end - 4);
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
    struct http_guard_head head;
    enum http_guard_verdict v = http_guard_head(&limits, exact, size, &head, &e);
    CHECK((v == HTTP_GUARD_REFUSE) == (e.http_status >= 400 && e.http_status < 600));
    if (v == HTTP_GUARD_PASS) {
        check_accepted(exact, head.head_bytes);
        http_guard_tidy(exact, head.head_bytes);
        check_accepted(exact, head.head_bytes);
    }
    free(exact);
    return v;
}

/* What comes of a connection: the bytes that the library got, and the status of a refusal. */
struct outcome {
    size_t n;
    char bytes[4096];
    int status; /* 0: none */
};

static void take_all(int fd, size_t room, struct outcome *o)
{
    ssize_t n;
    do {
        room = room < sizeof o->bytes - o->n ? room : sizeof o->bytes - o->n;
        n = recv(fd, o->bytes + o->n, room, 0);
        o->n += n > 0 ? (size_t)n : 0;
    } while (n > 0);
}

static void run_connection(const uint8_t *data, size_t size, size_t packet, size_t room,
                           struct outcome *o)
{
    int ends[2];
    char answer[4096];
    struct err err;
    struct http_peers *peers;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(http_peer_open(&limits, &peers, &err) == OK);
    struct http_peer *peer = http_peer_enter(peers, ends[1]);
    CHECK(peer && http_intake_open(ends[1], &limits, &no_routes, peer));
    o->n = 0;
    for (size_t at = 0; at < size; at += packet) {
        const size_t n = packet < size - at ? packet : size - at;
        CHECK(send(ends[0], data + at, n, 0) == (ssize_t)n);
        take_all(ends[1], room, o);
    }
    while (http_intake_has_request(ends[1]))
        http_intake_done(ends[1], false);
    ssize_t n = recv(ends[0], answer, sizeof answer - 1, MSG_DONTWAIT);
    answer[n > 0 ? n : 0] = '\0';
    o->status = n > 0 ? (int)strtol(answer + strlen("HTTP/1.1 "), NULL, 10) : 0;
    http_intake_close(ends[1]);
    http_peer_leave(peers, peer);
    http_peer_close(peers);
    close(ends[0]);
    close(ends[1]);
}

/* Is what the library got what came, but for what http_guard_tidy changes? */
static bool is_begin(const struct outcome *o, const uint8_t *data, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < o->n; i++) {
        const char got = o->bytes[i];
        if (got == ' ' || got == '\t')
            continue;
        while (at < size && (data[at] == ' ' || data[at] == '\t'))
            at++;
        if (at == size)
            return false;
        const char came = (char)data[at++];
        if (got != came && !(got == '.' && came == '&') && !(got == 'X' && (came | 32) == 'c'))
            return false;
    }
    return o->n <= size;
}

/* In one packet nothing of a request that is refused is handed over; in small ones its begin may
 * be. */
static void check_cuts(const uint8_t *data, size_t size)
{
    static struct outcome whole, parts;
    run_connection(data, size, size, sizeof whole.bytes, &whole);
    CHECK(is_begin(&whole, data, size));
    CHECK(whole.status == 0 || (whole.status >= 400 && whole.status < 600));
    for (size_t packet = 1; packet < size; packet += 1 + packet * 3) {
        run_connection(data, size, packet, 1 + packet % 5, &parts);
        CHECK(parts.status == whole.status);
        CHECK(parts.n >= whole.n && is_begin(&parts, data, size));
        CHECK(whole.status != 0 || parts.n == whole.n);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum http_guard_verdict before = HTTP_GUARD_MORE;
    check_cuts(data, size < 4096 ? size : 4096);
    if (size > 2 * limits.header_bytes)
        size = 2 * limits.header_bytes;
    for (size_t n = 0; n <= size; n++) {
        enum http_guard_verdict v = judge(data, n);
        CHECK(before == HTTP_GUARD_MORE || v == before);
        before = v;
    }
    return 0;
}
