/* The body of a POST as a JSON object. Pure. */
#ifndef TESSERA_SERVER_API_BODY_H
#define TESSERA_SERVER_API_BODY_H

#include "config/base.h"
#include "config/jdoc.h"
#include "server/api/api_error.h"

/* Bounded by jdoc_limits_request before the parser sees it. On failure (ERR_INPUT, ERR_NOMEM) *e
 * says why. */
enum status body_parse(const char *text, size_t n, struct jdoc **doc, struct api_error *e) MUST_USE;
/* The same of a body some of whose fields (a list that ends with NULL) have JSON of others:
 * integers beyond 64 bits are reals there. */
enum status body_parse_big(const char *text, size_t n, const char *const *fields, struct jdoc **doc,
                           struct api_error *e) MUST_USE;

#endif
