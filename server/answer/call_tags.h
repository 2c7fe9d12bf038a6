/* A call of a tool whose name and arguments stand between tags, as GLM-4.5, Qwen3-Coder and
 * MiniMax-M2 write it (their chat templates):
 *
 *   <tool_call>NAME
 *   <arg_key>KEY</arg_key>
 *   <arg_value>VALUE</arg_value>
 *   </tool_call>
 *
 *   <tool_call>
 *   <function=NAME>
 *   <parameter=KEY>
 *   VALUE
 *   </parameter>
 *   </function>
 *   </tool_call>
 *
 *   <minimax:tool_call>
 *   <invoke name="NAME">
 *   <parameter name="KEY">VALUE</parameter>
 *   </invoke>
 *   </minimax:tool_call>
 *
 * Of a value only texts are without quotes; what else it is, is JSON. What is a text, the tool's
 * schema says; where it does not, what is no JSON is one. Pure. */
#ifndef TESSERA_SERVER_ANSWER_CALL_TAGS_H
#define TESSERA_SERVER_ANSWER_CALL_TAGS_H

#include "config/buf.h"
#include "server/answer/call.h"
#include "server/answer/mark.h"

#define CALL_KEY_BYTES_MAX 1024
#define CALL_BLANKS_MAX 256 /* of white space between two tags */

struct call_tags {
    const char *name, *name_end; /* "": none; then white space or another tag ends the name */
    const char *key, *key_end;
    const char *value, *value_end; /* value "": none */
    const char *end;               /* NULL: the call ends with what closes it, which is left */
    bool lines;                    /* a value has a newline before it and one behind it */
    bool several;                  /* another call may follow before what closes them */
    bool tokens;                   /* those of keys and values may be control tokens */
};

enum call_tags_state {
    CALL_TAGS_NAME_MARK, /* the name's tag has to come */
    CALL_TAGS_NAME,
    CALL_TAGS_BETWEEN, /* behind the name or a value */
    CALL_TAGS_KEY,
    CALL_TAGS_VALUE_MARK,
    CALL_TAGS_VALUE,
    CALL_TAGS_WHOLE,
};

/* Zeroed but for the buffer at the start; arguments is a JSON object when all is read. */
struct call_tags_reader {
    enum call_tags_state state;
    size_t at; /* bytes that are done with */
    size_t begin, key, key_len;
    char name[CALL_NAME_BYTES_MAX + 1];
    struct buf arguments;
    bool no_memory;
};

/* What a call is read by. types: call_types.h. */
struct call_tags_text {
    const struct call_tags *tags;
    const char *close; /* behind the call */
    const char *types;
    size_t types_len;
    bool whole; /* nothing follows, and the model has ended it: so a missing end is no matter */
};

/* text: from behind what opens the call on, n bytes of it so far. YES: it has r->at bytes. NO: it
 * is no call, and r->at is behind its last tag, whatever pieces it came in. PERHAPS: more has to
 * come. */
enum mark_match call_tags_read(struct call_tags_reader *r, const struct call_tags_text *t,
                               const char *text, size_t n);

#endif
