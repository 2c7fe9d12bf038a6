/* Chat templates at the C level: which bytes are foreign, what is refused and where, every limit,
 * and no memory. What a template renders to is compared with Jinja2 in tests/blackbox. */
#include "server/template/jinja.h"
#include "tests/nomem.h"

#include <pthread.h>
#include <stdio.h>

#define TEXT_MAX (4u << 20)

static struct jdoc *parse(const char *json)
{
    struct err err = {""};
    struct jdoc *doc = NULL;
    if (jdoc_parse(json, strlen(json), &jdoc_limits_request, "here", &doc, &err) != OK)
        fail_msg("%s: %s", json, err.text);
    return doc;
}

static enum status open_text(const char *text, struct jinja **out, struct err *err)
{
    return jinja_open(text, strlen(text), "t", out, err);
}

/* Opens and renders; *out is for the caller to free after success. */
static enum status render(const char *text, const char *vars, const char *own, size_t bytes_max,
                          struct jinja_text *out, struct err *err)
{
    struct jinja *t = NULL;
    struct jdoc *v = parse(vars), *o = own ? parse(own) : NULL;
    enum status st = open_text(text, &t, err);
    if (st == OK)
        st = jinja_render(t, v, o, bytes_max, out, err);
    jinja_close(t);
    jdoc_close(v);
    jdoc_close(o);
    return st;
}

/* ---- foreign bytes ---- */

/* marks: a '.' for each byte of the template's own, an 'f' for a foreign one. */
static void assert_marks(const char *text, const char *vars, const char *wanted, const char *marks)
{
    struct jinja_text out = {.bytes = {.data = NULL}};
    struct err err = {""};
    char got[512];
    if (render(text, vars, "{\"bos\": \"<s>\", \"both\": \"own\"}", TEXT_MAX, &out, &err) != OK)
        fail_msg("%s: %s", text, err.text);
    assert_int_equal(out.bytes.len, strlen(wanted));
    assert_int_equal(out.foreign.len, out.bytes.len);
    for (size_t i = 0; i < out.foreign.len; i++)
        got[i] = out.foreign.data[i] == 1 ? 'f' : out.foreign.data[i] == 0 ? '.' : '?';
    got[out.foreign.len] = '\0';
    if (out.bytes.len > 0)
        assert_memory_equal(out.bytes.data, wanted, out.bytes.len);
    if (strcmp(got, marks) != 0)
        fail_msg("%s:\n%s\n%s, wanted\n%s", text, wanted, got, marks);
    jinja_text_free(&out);
}

