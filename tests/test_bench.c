/* The benchmark client: statistics against numpy, the response parser at every split of recorded
 * streams, what chunks of several servers say, arrival times against the closed form of the
 * exponential distribution, and figures of hand-made records. */
#include "config/jdoc.h"
#include "server/bench/chunk.h"
#include "server/bench/load.h"
#include "server/bench/plot.h"
#include "server/bench/reply.h"
#include "server/bench/report.h"
#include "server/bench/samples.h"
#include "server/bench/target.h"
#include "server/bench/workload.h"
#include "tests/scratch.h"

#include <math.h>
#include <string.h>

static struct err err;

/* ---- statistics ---- */

static void check_stats(double *values, size_t n, const double *wanted)
{
    struct samples_stats s = samples_stats(values, n);
    const double got[] = {s.mean, s.p50, s.p95, s.p99, s.max};
    assert_int_equal(s.count, n);
    for (size_t i = 0; i < ARRAY_LEN(got); i++)
        if (fabs(got[i] - wanted[i]) > 1e-9 * fabs(wanted[i]))
            fail_msg("figure %zu: %.12g, numpy says %.12g", i, got[i], wanted[i]);
}

/* Expected values: numpy.mean and numpy.percentile (its default, linear) of the same numbers. */
static void test_statistics_are_numpys(void **state)
{
    (void)state;
    double few[] = {12.5, 3.25, 99, 41, 7, 7, 0.5, 63.75, 18, 250, 5, 31};
    check_stats(few, ARRAY_LEN(few),
                (double[]){44.833333333333336, 15.25, 166.94999999999987, 233.3900000000001, 250});
    double many[1000];
    for (int i = 0; i < 1000; i++)
        many[i] = (i * 7919 % 1009) / 8.0;
    check_stats(many, 1000, (double[]){63.08475, 63.1875, 119.75625, 124.75125, 126});
    double two[] = {4, 2};
    check_stats(two, 2, (double[]){3, 3, 3.9, 3.98, 4});
    double one[] = {7.5};
    check_stats(one, 1, (double[]){7.5, 7.5, 7.5, 7.5, 7.5});
    struct samples_stats none = samples_stats(NULL, 0);
    assert_int_equal(none.count, 0);
    assert_true(none.p99 == 0);
}

static void test_overlap_by_counting(void **state)
{
    (void)state;
    double begins[60], ends[60];
    size_t most = 0;
    for (size_t i = 0; i < 60; i++) {
        begins[i] = (double)(i * 7919 % 101);
        ends[i] = begins[i] + (double)(i * 31 % 23); /* some spans are a moment */
    }
    for (size_t at = 0; at < 60; at++) {
        size_t open = 0;
        for (size_t i = 0; i < 60; i++)
            open += begins[i] <= begins[at] && begins[at] <= ends[i];
        most = open > most ? open : most;
    }
    assert_int_equal(samples_overlap(begins, ends, 60), most);
    assert_int_equal(samples_overlap((double[]){5, 1, 3}, (double[]){6, 3, 4}, 3), 2);
    assert_int_equal(samples_overlap((double[]){1, 3}, (double[]){2, 4}, 2), 1);
    assert_int_equal(samples_overlap(NULL, NULL, 0), 0);
}

/* ---- responses ---- */

struct seen {
    char text[4096]; /* events, each with '|' behind it */
    size_t n;
};

static void see(void *ctx, const char *data, size_t n)
{
    struct seen *s = ctx;
    assert_true(s->n + n + 2 < sizeof s->text);
    memcpy(s->text + s->n, data, n);
    s->n += n;
    s->text[s->n++] = '|';
    s->text[s->n] = '\0';
}

/* Each piece in memory of its own size, so that the sanitizer sees a read beyond it. */
static enum status feed(struct reply *r, const char *bytes, size_t n)
{
    char *copy = malloc(n + 1);
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    copy = realloc(copy, n ? n : 1);
    enum status st = reply_feed(r, copy, n, &err);
    free(copy);
    return st;
}

