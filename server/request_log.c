/* DESIGN: times are those of the slowest choice; a time that did not come (no token, never
 * admitted) is left out rather than called zero. The path is the route's, so it is none of the
 * client's text; of what went wrong there are code and field, but not the message, which may quote
 * a prompt. */
#include "server/request_log.h"

#include "config/log.h"

#include <stdio.h>
#include <string.h>

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Why it ended; of several choices each reason once. */
static void finish_of(const struct job *j, char *out, size_t size)
{
    static const char *const reasons[] = {"stop", "length", "tool_calls"};
    size_t n = 0;
    out[0] = '\0';
    if (j->status == JOB_CLIENT_LEFT || j->fault.code) {
        snprintf(out, size, "%s", j->fault.code ? "error" : "abort");
        return;
    }
    for (size_t k = 0; k < ARRAY_LEN(reasons); k++) {
        bool found = false;
        for (int32_t i = 0; i < j->choice_count && !found; i++) {
            const char *reason = job_finish_reason(&j->choices[i]);
            found = reason && strcmp(reason, reasons[k]) == 0;
        }
        if (found && n < size)
            n += (size_t)snprintf(out + n, size - n, "%s%s", n ? "," : "", reasons[k]);
    }
}

void request_log(const struct job *j)
{
    struct log_field fields[13];
    char finish[32];
    size_t n = 0;
    int64_t tokens = 0, admitted = 0, first = 0;
    for (int32_t i = 0; i < j->choice_count; i++) {
        const struct choice *c = &j->choices[i];
        tokens += c->tokens;
        admitted = later(admitted, c->admitted_ns);
        first = later(first, c->first_token_ns);
    }
    const double arrived = (double)j->arrived_ns;
    fields[n++] = (struct log_field){"id", http_id(j->http), 0};
    fields[n++] = (struct log_field){"path", http_path(j->http), 0};
    fields[n++] = (struct log_field){"client", j->client, 0};
    fields[n++] = (struct log_field){"status", NULL, j->status};
    if (j->fault.code)
        fields[n++] = (struct log_field){"error", j->fault.code, 0};
    if (j->fault.param[0])
        fields[n++] = (struct log_field){"param", j->fault.param, 0};
    finish_of(j, finish, sizeof finish);
    if (finish[0])
        fields[n++] = (struct log_field){"finish", finish, 0};
    fields[n++] = (struct log_field){"prompt_tokens", NULL, (double)j->prompt_tokens};
    fields[n++] = (struct log_field){"completion_tokens", NULL, (double)tokens};
    if (admitted)
        fields[n++] = (struct log_field){"queue_s", NULL, ((double)admitted - arrived) / 1e9};
    if (first)
        fields[n++] = (struct log_field){"first_token_s", NULL, ((double)first - arrived) / 1e9};
    fields[n++] = (struct log_field){"total_s", NULL, ((double)base_now_ns() - arrived) / 1e9};
    log_event(LOG_INFO, "request", fields, n);
}