static void test_marks(void **state)
{
    static const struct {
        const char *text, *wanted, *marks;
    } rows[] = {
        {"a{{ u }}b", "ayoub", ".fff."},
        {"{{ bos }}{{ u }}", "<s>you", "...fff"},
        {"{{ both }}", "theirs", "ffffff"},
        {"{{ 'a' + u + 'b' }}", "ayoub", ".fff."},
        {"{{ 'a' ~ u ~ n }}", "ayou12", ".fffff"},
        {"{{ ('a' + u + 'b')[1:] }}", "youb", "fff."},
        {"{{ ('a' + u + 'b')[::-1] }}", "buoya", ".fff."},
        {"{{ ('a' + u)[1] }}{{ ('a' + u)[0] }}", "ya", "f."},
        {"{{ ('a' + u)|upper }}{{ u.title() }}", "AYOUYou", ".ffffff"},
        {"{{ 'xuy'.replace('u', u) }}", "xyouy", ".fff."},
        {"{{ u.replace('o', '-') }}", "y-u", "f.f"},
        {"{{ (' ' + u + ' ')|trim }}", "you", "fff"},
        {"{{ [u, 'a', u]|join('-') }}", "you-a-you", "fff...fff"},
        {"{{ u|list|join }}", "you", "fff"},
        {"{{ ('a,' + u).split(',')|join('+') }}", "a+you", "..fff"},
        {"{{ [u, 'a'] }}", "['you', 'a']", ".fffff......"},
        {"{{ l }}", "[1, 'x']", "ffffffff"},
        {"{{ l|tojson }}", "[1, \"x\"]", "ffffffff"},
        {"{{ {'k': u}|tojson }}", "{\"k\": \"you\"}", "......fffff."},
        {"{{ {u: 1}|tojson }}", "{\"you\": 1}", ".fffff...."},
        {"{{ d|tojson(indent=1) }}", "{\n \"k\": 1\n}", "ff.ffffffff"},
        {"{{ n }}{{ n + 1 }}{{ 5 }}{{ n == 12 }}", "12135True", "ffff....."},
        {"{{ u|length }}", "3", "."},
        {"{{ u if u else 'a' }}{{ missing|default(u) }}", "youyou", "ffffff"},
        {"{% set x = u %}{{ x }}", "you", "fff"},
        {"{% set x %}a{{ u }}{% endset %}{{ x }}", "ayou", ".fff"},
        {"{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(u) }}", "<you>", ".fff."},
        {"{% filter upper %}a{{ u }}{% endfilter %}", "AYOU", ".fff"},
        {"{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", "k=1", "f.f"},
        {"{% set ns = namespace(a='') %}{% for c in u %}{% set ns.a = ns.a + c + '.' %}{% endfor %}"
         "{{ ns.a }}",
         "y.o.u.", "f.f.f."},
        {"{{ ('a' + u)|string|safe|indent(2, true) }}", "  ayou", "...fff"},
        {"{{ ('<' + u)|e }}", "&lt;you", "....fff"},
        {"{{ u * 2 }}{{ 'a' * n }}", "youyouaaaaaaaaaaaa", "ffffff............"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_marks(rows[i].text,
                     "{\"u\": \"you\", \"n\": 12, \"l\": [1, \"x\"], \"d\": {\"k\": 1}, "
                     "\"both\": \"theirs\"}",
                     rows[i].wanted, rows[i].marks);
}

/* ---- refusals ---- */

static void assert_fails(const char *text, enum status wanted, const char *message)
{
    struct jinja_text out = {.bytes = {.data = NULL}};
    struct err err = {""};
    const enum status st =
        render(text, "{\"u\": \"you\", \"l\": [1, 2]}", NULL, TEXT_MAX, &out, &err);
    if (st != wanted || !strstr(err.text, message))
        fail_msg("%.60s: status %d, \"%s\"; wanted %d, \"%s\"", text, (int)st, err.text,
                 (int)wanted, message);
}

static void test_refused_at_open(void **state)
{
    static const char *const rows[][2] = {
        {"{{ u|nosuch }}", "t:1:6: the filter \"nosuch\" is not supported"},
        {"ab\n {{ u is nosuch }}", "t:2:10: the test \"nosuch\" is not supported"},
        {"\n\n{% nosuch %}", "t:3:4: the tag \"nosuch\""},
        {"{{ u", "t:1:5: "},
        {"{% if u %}", "t:1:11: the template ends where elif else endif is expected"},
        {"{{ 'a }}", "t:1:4: a string is not ended"},
        {"{{ ) }}", "t:1:4: this bracket closes nothing"},
        {"{{ (] }}", "t:1:5: this bracket closes nothing"},
        {"\xc3\xa9{{ ? }}", "t:1:5: this character is not expected here"},
        {"{{ 99999999999999999999 }}", "t:1:4: a whole number does not fit 64 bits"},
        {"{{ '\\ud800' }}", "t:1:5: this escape is not supported"},
        {"{% break %}", "t:1:4: there is no loop around this"},
        {"{% for x in l recursive %}{% endfor %}", "recursive loops are not supported"},
        {"{{ f(*l) }}", "arguments out of a list are not supported"},
        {"{# a", "t:1:1: a comment is not ended"},
        {"{% raw %}x", "t:1:10: raw is not ended"},
        {"{% set true = 1 %}", "true is no name to assign to"},
        {"{{ '%.2f' % n }}", "t:1:11: formatting with % is not supported"},
        {"{{ 2 * ('a' 'b') % n }}{{ ('%d') % n }}", "t:1:34: formatting with % is not supported"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_fails(rows[i][0], ERR_MODEL, rows[i][1]);
}

static void test_fails_at_render(void **state)
{
    static const char *const rows[][2] = {
        {"{{ raise_exception('roles must alternate') }}", "roles must alternate"},
        {"a\n{{ x.y }}", "t:2:6: \"x\" is undefined"},
        {"{{ u.y.z }}", "this str has no \"y\""},
        {"{{ u + 1 }}", "t:1:4: a str + a int has no result"},
        {"{{ u.nosuch() }}", "this str has no \"nosuch\""},
        {"{{ l.append(1) }}", "list.append is not supported"},
        {"{{ 9223372036854775807 + 1 }}", "a number becomes too large"},
        {"{{ 1 // 0 }}", "division by zero"},
        {"{{ l|map('upper') }}", "make it a list first"},
        {"{% macro m() %}{% endmacro %}{{ m(1) }}", "at most 0 arguments"},
        {"{{ u.replace('a') }}", "replace needs the argument \"new\""},
        {"{{ strftime_now('%c' * 200) }}", "the date becomes too long"},
        {"{{ '0o17'|int(0, 8) }}", "a base other than 10 and 16 is not supported"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_fails(rows[i][0], ERR_INPUT, rows[i][1]);
    /* Whatever the variables are. */
    assert_fails("{% set f = '%s' %}{{ f % u }}", ERR_MODEL, "t:1:22: formatting with % is not");
}

static void test_exception_is_whole_characters(void **state)
{
    char text[2000] = "{{ raise_exception('";
    struct err err = {""};
    struct jinja_text out = {.bytes = {.data = NULL}};
    (void)state;
    for (int i = 0; i < 300; i++)
        strncat(text, "\xe2\x9c\x93", 4);
    strncat(text, "') }}", 6);
    assert_int_equal(render(text, "{}", NULL, TEXT_MAX, &out, &err), ERR_INPUT);
    assert_int_equal(strlen(err.text), (sizeof err.text - 1) / 3 * 3);
}

/* ---- limits ---- */

/* n times `open`, `middle`, n times `close`. */
static char *nested(const char *open, const char *middle, const char *close, size_t n)
{
    struct buf b;
    size_t len;
    buf_init(&b, 8u << 20);
    for (size_t i = 0; i < n; i++)
        buf_puts(&b, open);
    buf_puts(&b, middle);
    for (size_t i = 0; i < n; i++)
        buf_puts(&b, close);
    char *text = buf_take(&b, &len);
    assert_non_null(text);
    return text;
}

static enum status render_nested(const char *open, const char *middle, const char *close, size_t n)
{
    struct jinja_text out = {.bytes = {.data = NULL}};
    struct err err = {""};
    char *text = nested(open, middle, close, n);
    enum status st = render(text, "{\"n\": 1}", NULL, TEXT_MAX, &out, &err);
    if (st == OK)
        jinja_text_free(&out);
    free(text);
    return st;
}

static void test_nesting(void **state)
{
    static const struct {
        const char *open, *middle, *close;
    } rows[] = {
        {"{% if n %}", "x", "{% endif %}"},
        {"{{ (", "1", ") }}"},
        {"{{ n[", "n", "] }}"},
        {"{% set x %}", "x", "{% endset %}"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_int_equal(render_nested(rows[i].open, rows[i].middle, rows[i].close, 10000),
                         ERR_MODEL);
    assert_int_equal(render_nested("{% if n %}", "x", "{% endif %}", 60), OK);
    assert_int_equal(render_nested("{% if n %}", "x", "{% endif %}", 70), ERR_MODEL);
}

static void assert_expression_fails(const char *open, const char *close, enum status wanted)
{
    char *inner = nested(open, "n", close, 5000);
    struct buf b;
    struct err err = {""};
    struct jinja_text out = {.bytes = {.data = NULL}};
    buf_init(&b, 1 << 20);
    buf_printf(&b, "{{ %s }}", inner);
    assert_int_equal(render(b.data, "{\"n\": 1}", NULL, TEXT_MAX, &out, &err), wanted);
    buf_free(&b);
    free(inner);
}

static void test_deep_expressions(void **state)
{
    (void)state;
    assert_expression_fails("(", ")", ERR_MODEL);
    assert_expression_fails("[", "]", ERR_MODEL);
    assert_expression_fails("{1:", "}", ERR_MODEL);
    assert_expression_fails("- ", "", ERR_MODEL);
    assert_expression_fails("not ", "", ERR_MODEL);
    assert_expression_fails("n if n else ", "", ERR_MODEL);
    assert_expression_fails("n[", "]", ERR_MODEL);
    assert_expression_fails("n(", ")", ERR_MODEL);
    assert_expression_fails("", "+n", ERR_LIMIT); /* a chain is deep only as a tree */
    assert_expression_fails("", "|abs", ERR_LIMIT);
    assert_expression_fails("", "[0]", ERR_LIMIT);
}

#define TEN_TIMES(x) x x x x x x x x x x

static void test_limits_of_a_render(void **state)
{
    static const char *const rows[][2] = {
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
         "too many steps"},
        {"{% set r = range(99999) %}{% for i in r %}{% set x = r|list %}{% endfor %}",
         "too much memory"},
        {"{% set r = range(999) %}{% for a in r %}{% for b in r if b < a %}{% endfor %}{% endfor "
         "%}",
         "too many steps"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deep"},
        {"{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}"
         "{% endfor %}",
         "too"},
        {"{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = ns.l + ns.l %}"
         "{% endfor %}",
         "too"},
        {"{{ 'x' * 999999999999 }}", "too"},
        {"{{ [1] * 999999999999 }}", "too long"},
        {"{{ 'x'|indent(999999999999, true) }}", "too"},
        {"{{ [1]|tojson(indent=999999999999) }}", "too"},
        {"{% set ns = namespace() %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% endfor %}"
         "{{ ns.a }}",
         "too deep"},
        {"{% set ns = namespace() %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% endfor %}"
         "{{ ns.a|tojson }}",
         "too deep"},
        {"{{ 'x'|map(" TEN_TIMES(TEN_TIMES("'map', 'map', 'map', 'map', 'map',")) ")|list }}",
         "too deep"},
        {"{% set x = 1e-300 * 1e-10 %}{% for i in range(60000) %}{{ x }}{% endfor %}",
         "too many steps"},
        {"{% set x = 1e-300 * 1e-10 %}{% for i in range(60000) %}{% set s = x|tojson %}"
         "{% endfor %}",
         "too many steps"},
        {"{% set r = range(99999)|list %}{% for i in range(60000) %}{% set x = -1 in r %}"
         "{% endfor %}",
         "too many steps"},
        {"{% set x = 'x' * 100000 %}{% set a = x + 'a' %}{% set b = x + 'b' %}{% set d = {a: 1} %}"
         "{% for i in range(60000) %}{% set x = b in d %}{% endfor %}",
         "too many steps"},
        {"{% set a = namespace() %}{% set b = namespace() %}{% for i in range(9999) %}"
         "{% set a.a = [a.a] %}{% set b.a = [b.a] %}{% endfor %}{{ a.a == b.a }}",
         "too deep"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_fails(rows[i][0], ERR_LIMIT, rows[i][1]);
}

/* A loop that is asked for its length looks at all of its items first. */
static void test_long_loop(void **state)
{
    struct jinja_text out = {.bytes = {.data = NULL}};
    struct err err = {""};
    (void)state;
    assert_int_equal(render("{% for i in range(40000) %}{% if loop.first %}{{ loop.length }}"
                            "{% endif %}{% endfor %}",
                            "{}", NULL, TEXT_MAX, &out, &err),
                     OK);
    assert_string_equal(out.bytes.data, "40000");
    jinja_text_free(&out);
}

static void test_text_has_a_bound(void **state)
{
    struct jinja_text out = {.bytes = {.data = NULL}};
    struct err err = {""};
    (void)state;
    assert_int_equal(render("abcde", "{}", NULL, 5, &out, &err), OK);
    assert_int_equal(out.bytes.len, 5);
    jinja_text_free(&out);
    assert_int_equal(render("abcdef", "{}", NULL, 5, &out, &err), ERR_LIMIT);
    assert_string_equal(err.text, "t: the text becomes too long");
}

static void test_template_has_a_bound(void **state)
{
    struct err err = {""};
    struct jinja *t = NULL;
    char *text = calloc(1, JINJA_BYTES_MAX + 1);
    (void)state;
    assert_non_null(text);
    memset(text, 'x', JINJA_BYTES_MAX + 1);
    assert_int_equal(jinja_open(text, JINJA_BYTES_MAX, "t", &t, &err), OK);
    jinja_close(t);
    assert_int_equal(jinja_open(text, JINJA_BYTES_MAX + 1, "t", &t, &err), ERR_MODEL);
    free(text);
}

/* ---- any thread, and no memory ---- */

static const char *const busy_text =
    "{% macro m(a, b=1) %}{{ a }}{{ b }}{% endmacro %}{% set ns = namespace(s='') %}"
    "{% for m in messages if m.role %}{% set ns.s = ns.s ~ m.role|upper %}{{ loop.last }}"
    "{{ m|tojson(indent=2) }}{% for k, v in m|dictsort %}{{ k }}{{ v }}{% endfor %}{% endfor %}"
    "{{ ns.s }}{{ m(1) }}{{ [3, 1, 2]|sort|join('-') }}{{ 'a b c'.split()|map('upper')|list }}"
    "{% set x %}{{ bos }}{% endset %}{{ x.replace('s', '//') }}{{ [1, 2][::-1] }}{{ {'a': 1} }}"
    "{{ 'a' 'b' }}";
static const char *const busy_vars =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\"}]}";

struct often {
    const struct jinja *t;
    struct jinja_text wanted;
};

static void *render_often(void *arg)
{
    const struct often *o = arg;
    const size_t n = o->wanted.bytes.len;
    struct jdoc *vars = parse(busy_vars);
    for (int i = 0; i < 200; i++) {
        struct jinja_text out = {.bytes = {.data = NULL}};
        struct err err = {""};
        CHECK(jinja_render(o->t, vars, NULL, TEXT_MAX, &out, &err) == OK);
        CHECK(out.bytes.len == n && memcmp(out.bytes.data, o->wanted.bytes.data, n) == 0);
        CHECK(memcmp(out.foreign.data, o->wanted.foreign.data, n) == 0);
        jinja_text_free(&out);
    }
    jdoc_close(vars);
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t threads[4];
    struct jinja *t = NULL;
    struct jdoc *vars = parse(busy_vars);
    struct often o;
    struct err err = {""};
    (void)state;
    assert_int_equal(open_text(busy_text, &t, &err), OK);
    assert_int_equal(jinja_render(t, vars, NULL, TEXT_MAX, &o.wanted, &err), OK);
    o.t = t;
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, &o), 0);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    jinja_text_free(&o.wanted);
    jdoc_close(vars);
    jinja_close(t);
}

static enum status open_and_render(const void *ctx, struct err *err)
{
    struct jinja_text out = {.bytes = {.data = NULL}};
    struct jinja *t = NULL;
    enum status st = OK;
    TRY(open_text(busy_text, &t, err));
    TRY(jinja_render(t, ctx, NULL, TEXT_MAX, &out, err));
    assert_true(out.bytes.len > 100);
    jinja_text_free(&out);
out:
    jinja_close(t);
    return st;
}

static void test_no_memory(void **state)
{
    struct jdoc *vars = parse(busy_vars);
    (void)state;
    nomem_sweep("jinja", open_and_render, vars);
    jdoc_close(vars);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_refused_at_open),
        cmocka_unit_test(test_fails_at_render),
        cmocka_unit_test(test_exception_is_whole_characters),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_deep_expressions),
        cmocka_unit_test(test_limits_of_a_render),
        cmocka_unit_test(test_long_loop),
        cmocka_unit_test(test_text_has_a_bound),
        cmocka_unit_test(test_template_has_a_bound),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
