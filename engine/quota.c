/* DESIGN: limits hold for all below a group, so the way up is walked; in a container that has a
 * view of its own the way is the root, and elsewhere a part of it may not be there to see. */
#include "engine/quota.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

typedef void quota_visit(void *ctx, const char *folder);

/* The first two words of a file; how many there are. */
static int read_words(const char *path, char first[32], char second[32])
{
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    const int n = fscanf(f, "%31s %31s", first, second);
    fclose(f);
    return n > 0 ? n : 0;
}

/* Microseconds of a period; 0: no limit. */
static double share_of(const char *quota, const char *period)
{
    const double q = strtod(quota, NULL), p = strtod(period, NULL); /* "max", "-1": none */
    return q > 0 && p > 0 ? q / p : 0;
}

/* What a group itself says. */
static double limit_of(const char *folder)
{
    char path[PATH_MAX + 32], quota[32], period[32], none[32];
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (read_words(path, quota, period) == 2)
        return share_of(quota, period);
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (read_words(path, quota, none) < 1)
        return 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    return read_words(path, period, none) < 1 ? 0 : share_of(quota, period);
}

/* Shows a group and those above it, up to `root`. */
static void walk_up(const char *root, const char *group, quota_visit *visit, void *ctx)
{
    char folder[PATH_MAX];
    const size_t top = strlen(root);
    if (snprintf(folder, sizeof folder, "%s%s", root, group) >= (int)sizeof folder)
        return;
    for (char *slash = folder + strlen(folder); slash; slash = strrchr(folder, '/')) {
        *slash = '\0';
        if (strlen(folder) < top)
            break;
        visit(ctx, folder);
    }
}

/* Is it among names with commas between? */
static bool has_name(const char *names, const char *wanted)
{
    const size_t n = strlen(wanted);
    for (const char *at = names; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, wanted, n) == 0 && (at[n] == ',' || at[n] == '\0'))
            return true;
    }
    return false;
}

/* Shows the groups of a controller that `self` names, and all above them. */
static void walk(const char *groups, const char *self, const char *controller, quota_visit *visit,
                 void *ctx)
{
    char line[PATH_MAX], root[PATH_MAX];
    FILE *f = fopen(self, "re");
    while (f && fgets(line, sizeof line, f)) { /* number:controllers:group */
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        names++;
        if (*names && !has_name(names, controller))
            continue;
        snprintf(root, sizeof root, "%s%s%s", groups, *names ? "/" : "", names);
        walk_up(root, group, visit, ctx);
    }
    if (f)
        fclose(f);
}

static void see_processors(void *ctx, const char *folder)
{
    double *least = ctx;
    const double limit = limit_of(folder);
    if (limit > 0 && (*least == 0 || limit < *least))
        *least = limit;
}

double quota_processors(const char *groups, const char *self)
{
    double least = 0;
    walk(groups, self, "cpu", see_processors, &least);
    return least;
}

/* Bytes that a file of a group says: after a word, or, when that is NULL, alone. False when it is
 * not there or says something else ("max": no limit). */
static bool read_bytes(const char *folder, const char *name, const char *word, uint64_t *out)
{
    char path[PATH_MAX + 32], line[128];
    bool found = false;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        const size_t n = word ? strlen(word) : 0;
        if (word && (strncmp(line, word, n) != 0 || line[n] != ' '))
            continue;
        const char *number = line + n + (word ? 1 : 0);
        found = *number >= '0' && *number <= '9';
        if (found)
            *out = strtoull(number, NULL, 10);
    }
    if (f)
        fclose(f);
    return found;
}

/* What a group has room for. Pages of files that nobody has used for a while count as used there,
 * but make room as soon as it is asked for; a model that has just been copied is such pages. */
static void see_memory(void *ctx, const char *folder)
{
    uint64_t *least = ctx, limit = 0, used = 0, files = 0;
    if (read_bytes(folder, "memory.max", NULL, &limit)) {
        (void)read_bytes(folder, "memory.current", NULL, &used);
        (void)read_bytes(folder, "memory.stat", "inactive_file", &files);
    } else if (read_bytes(folder, "memory.limit_in_bytes", NULL, &limit)) {
        (void)read_bytes(folder, "memory.usage_in_bytes", NULL, &used);
        (void)read_bytes(folder, "memory.stat", "total_inactive_file", &files);
    } else {
        return;
    }
    used -= files < used ? files : used;
    const uint64_t room = limit > used ? limit - used : 0;
    *least = room < *least ? room : *least;
}

size_t quota_memory(const char *groups, const char *self)
{
    uint64_t least = SIZE_MAX;
    walk(groups, self, "memory", see_memory, &least);
    return (size_t)least;
}

int32_t quota_cores(int32_t cores)
{
    const double quota = quota_processors(QUOTA_GROUPS, QUOTA_SELF);
    if (quota <= 0 || quota >= cores)
        return cores;
    return quota >= 1 ? (int32_t)quota : 1;
}

int64_t quota_files(int64_t wanted)
{
    struct rlimit limit;
    const rlim_t needed = (rlim_t)wanted;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return wanted;
    if (limit.rlim_cur < needed) {
        limit.rlim_cur = needed < limit.rlim_max ? needed : limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0) /* nor may be what the hard one says */
            getrlimit(RLIMIT_NOFILE, &limit);
    }
    return limit.rlim_cur < needed ? (int64_t)limit.rlim_cur : wanted;
}
