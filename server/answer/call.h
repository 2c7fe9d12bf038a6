/* A call of a tool as models write it: a JSON object with the tool's name and its arguments. Pure.
 */
#ifndef TESSERA_SERVER_ANSWER_CALL_H
#define TESSERA_SERVER_ANSWER_CALL_H

#include "config/base.h"

#define CALL_NAME_BYTES_MAX 256

/* As JSON has it. */
static inline bool call_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* What names are made of where no quotes are around them, and where we write them ourselves. */
static inline bool call_is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}
bool call_is_name(const char *name, size_t n); /* and 1 to CALL_NAME_BYTES_MAX long */

/* Finds the end of an object whose text comes in pieces, and in it the member `arguments`, or
 * else `parameters`, as Llama names it. Zeroed at the start. */
struct call_scan {
    size_t at; /* bytes that have been looked at */
    size_t key, key_end, value;
    size_t arguments, arguments_end; /* both 0: no such member so far */
    size_t members;                  /* of the object that have ended */
    int32_t depth;
    bool in_string, escaped;
};

/* text: the object from its brace on, n bytes of it so far, of which earlier calls have seen s->at.
 * True when it is whole, or broken by a < : it has s->at bytes. Whether it is JSON, call_read
 * says. */
bool call_scan(struct call_scan *s, const char *text, size_t n);

struct call {
    char name[CALL_NAME_BYTES_MAX + 1];
    const char *arguments; /* a JSON object, as the model wrote it; of the text, or a constant */
    size_t arguments_len;
};

enum call_kind {
    CALL_TAGGED,    /* a name, and arguments if there are any: a mark says that it is a call */
    CALL_BARE,      /* a name and arguments: any JSON may stand there */
    CALL_ARGUMENTS, /* the arguments alone; out->name is set */
};

/* Of an object that call_scan found whole. A member of it may not be there twice, one of the
 * arguments may, since that is what a form cannot forbid. ERR_INPUT: it is no JSON that
 * config/jdoc.h reads, or no call. ERR_NOMEM. */
enum status call_read(const struct call_scan *s, const char *text, enum call_kind kind,
                      struct call *out) MUST_USE;

enum call_end {
    CALL_NAMELESS, /* cut off before its name was whole */
    CALL_CUT,      /* in or before the arguments: these are what there is of them */
    CALL_WHOLE,    /* behind the arguments */
};

/* Of an object that has no end, and which is written so: before, the name, after (which
 * begins with no byte of a name), the arguments. before: NULL is an object that is written in no
 * such way. */
enum call_end call_read_cut(const char *text, size_t n, const char *before, const char *after,
                            struct call *out);
/* The same from the arguments on; out->name is set. */
enum call_end call_read_cut_arguments(const char *text, size_t n, struct call *out);

#endif
