/* The two kinds of lines of OpenAI's Batch files: a request of the input, a result of the output.
 * Pure: bytes in, values out. */
#ifndef TESSERA_SERVER_BENCH_BATCH_LINE_H
#define TESSERA_SERVER_BENCH_BATCH_LINE_H

#include "config/buf.h"

/* A body as servers take it, and a name. */
#define BATCH_LINE_REQUEST_BYTES_MAX ((4u << 20) + 4096)
#define BATCH_LINE_ANSWER_BYTES_MAX (64u << 20)
#define BATCH_LINE_RESULT_BYTES_MAX                                                                \
    (BATCH_LINE_ANSWER_BYTES_MAX + BATCH_LINE_REQUEST_BYTES_MAX + 4096)
#define BATCH_LINE_BEGIN "{\"id\": \"batch_req_" /* of every result */

struct batch_request {
    char *custom_id; /* owned; NULL: the line has none that is one */
    size_t custom_id_len;
    const char *path; /* one of a few: "/chat/completions"; below the API's root */
    struct buf body;  /* as it came, with a model */
};

/* A line of the input. model: of bodies that name none. ERR_INPUT: what is wrong with it, while
 * out->custom_id says whose line it is. batch_line_free afterwards, also on failure. */
enum status batch_line_request(const char *line, size_t n, const char *model,
                               struct batch_request *out, struct err *err) MUST_USE;
void batch_line_free(struct batch_request *r);

struct batch_result {
    uint64_t id;           /* unlike those of other lines */
    const char *custom_id; /* NULL: null */
    size_t custom_id_len;
    int32_t http_status;    /* 0: no answer has come */
    const char *request_id; /* that the server gave it, or "" */
    const struct buf *body; /* of the answer: JSON; NULL: null */
    const char *code;       /* NULL: answered, there is no error */
    const char *message;
    int64_t line; /* of the input, for an error; 0: is not said */
};

/* Appends the line with its newline. "error" is also there for what the server refused, where
 * OpenAI has null and vLLM not: it is null for answers alone, whoever looks at it. */
void batch_line_write(const struct batch_result *r, struct buf *out);

/* What the answer of a server says; the tokens are 0 where it says nothing of them. */
struct batch_answer {
    int64_t prompt_tokens, completion_tokens;
    char message[300]; /* of its error object, else "" */
};
/* False: it is not JSON. */
bool batch_line_answer(const struct buf *body, struct batch_answer *out) MUST_USE;

/* A line of an earlier output: whose it is, and whether it has an answer (status 200, no error).
 * False: it is none, or cannot be held. *custom_id is the caller's, NULL for null. */
bool batch_line_result(const char *line, size_t n, char **custom_id, size_t *custom_id_len,
                       bool *answered) MUST_USE;

#endif
