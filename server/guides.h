/* The guides of the requests that say what their answers have to be: each is made once and shared,
 * and a bounded number of them is kept. All functions are safe from any thread. */
#ifndef TESSERA_SERVER_GUIDES_H
#define TESSERA_SERVER_GUIDES_H

#include "engine/grammar/guide.h"
#include "server/api/api_error.h"
#include "server/grammar/structure.h"
#include "server/tokenizer/tokenizer.h"

enum {
    GUIDES_MAX = 64, /* different ones at a time */
    GUIDES_KEY_BYTES_MAX = 1 << 18,
};

struct guides;

/* t is borrowed; NULL: nothing can be guided. vocab: ids of the model. form: of its answers. */
enum status guides_open(const struct tokenizer *t, int32_t vocab, const struct answer_form *form,
                        struct guides **out, struct err *err) MUST_USE;
/* Are the marks of the model's answers control tokens of its tokenizer? */
bool guides_has_controls(const struct guides *g);
/* Guides that others have references to stay, but can only be given back. */
void guides_close(struct guides *g);

/* The guide of s, with a reference for the caller. ERR_INPUT, ERR_LIMIT (429), ERR_NOMEM with the
 * answer in *e. */
enum status guides_get(struct guides *g, const struct structure *s, struct guide **out,
                       struct api_error *e) MUST_USE;
/* The token with this text; -1: there is none. */
int32_t guides_token(struct guides *g, const char *text);

#endif
