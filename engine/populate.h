/* Touches memory in the background, so that what was planned is resident soon after start and
 * stays all there is: a thread of nice 19, on the cores of whoever opens it. What is in
 * the memory stays, also what others write meanwhile. */
#ifndef TESSERA_ENGINE_POPULATE_H
#define TESSERA_ENGINE_POPULATE_H

#include "config/base.h"

struct populate;

/* Begins at a page; NULL or 0 bytes: nothing. */
struct populate_range {
    void *begin;
    size_t bytes;
};

/* All ranges, the first one first; they stay mapped until populate_close. Where it cannot be done
 * (a kernel before 5.14, no thread) memory is touched as it is used; where memory is refused there
 * is a warning. NULL: nothing is done. */
struct populate *populate_open(struct populate_range first, struct populate_range second,
                               struct populate_range third);
/* Stops early when there is still something to do. NULL is fine. */
void populate_close(struct populate *p);

#endif
