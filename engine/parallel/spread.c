/* DESIGN: two lists of axes say everything; an axis in none of them, and not partial, is copied.
 * Rejected: one placement per axis with the order implied by the mesh, because 3d weights need the
 * axes of one dimension against mesh order. */
#include "engine/parallel/spread.h"

#include <stdio.h>
#include <string.h>

enum spread_kind spread_along(const struct spread *s, int32_t axis, int32_t *dim, int32_t *place)
{
    for (int32_t d = 0; d < SPREAD_DIMS; d++) {
        for (int32_t i = 0; i < s->count[d]; i++) {
            if (s->axis[d][i] == axis) {
                *dim = d;
                *place = i;
                return SPREAD_SHARD;
            }
        }
    }
    return s->partial >> axis & 1 ? SPREAD_PARTIAL : SPREAD_COPY;
}

struct spread spread_shard(struct spread s, int32_t dim, int32_t axis)
{
    int32_t d, place;
    CHECK(spread_along(&s, axis, &d, &place) == SPREAD_COPY);
    s.axis[dim][s.count[dim]++] = (int8_t)axis;
    return s;
}

struct spread spread_partial(struct spread s, int32_t axis)
{
    int32_t d, place;
    CHECK(spread_along(&s, axis, &d, &place) == SPREAD_COPY);
    s.partial |= (uint8_t)(1u << axis);
    return s;
}

struct spread spread_copy(struct spread s, int32_t axis)
{
    int32_t dim, place;
    if (spread_along(&s, axis, &dim, &place) == SPREAD_SHARD) {
        for (int32_t i = place; i + 1 < s.count[dim]; i++)
            s.axis[dim][i] = s.axis[dim][i + 1];
        s.axis[dim][--s.count[dim]] = 0;
    }
    s.partial &= (uint8_t) ~(1u << axis);
    return s;
}

bool spread_equal(const struct spread *a, const struct spread *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

int32_t spread_pieces(const struct mesh *m, const struct spread *s, int32_t dim)
{
    int32_t n = 1;
    for (int32_t i = 0; i < s->count[dim]; i++)
        n *= m->axis[s->axis[dim][i]].size;
    return n;
}

int32_t spread_index(const struct mesh *m, const struct spread *s, int32_t dim, int32_t rank)
{
    int32_t index = 0;
    for (int32_t i = 0; i < s->count[dim]; i++) {
        int32_t axis = s->axis[dim][i];
        index = index * m->axis[axis].size + mesh_coord(m, rank, axis);
    }
    return index;
}

struct span spread_span(const struct mesh *m, const struct spread *s, int32_t dim, int64_t units,
                        int32_t rank)
{
    return placement_block(units, spread_pieces(m, s, dim), spread_index(m, s, dim, rank));
}

static size_t list(const struct mesh *m, const char *word, const int8_t *axes, int32_t count,
                   char *buf, size_t at)
{
    for (int32_t i = 0; i < count; i++)
        at += (size_t)snprintf(buf + at, SPREAD_TEXT_MAX - at, "%s%s%s",
                               i > 0    ? ","
                               : at > 0 ? " "
                                        : "",
                               i == 0 ? word : "", m->axis[axes[i]].name);
    if (count > 0)
        at += (size_t)snprintf(buf + at, SPREAD_TEXT_MAX - at, ")");
    return at;
}

const char *spread_text(const struct mesh *m, const struct spread *s, char buf[SPREAD_TEXT_MAX])
{
    int8_t partial[MESH_AXES_MAX];
    int32_t partials = 0;
    for (int32_t i = 0; i < m->axes; i++)
        if (s->partial >> i & 1)
            partial[partials++] = (int8_t)i;
    size_t at = list(m, "rows(", s->axis[SPREAD_ROWS], s->count[SPREAD_ROWS], buf, 0);
    at = list(m, "cols(", s->axis[SPREAD_COLS], s->count[SPREAD_COLS], buf, at);
    at = list(m, "partial(", partial, partials, buf, at);
    if (at == 0)
        snprintf(buf, SPREAD_TEXT_MAX, "copy");
    return buf;
}
