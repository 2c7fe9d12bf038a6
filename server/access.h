/* Who may reach the server, and how much they may ask of it, from the options. */
#ifndef TESSERA_SERVER_ACCESS_H
#define TESSERA_SERVER_ACCESS_H

#include "config/options.h"
#include "server/http/http_limits.h"

struct keys;

/* The keys of --api-key-file, else of the file api-keys in systemd's credential directory; NULL
 * when there is neither. ERR_USAGE when others could reach a server without keys, unless
 * --insecure-no-auth says so. The caller closes *keys. */
enum status access_open(const struct options *o, struct keys **keys, struct err *err) MUST_USE;
/* The file that the keys are in; NULL: there is none. path is where the name is kept if need be. */
const char *access_key_file(const struct options *o, char *path, size_t cap);
/* The names that requests may be for, as of http_host_allows: of --allowed-hosts; without it any,
 * unless the server is for this machine alone and has no keys that pages of other sites lack. */
const char *access_hosts(const struct options *o, const struct keys *keys);
struct http_limits access_limits(const struct options *o);

#endif
