/* Renders templates for the black-box tests: reads lines of JSON {"template", "vars", "own"} and
 * writes a line {"text", "foreign"} or {"error", "status"} for each. "foreign" has a 0 or 1 for
 * every byte. */
#include "server/template/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES_MAX ((size_t)8 << 20)

static enum status render(const struct jdoc *line, struct jinja_text *out, struct err *err)
{
    const struct jdoc *text = jdoc_get(line, "template");
    struct jinja *t = NULL;
    enum status st = OK;
    TRY(jinja_open(jdoc_string(text), jdoc_string_len(text), "template", &t, err));
    TRY(jinja_render(t, jdoc_get(line, "vars"), jdoc_get_value(line, "own"), TEXT_BYTES_MAX, out,
                     err));
out:
    jinja_close(t);
    return st;
}

static void answer(enum status st, const struct jinja_text *text, const struct err *err)
{
    struct buf out;
    buf_init(&out, 8 * TEXT_BYTES_MAX);
    if (st == OK) {
        buf_puts(&out, "{\"text\": ");
        buf_json(&out, text->bytes.data ? text->bytes.data : "", text->bytes.len);
        buf_puts(&out, ", \"foreign\": \"");
        for (size_t i = 0; i < text->foreign.len; i++)
            buf_puts(&out, text->foreign.data[i] ? "1" : "0");
        buf_puts(&out, "\"}");
    } else {
        buf_puts(&out, "{\"error\": ");
        buf_json(&out, err->text, strlen(err->text));
        buf_printf(&out, ", \"status\": %d}", (int)st);
    }
    printf("%s\n", out.failed ? "{\"error\": \"too long\", \"status\": -1}" : out.data);
    buf_free(&out);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        struct err err = {""};
        struct jdoc *doc = NULL;
        struct jinja_text text = {.bytes = {.data = NULL}};
        enum status st = jdoc_parse(line, (size_t)n, &jdoc_limits_request, "line", &doc, &err);
        if (st == OK)
            st = render(doc, &text, &err);
        answer(st, &text, &err);
        if (st == OK)
            jinja_text_free(&text);
        jdoc_close(doc);
    }
    free(line);
    return 0;
}
