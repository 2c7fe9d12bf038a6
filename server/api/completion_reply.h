/* What goes back to the client of /v1/completions: the response object and the frames of a stream.
 * Pure. All text must be valid UTF-8. */
#ifndef TESSERA_SERVER_API_COMPLETION_REPLY_H
#define TESSERA_SERVER_API_COMPLETION_REPLY_H

#include "config/buf.h"
#include "server/api/api_error.h"
#include "server/api/logprobs.h"

/* Equal in the response and in every chunk of a stream. */
struct completion_meta {
    char id[48]; /* "cmpl-..." */
    int64_t created;
    const char *model, *fingerprint;
    struct logprobs_names names;
};

struct completion_choice {
    int32_t index; /* prompt * n + choice of the prompt */
    const char *text;
    size_t text_len;
    const char *finish_reason; /* "stop", "length"; NULL: goes on */
    const char *stop_reason;   /* the stop string that ended it; NULL: none */
    size_t stop_reason_len;
    int32_t stop_token; /* or the one of stop_token_ids that did; -1: none */
    bool with_token_ids;
    const int32_t *token_ids, *prompt_ids; /* prompt_ids NULL: left out */
    int32_t token_count, prompt_count;
    /* Of the prompt (NULL: no part of the answer), then of the answer; each with so many best ones
     * (-1: "logprobs": null). */
    const struct logprobs *echoed, *logprobs;
    int32_t logprobs_top;
    /* Not with a stream; NULL: left out. */
    const struct logprobs *prompt_logprobs;
    int32_t prompt_logprobs_top;
};

struct completion_usage {
    int64_t prompt_tokens, completion_tokens, cached_tokens;
};

/* The parts of a response object, in this order: begin, each choice, end. */
void completion_reply_begin(const struct completion_meta *meta, struct buf *out);
void completion_reply_choice(const struct completion_meta *meta,
                             const struct completion_choice *choice, bool first, struct buf *out);
void completion_reply_end(const struct completion_usage *usage, struct buf *out);

/* Frames of a stream, each "data: ...\n\n". with_usage: the request asked for a usage chunk at the
 * end, so the others carry "usage": null, or what has been used so far. */
void completion_reply_chunk(const struct completion_meta *meta,
                            const struct completion_choice *choice, bool with_usage,
                            const struct completion_usage *so_far, struct buf *out);
void completion_reply_usage(const struct completion_meta *meta,
                            const struct completion_usage *usage, struct buf *out);
void completion_reply_error(const struct api_error *e, struct buf *out);
void completion_reply_done(struct buf *out);

#endif
