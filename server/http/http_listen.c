/* DESIGN: the socket is ours rather than the HTTP library's, because its one way to fail says
 * nothing, and a taken port must be reported before any weight is loaded. */
#include "server/http/http_listen.h"

#include "engine/quota.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Of a connection, in the kernel, which doubles it. Left alone it grows to megabytes when a client
 * does not read. */
#define SEND_BUFFER_BYTES (128 << 10)

/* The one name that needs no resolver. */
static const char *numeric(const char *host)
{
    return strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;
}

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static enum status parse(const char *host, int32_t port, union address *a, socklen_t *size,
                         struct err *err)
{
    if (inet_pton(AF_INET, numeric(host), &a->v4.sin_addr) == 1) {
        a->v4.sin_family = AF_INET;
        a->v4.sin_port = htons((uint16_t)port);
        *size = sizeof a->v4;
    } else if (inet_pton(AF_INET6, host, &a->v6.sin6_addr) == 1) {
        a->v6.sin6_family = AF_INET6;
        a->v6.sin6_port = htons((uint16_t)port);
        *size = sizeof a->v6;
    } else {
        return base_fail(err, ERR_USAGE,
                         "\"%.100s\" is no numeric address to listen on; of names only localhost "
                         "is known",
                         host);
    }
    return OK;
}

enum status http_listen_check(const char *host, struct err *err)
{
    union address a;
    socklen_t size;
    return parse(host, 0, &a, &size, err);
}

enum status http_listen_on(const char *host, int32_t port, int *out, int32_t *bound,
                           struct err *err)
{
    union address a = {0};
    socklen_t size;
    int on = 1, unsent = SEND_BUFFER_BYTES;
    enum status st = parse(host, port, &a, &size, err);
    if (st != OK)
        return st;
    int fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return base_fail_errno(err, ERR_USAGE, "socket for %.100s", host);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &unsent, sizeof unsent); /* connections inherit it */
    if (bind(fd, &a.any, size) != 0 || listen(fd, 1024) != 0 ||
        getsockname(fd, &a.any, &size) != 0) {
        const bool later = errno == EADDRINUSE || errno == EADDRNOTAVAIL; /* it may be ours yet */
        st = base_fail_errno(err, later ? ERR_PEER : ERR_USAGE, "cannot listen on %.100s port %d",
                             host, port);
        close(fd);
        return st;
    }
    *bound = ntohs(a.any.sa_family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
    *out = fd;
    return OK;
}

bool http_listen_is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, numeric(host), &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

int32_t http_listen_capacity(int32_t wanted)
{
    const int64_t needed = (int64_t)wanted + HTTP_LISTEN_FILES_RESERVED;
    const int64_t files = quota_files(needed), half = files / 2;
    if (files >= needed)
        return wanted;
    const int64_t reserved = half < HTTP_LISTEN_FILES_RESERVED ? half : HTTP_LISTEN_FILES_RESERVED;
    const int32_t fit = (int32_t)(files - reserved);
    base_log(LOG_WARN, "at most %d connections at once instead of %d: only %d files may be open",
             fit, wanted, (int)files);
    return fit;
}

void http_listen_address(const struct sockaddr *address, char out[HTTP_LISTEN_ADDRESS_MAX])
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    const char *text = NULL;
    if (address->sa_family == AF_INET) {
        memcpy(&v4, address, sizeof v4);
        text = inet_ntop(AF_INET, &v4.sin_addr, out, HTTP_LISTEN_ADDRESS_MAX);
    } else if (address->sa_family == AF_INET6) {
        memcpy(&v6, address, sizeof v6);
        const uint8_t *bytes = v6.sin6_addr.s6_addr;
        text = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)
                   ? inet_ntop(AF_INET, bytes + 12, out, HTTP_LISTEN_ADDRESS_MAX)
                   : inet_ntop(AF_INET6, bytes, out, HTTP_LISTEN_ADDRESS_MAX);
    }
    if (!text)
        memcpy(out, "?", 2);
}

uint64_t http_listen_hash(const struct sockaddr *address)
{
    uint64_t h = BASE_HASH_INIT;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (address->sa_family == AF_INET) {
        memcpy(&v4, address, sizeof v4);
        h = base_hash(h, &v4.sin_addr, sizeof v4.sin_addr);
    } else if (address->sa_family == AF_INET6) {
        memcpy(&v6, address, sizeof v6);
        h = base_hash(h, &v6.sin6_addr, sizeof v6.sin6_addr);
    }
    return h | 1;
}
