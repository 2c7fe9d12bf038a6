/* The chat template of a model: conversations to text, and that to token ids. */
#ifndef TESSERA_SERVER_CHAT_TEMPLATE_H
#define TESSERA_SERVER_CHAT_TEMPLATE_H

#include "server/answer/answer.h"
#include "server/api/api_error.h"
#include "server/api/conversation.h"
#include "server/template/jinja.h"
#include "server/tokenizer/tokenizer.h"

struct chat_template; /* immutable: any thread */

/* From `file`, or from what the model's files say where it is NULL. A file that cannot be read or
 * is no template is ERR_USAGE; a model without a template, or with one that is not understood, is
 * not: chat_template_problem says why nothing can be rendered. The tokenizer is borrowed. */
enum status chat_template_open(const struct tokenizer *t, const char *file,
                               struct chat_template **out, struct err *err) MUST_USE;
void chat_template_close(struct chat_template *t); /* NULL is fine */
/* NULL: none. */
const char *chat_template_problem(const struct chat_template *t);
/* By its source: how the model writes calls of tools, and whether it may reason. */
struct answer_form chat_template_form(const struct chat_template *t);

/* The text of a conversation, cut where its last message is to go on. t NULL: there is no
 * tokenizer. ERR_INPUT, ERR_NOMEM with the answer in *e, and nothing to free. */
enum status chat_template_render(const struct chat_template *t, const struct conversation *c,
                                 struct jinja_text *out, struct api_error *e) MUST_USE;
/* What the text has begun of the answer, into *form: reasoning, where it ends with the mark of
 * form->thoughts, which has to be the template's, unless the answer goes on where the client's text
 * ends; or a message of the harmony format. */
void chat_template_find_open(const struct jinja_text *text, bool goes_on, struct answer_form *form);
/* Appends text as if the template had written it; text->bytes.failed without memory. */
void chat_template_add(struct jinja_text *text, const char *more, size_t n);
/* Its ids: control tokens are only what the template wrote. There may be none. */
enum status chat_template_encode(const struct chat_template *t, const struct jinja_text *text,
                                 bool special, int32_t **ids, int32_t *count,
                                 struct api_error *e) MUST_USE;

#endif
