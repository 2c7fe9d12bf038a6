/* The ground floor: checked arithmetic, words, element types, bounded buffers, bounded JSON. */
#include "config/base.h"
#include "config/buf.h"
#include "config/dtype.h"
#include "config/jdoc.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed = 1;

static uint64_t next_random(void) /* splitmix64 */
{
    uint64_t z = seed += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" does not say \"%s\"", text, part);
}

/* ---- base ---- */

static void test_arithmetic(void **state)
{
    (void)state;
    size_t out = 7;
    assert_true(base_mul(SIZE_MAX / 2, 2, &out));
    assert_int_equal(out, SIZE_MAX - 1);
    out = 7;
    assert_false(base_mul(SIZE_MAX / 2 + 1, 2, &out));
    assert_false(base_add(SIZE_MAX, 1, &out));
    assert_int_equal(out, 7); /* untouched on failure */
    assert_true(base_mul(0, SIZE_MAX, &out));
    assert_int_equal(out, 0);
    assert_true(base_add(SIZE_MAX - 1, 1, &out));
    assert_int_equal(out, SIZE_MAX);
    assert_int_equal(base_align(0, 64), 0);
    assert_int_equal(base_align(1, 64), 64);
    assert_int_equal(base_align(64, 64), 64);
    assert_int_equal(base_align(65, 64), 128);
}

/* The definition, by recursion over the ends of both words. */
static int naive_distance(const char *a, int na, const char *b, int nb)
{
    if (na == 0 || nb == 0)
        return na + nb;
    int best = naive_distance(a, na - 1, b, nb - 1) + (a[na - 1] != b[nb - 1]);
    int del = naive_distance(a, na - 1, b, nb) + 1, ins = naive_distance(a, na, b, nb - 1) + 1;
    best = del < best ? del : best;
    best = ins < best ? ins : best;
    if (na > 1 && nb > 1 && a[na - 1] == b[nb - 2] && a[na - 2] == b[nb - 1]) {
        int swap = naive_distance(a, na - 2, b, nb - 2) + 1;
        best = swap < best ? swap : best;
    }
    return best;
}

static void test_edit_distance(void **state)
{
    (void)state;
    char a[65], b[65];
    for (int i = 0; i < 400; i++) {
        int na = (int)(next_random() % 6), nb = (int)(next_random() % 6);
        for (int j = 0; j < 6; j++) {
            a[j] = (char)('a' + next_random() % 3);
            b[j] = (char)('a' + next_random() % 3);
        }
        a[na] = b[nb] = '\0';
        assert_int_equal(base_edit_distance(a, b), naive_distance(a, na, b, nb));
    }
    assert_int_equal(base_edit_distance("prot", "port"), 1);
    memset(a, 'x', 64);
    a[64] = '\0';
    assert_true(base_edit_distance(a, "x") >= 1000);
    a[63] = '\0';
    assert_int_equal(base_edit_distance(a, "x"), 62);
}

static void test_ends_with(void **state)
{
    (void)state;
    assert_true(base_ends_with("layers.0.weight", ".weight"));
    assert_true(base_ends_with(".weight", ".weight"));
    assert_true(base_ends_with("a", ""));
    assert_false(base_ends_with("weight", ".weight"));
    assert_false(base_ends_with("layers.weight.0", ".weight"));
}

static void test_human_bytes(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1.0 KiB"},
                 {1536, "1.5 KiB"},
                 {312 << 10, "312 KiB"},
                 {1ull << 30, "1.0 GiB"},
                 {3ull << 40, "3.0 TiB"},
                 {5000ull << 40, "5000 TiB"}};
    char text[32];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_string_equal(base_human_bytes(text, sizeof text, cases[i].bytes), cases[i].text);
}

