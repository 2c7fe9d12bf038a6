/* DESIGN: the socket is ours rather than the HTTP library's, because its one way to fail says
 * nothing, and a taken port must be reported before any weight is loaded. */
#include "server/http/http_listen.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

enum status http_listen_on(const char *host, int32_t port, int *out, int32_t *bound,
                           struct err *err)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } a = {0};
    socklen_t size = sizeof a.v4;
    int on = 1;
    if (inet_pton(AF_INET, host, &a.v4.sin_addr) == 1) {
        a.v4.sin_family = AF_INET;
        a.v4.sin_port = htons((uint16_t)port);
    } else if (inet_pton(AF_INET6, host, &a.v6.sin6_addr) == 1) {
        a.v6.sin6_family = AF_INET6;
        a.v6.sin6_port = htons((uint16_t)port);
        size = sizeof a.v6;
    } else {
        return base_fail(err, ERR_USAGE, "\"%.100s\" is not a numeric address to listen on", host);
    }
    int fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return base_fail_errno(err, ERR_USAGE, "socket for %.100s", host);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, &a.any, size) != 0 || listen(fd, 1024) != 0 ||
        getsockname(fd, &a.any, &size) != 0) {
        enum status st =
            base_fail_errno(err, ERR_USAGE, "cannot listen on %.100s port %d", host, port);
        close(fd);
        return st;
    }
    *bound = ntohs(a.any.sa_family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
    *out = fd;
    return OK;
}
