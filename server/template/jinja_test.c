/* DESIGN: a test is a function of the call's input that gives a BOOL; several only ask for its
 * kind. */
#include "server/template/jinja_run.h"

#include <string.h>

static enum status say(bool b, struct value *out)
{
    *out = jinja_bool(b);
    return OK;
}

#define KIND_TEST(name, condition)                                                                 \
    static enum status test_##name(struct run *r, const struct call *c, struct value *out)         \
    {                                                                                              \
        const struct value *v = &c->self;                                                          \
        (void)r;                                                                                   \
        return say(condition, out);                                                                \
    }

KIND_TEST(defined, v->kind != VALUE_UNDEFINED)
KIND_TEST(undefined, v->kind == VALUE_UNDEFINED)
KIND_TEST(none, v->kind == VALUE_NONE)
KIND_TEST(boolean, v->kind == VALUE_BOOL)
KIND_TEST(true, v->kind == VALUE_BOOL && v->b)
KIND_TEST(false, v->kind == VALUE_BOOL && !v->b)
KIND_TEST(integer, v->kind == VALUE_INT)
KIND_TEST(float, v->kind == VALUE_FLOAT)
KIND_TEST(number, jinja_is_number(v))
KIND_TEST(string, v->kind == VALUE_STRING)
KIND_TEST(mapping, v->kind == VALUE_DICT)
KIND_TEST(sequence, v->kind == VALUE_STRING || v->kind == VALUE_DICT ||
                        v->kind == VALUE_UNDEFINED || (jinja_is_list(v) && v->kind != VALUE_VIEW))
KIND_TEST(iterable, v->kind == VALUE_STRING || v->kind == VALUE_DICT || jinja_is_list(v) ||
                        v->kind == VALUE_ITERATOR || v->kind == VALUE_UNDEFINED ||
                        v->kind == VALUE_LOOP)
KIND_TEST(callable, v->kind == VALUE_FUNCTION || v->kind == VALUE_METHOD ||
                        v->kind == VALUE_MACRO || v->kind == VALUE_LOOP ||
                        v->kind == VALUE_UNDEFINED)

/* ---- numbers ---- */

static enum status divisible(struct run *r, const struct value *v, const struct value *by,
                             int64_t wanted, struct value *out)
{
    const struct value rest = jinja_int(wanted);
    struct value left;
    enum status st = OK;
    TRY(jinja_operate(r, OP_MOD, v, by, &left));
    *out = jinja_bool(jinja_equal_plain(&left, &rest));
out:
    return st;
}

static enum status test_odd(struct run *r, const struct call *c, struct value *out)
{
    const struct value two = jinja_int(2);
    return divisible(r, &c->self, &two, 1, out);
}

static enum status test_even(struct run *r, const struct call *c, struct value *out)
{
    const struct value two = jinja_int(2);
    return divisible(r, &c->self, &two, 0, out);
}

static enum status test_divisibleby(struct run *r, const struct call *c, struct value *out)
{
    return divisible(r, &c->self, &c->arg[0], 0, out);
}

/* ---- comparisons ---- */

static enum status test_equal(struct run *r, const struct call *c, struct value *out)
{
    bool same = false;
    enum status st = jinja_equal(r, &c->self, &c->arg[0], &same);
    *out = jinja_bool(same);
    return st;
}

static enum status test_different(struct run *r, const struct call *c, struct value *out)
{
    enum status st = test_equal(r, c, out);
    out->b = !out->b;
    return st;
}

static enum status ordered(struct run *r, const struct call *c, int wanted, bool or_equal,
                           struct value *out)
{
    int order = 0;
    enum status st = jinja_order(r, &c->self, &c->arg[0], &order);
    *out = jinja_bool(order == wanted || (or_equal && order == 0));
    return st;
}

static enum status test_less(struct run *r, const struct call *c, struct value *out)
{
    return ordered(r, c, -1, false, out);
}

