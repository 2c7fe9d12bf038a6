/* A conversation as clients send it, and the variables of a chat template that it becomes: what
 * /v1/chat/completions, /v1/responses, /v1/messages and /tokenize have in common. Pure. */
#ifndef TESSERA_SERVER_API_CONVERSATION_H
#define TESSERA_SERVER_API_CONVERSATION_H

#include "server/api/field.h"

#define CONVERSATION_MESSAGES_MAX 4096
#define CONVERSATION_PARTS_MAX 1024     /* of one message, and of one thought */
#define CONVERSATION_TOOL_CALLS_MAX 128 /* of one message */
#define CONVERSATION_TOOLS_MAX 1024
#define CONVERSATION_DOCUMENTS_MAX 128
#define CONVERSATION_KWARGS_MAX 64
#define CONVERSATION_NAME_BYTES_MAX 256
#define CONVERSATION_TEXT_BYTES_MAX (4 << 20)

/* What the template's `enable_thinking` is. */
enum conversation_thinking {
    CONVERSATION_THINKING_UNSAID, /* nothing: as the template likes */
    CONVERSATION_THINKING_ON,
    CONVERSATION_THINKING_OFF,
};

/* What the rows store into. */
struct conversation_fields {
    const struct jdoc *messages, *tools, *documents, *chat_template_kwargs;
    struct field_string reasoning_effort;
    bool add_generation_prompt, continue_final_message;
    /* no row stores these */
    bool harmony;                                 /* the template is one of the harmony format */
    bool no_null, thought_parts, system_thoughts; /* as answer_form.h has them */
    enum conversation_thinking thinking;
};

#define CONVERSATION_MESSAGE_ROWS 11
extern const struct field conversation_message_rows[CONVERSATION_MESSAGE_ROWS];
/* The row of `messages`, of which each kind of request says whether it must be there. */
#define CONVERSATION_MESSAGES(must, member)                                                        \
    {                                                                                              \
        .name = "messages", .kind = FIELD_OBJECTS, .int_min = 1,                                   \
        .int_max = CONVERSATION_MESSAGES_MAX, .required = (must),                                  \
        .members = conversation_message_rows, .member_count = CONVERSATION_MESSAGE_ROWS,           \
        AT(member)                                                                                 \
    }
/* All others. */
struct field_rows conversation_rows(size_t base);
struct conversation_fields conversation_defaults(void);

struct conversation {
    struct jdoc *vars; /* the template's variables: nothing in them points elsewhere */
    const char *mark;  /* ends the content of the last message, which is to go on; NULL: none */
    struct field_unknown unknown; /* in messages */
};

/* The arguments of a call, a text as a model writes it: whatever an answer may have had is read,
 * and nothing else that is no JSON object. Closed by the caller. */
enum status conversation_arguments(const char *name, const char *text, size_t n, struct jdoc **out,
                                   struct api_error *e) MUST_USE;

/* doc: the whole request. On failure (ERR_INPUT with the path of the value, ERR_NOMEM) *e says why
 * and *out is untouched. */
enum status conversation_make(const struct conversation_fields *f, const struct jdoc *doc,
                              struct conversation *out, struct api_error *e) MUST_USE;
void conversation_free(struct conversation *c); /* zeroed memory is fine */

#endif
