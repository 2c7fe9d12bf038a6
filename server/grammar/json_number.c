/* DESIGN: a bound is its digits: those before the point, and those after it. Of the numbers with as
 * many digits before the point as the bound has, those fit that have a greater (smaller) digit
 * where the first difference is; after the point a number that has no digits more has zeros.
 * Bounds are written with as few digits as tell their double from others, so that 0.1 is 0.1; as
 * rounding to doubles keeps the order, who reads the numbers as doubles finds them in range.
 * What numbers are multiples of is a factor and a power of ten: that says how many digits there may
 * be behind the point, or how many zeros are at the end, and of the others their remainder is
 * followed, digit by digit. */
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

/* Numbers are multiples of factor * 10^zeros, or of factor * 10^-places. */
struct step {
    int32_t factor;
    int32_t zeros;  /* at the end of what is before the point */
    int32_t places; /* digits after it, at most */
};

struct range {
    const struct json_text *t;
    bool integer;
    struct step step;
    struct decimal lo, hi; /* hi is set */
    int32_t next;
    /* nodes that were made, + 1, by the remainder so far: after so many digits of the fraction, by
     * the bounds that the number is on; and for so many digits of any kind before the point */
    int32_t after[FRACTION + 1][2][2][JSON_NUMBER_FACTOR_MAX];
    int32_t any[WHOLE + 1][JSON_NUMBER_FACTOR_MAX];
};

/* Of the remainder, with one digit more. */
static int32_t remainder_with(const struct range *r, int32_t remainder, int32_t digit)
{
    return (remainder * 10 + digit) % r->step.factor;
}

/* Does a number with `at` digits of the fraction have none left? */
static bool is_multiple(const struct range *r, int32_t at, int32_t remainder)
{
    for (; at < r->step.places; at++)
        remainder = remainder_with(r, remainder, 0);
    return remainder == 0;
}

static bool is_zero(const uint8_t *digits, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (digits[i] != 0)
            return false;
    return true;
}

/* May a number end here, whose digits so far are those of a bound where that is tight? */
static bool may_end(const struct range *r, int32_t at, bool low, bool high, int32_t remainder)
{
    const bool on_low = is_zero(r->lo.fraction + at, FRACTION - at);
    const bool on_high = is_zero(r->hi.fraction + at, FRACTION - at);
    if ((low && (!on_low || r->lo.exclusive)) || !is_multiple(r, at, remainder))
        return false;
    return !(high && on_high && r->hi.exclusive);
}

/* The last digit that goes the same way as d: all that are not on a bound, but where their
 * remainders differ. */
static int32_t run_of(const struct range *r, int32_t d, bool tight, int32_t last)
{
    return tight || r->step.factor > 1 || last < d ? d : last;
}

/* What may come after `at` digits of the fraction. */
static int32_t fraction(struct range *r, int32_t at, bool low, bool high, int32_t remainder)
{
    int32_t *known = &r->after[at][low][high][remainder];
    if (*known != 0)
        return *known - 1;
    struct grammar *g = r->t->g;
    int32_t all = at > 0 && may_end(r, at, low, high, remainder) ? r->next : GRAMMAR_NEVER;
    const int32_t from = low ? r->lo.fraction[at] : 0, to = high ? r->hi.fraction[at] : 9;
    for (int32_t d = from; at < r->step.places && d <= to;) {
        const bool lower = low && d == from, upper = high && d == to;
        const int32_t end = run_of(r, d, lower || upper, to - high);
        const int32_t way = fraction(r, at + 1, lower, upper, remainder_with(r, remainder, d));
        all =
            grammar_either(g, all, grammar_range(g, (uint8_t)('0' + d), (uint8_t)('0' + end), way));
        d = end + 1;
    }
    *known = all + 1;
    return all;
}

/* What may come after the digits before the point. */
static int32_t point(struct range *r, bool low, bool high, int32_t remainder)
{
    const int32_t end = may_end(r, 0, low, high, remainder) ? r->next : GRAMMAR_NEVER;
    if (r->integer || r->step.places == 0)
        return end;
    return grammar_either(r->t->g, end,
                          grammar_text(r->t->g, ".", 1, fraction(r, 0, low, high, remainder)));
}

static int32_t any_digits(struct range *r, int32_t n, int32_t remainder);

static int32_t make_any_digits(struct range *r, int32_t n, int32_t remainder)
{
    struct grammar *g = r->t->g;
    if (n == 0)
        return point(r, false, false, remainder);
    if (n <= r->step.zeros)
        return grammar_text(g, "0", 1, any_digits(r, n - 1, remainder));
    if (r->step.factor == 1)
        return json_text_digit(r->t, any_digits(r, n - 1, remainder));
    int32_t all = GRAMMAR_NEVER;
    for (int32_t d = 0; d < 10; d++) {
        const int32_t way = any_digits(r, n - 1, remainder_with(r, remainder, d));
        all = grammar_either(g, all, grammar_range(g, (uint8_t)('0' + d), (uint8_t)('0' + d), way));
    }
    return all;
}

