/* DESIGN: an adapter is read by rules first, values later, as a checkpoint is (lora_apply.c has the
 * values). Sorted by names the two halves of a pair are neighbours, and sorted by tensors all that
 * is done to one. Invariant: each tensor of an adapter is one of a pair that is added or replaces
 * one of the model, or the adapter is refused. */
#include "weights/lora.h"

#include "config/lora_config.h"
#include "weights/checkpoint_files.h"
#include "weights/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_NAME "adapter_model.safetensors"
#define PICKLE "adapter_model.bin"
#define PREFIX "base_model.model."
#define END_A ".lora_A.weight"
#define END_B ".lora_B.weight"
#define SCALE_MAX 1e6

struct adapter {
    char *dir;
    double scale; /* of the list */
    struct lora_config config;
    struct safetensors st;
};

struct lora {
    struct adapter adapters[LORA_ADAPTERS_MAX];
    int32_t adapter_count;
    struct lora_part *parts;
    int32_t count;
};

/* ---- the list ---- */

static bool is_directory(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

double lora_cut_scale(char *item)
{
    char *colon = strrchr(item, ':'), *end;
    if (!colon || colon[1] == '\0' || is_directory(item) ||
        strspn(colon + 1, "+-.0123456789eE") != strlen(colon + 1))
        return 1;
    const double scale = strtod(colon + 1, &end);
    if (*end != '\0')
        return 1;
    *colon = '\0';
    return scale;
}

static enum status cut_list(struct lora *l, const char *list, struct err *err)
{
    if (strlen(list) > LORA_LIST_MAX)
        return base_fail(err, ERR_USAGE, "--lora: got %zu bytes, expected %d or fewer",
                         strlen(list), LORA_LIST_MAX);
    for (const char *c = list, *end; c; c = *end ? end + 1 : NULL) {
        end = c + strcspn(c, ",");
        if (l->adapter_count == LORA_ADAPTERS_MAX)
            return base_fail(err, ERR_USAGE, "--lora: more than %d adapters", LORA_ADAPTERS_MAX);
        struct adapter *a = &l->adapters[l->adapter_count];
        a->dir = strndup(c, (size_t)(end - c));
        if (!a->dir)
            return base_fail(err, ERR_NOMEM, "--lora: no memory");
        l->adapter_count++;
        a->scale = lora_cut_scale(a->dir);
        if (a->dir[0] == '\0' || !(fabs(a->scale) <= SCALE_MAX))
            return base_fail(
                err, ERR_USAGE,
                "--lora: got \"%.80s\", expected DIR or DIR:SCALE, several with commas "
                "between",
                list);
    }
    return OK;
}

/* ---- one adapter ---- */

static enum status open_files(struct adapter *a, struct err *err)
{
    char path[PATH_MAX];
    struct stat sb;
    if (!is_directory(a->dir))
        return base_fail(err, ERR_MODEL,
                         "--lora %.200s: no such directory; expected one that PEFT has saved, "
                         "with " LORA_CONFIG_NAME " and " FILE_NAME,
                         a->dir);
    if (snprintf(path, sizeof path, "%s/" LORA_CONFIG_NAME, a->dir) < (int)sizeof path &&
        stat(path, &sb) != 0)
        return base_fail(err, ERR_MODEL,
                         "--lora %.200s: no " LORA_CONFIG_NAME " in it; expected a directory that "
                         "PEFT has saved (of an adapter with a name it is DIR/NAME)",
                         a->dir);
    enum status st = lora_config_load(a->dir, &a->config, err);
    if (st != OK)
        return st;
    if (snprintf(path, sizeof path, "%s/" FILE_NAME, a->dir) < (int)sizeof path &&
        stat(path, &sb) != 0 && snprintf(path, sizeof path, "%s/" PICKLE, a->dir) > 0 &&
        stat(path, &sb) == 0)
        return base_fail(err, ERR_MODEL,
                         "%.200s: pickled files are not read, as they can run code; save the "
                         "adapter as " FILE_NAME,
                         path);
    st = checkpoint_files_path(a->dir, FILE_NAME, path, err);
    return st == OK ? safetensors_open(path, &a->st, err) : st;
}

static enum status refuse(const struct adapter *a, const char *name, const char *why,
                          struct err *err)
{
    return base_fail(err, ERR_MODEL, "%.200s: tensor %.100s %s", a->st.path, name, why);
}

/* What is neither one of a pair nor whole. */
static enum status check_known(const struct adapter *a, const char *name, struct err *err)
{
    if (base_ends_with(name, END_A) || base_ends_with(name, END_B) || !strstr(name, "lora_"))
        return OK;
    const char *why = "is not the weight of a lora_A or lora_B, which alone are supported";
    if (strstr(name, "lora_embedding_"))
        why = "adapts an embedding, which is not supported";
    else if (strstr(name, "lora_magnitude"))
        why = "is one of DoRA, which is not supported";
    return refuse(a, name, why, err);
}

static int by_name(const void *x, const void *y)
{
    const struct safetensors_entry *const *a = x, *const *b = y;
    return strcmp((*a)->name, (*b)->name);
}

static enum status check_type(const struct adapter *a, const struct safetensors_entry *e,
                              int32_t least_ndim, struct err *err)
{
    if (e->ndim < least_ndim || e->ndim > 2)
        return refuse(a, e->name, least_ndim == 2 ? "is no matrix" : "is no matrix or vector", err);
    if (!dtype_is_compute(e->dtype))
        return base_fail(err, ERR_MODEL, "%.200s: tensor %.100s is %s, expected F32, F16 or BF16",
                         a->st.path, e->name, dtype_name(e->dtype));
    return OK;
}

/* A part for what the first n bytes of a tensor's name say; module: the same as the model has it,
 * without what PEFT puts in front, and without the level that it puts between. NULL, reported: it
 * is too long or too short. */
static struct lora_part *new_part(struct lora *l, int32_t adapter, const char *name, size_t n,
                                  char module[PLACEMENT_NAME_MAX], struct err *err)
{
    static const char level[] = ".base_layer";
    const size_t before = strncmp(name, PREFIX, sizeof PREFIX - 1) == 0 ? sizeof PREFIX - 1 : 0;
    if (n <= before || n - before > PLACEMENT_NAME_MAX - sizeof ".weight") {
        (void)refuse(&l->adapters[adapter], name, "has a name that no tensor of a model has", err);
        return NULL;
    }
    snprintf(module, PLACEMENT_NAME_MAX, "%.*s", (int)(n - before), name + before);
    char *found = strstr(module, level), *behind = found ? found + sizeof level - 1 : NULL;
    if (found && (*behind == '.' || *behind == '\0'))
        memmove(found, behind, strlen(behind) + 1);
    struct lora_part *p = &l->parts[l->count++];
    *p = (struct lora_part){.adapter = adapter};
    return p;
}

static void name_part(struct lora_part *p, const char *name)
{
    char room[PLACEMENT_NAME_MAX];
    snprintf(p->tensor, sizeof p->tensor, "%s", checkpoint_files_name(name, room));
}

static enum status add_whole(struct lora *l, int32_t adapter, const struct safetensors_entry *e,
                             struct err *err)
{
    enum status st = OK;
    char module[PLACEMENT_NAME_MAX];
    TRY(check_type(&l->adapters[adapter], e, 1, err));
    struct lora_part *p = new_part(l, adapter, e->name, strlen(e->name), module, err);
    if (!p)
        return ERR_MODEL;
    p->ndim = e->ndim;
    p->rows = e->ndim == 2 ? e->shape[0] : 1;
    p->cols = e->shape[e->ndim - 1];
    p->whole = e;
    name_part(p, module);
out:
    return st;
}

/* MODULE.lora_A.weight and its lora_B. */
static enum status add_pair(struct lora *l, int32_t adapter, const struct safetensors_entry *a,
                            const struct safetensors_entry *b, struct err *err)
{
    enum status st = OK;
    const struct adapter *own = &l->adapters[adapter];
    char module[PLACEMENT_NAME_MAX], name[PLACEMENT_NAME_MAX + 8];
    TRY(check_type(own, a, 2, err));
    TRY(check_type(own, b, 2, err));
    struct lora_part *p =
        new_part(l, adapter, a->name, strlen(a->name) - (sizeof END_A - 1), module, err);
    if (!p)
        return ERR_MODEL;
    if (!lora_config_targets(&own->config, module))
        return refuse(own, a->name, "is of a module that " LORA_CONFIG_NAME " has not as a target",
                      err);
    p->rank = lora_config_rank(&own->config, module);
    if (a->shape[0] != p->rank || b->shape[1] != p->rank)
        return base_fail(err, ERR_MODEL,
                         "%.200s: %.100s: lora_A is [%lld, %lld] and lora_B [%lld, %lld], expected "
                         "rank %d, as " LORA_CONFIG_NAME " says",
                         own->st.path, module, (long long)a->shape[0], (long long)a->shape[1],
                         (long long)b->shape[0], (long long)b->shape[1], p->rank);
    p->ndim = 2;
    p->rows = b->shape[0];
    p->cols = a->shape[1];
    p->scale = (float)(own->scale * lora_config_scale(&own->config, module));
    p->a = a;
    p->b = b;
    snprintf(name, sizeof name, "%s.weight", module);
    name_part(p, name);
out:
    return st;
}

/* Are they lora_A and lora_B of one module? */
static bool is_pair(const char *a, const char *b)
{
    return base_ends_with(a, END_A) && base_ends_with(b, END_B) && strlen(a) == strlen(b) &&
           strncmp(a, b, strlen(a) - (sizeof END_A - 1)) == 0;
}

/* In the order of names a lora_B is behind its lora_A. */
static enum status add_parts(struct lora *l, int32_t adapter, struct err *err)
{
    enum status st = OK;
    const struct adapter *a = &l->adapters[adapter];
    const size_t count = (size_t)a->st.count;
    const struct safetensors_entry **e = calloc(count + 1, sizeof *e);
    if (!e)
        return base_fail(err, ERR_NOMEM, "%.200s: no memory", a->st.path);
    for (size_t i = 0; i < count; i++)
        e[i] = &a->st.entries[i];
    qsort(e, count, sizeof *e, by_name);
    for (size_t i = 0; i < count; i++) {
        TRY(check_known(a, e[i]->name, err));
        if (!strstr(e[i]->name, "lora_"))
            TRY(add_whole(l, adapter, e[i], err));
        else if (i + 1 < count && is_pair(e[i]->name, e[i + 1]->name))
            TRY(add_pair(l, adapter, e[i], e[i + 1], err));
        else
            TRY(refuse(a, e[i]->name, "has no other half", err));
        i += base_ends_with(e[i]->name, END_A); /* its lora_B */
    }
    if (count == 0)
        st = base_fail(err, ERR_MODEL, "%.200s: no tensors in it", a->st.path);
out:
    free(e);
    return st;
}

/* ---- all of them ---- */

static int by_tensor(const void *x, const void *y)
{
    const struct lora_part *a = x, *b = y;
    int order = strcmp(a->tensor, b->tensor);
    if (order == 0)
        order = (a->whole == NULL) - (b->whole == NULL);
    return order ? order : a->adapter - b->adapter;
}

static enum status check_twice(const struct lora *l, struct err *err)
{
    for (int32_t i = 1; i < l->count; i++) {
        const struct lora_part *a = &l->parts[i - 1], *b = &l->parts[i];
        const bool same = strcmp(a->tensor, b->tensor) == 0;
        if (same && ((a->whole && b->whole) || by_tensor(a, b) == 0))
            return refuse(&l->adapters[b->adapter], b->whole ? b->whole->name : b->a->name,
                          "is for what another one is for, too", err);
    }
    return OK;
}

static enum status add_adapters(struct lora *l, struct err *err)
{
    enum status st = OK;
    size_t tensors = 0;
    for (int32_t i = 0; i < l->adapter_count; i++) {
        TRY(open_files(&l->adapters[i], err));
        tensors += (size_t)l->adapters[i].st.count;
    }
    l->parts = calloc(tensors + 1, sizeof *l->parts);
    if (!l->parts)
        return base_fail(err, ERR_NOMEM, "--lora: no memory for %zu tensors", tensors);
    for (int32_t i = 0; i < l->adapter_count; i++)
        TRY(add_parts(l, i, err));
    qsort(l->parts, (size_t)l->count, sizeof *l->parts, by_tensor);
    st = check_twice(l, err);
out:
    return st;
}

enum status lora_open(const char *list, struct lora **out, struct err *err)
{
    enum status st = OK;
    struct lora *l = calloc(1, sizeof *l);
    if (!l)
        return base_fail(err, ERR_NOMEM, "--lora: no memory");
    TRY(cut_list(l, list, err));
    TRY(add_adapters(l, err));
    *out = l;
    l = NULL;
out:
    lora_close(l);
    return st;
}

void lora_close(struct lora *l)
{
    for (int32_t i = 0; l && i < l->adapter_count; i++) {
        free(l->adapters[i].dir);
        lora_config_close(&l->adapters[i].config);
        safetensors_close(&l->adapters[i].st);
    }
    if (l)
        free(l->parts);
    free(l);
}

int32_t lora_count(const struct lora *l)
{
    return l->count;
}

const struct lora_part *lora_at(const struct lora *l, int32_t i)
{
    CHECK(i >= 0);
    CHECK(i < l->count);
    return &l->parts[i];
}

const char *lora_adapter(const struct lora *l, int32_t adapter)
{
    return l->adapters[adapter].dir;
}

uint64_t lora_stamp(const struct lora *l, uint64_t hash)
{
    for (int32_t i = 0; i < l->adapter_count; i++) {
        const struct safetensors *st = &l->adapters[i].st;
        hash = base_hash(hash, st->path, strlen(st->path) + 1);
        hash = base_hash(hash, &st->file_bytes, sizeof st->file_bytes);
        hash = base_hash(hash, &st->modified_ns, sizeof st->modified_ns);
    }
    for (int32_t i = 0; i < l->count; i++)
        hash = base_hash(hash, &l->parts[i].scale, sizeof l->parts[i].scale);
    return hash;
}

void lora_describe(const struct lora *l, struct buf *out)
{
    char size[32];
    for (int32_t i = 0; i < l->adapter_count; i++) {
        int32_t tensors = 0, rank = 0, whole = 0;
        for (int32_t k = 0; k < l->count; k++) {
            const struct lora_part *p = &l->parts[k];
            tensors += p->adapter == i && !p->whole;
            whole += p->adapter == i && p->whole;
            rank = p->adapter == i && p->rank > rank ? p->rank : rank;
        }
        buf_printf(out, "adapter %.200s: of rank %d, added to %d tensors", l->adapters[i].dir, rank,
                   tensors);
        if (whole > 0)
            buf_printf(out, ", in the place of %d", whole);
        if (l->adapters[i].scale != 1)
            buf_printf(out, ", times %g", l->adapters[i].scale);
        buf_printf(out, "; %s\n",
                   base_human_bytes(size, sizeof size, l->adapters[i].st.file_bytes));
    }
}

const struct safetensors *lora_file(const struct lora *l, int32_t adapter)
{
    return &l->adapters[adapter].st;
}

const struct lora_part *lora_find(const struct lora *l, const char *tensor, int32_t *count)
{
    int32_t low = 0, high = l->count;
    while (low < high) {
        const int32_t mid = low + (high - low) / 2;
        if (strcmp(l->parts[mid].tensor, tensor) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    for (*count = 0; low + *count < l->count; ++*count)
        if (strcmp(l->parts[low + *count].tensor, tensor) != 0)
            break;
    return *count > 0 ? &l->parts[low] : NULL;
}

bool lora_adapts(const struct lora *l, const char *tensor)
{
    int32_t count;
    return l && lora_find(l, tensor, &count);
}

bool lora_replaces(const struct lora *l, const char *tensor)
{
    int32_t count;
    const struct lora_part *first = l ? lora_find(l, tensor, &count) : NULL;
    return first && first->whole;
}
