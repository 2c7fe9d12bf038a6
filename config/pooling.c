/* DESIGN: what is not the last token's hidden state is refused by its key: a vector that is nearly
 * right finds nearly the right texts, and nobody sees why. */
#include "config/pooling.h"

#include "config/reader.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MODULES_MAX 16

/* "lasttoken" as older files say it, a flag for each way; newer ones name it. */
static void expect_last_token(struct reader *r)
{
    static const char *const others[] = {
        "pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_max_tokens",
        "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens"};
    const struct jdoc *mode = jdoc_get_value(r->object, "pooling_mode");
    const bool list = mode && jdoc_type(mode) == JDOC_ARRAY && jdoc_size(mode) == 1;
    const struct jdoc *way = list ? jdoc_at(mode, 0) : mode;
    if (way) {
        if (jdoc_type(way) != JDOC_STRING || strcmp(jdoc_string(way), "lasttoken") != 0)
            reader_fail(r, "pooling_mode", "\"lasttoken\"");
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (reader_bool(r, others[i], false))
            reader_fail(r, others[i], "false (only pooling_mode_lasttoken is supported)");
    if (!reader_bool(r, "pooling_mode_lasttoken", false))
        reader_fail(r, "pooling_mode_lasttoken", "true (no other way is supported)");
}

static enum status read_pooling(const char *dir, const char *folder, struct err *err)
{
    char path[PATH_MAX];
    struct jdoc *doc = NULL;
    if (snprintf(path, sizeof path, "%s/%s/config.json", dir, folder) >= (int)sizeof path)
        return base_fail(err, ERR_MODEL, "%.100s...: path too long", dir);
    enum status st = jdoc_load(path, &doc, err);
    if (st != OK)
        return st == ERR_NOMEM ? st : ERR_MODEL;
    struct reader r = {path, doc, err, OK};
    if (jdoc_type(doc) == JDOC_OBJECT)
        expect_last_token(&r);
    else
        r.st = base_fail(err, ERR_MODEL, "%s: expected a JSON object", path);
    jdoc_close(doc);
    return r.st;
}

/* A folder's name inside the directory. */
static bool is_folder(const char *path)
{
    return *path && *path != '.' && !strchr(path, '/') && strlen(path) < POOLING_NAME_MAX;
}

static enum status read_module(struct reader *r, const char *dir, struct pooling *out)
{
    const char *type = reader_string(r, "type"), *path = reader_string(r, "path");
    if (r->st != OK)
        return r->st;
    const char *dot = type ? strrchr(type, '.') : NULL, *kind = dot ? dot + 1 : "";
    const bool pooling = strcmp(kind, "Pooling") == 0 && path && is_folder(path);
    const bool transformer = strcmp(kind, "Transformer") == 0 && !(path && *path);
    const bool normalize = strcmp(kind, "Normalize") == 0;
    out->normalize = out->normalize || normalize;
    if (pooling) {
        snprintf(out->folder, sizeof out->folder, "%s", path);
        r->st = read_pooling(dir, path, r->err);
    }
    if (!pooling && !transformer && !normalize)
        reader_fail(r, "type",
                    "a Transformer in the directory itself, a Pooling in a folder of its own, a "
                    "Normalize (other modules are not supported)");
    return r->st;
}

static enum status read_modules(const struct jdoc *doc, const char *where, const char *dir,
                                struct pooling *out, struct err *err)
{
    enum status st = OK;
    const size_t count = jdoc_type(doc) == JDOC_ARRAY ? jdoc_size(doc) : 0;
    if (count < 1 || count > MODULES_MAX)
        return base_fail(err, ERR_MODEL, "%s: expected a list of 1 to %d modules", where,
                         MODULES_MAX);
    for (size_t i = 0; i < count; i++) {
        struct reader r = {where, jdoc_at(doc, i), err, OK};
        if (jdoc_type(r.object) != JDOC_OBJECT)
            return base_fail(err, ERR_MODEL, "%s: expected an object for each module", where);
        TRY(read_module(&r, dir, out));
    }
    if (!out->folder[0])
        st = base_fail(err, ERR_MODEL, "%s: expected a Pooling among the modules", where);
out:
    return st;
}

/* A JSON object of the directory; *doc NULL: there is no such file. The caller closes it. */
static enum status load_object(const char *dir, const char *name, char path[PATH_MAX],
                               struct jdoc **doc, struct err *err)
{
    struct stat sb;
    *doc = NULL;
    if (snprintf(path, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        return base_fail(err, ERR_MODEL, "%.100s...: path too long", dir);
    if (lstat(path, &sb) != 0 && errno == ENOENT) /* a link to nothing is a file that is missing */
        return OK;
    enum status st = jdoc_load(path, doc, err);
    if (st != OK)
        return st == ERR_NOMEM ? st : ERR_MODEL;
    if (jdoc_type(*doc) == JDOC_OBJECT)
        return OK;
    jdoc_close(*doc);
    *doc = NULL;
    return base_fail(err, ERR_MODEL, "%s: expected a JSON object", path);
}

static enum status read_texts(const char *dir, struct pooling *out, struct err *err)
{
    char path[PATH_MAX];
    struct jdoc *doc = NULL;
    enum status st = load_object(dir, "sentence_bert_config.json", path, &doc, err);
    struct reader r = {path, doc, err, st};
    if (doc && reader_bool(&r, "do_lower_case", false))
        reader_fail(&r, "do_lower_case", "false (texts are read as they are)");
    if (doc && jdoc_get_value(doc, "max_seq_length"))
        out->longest = reader_int(&r, "max_seq_length", 1, 1 << 24, 0);
    jdoc_close(doc);
    return r.st;
}

static enum status read_prompt(const char *dir, struct pooling *out, struct err *err)
{
    char path[PATH_MAX];
    struct jdoc *doc = NULL;
    enum status st = load_object(dir, "config_sentence_transformers.json", path, &doc, err);
    struct reader r = {path, doc, err, st};
    const char *name = doc ? reader_string(&r, "default_prompt_name") : NULL;
    const struct jdoc *all = name ? jdoc_get(doc, "prompts") : NULL;
    const struct jdoc *text = name ? jdoc_member(all, name, JDOC_STRING) : NULL;
    if (text && jdoc_string_len(text) > 0)
        snprintf(out->prompt, sizeof out->prompt, "%s", name);
    jdoc_close(doc);
    return r.st;
}

enum status pooling_load(const char *dir, struct pooling *out, struct err *err)
{
    enum status st = OK;
    char path[PATH_MAX];
    struct stat sb;
    struct jdoc *doc = NULL;
    *out = (struct pooling){.normalize = true};
    if (snprintf(path, sizeof path, "%s/" POOLING_MODULES, dir) >= (int)sizeof path)
        return base_fail(err, ERR_MODEL, "%.100s...: path too long", dir);
    if (lstat(path, &sb) != 0 && errno == ENOENT)
        return OK;
    st = jdoc_load(path, &doc, err);
    if (st != OK)
        return st == ERR_NOMEM ? st : ERR_MODEL;
    *out = (struct pooling){.found = true};
    TRY(read_modules(doc, path, dir, out, err));
    TRY(read_texts(dir, out, err));
    TRY(read_prompt(dir, out, err));
out:
    jdoc_close(doc);
    return st;
}
