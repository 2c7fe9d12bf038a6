/* The filter tojson. Internal to the template engine. */
#ifndef TESSERA_SERVER_TEMPLATE_JINJA_TOJSON_H
#define TESSERA_SERVER_TEMPLATE_JINJA_TOJSON_H

#include "server/template/jinja_run.h"

/* Parameters: ensure_ascii, indent, separators, sort_keys. */
enum status jinja_tojson(struct run *r, const struct call *c, struct value *out) MUST_USE;

#endif
