/* Lines of OpenAI's Batch files, the file that an earlier run has left, the names that were seen,
 * and what of an answer's head they need. */
#include "server/bench/batch_ids.h"
#include "server/bench/batch_line.h"
#include "server/bench/batch_output.h"
#include "server/bench/lines.h"
#include "server/bench/reply.h"
#include "tests/scratch.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct err err;

/* ---- lines ---- */

static void check_next(struct lines *l, enum lines_kind wanted, const char *text)
{
    enum lines_kind kind;
    assert_int_equal(lines_next(l, &kind, &err), OK);
    assert_int_equal(kind, wanted);
    if (text)
        assert_string_equal(l->text.data ? l->text.data : "", text);
}

/* Of bytes that come through a pipe in pieces, the longest line being of 8 bytes. */
static void test_lines_of_a_pipe(void **state)
{
    (void)state;
    static const char bytes[] = "one\n\n12345678\n123456789\ntwo\nhalf";
    int ends[2];
    static struct lines l;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], bytes, sizeof bytes - 1), sizeof bytes - 1);
    close(ends[1]);
    lines_init(&l, ends[0], -1, 8);
    check_next(&l, LINES_WHOLE, "one");
    check_next(&l, LINES_WHOLE, "");
    check_next(&l, LINES_WHOLE, "12345678");
    check_next(&l, LINES_LONG, NULL);
    assert_int_equal(l.number, 4);
    check_next(&l, LINES_WHOLE, "two");
    assert_int_equal(l.end, sizeof bytes - 1 - 4);
    check_next(&l, LINES_LAST, "half");
    check_next(&l, LINES_END, "");
    lines_free(&l);
    close(ends[0]);
}

static void test_waiting_for_lines_ends(void **state)
{
    (void)state;
    int ends[2], stop[2];
    static struct lines l;
    assert_int_equal(pipe(ends) | pipe(stop), 0);
    lines_init(&l, ends[0], stop[0], 8);
    assert_int_equal(write(stop[1], "!", 1), 1);
    check_next(&l, LINES_STOPPED, NULL);
    lines_free(&l);
    for (int i = 0; i < 2; i++) {
        close(ends[i]);
        close(stop[i]);
    }
}

/* A line without an end costs its bound, not its length. */
static void test_endless_line(void **state)
{
    (void)state;
    static struct lines l;
    static char piece[1 << 16];
    FILE *f = tmpfile();
    memset(piece, 'x', sizeof piece);
    for (int i = 0; i < 64; i++)
        assert_int_equal(fwrite(piece, 1, sizeof piece, f), sizeof piece);
    rewind(f);
    lines_init(&l, fileno(f), -1, sizeof piece);
    check_next(&l, LINES_LONG, NULL);
    assert_true(l.text.cap <= 4 * sizeof piece);
    check_next(&l, LINES_END, NULL);
    lines_free(&l);
    fclose(f);
}

/* ---- requests ---- */

static void check_request(const char *line, const char *path, const char *body)
{
    struct batch_request r;
    const enum status st = batch_line_request(line, strlen(line), "m\"1", &r, &err);
    if (st != OK)
        fail_msg("%s: %s", line, err.text);
    assert_string_equal(r.path, path);
    assert_string_equal(r.body.data, body);
    batch_line_free(&r);
}

#define HEAD "{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": "

/* The body goes on byte by byte; only a model that is missing is added. */
static void test_good_requests(void **state)
{
    (void)state;
    check_request(HEAD "{\"model\": \"x\", \"seed\": 12345678901234567890, \"top_p\": 0.10}}",
                  "/completions",
                  "{\"model\": \"x\", \"seed\": 12345678901234567890, \"top_p\": 0.10}");
    check_request(HEAD "{}}", "/completions", "{\"model\": \"m\\\"1\"}");
    check_request(HEAD "{ \"n\":1, \"stream\": false}, \"more\": [1]}\r", "/completions",
                  "{\"model\": \"m\\\"1\",  \"n\":1, \"stream\": false}");
    check_request("\t{\"b\": {\"body\": [\":\", {}]}, \"\\u0062ody\" :\n "
                  "{\"model\":\"}{\\\\\\\"\",\"x\":[{\"y\":{}}]}, "
                  "\"method\": \"POST\", \"url\": \"/v1/responses\", \"custom_id\": \"\"}",
                  "/responses", "{\"model\":\"}{\\\\\\\"\",\"x\":[{\"y\":{}}]}");
    static const char *const paths[] = {"/chat/completions", "/embeddings", "/messages"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        char line[200];
        snprintf(line, sizeof line,
                 "{\"body\":{\"model\":\"\"},\"url\":\"/v1%s\",\"method\":\"POST\",\"custom_id\":"
                 "\"a\"}",
                 paths[i]);
        check_request(line, paths[i], "{\"model\":\"\"}");
    }
}

