/* What the parts of the front end share: what is served, whether it may be asked now, and how many
 * requests are in flight. */
#ifndef TESSERA_SERVER_SERVICE_H
#define TESSERA_SERVER_SERVICE_H

#include "engine/engine.h"
#include "server/api/completion.h"
#include "server/health.h"
#include "server/metrics.h"
#include "server/tokenizer/tokenizer.h"

#include <pthread.h>

struct service {
    /* immutable after service_open */
    struct completion_rules rules;
    const struct tokenizer *tokenizer; /* NULL: none */
    struct metrics *metrics;           /* owned */
    struct health *health;
    char model_name[256], fingerprint[64], version[32];
    int64_t created; /* Unix time of the start */

    _Atomic(struct engine *) engine; /* NULL: loading */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t idle;
    int32_t in_flight;
};

enum status service_open(struct service *s, struct err *err) MUST_USE;
void service_close(struct service *s);

/* OK: the engine may be asked. Else ERR_INPUT with the 503 to send in *e. */
enum status service_check(struct service *s, struct api_error *e) MUST_USE;
void service_ready(struct service *s, struct engine *e);
/* The engine, NULL while loading; stays valid until the front end is closed. */
struct engine *service_engine(struct service *s);

void service_enter(struct service *s);
void service_leave(struct service *s);
/* True when nothing is in flight, at most timeout_s later. */
bool service_wait_idle(struct service *s, double timeout_s);

#endif