/* Published vectors of FNV-1a 64. */
static void test_hash(void **state)
{
    (void)state;
    assert_true(base_hash(BASE_HASH_INIT, "", 0) == 0xcbf29ce484222325ull);
    assert_true(base_hash(BASE_HASH_INIT, "a", 1) == 0xaf63dc4c8601ec8cull);
    assert_true(base_hash(BASE_HASH_INIT, "foobar", 6) == 0x85944171f73967e8ull);
    assert_true(base_hash(base_hash(BASE_HASH_INIT, "foo", 3), "bar", 3) == 0x85944171f73967e8ull);
    /* the vectors of SipHash's authors: key 00 01 .. 0f, n bytes 00 01 .. */
    const uint64_t secret[2] = {0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull};
    static const struct {
        size_t n;
        uint64_t want;
    } sip[] = {{0, 0x726fdb47dd0e0e31ull},
               {1, 0x74f839c593dc67fdull},
               {7, 0xab0200f58b01d137ull},
               {8, 0x93f5f5799a932462ull},
               {15, 0xa129ca6149be45e5ull}};
    const unsigned char bytes[15] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    for (size_t i = 0; i < ARRAY_LEN(sip); i++)
        assert_true(base_siphash(secret, bytes, sip[i].n) == sip[i].want);
}

static void test_errors(void **state)
{
    (void)state;
    static const int codes[] = {
        [OK] = 0,         [ERR_USAGE] = 2,     [ERR_MODEL] = 3,    [ERR_IO] = 3,   [ERR_LIMIT] = 4,
        [ERR_DEVICE] = 4, [ERR_NOMEM] = 4,     [ERR_INPUT] = 3,    [ERR_COMM] = 5, [ERR_PEER] = 1,
        [ERR_OUTPUT] = 1, [ERR_CANCELLED] = 0, [ERR_INTERNAL] = 70};
    struct err err;
    for (size_t i = 0; i < ARRAY_LEN(codes); i++)
        assert_int_equal(base_exit_code((enum status)i), codes[i]);
    assert_int_equal(base_fail(&err, ERR_IO, "%0*d", 2000, 1), ERR_IO);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    errno = ENOENT;
    assert_int_equal(base_fail_errno(&err, ERR_IO, "%s", "file"), ERR_IO);
    assert_string_equal(err.text, "file: No such file or directory");
    errno = ENOENT;
    assert_int_equal(base_fail_errno(&err, ERR_IO, "%0*d", 2000, 1), ERR_IO);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    /* what bounds processes is named, the rest is what the kernel says */
    assert_int_equal(base_fail_start(&err, EAGAIN, "thread %d", 3), ERR_LIMIT);
    assert_memory_equal(err.text, "thread 3: Resource temporarily unavailable; that many", 53);
    assert_int_equal(base_fail_start(&err, EMFILE, "a"), ERR_LIMIT);
    assert_string_equal(err.text, "a: Too many open files");
    assert_int_equal(base_fail_start(&err, ENOMEM, "a"), ERR_NOMEM);
    assert_int_equal(base_fail_start(&err, EPERM, "a"), ERR_INTERNAL);
    assert_int_equal(base_fail_start(&err, EAGAIN, "%0*d", 2000, 1), ERR_LIMIT); /* cut */
}

/* ---- dtype ---- */

struct format {
    enum dtype dtype;
    int mantissa, bias; /* bits; the sign is bit 15 */
};
static const struct format formats[] = {{DTYPE_F16, 10, 15}, {DTYPE_BF16, 7, 127}};

static double decode(const struct format *f, unsigned h)
{
    int mantissa = (int)(h & ((1u << f->mantissa) - 1));
    int exponent = (int)((h & 0x7fffu) >> f->mantissa);
    double v;
    if (exponent == 2 * f->bias + 1)
        v = mantissa ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        v = ldexp(mantissa, 1 - f->bias - f->mantissa);
    else
        v = ldexp(mantissa + (1 << f->mantissa), exponent - f->bias - f->mantissa);
    return h & 0x8000u ? -v : v;
}

