/* The collectives between machines live in the MPI plugin. */
#include "engine/comm/comm_mpi.h"

static enum status find(const struct plugin **out, struct err *err)
{
    static const struct plugin_want want = {
        .file = "libtessera_mpi.so",
        .entry = COMM_MPI_ENTRY,
        .option = "--comm mpi",
        .hint = "build where Open MPI is installed (libopenmpi-dev)",
        .bytes = sizeof(struct comm_mpi_plugin),
        .global = true,
    };
    return plugin_open(&want, out, err);
}

enum status comm_mpi_build(const char **build, struct err *err)
{
    const struct plugin *p = NULL;
    enum status st = find(&p, err);
    if (st == OK)
        *build = p->build;
    return st;
}

enum status comm_mpi_open(int32_t rank, int32_t ranks, struct backend *b, size_t arena_bytes,
                          struct comm_stats *stats, struct comm **out, struct err *err)
{
    const struct plugin *p = NULL;
    enum status st = find(&p, err);
    if (st != OK)
        return st;
    const struct comm_mpi_plugin *mpi = (const struct comm_mpi_plugin *)(const void *)p;
    return mpi->open(rank, ranks, b, arena_bytes, stats, out, err);
}
