/* The arguments of a call as Gemma 4 writes them (its chat template): an object like JSON's, but
 * names have no quotes, and texts stand between <|"|> as they are.
 *
 *   <|tool_call>call:NAME{KEY:<|"|>TEXT<|"|>,KEY:5,KEY:{KEY:[<|"|>TEXT<|"|>,null]}}<tool_call|>
 *
 * What is written as JSON has it is read, too, so JSON is; and what is neither is a text, which is
 * the tool's schema's to say of the outermost ones. Pure. */
#ifndef TESSERA_SERVER_ANSWER_CALL_GEMMA_H
#define TESSERA_SERVER_ANSWER_CALL_GEMMA_H

#include "config/buf.h"
#include "server/answer/mark.h"

#define CALL_GEMMA_BEFORE "call:" /* a name */
#define CALL_GEMMA_QUOTE "<|\"|>"

#define CALL_GEMMA_DEPTH_MAX 64        /* as config/jdoc.h reads it */
#define CALL_GEMMA_BARE_BYTES_MAX 1024 /* of what has no quotes */
#define CALL_GEMMA_BLANKS_MAX 256      /* of white space between two of its parts */

enum call_gemma_state {
    CALL_GEMMA_VALUE, /* has to come */
    CALL_GEMMA_FIRST, /* the first of an object or a list has to, or their end */
    CALL_GEMMA_NEXT,  /* another one has to */
    CALL_GEMMA_COLON, /* behind a name */
    CALL_GEMMA_TEXT,
    CALL_GEMMA_STRING, /* of JSON */
    CALL_GEMMA_BARE,
    CALL_GEMMA_AFTER, /* behind a value */
    CALL_GEMMA_WHOLE,
};

/* Zeroed but for the buffer at the start; arguments is a JSON object when all is read. */
struct call_gemma_reader {
    enum call_gemma_state state;
    bool names, escaped; /* TEXT, STRING, BARE: it is a name; STRING: behind a backslash */
    int32_t depth;       /* of objects and lists that have no end yet, */
    uint64_t lists;      /* which of them are lists: bit 0 is the innermost */
    size_t at;           /* bytes that are done with */
    size_t begin;        /* of what is being read */
    size_t key, key_len; /* the last name of the outermost object */
    struct buf arguments;
    bool no_memory;
};

/* What is known of the tool: its name, and which of its arguments are texts (call_types.h). */
struct call_gemma_tool {
    const char *name;
    const char *types;
    size_t types_len;
};

/* text: from the object's brace on, n bytes of it so far. YES: it has r->at bytes. NO: it is no
 * such object, and the first r->at bytes are part of nothing else, whatever pieces they came in.
 * PERHAPS: more has to come. */
enum mark_match call_gemma_read(struct call_gemma_reader *r, const struct call_gemma_tool *tool,
                                const char *text, size_t n);

#endif
