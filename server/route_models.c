/* DESIGN: what is served does not change while the server runs, so these answers need no engine and
 * no lock: they come also while the model is being loaded. */
#include "server/route.h"

#include "server/api/openapi.h"
#include "server/service.h"

#include <inttypes.h>
#include <string.h>

#define DOCUMENT_BYTES_MAX ((size_t)1 << 20)

static void write_model(const struct service *s, const char *name, struct buf *out)
{
    buf_puts(out, "{\"id\":");
    buf_json(out, name, strlen(name));
    buf_printf(out,
               ",\"object\":\"model\",\"created\":%" PRId64 ",\"owned_by\":\"tessera\",\"root\":",
               s->created);
    buf_json(out, s->names[0], strlen(s->names[0]));
    buf_printf(out, ",\"parent\":null,\"max_model_len\":%d}", s->rules.max_model_len);
}

void route_models(void *ctx, struct http_request *r)
{
    const struct service *s = ctx;
    struct buf body;
    buf_init(&body, DOCUMENT_BYTES_MAX);
    buf_puts(&body, "{\"object\":\"list\",\"data\":[");
    for (int32_t i = 0; i < s->rules.model_name_count; i++) {
        buf_puts(&body, i ? "," : "");
        write_model(s, s->names[i], &body);
    }
    buf_puts(&body, "]}");
    http_reply(r, 200, "application/json", &body);
}

void route_models_by_name(void *ctx, struct http_request *r)
{
    const struct service *s = ctx;
    struct api_error e = {0};
    struct buf body;
    const struct field_string name = {http_rest(r), strlen(http_rest(r))};
    if (name.len == 0) { /* as clients ask that end every path with a slash */
        route_models(ctx, r);
        return;
    }
    if (completion_check_model(&s->rules, &name, &e) != OK) {
        http_reply_error(r, &e);
        return;
    }
    buf_init(&body, DOCUMENT_BYTES_MAX);
    write_model(s, name.bytes, &body);
    http_reply(r, 200, "application/json", &body);
}

void route_models_document(void *ctx, struct http_request *r)
{
    const struct service *s = ctx;
    struct buf body;
    buf_init(&body, DOCUMENT_BYTES_MAX);
    openapi_write(&s->rules, s->version, &body);
    http_reply(r, 200, "application/json", &body);
}
