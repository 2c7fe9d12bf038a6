#include "server/task.h"

#include <stddef.h>
#include <stdlib.h>

#define REPLY_BYTES_MAX ((size_t)1 << 30)

static void close_task(struct task *t)
{
    buf_free(&t->body);
    buf_free(&t->reply);
    http_release(t->http);
    service_leave(t->service);
    free(t);
}

/* On a request worker. */
static void run(struct work *w)
{
    struct task *t = (struct task *)(void *)((char *)w - offsetof(struct task, work));
    struct api_error e = {0};
    enum status st = service_check_stopping(t->service, &e);
    if (st == OK)
        st = t->answer(t, &e);
    if (st == OK && t->reply.failed) {
        st = api_error_no_memory(&e);
    } else if (st == OK && !http_reserve(t->http, t->reply.len)) {
        st = ERR_LIMIT;
        http_no_room(&e);
    }
    if (st == OK)
        http_reply(t->http, 200, "application/json", &t->reply);
    else
        http_reply_error(t->http, &e);
    close_task(t);
}

void task_start(struct service *s, struct http_request *r,
                enum status (*answer)(struct task *t, struct api_error *e))
{
    struct api_error e = {0};
    if (service_check_stopping(s, &e) != OK) {
        http_reply_error(r, &e);
        return;
    }
    struct task *t = calloc(1, sizeof *t);
    if (!t) {
        api_error_no_memory(&e);
        http_reply_error(r, &e);
        return;
    }
    t->service = s;
    t->http = r;
    t->answer = answer;
    t->work.run = run;
    buf_init(&t->reply, REPLY_BYTES_MAX);
    service_enter(s);
    http_hold(r);
    http_take_body(r, &t->body);
    t->work.bytes = t->body.cap;
    if (!request_worker_push(s->worker, &t->work)) {
        service_refuse(s, &e);
        http_reply_error(r, &e);
        close_task(t);
    }
}
