/* DESIGN: arithmetic as Python has it, but in 64 bits: what does not fit is refused, never rounded
 * or wrapped. A result is foreign when one of its parts is. */
#include "server/template/jinja_run.h"

#include <math.h>
#include <string.h>

/* ---- whole numbers ---- */

static enum status whole_power(struct run *r, int64_t base, int64_t exponent, int64_t *out)
{
    int64_t result = 1;
    while (exponent > 0) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
            return jinja_fail(r, RUN_TOO_LARGE);
        exponent >>= 1;
        if (exponent > 0 && __builtin_mul_overflow(base, base, &base))
            return jinja_fail(r, RUN_TOO_LARGE);
    }
    *out = result;
    return OK;
}

static bool whole_divide(int64_t a, int64_t b, int64_t *quotient, int64_t *rest)
{
    if (a == INT64_MIN && b == -1)
        return false;
    *quotient = a / b - (a % b != 0 && (a < 0) != (b < 0));
    *rest = a - *quotient * b;
    return true;
}

static enum status operate_whole(struct run *r, enum operation op, int64_t a, int64_t b,
                                 struct value *out)
{
    int64_t x = 0, rest = 0;
    bool fits = true;
    enum status st = OK;
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        return jinja_fail(r, "division by zero");
    switch (op) {
    case OP_ADD:
        fits = !__builtin_add_overflow(a, b, &x);
        break;
    case OP_SUB:
        fits = !__builtin_sub_overflow(a, b, &x);
        break;
    case OP_MUL:
        fits = !__builtin_mul_overflow(a, b, &x);
        break;
    case OP_FLOORDIV:
        fits = whole_divide(a, b, &x, &rest);
        break;
    case OP_MOD:
        fits = b == -1 || whole_divide(a, b, &rest, &x);
        break;
    case OP_POW:
        st = whole_power(r, a, b, &x);
        break;
    case OP_DIV:
        break;
    }
    if (st == OK && !fits)
        st = jinja_fail(r, RUN_TOO_LARGE);
    *out = jinja_int(x);
    return st;
}

/* ---- floats ---- */

static enum status float_power(struct run *r, double a, double b, double *out)
{
    if (a == 0 && b < 0)
        return jinja_fail(r, "division by zero");
    if (a < 0 && isfinite(b) && b != floor(b))
        return jinja_fail(r, "this power is not a real number");
    *out = pow(a, b);
    return isinf(*out) && isfinite(a) && isfinite(b) ? jinja_fail(r, RUN_TOO_LARGE) : OK;
}

/* The remainder has the divisor's sign; the quotient is exact before it is rounded down. */
static double float_divide(double a, double b, double *rest)
{
    *rest = fmod(a, b);
    double quotient = (a - *rest) / b;
    if (*rest != 0 && (b < 0) != (*rest < 0)) {
        *rest += b;
        quotient -= 1;
    } else if (*rest == 0) {
        *rest = copysign(0, b);
    }
    const double down = floor(quotient);
    if (quotient == 0)
        return copysign(0, a / b);
    return quotient - down > 0.5 ? down + 1 : down;
}

static enum status operate_float(struct run *r, enum operation op, double a, double b,
                                 struct value *out)
{
    double x = 0, rest = 0;
    enum status st = OK;
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        return jinja_fail(r, "division by zero");
    switch (op) {
    case OP_ADD:
        x = a + b;
        break;
    case OP_SUB:
        x = a - b;
        break;
    case OP_MUL:
        x = a * b;
        break;
    case OP_DIV:
        x = a / b;
        break;
    case OP_FLOORDIV:
        x = float_divide(a, b, &rest);
        break;
    case OP_MOD:
        float_divide(a, b, &x);
        break;
    case OP_POW:
        st = float_power(r, a, b, &x);
        break;
    }
    *out = jinja_float(x);
    return st;
}

/* ---- sequences ---- */

