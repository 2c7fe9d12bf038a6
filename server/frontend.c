/* DESIGN: the parts and the order they open and close in; the routes that need no engine. Each part
 * knows only the service and the job, so none can wait for another in a circle:
 * HTTP thread -> worker queue -> engine -> event queue -> output thread -> HTTP thread. */
#include "server/frontend.h"

#include "server/http/http.h"
#include "server/job.h"
#include "server/output.h"
#include "server/request_worker.h"
#include "server/service.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOBS_QUEUED_MAX 256
#define PAGE_BYTES_MAX ((size_t)4 << 20)

struct frontend {
    struct service service;
    struct request_worker *worker;
    struct output *output;
    struct http *http;
};

/* ---- routes ---- */

static void reply_json(struct http_request *r, struct buf *body)
{
    http_reply(r, 200, "application/json", body);
}

static void get_live(void *ctx, struct http_request *r)
{
    struct buf body;
    (void)ctx;
    buf_init(&body, 256);
    buf_puts(&body, "{\"status\":\"alive\"}");
    reply_json(r, &body);
}

static void get_ready(void *ctx, struct http_request *r)
{
    struct frontend *f = ctx;
    struct api_error e = {0};
    struct buf body;
    if (service_check(&f->service, &e) != OK) {
        http_reply_error(r, &e);
        return;
    }
    buf_init(&body, 256);
    buf_puts(&body, "{\"status\":\"ready\"}");
    reply_json(r, &body);
}

static void get_version(void *ctx, struct http_request *r)
{
    const struct frontend *f = ctx;
    struct buf body;
    buf_init(&body, 256);
    buf_puts(&body, "{\"version\":");
    buf_json(&body, f->service.version, strlen(f->service.version));
    buf_puts(&body, "}");
    reply_json(r, &body);
}

static void write_model(const struct service *s, struct buf *out)
{
    size_t n = strlen(s->model_name);
    buf_puts(out, "{\"id\":");
    buf_json(out, s->model_name, n);
    buf_printf(out,
               ",\"object\":\"model\",\"created\":%" PRId64 ",\"owned_by\":\"tessera\",\"root\":",
               s->created);
    buf_json(out, s->model_name, n);
    buf_printf(out, ",\"parent\":null,\"max_model_len\":%d}", s->rules.max_model_len);
}

static void get_models(void *ctx, struct http_request *r)
{
    const struct frontend *f = ctx;
    struct buf body;
    buf_init(&body, 4096);
    buf_puts(&body, "{\"object\":\"list\",\"data\":[");
    write_model(&f->service, &body);
    buf_puts(&body, "]}");
    reply_json(r, &body);
}

static void get_model(void *ctx, struct http_request *r)
{
    const struct frontend *f = ctx;
    struct api_error e = {0};
    struct buf body;
    if (strcmp(http_rest(r), f->service.model_name) != 0) {
        api_error_set(&e, 404, "model_not_found",
                      "the model \"%.200s\" does not exist; this server has \"%.200s\"",
                      http_rest(r), f->service.model_name);
        http_reply_error(r, &e);
        return;
    }
    buf_init(&body, 4096);
    write_model(&f->service, &body);
    reply_json(r, &body);
}

