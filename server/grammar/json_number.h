/* Numbers of a range as grammars: decimals without exponent, so that a comparison is one of digits.
 * Pure. */
#ifndef TESSERA_SERVER_GRAMMAR_JSON_NUMBER_H
#define TESSERA_SERVER_GRAMMAR_JSON_NUMBER_H

#include "server/grammar/json_text.h"

#define JSON_NUMBER_END 1e18 /* numbers have at most 18 digits before the point */

struct json_bound {
    bool set, exclusive;
    double value; /* finite */
};

/* lo <= number <= hi, or < where exclusive; a bound that is not set is that of 18 digits. `integer`
 * without fraction. GRAMMAR_NEVER: there is none. ERR_INPUT: a bound has too many digits. */
enum status json_number_build(const struct json_text *t, bool integer, struct json_bound lo,
                              struct json_bound hi, int32_t next, int32_t *first,
                              struct err *err) MUST_USE;

#endif
