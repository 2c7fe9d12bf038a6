/* DESIGN: times are those of the slowest choice; a time that did not come (no token, never
 * admitted) is left out rather than called zero. */
#include "server/request_log.h"

#include "config/log.h"

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void request_log(const struct job *j)
{
    struct log_field fields[8];
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
    fields[n++] = (struct log_field){"status", NULL, j->status};
    fields[n++] = (struct log_field){"prompt_tokens", NULL, (double)j->prompt_tokens};
    fields[n++] = (struct log_field){"completion_tokens", NULL, (double)tokens};
    if (admitted)
        fields[n++] = (struct log_field){"queue_s", NULL, ((double)admitted - arrived) / 1e9};
    if (first)
        fields[n++] = (struct log_field){"first_token_s", NULL, ((double)first - arrived) / 1e9};
    fields[n++] = (struct log_field){"total_s", NULL, ((double)base_now_ns() - arrived) / 1e9};
    log_event(LOG_INFO, "request", fields, n);
}
