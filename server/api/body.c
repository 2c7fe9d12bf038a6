/* DESIGN: the parser refuses an integer beyond 64 bits without saying where; a second look at the
 * text, only then, finds the field, because that is the one thing the client needs to know. */
#include "server/api/body.h"

#include <stdio.h>
#include <string.h>

/* The top-level field that holds an integer beyond 64 bits, which the JSON parser refuses without
 * saying where. False when there is none. */
static bool huge_integer_field(const char *text, size_t n, char *name, size_t cap)
{
    size_t key = 0, key_len = 0, start = 0;
    int32_t depth = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '"') {
            for (start = ++i; i < n && text[i] != '"'; i++)
                i += text[i] == '\\';
            if (depth == 1 && i < n) {
                key_len = i - start;
                key = start;
            }
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (c >= '0' && c <= '9') {
            for (start = i; i + 1 < n && strchr("0123456789+-.eE", text[i + 1]) && text[i + 1];)
                i++;
            size_t digits = i + 1 - start;
            bool huge = digits > 19 ||
                        (digits == 19 && memcmp(text + start, "9223372036854775807", 19) > 0);
            if (huge && !memchr(text + start, '.', digits) && !memchr(text + start, 'e', digits) &&
                !memchr(text + start, 'E', digits)) {
                snprintf(name, cap, "%.*s", (int)(key_len < cap ? key_len : cap - 1), text + key);
                return key_len > 0;
            }
        }
    }
    return false;
}

static enum status parse(const char *text, size_t n, const char *big, struct jdoc **doc,
                         struct api_error *e)
{
    struct jdoc_limits limits = jdoc_limits_request;
    struct err err = {""};
    struct jdoc *found = NULL;
    char name[48];
    enum status st = jdoc_parse(text, n, &limits, "request body", &found, &err);
    if (st == ERR_INPUT && huge_integer_field(text, n, name, sizeof name)) {
        if (!big || strcmp(name, big) != 0)
            return api_error_field(e, name, "%s has an integer of more than 64 bits", name);
        limits.big = true;
        st = jdoc_parse(text, n, &limits, "request body", &found, &err);
    }
    if (st == ERR_INPUT)
        return api_error_set(e, 400, "invalid_json", "%s", err.text);
    if (st != OK) {
        api_error_from_status(e, st, &err);
        return st;
    }
    if (jdoc_type(found) != JDOC_OBJECT) {
        st = api_error_set(e, 400, "invalid_json", "request body: expected a JSON object, got %s",
                           jdoc_type_name(jdoc_type(found)));
        jdoc_close(found);
        return st;
    }
    *doc = found;
    return OK;
}

enum status body_parse(const char *text, size_t n, struct jdoc **doc, struct api_error *e)
{
    return parse(text, n, NULL, doc, e);
}

enum status body_parse_big(const char *text, size_t n, const char *field, struct jdoc **doc,
                           struct api_error *e)
{
    return parse(text, n, field, doc, e);
}
