/* The tokenizer of a GGUF file as Hugging Face's programs have it. */
#ifndef TESSERA_WEIGHTS_GGUF_GGUF_TOKENIZER_H
#define TESSERA_WEIGHTS_GGUF_GGUF_TOKENIZER_H

#include "weights/gguf/gguf.h"
#include "weights/outdir.h"

/* Writes, by tokenizer.ggml.model, tokenizer.json ("gpt2", "gemma4") or tokenizer.model ("llama");
 * tokenizer_config.json; chat_template.jinja, where the file has one; and generation_config.json
 * with the ids that begin and end an answer. Names that say how a text is cut
 * (tokenizer.ggml.pre): gguf_pre.h. ERR_MODEL names the file, the key, what was expected and found:
 * another kind of tokenizer, a name that is not known, or what gguf_vocab.h, gguf_bpe.h and
 * gguf_spm.h refuse. ERR_OUTPUT and the like are the directory's, ERR_NOMEM. */
enum status gguf_tokenizer_write(const struct gguf *g, const struct outdir *out,
                                 struct err *err) MUST_USE;

#endif
