/* Definitions that every backend shares bit for bit: exp of the CPU variants, sampling, logprobs.
 * The order of the transforms is vLLM's.
 *
 * Logprobs of one row of V raw logits, before anything below: with max = the largest logit and
 * total = sum of the masses (3.) of logit_i - max, logprob_i = numerics_logprob(logit_i, max,
 * numerics_log_total(total)). The best are ordered by logit descending, then id ascending.
 *
 * Sampling of one row with the rules of its slot (struct sample_rules), its history h[0, position)
 * of which h[0, prompt) is the prompt and the rest produced, and parameters (temperature t, k, p,
 * m, seed, choice). The rules first:
 *  a. logit_i += value for each bias (fp32).
 *  b. -inf for the bans while fewer than min_tokens are produced, and for the last id of each bad
 *     word whose other ids are the last ones produced.
 *  c. numerics_penalise: repetition for the ids in the history, frequency and presence for those
 *     produced.
 *  d. -inf for the ids that the row's mask lacks, if it has one.
 * and with the logits that result:
 *  1. z_i = logit_i / t (fp32), -0 counts as +0. t == 0, or a z that overflows: argmax of the
 *     logits, ties to the lowest id, done.
 *  2. order: z descending, then id ascending. top-k keeps the first k (off when k <= 0 or k >= V).
 *  3. mass w_i = floor(exp(z_i - max z) * 2^40), a uint64, so sums do not depend on their order.
 *  4. min-p (off when m <= 0) keeps w_i >= m * 2^40, in double.
 *  5. top-p (off when p >= 1) keeps the shortest prefix of what is left whose mass is at least
 *     ceil(p * total mass left), computed in double, and at least 1.
 *  6. the token is the kept one with the largest z_i + numerics_gumbel(bits_i) in double, ties to
 *     the lowest id, where bits_i = numerics_bits(numerics_key(seed, choice, position), i). */
#ifndef TESSERA_KERNELS_NUMERICS_H
#define TESSERA_KERNELS_NUMERICS_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__ /* the same source on the device */
#define NUMERICS_FN static inline __host__ __device__
#else
#define NUMERICS_FN static inline
#endif

/* exp(x) = 2^n * P(r): n = x * log2(e) rounded by adding 1.5 * 2^23, r = x - n * ln 2 in two steps,
 * P by Horner, all fused; then n is added to the exponent. Below LOW the result is +0, above HIGH
 * it is exp(HIGH); NaN stays NaN. Error below 1.1 ulp (test_kernels measures it). */
#define NUMERICS_EXP_LOW (-87.3f)
#define NUMERICS_EXP_HIGH 88.7f
#define NUMERICS_LOG2E 1.44269504088896341f
#define NUMERICS_LN2_HI 0.693145751953125f
#define NUMERICS_LN2_LO 1.42860677e-6f
#define NUMERICS_ROUND 12582912.0f
#define NUMERICS_EXP_C7 1.9875691500e-4f
#define NUMERICS_EXP_C6 1.3981999507e-3f
#define NUMERICS_EXP_C5 8.3334519073e-3f
#define NUMERICS_EXP_C4 4.1665795894e-2f
#define NUMERICS_EXP_C3 1.6666665459e-1f
#define NUMERICS_EXP_C2 5.0000001201e-1f

