/* DESIGN: the parts and the order they open and close in; the routes that need no engine. Each part
 * knows only the service and the job, so none can wait for another in a circle:
 * HTTP thread -> worker queue -> engine -> event queue -> output thread -> HTTP thread. */
#include "server/frontend.h"

#include "config/utf8.h"
#include "server/http/http.h"
#include "server/output.h"
#include "server/request_worker.h"
#include "server/route.h"
#include "server/service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define BODIES_BYTES_MAX ((size_t)64 << 20) /* of the requests queued */
#define PING_S 15
enum { HTTP_THREADS = 2, REQUEST_WORKERS = 2 };
#define PAGE_BYTES_MAX ((size_t)4 << 20)

struct frontend {
    struct service service; /* its worker and output are owned here */
    struct http *http;
};

/* ---- routes ---- */

static void reply_json(struct http_request *r, struct buf *body)
{
    http_reply(r, 200, "application/json", body);
}

static void get_live(void *ctx, struct http_request *r)
{
    const struct service *s = ctx;
    struct api_error e = {0};
    struct buf body;
    if (health_phase(s->health) == HEALTH_LOST && health_check(s->health, &e)) {
        http_reply_error(r, &e);
        return;
    }
    buf_init(&body, 256);
    buf_puts(&body, "{\"status\":\"alive\"}");
    reply_json(r, &body);
}

static void get_ready(void *ctx, struct http_request *r)
{
    struct service *s = ctx;
    struct api_error e = {0};
    struct buf body;
    if (health_check_ready(s->health, service_engine(s), &e) != OK) {
        http_reply_error(r, &e);
        return;
    }
    buf_init(&body, 256);
    buf_puts(&body, "{\"status\":\"ready\"}");
    reply_json(r, &body);
}

/* 503 until the server has been ready once: what a start-up probe waits for. */
static void get_startup(void *ctx, struct http_request *r)
{
    const struct service *s = ctx;
    struct buf body;
    buf_init(&body, 1024);
    health_json(s->health, &body);
    http_reply(r, health_phase(s->health) < HEALTH_READY ? 503 : 200, "application/json", &body);
}

static void get_version(void *ctx, struct http_request *r)
{
    const struct service *s = ctx;
    struct buf body;
    buf_init(&body, 256);
    buf_puts(&body, "{\"version\":");
    buf_json(&body, s->version, strlen(s->version));
    buf_puts(&body, "}");
    reply_json(r, &body);
}