static void get_metrics(void *ctx, struct http_request *r)
{
    struct frontend *f = ctx;
    struct engine *engine = service_engine(&f->service);
    struct engine_metrics snapshot;
    struct buf body;
    memset(&snapshot, 0, sizeof snapshot);
    if (engine)
        engine_metrics(engine, &snapshot);
    buf_init(&body, PAGE_BYTES_MAX);
    metrics_write(f->service.metrics, engine ? &snapshot : NULL, f->service.model_name, &body);
    http_reply(r, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

static void get_root(void *ctx, struct http_request *r)
{
    const struct frontend *f = ctx;
    struct buf body;
    buf_init(&body, 4096);
    buf_printf(&body,
               "tessera %s, serving %s\n\n"
               "POST /v1/completions   complete a prompt (OpenAI's completions API)\n"
               "GET  /v1/models        the model that is served\n"
               "GET  /health           200 when requests are welcome (also /readyz)\n"
               "GET  /livez            200 while the server runs\n"
               "GET  /metrics          counters for Prometheus\n"
               "GET  /version\n",
               f->service.version, f->service.model_name);
    http_reply(r, 200, "text/plain; charset=utf-8", &body);
}

static void post_completions(void *ctx, struct http_request *r)
{
    struct frontend *f = ctx;
    struct api_error e = {0};
    if (service_check(&f->service, &e) != OK) {
        http_reply_error(r, &e);
        return;
    }
    struct job *j = job_open(&f->service, r);
    if (!j) {
        api_error_from_status(&e, ERR_NOMEM, &(struct err){""});
        http_reply_error(r, &e);
    } else if (!request_worker_push(f->worker, j)) {
        api_error_set(&e, 429, "queue_full", "too many requests are waiting, try again later");
        pthread_mutex_lock(&j->lock);
        job_fail(j, &e);
        pthread_mutex_unlock(&j->lock);
        job_release(j);
    }
}

static const struct http_route routes[] = {
    {"POST", "/v1/completions", post_completions},
    {"GET", "/v1/models", get_models},
    {"GET", "/v1/models/", get_model},
    {"GET", "/health", get_ready},
    {"GET", "/readyz", get_ready},
    {"GET", "/livez", get_live},
    {"GET", "/metrics", get_metrics},
    {"GET", "/version", get_version},
    {"GET", "/", get_root},
};

/* What tells nothing about a model or its users; with --metrics-without-key from the first on. */
static const char *const open_paths[] = {"/metrics",  "/health",  "/livez", "/readyz",
                                         "/startupz", "/version", NULL};

/* ---- opening and closing ---- */

static enum status open_service(const struct frontend_config *c, struct service *s, struct err *err)
{
    snprintf(s->model_name, sizeof s->model_name, "%s", c->model_name);
    snprintf(s->version, sizeof s->version, "%s", c->version);
    snprintf(s->fingerprint, sizeof s->fingerprint, "tessera-%s", s->version);
    s->tokenizer = c->tokenizer;
    s->rules = (struct completion_rules){
        .model_name = s->model_name,
        .vocab = c->vocab,
        .max_model_len = c->max_model_len,
        .has_tokenizer = c->tokenizer != NULL,
        .defaults = c->defaults,
    };
    return service_open(s, err);
}

static enum status open_http(struct frontend *f, const struct frontend_config *c, struct err *err)
{
    const struct http_config config = {
        .host = c->host,
        .port = c->port,
        .threads = c->http_threads > 0 ? c->http_threads : 2,
        .limits = c->http,
        .keys = c->keys,
        .open_paths = open_paths + (c->metrics_without_key ? 0 : 1),
        .cors_origins = c->cors_origins,
        .routes = routes,
        .route_count = (int32_t)ARRAY_LEN(routes),
        .ctx = f,
    };
    return http_open(&config, &f->http, err);
}

enum status frontend_open(const struct frontend_config *config, struct frontend **out,
                          struct err *err)
{
    enum status st = OK;
    struct frontend *f = calloc(1, sizeof *f);
    if (!f)
        return base_fail(err, ERR_NOMEM, "front end: no memory");
    TRY(open_service(config, &f->service, err));
    TRY(output_open(&f->service, &f->output, err));
    TRY(request_worker_open(&f->service, config->request_workers > 0 ? config->request_workers : 2,
                            JOBS_QUEUED_MAX, &f->worker, err));
    TRY(open_http(f, config, err));
    *out = f;
    f = NULL;
out:
    frontend_close(f);
    return st;
}

int32_t frontend_port(const struct frontend *f)
{
    return http_port(f->http);
}

void frontend_ready(struct frontend *f, struct engine *e)
{
    service_ready(&f->service, e);
}

void frontend_sink(void *ctx, const struct token_event *events, int32_t count)
{
    struct frontend *f = ctx;
    output_push(f->output, events, count);
}

void frontend_refuse(struct frontend *f, const char *code, const char *message)
{
    service_refuse(&f->service, code, message);
}

bool frontend_idle(struct frontend *f, double timeout_s)
{
    return service_wait_idle(&f->service, timeout_s);
}

void frontend_close(struct frontend *f)
{
    struct api_error e = {0};
    if (!f)
        return;
    if (service_check(&f->service, &e) == OK)
        service_refuse(&f->service, "draining", "the server is shutting down");
    request_worker_stop(f->worker);
    output_close(f->output);
    service_wait_idle(&f->service, 1.0); /* last answers are on their way to clients */
    http_close(f->http);
    request_worker_close(f->worker);
    service_close(&f->service);
    free(f);
}
