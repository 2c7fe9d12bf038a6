/* A server as somebody at a terminal sees it: what they type goes there, the answer's text to
 * stdout as it comes. For one thread. */
#ifndef TESSERA_SERVER_CLIENT_H
#define TESSERA_SERVER_CLIENT_H

#include "config/buf.h"
#include "config/options.h"
#include "server/api/completion.h"

#define CLIENT_TEXT_BYTES_MAX (1u << 20) /* of what is typed */

struct client;
struct target;

/* Of options->model, a URL or a directory, which is borrowed with the rest. chat: for messages
 * instead of prompts. ERR_USAGE for what is wrong with the options; nothing is started yet. */
enum status client_open(const struct options *o, bool chat, struct client **out,
                        struct err *err) MUST_USE;
/* Reaches the server, after having started one on a directory: it stops with client_close. */
enum status client_start(struct client *c, struct err *err) MUST_USE;
void client_close(struct client *c);
/* After client_start: whom it asks, and for what; until client_close. */
const struct target *client_target(const struct client *c);
const char *client_model(const struct client *c);

/* Appends ", "name": value" for each sampling option that was given; the API's own table knows
 * their types and limits. */
void client_add_sampling(const struct options *o, struct buf *out);
/* Of a server of which nothing is known: what they refuse, every one would. */
struct completion_rules client_rules(void);
/* All of stdin, or the second word of the command line. ERR_USAGE: it is too long. */
enum status client_read_text(const struct options *o, char **text, size_t *n,
                             struct err *err) MUST_USE;

/* One answer, printed, and added to *text unless that is NULL. members: of the request's object,
 * but for the model and the stream. When something is to be read from stop_fd (0: none) the answer
 * ends as if it were whole. ERR_USAGE: the server finds the request wrong; ERR_PEER: it fails. */
enum status client_ask(struct client *c, const struct buf *members, int stop_fd, struct buf *text,
                       struct err *err) MUST_USE;

#endif
