/* The field `prediction` of a chat request, as OpenAI has it: what the answer will mostly say, such
 * as the file that it is to change. Pure. */
#ifndef TESSERA_SERVER_API_PREDICTION_H
#define TESSERA_SERVER_API_PREDICTION_H

#include "config/buf.h"
#include "server/api/field.h"

/* Appends its text to *out; v NULL: there is none. ERR_INPUT: it has another form. ERR_NOMEM. */
enum status prediction_read(const struct jdoc *v, struct buf *out, struct api_error *e) MUST_USE;

#endif
