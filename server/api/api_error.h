/* An error of a request, and the JSON in which clients of each API read it. */
#ifndef TESSERA_SERVER_API_API_ERROR_H
#define TESSERA_SERVER_API_API_ERROR_H

#include "config/base.h"
#include "config/buf.h"

/* Whose clients read it. */
enum api_error_form {
    API_ERROR_OPENAI,    /* {"error": {message, type, param, code}} */
    API_ERROR_ANTHROPIC, /* {"type": "error", "error": {type, message}, "request_id"} */
};

struct api_error {
    int32_t http_status;
    const char *type; /* static; "invalid_request_error", ... */
    const char *code; /* static; NULL: none */
    char param[64];   /* field of the request; "": none */
    bool is_quoted;   /* param is the client's own word, which the log does not have */
    char message[480];
    int32_t retry_after_s; /* 0: no such header */
};

/* 400 about one field (NULL: about the whole request). Returns ERR_INPUT. */
enum status api_error_field(struct api_error *e, const char *field, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
/* Any other; type follows from the HTTP status. Returns ERR_INPUT, so that it reads as above. */
enum status api_error_set(struct api_error *e, int32_t http_status, const char *code,
                          const char *fmt, ...) PRINTF_LIKE(4, 5);
/* A word for the log: the code, or the type where there is none. Static. */
const char *api_error_code(const struct api_error *e);
/* What a failed call of the engine or the tokenizer means to the client. */
void api_error_from_status(struct api_error *e, enum status st, const struct err *err);
/* The same where memory ran out. Returns ERR_NOMEM. */
enum status api_error_no_memory(struct api_error *e);
/* The JSON object, as OpenAI has it. Bytes of the message that are not UTF-8 come out as '?'. */
void api_error_write(const struct api_error *e, struct buf *out);
/* The same as Anthropic has it; request_id NULL: without. */
void api_error_write_anthropic(const struct api_error *e, const char *request_id, struct buf *out);
/* "code", "message" and "param" of an event of its own. */
void api_error_write_members(const struct api_error *e, struct buf *out);

#endif
