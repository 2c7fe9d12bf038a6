/* tessera complete: one completion in the terminal, from a server or from one that it starts. Text
 * goes to stdout as it comes, everything else to stderr. */
#include "config/utf8.h"
#include "server/client.h"
#include "server/commands.h"

#include <stdlib.h>
#include <string.h>

/* Would our own server take these fields? Asked before anything is started. */
static enum status check_fields(const struct buf *fields_text, struct err *err)
{
    const struct completion_rules rules = client_rules();
    struct completion_request r = {0};
    struct api_error e = {0};
    struct buf body;
    buf_init(&body, fields_text->max + 2);
    buf_printf(&body, "{%s}", fields_text->data ? fields_text->data : "");
    enum status st = body.failed ? base_fail(err, ERR_NOMEM, "no memory for the request")
                                 : completion_parse(body.data, body.len, &rules, &r, &e);
    if (st == ERR_INPUT)
        st = base_fail(err, ERR_USAGE, "%s", e.message);
    completion_free(&r);
    buf_free(&body);
    return st;
}

/* The members of the request's object but for the model, from the command line and stdin. */
static enum status make_fields(const struct options *o, struct buf *out, struct err *err)
{
    enum status st = OK;
    char *prompt = NULL;
    size_t n = 0;
    const char *stop = o->complete.stop ? o->complete.stop : "";
    TRY(client_read_text(o, &prompt, &n, err));
    if (!utf8_is_valid(prompt, n) || !utf8_is_valid(stop, strlen(stop)))
        TRY(base_fail(err, ERR_USAGE, "the prompt or --stop is not UTF-8"));
    buf_puts(out, "\"prompt\": ");
    buf_json(out, prompt, n);
    client_add_sampling(o, out);
    TRY(check_fields(out, err));
out:
    free(prompt);
    return st;
}

enum status commands_complete(const struct options *o, struct err *err)
{
    enum status st = OK;
    struct client *client = NULL;
    struct buf members;
    buf_init(&members, 8 * CLIENT_TEXT_BYTES_MAX);
    TRY(client_open(o, false, &client, err));
    TRY(make_fields(o, &members, err));
    TRY(client_start(client, err));
    st = client_ask(client, &members, 0, NULL, err);
out:
    client_close(client);
    buf_free(&members);
    return st;
}