/* In pieces that end at a, at b, and at the end. */
static enum status feed_split(struct reply *r, const char *bytes, size_t n, size_t a, size_t b)
{
    enum status st = feed(r, bytes, a);
    st = st == OK ? feed(r, bytes + a, b - a) : st;
    st = st == OK ? feed(r, bytes + b, n - b) : st;
    return st == OK ? reply_close(r, &err) : st;
}

struct recording {
    const char *name, *bytes, *events, *body;
    int32_t http_status;
    bool keeps;
};

#define STREAM "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"

static const struct recording recordings[] = {
    {"chunked, LF",
     STREAM "Transfer-Encoding: chunked\r\n\r\n"
            "0a\r\ndata: {\"a\"\r\n7;x=y\r\n:1}\n\nda\r\nE\r\nta: [DONE]\n\n\n\n\r\n0\r\n\r\n",
     "{\"a\":1}|[DONE]|", NULL, 200, true},
    {"chunked, CRLF, comments, trailers",
     STREAM "transfer-ENCODING:chunked\r\nDate: now\r\n\r\n"
            "29\r\n: ping\r\n\r\nevent: x\r\nid: 3\r\ndata:tight\r\n\r\n\r\n"
            "d\r\ndata: two\r\n\r\n\r\n0\r\nX-Sum: 1\r\n\r\n",
     "tight|two|", NULL, 200, true},
    {"up to the end", STREAM "Connection: close\r\n\r\ndata: one\r\n\r\n: c\n\ndata:  two \n\n",
     "one| two |", NULL, 200, false},
    {"a length", STREAM "Content-Length: 22\r\n\r\ndata: a\n\ndata: [DONE]\nbeyond it", "a|[DONE]|",
     NULL, 200, false},
    {"interim answers",
     "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nA: b\r\n\r\n" STREAM
     "\r\ndata: x\n\n",
     "x|", NULL, 200, false},
    {"an error with a length",
     "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 11\r\n"
     "Content-Type: application/json\r\n\r\n{\"error\":1}",
     "", "{\"error\":1}", 429, true},
    {"an error in chunks",
     "HTTP/1.0 500 \r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", "", "abc",
     500, false},
    {"nothing in it", "HTTP/1.1 204\r\nContent-Length: 0\r\n\r\n", "", "", 204, true},
    {"its last", "HTTP/1.1 503 \r\nconnection: Close\r\nContent-Length: 1\r\n\r\nx", "", "x", 503,
     false},
};

static void test_every_split(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(recordings); i++) {
        const struct recording *c = &recordings[i];
        const size_t n = strlen(c->bytes);
        struct reply r;
        struct seen s = {.n = 0};
        reply_init(&r, see, &s);
        for (size_t a = 0; a <= n; a++)
            for (size_t b = a; b <= n; b++) {
                s = (struct seen){.n = 0};
                reply_reset(&r);
                if (feed_split(&r, c->bytes, n, a, b) != OK)
                    fail_msg("%s, split at %zu and %zu: %s", c->name, a, b, err.text);
                if (strcmp(s.text, c->events) != 0)
                    fail_msg("%s, split at %zu and %zu: \"%s\"", c->name, a, b, s.text);
                assert_int_equal(r.http_status, c->http_status);
                assert_int_equal(r.keeps, c->keeps);
                if (c->body)
                    assert_string_equal(r.body.data ? r.body.data : "", c->body);
            }
        reply_free(&r);
    }
}

static void test_bytes_one_by_one(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(recordings); i++) {
        struct reply r;
        struct seen s = {.n = 0};
        reply_init(&r, see, &s);
        for (const char *c = recordings[i].bytes; *c; c++)
            assert_int_equal(feed(&r, c, 1), OK);
        assert_int_equal(reply_close(&r, &err), OK);
        assert_string_equal(s.text, recordings[i].events);
        reply_free(&r);
    }
}