static enum status test_less_equal(struct run *r, const struct call *c, struct value *out)
{
    return ordered(r, c, -1, true, out);
}

static enum status test_greater(struct run *r, const struct call *c, struct value *out)
{
    return ordered(r, c, 1, false, out);
}

static enum status test_greater_equal(struct run *r, const struct call *c, struct value *out)
{
    return ordered(r, c, 1, true, out);
}

static enum status test_in(struct run *r, const struct call *c, struct value *out)
{
    bool inside = false;
    enum status st = jinja_contains(r, &c->arg[0], &c->self, &inside);
    *out = jinja_bool(inside);
    return st;
}

static enum status test_sameas(struct run *r, const struct call *c, struct value *out)
{
    (void)r;
    return say(jinja_identical(&c->self, &c->arg[0]), out);
}

/* ---- text ---- */

/* Letters of one case only, and at least one. */
static enum status one_case(struct run *r, const struct call *c, char first, char last,
                            struct value *out)
{
    const int shift = first == 'a' ? 'A' - 'a' : 'a' - 'A';
    struct value s;
    bool found = false, other = false;
    enum status st = OK;
    TRY(jinja_to_string(r, &c->self, &s));
    TRY(jinja_spend(r, s.s.n));
    for (size_t i = 0; i < s.s.n; i++) {
        found |= s.s.bytes[i] >= first && s.s.bytes[i] <= last;
        other |= s.s.bytes[i] >= first + shift && s.s.bytes[i] <= last + shift;
    }
    *out = jinja_bool(found && !other);
out:
    return st;
}

static enum status test_lower(struct run *r, const struct call *c, struct value *out)
{
    return one_case(r, c, 'a', 'z', out);
}

static enum status test_upper(struct run *r, const struct call *c, struct value *out)
{
    return one_case(r, c, 'A', 'Z', out);
}

const struct function *jinja_test(const char *name, size_t n)
{
    static const struct function rows[] = {
        {"boolean", test_boolean, 0, {NULL}},
        {"callable", test_callable, 0, {NULL}},
        {"defined", test_defined, 0, {NULL}},
        {"divisibleby", test_divisibleby, 1, {"num"}},
        {"eq", test_equal, 1, {"other"}},
        {"equalto", test_equal, 1, {"other"}},
        {"==", test_equal, 1, {"other"}},
        {"even", test_even, 0, {NULL}},
        {"false", test_false, 0, {NULL}},
        {"float", test_float, 0, {NULL}},
        {"ge", test_greater_equal, 1, {"other"}},
        {">=", test_greater_equal, 1, {"other"}},
        {"greaterthan", test_greater, 1, {"other"}},
        {"gt", test_greater, 1, {"other"}},
        {">", test_greater, 1, {"other"}},
        {"in", test_in, 1, {"seq"}},
        {"integer", test_integer, 0, {NULL}},
        {"iterable", test_iterable, 0, {NULL}},
        {"le", test_less_equal, 1, {"other"}},
        {"<=", test_less_equal, 1, {"other"}},
        {"lessthan", test_less, 1, {"other"}},
        {"lower", test_lower, 0, {NULL}},
        {"lt", test_less, 1, {"other"}},
        {"<", test_less, 1, {"other"}},
        {"mapping", test_mapping, 0, {NULL}},
        {"ne", test_different, 1, {"other"}},
        {"!=", test_different, 1, {"other"}},
        {"none", test_none, 0, {NULL}},
        {"number", test_number, 0, {NULL}},
        {"odd", test_odd, 0, {NULL}},
        {"sameas", test_sameas, 1, {"other"}},
        {"sequence", test_sequence, 0, {NULL}},
        {"string", test_string, 0, {NULL}},
        {"true", test_true, 0, {NULL}},
        {"undefined", test_undefined, 0, {NULL}},
        {"upper", test_upper, 0, {NULL}},
    };
    return jinja_function_find(rows, ARRAY_LEN(rows), name, n);
}
