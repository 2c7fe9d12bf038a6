/* What filters and methods do with strings alike. Every byte keeps its mark. Internal to the
 * template engine. */
#ifndef TESSERA_SERVER_TEMPLATE_JINJA_STRING_H
#define TESSERA_SERVER_TEMPLATE_JINJA_STRING_H

#include "server/template/jinja_run.h"

enum string_case { CASE_UPPER, CASE_LOWER, CASE_CAPITAL, CASE_TITLE, CASE_WORDS };
enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };

/* chars: NONE or ABSENT for white space. */
enum status jinja_string_strip(struct run *r, const struct value *s, const struct value *chars,
                               int32_t sides, struct value *out) MUST_USE;
/* count < 0: all of them. */
enum status jinja_string_replace(struct run *r, const struct value *s, const struct value *old,
                                 const struct value *new, int64_t count,
                                 struct value *out) MUST_USE;
/* ASCII letters only: others stay as they are. TITLE is str.title(), WORDS the filter "title". */
enum status jinja_string_case(struct run *r, const struct value *s, enum string_case how,
                              struct value *out) MUST_USE;
/* At a separator, or at white space where it is NONE or ABSENT; at most max times, < 0: always. */
enum status jinja_string_split(struct run *r, const struct value *s, const struct value *separator,
                               int64_t max, bool from_right, struct value *out) MUST_USE;
enum status jinja_string_lines(struct run *r, const struct value *s, struct value *out) MUST_USE;
enum status jinja_string_join(struct run *r, const struct value *separator, struct list *items,
                              bool convert, struct value *out) MUST_USE;
/* Byte offset of the first place from `from` on; SIZE_MAX: none. */
size_t jinja_string_find(const struct value *s, const struct value *what, size_t from);

#endif
