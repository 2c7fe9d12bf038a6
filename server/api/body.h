/* The body of a POST as a JSON object. Pure. */
#ifndef TESSERA_SERVER_API_BODY_H
#define TESSERA_SERVER_API_BODY_H

#include "config/base.h"
#include "config/jdoc.h"
#include "server/api/api_error.h"

/* Bounded by jdoc_limits_request before the parser sees it. On failure (ERR_INPUT, ERR_NOMEM) *e
 * says why. */
enum status body_parse(const char *text, size_t n, struct jdoc **doc, struct api_error *e) MUST_USE;
/* The same of a body whose field has, as JSON, what models have said: where an integer beyond 64
 * bits is in it, all integers of the body are reals, which templates show otherwise. */
enum status body_parse_big(const char *text, size_t n, const char *field, struct jdoc **doc,
                           struct api_error *e) MUST_USE;

#endif
