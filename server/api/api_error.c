/* DESIGN: one struct from the place that finds the fault to the bytes on the wire; the error type
 * is a function of the HTTP status in either form, so the two cannot disagree. Messages may quote
 * the client's bytes cut anywhere, hence the UTF-8 check on the way out. */
#include "server/api/api_error.h"

#include "config/utf8.h"

#include <stdio.h>
#include <string.h>

static const char *type_of(int32_t http_status)
{
    switch (http_status) {
    case 401:
    case 403:
        return "authentication_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    case 500:
        return "server_error";
    case 501:
        return "not_implemented";
    case 503:
        return "unavailable";
    default:
        return "invalid_request_error";
    }
}

/* As https://docs.claude.com/en/api/errors has them, where all other 4xx are invalid requests. What
 * is overloaded there (529) can be asked again later, as our 503 can. */
static const char *anthropic_type_of(int32_t http_status)
{
    switch (http_status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    default:
        return http_status >= 500 ? "api_error" : "invalid_request_error";
    }
}

static enum status fill(struct api_error *e, int32_t http_status, const char *code,
                        const char *field)
{
    e->http_status = http_status;
    e->type = type_of(http_status);
    e->code = code;
    e->retry_after_s = http_status == 429 || http_status == 503;
    snprintf(e->param, sizeof e->param, "%s", field ? field : "");
    e->is_quoted = false;
    return ERR_INPUT;
}

enum status api_error_field(struct api_error *e, const char *field, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return fill(e, 400, NULL, field);
}

enum status api_error_set(struct api_error *e, int32_t http_status, const char *code,
                          const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return fill(e, http_status, code, NULL);
}

const char *api_error_code(const struct api_error *e)
{
    return e->code ? e->code : e->type;
}

enum status api_error_no_memory(struct api_error *e)
{
    api_error_set(e, 503, "out_of_memory", "no memory for this request, try again later");
    return ERR_NOMEM;
}

void api_error_from_status(struct api_error *e, enum status st, const struct err *err)
{
    switch (st) {
    case ERR_INPUT:
        api_error_set(e, 400, NULL, "%s", err->text);
        break;
    case ERR_LIMIT:
        api_error_set(e, 429, "queue_full", "%s", err->text);
        break;
    case ERR_COMM:
        api_error_set(e, 503, "rank_lost", "%s", err->text);
        break;
    case ERR_NOMEM:
        api_error_no_memory(e);
        break;
    case OK:
    case ERR_USAGE:
    case ERR_MODEL:
    case ERR_IO:
    case ERR_DEVICE:
    case ERR_PEER:
    case ERR_OUTPUT:
    case ERR_CANCELLED:
    case ERR_INTERNAL:
        api_error_set(e, 500, "internal", "internal error");
        break;
    }
}

static void write_text(const char *text, struct buf *out)
{
    char clean[sizeof((struct api_error *)0)->message];
    size_t n = 0;
    for (const char *s = text; *s && n + 1 < sizeof clean;) {
        size_t k = utf8_char(s, strlen(s));
        if (n + (k ? k : 1) >= sizeof clean)
            break;
        if (k)
            memcpy(clean + n, s, k);
        else
            clean[n] = '?';
        n += k ? k : 1;
        s += k ? k : 1;
    }
    clean[n] = '\0';
    buf_json(out, clean, n);
}

static void write_or_null(const char *text, struct buf *out)
{
    if (text && text[0])
        write_text(text, out);
    else
        buf_puts(out, "null");
}

void api_error_write_members(const struct api_error *e, struct buf *out)
{
    buf_puts(out, "\"code\":");
    write_or_null(e->code, out);
    buf_puts(out, ",\"message\":");
    write_text(e->message, out);
    buf_puts(out, ",\"param\":");
    write_or_null(e->param, out);
}

void api_error_write(const struct api_error *e, struct buf *out)
{
    buf_puts(out, "{\"error\":{\"message\":");
    write_text(e->message, out);
    buf_puts(out, ",\"type\":");
    write_text(e->type, out);
    buf_puts(out, ",\"param\":");
    write_or_null(e->param, out);
    buf_puts(out, ",\"code\":");
    write_or_null(e->code, out);
    buf_puts(out, "}}");
}

void api_error_write_anthropic(const struct api_error *e, const char *request_id, struct buf *out)
{
    buf_puts(out, "{\"type\":\"error\",\"error\":{\"type\":");
    write_text(anthropic_type_of(e->http_status), out);
    buf_puts(out, ",\"message\":");
    write_text(e->message, out);
    buf_puts(out, "}");
    if (request_id) {
        buf_puts(out, ",\"request_id\":");
        write_text(request_id, out);
    }
    buf_puts(out, "}");
}
