/* Latency against load as a picture. Pure. */
#ifndef TESSERA_SERVER_BENCH_PLOT_H
#define TESSERA_SERVER_BENCH_PLOT_H

#include "config/buf.h"

struct report;

/* An SVG of three panels (TTFT, TPOT, E2E), each p50 and p95 in ms over the offered requests/s of
 * the rounds, or over their concurrency when they are closed loops. title is plain UTF-8. */
void plot_svg(const struct report *rounds, int32_t count, const char *title, struct buf *out);

#endif
