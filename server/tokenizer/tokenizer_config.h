/* tokenizer_config.json: what of it we follow, and what of it we tell. Pure. */
#ifndef TESSERA_SERVER_TOKENIZER_TOKENIZER_CONFIG_H
#define TESSERA_SERVER_TOKENIZER_TOKENIZER_CONFIG_H

#include "config/base.h"

/* What the file says of a token at one end of every text. */
struct tokenizer_config_end {
    bool said, add; /* not said: what is usual, or what another file says */
    char *name;     /* the caller's; NULL: not said */
};

struct tokenizer_config {
    struct tokenizer_config_end bos, eos;
    int32_t *special_ids; /* [special_count] of added_tokens_decoder; the caller's */
    int32_t special_count;
    char *info; /* JSON object: the file with special tokens as plain strings; the caller's */
};

/* What other files of the model say; NULL: nothing. */
struct tokenizer_config_more {
    const char *bos, *eos; /* names */
    const char *class;     /* the usual one for such files */
    const char *chat_template;
    const char *chat_json; /* {"chat_template": ...}: counts where nothing else has one */
    size_t chat_json_n;
};

/* text NULL: there is no such file. ERR_MODEL when it is not what it should be. */
enum status tokenizer_config_parse(const char *text, size_t n,
                                   const struct tokenizer_config_more *more,
                                   struct tokenizer_config *out, struct err *err) MUST_USE;
void tokenizer_config_free(struct tokenizer_config *c);

#endif
