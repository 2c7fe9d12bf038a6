/* One line of the log per request that the engine answers, when its exchange is over: who asked for
 * what, how it ended, how many tokens, how long. Never what was said, nor by whose key. */
#ifndef TESSERA_SERVER_REQUEST_LOG_H
#define TESSERA_SERVER_REQUEST_LOG_H

#include "server/job.h"

/* Under j->lock. */
void request_log(const struct job *j);

#endif
