/* The files of a checkpoint directory, opened and cross-checked: what weights/checkpoint.c builds
 * its tensors from. Private to weights/. */
#ifndef TESSERA_WEIGHTS_CHECKPOINT_FILES_H
#define TESSERA_WEIGHTS_CHECKPOINT_FILES_H

#include "weights/placement.h"
#include "weights/safetensors.h"

#include <limits.h>

#define CHECKPOINT_FILES_MAX 1024

struct checkpoint_file {
    char *name; /* plain basename */
    struct safetensors st;
    int32_t rank; /* 0 in a plain checkpoint */
};

/* A rectangle of a whole tensor and where its bytes are. 1-d tensors are [1, n]; more than two
 * dimensions are [first, product of the rest]. */
struct checkpoint_piece {
    /* As a model that makes tokens has it: the end of that in the file, or `own`. */
    const char *name;
    const char *name_in_file; /* the entry's */
    char *own;                /* owned; NULL: none */
    enum dtype dtype;
    int32_t ndim;
    int64_t shape[2];    /* of the whole tensor */
    const int64_t *dims; /* [ndim] the same as the file has it; NULL in a sharded checkpoint, and of
                            views (checkpoint_views.h) */
    const int64_t *column; /* of a view that is a vector the sizes in the file, [3]; else NULL */
    struct placement_box box;
    uint64_t offset; /* in the file */
    int32_t file, rank;
};

struct checkpoint_files {
    char *dir;
    struct checkpoint_file *files;
    int32_t file_count;
    int32_t ranks;                   /* 0: plain */
    struct checkpoint_piece *pieces; /* by name, then rank, then file */
    int32_t piece_count;
};

/* Every header read and checked, index or shards.json obeyed: in a plain checkpoint each tensor is
 * exactly one piece; in a sharded one the pieces of a tensor agree on its whole shape (whether they
 * cover it is the caller's check). */
enum status checkpoint_files_open(const char *dir, struct checkpoint_files *out,
                                  struct err *err) MUST_USE;
/* Path to open a member of a model directory by: the target's when it is a symbolic link that may
 * be followed; a link that leads out of the directory is ERR_MODEL. */
enum status checkpoint_files_path(const char *dir, const char *name, char path[PATH_MAX],
                                  struct err *err) MUST_USE;
/* What a model that makes tokens calls a tensor of this name: the end of it, or `room`. */
const char *checkpoint_files_name(const char *name, char room[PLACEMENT_NAME_MAX]);
void checkpoint_files_close(struct checkpoint_files *f);

#endif