static void get_metrics(void *ctx, struct http_request *r)
{
    struct service *s = ctx;
    struct engine *engine = service_engine(s);
    struct engine_metrics snapshot;
    struct api_error e = {0};
    struct buf body;
    memset(&snapshot, 0, sizeof snapshot);
    if (engine)
        engine_metrics(engine, &snapshot);
    buf_init(&body, PAGE_BYTES_MAX);
    const bool ready = health_check_ready(s->health, engine, &e) == OK;
    metrics_write(s->metrics, engine ? &snapshot : NULL, ready, s->names[0], &body);
    http_reply(r, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

static void get_root(void *ctx, struct http_request *r)
{
    const struct service *s = ctx;
    struct buf body;
    buf_init(&body, 4096);
    buf_printf(&body,
               "tessera %s, serving %s\n\n"
               "POST /v1/completions        complete a prompt (OpenAI's completions API)\n"
               "POST /v1/chat/completions   answer a conversation (OpenAI's chat API)\n"
               "POST /v1/responses          the same (OpenAI's Responses API, nothing is stored)\n"
               "POST /v1/messages           the same (Anthropic's Messages API)\n"
               "POST /v1/messages/count_tokens: how many tokens such a request has\n"
               "POST /v1/embeddings         vectors of texts (--runner pooling)\n"
               "GET  /v1/models             the model that is served\n"
               "POST /tokenize              text to token ids; /detokenize: and back\n"
               "GET  /tokenizer_info        the tokenizer's configuration\n"
               "GET  /openapi.json          every field of every request\n"
               "GET  /health                200 when requests are welcome (also /readyz)\n"
               "GET  /livez                 200 while the server runs\n"
               "GET  /startupz              how far it has loaded; 200 once it has been ready\n"
               "GET  /metrics               counters for Prometheus\n"
               "GET  /version\n",
               s->version, s->names[0]);
    http_reply(r, 200, "text/plain; charset=utf-8", &body);
}

static const struct http_route routes[] = {
    {"POST", "/v1/completions", route_completions, API_ERROR_OPENAI},
    {"POST", "/v1/chat/completions", route_chat, API_ERROR_OPENAI},
    {"POST", "/v1/responses", route_chat_responses, API_ERROR_OPENAI},
    {"POST", "/v1/messages", route_chat_messages, API_ERROR_ANTHROPIC},
    {"POST", "/v1/messages/count_tokens", route_chat_count, API_ERROR_ANTHROPIC},
    {"GET", "/v1/models", route_models, API_ERROR_OPENAI},
    {"GET", "/v1/models/", route_models_by_name, API_ERROR_OPENAI},
    {"POST", "/v1/embeddings", route_embeddings, API_ERROR_OPENAI},
    {"POST", "/tokenize", route_tokenize, API_ERROR_OPENAI},
    {"POST", "/detokenize", route_detokenize, API_ERROR_OPENAI},
    {"GET", "/tokenizer_info", route_tokenizer_info, API_ERROR_OPENAI},
    {"GET", "/openapi.json", route_models_document, API_ERROR_OPENAI},
    {"GET", "/health", get_ready, API_ERROR_OPENAI},
    {"GET", "/readyz", get_ready, API_ERROR_OPENAI},
    {"GET", "/livez", get_live, API_ERROR_OPENAI},
    {"GET", "/startupz", get_startup, API_ERROR_OPENAI},
    {"GET", "/metrics", get_metrics, API_ERROR_OPENAI},
    {"GET", "/version", get_version, API_ERROR_OPENAI},
    {"GET", "/", get_root, API_ERROR_OPENAI},
    /* with --webui */
    {"GET", ROUTE_PAGE, route_page, API_ERROR_OPENAI},
    {"GET", ROUTE_PAGE_STYLE, route_page_style, API_ERROR_OPENAI},
    {"GET", ROUTE_PAGE_SCRIPT, route_page_script, API_ERROR_OPENAI},
};
#define WEBUI_ROUTES 3

/* What tells nothing about a model or its users; with --metrics-without-key from the first on. */
static const char *const open_paths[] = {
    "/metrics", "/health",  "/livez",         "/readyz",         "/startupz",
    "/version", ROUTE_PAGE, ROUTE_PAGE_STYLE, ROUTE_PAGE_SCRIPT, NULL};

/* ---- opening and closing ---- */

/* "name,alias,..." into the service's list. */
static enum status set_names(struct service *s, const char *text, struct err *err)
{
    int32_t count = 0;
    if ((size_t)snprintf(s->name_text, sizeof s->name_text, "%s", text) >= sizeof s->name_text)
        return base_fail(err, ERR_USAGE, "--served-model-name: longer than %zu bytes",
                         sizeof s->name_text - 1);
    for (char *at = s->name_text; at;) {
        char *comma = strchr(at, ',');
        if (comma)
            *comma++ = '\0';
        if (count == SERVICE_NAMES_MAX || !*at)
            return base_fail(err, ERR_USAGE,
                             "--served-model-name: got \"%.80s\", expected 1 to %d "
                             "names with commas between",
                             text, SERVICE_NAMES_MAX);
        if (!utf8_is_plain(at))
            return base_fail(err, ERR_USAGE,
                             "the model's name in answers would be \"%.80s\", which is not plain "
                             "UTF-8: give --served-model-name",
                             at);
        s->names[count++] = at;
        at = comma;
    }
    s->rules.model_names = s->names;
    s->rules.model_name_count = count;
    return OK;
}

static enum status open_service(const struct frontend_config *c, struct service *s, struct err *err)
{
    enum status st = OK;
    snprintf(s->version, sizeof s->version, "%s", c->version);
    snprintf(s->fingerprint, sizeof s->fingerprint, "tessera-%s", s->version);
    s->tokenizer = c->tokenizer;
    s->chat_template = c->chat_template;
    s->health = c->health;
    s->shared_prefix_cache = c->shared_prefix_cache;
    s->ping_s = c->ping_s > 0 ? c->ping_s : PING_S;
    s->rules = (struct completion_rules){
        .vocab = c->vocab,
        .max_model_len = c->max_model_len,
        .choices_max = c->choices_max,
        .tokens_max = c->tokens_max,
        .has_tokenizer = c->tokenizer != NULL,
        .columns = c->columns,
        .normalizes = c->normalizes,
        .answer = c->answer,
        .defaults = c->defaults,
    };
    TRY(service_open(s, err));
    TRY(set_names(s, c->model_name, err));
    if (getrandom(&s->rules.salt_key, sizeof s->rules.salt_key, 0) < 0)
        st = base_fail_errno(err, ERR_INTERNAL, "getrandom");
out:
    return st;
}

static void count_answer(void *ctx, int32_t status)
{
    metrics_count_answer(((struct service *)ctx)->metrics, status);
}

static enum status open_http(struct frontend *f, const struct frontend_config *c, struct err *err)
{
    const struct http_config config = {
        .host = c->host,
        .port = c->port,
        .threads = HTTP_THREADS,
        .limits = c->http,
        .keys = c->keys,
        .open_paths = open_paths + (c->metrics_without_key ? 0 : 1),
        .cors_origins = c->cors_origins,
        .allowed_hosts = c->allowed_hosts,
        .page = c->webui ? ROUTE_PAGE : NULL,
        .routes = {routes, (int32_t)ARRAY_LEN(routes) - (c->webui ? 0 : WEBUI_ROUTES)},
        .ctx = &f->service,
        .answered = count_answer,
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
    TRY(output_open(&f->service, &f->service.output, err));
    TRY(request_worker_open(REQUEST_WORKERS, config->queued_max, BODIES_BYTES_MAX,
                            &f->service.worker, err));
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
    output_push(f->service.output, events, count);
}

bool frontend_idle(struct frontend *f, double timeout_s)
{
    return service_wait_idle(&f->service, timeout_s);
}

void frontend_close(struct frontend *f)
{
    if (!f)
        return;
    health_enter(f->service.health, HEALTH_DRAINING);
    request_worker_stop(f->service.worker);
    output_close(f->service.output);
    service_wait_idle(&f->service, 1.0); /* last answers are on their way to clients */
    http_close(f->http);
    request_worker_close(f->service.worker);
    service_close(&f->service);
    free(f);
}
