/* Numbers of a range as grammars: decimals without exponent, so that a comparison is one of digits.
 * Pure. */
#ifndef TESSERA_SERVER_GRAMMAR_JSON_NUMBER_H
#define TESSERA_SERVER_GRAMMAR_JSON_NUMBER_H

#include "config/jdoc.h"
#include "server/grammar/json_text.h"

#define JSON_NUMBER_END 1e18 /* numbers have at most 18 digits before the point */

struct json_bound {
    bool set, exclusive;
    double value; /* finite */
};

/* Numbers are multiples of factor * 10^exponent, as decimals; factor 0: of nothing. */
enum { JSON_NUMBER_FACTOR_MAX = 100 };
struct json_step {
    int32_t factor, exponent; /* 0 < factor < JSON_NUMBER_FACTOR_MAX, no multiple of ten */
};
/* ERR_INPUT: v is no number above 0, or has too many digits. */
enum status json_number_step(const struct jdoc *v, struct json_step *out, struct err *err) MUST_USE;

/* lo <= number <= hi, or < where exclusive; a bound that is not set is that of 18 digits. */
struct json_number {
    bool integer; /* without fraction */
    struct json_bound lo, hi;
    struct json_step step;
};

/* GRAMMAR_NEVER: there is none. ERR_INPUT: a bound has too many digits. */
enum status json_number_build(const struct json_text *t, const struct json_number *n, int32_t next,
                              int32_t *first, struct err *err) MUST_USE;

#endif
