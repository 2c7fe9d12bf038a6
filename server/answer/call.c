/* DESIGN: what goes to the client as arguments are the model's own bytes, not what a JSON library
 * would write for the same value: numbers keep their digits, and the text is what the model will
 * see again. So the scan notes where they are; the library says whether the object is JSON. */
#include "server/answer/call.h"

#include "config/jdoc.h"

#include <string.h>

bool call_is_name(const char *name, size_t n)
{
    size_t good = 0;
    while (good < n && call_is_name_byte(name[good]))
        good++;
    return good == n && n > 0 && n <= CALL_NAME_BYTES_MAX;
}

static bool is_key(const struct call_scan *s, const char *text, const char *name)
{
    const size_t n = strlen(name);
    return s->key_end - s->key == n && memcmp(text + s->key, name, n) == 0;
}

static bool is_null(const char *text, size_t begin, size_t end)
{
    while (begin < end && call_is_space(text[begin]))
        begin++;
    return end - begin >= 4 && memcmp(text + begin, "null", 4) == 0;
}

/* Null is absent. */
static void end_member(struct call_scan *s, const char *text)
{
    const bool here = s->value > 0 && !is_null(text, s->value, s->at);
    if (here &&
        (is_key(s, text, "arguments") || (s->arguments == 0 && is_key(s, text, "parameters")))) {
        s->arguments = s->value;
        s->arguments_end = s->at;
    }
    s->members += s->value > 0;
    s->value = 0;
}

static void scan_in_string(struct call_scan *s, char c)
{
    if (s->escaped) {
        s->escaped = false;
    } else if (c == '\\') {
        s->escaped = true;
    } else if (c == '"') {
        s->in_string = false;
        if (s->value == 0)
            s->key_end = s->at;
    }
}

static void scan_outside(struct call_scan *s, const char *text, char c)
{
    switch (c) {
    case '"':
        s->in_string = true;
        if (s->value == 0)
            s->key = s->at + 1;
        break;
    case '{':
    case '[':
        s->depth++;
        break;
    case '}':
    case ']':
        if (s->depth == 1)
            end_member(s, text);
        s->depth--;
        break;
    case ':':
        if (s->depth == 1 && s->value == 0)
            s->value = s->at + 1;
        break;
    case ',':
        if (s->depth == 1)
            end_member(s, text);
        break;
    default:
        break;
    }
}

bool call_scan(struct call_scan *s, const char *text, size_t n)
{
    for (; s->at < n; s->at++) {
        if (!s->in_string && text[s->at] == '<')
            return true; /* no JSON goes on like that, but a tag may begin here */
        if (s->in_string)
            scan_in_string(s, text[s->at]);
        else
            scan_outside(s, text, text[s->at]);
        if (s->depth == 0 && !s->in_string) {
            s->at++;
            return true;
        }
    }
    return false;
}

/* As they stand in the text; {} where they are missing and may be. */
static bool read_arguments(const struct jdoc *root, const struct call_scan *s, const char *text,
                           bool missing_is_none, struct call *out)
{
    const bool missing = !jdoc_get_value(root, "arguments") && !jdoc_get_value(root, "parameters");
    size_t begin = s->arguments, end = s->arguments_end;
    while (begin < end && call_is_space(text[begin]))
        begin++;
    while (end > begin && call_is_space(text[end - 1]))
        end--;
    out->arguments = begin < end ? text + begin : "{}";
    out->arguments_len = begin < end ? end - begin : 2;
    return begin < end ? text[begin] == '{' : missing && missing_is_none;
}

static bool read_name(const struct jdoc *root, struct call *out)
{
    const struct jdoc *v = jdoc_get_value(root, "name");
    if (!v || jdoc_type(v) != JDOC_STRING)
        return false;
    const size_t n = jdoc_string_len(v);
    if (n == 0 || n > CALL_NAME_BYTES_MAX || memchr(jdoc_string(v), '\0', n))
        return false;
    memcpy(out->name, jdoc_string(v), n);
    out->name[n] = '\0';
    return true;
}

enum status call_read(const struct call_scan *s, const char *text, enum call_kind kind,
                      struct call *out)
{
    struct jdoc *root = NULL;
    struct err err = {""};
    enum status st = jdoc_parse(text, s->at, &jdoc_limits_call, "call", &root, &err);
    if (st != OK)
        return st == ERR_NOMEM ? st : ERR_INPUT;
    if (kind == CALL_ARGUMENTS) {
        out->arguments = text;
        out->arguments_len = s->at;
    } else if (jdoc_type(root) != JDOC_OBJECT || jdoc_size(root) != s->members ||
               !read_name(root, out) || !read_arguments(root, s, text, kind == CALL_TAGGED, out)) {
        st = ERR_INPUT;
    }
    jdoc_close(root);
    return st;
}

enum call_end call_read_cut_arguments(const char *text, size_t n, struct call *out)
{
    struct call_scan scan = {0};
    while (n > 0 && call_is_space(*text)) {
        text++;
        n--;
    }
    out->arguments = n > 0 ? text : "";
    out->arguments_len = n;
    if (n == 0 || *text != '{' || !call_scan(&scan, text, n))
        return CALL_CUT;
    return call_read(&scan, text, CALL_ARGUMENTS, out) == OK ? CALL_WHOLE : CALL_CUT;
}

enum call_end call_read_cut(const char *text, size_t n, const char *before, const char *after,
                            struct call *out)
{
    const size_t begin = before ? strlen(before) : 0, m = strlen(after);
    size_t end = begin;
    if (!before || n < begin || memcmp(text, before, begin) != 0)
        return CALL_NAMELESS;
    while (end < n && call_is_name_byte(text[end]))
        end++;
    if (end == n || text[end] != *after || !call_is_name(text + begin, end - begin))
        return CALL_NAMELESS;
    memcpy(out->name, text + begin, end - begin);
    out->name[end - begin] = '\0';
    const bool said = n - end >= m && memcmp(text + end, after, m) == 0;
    return call_read_cut_arguments(said ? text + end + m : "", said ? n - end - m : 0, out);
}
