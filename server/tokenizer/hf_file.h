/* tokenizer.json of Hugging Face's tokenizers, version 1.0, as far as byte pair encodings of Llama
 * models use it; what is not supported is refused by its name and place. */
#ifndef TESSERA_SERVER_TOKENIZER_HF_FILE_H
#define TESSERA_SERVER_TOKENIZER_HF_FILE_H

#include "server/tokenizer/bpe.h"
#include "server/tokenizer/hf_steps.h"
#include "server/tokenizer/names.h"
#include "server/tokenizer/tokenizer.h"

#define HF_FILE_TEMPLATE_MAX 8 /* special tokens on each side of a text */

struct hf_file {
    struct hf_steps steps;
    struct bpe *bpe;
    struct token_view *views; /* [count] by id */
    char *text;               /* what views and names point into */
    int32_t count;            /* 1 + the highest id */
    struct hf_added *added;   /* [added_count] */
    int32_t added_count;
    int32_t before[HF_FILE_TEMPLATE_MAX], after[HF_FILE_TEMPLATE_MAX];
    int32_t before_count, after_count;
};

struct hf_added {
    struct name name;
    bool normalized; /* looked for in what the normalizers make of a text */
};

/* ids: how many the model has. ERR_MODEL with `where` and the place in front, or ERR_NOMEM. */
enum status hf_file_parse(const char *json, size_t n, const char *where, int32_t ids,
                          struct hf_file *out, struct err *err) MUST_USE;
void hf_file_free(struct hf_file *f);

#endif
