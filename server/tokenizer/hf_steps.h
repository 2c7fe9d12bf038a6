/* The parts of a tokenizer.json that say how a text is cut and how tokens read: normalizer,
 * pre_tokenizer and decoder. */
#ifndef TESSERA_SERVER_TOKENIZER_HF_STEPS_H
#define TESSERA_SERVER_TOKENIZER_HF_STEPS_H

#include "server/tokenizer/hf_json.h"
#include "server/tokenizer/textstep.h"

struct hf_steps {
    struct textsteps normalizer, pieces; /* pieces: the pre-tokenizers */
    bool byte_level;   /* tokens are any bytes, spelt in characters of GPT-2's alphabet */
    bool byte_tokens;  /* <0xNN> reads as a byte */
    bool space_marks;  /* U+2581 reads as a space */
    bool drops_space;  /* decoding drops a space at the start of a text */
    bool removes_text; /* of a text something may be left out */
};

/* ERR_MODEL or ERR_NOMEM. */
enum status hf_steps_parse(const struct hf_json *j, const struct jdoc *root,
                           struct hf_steps *out) MUST_USE;
void hf_steps_free(struct hf_steps *s);

#endif
