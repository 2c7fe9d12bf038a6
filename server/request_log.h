/* One line of the log per completion request, when its exchange is over: who, how it ended, how
 * many tokens, how long. Never what was said. */
#ifndef TESSERA_SERVER_REQUEST_LOG_H
#define TESSERA_SERVER_REQUEST_LOG_H

#include "server/job.h"

/* Under j->lock. */
void request_log(const struct job *j);

#endif
