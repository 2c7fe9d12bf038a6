/* DESIGN: the protocol is one sendto, which is less than a library to depend on. Not connected: a
 * manager that starts anew listens under the same name. */
#include "server/notify.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

/* Microseconds, if they are meant for this process. */
static int64_t watchdog_period_ns(void)
{
    const char *period = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!period || (pid && strtol(pid, NULL, 10) != getpid()))
        return 0;
    long long usec = strtoll(period, NULL, 10);
    return usec > 0 && usec < INT64_MAX / 1000 ? usec * 1000 : 0;
}

static enum status reach(struct notify *n, const char *path, struct err *err)
{
    const struct timeval patience = {.tv_sec = 1};
    const size_t length = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || length >= sizeof n->to.sun_path)
        return base_fail(err, ERR_IO, "NOTIFY_SOCKET: \"%.100s\" is not a path or @name", path);
    n->to.sun_family = AF_UNIX;
    n->to_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    memcpy(n->to.sun_path, path, length);
    if (path[0] == '@') /* an abstract name begins with a NUL */
        n->to.sun_path[0] = '\0';
    n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (n->fd < 0)
        return base_fail_errno(err, ERR_IO, "NOTIFY_SOCKET: a socket");
    setsockopt(n->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    return OK;
}

enum status notify_open(struct notify *n, struct err *err)
{
    const char *path = getenv("NOTIFY_SOCKET");
    *n = (struct notify){.fd = -1, .watchdog_ns = watchdog_period_ns()};
    enum status st = path ? reach(n, path, err) : OK;
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    if (n->fd < 0)
        n->watchdog_ns = 0;
    return st;
}

void notify_close(struct notify *n)
{
    if (n->fd >= 0)
        close(n->fd);
    n->fd = -1;
}

void notify_send(struct notify *n, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    if (n->fd < 0)
        return;
    va_start(ap, fmt);
    const int length = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    CHECK(length > 0 && (size_t)length < sizeof text);
    const bool failed = sendto(n->fd, text, (size_t)length, MSG_NOSIGNAL,
                               (const struct sockaddr *)&n->to, n->to_bytes) < 0;
    if (failed && !n->failing)
        base_log(LOG_WARN, "NOTIFY_SOCKET: the service manager cannot be told: %s",
                 strerror(errno));
    n->failing = failed;
}
