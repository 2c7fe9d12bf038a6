/* Tells a service manager how we are doing: systemd's notification protocol, one datagram a
 * message. Without a manager nothing is sent. The main thread's. */
#ifndef TESSERA_SERVER_NOTIFY_H
#define TESSERA_SERVER_NOTIFY_H

#include "config/base.h"

#include <sys/socket.h>
#include <sys/un.h>

struct notify {
    int fd;              /* -1: nobody listens */
    int64_t watchdog_ns; /* how often the manager wants to hear that we are well; 0: never */
    struct sockaddr_un to;
    socklen_t to_bytes;
    bool failing; /* the last message did not arrive, which is in the log */
};

/* Reads $NOTIFY_SOCKET and $WATCHDOG_USEC, and removes them so that no child takes them for its
 * own. ERR_IO when what is named cannot be a socket; *n is valid all the same. */
enum status notify_open(struct notify *n, struct err *err) MUST_USE;
void notify_close(struct notify *n);
/* Lines of NAME=VALUE, as of sd_notify(3). Waits up to a second for a manager that is behind: it
 * should not miss that we are ready. */
void notify_send(struct notify *n, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
