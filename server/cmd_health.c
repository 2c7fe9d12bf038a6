/* DESIGN: one GET on a fresh connection, so that a container needs no other program to ask whether
 * its server is ready. The probe is answered at once or not at all, so a short patience will do. */
#include "server/bench/target.h"
#include "server/commands.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define PATIENCE_S 3

struct probe {
    char host[256], port[8], path[256];
};

/* "http://HOST[:PORT][/PATH]", HOST perhaps an IPv6 address in brackets; or HOST:PORT. */
static enum status parse_url(const char *url, struct probe *t, struct err *err)
{
    char rest[2] = "";
    int n = 0;
    *t = (struct probe){.port = "80", .path = "/readyz"};
    const bool full = strncmp(url, "http://", 7) == 0;
    const char *at = full ? url + 7 : target_is_url(url) ? url : "";
    if (sscanf(at, "[%255[^]/]]%n", t->host, &n) != 1 || n == 0)
        n = sscanf(at, "%255[^:/]%n", t->host, &n) == 1 ? n : 0;
    at += n;
    bool good = n > 0;
    if (good && *at == ':') {
        n = 0;
        good = sscanf(at, ":%5[0-9]%n", t->port, &n) == 1 && strtol(t->port, NULL, 10) <= 65535;
        at += n;
    }
    if (good && *at)
        good = sscanf(at, "%255[!-~]%1s", t->path, rest) == 1 && t->path[0] == '/';
    return good ? OK : base_fail(err, ERR_USAGE, "\"%.200s\" is not http://HOST:PORT/PATH", url);
}

/* A connected socket, or -1 with errno. */
static int dial(const struct addrinfo *a, const struct timeval *patience)
{
    const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, patience, sizeof *patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, patience, sizeof *patience);
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
        return fd;
    const int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

static enum status reach(const struct probe *t, int *out, struct err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    const struct timeval patience = {PATIENCE_S, 0};
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(t->host, t->port, &hints, &list), fd = -1;
    if (rc != 0)
        return base_fail(err, ERR_IO, "%s: %s", t->host, gai_strerror(rc));
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = dial(a, &patience);
        if (fd < 0)
            base_fail_errno(err, ERR_IO, "%s port %s", t->host, t->port);
    }
    freeaddrinfo(list);
    *out = fd;
    return fd >= 0 ? OK : ERR_IO;
}

/* The answer's first bytes, which are enough for a probe's. */
static enum status ask(int fd, const struct probe *t, char *answer, size_t cap, struct err *err)
{
    char text[640];
    int n = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
                     t->path, t->host);
    size_t used = 0;
    if (send(fd, text, (size_t)n, MSG_NOSIGNAL) != n)
        return base_fail_errno(err, ERR_IO, "%s port %s", t->host, t->port);
    for (ssize_t got = 1; got > 0 && used < cap - 1; used += (size_t)got) {
        got = recv(fd, answer + used, cap - 1 - used, 0);
        if (got < 0)
            return base_fail_errno(err, ERR_IO, "%s port %s: no answer in %d s", t->host, t->port,
                                   PATIENCE_S);
    }
    answer[used] = '\0';
    return OK;
}

enum status commands_health(const struct options *o, struct err *err)
{
    enum status st = OK;
    struct probe t = {.path = "/readyz"};
    char answer[4096];
    int fd = -1;
    snprintf(t.host, sizeof t.host, "%s", o->host);
    snprintf(t.port, sizeof t.port, "%d", o->port);
    if (o->url)
        TRY(parse_url(o->url, &t, err));
    TRY(reach(&t, &fd, err));
    TRY(ask(fd, &t, answer, sizeof answer, err));
    const char *body = strstr(answer, "\r\n\r\n");
    if (strncmp(answer, "HTTP/1.1 2", 10) == 0)
        printf("%s\n", body ? body + 4 : "");
    else
        st = base_fail(err, ERR_IO, "not ready: %.300s", body ? body + 4 : "no HTTP answer");
out:
    if (fd >= 0)
        close(fd);
    return st;
}
