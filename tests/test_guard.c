/* The rules for a request's head and for chunks, on raw bytes: what is refused and how, that a head
 * means the same however it is cut into packets, and bounds. Then which origins CORS lets in, and
 * which hosts a request may be for. */
#include "server/http/http_accept.h"
#include "server/http/http_cors.h"
#include "server/http/http_guard.h"
#include "server/http/http_host.h"
#include "tests/scratch.h"

#include <stdio.h>
#include <string.h>

static const struct http_limits limits = {.header_bytes = 1024, .target_bytes = 64, .headers = 5};

/* Statuses as RFC 9110 and 9112 name them; 0: accepted, -1: not whole. */
struct row {
    int status;
    const char *text;
    size_t n; /* 0: up to the NUL */
};

#define HEAD(s) s, sizeof(s) - 1
#define GET "GET / HTTP/1.1\r\nHost: x\r\n"
#define POST "POST / HTTP/1.1\r\nHost: x\r\n"

static const struct row rows[] = {
    {0, HEAD(GET "\r\n")},
    {0, HEAD("GET /a?b=c HTTP/1.0\r\n\r\n")},
    {0, HEAD(GET "Empty:\r\nOther: \t a b \t\r\n\r\n")},
    {0, HEAD(GET "Text: caf\xc3\xa9\r\n\r\n")},
    {0, HEAD("GET / HTTP/1.1\r\nhOST: [::1]:80\r\n\r\n")},
    {0, HEAD("GET http://x/a HTTP/1.1\r\nHost: y\r\n\r\n")},
    {0, HEAD("GET HTTPS://[::1]:80?b HTTP/1.1\r\nHost: [::1]:80\r\n\r\n")},
    {0, HEAD("GET http://x HTTP/1.0\r\n\r\n")},
    {0, HEAD("OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n")},
    {0, HEAD(POST "Content-Length: 0\r\n\r\n")},
    {0, HEAD(POST "Transfer-Encoding: Chunked\r\n\r\nanything\n\0")},
    {0, HEAD(POST "Content-Length: 5\r\nExpect: 100-Continue\r\n\r\nhello")},
    {0, HEAD(POST "Content-Length: 5\r\nContent-Encoding: identity\r\n\r\nhello")},
    {-1, HEAD("")},
    {-1, HEAD("GE")},
    {-1, HEAD(GET)},
    {-1, HEAD(GET "\r")},
    {-1, HEAD(GET "Half: a head")},
    /* the request line */
    {400, HEAD("\r\n" GET "\r\n")},
    {400, HEAD("\x16\x03\x01\x02")}, /* TLS, at once */
    {400, HEAD("{\"prompt\":1}")},
    {400, HEAD("GET  / HTTP/1.1\r\n")},
    {400, HEAD("GET / HTTP/1.1 \r\n")},
    {400, HEAD("GET /a b HTTP/1.1\r\n")},
    {400, HEAD("GET x HTTP/1.1\r\n")},
    {400, HEAD("GET http:/x/ HTTP/1.1\r\n")},
    {400, HEAD("GET http:/// HTTP/1.1\r\n")},
    {400, HEAD("GET ftp://x/ HTTP/1.1\r\n")},
    {400, HEAD("GET http://u@x/ HTTP/1.1\r\n")},
    {400, HEAD("GET http://x/ HTTP/1.1\r\n\r\n")},
    {400, HEAD("GET /%00 HTTP/1.1\r\n")},
    {400, HEAD("GET /a%002 HTTP/1.1\r\n")},
    {400, HEAD("GET /\0 HTTP/1.1\r\n")},
    {400, HEAD("GET /\x01 HTTP/1.1\r\n")},
    {400, HEAD("GET /\x7f HTTP/1.1\r\n")},
    {400, HEAD("GET /\xc3\xa9 HTTP/1.1\r\n")},
    {400, HEAD("GET / HTTP/1.1\n")},
    {505, HEAD("GET / HTTP/1.1\r\r\n")},
    {414, HEAD("GET /0123456789012345678901234567890123456789012345678901234567890123"
               " HTTP/1.1\r\n")},
    {414, HEAD("GET /01234567890123456789012345678901234567890123456789012345678901234567890123456"
               "789")}, /* whose end has not come */
    {501, HEAD("BREW / HTTP/1.1\r\n")},
    {501, HEAD("get / HTTP/1.1\r\n")},
    {501, HEAD("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")},
    {501, HEAD("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\x8f / HTTP/1.1\r\n")},
    {505, HEAD("GET /\r\n")},
    {505, HEAD("GET / HTTP/2.0\r\n")},
    {505, HEAD("GET / HTTP/1.2\r\n")},
    {505, HEAD("GET / HTTP/1.1x\r\n")},
    {505, HEAD("GET / http/1.1\r\n")},
    {505, HEAD("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")},
    /* headers */
    {400, HEAD("GET / HTTP/1.1\r\n\r\n")},
    {400, HEAD(GET "Host: x\r\n\r\n")},
    {400, HEAD("GET / HTTP/1.1\r\nHost: a/?\r\n\r\n")},
    {400, HEAD("GET / HTTP/1.1\r\nHost: a b\r\n\r\n")},
    {400, HEAD("GET / HTTP/1.1\r\nHost : x\r\n\r\n")},
    {400, HEAD(GET "Name\r\n\r\n")},
    {400, HEAD(GET ": value\r\n\r\n")},
    {400, HEAD(GET "Na\xc3me: x\r\n\r\n")},
    {400, HEAD(GET "Na\0me: x\r\n\r\n")},
    {400, HEAD(GET "Name: a\0b\r\n\r\n")},
    {400, HEAD(GET "Name: a\x02\r\n\r\n")},
    {400, HEAD(GET "Name: a\rb\r\n\r\n")},
    {400, HEAD(GET "Name: a\r\n b\r\n\r\n")},
    {400, HEAD(GET "\tName: a\r\n\r\n")},
    {400, HEAD(GET "Name: a\n\r\n")},
    {400, HEAD(GET "Name: a\r\n\n")},
    {400, HEAD(GET "Authorization: a\r\nauthorization: b\r\n\r\n")},
    {400, HEAD(GET "x-api-key: a\r\nX-Api-Key: b\r\n\r\n")},
    {417, HEAD(GET "Expect: more\r\n\r\n")},
    {415, HEAD(POST "Content-Length: 5\r\nContent-Encoding: gzip\r\n\r\n")},
    {431, HEAD(GET "A:\r\nB:\r\nC:\r\nD:\r\nE:\r\n\r\n")},
    /* how long the body is */
    {400, HEAD(POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\n")},
    {400, HEAD(POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n")},
    {400, HEAD(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n")},
    {400, HEAD("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n")},
    {400, HEAD(POST "Content-Length: 5, 5\r\n\r\n")},
    {400, HEAD(POST "Content-Length: +5\r\n\r\n")},
    {400, HEAD(POST "Content-Length: -5\r\n\r\n")},
    {400, HEAD(POST "Content-Length: 0x5\r\n\r\n")},
    {400, HEAD(POST "Content-Length:\r\n\r\n")},
    {400, HEAD(POST "Content-Length: 18446744073709551621\r\n\r\n")},
    {400, HEAD(POST "Content-Length : 5\r\n\r\n")},
    {411, HEAD(POST "\r\n")},
    {501, HEAD(POST "Transfer-Encoding: xchunked\r\n\r\n")},
    {501, HEAD(POST "Transfer-Encoding: gzip, chunked\r\n\r\n")},
    {501, HEAD(POST "Transfer-Encoding: chunked, chunked\r\n\r\n")},
    {501, HEAD(POST "Transfer-Encoding:\r\n\r\n")},
};

/* From memory of exactly that size, so that a sanitizer sees a read behind it. */
static int judge(const char *text, size_t n)
{
    struct api_error e = {0};
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, text, n);
    struct http_guard_head head;
    enum http_guard_verdict v = http_guard_head(&limits, copy, n, &head, &e);
    free(copy);
    assert_int_equal(v == HTTP_GUARD_REFUSE, e.http_status != 0);
    return v == HTTP_GUARD_REFUSE ? e.http_status : v == HTTP_GUARD_PASS ? 0 : -1;
}

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int status = judge(rows[i].text, rows[i].n);
        if (status != rows[i].status)
            fail_msg("row %zu: %d instead of %d: %.80s", i, status, rows[i].status, rows[i].text);
    }
}

/* What has come decides nothing that the rest would decide otherwise. */
static void test_any_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int before = -1;
        for (size_t n = 0; n <= rows[i].n; n++) {
            int status = judge(rows[i].text, n);
            if (before != -1)
                assert_int_equal(status, before);
            before = status;
        }
        assert_int_equal(before, rows[i].status);
    }
}

static void test_head_bytes(void **state)
{
    char head[2048];
    (void)state;
    memset(head, 'a', sizeof head);
    memcpy(head, GET "Name: ", sizeof GET "Name: " - 1);
    assert_int_equal(judge(head, 1024), -1);
    assert_int_equal(judge(head, 1025), 431);
    memcpy(head + 1020, "\r\n\r\n", 4);
    assert_int_equal(judge(head, 1024), 0);
    assert_int_equal(judge(head, 1400), 0); /* with a part of the body */
    head[1020] = 'a';
    memcpy(head + 1021, "\r\n\r\n", 4);
    assert_int_equal(judge(head, 1025), 431);
}

/* How long a request is, as the head says. */
static void test_framing(void **state)
{
    static const struct {
        const char *text;
        uint64_t body_bytes;
        bool is_chunked;
    } cases[] = {
        {GET "\r\n", 0, false},
        {GET "Content-Length: 7\r\n\r\n", 7, false},
        {POST "content-length:\t000123 \r\n\r\n", 123, false},
        {POST "Content-Length: 999999999999999999\r\n\r\n", 999999999999999999, false},
        {POST "Transfer-Encoding: chunked\r\n\r\n", 0, true},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct api_error e = {0};
        struct http_guard_head head;
        char more[256];
        int n = snprintf(more, sizeof more, "%sand more", cases[i].text);
        assert_int_equal(http_guard_head(&limits, more, (size_t)n, &head, &e), HTTP_GUARD_PASS);
        assert_int_equal(head.head_bytes, strlen(cases[i].text));
        assert_int_equal(head.body_bytes, cases[i].body_bytes);
        assert_int_equal(head.is_chunked, cases[i].is_chunked);
    }
}

/* RFC 9112 section 7.1, without what it allows and nobody needs. */
static void test_chunks(void **state)
{
    static const struct {
        const char *text;
        bool is_first;
        int line_bytes; /* 0: not whole; -1: refused */
        uint64_t data_bytes;
    } cases[] = {
        {"5\r\nhello", true, 3, 5},
        {"a\r\n", true, 3, 10},
        {"00fF\r\n", true, 6, 255},
        {"fffffffffffffff\r\n", true, 17, 0xfffffffffffffff},
        {"\r\n5\r\n", false, 5, 5},
        {"\r\nfffffffffffffff\r\n", false, 19, 0xfffffffffffffff},
        {"0\r\n\r\nGET", true, 5, 0},
        {"\r\n0\r\n\r\n", false, 7, 0},
        {"\r\n000000000000000\r\n\r\n", false, 21, 0},
        {"", true, 0, 0},
        {"5\r", true, 0, 0},
        {"fffffffffffffff", true, 0, 0},
        {"\r", false, 0, 0},
        {"\r\n", false, 0, 0},
        {"0\r\n", true, 0, 0},
        {"0\r\n\r", true, 0, 0},
        {"\r\n", true, -1, 0},
        {"g", true, -1, 0},
        {"-5\r\n", true, -1, 0},
        {"0x5\r\n", true, -1, 0},
        {"5 \r\n", true, -1, 0},
        {"5;a\r\n", true, -1, 0},
        {"5\n", true, -1, 0},
        {"5\r5", true, -1, 0},
        {"0000000000000005", true, -1, 0},
        {"5\r\n", false, -1, 0},
        {"\n5\r\n", false, -1, 0},
        {"\r\n\r\n", false, -1, 0},
        {"0\r\nA: b\r\n", true, -1, 0},
        {"0\r\n\n", true, -1, 0},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (size_t n = 0; n <= strlen(cases[i].text); n++) {
            struct api_error e = {0};
            struct http_guard_chunk chunk = {0};
            enum http_guard_verdict v =
                http_guard_chunk(cases[i].is_first, cases[i].text, n, &chunk, &e);
            assert_int_equal(v == HTTP_GUARD_REFUSE, e.http_status == 400);
            if (n == strlen(cases[i].text) && (v == HTTP_GUARD_REFUSE) != (cases[i].line_bytes < 0))
                fail_msg("case %zu: %s", i, cases[i].text);
            if (v == HTTP_GUARD_PASS)
                assert_int_equal(chunk.data_bytes, cases[i].data_bytes);
            if (v != HTTP_GUARD_REFUSE)
                assert_int_equal(chunk.line_bytes, v == HTTP_GUARD_PASS ? cases[i].line_bytes : 0);
            if (cases[i].line_bytes > 0 && n >= (size_t)cases[i].line_bytes)
                assert_int_equal(v, HTTP_GUARD_PASS);
        }
    }
}

static void test_accept(void **state)
{
    static const char *const html[] = {
        "text/html",           "text/html,*/*;q=0.8", "*/*, Text/HTML",
        "text/html;q=0.001",   "text/html;level=1",   "text/plain,\ttext/html ",
        "text/html; q=1, */*", "a;q=0,text/html",     "text/html; q=",
    };
    static const char *const other[] = {
        "",
        "*/*",
        "text/*",
        "text/htmlx",
        "xtext/html",
        "text/html;q=0",
        "text/html ; level=1;Q=0.000, */*",
        "text/html;q=0,text/html",
        "application/json;x=text/html",
        ",,",
        "text/ html",
    };
    (void)state;
    assert_false(http_accept_html(NULL));
    for (size_t i = 0; i < ARRAY_LEN(html); i++)
        if (!http_accept_html(html[i]))
            fail_msg("no HTML: \"%s\"", html[i]);
    for (size_t i = 0; i < ARRAY_LEN(other); i++)
        if (http_accept_html(other[i]))
            fail_msg("HTML: \"%s\"", other[i]);
}

static void test_cors(void **state)
{
    (void)state;
    assert_true(http_cors_allows("*", "https://a.example"));
    assert_true(http_cors_allows("https://b.example, https://a.example", "https://a.example"));
    assert_true(http_cors_allows("null,*", "x"));
    assert_false(http_cors_allows("https://a.example", "https://a.example.evil"));
    assert_false(http_cors_allows("https://a.example:81", "https://a.example"));
    assert_false(http_cors_allows("https://a.example", "http://a.example"));
    assert_false(http_cors_allows("*", ""));
    assert_false(http_cors_allows("*", NULL));
    assert_false(http_cors_allows(NULL, "https://a.example"));
    assert_false(http_cors_allows(", ,", "https://a.example"));
}

/* What the Fetch standard never serialises an origin as would match no page. */
static void test_cors_list(void **state)
{
    (void)state;
    static const char *const good[] = {"*", "null", "https://a.example",
                                       "http://localhost:3000,https://b.example, http://[::1]:80",
                                       "chrome-extension://abcdef"};
    static const char *const bad[] = {",",
                                      "a.example",
                                      "https://",
                                      "://a",
                                      "https://a.example/",
                                      "https://a.example/x",
                                      "https://a,,https://b",
                                      "https://A.example",
                                      "**",
                                      "https://a.example,b"};
    struct err err;
    assert_int_equal(http_cors_check(NULL, &err), OK);
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        if (http_cors_check(good[i], &err) != OK)
            fail_msg("%s: %s", good[i], err.text);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (http_cors_check(bad[i], &err) != ERR_USAGE)
            fail_msg("accepted: %s", bad[i]);
}

/* What the library gets of a head: as long as it was, and with nothing that it reads otherwise. */
static void test_tidy(void **state)
{
    (void)state;
    static const struct {
        const char *head, *tidy;
    } cases[] = {
        {"GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"},
        {"GET /a&b?c&d?&&e HTTP/1.1\r\nA: b&c\r\n\r\n",
         "GET /a&b?c.d?..e HTTP/1.1\r\nA: b&c\r\n\r\n"},
        {"GET / HTTP/1.1\r\nA:b \t\r\nB: c d \r\nC:\r\nD: \t\r\nE: f\r\n\r\n",
         "GET / HTTP/1.1\r\nA:  b\r\nB:  c d\r\nC:\r\nD:  \r\nE: f\r\n\r\n"},
        {"GET / HTTP/1.1\r\ncOOKIE: a=b; c=d \r\nCookies: x\r\nSet-Cookie: y\r\n\r\n",
         "GET / HTTP/1.1\r\nXOOKIE:  a=b; c=d\r\nCookies: x\r\nSet-Cookie: y\r\n\r\n"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const size_t n = strlen(cases[i].head);
        char *copy = malloc(n);
        assert_non_null(copy);
        memcpy(copy, cases[i].head, n);
        http_guard_tidy(copy, n);
        if (n != strlen(cases[i].tidy) || memcmp(copy, cases[i].tidy, n) != 0)
            fail_msg("%s became %.*s", cases[i].head, (int)n, copy);
        free(copy);
    }
}

/* Names that a page of another site cannot have, and those that it can. */
static void test_hosts(void **state)
{
    (void)state;
    static const char listed[] = "a.example, *.b.example";
    static const struct {
        const char *hosts, *host;
        bool allowed;
    } cases[] = {
        {HTTP_HOST_LOCAL, "127.0.0.1:8000", true},
        {HTTP_HOST_LOCAL, "10.1.2.3", true},
        {HTTP_HOST_LOCAL, "[::1]", true},
        {HTTP_HOST_LOCAL, "[fe80::1%25eth0]:80", true},
        {HTTP_HOST_LOCAL, "localhost:8000", true},
        {HTTP_HOST_LOCAL, "LOCALHOST.", true},
        {HTTP_HOST_LOCAL, "gpu-1", true},
        {HTTP_HOST_LOCAL, "", true},
        {HTTP_HOST_LOCAL, ":80", true},
        {HTTP_HOST_LOCAL, "x.LocalHost", true},
        {HTTP_HOST_LOCAL, "host.docker.internal:8000", true},
        {HTTP_HOST_LOCAL, "internal.example", false},
        {HTTP_HOST_LOCAL, "notlocalhost.example:8000", false},
        {HTTP_HOST_LOCAL, "127.0.0.1.example", false},
        {HTTP_HOST_LOCAL, "1.example1", false},
        {HTTP_HOST_LOCAL, "a.example:1", false},
        {HTTP_HOST_LOCAL, "a.example.", false},
        {listed, "A.example:80", true},
        {listed, "x.a.example", false},
        {listed, "xa.example", false},
        {listed, "b.example", false},
        {listed, "x.y.b.example", true},
        {listed, "xb.example", false},
        {listed, "x.localhost", false},
        {"x.example,*", "evil.example", true},
        {NULL, "evil.example", true},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        if (http_host_allows(cases[i].hosts, cases[i].host, strlen(cases[i].host)) !=
            cases[i].allowed)
            fail_msg("\"%s\" where \"%s\" are allowed", cases[i].host,
                     cases[i].hosts ? cases[i].hosts : "all");
}

static void test_host_list(void **state)
{
    (void)state;
    static const char *const good[] = {"*", "a", "a.example, *.b.example", "x_1-2.example,"};
    static const char *const bad[] = {"",      ",",    "http://a", "a:80",
                                      "[::1]", "a,b/", "**",       "*.",
                                      "a*.b",  ".a",   "*..a",     "caf\xc3\xa9.example"};
    struct err err;
    assert_int_equal(http_host_check(NULL, &err), OK);
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        if (http_host_check(good[i], &err) != OK)
            fail_msg("%s: %s", good[i], err.text);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (http_host_check(bad[i], &err) != ERR_USAGE)
            fail_msg("accepted: %s", bad[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),      cmocka_unit_test(test_any_cut),
        cmocka_unit_test(test_head_bytes), cmocka_unit_test(test_framing),
        cmocka_unit_test(test_chunks),     cmocka_unit_test(test_cors),
        cmocka_unit_test(test_cors_list),  cmocka_unit_test(test_accept),
        cmocka_unit_test(test_tidy),       cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_host_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
