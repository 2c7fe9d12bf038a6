/* Load watch: notices a rank that reads nothing any more (a file server that is gone, a disk that
 * hangs), or ranks that have read everything and do not get ready. Pure: the caller says what time
 * it is. One thread. */
#ifndef TESSERA_ENGINE_LOAD_WATCH_H
#define TESSERA_ENGINE_LOAD_WATCH_H

#include "engine/board.h"

struct load_watch {
    double timeout; /* seconds without a byte before a rank counts as lost */
    int32_t ranks;
    const struct checkpoint *checkpoint; /* borrowed, for names; NULL: no files are read */
    uint64_t wanted[COMM_RANKS_MAX];     /* bytes each rank reads */
    struct load_watch_rank {             /* of one rank, the last of all together: */
        uint64_t done;                   /* bytes at the last look */
        double since;                    /* when they came */
        bool told;
    } rank[COMM_RANKS_MAX + 1];
};

/* After timeout, ranks, checkpoint and wanted are set. */
void load_watch_begin(struct load_watch *w, double now);
/* Logs a warning for a rank that has stood still for some time; ERR_COMM, with rank, file and
 * offset, when it was the timeout. */
enum status load_watch_look(struct load_watch *w, const struct board *b, double now,
                            struct err *err) MUST_USE;

#endif
