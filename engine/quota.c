/* DESIGN: limits hold for all below a group, so the way up is walked; in a container that has a
 * view of its own the way is the root, and elsewhere a part of it may not be there to see. */
#include "engine/quota.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* The least of a group's limits and those above it, up to `root`. */
static double least_of(const char *root, const char *group)
{
    char folder[PATH_MAX];
    double least = 0;
    const size_t top = strlen(root);
    if (snprintf(folder, sizeof folder, "%s%s", root, group) >= (int)sizeof folder)
        return 0;
    for (char *slash = folder + strlen(folder); slash; slash = strrchr(folder, '/')) {
        *slash = '\0';
        if (strlen(folder) < top)
            break;
        const double limit = limit_of(folder);
        least = limit > 0 && (least == 0 || limit < least) ? limit : least;
    }
    return least;
}

/* Is "cpu" among names with commas between? */
static bool has_cpu(const char *names)
{
    for (const char *at = names; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, "cpu", 3) == 0 && (at[3] == ',' || at[3] == '\0'))
            return true;
    }
    return false;
}

double quota_processors(const char *groups, const char *self)
{
    char line[PATH_MAX], root[PATH_MAX];
    double least = 0;
    FILE *f = fopen(self, "re");
    while (f && fgets(line, sizeof line, f)) { /* number:controllers:group */
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        names++;
        if (*names && !has_cpu(names))
            continue;
        snprintf(root, sizeof root, "%s%s%s", groups, *names ? "/" : "", names);
        const double limit = least_of(root, group);
        least = limit > 0 && (least == 0 || limit < least) ? limit : least;
    }
    if (f)
        fclose(f);
    return least;
}

int32_t quota_cores(int32_t cores)
{
    const double quota = quota_processors(QUOTA_GROUPS, QUOTA_SELF);
    if (quota <= 0 || quota >= cores)
        return cores;
    return quota >= 1 ? (int32_t)quota : 1;
}
