/* The one door to Oniguruma: the engine of Hugging Face's tokenizers, so that a pattern means here
 * what it means there. Texts and patterns are UTF-8 that the caller has checked. */
#ifndef TESSERA_SERVER_TOKENIZER_REGEX_H
#define TESSERA_SERVER_TOKENIZER_REGEX_H

#include "config/base.h"

#define REGEX_PATTERN_BYTES_MAX 8192

struct regex; /* immutable: any thread */

/* literal: the pattern is the text that is looked for. ERR_MODEL with `where` in front. */
enum status regex_open(const char *pattern, size_t n, bool literal, const char *where,
                       struct regex **out, struct err *err) MUST_USE;
void regex_close(struct regex *r); /* NULL is fine */

/* What searches need beside the pattern, of any pattern; used by one thread at a time. */
struct regex_work;
enum status regex_work_open(struct regex_work **out, struct err *err) MUST_USE;
void regex_work_close(struct regex_work *w); /* NULL is fine */

struct regex_match {
    size_t begin, end;
};

/* The first match of text[0..n) that begins at `from` or later, where lookbehind sees what comes
 * before; *found false: none. ERR_INPUT when the text would take too much time or memory. */
enum status regex_find(const struct regex *r, struct regex_work *w, const char *text, size_t n,
                       size_t from, struct regex_match *out, bool *found, struct err *err) MUST_USE;

#endif