/* The nearest value of the format, ties to even, by rint of exact doubles. */
static double nearest(const struct format *f, double x)
{
    int exponent;
    frexp(x, &exponent); /* |x| in [2^(e-1), 2^e) */
    int lowest = 1 - f->bias;
    int quantum = (exponent - 1 > lowest ? exponent - 1 : lowest) - f->mantissa;
    double r = ldexp(rint(ldexp(x, -quantum)), quantum);
    return fabs(r) >= ldexp(1, f->bias + 1) ? copysign((double)INFINITY, x) : r;
}

static void check_rounding(const struct format *f, float x)
{
    uint16_t h;
    dtype_store(&h, f->dtype, 0, x);
    double got = decode(f, h), want = isinf(x) ? (double)x : nearest(f, (double)x);
    if (got != want || signbit(got) != signbit(want))
        fail_msg("%s of %a is %a, expected %a", dtype_name(f->dtype), (double)x, got, want);
}

static void test_round_trips(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
        for (unsigned h = 0; h < 65536; h++) {
            uint16_t in = (uint16_t)h, out;
            double want = decode(&formats[i], h);
            float got = dtype_load(&in, formats[i].dtype, 0);
            dtype_store(&out, formats[i].dtype, 0, got);
            if (isnan(want)) {
                assert_true(isnan(got));
                assert_true(isnan(decode(&formats[i], out)));
                continue;
            }
            assert_true((double)got == want && signbit((double)got) == signbit(want));
            assert_int_equal(in, out);
        }
    }
}

static void test_rounding(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
        for (int n = 0; n < 200000; n++) {
            uint32_t bits = (uint32_t)next_random();
            float x;
            memcpy(&x, &bits, sizeof x);
            if (!isnan(x))
                check_rounding(&formats[i], x);
            /* also where f16 has values */
            x = (float)ldexp((double)(bits >> 8), (int)(bits % 48) - 56);
            check_rounding(&formats[i], x);
            check_rounding(&formats[i], -x);
        }
        for (unsigned h = 0; h < 32767; h++) { /* ties, and one step beside them */
            double a = decode(&formats[i], h), b = decode(&formats[i], h + 1);
            if (isnan(a) || isnan(b) || isinf(a) || isinf(b))
                continue;
            float tie = (float)((a + b) / 2);
            check_rounding(&formats[i], tie);
            check_rounding(&formats[i], nextafterf(tie, 0));
            check_rounding(&formats[i], nextafterf(tie, INFINITY));
        }
    }
    check_rounding(&formats[0], 65520); /* the tie at the end of f16 */
    check_rounding(&formats[0], nextafterf(65520, 0));
}

static void test_dtype_names(void **state)
{
    (void)state;
    enum dtype t;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        const bool in_files = i != DTYPE_I4 && i != DTYPE_U4 && i != DTYPE_F4_E2M1;
        assert_int_equal(dtype_parse(dtype_name((enum dtype)i), &t), in_files);
        assert_true(t == (enum dtype)i || !in_files);
        assert_int_equal(dtype_size((enum dtype)i) > 0, in_files);
        bool compute = i == DTYPE_F32 || i == DTYPE_F16 || i == DTYPE_BF16;
        assert_int_equal(dtype_is_compute((enum dtype)i), compute);
    }
    assert_false(dtype_parse("f32", &t));
    assert_false(dtype_parse("", &t));
    assert_int_equal(dtype_size(DTYPE_I64), 8);
    assert_int_equal(dtype_size(DTYPE_F8_E5M2), 1);
    float x[2] = {0, 0};
    dtype_store(x, DTYPE_F32, 1, 1.25f);
    assert_true(dtype_load(x, DTYPE_F32, 1) == 1.25f);
}

/* ---- buf ---- */

