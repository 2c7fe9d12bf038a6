/* The one door to utf8proc: Unicode's normalization form C, which writes a letter and its accents
 * in one way. Texts are UTF-8 that the caller has checked. */
#ifndef TESSERA_SERVER_TOKENIZER_NFC_H
#define TESSERA_SERVER_TOKENIZER_NFC_H

#include "config/buf.h"

/* Marks that follow each other in any real text are a few; the library sorts them in a time that
 * grows with the square of their number. */
#define NFC_MARKS_MAX 256

/* False: the text is in that form as it is, as any without characters from U+0300 on. */
bool nfc_may_change(const char *text, size_t n);

/* Adds the text in that form. ERR_INPUT when more than NFC_MARKS_MAX marks follow each other,
 * ERR_NOMEM when there is no memory; out->failed as ever. Any thread. */
enum status nfc_add(struct buf *out, const char *text, size_t n, struct err *err) MUST_USE;

#endif
