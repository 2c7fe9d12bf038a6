/* DESIGN: a model directory is data from the internet. Names found in JSON are used only as plain
 * basenames inside the directory; a symbolic link is followed only when it ends inside the
 * directory or in the blobs of the Hugging Face cache the directory belongs to. RESOLVE_BENEATH was
 * rejected: it would refuse every model of that cache. So was who owns link and target: those of an
 * unpacked archive are its user's, and so are the files that it must not name. Three forms (one
 * file, index, shards.json) become one list of pieces, so that nothing behind this file knows them.
 * Invariant: what the list says was checked against both the JSON and the files' headers. */
#include "weights/checkpoint_files.h"

#include "config/jdoc.h"
#include "weights/checkpoint_views.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"
#define SHARDS "shards.json"

static enum status no_memory(const struct checkpoint_files *f, struct err *err)
{
    return base_fail(err, ERR_NOMEM, "%s: no memory for its tensor list", f->dir);
}

/* ---- names and paths ---- */

static bool plain_basename(const char *name)
{
    return name[0] != '\0' && !strchr(name, '/') && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0 && strlen(name) <= NAME_MAX;
}

static bool below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && path[n] == '/';
}

/* Cuts the last component off; returns it, or NULL at the root. */
static char *cut_last(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return NULL;
    *slash = '\0';
    return slash + 1;
}

/* Whether `real` lies in CACHE/models--X/blobs when `dir` is CACHE/models--X/snapshots/REVISION. */
static bool in_cache_blobs(const char *real, const char *dir)
{
    char parent[PATH_MAX + sizeof "/blobs"];
    snprintf(parent, sizeof parent, "%s", dir);
    const char *snapshots = cut_last(parent) ? cut_last(parent) : NULL;
    if (!snapshots || strcmp(snapshots, "snapshots") != 0)
        return false;
    const char *model = strrchr(parent, '/');
    if (!model || strncmp(model + 1, "models--", 8) != 0)
        return false;
    size_t n = strlen(parent);
    snprintf(parent + n, sizeof parent - n, "/blobs");
    return below(real, parent);
}

enum status checkpoint_files_path(const char *dir, const char *name, char path[PATH_MAX],
                                  struct err *err)
{
    char real[PATH_MAX], link[PATH_MAX];
    struct stat sb;
    int n = snprintf(link, sizeof link, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof link)
        return base_fail(err, ERR_MODEL, "%.200s: path too long", dir);
    if (lstat(link, &sb) != 0)
        return base_fail_errno(err, ERR_MODEL, "%.300s", link);
    if (!S_ISLNK(sb.st_mode)) {
        memcpy(path, link, (size_t)n + 1);
        return OK;
    }
    if (!realpath(link, path))
        return base_fail_errno(err, ERR_MODEL, "%.300s: broken symbolic link", link);
    if (!realpath(dir, real))
        return base_fail_errno(err, ERR_MODEL, "%.300s", dir);
    if (!below(path, real) && !in_cache_blobs(path, real))
        return base_fail(
            err, ERR_MODEL,
            "%.180s: symbolic link to %.120s, outside the model directory: not "
            "followed, because a directory that was downloaded could name any file so; "
            "put a hard link (ln) or a copy in its place",
            link, path);
    return OK;
}

static bool exists(const struct checkpoint_files *f, const char *name)
{
    char path[PATH_MAX];
    struct stat sb;
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    return lstat(path, &sb) == 0;
}

static enum status load_json(const struct checkpoint_files *f, const char *name, struct jdoc **out,
                             struct err *err)
{
    char path[PATH_MAX];
    enum status st = checkpoint_files_path(f->dir, name, path, err);
    if (st == OK)
        st = jdoc_load(path, out, err);
    return st;
}

/* ---- files ---- */

static int32_t find_file(const struct checkpoint_files *f, const char *name)
{
    for (int32_t i = f->file_count - 1; i >= 0; i--) { /* the last one is the likely one */
        if (strcmp(f->files[i].name, name) == 0)
            return i;
    }
    return -1;
}

