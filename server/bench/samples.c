#include "server/bench/samples.h"

#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    double x, y;
    x = *(const double *)a;
    y = *(const double *)b;
    return (x > y) - (x < y);
}

double samples_percentile(const double *ascending, size_t count, double p)
{
    if (count == 0)
        return 0;
    double rank = p * (double)(count - 1);
    size_t below = (size_t)rank;
    if (below + 1 >= count)
        return ascending[count - 1];
    double share = rank - (double)below;
    return ascending[below] + share * (ascending[below + 1] - ascending[below]);
}

size_t samples_overlap(double *begins, double *ends, size_t count)
{
    size_t most = 0, ended = 0;
    if (count == 0)
        return 0;
    qsort(begins, count, sizeof *begins, compare);
    qsort(ends, count, sizeof *ends, compare);
    for (size_t begun = 1; begun <= count; begun++) {
        while (ends[ended] < begins[begun - 1])
            ended++;
        most = begun - ended > most ? begun - ended : most;
    }
    return most;
}

struct samples_stats samples_stats(double *values, size_t count)
{
    struct samples_stats s = {.count = count};
    if (count == 0)
        return s;
    qsort(values, count, sizeof *values, compare);
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    s.mean = sum / (double)count;
    s.p50 = samples_percentile(values, count, 0.50);
    s.p95 = samples_percentile(values, count, 0.95);
    s.p99 = samples_percentile(values, count, 0.99);
    s.max = values[count - 1];
    return s;
}