static void test_buf_bounds(void **state)
{
    (void)state;
    struct buf b;
    size_t n = 99;
    buf_init(&b, 10);
    buf_puts(&b, "01234");
    buf_printf(&b, "%d", 56789);
    assert_false(b.failed);
    assert_string_equal(b.data, "0123456789");
    buf_add(&b, "", 0);
    assert_false(b.failed);
    buf_add(&b, "x", 1);
    assert_true(b.failed);
    assert_string_equal(b.data, "0123456789"); /* keeps what is there */
    buf_consume(&b, 4);
    buf_puts(&b, "x"); /* a failed buffer takes nothing more */
    assert_string_equal(b.data, "456789");
    assert_null(buf_take(&b, &n));
    assert_int_equal(n, 99);
    assert_null(b.data);
    buf_printf(&b, "%s", "01234567890"); /* one too many at once */
    assert_true(b.failed);
    buf_clear(&b);
    assert_false(b.failed);
    buf_puts(&b, "abc");
    buf_consume(&b, 9);
    assert_int_equal(b.len, 0);
    buf_free(&b);
    buf_free(&b);
}

static void test_buf_take(void **state)
{
    (void)state;
    struct buf b;
    size_t n;
    buf_init(&b, 0);
    char *empty = buf_take(&b, &n);
    assert_non_null(empty);
    assert_string_equal(empty, "");
    assert_int_equal(n, 0);
    free(empty);
    buf_init(&b, 100000);
    for (int i = 0; i < 10000; i++)
        buf_printf(&b, "%09d,", i);
    char *all = buf_take(&b, &n);
    assert_int_equal(n, 100000);
    assert_int_equal(b.len, 0);
    assert_memory_equal(all + 99990, "000009999,", 11);
    free(all);
    buf_free(&b);
}

static void test_buf_json(void **state)
{
    (void)state;
    struct buf b;
    struct jdoc *doc;
    struct err err;
    char text[8];
    buf_init(&b, 100);
    buf_json(&b, "a\"\\\b\f\n\r\t\0\x1f\x7f\xc3\xa9/", 14);
    assert_string_equal(b.data, "\"a\\\"\\\\\\b\\f\\n\\r\\t\\u0000\\u001f\\u007f\xc3\xa9/\"");
    for (int c = 1; c < 128; c++) {
        int n = snprintf(text, sizeof text, "x%c%cy", c, c);
        buf_clear(&b);
        buf_json(&b, text, (size_t)n);
        for (size_t i = 0; i < b.len; i++)
            assert_true((unsigned char)b.data[i] >= 0x20);
        assert_int_equal(jdoc_parse(b.data, b.len, &jdoc_limits_request, "t", &doc, &err), OK);
        assert_string_equal(jdoc_string(doc), text);
        jdoc_close(doc);
    }
    buf_free(&b);
}

/* ---- jdoc ---- */

static enum status parse(const char *text, const struct jdoc_limits *l, struct err *err)
{
    struct jdoc *doc = NULL;
    enum status st = jdoc_parse(text, strlen(text), l, "where", &doc, err);
    if (st == OK)
        assert_non_null(doc);
    else
        assert_null(doc);
    jdoc_close(doc);
    return st;
}

