/* Order statistics of measured values. */
#ifndef TESSERA_SERVER_BENCH_SAMPLES_H
#define TESSERA_SERVER_BENCH_SAMPLES_H

#include <stddef.h>

struct samples_stats {
    size_t count; /* 0: the rest is zero */
    double mean, p50, p95, p99, max;
};

/* Sorts the values in place. */
struct samples_stats samples_stats(double *values, size_t count);
/* Of ascending values, 0 <= p <= 1: linear between the two neighbours of rank p * (count - 1), as
 * numpy.percentile does by default; 0 without values. */
double samples_percentile(const double *ascending, size_t count, double p);
/* How many of these spans, both ends included, have a moment in common. Sorts both arrays. */
size_t samples_overlap(double *begins, double *ends, size_t count);

#endif
