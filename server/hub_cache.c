#include "server/hub_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { NAME_MAX_BYTES = 200, COMMIT_MAX_BYTES = 64 };

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

/* What the Hub lets a name be, as far as it matters: two words that lead nowhere else. */
static bool is_name(const char *name)
{
    const size_t org = strspn(name, letters);
    if (org == 0 || name[0] == '.' || name[org] != '/' || name[org + 1] == '.')
        return false;
    const size_t rest = strspn(name + org + 1, letters);
    return rest > 0 && name[org + 1 + rest] == '\0' && org + rest < NAME_MAX_BYTES;
}

/* Where the cache is; "" when nothing says it. */
static void find_root(char *root, size_t cap)
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    root[0] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        const char *value = getenv(places[i].variable);
        if (!value || !*value)
            continue;
        if (snprintf(root, cap, "%s%s", value, places[i].below) >= (int)cap)
            root[0] = '\0';
        return;
    }
}

/* The commit that refs/main names: letters and digits. */
static bool read_commit(const char *model, char commit[COMMIT_MAX_BYTES + 1])
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/refs/main", model) >= (int)sizeof path)
        return false;
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    const size_t n = fread(commit, 1, COMMIT_MAX_BYTES, f);
    fclose(f);
    commit[n] = '\0';
    commit[strcspn(commit, "\r\n")] = '\0';
    return commit[0] != '\0' && commit[0] != '.' && commit[strspn(commit, letters)] == '\0';
}

bool hub_cache_find(const char *name, char *path, size_t cap)
{
    char root[2048], model[3072], commit[COMMIT_MAX_BYTES + 1];
    struct stat sb;
    if (!is_name(name))
        return false;
    const int org = (int)(strchr(name, '/') - name);
    find_root(root, sizeof root);
    if (!*root || snprintf(model, sizeof model, "%s/models--%.*s--%s", root, org, name,
                           name + org + 1) >= (int)sizeof model)
        return false;
    if (!read_commit(model, commit))
        return false;
    return snprintf(path, cap, "%s/snapshots/%s", model, commit) < (int)cap &&
           stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

bool hub_cache_name(const char *path, char *name, size_t cap)
{
    static const char snapshots[] = "/snapshots/", prefix[] = "models--";
    const char *end = strstr(path, snapshots), *model = end;
    if (!end || strchr(end + sizeof snapshots - 1, '/'))
        return false;
    while (model > path && model[-1] != '/')
        model--;
    if (strncmp(model, prefix, sizeof prefix - 1) != 0)
        return false;
    model += sizeof prefix - 1;
    const char *between = strstr(model, "--");
    if (!between || between == model || between + 2 >= end)
        return false;
    return snprintf(name, cap, "%.*s/%.*s", (int)(between - model), model, (int)(end - between - 2),
                    between + 2) < (int)cap;
}