static void test_json_limits(void **state)
{
    (void)state;
    struct err err;
    static const struct {
        const char *text;
        struct jdoc_limits limits;
        const char *wanted; /* NULL: is read */
    } cases[] = {
        {"[[[]]]", {6, 3, 6, false, false, false}, NULL},
        {"[[[]]]", {5, 3, 6, false, false, false}, "where: 6 bytes of JSON, at most 5"},
        {"[[[]]]", {6, 2, 6, false, false, false}, "where: JSON nested deeper than 2"},
        {"[[[]]]", {6, 3, 5, false, false, false}, "where: more than 5 JSON tokens"},
        {"{\"a\":[1,2],\"b\":0}", {99, 2, 8, false, false, false}, NULL},
        {"{\"a\":[1,2],\"b\":0}", {99, 2, 7, false, false, false}, "more than 7 JSON tokens"},
        {"[[],[],[]]", {99, 2, 10, false, false, false}, NULL}, /* depth is not a count */
        {"\"[[[{{{,,,:::\\\"[[[\\\\\"", {99, 1, 1, false, false, false}, NULL},
        {"[\"]\",\"\\\"]\"]", {99, 1, 3, false, false, false}, NULL},
        {"1", {99, 0, 0, false, false, false}, NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        enum status st = parse(cases[i].text, &cases[i].limits, &err);
        if (st != (cases[i].wanted ? ERR_INPUT : OK))
            fail_msg("%s: status %d, %s", cases[i].text, st, st ? err.text : "");
        if (st != OK)
            assert_contains(err.text, cases[i].wanted);
    }
}

static void test_json_strict(void **state)
{
    (void)state;
    struct err err;
    struct jdoc *doc = NULL;
    static const char cases[] = /* separated by | */
        "|{|[1|[1]]|1 2|{\"a\":1,\"a\":2}|[1,]|{'a':1}|nul|NaN|[Infinity]|\"\\u0000\"|\"\xff\"|"
        "\"\xc3\"|\"\xc0\x80\"|\"\\ud800\"|\"\xed\xa0\x80\"|\"a|\"a\\|\"a\nb\"|1e999|"
        "99999999999999999999|01|{\"a\":1} x|// c\n1|{\"a\" 1}|]|]]]][[[[";
    for (const char *at = cases;; at++) {
        size_t n = strcspn(at, "|");
        if (jdoc_parse(at, n, &jdoc_limits_config, "where", &doc, &err) != ERR_INPUT)
            fail_msg("accepted: %.*s", (int)n, at);
        assert_contains(err.text, "where: line ");
        at += n;
        if (!*at)
            break;
    }
    assert_int_equal(jdoc_parse("[1]\0", 4, &jdoc_limits_request, "nul", &doc, &err), ERR_INPUT);
    assert_int_equal(jdoc_parse("\"a\0b\"", 5, &jdoc_limits_request, "nul", &doc, &err), ERR_INPUT);
    assert_null(doc);
}

/* jansson alone drops a NUL behind a number or a word. */
static void test_json_nul_between_tokens(void **state)
{
    static const struct {
        const char *text;
        size_t n;
    } cases[] = {
        {"1\0", 2},       {"[1\0]", 4},           {"[1\0\0,2]", 7},          {"1.5e3\0", 6},
        {"[true\0]", 7},  {"{\"a\":null\0}", 11}, {"{\"a\\\"b\":-0\0}", 12}, {"\0 1", 3},
        {"[\"a\"\0]", 6},
    };
    static const struct jdoc_limits *const limits[] = {&jdoc_limits_request, &jdoc_limits_call,
                                                       &jdoc_limits_config, &jdoc_limits_file,
                                                       &jdoc_limits_tokenizer};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases) * ARRAY_LEN(limits); i++) {
        const size_t k = i / ARRAY_LEN(limits);
        struct err err = {""};
        struct jdoc *doc = NULL;
        if (jdoc_parse(cases[k].text, cases[k].n, limits[i % ARRAY_LEN(limits)], "where", &doc,
                       &err) != ERR_INPUT)
            fail_msg("case %zu: accepted", k);
        assert_contains(err.text, "where: a NUL byte between JSON tokens");
    }
}

static void test_json_nul(void **state)
{
    (void)state;
    struct err err;
    struct jdoc *doc = NULL;
    static const char value[] = "[\"a\\u0000b\"]", key[] = "{\"a\\u0000b\":1}";
    assert_int_equal(parse(value, &jdoc_limits_config, &err), ERR_INPUT);
    assert_int_equal(parse(key, &jdoc_limits_request, &err), ERR_INPUT);
    assert_int_equal(jdoc_parse(value, strlen(value), &jdoc_limits_request, "nul", &doc, &err), OK);
    assert_int_equal(jdoc_string_len(jdoc_at(doc, 0)), 3);
    jdoc_close(doc);
}

