#include "weights/gguf/gguf_order.h"

/* Value heads in the file: the first of every key head, then the second of every one. Strands are
 * heads that have the same place at their key heads. */
static struct gguf_order tiled(int64_t still, int64_t keys, int64_t each, int64_t unit)
{
    return (struct gguf_order){.still = still, .turns = keys, .parts = {{still, each, unit}}};
}

static struct gguf_order by_key_head(const struct recurrent_config *r)
{
    const int64_t keys = (int64_t)r->keys * r->key_dim, values = (int64_t)r->values * r->value_dim;
    const int64_t unit = values / r->keys;
    return (struct gguf_order){.turns = r->keys,
                               .parts = {{0, 1, r->key_dim},
                                         {keys, 1, r->key_dim},
                                         {2 * keys, 1, unit},
                                         {2 * keys + values, 1, unit}}};
}

struct gguf_order gguf_order_of(enum gguf_order_kind kind, const struct recurrent_config *r)
{
    const int64_t each = kind == GGUF_ORDER_NONE ? 0 : r->values / r->keys;
    const int64_t still = 2 * (int64_t)r->keys * r->key_dim;
    switch (kind) {
    case GGUF_ORDER_VALUES:
        return tiled(0, r->keys, each, 1);
    case GGUF_ORDER_VALUE_ROWS:
        return tiled(0, r->keys, each, r->value_dim);
    case GGUF_ORDER_CHANNELS:
        return tiled(still, r->keys, each, r->value_dim);
    case GGUF_ORDER_VALUE_COLS: /* the way back is the same with these two exchanged */
        return tiled(0, each, r->keys, r->value_dim);
    case GGUF_ORDER_BY_KEY_HEAD:
        return by_key_head(r);
    case GGUF_ORDER_NONE:
        break;
    }
    return (struct gguf_order){0};
}

/* Rows that all strands give in a turn. */
static int64_t turn_rows(const struct gguf_order *o)
{
    int64_t n = 0;
    for (int i = 0; i < GGUF_ORDER_PARTS; i++)
        n += o->parts[i].strands * o->parts[i].unit;
    return n;
}

int64_t gguf_order_rows(const struct gguf_order *o)
{
    return o->turns == 0 ? 0 : o->still + o->turns * turn_rows(o);
}

int64_t gguf_order_at(const struct gguf_order *o, int64_t i, int64_t *run)
{
    const struct gguf_order_part *p = o->parts;
    if (o->turns == 0 || i < o->still) {
        *run = o->turns == 0 ? INT64_MAX : o->still - i;
        return i;
    }
    CHECK(i < gguf_order_rows(o));
    const int64_t each = turn_rows(o), turn = (i - o->still) / each;
    int64_t at = (i - o->still) % each;
    for (; at >= p->strands * p->unit; p++)
        at -= p->strands * p->unit;
    const int64_t strand = at / p->unit, in_unit = at % p->unit;
    *run = p->unit - in_unit;
    return p->from + (strand * o->turns + turn) * p->unit + in_unit;
}
