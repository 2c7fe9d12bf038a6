/* The HTTP side of the server: connections, request workers, output threads. serve.c opens it
 * before the weights are loaded (so a taken port fails at once), hands it the engine when that is
 * ready, and closes it last.
 *
 * Threads: HTTP poll threads only move bytes; request workers parse, validate and tokenize while
 * the connection is suspended; two output threads, one of them for large answers, detokenize, find
 * stop strings, write SSE frames and decide each choice's end. The engine thread only drops token
 * events into a queue. */
#ifndef TESSERA_SERVER_FRONTEND_H
#define TESSERA_SERVER_FRONTEND_H

#include "config/base.h"
#include "config/model_config.h"
#include "engine/engine.h"
#include "server/answer/answer.h"
#include "server/http/http_limits.h"

struct chat_template;
struct frontend;
struct health;
struct keys;
struct tokenizer;

struct frontend_config {
    const char *host;       /* numeric address */
    int32_t port;           /* 0: any free one */
    const char *model_name; /* --served-model-name, else the directory's name; "name,alias,..." */
    const char *version;
    struct health *health; /* outlives the front end */
    int32_t vocab, max_model_len;
    const struct tokenizer *tokenizer;         /* NULL: token-id prompts only; immutable */
    const struct chat_template *chat_template; /* NULL: no chat; immutable */
    struct answer_form answer;                 /* of chats */
    struct generation_defaults defaults;
    int32_t queued_max; /* requests that wait for a worker; one more gets 429 */
    int32_t columns;    /* of vectors, and have they length 1? 0: texts */
    bool normalizes;
    int64_t tokens_max;  /* of the prompts of one request, for each of its answers; 0: any */
    int32_t choices_max; /* answers that one request may ask for; 0: as many as its fields allow */
    double ping_s;       /* between comments to streams that wait; 0: 15 */
    struct http_limits http;
    struct keys *keys; /* NULL: nobody needs one; the caller's */
    bool metrics_without_key;
    bool shared_prefix_cache;
    const char *cors_origins;  /* NULL: none; static */
    const char *allowed_hosts; /* NULL: any; static */
    bool webui;                /* browsers get a chat page */
};

/* Binds and starts answering: 503 "loading" until frontend_ready. ERR_USAGE with the address when
 * the port is taken. Once `health` is draining or lost, new requests get 503 again; running ones go
 * on until their terminal event (which for a group lost for good is FINISH_ERROR: 503 JSON, or an
 * error chunk without [DONE] in a stream). */
enum status frontend_open(const struct frontend_config *config, struct frontend **out,
                          struct err *err) MUST_USE;
int32_t frontend_port(const struct frontend *f);
/* From now on requests go to e. */
void frontend_ready(struct frontend *f, struct engine *e);
/* The sink to open the engine with; ctx is the frontend. */
void frontend_sink(void *ctx, const struct token_event *events, int32_t count);
/* Waits until no completion is in flight, at most timeout_s; true when none is. */
bool frontend_idle(struct frontend *f, double timeout_s);
/* Ends what is left and frees everything. The engine must have stopped calling the sink. */
void frontend_close(struct frontend *f);

#endif
