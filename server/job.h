/* One request for texts or vectors from its body to the last byte of its answer: the choices it
 * asked for, what of them has come, and the one way each ends.
 *
 * References: the HTTP exchange, the worker, and every request inside the engine until its terminal
 * event. The lock guards everything from `choices` on; below it come the engine's and HTTP's locks,
 * never another job's. Whole answers are written under it, so an HTTP thread never waits for it;
 * who has it does for them what is to be done at the end. */
#ifndef TESSERA_SERVER_JOB_H
#define TESSERA_SERVER_JOB_H

#include "server/answer/answer.h"
#include "server/api/completion_reply.h"
#include "server/api/conversation.h"
#include "server/http/http.h"
#include "server/request_worker.h"
#include "server/service.h"
#include "server/tokenizer/detok.h"
#include "server/tokenizer/stop.h"

#include <stdatomic.h>

struct choice {
    struct job *job;
    int32_t index, prompt; /* in the response; of request.prompts */
    uint64_t engine_id;
    bool submitted; /* the engine knows it and owes a terminal event, unless it has come */
    bool ended;     /* nothing more of it goes to the client */
    struct detok detok;
    struct stop stop;
    struct buf text;       /* of the answer; in a stream, or with a state: since the last chunk; of
                              a vector its JSON */
    struct answer *answer; /* takes the text where there is more in it than content; else NULL */
    struct reply_state *state; /* of replies that keep one; else NULL */
    bool reasons;              /* the last token was part of what the model thinks */
    int32_t reasoning_tokens;
    struct buf ids;                            /* int32_t each, likewise */
    struct logprobs logprobs, prompt_logprobs; /* likewise */
    int32_t prompt_scored;                     /* tokens of the prompt whose logprobs have come */
    int32_t characters; /* that the tokens so far make, without regard to stop strings */
    int32_t tokens, chunks, cached;
    int32_t right, wrong;                               /* guesses of its tokens */
    const char *finish_reason;                          /* when ended: "stop", "length" */
    int32_t stop_index;                                 /* of the stop string; -1: none */
    int32_t stop_token;                                 /* of stop_token_ids; -1: none */
    int64_t admitted_ns, first_token_ns, last_token_ns; /* 0: not yet */
};

#define JOB_ID_BYTES 8      /* of JSON for a token's id, about */
#define JOB_REFUSED 429     /* by a full queue; it has not failed */
#define JOB_CLIENT_LEFT 499 /* as nginx has it: before the answer was complete */

struct job;

/* What the routes that the engine answers differ in. */
struct job_kind {
    const struct reply *reply;
    bool pools; /* with vectors */
    /* Both on a request worker; ERR_INPUT, ERR_NOMEM with the answer in *e.
     * parse: j->body becomes j->request, and j->conversation if there is one.
     * encode: the prompts become ids, for which there is room. */
    enum status (*parse)(struct job *j, struct api_error *e);
    enum status (*encode)(struct job *j, struct api_error *e);
};

struct job {
    _Atomic int32_t refs;
    struct service *service;
    const struct job_kind *kind;
    struct http_request *http; /* held */
    char client[HTTP_ADDRESS_MAX];
    int64_t arrived_ns;
    struct buf body;
    struct completion_request request; /* the worker's, immutable once submitted */
    struct conversation conversation;  /* the worker's; gone once submitted */
    struct stop_set *stops;
    const char *marks[ANSWER_MARKS_MAX];
    struct completion_meta meta;
    struct work work;
    struct job *waiting_next, **waiting_link; /* under the lock of the output */
    int64_t pinged_ns;                        /* when something was sent; under our lock */

    _Atomic int exchange; /* an enum of job.c: has it ended? */

    pthread_mutex_t lock; /* lock it as any other, unlock it with job_unlock */
    struct choice *choices;
    int32_t choice_count, ended_count;
    int64_t prompt_tokens;
    size_t bytes;         /* of the answer that are still to be written at once, about */
    bool slow;            /* its output is the slow lane's */
    int32_t status;       /* of the answer, or JOB_CLIENT_LEFT; 0: none yet */
    struct {              /* for the log: what went wrong */
        const char *code; /* static; NULL: nothing */
        char param[64];   /* the request's field; "": none */
    } fault;
    bool streaming; /* headers are sent */
    bool waiting;   /* in the output's list of streams */
    bool over;      /* the answer is complete, or nobody waits for it */
};

/* In the handler: takes the body and the exchange. Two references: the exchange's, and the
 * caller's. NULL without memory. */
struct job *job_open(struct service *s, const struct job_kind *kind, struct http_request *r);
void job_release(struct job *j);
/* Instead of pthread_mutex_unlock, by who has a reference of their own. */
void job_unlock(struct job *j);

/* The worker, when request and stops are set: makes the choices and gives them to the engine.
 * Answers by itself when that fails. */
void job_submit(struct job *j);

/* ---- under j->lock ---- */

/* A choice ends, with what is known so far. */
void job_end_choice(struct choice *c, const char *finish_reason, int32_t stop_index);
/* Of one that has ended: "stop", "length", "tool_calls". */
const char *job_finish_reason(const struct choice *c);
/* Of a choice with an answer of parts: what has come of its text becomes some. token: it was one
 * that brought it. */
void job_take_parts(struct choice *c, bool token);
/* Sends what a choice has, if this is a stream. scratch is overwritten; when all choices have
 * ended, it holds what is still to be sent, and job_complete has to follow. */
void job_send_chunk(struct choice *c, struct buf *scratch);
/* When all choices have ended: completes the answer. */
void job_complete(struct job *j, struct buf *scratch);
/* The whole request fails: an error answer, or an error chunk and a cut connection. */
void job_fail(struct job *j, const struct api_error *e);

#endif
