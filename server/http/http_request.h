/* A request as server/http alone sees it. http.c receives it, http_answer.c answers it. */
#ifndef TESSERA_SERVER_HTTP_HTTP_REQUEST_H
#define TESSERA_SERVER_HTTP_HTTP_REQUEST_H

#include "server/http/http.h"
#include "server/http/http_gate.h"
#include "server/http/http_id.h"
#include "server/http/http_peer.h"
#include "server/http/http_watch.h"

#include <pthread.h>
#include <stdatomic.h>

struct MHD_Connection;
struct MHD_Daemon;
struct sockaddr;

struct http {
    struct http_config config;
    struct MHD_Daemon *daemon;
    struct http_gate *gate;
    struct http_watch *watch;
    struct http_peers *peers;
    int listener;
    int32_t port;
    _Atomic size_t bodies;  /* bytes of all bodies held, */
    _Atomic size_t answers; /* and of all large answers */
    pthread_mutex_t lock;   /* guards what follows */
    struct http_request *requests;
    bool closing;
};

enum http_phase {
    HTTP_OPEN,     /* no answer yet */
    HTTP_ANSWERED, /* stored, to be queued by the HTTP thread */
    HTTP_QUEUED,
};

struct http_request {
    struct http *http;
    struct http_request *prev, *next; /* under http->lock */
    _Atomic int32_t refs;
    char id[HTTP_ID_MAX + 1];
    struct http_peer *peer; /* valid while connection is set; NULL: it could not be had */

    /* the HTTP thread's, until an answer is queued */
    const struct http_route *route;
    enum api_error_form errors; /* of its path */
    const char *path, *rest;    /* the library's, until the exchange is over */
    const char *error;          /* code of the answer; NULL: it is none. Static */
    uint64_t key, client;
    struct buf body;
    size_t held;    /* of http->bodies */
    size_t dropped; /* bytes of a body that is not wanted */
    bool refused, handled;
    bool preflight;
    bool page;  /* the answer is one, or a part of it */
    bool close; /* say so to the client: the connection is */
    bool last;  /* the client says so to us */
    char allow[32];
    void (*end)(void *user, bool sent);
    void *end_user;
    uint64_t ticket;

    pthread_mutex_t lock;              /* guards what follows */
    struct MHD_Connection *connection; /* NULL: the exchange is over */
    enum http_phase phase;
    bool suspended, gone;
    bool streaming, stream_ended, stream_ok;
    int32_t status, retry_after_s;
    const char *content_type;
    struct buf out;    /* the answer, or bytes of the stream, */
    size_t sent;       /* of which so many have gone */
    size_t unsent_max; /* of the others, but for pieces that alone have more */
    size_t reserved;   /* of http->answers, */
    size_t coming;     /* so much of it for a piece that is not in `out` yet */
};

/* Whom the connection comes from; NULL: the library does not know. */
const struct sockaddr *http_request_peer(struct MHD_Connection *connection);
/* Under r->lock: the connection ends as soon as its thread looks at it. */
void http_answer_drop(struct http_request *r);
/* Under r->lock: nothing large waits any more. */
void http_answer_unreserve(struct http_request *r);
/* On the connection's thread: queues the answer, or puts the connection to sleep until there is
 * one. False: the connection is to be closed. */
bool http_answer_proceed(struct http_request *r);

#endif