static void test_bad_requests(void **state)
{
    (void)state;
    static const struct {
        const char *line, *id, *why;
    } bad[] = {
        {"", NULL, "no request"},
        {"{\"custom_id\": \"a\"", NULL, "no request"},
        {"[]", NULL, "is an object, got an array"},
        {"{}", NULL, "custom_id must be a string, got nothing"},
        {"{\"custom_id\": 7}", NULL, "custom_id must be a string, got "},
        {"{\"custom_id\": \"a\"}", "a", "method must be"},
        {"{\"custom_id\": \"a\", \"method\": \"GET\", \"url\": \"/v1/models\"}", "a", "POST"},
        {"{\"custom_id\": \"a\", \"method\": \"POST\"}", "a", "url must be a string"},
        {"{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/score\"}", "a", "/v1/score"},
        {"{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/completions\"}", "a", "url"},
        {"{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/responses\"}", "a", "body"},
        {HEAD "[]}", "a", "body must be an object, got an array"},
        {HEAD "{\"stream\": true}}", "a", "stream must be false"},
        {HEAD "{\"stream\": 1}}", "a", "stream must be false"},
        {HEAD "{\"n\": 1, \"n\": 2}}", NULL, "no request"},
        {HEAD "{}} {}", NULL, "no request"},
        {HEAD "{\"a\": \"\xff\"}}", NULL, "no request"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct batch_request r;
        const char *line = bad[i].line;
        if (batch_line_request(line, strlen(line), "m", &r, &err) != ERR_INPUT)
            fail_msg("accepted: %s", line);
        if (!strstr(err.text, bad[i].why))
            fail_msg("%s: %s", line, err.text);
        assert_int_equal(r.custom_id != NULL, bad[i].id != NULL);
        if (bad[i].id)
            assert_string_equal(r.custom_id, bad[i].id);
        batch_line_free(&r);
    }
}

/* ---- results ---- */

static void check_written(const struct batch_result *r, const char *wanted, const char *id,
                          bool answered)
{
    struct buf line;
    char *read = NULL;
    size_t n = 0;
    bool has_answer = !answered;
    buf_init(&line, 4096);
    batch_line_write(r, &line);
    assert_string_equal(line.data, wanted);
    assert_true(batch_line_result(line.data, line.len - 1, &read, &n, &has_answer));
    assert_int_equal(has_answer, answered);
    assert_int_equal(read != NULL, id != NULL);
    if (id) {
        assert_int_equal(n, r->custom_id_len);
        assert_memory_equal(read, id, n);
    }
    free(read);
    buf_free(&line);
}

static void test_results(void **state)
{
    (void)state;
    struct buf body;
    buf_init(&body, 100);
    buf_puts(&body, "{\n\"x\": 1.10,\r\n\"y\": \"\\n\"}");
    struct batch_result r = {.id = 255,
                             .custom_id = "\xc3\xa9\0z",
                             .custom_id_len = 4,
                             .http_status = 200,
                             .request_id = "r-1",
                             .body = &body,
                             .line = 7};
    check_written(&r,
                  "{\"id\": \"batch_req_00000000000000ff\", \"custom_id\": \"\xc3\xa9\\u0000z\", "
                  "\"response\": {\"status_code\": 200, \"request_id\": \"r-1\", \"body\": "
                  "{ \"x\": 1.10,  \"y\": \"\\n\"}}, \"error\": null}\n",
                  r.custom_id, true);
    r.http_status = 404;
    r.code = "refused";
    r.message = "HTTP 404: \"m\" \xff\xc3";
    check_written(&r,
                  "{\"id\": \"batch_req_00000000000000ff\", \"custom_id\": \"\xc3\xa9\\u0000z\", "
                  "\"response\": {\"status_code\": 404, \"request_id\": \"r-1\", \"body\": "
                  "{ \"x\": 1.10,  \"y\": \"\\n\"}}, \"error\": {\"code\": \"refused\", "
                  "\"message\": \"HTTP 404: \\\"m\\\" \", \"line\": 7}}\n",
                  r.custom_id, false);
    r.http_status = 0;
    r.custom_id = NULL;
    check_written(
        &r,
        "{\"id\": \"batch_req_00000000000000ff\", \"custom_id\": null, \"response\": null, "
        "\"error\": {\"code\": \"refused\", "
        "\"message\": \"HTTP 404: \\\"m\\\" \", \"line\": 7}}\n",
        NULL, false);
    buf_free(&body);
}

static void test_answers(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        int64_t in, out;
        const char *message;
    } cases[] = {
        {"{\"usage\": {\"prompt_tokens\": 3, \"completion_tokens\": 4}}", 3, 4, ""},
        {"{\"usage\": {\"input_tokens\": 3, \"output_tokens\": 4}, \"error\": null}", 3, 4, ""},
        {"{\"usage\": {\"prompt_tokens\": -3, \"output_tokens\": \"4\"}}", 0, 0, ""},
        {"{\"error\": {\"message\": \"why\"}}", 0, 0, "why"},
        {"[\"usage\"]", 0, 0, ""},
    };
    struct buf body;
    struct batch_answer a;
    buf_init(&body, 1000);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        buf_clear(&body);
        buf_puts(&body, cases[i].body);
        assert_true(batch_line_answer(&body, &a));
        assert_int_equal(a.prompt_tokens, cases[i].in);
        assert_int_equal(a.completion_tokens, cases[i].out);
        assert_string_equal(a.message, cases[i].message);
    }
    buf_clear(&body);
    assert_false(batch_line_answer(&body, &a));
    buf_puts(&body, "<html>");
    assert_false(batch_line_answer(&body, &a));
    buf_free(&body);
}

