/* The parts of an answer that have come and have not been cleared: texts and calls, and the order
 * in which they came, since a piece of text may bring several. Pure. */
#ifndef TESSERA_SERVER_ANSWER_PARTS_H
#define TESSERA_SERVER_ANSWER_PARTS_H

#include "config/buf.h"
#include "server/answer/answer.h"

struct parts_call {
    size_t name, name_len, arguments, arguments_len; /* in `calls` */
};

struct parts {
    struct buf content, reasoning; /* each in one, whatever came between */
    struct buf calls;              /* names and arguments */
    struct buf order;              /* of spans (parts.c) */
    struct parts_call list[ANSWER_CALLS_MAX];
    int32_t count; /* of calls */
};

void parts_init(struct parts *p, size_t bytes_max); /* of each buffer */
void parts_free(struct parts *p);
void parts_clear(struct parts *p);
bool parts_failed(const struct parts *p); /* memory ran out */

/* kind: not ANSWER_CALL. ANSWER_CONTROL is left out. A text goes on where the last part is of its
 * kind. */
void parts_add_text(struct parts *p, enum answer_kind kind, const char *text, size_t n);
/* At most ANSWER_CALLS_MAX. */
void parts_add_call(struct parts *p, const char *name, const char *arguments, size_t n);

/* Names and arguments alone. */
struct answer_call parts_call(const struct parts *p, int32_t i);

/* Parts in their order. */
int32_t parts_count(const struct parts *p);
struct answer_part parts_at(const struct parts *p, int32_t i);

#endif