static void test_refused_responses(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "hello\r\n",
        "HTTP/2 200\r\n\r\n",
        "HTTP/1.1 20\r\n\r\n",
        "HTTP/1.1 999 no\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        /* cut off */
        "",
        "HTTP/1.1 200 OK\r\nContent-Le",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcd",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcd",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct reply r;
        struct seen s = {.n = 0};
        reply_init(&r, see, &s);
        size_t n = strlen(bad[i]);
        if (feed_split(&r, bad[i], n, n / 2, n) != ERR_INPUT)
            fail_msg("accepted: %s", bad[i]);
        reply_free(&r);
    }
}

/* A peer that never ends a line or a head cannot make us hold more than the limit. */
static void test_endless_lines(void **state)
{
    (void)state;
    static char piece[4096];
    memset(piece, 'x', sizeof piece);
    for (int head = 0; head < 2; head++) {
        struct reply r;
        struct seen s = {.n = 0};
        enum status st = OK;
        reply_init(&r, see, &s);
        const char *begin = head ? "HTTP/1.1 200 OK\r\nA: " : STREAM "\r\ndata: ";
        assert_int_equal(feed(&r, begin, strlen(begin)), OK);
        size_t fed = 0, limit = head ? REPLY_HEAD_BYTES_MAX : REPLY_LINE_BYTES_MAX;
        for (; st == OK && fed < 2 * limit; fed += sizeof piece)
            st = reply_feed(&r, piece, sizeof piece, &err);
        assert_int_equal(st, ERR_INPUT);
        assert_true(fed <= limit + sizeof piece);
        reply_free(&r);
    }
}

/* ---- chunks ---- */

static const struct {
    const char *json;
    struct chunk wanted;
} chunks[] = {
    /* vLLM */
    {"{\"id\":\"cmpl-1\",\"choices\":[{\"index\":0,\"text\":\" a\",\"logprobs\":null,"
     "\"finish_reason\":null,\"stop_reason\":null}],\"usage\":null}",
     {1, false, false, -1, -1}},
    {"{\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}",
     {0, true, false, -1, -1}},
    {"{\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"total_tokens\":12,"
     "\"completion_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":4}}}",
     {0, false, false, 5, 7}},
    /* chat, with a role first */
    {"{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"index\":0}]}",
     {0, false, false, -1, -1}},
    {"{\"choices\":[{\"delta\":{\"content\":\"\\\"}]\"},\"index\":0,\"finish_reason\":null}]}",
     {1, false, false, -1, -1}},
    {"{\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}", {1, false, false, -1, -1}},
    /* llama.cpp: finish, usage and timings in the last one */
    {"{\"choices\":[{\"finish_reason\":\"stop\",\"index\":0,\"delta\":{}}],\"usage\":"
     "{\"completion_tokens\":3,\"prompt_tokens\":2},\"timings\":{\"x\":[1.5e-3,{\"y\":null}]}}",
     {0, true, false, 2, 3}},
    /* ours, several tokens in one chunk, two choices */
    {" { \"choices\" : [ {\"text\":\"ab\",\"token_ids\":[5, 6]} , {\"text\":\"\",\"token_ids\":[7]}"
     " ] } ",
     {3, false, false, -1, -1}},
    {"{\"choices\":[{\"text\":\"ab\",\"token_ids\":null}]}", {1, false, false, -1, -1}},
    {"{\"error\":{\"message\":\"rank lost\",\"code\":500}}", {0, false, true, -1, -1}},
    {"{\"error\":null,\"object\":\"x\"}", {0, false, false, -1, -1}},
    {"{}", {0, false, false, -1, -1}},
};