NUMERICS_FN float numerics_exp(float x)
{
    float c = NUMERICS_EXP_HIGH < x ? NUMERICS_EXP_HIGH : x;
    float t = fmaf(c, NUMERICS_LOG2E, NUMERICS_ROUND);
    float n = t - NUMERICS_ROUND;
    float r = fmaf(n, -NUMERICS_LN2_HI, c);
    r = fmaf(n, -NUMERICS_LN2_LO, r);
    float p = fmaf(NUMERICS_EXP_C7, r, NUMERICS_EXP_C6);
    p = fmaf(p, r, NUMERICS_EXP_C5);
    p = fmaf(p, r, NUMERICS_EXP_C4);
    p = fmaf(p, r, NUMERICS_EXP_C3);
    p = fmaf(p, r, NUMERICS_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    uint32_t bits, shift;
    memcpy(&bits, &p, sizeof bits);
    memcpy(&shift, &t, sizeof shift);
    bits += shift << 23;
    memcpy(&p, &bits, sizeof p);
    p = x != x ? x : p; /* of a GPU's NaN, all ones, the exponent would become a number's */
    return x < NUMERICS_EXP_LOW ? 0.0f : p;
}

NUMERICS_FN float numerics_sigmoid(float x)
{
    return 1.0f / (1.0f + numerics_exp(-x));
}

/* log(1 + exp(x)) = max(x, 0) + log(1 + e) with e = exp(-|x|), which is at most 1, and log(1 + e) =
 * 2 atanh(e / (2 + e)) = t (1 + z/3 + z^2/5 + ...) with t = 2 e / (2 + e) and z = t^2 / 4, at most
 * 1/9: no bits are lost where x is far below 0, and from 20 on the result is x. Error below 3 ulp
 * (test_delta_rule measures it). */
#define NUMERICS_ATANH_C6 (1.0f / 13)
#define NUMERICS_ATANH_C5 (1.0f / 11)
#define NUMERICS_ATANH_C4 (1.0f / 9)
#define NUMERICS_ATANH_C3 (1.0f / 7)
#define NUMERICS_ATANH_C2 (1.0f / 5)
#define NUMERICS_ATANH_C1 (1.0f / 3)

NUMERICS_FN float numerics_softplus(float x)
{
    const float e = numerics_exp(x < 0 ? x : -x);
    const float t = (e + e) / (2.0f + e), z = t * t * 0.25f;
    float p = fmaf(NUMERICS_ATANH_C6, z, NUMERICS_ATANH_C5);
    p = fmaf(p, z, NUMERICS_ATANH_C4);
    p = fmaf(p, z, NUMERICS_ATANH_C3);
    p = fmaf(p, z, NUMERICS_ATANH_C2);
    p = fmaf(p, z, NUMERICS_ATANH_C1);
    p = fmaf(p, z, 1.0f);
    return fmaf(t, p, x > 0 ? x : 0.0f);
}

/* Of the gated delta rule: what is added to the sum of squares of a query's and of a key's head,
 * as in transformers (l2norm) and flash-linear-attention. */
#define NUMERICS_SQUARES_LEAST 1e-6f

/* What its state is multiplied with before a row is added, 0 to 1; decay: A_log. */
NUMERICS_FN float numerics_decay(float decay, float a, float bias)
{
    return numerics_exp(-(numerics_exp(decay) * numerics_softplus(a + bias)));
}

/* What the scores of chosen experts are divided by, to be shares. `total`: the sum of these, or
 * unless `among`, of all. As transformers has it: of sigmoids a little more (Glm4MoeTopkRouter), so
 * that none chosen of any score is still a share of 0; of `known` softmaxes, which corrections may
 * choose any of, no less than this (Ernie4_5_MoeTopKRouter). */
#define NUMERICS_SCORES_LEAST 1e-20f
#define NUMERICS_SHARES_LEAST 1e-12f

NUMERICS_FN float numerics_divisor(float total, bool among, bool sigmoid, bool known)
{
    if (!among && (sigmoid || known))
        return 1.0f;
    if (sigmoid)
        return total + NUMERICS_SCORES_LEAST;
    return known && total < NUMERICS_SHARES_LEAST ? NUMERICS_SHARES_LEAST : total;
}

/* gelu by its approximation with tanh, g / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (g + 0.044715
 * g^3) (arXiv 1606.08415), which is g / (1 + exp(-2 u)). Its two factors in -2 u / g: */
#define NUMERICS_GELU_1 (-1.5957691216057308f)
#define NUMERICS_GELU_3 (-0.0713548162726009f)

NUMERICS_FN float numerics_gelu(float g)
{
    return g / (1.0f + numerics_exp(g * fmaf(g * g, NUMERICS_GELU_3, NUMERICS_GELU_1)));
}

/* The four bits of E2M1 (OCP Microscaling Formats 1.0, table 5.3.3), sign first, for twice their
 * value: 0, 1, 2, 3, 4, 6, 8, 12 or less than 0; and back. */
NUMERICS_FN uint32_t numerics_e2m1_code(int twice)
{
    const int size = twice < 0 ? -twice : twice;
    const int code = size <= 4 ? size : size == 6 ? 5 : size == 8 ? 6 : 7;
    return (uint32_t)code | (twice < 0 ? 8u : 0u);
}

NUMERICS_FN int numerics_e2m1_twice(uint32_t code)
{
    const int m = (int)(code & 1u), e = (int)(code >> 1 & 3u);
    const int size = e == 0 ? m : (2 + m) << (e - 1);
    return code & 8u ? -size : size;
}

/* Of gpt-oss (arXiv 2508.10925; as transformers has it): the gate at most 7, the up within 7 of 0,
 * (up + 1) * gate * sigmoid(1.702 gate). */
#define NUMERICS_SWIGLU_ALPHA 1.702f
#define NUMERICS_SWIGLU_LIMIT 7.0f

NUMERICS_FN float numerics_swiglu(float gate, float up)
{
    const float limit = NUMERICS_SWIGLU_LIMIT;
    gate = gate > limit ? limit : gate; /* a NaN stays one */
    up = up > limit ? limit : up < -limit ? -limit : up;
    return (up + 1.0f) * (gate / (1.0f + numerics_exp(gate * -NUMERICS_SWIGLU_ALPHA)));
}

/* The sum of exp(score - max) over a row's keys, and that of its sink, which may be the larger. */
NUMERICS_FN float numerics_sink(float sum, float max, float sink)
{
    return sum + numerics_exp(sink - max);
}

/* cap * tanh(x / cap) (arXiv 2408.00118), by tanh(t) = (exp(2 t) - 1) / (exp(2 t) + 1). */
NUMERICS_FN float numerics_softcap(float x, float cap)
{
    const float e = numerics_exp(x * (2.0f / cap));
    return cap * ((e - 1.0f) / (e + 1.0f));
}

/* What a query of this position is multiplied with, 1 + beta * ln(1 + floor(position / original)):
 * Llama 4's (as transformers has it), so that attention stays as sharp over more positions. */
NUMERICS_FN float numerics_query_scale(int32_t position, float beta, int32_t original)
{
    return 1.0f + beta * (float)log(1.0 + position / original);
}

/* Activations for weights of I8 and I4: x over a run of columns, of which max is the largest
 * magnitude, becomes codes -127 to 127, x * (127 / max) rounded to the nearest, ties to even, of
 * which each means code * (max / 127). A run below SMALL counts as zeros; one with a value that is
 * not finite has zeros as codes and NaN as scale, so that what it takes part in is NaN. */
#define NUMERICS_CODE_MAX 127.0f
#define NUMERICS_CODE_SMALL 0x1p-100f

/* Has a row with this maximum, raw or by the rules or over the temperature, something to draw? */
NUMERICS_FN bool numerics_is_finite(float max)
{
    return max >= -FLT_MAX;
}

#define NUMERICS_MASS_ONE 0x1p40

NUMERICS_FN uint64_t numerics_mass(float e)
{
    return (uint64_t)((double)e * NUMERICS_MASS_ONE);
}

/* Logarithm of a sum of masses, in units of the largest: >= 0. */
NUMERICS_FN double numerics_log_total(uint64_t total)
{
    return log((double)total / NUMERICS_MASS_ONE);
}

NUMERICS_FN float numerics_logprob(float x, float max, double log_total)
{
    return (float)((double)x - (double)max - log_total);
}

/* Logit of an id that is in the history, `count` times in its produced part. Stays finite. */
NUMERICS_FN float numerics_penalise(float x, int32_t count, float repetition, float frequency,
                                    float presence)
{
    x = x > 0 ? x / repetition : x * repetition;
    x -= frequency * (float)count;
    x -= count > 0 ? presence : 0;
    return x > FLT_MAX ? FLT_MAX : x;
}

/* Mass that a nucleus of top_p must reach. */
NUMERICS_FN uint64_t numerics_nucleus(float top_p, uint64_t total)
{
    uint64_t need = (uint64_t)ceil((double)top_p * (double)total);
    if (need < 1)
        need = 1;
    return need < total ? need : total;
}

/* Finaliser of splitmix64 (Steele, Lea, Flood 2014). */
NUMERICS_FN uint64_t numerics_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

NUMERICS_FN uint64_t numerics_key(uint64_t seed, int32_t choice, int32_t position)
{
    uint64_t place = (uint64_t)(uint32_t)choice << 32 | (uint32_t)position;
    return numerics_mix(numerics_mix(seed + 0x9e3779b97f4a7c15ull) ^ place);
}

NUMERICS_FN uint64_t numerics_bits(uint64_t key, int32_t id)
{
    return numerics_mix(key + ((uint64_t)(uint32_t)id + 1) * 0x9e3779b97f4a7c15ull);
}

/* u = (top 52 bits + 1/2) / 2^52, exact and inside (0, 1). */
NUMERICS_FN double numerics_gumbel(uint64_t bits)
{
    double u = ((double)(bits >> 12) + 0.5) * 0x1p-52;
    return -log(-log(u));
}

#endif
