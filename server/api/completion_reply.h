/* What goes back to a client: the response object and the frames of a stream, in a form of which
 * /v1/completions has the one here, the routes of conversations others. Pure. All text must be
 * valid UTF-8. */
#ifndef TESSERA_SERVER_API_COMPLETION_REPLY_H
#define TESSERA_SERVER_API_COMPLETION_REPLY_H

#include "config/buf.h"
#include "server/answer/answer.h"
#include "server/api/api_error.h"
#include "server/api/logprobs.h"

/* Equal in the response and in every chunk of a stream. */
struct completion_meta {
    char id[48]; /* "cmpl-..." */
    int64_t created;
    const char *model, *fingerprint;
    struct logprobs_names names;
    const struct buf *repeated; /* members that say the request again, each with a comma in front */
};

/* What a form keeps of a choice from its first token to its end; each form has its own. */
struct reply_state;

struct completion_choice {
    int32_t index; /* prompt * n + choice of the prompt */
    bool first;    /* nothing of it has gone out */
    const char *text;
    size_t text_len;
    const struct answer *answer; /* has the rest of what the text is made of; NULL: it is content */
    struct reply_state *state;   /* NULL: the form keeps nothing */
    bool reasons;                /* what the last token said is reasoning */
    const char *finish_reason;   /* "stop", "length", "tool_calls"; NULL: goes on */
    bool capped;                 /* "length" is the context's, not what was asked for */
    const char *stop_reason;     /* the stop string that ended it; NULL: none */
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
    int64_t reasoning_tokens; /* of completion_tokens; -1: not looked for */
    bool predicted;           /* the request had a prediction */
    int64_t right_guesses, wrong_guesses;
};

/* A form of replies. */
struct reply {
    const char *id_prefix;
    /* Of forms whose last words say all that has come; else NULL. Their chunks are made of every
     * token, and dropped where there is no stream; then choice is only told how it ended. open:
     * NULL without memory. close: NULL is fine. */
    struct reply_state *(*open)(void);
    void (*close)(struct reply_state *state);
    /* The parts of a response object, in this order: begin, with the first of the choices; each
     * choice, commas between them being the caller's; end. */
    void (*begin)(const struct completion_meta *meta, const struct completion_choice *choice,
                  struct buf *out);
    void (*choice)(const struct completion_meta *meta, const struct completion_choice *choice,
                   struct buf *out);
    void (*end)(const struct completion_usage *usage, struct buf *out);
    /* Frames of a stream, each "data: ...\n\n"; there may be none. with_usage: the request asked
     * for a usage chunk at the end, so the others carry "usage": null, or what has been used so
     * far. */
    void (*chunk)(const struct completion_meta *meta, const struct completion_choice *choice,
                  bool with_usage, const struct completion_usage *so_far, struct buf *out);
    void (*usage)(const struct completion_meta *meta, const struct completion_usage *usage,
                  struct buf *out);
    /* What a stream says before there is a token; NULL: nothing. usage: of the prompt, of which it
     * is not known yet what is cached. */
    void (*start)(const struct completion_meta *meta, struct reply_state *state,
                  const struct completion_usage *usage, struct buf *out);
    /* How a stream ends, with the first of the choices, and how it fails; NULL: usage, if the
     * request asked for it, and completion_reply_done; completion_reply_error. */
    void (*finish)(const struct completion_meta *meta, const struct completion_choice *choice,
                   const struct completion_usage *usage, struct buf *out);
    void (*error)(struct reply_state *state, const struct api_error *e, struct buf *out);
};
extern const struct reply completion_reply;

/* ---- what all forms have in common ---- */

void completion_reply_error(const struct api_error *e, struct buf *out);
void completion_reply_done(struct buf *out);
/* The opening brace and the first members. */
void completion_reply_meta(const struct completion_meta *meta, const char *object, struct buf *out);
/* Members, each with a comma in front. */
void completion_reply_finish(const struct completion_choice *c, struct buf *out);
void completion_reply_ids(const char *name, const int32_t *ids, int32_t count, struct buf *out);
void completion_reply_totals(const struct completion_usage *u, struct buf *out);
/* "usage" of a frame, if it has one. */
void completion_reply_so_far(bool with_usage, const struct completion_usage *so_far,
                             struct buf *out);

#endif
