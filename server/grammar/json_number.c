/* DESIGN: a bound is its digits: those before the point, and those after it. Of the numbers with as
 * many digits before the point as the bound has, those fit that have a greater (smaller) digit
 * where the first difference is; after the point a number that has no digits more has zeros.
 * Bounds are written with as few digits as tell their double from others, so that 0.1 is 0.1; as
 * rounding to doubles keeps the order, who reads the numbers as doubles finds them in range. */
#include "server/grammar/json_number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHOLE = JSON_TEXT_DIGITS_MAX, FRACTION = JSON_TEXT_FRACTION_MAX };

/* A bound >= 0, digits as numbers; both parts filled up with zeros. */
struct decimal {
    bool set, exclusive;
    uint8_t whole[WHOLE], fraction[FRACTION + 1];
};

static enum status read_decimal(struct json_bound bound, struct decimal *out, struct err *err)
{
    char text[400];
    bound.value += 0.0; /* -0 has the digits of 0 */
    *out = (struct decimal){.set = bound.set, .exclusive = bound.exclusive};
    for (int precision = 0; precision <= FRACTION; precision++) {
        snprintf(text, sizeof text, "%.*f", precision, bound.value);
        if (strtod(text, NULL) == bound.value)
            break;
    }
    const size_t whole = strcspn(text, ".");
    if (strtod(text, NULL) != bound.value || whole > WHOLE)
        return base_fail(err, ERR_INPUT,
                         "the bound %g has too many digits (%d before the point, %d after it)",
                         bound.value, WHOLE, FRACTION);
    for (size_t i = 0; i < whole; i++)
        out->whole[WHOLE - whole + i] = (uint8_t)(text[i] - '0');
    for (size_t i = 0; text[whole] && text[whole + 1 + i]; i++)
        out->fraction[i] = (uint8_t)(text[whole + 1 + i] - '0');
    return OK;
}

struct range {
    const struct json_text *t;
    bool integer;
    struct decimal lo, hi; /* hi is set */
    int32_t next;
    /* nodes that were made, + 1: after so many digits of the fraction, by the bounds that the
     * number is on so far; and for so many digits of any kind before the point */
    int32_t after[FRACTION + 1][2][2], any[WHOLE + 1];
};

static bool is_zero(const uint8_t *digits, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (digits[i] != 0)
            return false;
    return true;
}

/* May a number end here, whose digits so far are those of a bound where that is tight? */
static bool may_end(const struct range *r, int32_t at, bool low, bool high)
{
    const bool on_low = is_zero(r->lo.fraction + at, FRACTION - at);
    const bool on_high = is_zero(r->hi.fraction + at, FRACTION - at);
    if (low && (!on_low || r->lo.exclusive))
        return false;
    return !(high && on_high && r->hi.exclusive);
}

/* What may come after `at` digits of the fraction. */
static int32_t fraction(struct range *r, int32_t at, bool low, bool high)
{
    int32_t *known = &r->after[at][low][high];
    if (*known != 0)
        return *known - 1;
    struct grammar *g = r->t->g;
    int32_t all = at > 0 && may_end(r, at, low, high) ? r->next : GRAMMAR_NEVER;
    const int32_t from = low ? r->lo.fraction[at] : 0, to = high ? r->hi.fraction[at] : 9;
    for (int32_t d = from; at < FRACTION && d <= to;) {
        const bool lower = low && d == from, upper = high && d == to;
        int32_t end = d; /* digits that are not on a bound go the same way */
        while (!lower && !upper && end < to - high)
            end++;
        const int32_t way = fraction(r, at + 1, lower, upper);
        all =
            grammar_either(g, all, grammar_range(g, (uint8_t)('0' + d), (uint8_t)('0' + end), way));
        d = end + 1;
    }
    *known = all + 1;
    return all;
}

/* What may come after the digits before the point. */
static int32_t point(struct range *r, bool low, bool high)
{
    const int32_t end = may_end(r, 0, low, high) ? r->next : GRAMMAR_NEVER;
    if (r->integer)
        return end;
    return grammar_either(r->t->g, end, grammar_text(r->t->g, ".", 1, fraction(r, 0, low, high)));
}

