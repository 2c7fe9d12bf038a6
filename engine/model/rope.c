/* DESIGN: the same operations in the same types as transformers has them (modeling_rope_utils), so
 * that long positions round the same way. */
#include "engine/model/rope.h"

#include <math.h>

/* One that turns often keeps its frequency, one that turns seldom is slowed, between is between. */
static float llama3_frequency(const struct rope_config *r, float f)
{
    const double pi = 3.14159265358979323846;
    const double original = r->original_max_position, wavelength = 2 * pi / (double)f;
    if (wavelength > original / r->low_freq_factor)
        return (float)((double)f / r->factor);
    if (wavelength < original / r->high_freq_factor)
        return f;
    const double smooth =
        (original / wavelength - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (float)((1 - smooth) * (double)f / r->factor + smooth * (double)f);
}

/* The pair that turns so often within the original context. */
static double yarn_pair(const struct rope_config *r, int32_t dim, double turns)
{
    const double pi = 3.14159265358979323846;
    return dim * log(r->original_max_position / (turns * 2 * pi)) / (2 * log(r->theta));
}

/* The same by a ramp over the pairs. */
static float yarn_frequency(const struct rope_config *r, int32_t dim, int32_t pair, float f)
{
    double low = yarn_pair(r, dim, r->beta_fast), high = yarn_pair(r, dim, r->beta_slow);
    low = fmax(r->truncate ? floor(low) : low, 0);
    high = fmin(r->truncate ? ceil(high) : high, dim - 1);
    high = high == low ? high + 0.001 : high;
    const float slowed = (float)fmin(fmax((pair - low) / (high - low), 0), 1);
    return f / (float)r->factor * slowed + f * (1 - slowed);
}

void rope_frequencies(const struct rope_config *r, int32_t dim, int32_t context, float *inv_freq)
{
    const float *by = context > r->original_max_position ? r->long_factor : r->short_factor;
    for (int32_t i = 0; i < dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)dim;
        float wavelength = (float)pow(r->theta, (double)exponent); /* over 2 pi */
        float f = 1.0f / (r->kind == ROPE_LONG ? by[i] * wavelength : wavelength);
        inv_freq[i] = r->kind == ROPE_LLAMA3   ? llama3_frequency(r, f)
                      : r->kind == ROPE_YARN   ? yarn_frequency(r, dim, i, f)
                      : r->kind == ROPE_LINEAR ? f / (float)r->factor
                      : r->kind == ROPE_PROPORTIONAL
                          ? (i < (int32_t)(r->part * dim / 2) ? f / (float)r->factor : 0)
                          : f;
    }
}
