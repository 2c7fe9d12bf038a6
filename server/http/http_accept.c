/* DESIGN: weights are not compared. Who names text/html can show it, and no program that wants
 * another form of the one page that has two does. */
#include "server/http/http_accept.h"

#include <string.h>
#include <strings.h>

/* Of "; level=1; q=0.5": is there a q that is 0? strchr() finds the end of the text as well. */
static bool has_no_weight(const char *parameters, size_t n)
{
    const char *end = parameters + n;
    for (const char *at = parameters; at < end; at++) {
        at += strspn(at, "; \t");
        if (end - at > 2 && strncasecmp(at, "q=", 2) == 0)
            return strchr(";,", at[2 + strspn(at + 2, "0. \t")]);
        at += strcspn(at, ";,");
    }
    return false;
}

bool http_accept_html(const char *accept)
{
    static const char html[] = "text/html";
    const size_t html_n = sizeof html - 1;
    for (const char *at = accept; at && *at; at++) {
        at += strspn(at, " \t");
        const size_t n = strcspn(at, ","), type_n = strcspn(at, ",; \t");
        if (type_n == html_n && strncasecmp(at, html, html_n) == 0)
            return !has_no_weight(at + type_n, n - type_n);
        at += n;
        if (!*at)
            break;
    }
    return false;
}
