/* Arbitrary bytes as a template, a NUL, and its variables as JSON. Whatever is rendered is as long
 * as its marks, and what is refused has a message. Only formatting with % may turn out to be not
 * supported as late as that. */
#include "server/template/jinja.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

#define TEXT_BYTES_MAX (1u << 20)

static void check_render(const struct jinja *t, const struct jdoc *vars)
{
    struct jinja_text text;
    struct err err = {""};
    const enum status st = jinja_render(t, vars, NULL, TEXT_BYTES_MAX, &text, &err);
    if (st != OK) {
        CHECK(st == ERR_INPUT || st == ERR_LIMIT || st == ERR_MODEL);
        CHECK(err.text[0] != '\0');
        CHECK(st != ERR_MODEL || strstr(err.text, ": formatting with % is not supported"));
        return;
    }
    CHECK(text.bytes.len == text.foreign.len);
    for (size_t i = 0; i < text.foreign.len; i++)
        CHECK(text.foreign.data[i] == 0 || text.foreign.data[i] == 1);
    jinja_text_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *nul = size > 0 ? memchr(text, '\0', size) : NULL;
    const size_t n = nul ? (size_t)(nul - text) : size;
    struct err err = {""};
    struct jinja *t = NULL;
    struct jdoc *vars = NULL;
    if (jinja_open(text, n, "fuzz", &t, &err) != OK) {
        CHECK(err.text[0] != '\0');
        return 0;
    }
    if (nul && jdoc_parse(nul + 1, size - n - 1, &jdoc_limits_request, "fuzz", &vars, &err) == OK)
        check_render(t, vars);
    jdoc_close(vars);
    jinja_close(t);
    return 0;
}
