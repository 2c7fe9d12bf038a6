/* The way of a request from its HTTP exchange to the engine. */
#ifndef TESSERA_SERVER_JOB_START_H
#define TESSERA_SERVER_JOB_START_H

#include "server/job.h"

/* On an HTTP thread: takes the body and hands it to a request worker, which prepares the job as its
 * kind says and submits it; or answers with the reason why not. */
void job_start(struct service *s, const struct job_kind *kind, struct http_request *r);

/* For job_kind.encode: text of a field to ids, as tokenizer_encode. ERR_INPUT names the field. */
enum status job_start_encode(const struct job *j, const char *field, const char *text, size_t n,
                             bool special, int32_t **ids, int32_t *count,
                             struct api_error *e) MUST_USE;
/* The same as tokenizer_encode_named, but no ids at all are ERR_INPUT, too. */
enum status job_start_encode_named(const struct job *j, const char *field, const char *text,
                                   size_t n, bool special, int32_t **ids, int32_t *count,
                                   struct api_error *e) MUST_USE;

#endif
