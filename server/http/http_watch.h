/* Notices that a client has hung up while its connection is suspended, which libmicrohttpd does
 * not. One thread that sleeps in epoll. */
#ifndef TESSERA_SERVER_HTTP_HTTP_WATCH_H
#define TESSERA_SERVER_HTTP_HTTP_WATCH_H

#include "config/base.h"

struct http_watch;

/* gone(user) runs on the watch thread, at most once per watched socket, and never after
 * http_watch_remove has returned. It must not call into the watch. */
enum status http_watch_open(void (*gone)(void *user), struct http_watch **out,
                            struct err *err) MUST_USE;
void http_watch_close(struct http_watch *w); /* NULL is fine */
/* A ticket for http_watch_remove; 0 when it cannot be watched. Any thread. */
uint64_t http_watch_add(struct http_watch *w, int fd, void *user);
/* Before the socket is closed. Ticket 0 is fine. Any thread but the watch's. */
void http_watch_remove(struct http_watch *w, uint64_t ticket);

#endif
