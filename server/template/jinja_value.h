/* Values of a template: what Python would call objects, in one small struct that is copied freely.
 * What they point to lives in an arena or in the JSON they came from, and never changes, except for
 * a namespace's members and an iterator's place. */
#ifndef TESSERA_SERVER_TEMPLATE_JINJA_VALUE_H
#define TESSERA_SERVER_TEMPLATE_JINJA_VALUE_H

#include "config/base.h"

enum value_kind {
    VALUE_ABSENT, /* an argument that was not given */
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_LIST,
    VALUE_TUPLE,
    VALUE_RANGE,
    VALUE_VIEW,     /* dict.items() and its like */
    VALUE_ITERATOR, /* what map() and its like give: to be walked through once */
    VALUE_DICT,
    VALUE_NAMESPACE,
    VALUE_LOOP,
    VALUE_FUNCTION,
    VALUE_METHOD,
    VALUE_MACRO,
    VALUE_KINDS
};

/* UTF-8. A mark per byte says whether it is foreign: came from the template's variables. Without
 * marks all of it is what the value says. */
struct string {
    const char *bytes, *marks;
    size_t n;
};

struct list;
struct dict;
struct loop;
struct method;
struct macro;
struct function;

struct value {
    enum value_kind kind;
    bool foreign;
    union {
        bool b;
        int64_t i;
        double f;
        struct string s;
        struct list *list; /* LIST, TUPLE, RANGE, VIEW, ITERATOR */
        struct dict *dict; /* DICT, NAMESPACE */
        struct loop *loop;
        struct method *method;
        struct macro *macro;
        const struct function *function;
        struct {
            const char *name, *owner; /* owner: the type that has no such member, or NULL */
            size_t n;
        } missing; /* UNDEFINED */
    };
};

struct list {
    struct value *items;
    size_t n, taken;  /* taken: from an iterator */
    const char *name; /* of a view, as Python prints it */
};

struct pair {
    struct value key, value;
};

struct dict {
    struct pair *pairs; /* in order of insertion */
    size_t n, cap;
};

struct method {
    struct value self;
    const struct function *function;
};

#define VALUE_NOTHING ((struct value){.kind = VALUE_NONE})

struct value jinja_bool(bool b);
struct value jinja_int(int64_t i);
struct value jinja_float(double f);
/* A string of the template's own; the text must outlive it. */
struct value jinja_literal(const char *text);
/* n bytes of a string from a place on. */
struct value jinja_slice(const struct value *s, size_t from, size_t n);

/* The type's name as Python has it: "str", "dict" ... */
const char *jinja_type_name(const struct value *v);
bool jinja_truth(const struct value *v);
bool jinja_is_number(const struct value *v); /* BOOL too */
bool jinja_is_whole(const struct value *v);  /* BOOL or INT: as_int says which */
int64_t jinja_as_int(const struct value *v);
double jinja_as_float(const struct value *v);
bool jinja_is_list(const struct value *v); /* has items and a length: not an iterator */
bool jinja_is(const struct value *s, const char *text);
bool jinja_same_text(const struct value *a, const struct value *b);
/* Python's `is`, as far as values can tell. */
bool jinja_identical(const struct value *a, const struct value *b);
/* Python's == of everything but containers, which are never equal here. */
bool jinja_equal_plain(const struct value *a, const struct value *b);

/* ---- characters ---- */

/* Bytes of the character at s. Text that is not UTF-8 counts byte by byte. */
size_t jinja_char(const char *s, size_t n);
/* The same for what ends at s + n; 0 where n is. */
size_t jinja_char_before(const char *s, size_t n);
/* Bytes of the white space at s as str.isspace() has it; 0: none. */
size_t jinja_space(const char *s, size_t n);
/* The same for what ends at s + n. */
size_t jinja_space_before(const char *s, size_t n);
size_t jinja_chars(const char *s, size_t n);
/* Byte offset of character number i; n past the end. */
size_t jinja_offset(const char *s, size_t n, size_t i);
/* Writes at most 4 bytes; returns how many. */
size_t jinja_encode(uint32_t code, char *out);
/* The character of `width` bytes at s. */
uint32_t jinja_decode(const char *s, size_t width);

#endif