/* `by`: which file named it, for messages. */
static enum status add_file(struct checkpoint_files *f, const char *name, int32_t rank,
                            const char *by, struct err *err)
{
    char path[PATH_MAX], shown[PATH_MAX];
    if (!plain_basename(name))
        return base_fail(err, ERR_MODEL,
                         "%.200s/%s: names the file \"%.100s\"; expected a plain name in the same "
                         "directory",
                         f->dir, by, name);
    if (f->file_count == CHECKPOINT_FILES_MAX)
        return base_fail(err, ERR_MODEL, "%.200s/%s: names more than %d files", f->dir, by,
                         CHECKPOINT_FILES_MAX);
    if (!exists(f, name))
        return base_fail(err, ERR_MODEL, "%.200s: %s names %.100s, which is missing", f->dir, by,
                         name);
    enum status st = checkpoint_files_path(f->dir, name, path, err);
    if (st != OK)
        return st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return base_fail_errno(err, ERR_IO, "%.300s", path);
    struct checkpoint_file *file = &f->files[f->file_count];
    snprintf(shown, sizeof shown, "%s/%s", f->dir, name);
    st = safetensors_adopt(fd, shown, &file->st, err);
    if (st != OK)
        return st;
    file->rank = rank;
    file->name = strdup(name);
    f->file_count++;
    return file->name ? OK : no_memory(f, err);
}

/* Files of the given pattern that nothing names are leftovers of another checkpoint. */
static enum status refuse_strays(const struct checkpoint_files *f, const char *pattern,
                                 const char *by, struct err *err)
{
    enum status st = OK;
    DIR *dir = opendir(f->dir);
    if (!dir)
        return base_fail_errno(err, ERR_IO, "%s", f->dir);
    for (struct dirent *d = readdir(dir); d && st == OK; d = readdir(dir)) {
        if (fnmatch(pattern, d->d_name, 0) == 0 && find_file(f, d->d_name) < 0)
            st = base_fail(err, ERR_MODEL, "%s: extra file %s is not named by %s", f->dir,
                           d->d_name, by);
    }
    closedir(dir);
    return st;
}

/* ---- pieces ---- */

static enum status reserve_pieces(struct checkpoint_files *f, struct err *err)
{
    size_t n = 1;
    for (int32_t i = 0; i < f->file_count; i++)
        for (int32_t k = 0; k < f->files[i].st.count; k++)
            n += 1 + (size_t)checkpoint_views_count(&f->files[i].st.entries[k]);
    f->pieces = n > INT32_MAX ? NULL : calloc(n, sizeof *f->pieces);
    if (f->pieces)
        return OK;
    no_memory(f, err);
    return ERR_NOMEM;
}

static void whole_shape(const struct safetensors_entry *e, int64_t shape[2])
{
    const int32_t rows = e->ndim > 2 ? 2 : e->ndim - 1; /* so many sizes multiply to that of rows */
    shape[0] = 1;
    shape[1] = 1;
    for (int32_t d = 0; d < e->ndim; d++)
        shape[d >= rows] = e->bytes == 0 && e->ndim > 2 ? 0 : shape[d >= rows] * e->shape[d];
}

/* Checkpoints of a language model with others beside it say so in front of its tensors' names, in
 * one of two ways: language_model.model.X or model.language_model.X is model.X. Those of a model
 * without a head have nothing in front, or but the first of these: X is model.X, which is then in
 * `room`. */
const char *checkpoint_files_name(const char *name, char room[PLACEMENT_NAME_MAX])
{
    static const char before[] = "language_model.", inside[] = "model.language_model.";
    if (strncmp(name, before, sizeof before - 1) == 0 ||
        strncmp(name, inside, sizeof inside - 1) == 0)
        name += sizeof before - 1;
    const bool bare = strncmp(name, "layers.", 7) == 0 ||
                      strcmp(name, "embed_tokens.weight") == 0 || strcmp(name, "norm.weight") == 0;
    if (bare && snprintf(room, PLACEMENT_NAME_MAX, "model.%s", name) < PLACEMENT_NAME_MAX)
        return room;
    return name;
}

static enum status add_piece(struct checkpoint_files *f, int32_t file,
                             const struct safetensors_entry *e, const int64_t shape[2],
                             struct placement_box box, struct err *err)
{
    char room[PLACEMENT_NAME_MAX];
    const char *name = checkpoint_files_name(e->name, room);
    char *own = name == room ? strdup(room) : NULL;
    if (name == room && !own)
        return base_fail(err, ERR_NOMEM, "%.200s: no memory for names of tensors", f->dir);
    f->pieces[f->piece_count++] = (struct checkpoint_piece){
        .name = own ? own : name,
        .name_in_file = e->name,
        .own = own,
        .dtype = e->dtype,
        .ndim = e->ndim,
        .shape = {shape[0], shape[1]},
        .dims = f->ranks == 0 ? e->shape : NULL,
        .box = box,
        .offset = e->offset,
        .file = file,
        .rank = f->files[file].rank,
    };
    return OK;
}

