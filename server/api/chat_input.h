/* The conversation of a request that other APIs have in other pieces, as the messages that
 * /v1/chat/completions has. Pure.
 *
 * Pieces are added to the message that is open, which is one as long as its role stays the same: a
 * message, its reasoning and its calls may be pieces of their own, and chat templates want them as
 * one message of the assistant. */
#ifndef TESSERA_SERVER_API_CHAT_INPUT_H
#define TESSERA_SERVER_API_CHAT_INPUT_H

#include "server/api/conversation.h"

#define CHAT_INPUT_BYTES_MAX ((size_t)64 << 20) /* of all messages, and of each part of one */

struct chat_input {
    struct jdoc *messages; /* a list, and nothing in it points elsewhere */
    struct buf origins;    /* int32_t of each message: the piece that it begins with, or */
};
enum { CHAT_INPUT_NO_PIECE = -1 }; /* it comes from elsewhere in the request */

struct chat_input_writer {
    struct buf list, origins; /* of what is whole */
    const char *role;         /* of the message that is open, borrowed; NULL: none is */
    int32_t begun;            /* the piece that it begins with */
    int32_t calls;
    bool said; /* it has a content, if an empty one */
    struct buf content, reasoning, call_list;
};

/* Memory that runs out while pieces are added is told by chat_input_finish. */
void chat_input_init(struct chat_input_writer *w);
void chat_input_clear(struct chat_input_writer *w); /* frees what is left */
/* Opens a message unless one of this role is open, and tells so; one of another is closed. */
bool chat_input_open(struct chat_input_writer *w, const char *role, int32_t piece);
void chat_input_close(struct chat_input_writer *w);
/* Behind the content of the open message, as a line of its own. */
void chat_input_add_text(struct chat_input_writer *w, const char *text, size_t n);
void chat_input_add_reasoning(struct chat_input_writer *w, const char *text, size_t n);
/* A call of the open message: arguments, an object or a text that holds one, are to be written
 * between. ERR_INPUT: it has too many. */
enum status chat_input_begin_call(struct chat_input_writer *w, const struct field_string *id,
                                  const struct field_string *name, const char *type,
                                  struct api_error *e) MUST_USE;
void chat_input_end_call(struct chat_input_writer *w);
/* What a call gave is a message of its own. */
void chat_input_add_result(struct chat_input_writer *w, const struct field_string *id,
                           const struct buf *text, int32_t piece);
/* Everything into *out. field: what an error is about. ERR_INPUT, ERR_NOMEM. */
enum status chat_input_finish(struct chat_input_writer *w, const char *field,
                              struct chat_input *out, struct api_error *e) MUST_USE;

void chat_input_free(struct chat_input *in); /* zeroed memory is fine */
/* An error about messages becomes one about the piece of `field` that they were made of. in NULL:
 * of all of them. */
void chat_input_blame(const struct chat_input *in, const char *field, struct api_error *e);

#endif