/* ---- names ---- */

static enum batch_ids_found see(struct batch_ids *s, int i)
{
    char id[32];
    enum batch_ids_found found;
    const int n = snprintf(id, sizeof id, "request-%d", i);
    assert_int_equal(batch_ids_see(s, id, (size_t)n, &found, &err), OK);
    return found;
}

static void test_names(void **state)
{
    (void)state;
    struct batch_ids s;
    assert_int_equal(batch_ids_init(&s, &err), OK);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(see(&s, i), BATCH_IDS_NEW);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(see(&s, i), BATCH_IDS_REPEATED);
    assert_int_equal(batch_ids_answered(&s, "request-7000", 12, &err), OK);
    for (int i = 5000; i < 9000; i++)
        assert_int_equal(see(&s, i), i == 7000 ? BATCH_IDS_ANSWERED : BATCH_IDS_NEW);
    assert_int_equal(see(&s, 7000), BATCH_IDS_REPEATED);
    assert_true(s.cap <= 4 * s.count);
    batch_ids_free(&s);
}

/* ---- the file of an earlier run ---- */

#define GOOD(id)                                                                                   \
    BATCH_LINE_BEGIN "1\", \"custom_id\": \"" id                                                   \
                     "\", \"response\": {\"status_code\": 200, \"request_id\": \"\", \"body\": "   \
                     "{}}, \"error\": null}\n"
#define BAD(id)                                                                                    \
    BATCH_LINE_BEGIN "2\", \"custom_id\": " id                                                     \
                     ", \"response\": null, \"error\": {\"code\": \"no_answer\"}}\n"

static enum status reopen(const char *text, struct batch_ids *ids, struct batch_output *o)
{
    assert_int_equal(batch_ids_init(ids, &err), OK);
    scratch_write(scratch_path("out"), text, strlen(text));
    return batch_output_open(scratch_path("out"), ids, o, &err);
}

static void check_file(const char *wanted)
{
    size_t n;
    unsigned char *text = scratch_read(scratch_path("out"), &n);
    assert_string_equal((char *)text, wanted);
    free(text);
}

