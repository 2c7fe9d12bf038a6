/* A server of our own for the time of a measurement: `tessera serve MODEL --port 0 ...`. */
#ifndef TESSERA_SERVER_BENCH_CHILD_H
#define TESSERA_SERVER_BENCH_CHILD_H

#include "config/options.h"

struct child;

/* Starts it and waits until it is ready; url gets its address. When it stops instead: its kind of
 * failure, with the last line of its log. It is sent SIGTERM when this process dies, and is no part
 * of the terminal's foreground group: an interrupt is ours alone. */
enum status child_open(const char *model, int argc, char **argv, struct child **out, char *url,
                       size_t cap, struct err *err) MUST_USE;
/* SIGTERM, then SIGKILL after 10 s. */
void child_close(struct child *c);
/* The options that such a server would have; the words are borrowed, and the caller closes *out. */
enum status child_options(const char *model, int argc, char **argv, struct options *out,
                          struct err *err) MUST_USE;
/* CPU seconds so far of the server's process and of its ranks; -1 where /proc does not tell. */
void child_cpu(const struct child *c, double *server, double *ranks);

#endif
