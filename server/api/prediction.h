/* The field `prediction` of a chat request, as OpenAI has it: what the answer will mostly say, such
 * as the file that it is to change. Pure. */
#ifndef TESSERA_SERVER_API_PREDICTION_H
#define TESSERA_SERVER_API_PREDICTION_H

#include "config/buf.h"
#include "server/api/field.h"

/* For rows of fields: what can be said there. */
#define PREDICTION_SCHEMA                                                                          \
    "\"anyOf\":[{\"type\":\"null\"},{\"type\":\"object\",\"required\":[\"type\",\"content\"],"     \
    "\"properties\":{\"type\":{\"const\":\"content\"},\"content\":{\"anyOf\":[{\"type\":"          \
    "\"string\"},"                                                                                 \
    "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"required\":[\"type\",\"text\"],"         \
    "\"properties\":{\"type\":{\"const\":\"text\"},\"text\":{\"type\":\"string\"}}}}]}}}]"

/* Appends its text to *out; v NULL: there is none. ERR_INPUT: it has another form. ERR_NOMEM. */
enum status prediction_read(const struct jdoc *v, struct buf *out, struct api_error *e) MUST_USE;

#endif