static void check_goes_on(const char *text, const char *stays, int answered, int dropped, bool cut)
{
    struct batch_ids ids;
    struct batch_output o;
    char wanted[2048];
    if (reopen(text, &ids, &o) != OK)
        fail_msg("%s", err.text);
    assert_int_equal(o.answered, answered);
    assert_int_equal(o.dropped, dropped);
    assert_int_equal(o.cut, cut);
    assert_int_equal(ids.count, answered);
    check_file(stays);
    assert_int_equal(batch_output_add(&o, "more\n", 5, &err), OK);
    snprintf(wanted, sizeof wanted, "%smore\n", stays);
    check_file(wanted);
    assert_int_equal(batch_output_close(&o, &err), OK);
    assert_int_equal(access(scratch_path("out.new"), F_OK), -1);
    batch_ids_free(&ids);
}

static void test_going_on(void **state)
{
    (void)state;
    check_goes_on("", "", 0, 0, false);
    check_goes_on(GOOD("a") GOOD("b"), GOOD("a") GOOD("b"), 2, 0, false);
    check_goes_on(GOOD("a") BATCH_LINE_BEGIN "12", GOOD("a"), 1, 0, true);
    check_goes_on(GOOD("a") "{\"i", GOOD("a"), 1, 0, true);
    check_goes_on(BAD("\"b\"") GOOD("a") BAD("null"), GOOD("a"), 1, 2, false);
    check_goes_on(BAD("\"b\"") GOOD("a") "{\"id\": \"b", GOOD("a"), 1, 1, true);
}

/* What is no output of ours stays as it is. */
static void test_other_files(void **state)
{
    (void)state;
    static const char *const others[] = {
        "a text",
        "a text\n",
        GOOD("a") "\n",
        GOOD("a") HEAD "{}}\n",
        GOOD("a") HEAD "{}}",
        "{\"custom_id\": \"a\", \"response\": null}\n",
        "[]\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        struct batch_ids ids;
        struct batch_output o;
        assert_int_equal(reopen(others[i], &ids, &o), ERR_USAGE);
        assert_non_null(strstr(err.text, "is no result of a batch"));
        check_file(others[i]);
        batch_ids_free(&ids);
    }
}

static void test_one_run_at_a_time(void **state)
{
    (void)state;
    struct batch_ids ids;
    struct batch_output first, second;
    assert_int_equal(reopen(BAD("\"a\""), &ids, &first), OK);
    assert_int_equal(batch_output_open(scratch_path("out"), &ids, &second, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "another run"));
    assert_int_equal(batch_output_close(&first, &err), OK);
    assert_int_equal(batch_output_open(scratch_path("out"), &ids, &second, &err), OK);
    assert_int_equal(batch_output_close(&second, &err), OK);
    batch_ids_free(&ids);
}

/* ---- the head of an answer ---- */

static void test_fields_of_answers(void **state)
{
    (void)state;
    static const struct {
        const char *fields, *id;
        int retry;
    } heads[] = {
        {"", "", 0},
        {"X-Request-ID:  abc-1 \r\nretry-after: 7\r\n", "abc-1", 7},
        {"X-Request-Id: a b\r\nRetry-After: Wed, 21 Oct 2015 07:28:00 GMT\r\n", "", 0},
        {"Retry-After: 99999999999\r\nX-Request-Id: \r\n", "", INT32_MAX},
    };
    for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
        char head[300];
        struct reply r;
        const int n = snprintf(head, sizeof head, "HTTP/1.1 429 -\r\n%sContent-Length: 0\r\n\r\n",
                               heads[i].fields);
        reply_init(&r, NULL, NULL);
        assert_int_equal(reply_feed(&r, head, (size_t)n, &err), OK);
        assert_string_equal(r.request_id, heads[i].id);
        assert_int_equal(r.retry_after_s, heads[i].retry);
        reply_reset(&r);
        assert_string_equal(r.request_id, "");
        assert_int_equal(r.retry_after_s, 0);
        reply_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_of_a_pipe),   cmocka_unit_test(test_waiting_for_lines_ends),
        cmocka_unit_test(test_endless_line),      cmocka_unit_test(test_good_requests),
        cmocka_unit_test(test_bad_requests),      cmocka_unit_test(test_results),
        cmocka_unit_test(test_answers),           cmocka_unit_test(test_names),
        cmocka_unit_test(test_going_on),          cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_one_run_at_a_time), cmocka_unit_test(test_fields_of_answers),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