static int32_t any_digits(struct range *r, int32_t n, int32_t remainder)
{
    if (r->any[n][remainder] == 0)
        r->any[n][remainder] = 1 + make_any_digits(r, n, remainder);
    return r->any[n][remainder] - 1;
}

/* The digits before the point from `at` on, of a number that begins at `begin`. */
static int32_t whole(struct range *r, int32_t begin, int32_t at, bool low, bool high,
                     int32_t remainder)
{
    struct grammar *g = r->t->g;
    if (at == WHOLE)
        return point(r, low, high, remainder);
    const int32_t least = at == begin && begin < WHOLE - 1 ? 1 : 0;
    const bool is_end = at >= WHOLE - r->step.zeros;
    int32_t from = low ? r->lo.whole[at] : 0, all = GRAMMAR_NEVER;
    const int32_t to = high ? r->hi.whole[at] : 9;
    if (!low && !high && at > begin)
        return any_digits(r, WHOLE - at, remainder);
    from = from > least ? from : least;
    for (int32_t d = from; d <= (is_end ? 0 : to);) {
        const bool lower = low && d == r->lo.whole[at], upper = high && d == to;
        const int32_t end = run_of(r, d, lower || upper || is_end, to - high);
        const int32_t left = is_end ? remainder : remainder_with(r, remainder, d);
        const int32_t way = whole(r, begin, at + 1, lower, upper, left);
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
        all =
            grammar_either(r->t->g, all, whole(r, WHOLE - n, WHOLE - n, n == least, n == most, 0));
    return all;
}

static const struct json_bound zero = {.set = true}, above_zero = {.set = true, .exclusive = true};

/* r is ready but for the bounds; what it has made of other bounds it keeps, if that is of none. */
static enum status side(struct range *r, struct json_bound lo, struct json_bound hi, int32_t *first,
                        struct err *err)
{
    enum status st = OK;
    memset(r->after, 0, sizeof r->after);
    TRY(read_decimal(lo, &r->lo, err));
    TRY(read_decimal(hi, &r->hi, err));
    if (!hi.set) {
        memset(r->hi.whole, 9, sizeof r->hi.whole);
        memset(r->hi.fraction, 9, FRACTION);
    }
    *first = positive(r);
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

enum status json_number_step(const struct jdoc *v, struct json_step *out, struct err *err)
{
    const double value = jdoc_type(v) == JDOC_INT || jdoc_type(v) == JDOC_REAL ? jdoc_number(v) : 0;
    int64_t digits = jdoc_type(v) == JDOC_INT ? jdoc_int(v) : 0;
    int32_t exponent = 0;
    char text[40] = "";
    if (!(value > 0))
        return base_fail(err, ERR_INPUT, "multipleOf must be a number above 0");
    for (int precision = 0; jdoc_type(v) == JDOC_REAL && precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, value);
        if (strtod(text, NULL) == value)
            break;
    }
    for (const char *c = text; *c && *c != 'e'; c++)
        if (*c != '.')
            digits = digits * 10 + (*c - '0');
    if (*text)
        exponent = (int32_t)strtol(strchr(text, 'e') + 1, NULL, 10) -
                   (int32_t)(strchr(text, '.') ? strcspn(text, "e") - 2 : 0);
    for (; digits % 10 == 0; digits /= 10)
        exponent++;
    if (digits >= JSON_NUMBER_FACTOR_MAX || exponent < -FRACTION)
        return base_fail(err, ERR_INPUT,
                         "multipleOf %g is not supported, only whole numbers below %d times a "
                         "power of ten down to 1e-%d",
                         value, JSON_NUMBER_FACTOR_MAX, FRACTION);
    *out = (struct json_step){(int32_t)digits, exponent};
    return OK;
}

static struct step step_of(struct json_step s)
{
    if (s.factor == 0)
        return (struct step){1, 0, FRACTION};
    return (struct step){s.factor,
                         s.exponent < 0       ? 0
                         : s.exponent < WHOLE ? s.exponent
                                              : WHOLE,
                         s.exponent < 0 ? -s.exponent : 0};
}

enum status json_number_build(const struct json_text *t, const struct json_number *n, int32_t next,
                              int32_t *first, struct err *err)
{
    enum status st = OK;
    struct range r = {.t = t, .integer = n->integer, .step = step_of(n->step), .next = next};
    struct json_bound lo = n->lo, hi = n->hi;
    int32_t above = GRAMMAR_NEVER, below = GRAMMAR_NEVER;
    if (n->integer) {
        round_bound(&lo, true);
        round_bound(&hi, false);
    }
    const bool negative = lo.set && lo.value >= 0 ? false : true;
    if (!hi.set || hi.value >= 0)
        TRY(side(&r, negative ? zero : lo, hi, &above, err));
    if (negative) { /* as what is left without the sign */
        const struct json_bound least = hi.set && hi.value < 0
                                            ? (struct json_bound){true, hi.exclusive, -hi.value}
                                            : above_zero;
        TRY(side(&r, least, (struct json_bound){lo.set, lo.exclusive, -lo.value}, &below, err));
    }
    *first = grammar_either(t->g, above, grammar_text(t->g, "-", 1, below));
out:
    return st;
}
