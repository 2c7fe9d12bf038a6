/* C shim around SentencePiece, for tokenizer.c and its tests. All its exceptions stop here. Handles
 * are immutable after spm_open: any thread may use them. */
#ifndef TESSERA_SERVER_TOKENIZER_SPM_H
#define TESSERA_SERVER_TOKENIZER_SPM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct spm;

/* All return 0, or -1 with a line in error (cap bytes). bytes are those of a tokenizer.model that
 * spm_file_parse has accepted; they are copied. */
int spm_open(const void *bytes, size_t n, struct spm **out, char *error, size_t cap);
void spm_close(struct spm *s); /* NULL is fine */
int32_t spm_count(const struct spm *s);
/* Ids of a text, without bos and eos; *ids is the caller's to free(), NULL when there are none. */
int spm_encode(const struct spm *s, const char *text, size_t n, int32_t **ids, int32_t *count,
               char *error, size_t cap);
/* The text of ids by SentencePiece's own hand: the oracle of detok. *text is the caller's. */
int spm_decode(const struct spm *s, const int32_t *ids, int32_t count, char **text, size_t *n,
               char *error, size_t cap);

#ifdef __cplusplus
}
#endif

#endif