/* Hugging Face writes "no limit" as the integer 10^30 into tokenizer_config.json. */
static void test_json_big(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a 99999999999999999999\\\"9\":[1000000000000000019884624838656,7,-9223372036854775809,"
        "9223372036854775807,1e2,12345678901234567890.5]}";
    static const bool real[] = {true, false, true, false, true, true};
    struct jdoc *doc;
    struct err err;
    const char *key;
    const struct jdoc *list;
    assert_int_equal(parse(text, &jdoc_limits_file, &err), ERR_INPUT);
    assert_int_equal(jdoc_parse(text, sizeof text - 1, &jdoc_limits_tokenizer, "t", &doc, &err),
                     OK);
    assert_non_null(jdoc_iter(doc, NULL, &key, &list));
    assert_string_equal(key, "a 99999999999999999999\"9");
    assert_int_equal(jdoc_size(list), ARRAY_LEN(real));
    for (size_t i = 0; i < ARRAY_LEN(real); i++)
        assert_int_equal(jdoc_type(jdoc_at(list, i)), real[i] ? JDOC_REAL : JDOC_INT);
    assert_true(jdoc_number(jdoc_at(list, 0)) == 1e30);
    assert_int_equal(jdoc_int(jdoc_at(list, 3)), INT64_MAX);
    jdoc_close(doc);
    assert_int_equal(parse("99999999999999999999", &jdoc_limits_tokenizer, &err), OK);
    assert_int_equal(parse("[99999999999999999999, 1e999]", &jdoc_limits_tokenizer, &err),
                     ERR_INPUT);
}

static void test_json_access(void **state)
{
    (void)state;
    static const char text[] =
        "{\"n\":null,\"b\":true,\"i\":-7,\"r\":0.5,\"s\":\"\\u00e9\",\"a\":[1,2]}";
    static const char keys[] = "nbirsa";
    struct jdoc *doc;
    struct err err;
    const char *key;
    const struct jdoc *v;
    assert_int_equal(jdoc_parse(text, sizeof text - 1, &jdoc_limits_file, "t", &doc, &err), OK);
    int n = 0;
    for (void *it = jdoc_iter(doc, NULL, &key, &v); it; it = jdoc_iter(doc, it, &key, &v)) {
        assert_int_equal(key[0], keys[n]);
        assert_ptr_equal(jdoc_get(doc, key), v);
        assert_int_equal(jdoc_type(v), n++); /* in the order of enum jdoc_type */
    }
    assert_int_equal(n, 6);
    assert_null(jdoc_get(doc, "x"));
    assert_null(jdoc_get_value(doc, "n"));
    assert_true(jdoc_bool(jdoc_get(doc, "b")));
    assert_int_equal(jdoc_int(jdoc_get(doc, "i")), -7);
    assert_true(jdoc_number(jdoc_get(doc, "i")) == -7 && jdoc_number(jdoc_get(doc, "r")) == 0.5);
    assert_int_equal(jdoc_string_len(jdoc_get(doc, "s")), 2);
    assert_int_equal(jdoc_size(jdoc_get(doc, "a")), 2);
    assert_int_equal(jdoc_size(doc), 6);
    assert_int_equal(jdoc_int(jdoc_at(jdoc_get(doc, "a"), 1)), 2);
    assert_null(jdoc_at(jdoc_get(doc, "a"), 2));
    assert_ptr_equal(jdoc_member(doc, "s", JDOC_STRING), jdoc_get(doc, "s"));
    assert_null(jdoc_member(doc, "s", JDOC_INT));
    assert_null(jdoc_member(doc, "x", JDOC_STRING));
    assert_null(jdoc_member(jdoc_get(doc, "a"), "s", JDOC_STRING));
    assert_null(jdoc_member(NULL, "s", JDOC_STRING));
    assert_string_equal(jdoc_type_name(JDOC_ARRAY), "an array");
    jdoc_close(doc);
    jdoc_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arithmetic),
        cmocka_unit_test(test_edit_distance),
        cmocka_unit_test(test_ends_with),
        cmocka_unit_test(test_human_bytes),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_dtype_names),
        cmocka_unit_test(test_buf_bounds),
        cmocka_unit_test(test_buf_take),
        cmocka_unit_test(test_buf_json),
        cmocka_unit_test(test_json_limits),
        cmocka_unit_test(test_json_strict),
        cmocka_unit_test(test_json_nul_between_tokens),
        cmocka_unit_test(test_json_nul),
        cmocka_unit_test(test_json_big),
        cmocka_unit_test(test_json_access),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