static enum status join_strings(struct run *r, const struct value *a, const struct value *b,
                                struct value *out)
{
    const size_t mark = jinja_mark(r);
    enum status st = OK;
    TRY(jinja_add_string(r, a));
    TRY(jinja_add_string(r, b));
    st = jinja_cut(r, mark, out);
out:
    return st;
}

static enum status join_lists(struct run *r, const struct value *a, const struct value *b,
                              struct value *out)
{
    struct value list;
    enum status st = jinja_new_list(r, a->kind, a->list->n + b->list->n, &list);
    if (st != OK)
        return st;
    list.foreign = a->foreign || b->foreign;
    if (a->list->n > 0)
        memcpy(list.list->items, a->list->items, a->list->n * sizeof *list.list->items);
    if (b->list->n > 0)
        memcpy(list.list->items + a->list->n, b->list->items,
               b->list->n * sizeof *list.list->items);
    *out = list;
    return OK;
}

/* Adds to an empty one, so that what is too long stops at the limits. */
static enum status repeat(struct run *r, const struct value *v, int64_t times, struct value *out)
{
    struct value result = *v;
    enum status st = OK;
    if (v->kind == VALUE_STRING) {
        const size_t mark = jinja_mark(r);
        for (int64_t i = 0; i < times && v->s.n > 0; i++)
            TRY(jinja_add_string(r, v));
        return jinja_cut(r, mark, out);
    }
    const size_t n = v->list->n, count = times > 0 && n > 0 ? (size_t)times : 0;
    if (count > RUN_STEPS_MAX || n * count > RUN_STEPS_MAX)
        return jinja_over(r, "a list becomes too long");
    TRY(jinja_new_list(r, v->kind, n * count, &result));
    for (size_t i = 0; i < count; i++)
        memcpy(result.list->items + i * n, v->list->items, n * sizeof *v->list->items);
    result.foreign = v->foreign;
    *out = result;
out:
    return st;
}

static bool can_repeat(const struct value *v)
{
    return v->kind == VALUE_STRING || v->kind == VALUE_LIST || v->kind == VALUE_TUPLE;
}

static bool can_join(const struct value *v)
{
    return v->kind == VALUE_LIST || v->kind == VALUE_TUPLE;
}

enum status jinja_operate(struct run *r, enum operation op, const struct value *a,
                          const struct value *b, struct value *out)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    enum status st = OK;
    if (op == OP_MOD && a->kind == VALUE_STRING)
        return jinja_lack(r, JINJA_NO_FORMATS);
    if (a->kind == VALUE_UNDEFINED || b->kind == VALUE_UNDEFINED)
        return jinja_say_undefined(r, a->kind == VALUE_UNDEFINED ? a : b);
    if (op == OP_ADD && a->kind == VALUE_STRING && b->kind == VALUE_STRING)
        return join_strings(r, a, b, out);
    if (op == OP_ADD && a->kind == b->kind && can_join(a))
        return join_lists(r, a, b, out);
    if (op == OP_MUL && can_repeat(a) && jinja_is_whole(b))
        return repeat(r, a, jinja_as_int(b), out);
    if (op == OP_MUL && can_repeat(b) && jinja_is_whole(a))
        return repeat(r, b, jinja_as_int(a), out);
    if (!jinja_is_number(a) || !jinja_is_number(b))
        return jinja_fail(r, "a %s %s a %s has no result", jinja_type_name(a), names[op],
                          jinja_type_name(b));
    const bool foreign = a->foreign || b->foreign;
    const bool whole = jinja_is_whole(a) && jinja_is_whole(b) && op != OP_DIV &&
                       !(op == OP_POW && jinja_as_int(b) < 0);
    if (whole)
        st = operate_whole(r, op, jinja_as_int(a), jinja_as_int(b), out);
    else
        st = operate_float(r, op, jinja_as_float(a), jinja_as_float(b), out);
    out->foreign = foreign;
    return st;
}
