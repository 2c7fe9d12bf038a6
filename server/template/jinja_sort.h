/* Sorting as Python does: stable, and failing on what has no order. Internal to the template
 * engine. */
#ifndef TESSERA_SERVER_TEMPLATE_JINJA_SORT_H
#define TESSERA_SERVER_TEMPLATE_JINJA_SORT_H

#include "server/template/jinja_run.h"

/* By the pairs' keys. Equal ones keep their order, also when it is reversed. */
enum status jinja_sort_pairs(struct run *r, struct pair *pairs, size_t n, bool reverse) MUST_USE;

#endif
