/* DESIGN: a path is the client's text, so it is written as in a URL: it can neither look like
 * another field of the line nor end it. */
#include "server/http/http_log.h"

#include "config/log.h"
#include "server/http/http_listen.h"

#include <stdio.h>
#include <string.h>

#define PATH_SHOWN_MAX 128

static bool is_shown(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != '\0' && strchr("/-._~:@+,", c));
}

/* Room for three bytes more and "..." is kept. */
static void write_path(const char *path, char out[PATH_SHOWN_MAX + 8])
{
    size_t n = 0;
    for (; *path && n < PATH_SHOWN_MAX; path++) {
        if (is_shown(*path))
            out[n++] = *path;
        else
            n += (size_t)snprintf(out + n, 4, "%%%02X", (unsigned char)*path);
    }
    snprintf(out + n, 4, "%s", *path ? "..." : "");
}

void http_log_answer(const struct http_log_answer *a)
{
    struct log_field fields[5];
    char path[PATH_SHOWN_MAX + 8], client[HTTP_LISTEN_ADDRESS_MAX];
    size_t n = 0;
    if (!log_shows(LOG_DEBUG))
        return;
    fields[n++] = (struct log_field){"id", a->id, 0};
    fields[n++] = (struct log_field){"status", NULL, a->status};
    if (a->path) {
        write_path(a->path, path);
        fields[n++] = (struct log_field){"path", path, 0};
    }
    if (a->client) {
        http_listen_address(a->client, client);
        fields[n++] = (struct log_field){"client", client, 0};
    }
    if (a->error)
        fields[n++] = (struct log_field){"error", a->error, 0};
    log_event(LOG_DEBUG, "answer", fields, n);
}
