/* DESIGN: style and script are files of their own, so that the page's policy can be the same for
 * every build: what comes from this server, and nothing that stands in the page itself. */
#include "server/route.h"
#include "server/web/web.h"

#include <string.h>

static void reply(struct http_request *r, const char *content_type, const char *text)
{
    struct buf body;
    buf_init(&body, strlen(text) + 1);
    buf_puts(&body, text);
    http_reply_page(r, content_type, &body);
}

void route_page(void *ctx, struct http_request *r)
{
    (void)ctx;
    reply(r, "text/html; charset=utf-8", web_index);
}

void route_page_style(void *ctx, struct http_request *r)
{
    (void)ctx;
    reply(r, "text/css; charset=utf-8", web_style);
}

void route_page_script(void *ctx, struct http_request *r)
{
    (void)ctx;
    reply(r, "text/javascript; charset=utf-8", web_script);
}
