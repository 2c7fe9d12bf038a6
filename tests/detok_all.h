/* The text of ids, one after the other as a stream has them. Included once. */
#ifndef TESSERA_TESTS_DETOK_ALL_H
#define TESSERA_TESTS_DETOK_ALL_H

#include "server/tokenizer/detok.h"

static void detok_all(const struct tokenizer *t, const int32_t *ids, int32_t count, struct buf *out)
{
    struct detok d;
    detok_init(&d, t, NULL, 0);
    for (int32_t i = 0; i < count; i++)
        detok_push(&d, ids[i], out);
    detok_finish(&d, out);
}

#endif