/* The pieces that a tensor of another shape is seen as. */
static enum status add_views(struct checkpoint_files *f, int32_t file,
                             const struct safetensors_entry *e, struct err *err)
{
    char room[PLACEMENT_NAME_MAX];
    const char *name = checkpoint_files_name(e->name, room);
    const int32_t count = checkpoint_views_count(e);
    for (int32_t i = 0; i < count; i++) {
        struct checkpoint_view v;
        if (!checkpoint_views_get(e, name, i, &v))
            return base_fail(err, ERR_MODEL, "%.200s: the name of tensor %.120s is too long",
                             f->dir, e->name);
        char *own = strdup(v.name);
        if (!own)
            return no_memory(f, err);
        f->pieces[f->piece_count++] = (struct checkpoint_piece){
            .name = own,
            .name_in_file = e->name,
            .own = own,
            .dtype = e->dtype,
            .ndim = v.ndim,
            .shape = {v.shape[0], v.shape[1]},
            .column = v.ndim == 1 ? e->shape : NULL,
            .box = {{0, v.shape[0]}, {0, v.shape[1]}},
            .offset = e->offset + v.offset,
            .file = file,
            .rank = f->files[file].rank,
        };
    }
    return OK;
}

static int by_name(const void *a, const void *b)
{
    const struct checkpoint_piece *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    if (order == 0)
        order = x->rank - y->rank;
    return order ? order : x->file - y->file;
}

static enum status add_whole_tensors(struct checkpoint_files *f, struct err *err)
{
    enum status st = reserve_pieces(f, err);
    if (st != OK)
        return st;
    for (int32_t i = 0; i < f->file_count; i++) {
        for (int32_t k = 0; k < f->files[i].st.count; k++) {
            const struct safetensors_entry *e = &f->files[i].st.entries[k];
            int64_t shape[2];
            whole_shape(e, shape);
            const struct placement_box whole = {{0, shape[0]}, {0, shape[1]}};
            st = checkpoint_views_count(e) > 0 ? add_views(f, i, e, err)
                                               : add_piece(f, i, e, shape, whole, err);
            if (st != OK)
                return st;
        }
    }
    qsort(f->pieces, (size_t)f->piece_count, sizeof *f->pieces, by_name);
    for (int32_t i = 1; i < f->piece_count; i++) {
        const struct checkpoint_piece *a = &f->pieces[i - 1], *b = &f->pieces[i];
        if (strcmp(a->name, b->name) == 0)
            return base_fail(
                err, ERR_MODEL,
                "%.120s: duplicate tensor %.80s: it is %.80s in %.60s and %.80s in %.60s", f->dir,
                a->name, a->name_in_file, f->files[a->file].name, b->name_in_file,
                f->files[b->file].name);
    }
    return OK;
}