static void test_chunks_of_several_servers(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
        struct chunk got;
        size_t n = strlen(chunks[i].json);
        if (!chunk_read(chunks[i].json, n, &got))
            fail_msg("refused: %s", chunks[i].json);
        const struct chunk *w = &chunks[i].wanted;
        if (got.tokens != w->tokens || got.finished != w->finished || got.is_error != w->is_error ||
            got.prompt_tokens != w->prompt_tokens || got.completion_tokens != w->completion_tokens)
            fail_msg("%s: %lld tokens, finished %d, error %d, usage %lld %lld", chunks[i].json,
                     (long long)got.tokens, got.finished, got.is_error,
                     (long long)got.prompt_tokens, (long long)got.completion_tokens);
        /* cut anywhere before its last bracket it is no object; in memory of its own */
        for (size_t cut = 0; cut < n && strchr(chunks[i].json + cut, '}'); cut++) {
            char *copy = malloc(cut ? cut : 1);
            assert_non_null(copy);
            memcpy(copy, chunks[i].json, cut);
            assert_false(chunk_read(copy, cut, &got));
            free(copy);
        }
    }
}

static void test_what_is_no_object(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "[DONE]",   "",         "null",  "\"x\"",
        "{\"a\"}",  "{\"a\":}", "{a:1}", "{\"choices\":[{\"text\":\"x\"}}",
        "{\"a\":]}"};
    struct chunk got;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (chunk_read(bad[i], strlen(bad[i]), &got))
            fail_msg("accepted: %s", bad[i]);
    char deep[100001]; /* nesting costs no stack */
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    assert_false(chunk_read(deep, sizeof deep, &got));
}

/* ---- what is sent, and when ---- */

static void test_arrivals_are_poisson(void **state)
{
    (void)state;
    enum { N = 100000 };
    static int64_t due[N], again[N];
    const double rate = 250;
    workload_schedule(7, rate, N, due);
    double sum = 0, squares = 0, within_mean = 0;
    for (int i = 1; i < N; i++) {
        double gap = (double)(due[i] - due[i - 1]) * 1e-9 * rate;
        assert_true(gap >= 0);
        sum += gap;
        squares += gap * gap;
        within_mean += gap < 1;
    }
    /* exponential with mean 1: variance 1, fourth central moment 9, P(gap < 1) = 1 - 1/e; bounds
     * are five standard errors */
    double mean = sum / (N - 1), variance = squares / (N - 1) - mean * mean;
    assert_true(fabs(mean - 1) < 5 / sqrt(N));
    assert_true(fabs(variance - 1) < 5 * sqrt(8.0 / N));
    double p = 1 - exp(-1);
    assert_true(fabs(within_mean / (N - 1) - p) < 5 * sqrt(p * (1 - p) / N));
    assert_int_equal(due[0], 0);
    workload_schedule(7, rate, N, again);
    assert_memory_equal(due, again, sizeof due);
    workload_schedule(8, rate, N, again);
    assert_memory_not_equal(due, again, sizeof due);
    workload_schedule(7, INFINITY, N, again);
    assert_int_equal(again[N - 1], 0);
}

