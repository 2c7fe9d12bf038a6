/* The listening socket, and addresses. */
#ifndef TESSERA_SERVER_HTTP_HTTP_LISTEN_H
#define TESSERA_SERVER_HTTP_HTTP_LISTEN_H

#include "config/base.h"

struct sockaddr;

/* host is a numeric address, or localhost for 127.0.0.1; port 0 any free one; *bound is the port
 * taken. ERR_USAGE naming both when the address is wrong, ERR_PEER when it is taken, or not (yet)
 * this machine's. The caller closes *fd. */
enum status http_listen_on(const char *host, int32_t port, int *fd, int32_t *bound,
                           struct err *err) MUST_USE;
/* ERR_USAGE where host is no such address. */
enum status http_listen_check(const char *host, struct err *err) MUST_USE;
/* True for localhost, 127.0.0.0/8 and ::1, which only this machine can reach. */
bool http_listen_is_loopback(const char *host);
#define HTTP_LISTEN_FILES_RESERVED 256 /* descriptors for everything but connections */
/* Raises the limit of open files, and returns how many connections fit: wanted, or fewer, which is
 * logged. */
int32_t http_listen_capacity(int32_t wanted);
#define HTTP_LISTEN_ADDRESS_MAX 46 /* INET6_ADDRSTRLEN */
/* As a numeric address, without the port; one of IPv4 that came over IPv6 as the former. */
void http_listen_address(const struct sockaddr *address, char out[HTTP_LISTEN_ADDRESS_MAX]);
/* The same for all ports of one address; never 0. */
uint64_t http_listen_hash(const struct sockaddr *address);

#endif