/* A piece of that name; NULL: there is none. */
static const struct checkpoint_piece *find_piece(const struct checkpoint_files *f, const char *name)
{
    int32_t low = 0, high = f->piece_count;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (strcmp(f->pieces[mid].name, name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    const bool found = low < f->piece_count && strcmp(f->pieces[low].name, name) == 0;
    return found ? &f->pieces[low] : NULL;
}

/* ---- form 1: one file ---- */

static enum status open_single(struct checkpoint_files *f, struct err *err)
{
    enum status st = add_file(f, SINGLE, 0, "the directory", err);
    return st == OK ? add_whole_tensors(f, err) : st;
}

/* ---- form 2: an index over several files ---- */

static enum status index_files(struct checkpoint_files *f, const struct jdoc *map, struct err *err)
{
    const char *tensor;
    const struct jdoc *file;
    for (void *i = jdoc_iter(map, NULL, &tensor, &file); i; i = jdoc_iter(map, i, &tensor, &file)) {
        if (jdoc_type(file) != JDOC_STRING)
            return base_fail(err, ERR_MODEL,
                             "%.200s/" INDEX ": expected weight_map to hold strings, found %s",
                             f->dir, jdoc_type_name(jdoc_type(file)));
        if (find_file(f, jdoc_string(file)) >= 0)
            continue;
        enum status st = add_file(f, jdoc_string(file), 0, INDEX, err);
        if (st != OK)
            return st;
    }
    return refuse_strays(f, "model-[0-9]*-of-[0-9]*.safetensors", INDEX, err);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Every tensor of the map is in a file. */
static enum status index_is_there(const struct checkpoint_files *f, const struct jdoc *map,
                                  struct err *err)
{
    enum status st = OK;
    const char *tensor;
    const struct jdoc *file;
    const size_t n = (size_t)f->piece_count;
    const char **names = calloc(n + 1, sizeof *names); /* of the files */
    if (!names)
        return no_memory(f, err);
    for (size_t i = 0; i < n; i++)
        names[i] = f->pieces[i].name_in_file;
    qsort(names, n, sizeof *names, by_text);
    void *i = jdoc_iter(map, NULL, &tensor, &file);
    for (; i && st == OK; i = jdoc_iter(map, i, &tensor, &file))
        if (!bsearch(&tensor, names, n, sizeof *names, by_text))
            st = base_fail(err, ERR_MODEL,
                           "%.200s/" INDEX ": tensor %.100s: expected in %.80s, which lacks it",
                           f->dir, tensor, jdoc_string(file));
    free(names);
    return st;
}

/* The map and the headers name the same tensors in the same files. */
static enum status index_agrees(const struct checkpoint_files *f, const struct jdoc *map,
                                struct err *err)
{
    for (int32_t i = 0; i < f->piece_count; i++) {
        const struct checkpoint_piece *p = &f->pieces[i];
        const struct jdoc *file = jdoc_get(map, p->name_in_file);
        if (!file)
            return base_fail(err, ERR_MODEL, "%.200s/%s: tensor %.100s is not in " INDEX, f->dir,
                             f->files[p->file].name, p->name_in_file);
        if (strcmp(jdoc_string(file), f->files[p->file].name) != 0)
            return base_fail(err, ERR_MODEL,
                             "%.200s/" INDEX ": tensor %.100s: expected in %.80s, found in %s",
                             f->dir, p->name_in_file, jdoc_string(file), f->files[p->file].name);
    }
    return index_is_there(f, map, err);
}

static enum status open_index(struct checkpoint_files *f, struct err *err)
{
    enum status st = OK;
    struct jdoc *root = NULL;
    TRY(load_json(f, INDEX, &root, err));
    const struct jdoc *map = jdoc_member(root, "weight_map", JDOC_OBJECT);
    if (!map) {
        st = base_fail(err, ERR_MODEL, "%.200s/" INDEX ": expected an object \"weight_map\"",
                       f->dir);
        goto out;
    }
    TRY(index_files(f, map, err));
    TRY(add_whole_tensors(f, err));
    TRY(index_agrees(f, map, err));
out:
    jdoc_close(root);
    return st;
}

/* ---- form 3: our sharded form ---- */

/* files: one array of names per rank. */
static enum status shard_files(struct checkpoint_files *f, const struct jdoc *root, struct err *err)
{
    const struct jdoc *version = jdoc_member(root, "version", JDOC_INT);
    const struct jdoc *files = jdoc_member(root, "files", JDOC_ARRAY);
    if (!version || jdoc_int(version) != 1)
        return base_fail(err, ERR_MODEL, "%.200s/" SHARDS ": expected \"version\": 1", f->dir);
    if (!files || jdoc_size(files) == 0 || jdoc_size(files) > CHECKPOINT_FILES_MAX)
        return base_fail(err, ERR_MODEL,
                         "%.200s/" SHARDS ": expected \"files\" to be an array of 1 to %d ranks",
                         f->dir, CHECKPOINT_FILES_MAX);
    f->ranks = (int32_t)jdoc_size(files);
    for (int32_t r = 0; r < f->ranks; r++) {
        const struct jdoc *names = jdoc_at(files, (size_t)r);
        size_t n = jdoc_type(names) == JDOC_ARRAY ? jdoc_size(names) : 0;
        for (size_t i = 0; i < n; i++) {
            const struct jdoc *name = jdoc_at(names, i);
            if (jdoc_type(name) != JDOC_STRING || find_file(f, jdoc_string(name)) >= 0)
                return base_fail(err, ERR_MODEL,
                                 "%.200s/" SHARDS ": files[%d][%zu]: expected a new file name",
                                 f->dir, r, i);
            enum status st = add_file(f, jdoc_string(name), r, SHARDS, err);
            if (st != OK)
                return st;
        }
        if (n == 0)
            return base_fail(err, ERR_MODEL, "%.200s/" SHARDS ": files[%d]: expected file names",
                             f->dir, r);
    }
    return refuse_strays(f, "model-rank-*.safetensors", SHARDS, err);
}

/* DCP_SHARDING_INFO of one file: an object of {"saved_offsets": [...]} by tensor. */
static enum status sharding_info(const struct checkpoint_file *file, struct jdoc **out,
                                 struct err *err)
{
    enum status st = OK;
    struct jdoc *metadata = NULL;
    const char *text = file->st.metadata ? file->st.metadata : "{}";
    TRY(jdoc_parse(text, strlen(text), &jdoc_limits_file, file->st.path, &metadata, err));
    const struct jdoc *info = jdoc_member(metadata, "DCP_SHARDING_INFO", JDOC_STRING);
    if (!info) {
        st = base_fail(err, ERR_MODEL, "%s: expected metadata DCP_SHARDING_INFO", file->st.path);
        goto out;
    }
    TRY(jdoc_parse(jdoc_string(info), jdoc_string_len(info), &jdoc_limits_file, file->st.path, out,
                   err));
out:
    jdoc_close(metadata);
    return st == ERR_INPUT ? ERR_MODEL : st;
}

/* [], [n] or [rows, cols] as two numbers >= 0, `fill` standing for those that are not there. */
static bool pair(const struct jdoc *v, int32_t ndim, int64_t fill, int64_t out[2])
{
    if (!v || jdoc_size(v) != (size_t)ndim || ndim < 0 || ndim > 2)
        return false;
    out[0] = out[1] = fill;
    for (int32_t d = 0; d < ndim; d++) {
        const struct jdoc *x = jdoc_at(v, (size_t)d);
        if (jdoc_type(x) != JDOC_INT || jdoc_int(x) < 0)
            return false;
        out[2 - ndim + d] = jdoc_int(x);
    }
    return true;
}

/* One tensor of one rank's file: what shards.json says of the whole, and this part's offsets. */
static enum status add_shard_piece(struct checkpoint_files *f, int32_t file,
                                   const struct safetensors_entry *e, const struct jdoc *tensors,
                                   const struct jdoc *info, struct err *err)
{
    const char *path = f->files[file].st.path;
    const struct jdoc *whole = jdoc_member(tensors, e->name, JDOC_OBJECT);
    const struct jdoc *dtype = jdoc_member(whole, "dtype", JDOC_STRING);
    const struct jdoc *offsets =
        jdoc_member(jdoc_member(info, e->name, JDOC_OBJECT), "saved_offsets", JDOC_ARRAY);
    int64_t shape[2], at[2], size[2];
    whole_shape(e, size);
    if (!whole)
        return base_fail(err, ERR_MODEL, "%.200s: tensor %.100s is not in " SHARDS, path, e->name);
    if (!dtype || strcmp(jdoc_string(dtype), dtype_name(e->dtype)) != 0)
        return base_fail(err, ERR_MODEL, "%.200s: tensor %.100s: expected %.20s, found %s", path,
                         e->name, dtype ? jdoc_string(dtype) : "a dtype in " SHARDS,
                         dtype_name(e->dtype));
    if (!pair(jdoc_member(whole, "shape", JDOC_ARRAY), e->ndim, 1, shape) ||
        !pair(offsets, e->ndim, 0, at))
        return base_fail(err, ERR_MODEL,
                         "%.200s: tensor %.100s: expected a shape in " SHARDS
                         " and saved_offsets of %d dimensions",
                         path, e->name, e->ndim);
    for (int d = 0; d < 2; d++) {
        if (at[d] > shape[d] || size[d] > shape[d] - at[d])
            return base_fail(err, ERR_MODEL,
                             "%.200s: tensor %.100s: its part [%lld, +%lld) is outside the whole "
                             "tensor's %lld",
                             path, e->name, (long long)at[d], (long long)size[d],
                             (long long)shape[d]);
    }
    return add_piece(f, file, e, shape,
                     (struct placement_box){{at[0], at[0] + size[0]}, {at[1], at[1] + size[1]}},
                     err);
}

static enum status add_shard_pieces(struct checkpoint_files *f, const struct jdoc *tensors,
                                    struct err *err)
{
    enum status st = reserve_pieces(f, err);
    for (int32_t i = 0; i < f->file_count && st == OK; i++) {
        struct jdoc *info = NULL;
        st = sharding_info(&f->files[i], &info, err);
        for (int32_t k = 0; k < f->files[i].st.count && st == OK; k++)
            st = add_shard_piece(f, i, &f->files[i].st.entries[k], tensors, info, err);
        jdoc_close(info);
    }
    if (st == OK)
        qsort(f->pieces, (size_t)f->piece_count, sizeof *f->pieces, by_name);
    return st;
}

static enum status open_shards(struct checkpoint_files *f, struct err *err)
{
    enum status st = OK;
    struct jdoc *root = NULL;
    const char *tensor;
    const struct jdoc *value;
    char room[PLACEMENT_NAME_MAX];
    TRY(load_json(f, SHARDS, &root, err));
    const struct jdoc *tensors = jdoc_member(root, "tensors", JDOC_OBJECT);
    if (!tensors) {
        st = base_fail(err, ERR_MODEL, "%.200s/" SHARDS ": expected an object \"tensors\"", f->dir);
        goto out;
    }
    TRY(shard_files(f, root, err));
    TRY(add_shard_pieces(f, tensors, err));
    void *i = jdoc_iter(tensors, NULL, &tensor, &value);
    for (; i && st == OK; i = jdoc_iter(tensors, i, &tensor, &value)) {
        const struct checkpoint_piece *p = find_piece(f, checkpoint_files_name(tensor, room));
        if (!p || strcmp(p->name_in_file, tensor) != 0)
            st = base_fail(err, ERR_MODEL, "%.200s/" SHARDS ": tensor %.100s is in no rank's file",
                           f->dir, tensor);
    }
out:
    jdoc_close(root);
    return st;
}

/* ---- */

static enum status nothing_found(const struct checkpoint_files *f, struct err *err)
{
    bool pickles = exists(f, "pytorch_model.bin") || exists(f, "pytorch_model.bin.index.json");
    return base_fail(
        err, ERR_MODEL, "%.200s: no checkpoint: looked for " SHARDS ", " SINGLE " and " INDEX "%s",
        f->dir, pickles ? "; pytorch_model.bin is a pickle, convert it to safetensors" : "");
}

static enum status open_any(struct checkpoint_files *f, struct err *err)
{
    struct stat sb;
    if (strlen(f->dir) + NAME_MAX + 2 > PATH_MAX)
        return base_fail(err, ERR_MODEL, "%.200s...: path too long", f->dir);
    if (stat(f->dir, &sb) != 0)
        return base_fail_errno(err, ERR_MODEL, "%.300s: expected a model directory", f->dir);
    if (!S_ISDIR(sb.st_mode))
        return base_fail(err, ERR_MODEL, "%.300s: expected a model directory, found a file",
                         f->dir);
    f->files = calloc(CHECKPOINT_FILES_MAX, sizeof *f->files);
    if (!f->files)
        return no_memory(f, err);
    if (exists(f, SHARDS))
        return open_shards(f, err);
    if (exists(f, SINGLE)) /* before the index, as transformers does */
        return open_single(f, err);
    if (exists(f, INDEX))
        return open_index(f, err);
    return nothing_found(f, err);
}

enum status checkpoint_files_open(const char *dir, struct checkpoint_files *out, struct err *err)
{
    struct checkpoint_files f = {.dir = strdup(dir)};
    if (!f.dir)
        return base_fail(err, ERR_NOMEM, "%s: no memory", dir);
    enum status st = open_any(&f, err);
    if (st != OK) {
        checkpoint_files_close(&f);
        return st;
    }
    *out = f;
    return OK;
}

void checkpoint_files_close(struct checkpoint_files *f)
{
    for (int32_t i = 0; i < f->file_count; i++) {
        safetensors_close(&f->files[i].st);
        free(f->files[i].name);
    }
    for (int32_t i = 0; i < f->piece_count; i++)
        free(f->pieces[i].own);
    free(f->files);
    free(f->pieces);
    free(f->dir);
    *f = (struct checkpoint_files){0};
}
