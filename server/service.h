/* What the parts of the front end share: what is served, whether it may be asked now, and how many
 * requests are in flight. */
#ifndef TESSERA_SERVER_SERVICE_H
#define TESSERA_SERVER_SERVICE_H

#include "engine/engine.h"
#include "server/api/completion.h"
#include "server/guides.h"
#include "server/health.h"
#include "server/metrics.h"
#include "server/tokenizer/tokenizer.h"

#include <pthread.h>

#define SERVICE_NAMES_MAX 8
#define SERVICE_UNKNOWN_MAX 64

struct chat_template;
struct request_worker;
struct output;

struct service {
    /* immutable after service_open */
    struct completion_rules rules;
    const struct tokenizer *tokenizer;         /* NULL: none */
    const struct chat_template *chat_template; /* NULL: no tokenizer */
    struct metrics *metrics;                   /* these two owned */
    struct guides *guides;
    int32_t reasoning_begin, reasoning_end; /* tokens of the marks of reasoning; -1: none; */
    int32_t reasoning_gap;                  /* and of the empty line behind it */
    struct request_worker *worker;          /* these three borrowed */
    struct output *output;
    struct health *health;
    char name_text[1024];                 /* what names points into */
    const char *names[SERVICE_NAMES_MAX]; /* of the model; the first is the one in answers */
    char fingerprint[64], version[32];
    int64_t created;          /* Unix time of the start */
    bool shared_prefix_cache; /* between keys */
    double ping_s;            /* a stream that waits for its first token gets a comment so often */

    _Atomic(struct engine *) engine; /* NULL: loading */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t idle;
    int32_t in_flight;
    /* fields nobody knows, each logged once */
    char unknown[SERVICE_UNKNOWN_MAX][48];
    int32_t unknown_count;
};

enum status service_open(struct service *s, struct err *err) MUST_USE;
void service_close(struct service *s);

/* OK: the engine may be asked. Else ERR_INPUT with the 503 to send in *e. */
enum status service_check(struct service *s, struct api_error *e) MUST_USE;
/* The same for what needs no engine: once the server stops. */
enum status service_check_stopping(struct service *s, struct api_error *e) MUST_USE;
/* What to say when the workers have no room: that, or a 429. */
void service_refuse(struct service *s, struct api_error *e);
/* OK: there is room for one request more. Else ERR_INPUT with the 429 to send. */
enum status service_check_room(struct service *s, struct api_error *e) MUST_USE;
void service_ready(struct service *s, struct engine *e);
/* The engine, NULL while loading; stays valid until the front end is closed. */
struct engine *service_engine(struct service *s);

/* One line in the log per name, the first time it comes. */
void service_log_unknown(struct service *s, const struct field_unknown *unknown);

void service_enter(struct service *s);
void service_leave(struct service *s);
/* True when nothing is in flight, at most timeout_s later. */
bool service_wait_idle(struct service *s, double timeout_s);

#endif
