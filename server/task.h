/* A request that a request worker answers without asking the engine: so it is answered while that
 * loads, and whatever it is busy with, until the server stops. */
#ifndef TESSERA_SERVER_TASK_H
#define TESSERA_SERVER_TASK_H

#include "server/http/http.h"
#include "server/request_worker.h"
#include "server/service.h"

struct task {
    struct service *service;
    struct buf body, reply;
    /* The body becomes the reply, JSON. ERR_INPUT, ERR_NOMEM with the answer in *e. */
    enum status (*answer)(struct task *t, struct api_error *e);
    /* task.c's */
    struct work work;
    struct http_request *http; /* held */
};

/* In the handler: takes the body and the exchange. */
void task_start(struct service *s, struct http_request *r,
                enum status (*answer)(struct task *t, struct api_error *e));

#endif
