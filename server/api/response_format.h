/* The fields by which a request says what the text of its answers has to be: OpenAI's
 * response_format, and structured_outputs and guided_... of vLLM. Pure. */
#ifndef TESSERA_SERVER_API_RESPONSE_FORMAT_H
#define TESSERA_SERVER_API_RESPONSE_FORMAT_H

#include "server/api/field.h"
#include "server/grammar/structure.h"

enum { RESPONSE_FORMAT_PATTERN_BYTES_MAX = 4096 };

/* What rows store. */
struct response_format {
    const char *name;         /* of the field that type and schema are in; NULL: response_format */
    struct field_string type; /* response_format.type */
    const struct jdoc *schema, *object_schema; /* .json_schema.schema; .schema, as llama.cpp */
    const struct jdoc *json, *choice;          /* structured_outputs */
    bool json_object;                          /* likewise */
    struct field_string regex;                 /* likewise */
    const struct jdoc *guided_json, *guided_choice;
    struct field_string guided_regex;
};

/* Into *out, which borrows from doc, the request's, and from *own: a schema that came as a text,
 * the caller's to close. ERR_INPUT: more than one field says something, or one says it wrongly. */
enum status response_format_read(const struct response_format *f, const struct jdoc *doc,
                                 struct structure *out, struct jdoc **own,
                                 struct api_error *e) MUST_USE;

#endif
