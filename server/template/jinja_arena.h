/* Memory of one parse or of one render: taken piece by piece, given back all at once. Not
 * thread-safe. */
#ifndef TESSERA_SERVER_TEMPLATE_JINJA_ARENA_H
#define TESSERA_SERVER_TEMPLATE_JINJA_ARENA_H

#include "config/base.h"

struct arena_block;

struct arena {
    struct arena_block *newest;
    size_t left; /* bytes that may still be taken */
    bool full;   /* a piece was refused because of the maximum */
};

void jinja_arena_init(struct arena *a, size_t bytes_max);
/* n zeroed bytes aligned for anything, valid until jinja_arena_free. NULL: no memory, or `full`. */
void *jinja_arena_take(struct arena *a, size_t n);
void *jinja_arena_array(struct arena *a, size_t count, size_t size);
void jinja_arena_free(struct arena *a);

#endif
