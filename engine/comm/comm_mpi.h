/* Private to comm_mpi: what its plugin offers the program. */
#ifndef TESSERA_ENGINE_COMM_COMM_MPI_H
#define TESSERA_ENGINE_COMM_COMM_MPI_H

#include "config/plugin.h"
#include "engine/comm/comm.h"

struct comm_mpi_plugin {
    struct plugin head;
    /* As comm_mpi_open. */
    enum status (*open)(int32_t rank, int32_t ranks, struct backend *b, size_t arena_bytes,
                        struct comm_stats *stats, struct comm **out, struct err *err);
};

#define COMM_MPI_ENTRY "comm_mpi_entry"
__attribute__((visibility("default"))) plugin_entry comm_mpi_entry;

#endif
