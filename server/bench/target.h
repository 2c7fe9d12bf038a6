/* Whom to measure: a URL taken apart, its address, and what a first exchange tells of the peer. */
#ifndef TESSERA_SERVER_BENCH_TARGET_H
#define TESSERA_SERVER_BENCH_TARGET_H

#include "config/buf.h"
#include "server/bench/reply.h"

#include <sys/socket.h>

#define TARGET_NAME_MAX 256 /* bytes of a model's name, with the NUL */

struct target {
    char host[256]; /* as in the Host field, with the port */
    char path[256]; /* of the completions endpoint */
    char base[256]; /* path of the API's root: "/v1" */
    bool is_chat;
    struct sockaddr_storage address;
    socklen_t address_len;
    const char *api_key; /* borrowed; NULL: none */
    int stop_fd;         /* when something is to be read there an exchange ends; 0: none */
};

/* Is that word of a command line a server rather than a model directory? HOST:PORT is one, too,
 * unless there is a file of that name. */
bool target_is_url(const char *word);
/* http://HOST[:PORT][/BASE], or the whole URL of an endpoint that ends in /completions (with
 * /chat/completions: chat); HOST:PORT is http://HOST:PORT. ERR_USAGE for anything else. */
enum status target_parse(const char *url, struct target *out, struct err *err) MUST_USE;
/* From now on its endpoint is that for chats. */
void target_chat(struct target *t);
/* Can a model of that name be asked for, with that key? NULL: none was given. ERR_USAGE if not. */
enum status target_check(const char *model, const char *api_key, struct err *err) MUST_USE;
/* Finds an address that accepts a connection, within timeout_s each. ERR_PEER when none does. */
enum status target_resolve(struct target *t, double timeout_s, struct err *err) MUST_USE;
/* The head of a request with a body of that length, up to and with the empty line. keep: others
 * may follow on its connection. */
void target_write_head(const struct target *t, const char *method, const char *path,
                       size_t body_bytes, bool keep, struct buf *out);
/* One blocking exchange: the answer's body (added to *body) and status. ERR_PEER when the peer does
 * not answer properly within timeout_s. */
enum status target_exchange(const struct target *t, const char *method, const char *path,
                            const struct buf *request_body, double timeout_s, int32_t *http_status,
                            struct buf *body, struct err *err) MUST_USE;
/* Likewise, with a POST of JSON: the answer, whatever it is, stays in *r, which was just made. */
enum status target_post(const struct target *t, const char *path, const struct buf *request_body,
                        double timeout_s, struct reply *r, struct err *err) MUST_USE;
bool target_is_stopped(const struct target *t);
/* As target_exchange; posts to the endpoint and hands out the events of the answer as they come;
 * the body is filled by an answer of another kind. */
enum status target_stream(const struct target *t, const struct buf *request_body, double timeout_s,
                          reply_event *on_event, void *ctx, int32_t *http_status, struct buf *body,
                          struct err *err) MUST_USE;
/* The name of the first model of BASE/models into name; ERR_PEER when there is none. */
enum status target_model(const struct target *t, double timeout_s, char *name, size_t cap,
                         struct err *err) MUST_USE;

#endif