static int32_t any_digits(struct range *r, int32_t n)
{
    if (r->any[n] == 0)
        r->any[n] =
            1 + (n == 0 ? point(r, false, false) : json_text_digit(r->t, any_digits(r, n - 1)));
    return r->any[n] - 1;
}

/* The digits before the point from `at` on, of a number that begins at `begin`. */
static int32_t whole(struct range *r, int32_t begin, int32_t at, bool low, bool high)
{
    struct grammar *g = r->t->g;
    if (at == WHOLE)
        return point(r, low, high);
    const int32_t least = at == begin && begin < WHOLE - 1 ? 1 : 0;
    int32_t from = low ? r->lo.whole[at] : 0, all = GRAMMAR_NEVER;
    const int32_t to = high ? r->hi.whole[at] : 9;
    if (!low && !high && at > begin)
        return any_digits(r, WHOLE - at);
    from = from > least ? from : least;
    for (int32_t d = from; d <= to;) {
        const bool lower = low && d == r->lo.whole[at], upper = high && d == to;
        int32_t end = d;
        while (!lower && !upper && end < to - high)
            end++;
        const int32_t way = whole(r, begin, at + 1, lower, upper);
        all =
            grammar_either(g, all, grammar_range(g, (uint8_t)('0' + d), (uint8_t)('0' + end), way));
        d = end + 1;
    }
    return all;
}

static int32_t length_of(const struct decimal *d)
{
    int32_t zeros = 0;
    while (zeros < WHOLE - 1 && d->whole[zeros] == 0)
        zeros++;
    return WHOLE - zeros;
}

static bool is_empty(const struct range *r)
{
    int order = memcmp(r->lo.whole, r->hi.whole, sizeof r->lo.whole);
    if (order == 0)
        order = memcmp(r->lo.fraction, r->hi.fraction, sizeof r->lo.fraction);
    return order > 0 || (order == 0 && (r->lo.exclusive || r->hi.exclusive));
}

/* Numbers >= 0, by how many digits they have before the point. */
static int32_t positive(struct range *r)
{
    int32_t all = GRAMMAR_NEVER;
    if (is_empty(r))
        return all;
    const int32_t least = length_of(&r->lo), most = length_of(&r->hi);
    for (int32_t n = least; n <= most; n++)
        all = grammar_either(r->t->g, all, whole(r, WHOLE - n, WHOLE - n, n == least, n == most));
    return all;
}

static const struct json_bound zero = {.set = true}, above_zero = {.set = true, .exclusive = true};

static enum status side(const struct json_text *t, bool integer, struct json_bound lo,
                        struct json_bound hi, int32_t next, int32_t *first, struct err *err)
{
    enum status st = OK;
    struct range r = {.t = t, .integer = integer, .next = next};
    TRY(read_decimal(lo, &r.lo, err));
    TRY(read_decimal(hi, &r.hi, err));
    if (!hi.set) {
        memset(r.hi.whole, 9, sizeof r.hi.whole);
        memset(r.hi.fraction, 9, FRACTION);
    }
    *first = positive(&r);
out:
    return st;
}

/* The integers that a bound leaves: none is between them and it. */
static void round_bound(struct json_bound *b, bool up)
{
    const double value = up ? ceil(b->value) : floor(b->value);
    b->exclusive = b->exclusive && value == b->value;
    b->value = value;
}

enum status json_number_build(const struct json_text *t, bool integer, struct json_bound lo,
                              struct json_bound hi, int32_t next, int32_t *first, struct err *err)
{
    enum status st = OK;
    int32_t above = GRAMMAR_NEVER, below = GRAMMAR_NEVER;
    if (integer) {
        round_bound(&lo, true);
        round_bound(&hi, false);
    }
    const bool negative = lo.set && lo.value >= 0 ? false : true;
    if (!hi.set || hi.value >= 0)
        TRY(side(t, integer, negative ? zero : lo, hi, next, &above, err));
    if (negative) { /* as what is left without the sign */
        const struct json_bound least = hi.set && hi.value < 0
                                            ? (struct json_bound){true, hi.exclusive, -hi.value}
                                            : above_zero;
        TRY(side(t, integer, least, (struct json_bound){lo.set, lo.exclusive, -lo.value}, next,
                 &below, err));
    }
    *first = grammar_either(t->g, above, grammar_text(t->g, "-", 1, below));
out:
    return st;
}