static void test_rates(void **state)
{
    (void)state;
    double rates[3];
    int32_t n = 0;
    assert_int_equal(workload_rates("1,2.5,inf", rates, 3, &n, &err), OK);
    assert_int_equal(n, 3);
    assert_true(rates[1] == 2.5 && isinf(rates[2]));
    static const char *const bad[] = {"",   "0",   "-1", "nan",     "1,",
                                      ",1", "1;2", "x",  "1,2,3,4", "2e6"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (workload_rates(bad[i], rates, 3, &n, &err) != ERR_USAGE)
            fail_msg("accepted: %s", bad[i]);
}

static struct jdoc *body_of(const struct workload *w, bool is_chat, int32_t round, int64_t i)
{
    struct buf b;
    struct jdoc *doc = NULL;
    buf_init(&b, 1 << 20);
    workload_body(w, is_chat, round, i, &b);
    assert_int_equal(jdoc_parse(b.data, b.len, &jdoc_limits_request, "body", &doc, &err), OK);
    buf_free(&b);
    return doc;
}

static void test_bodies(void **state)
{
    (void)state;
    struct workload *w = NULL;
    const struct workload_config c = {.model = "m\"x",
                                      .form = PROMPT_IDS,
                                      .input_len = 300,
                                      .output_len = 9,
                                      .vocab = 50,
                                      .ignore_eos = true};
    assert_int_equal(workload_open(&c, &w, &err), OK);
    struct jdoc *a = body_of(w, false, 0, 0), *same = body_of(w, false, 0, 0),
                *other = body_of(w, false, 0, 1), *round = body_of(w, false, 1, 0);
    assert_string_equal(jdoc_string(jdoc_get(a, "model")), "m\"x");
    assert_int_equal(jdoc_int(jdoc_get(a, "max_tokens")), 9);
    assert_true(jdoc_bool(jdoc_get(a, "ignore_eos")) && jdoc_bool(jdoc_get(a, "stream")));
    const struct jdoc *ids = jdoc_get(a, "prompt");
    assert_int_equal(jdoc_size(ids), 300);
    int others = 0, rounds = 0;
    for (size_t i = 0; i < 300; i++) {
        int64_t id = jdoc_int(jdoc_at(ids, i));
        assert_true(id >= 3 && id < 50);
        assert_int_equal(id, jdoc_int(jdoc_at(jdoc_get(same, "prompt"), i)));
        others += id != jdoc_int(jdoc_at(jdoc_get(other, "prompt"), i));
        rounds += id != jdoc_int(jdoc_at(jdoc_get(round, "prompt"), i));
    }
    assert_true(others > 200 && rounds > 200);
    struct jdoc *chat = body_of(w, true, 0, 0);
    const struct jdoc *message = jdoc_at(jdoc_get(chat, "messages"), 0);
    assert_string_equal(jdoc_string(jdoc_get(message, "role")), "user");
    assert_int_equal(jdoc_type(jdoc_get(message, "content")), JDOC_STRING);
    jdoc_close(a);
    jdoc_close(same);
    jdoc_close(other);
    jdoc_close(round);
    jdoc_close(chat);
    workload_close(w);
}

static enum status open_file(const char *text, struct workload **w)
{
    const char *path = scratch_path("prompts.jsonl");
    scratch_write(path, text, strlen(text));
    const struct workload_config c = {.file = path, .model = "m", .output_len = 64};
    return workload_open(&c, w, &err);
}

static void test_prompt_files(void **state)
{
    (void)state;
    struct workload *w = NULL;
    assert_int_equal(open_file("{\"prompt\": \"say \\\"hi\\\"\"}\n\n"
                               "{\"prompt\": [5, 6], \"max_tokens\": 3}",
                               &w),
                     OK);
    assert_int_equal(workload_output_len(w, 0), 64);
    assert_int_equal(workload_output_len(w, 3), 3);
    struct jdoc *text = body_of(w, false, 0, 2), *ids = body_of(w, false, 0, 1);
    assert_string_equal(jdoc_string(jdoc_get(text, "prompt")), "say \"hi\"");
    assert_int_equal(jdoc_int(jdoc_at(jdoc_get(ids, "prompt"), 1)), 6);
    jdoc_close(text);
    jdoc_close(ids);
    workload_close(w);
    static const struct {
        const char *text, *says;
    } bad[] = {{"{\"prompt\": \"x\"}\n{\"text\": 1}\n", ":2"},
               {"nonsense", ":1"},
               {"[]", ":1"},
               {"{\"prompt\": []}", ":1"},
               {"{\"prompt\": [1, \"a\"]}", ":1"},
               {"{\"prompt\": \"x\", \"max_tokens\": 0}", ":1"},
               {"\n\n", "no prompt"}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        if (open_file(bad[i].text, &w) != ERR_USAGE)
            fail_msg("accepted: %s", bad[i].text);
        if (!strstr(err.text, bad[i].says))
            fail_msg("%s: \"%s\" does not say \"%s\"", bad[i].text, err.text, bad[i].says);
    }
    const struct workload_config folder = {.file = scratch_dir, .model = "m", .output_len = 64};
    assert_int_equal(workload_open(&folder, &w, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "Is a directory"));
}

static void test_urls(void **state)
{
    (void)state;
    static const struct {
        const char *url, *host, *path, *base;
        bool is_chat;
    } good[] = {
        {"http://h", "h", "/v1/completions", "/v1", false},
        {"http://h:8000/", "h:8000", "/v1/completions", "/v1", false},
        {"http://h:8000/v1", "h:8000", "/v1/completions", "/v1", false},
        {"http://h:65535", "h:65535", "/v1/completions", "/v1", false},
        {"http://[::1]:80/api/v1/", "[::1]:80", "/api/v1/completions", "/api/v1", false},
        {"http://h/v1/completions", "h", "/v1/completions", "/v1", false},
        {"http://h/v1/chat/completions", "h", "/v1/chat/completions", "/v1", true},
        {"h:80", "h:80", "/v1/completions", "/v1", false},
        {"[::1]:8000/v1", "[::1]:8000", "/v1/completions", "/v1", false},
    };
    static const char *const bad[] = {"https://h",
                                      "h",
                                      "h:",
                                      ":80",
                                      "h:65536",
                                      "h:80x",
                                      "h/v1:80",
                                      "/dev:80",
                                      "http://",
                                      "http:///v1",
                                      "http://a@b",
                                      "http://h?x",
                                      "http://h/ v1",
                                      "ftp://h",
                                      "http://h:",
                                      "http://h:0",
                                      "http://h:65536",
                                      "http://h:99999/v1",
                                      "http://[::1]:65536",
                                      "http://h:008080",
                                      "http://[::1"};
    struct target t;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        assert_int_equal(target_parse(good[i].url, &t, &err), OK);
        assert_string_equal(t.host, good[i].host);
        assert_string_equal(t.path, good[i].path);
        assert_string_equal(t.base, good[i].base);
        assert_int_equal(t.is_chat, good[i].is_chat);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (target_parse(bad[i], &t, &err) != ERR_USAGE)
            fail_msg("accepted: %s", bad[i]);
}

/* ---- figures ---- */

#define MS INT64_C(1000000)

static void make_report(const struct report_goodput *bounds, struct report *out)
{
    /* due at 0, 10, 20, 30 ms, the third refused, the fourth cut off */
    struct record records[] = {
        {.due = 0,
         .sent = 2 * MS,
         .first = 100 * MS,
         .last = 400 * MS,
         .tokens = 4,
         .prompt_tokens = 7,
         .chunks = 4,
         .http_status = 200,
         .outcome = OUTCOME_OK},
        {.due = 10 * MS,
         .sent = 10 * MS,
         .first = 310 * MS,
         .last = 310 * MS,
         .tokens = 1,
         .prompt_tokens = -1,
         .chunks = 1,
         .http_status = 200,
         .outcome = OUTCOME_OK},
        {.due = 20 * MS,
         .sent = 20 * MS,
         .ended = 25 * MS,
         .http_status = 429,
         .outcome = OUTCOME_HTTP},
        {.due = 30 * MS,
         .sent = 30 * MS,
         .first = 31 * MS,
         .last = 32 * MS,
         .tokens = 2,
         .chunks = 2,
         .http_status = 200,
         .outcome = OUTCOME_CUT},
    };
    double gaps[] = {50, 150, 100, 0, 0, 0, 0, 0, 1, 0, 0, 0};
    size_t gaps_at[] = {0, 4, 6, 8, 12};
    const struct load_result result = {.records = records,
                                       .gaps = gaps,
                                       .gaps_at = gaps_at,
                                       .count = 4,
                                       .started = 0,
                                       .ended = 500 * MS,
                                       .chunks = 7,
                                       .cpu_seconds = 0.07,
                                       .first_error = "slow down"};
    const struct load_config config = {.rate = 100};
    assert_int_equal(report_make(&config, &result, bounds, out, &err), OK);
}

static void test_figures_of_records(void **state)
{
    (void)state;
    struct report r;
    make_report(&(struct report_goodput){.ttft = 200}, &r);
    assert_int_equal(r.sent, 4);
    assert_int_equal(r.ok, 2);
    assert_int_equal(r.failed, 2);
    assert_int_equal(r.http[429], 1);
    assert_int_equal(r.outcomes[OUTCOME_CUT], 1);
    assert_int_equal(r.good, 1);
    assert_int_equal(r.output_tokens, 5);
    assert_int_equal(r.prompt_tokens, 7);
    /* from due, not from sent; of successes only */
    assert_true(r.ttft.count == 2 && r.ttft.mean == 200 && r.ttft.max == 300);
    assert_true(r.e2e.mean == 350 && r.e2e.max == 400);
    assert_true(r.tpot.count == 1 && r.tpot.p50 == 100);
    assert_true(r.itl.count == 3 && r.itl.mean == 100 && r.itl.max == 150);
    assert_true(r.refused.count == 1 && r.refused.max == 5);
    assert_true(r.late.count == 4 && r.late.max == 2);
    assert_int_equal(r.streams, 2);
    assert_true(r.request_rate == 4 && r.output_rate == 10 && r.total_rate == 24);
    make_report(&(struct report_goodput){.ttft = 99, .tpot = 1000}, &r);
    assert_int_equal(r.good, 0);
    make_report(&(struct report_goodput){.tpot = 99}, &r);
    assert_int_equal(r.good, 1); /* one token has no TPOT to miss */
    struct buf text;
    buf_init(&text, 1 << 16);
    report_errors(&r, &text);
    assert_string_equal(text.data, "1 × HTTP 429, 1 × cut");
    buf_clear(&text);
    struct jdoc *doc = NULL;
    report_json(&r, &(struct report_goodput){.tpot = 99}, &text);
    assert_int_equal(jdoc_parse(text.data, text.len, &jdoc_limits_request, "report", &doc, &err),
                     OK);
    assert_int_equal(jdoc_int(jdoc_get(jdoc_get(doc, "errors"), "http_429")), 1);
    assert_true(jdoc_number(jdoc_get(doc, "request_goodput")) == 2);
    jdoc_close(doc);
    buf_free(&text);
}

static void test_goodput_bounds(void **state)
{
    (void)state;
    struct report_goodput g;
    assert_int_equal(report_goodput_parse("ttft:500 tpot:50,e2e:1e4", &g, &err), OK);
    assert_true(g.ttft == 500 && g.tpot == 50 && g.e2e == 10000);
    static const char *const bad[] = {"ttft",  "ttft:",    "ttft:0", "ttft:-1",
                                      "itl:5", "ttft:5ms", ":5",     "ttft:inf"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (report_goodput_parse(bad[i], &g, &err) != ERR_USAGE)
            fail_msg("accepted: %s", bad[i]);
}

/* Also without any figure to draw. */
static void test_plot_without_figures(void **state)
{
    (void)state;
    struct report none = {.rate = INFINITY};
    struct buf svg;
    buf_init(&svg, 1 << 20);
    plot_svg(&none, 1, "a < b & c", &svg);
    assert_non_null(strstr(svg.data, "<title>a &lt; b &amp; c</title>"));
    assert_non_null(strstr(svg.data, "</svg>"));
    assert_null(strstr(svg.data, "nan"));
    assert_null(strstr(svg.data, "inf"));
    buf_free(&svg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statistics_are_numpys),
        cmocka_unit_test(test_overlap_by_counting),
        cmocka_unit_test(test_every_split),
        cmocka_unit_test(test_bytes_one_by_one),
        cmocka_unit_test(test_refused_responses),
        cmocka_unit_test(test_endless_lines),
        cmocka_unit_test(test_chunks_of_several_servers),
        cmocka_unit_test(test_what_is_no_object),
        cmocka_unit_test(test_arrivals_are_poisson),
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_prompt_files),
        cmocka_unit_test(test_urls),
        cmocka_unit_test(test_figures_of_records),
        cmocka_unit_test(test_goodput_bounds),
        cmocka_unit_test(test_plot_without_figures),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
