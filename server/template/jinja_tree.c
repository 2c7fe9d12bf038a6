/* DESIGN: a node knows its byte; line and column are counted only for a message. */
#include "server/template/jinja_tree.h"

#include <stdio.h>

enum status jinja_refuse_v(const struct jinja *t, uint32_t at, struct err *err, enum status st,
                           const char *fmt, va_list ap)
{
    char message[sizeof err->text];
    int32_t line = 1, column = 1;
    for (size_t i = 0, width; i < at && i < t->n; i += width) {
        width = jinja_char(t->text + i, t->n - i);
        column = t->text[i] == '\n' ? 1 : column + 1;
        line += t->text[i] == '\n';
    }
    vsnprintf(message, sizeof message, fmt, ap);
    return base_fail(err, st, "%.80s:%d:%d: %.350s", t->where, line, column, message);
}

enum status jinja_refuse(const struct jinja *t, uint32_t at, struct err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    enum status st = jinja_refuse_v(t, at, err, ERR_MODEL, fmt, ap);
    va_end(ap);
    return st;
}
