/* DESIGN: a mesh is four numbers, so every question is a division. Nothing is stored per rank. */
#include "engine/parallel/mesh.h"

#include <stdlib.h>
#include <string.h>

int32_t mesh_ranks(const struct mesh *m)
{
    int32_t n = 1;
    for (int32_t i = 0; i < m->axes; i++)
        n *= m->axis[i].size;
    return n;
}

int32_t mesh_find(const struct mesh *m, const char *name)
{
    for (int32_t i = 0; i < m->axes; i++)
        if (strcmp(m->axis[i].name, name) == 0)
            return i;
    return -1;
}

int32_t mesh_stride(const struct mesh *m, int32_t axis)
{
    int32_t stride = 1;
    CHECK(axis >= 0);
    CHECK(axis < m->axes);
    for (int32_t i = 0; i < m->axes; i++)
        if (m->first_fastest ? i < axis : i > axis)
            stride *= m->axis[i].size;
    return stride;
}

int32_t mesh_coord(const struct mesh *m, int32_t rank, int32_t axis)
{
    return rank / mesh_stride(m, axis) % m->axis[axis].size;
}

int32_t mesh_peer(const struct mesh *m, int32_t rank, int32_t axis, int32_t coord)
{
    return rank + (coord - mesh_coord(m, rank, axis)) * mesh_stride(m, axis);
}

/* The whole number whose `power`th power is n; 0 when there is none. */
static int32_t root(int32_t n, int32_t power)
{
    for (int32_t x = 1; x <= n; x++) {
        int64_t product = 1;
        for (int32_t i = 0; i < power; i++)
            product *= x;
        if (product >= n)
            return product == n ? x : 0;
    }
    return 0;
}

static int32_t quotient(int32_t n, const char *divisor)
{
    char *end;
    long by = strtol(divisor, &end, 10);
    return divisor != end && !*end && by >= 1 && by <= n && n % by == 0 ? (int32_t)(n / by) : 0;
}

enum status mesh_size(const char *text, int32_t ranks, int32_t *size, struct err *err)
{
    int32_t n = 0;
    if (strcmp(text, "ranks") == 0)
        n = ranks;
    else if (strncmp(text, "ranks/", 6) == 0)
        n = quotient(ranks, text + 6);
    else if (strcmp(text, "sqrt(ranks)") == 0)
        n = root(ranks, 2);
    else if (strcmp(text, "cbrt(ranks)") == 0)
        n = root(ranks, 3);
    else
        return base_fail(err, ERR_USAGE,
                         "size \"%.40s\" is not a number, ranks, ranks/N, sqrt(ranks) or "
                         "cbrt(ranks)",
                         text);
    if (n == 0)
        return base_fail(err, ERR_USAGE,
                         "size %.40s is not whole at %d ranks; give --mesh, or another -tp", text,
                         ranks);
    *size = n;
    return OK;
}
