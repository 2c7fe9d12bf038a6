/* Chat templates: the part of Jinja2 that models of Hugging Face use, rendered as transformers does
 * it (trim_blocks, lstrip_blocks, loop controls, the immutable sandbox). Of Python's text functions
 * on upper and lower case only what concerns ASCII letters is here. */
#ifndef TESSERA_SERVER_TEMPLATE_JINJA_H
#define TESSERA_SERVER_TEMPLATE_JINJA_H

#include "config/buf.h"
#include "config/jdoc.h"

#define JINJA_BYTES_MAX (1u << 20) /* of a template */

struct jinja; /* a parsed template; immutable: any thread may render it */

/* where names it in messages ("chat_template.jinja"). ERR_MODEL: what is wrong or not supported,
 * with its line and column. */
enum status jinja_open(const char *text, size_t n, const char *where, struct jinja **out,
                       struct err *err) MUST_USE;
void jinja_close(struct jinja *t); /* NULL is fine */

/* As long as each other. A byte of `foreign` is 1 where that of `bytes` came from the variables,
 * and 0 where the template wrote it: only there may control tokens be recognised. */
struct jinja_text {
    struct buf bytes, foreign;
};

/* vars: a JSON object, what clients say. own (NULL: none): another one, what the model's files say
 * (bos_token ...); where both have a name, that of vars counts; only what is of own is not foreign.
 * The text has at most bytes_max bytes, also while it is made. The caller frees *out with
 * jinja_text_free after success.
 * ERR_INPUT: the template refuses the variables (raise_exception: its message) or fails on them.
 * ERR_MODEL: it does what is not supported, and that is not seen before.
 * ERR_LIMIT: too many steps, too deep, too long. ERR_NOMEM. */
enum status jinja_render(const struct jinja *t, const struct jdoc *vars, const struct jdoc *own,
                         size_t bytes_max, struct jinja_text *out, struct err *err) MUST_USE;
void jinja_text_free(struct jinja_text *t);

#endif
