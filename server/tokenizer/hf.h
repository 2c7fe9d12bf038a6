/* A tokenizer that a tokenizer.json describes: text to ids. Immutable once open: any thread. */
#ifndef TESSERA_SERVER_TOKENIZER_HF_H
#define TESSERA_SERVER_TOKENIZER_HF_H

#include "config/buf.h"
#include "server/tokenizer/hf_file.h"
#include "server/tokenizer/names.h"

struct hf;

/* ERR_MODEL with `where` in front, ERR_NOMEM. ids: how many the model has. */
enum status hf_open(const char *json, size_t n, const char *where, int32_t ids, struct hf **out,
                    struct err *err) MUST_USE;
void hf_close(struct hf *h); /* NULL is fine */

/* What the file says; as long as h. */
const struct hf_file *hf_about(const struct hf *h);
/* The token of that name; -1: there is none. */
int32_t hf_find(const struct hf *h, const char *name);
/* Bytes of the longest token; 0: there is no bound on what one token may stand for. */
int32_t hf_bytes_max(const struct hf *h);

/* Appends the ids of a text as int32_t, without those that the template puts around it. allow:
 * where control tokens that are spelt out are tokens. ERR_INPUT when the text is not UTF-8, or has
 * a piece that is too long for the pattern; ERR_NOMEM. */
enum status hf_encode(const struct hf *h, const char *text, size_t n, struct names_allow allow,
                      struct buf *ids, struct err *err) MUST_USE;

#endif
