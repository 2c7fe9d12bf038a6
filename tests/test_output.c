/* What large answers do to others: nothing. The lock of a job that is being written is held by the
 * test instead, for as long as it takes to see that nobody else needs it. And vectors: each stands
 * where its text did. */
#include "server/job.h"
#include "tests/scratch.h"
#include "tests/world.h"

#define IDS 3000 /* of the prompt; with three scores more each it is a large answer */
#define SCORED "\"logprobs\":3,\"echo\":true"

/* The caller frees. */
static char *scored_body(const char *more)
{
    struct buf b;
    size_t n;
    buf_init(&b, 1 << 20);
    buf_puts(&b, "{\"prompt\":[");
    for (int i = 0; i < IDS; i++)
        buf_puts(&b, i ? ",5" : "5");
    buf_printf(&b, "]," SCORED ",%s}", more);
    return buf_take(&b, &n);
}

static void say_scored(int fd, const char *more)
{
    char *body = scored_body(more);
    say_post(fd, body, "");
    free(body);
}

/* Of the only request in the engine, held; NULL: there is none. */
static struct job *hold_job(struct world *w)
{
    struct job *j = NULL;
    pthread_mutex_lock(&w->engine.lock);
    for (int32_t i = 0; i < FAKE_REQUESTS_MAX && !j; i++)
        if (w->engine.requests[i].id)
            j = ((struct choice *)w->engine.requests[i].user)->job;
    if (j)
        atomic_fetch_add(&j->refs, 1);
    pthread_mutex_unlock(&w->engine.lock);
    return j;
}

static struct job *await_job(struct world *w)
{
    for (int i = 0; i < 2000; i++) {
        struct job *j = hold_job(w);
        if (j)
            return j;
        usleep(5000);
    }
    fail_msg("no request came to the engine");
    return NULL;
}

static void await_slow(struct job *j)
{
    bool slow = false;
    for (int i = 0; i < 4000 && !slow; i++) {
        usleep(5000);
        pthread_mutex_lock(&j->lock);
        slow = j->slow;
        job_unlock(j);
    }
    assert_true(slow);
}

static void await_idle(struct world *w)
{
    for (int i = 0; i < 4000 && atomic_load(&w->engine.running) > 0; i++)
        usleep(5000);
    assert_int_equal(atomic_load(&w->engine.running), 0);
}

static void expect_good(char *answer, const char *words)
{
    assert_non_null(strstr(answer, "HTTP/1.1 200 "));
    assert_non_null(strstr(answer, words));
    free(answer);
}

/* ---- HTTP threads ---- */

static void test_client_leaves_while_its_answer_is_written(void **state)
{
    struct world *w = *state;
    int fd = dial(w), others[8];
    say_post(fd, "{\"prompt\":[1],\"max_tokens\":100000,\"stream\":true}", "");
    free(listen_until(fd, "data: "));
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        others[i] = dial(w); /* each HTTP thread has some of them */
    struct job *j = await_job(w);
    pthread_mutex_lock(&j->lock);
    close(fd);
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < ARRAY_LEN(others); i++) {
            say_text(others[i], "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
            expect_good(listen_until(others[i], "alive"), "alive");
        }
        usleep(10000);
    }
    assert_int_equal(j->status, 0); /* nobody has done it behind our back */
    job_unlock(j);
    await_idle(w);
    pthread_mutex_lock(&j->lock);
    assert_int_equal(j->status, JOB_CLIENT_LEFT);
    job_unlock(j);
    job_release(j);
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        close(others[i]);
}

/* ---- other answers ---- */

static void test_others_go_on_while_a_large_answer_is_written(void **state)
{
    struct world *w = *state;
    atomic_store(&w->engine.pause_us, 0);
    int fd = dial(w);
    say_scored(fd, "\"max_tokens\":100000");
    struct job *j = await_job(w);
    await_slow(j);
    pthread_mutex_lock(&j->lock);
    expect_good(post(w, "{\"prompt\":[1],\"max_tokens\":50,\"stream\":true}"), "[DONE]");
    expect_good(post(w, "{\"prompt\":[1],\"max_tokens\":3}"), "\"text\":\"abc\"");
    job_unlock(j);
    close(fd);
    await_idle(w);
    job_release(j);
}

/* Small ones stay where they are, however long a stream is. */
static void test_small_answers_stay(void **state)
{
    struct world *w = *state;
    atomic_store(&w->engine.pause_us, 0);
    int fd = dial(w);
    say_post(fd, "{\"prompt\":[1],\"max_tokens\":5000,\"stream\":true,\"logprobs\":3}", "");
    struct job *j = await_job(w);
    free(listen_until(fd, "[DONE]"));
    assert_false(j->slow);
    job_release(j);
    close(fd);
}

/* ---- and they are whole ---- */

static void test_large_stream_is_in_order(void **state)
{
    struct world *w = *state;
    atomic_store(&w->engine.pause_us, 0);
    int fd = dial(w);
    /* less than may wait unsent, or a reader that has to wait for a processor is too slow */
    say_scored(fd,
               "\"max_tokens\":1000,\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    struct job *j = await_job(w);
    char *answer = listen_until(fd, "\r\n0\r\n\r\n"); /* the last chunk; others may cut words */
    assert_true(j->slow);
    job_release(j);
    join_chunks(answer);
    assert_non_null(strstr(answer, "data: [DONE]"));
    const char *at = strstr(answer, "\"text\":\"");
    assert_non_null(at); /* the prompt, and the first token with it: byte 2 is no text */
    int32_t tokens = 0;
    const char *rest = strstr(at + 1, "\"text\":\"");
    assert_true(rest != NULL && strlen(rest) < 1 << 20);
    for (; at; at = strstr(at + 1, "\"text\":\"")) {
        const char *end = strstr(at, "\",\"logprobs\"");
        assert_non_null(end);
        if (at[8] != '"') {
            assert_int_equal(end[-1], 'a' + tokens % 26);
            tokens++;
        }
    }
    assert_int_equal(tokens, 1000);
    assert_non_null(strstr(answer, "\"prompt_tokens\":3000,\"completion_tokens\":1000,"));
    free(answer);
    close(fd);
}

static void test_large_answer_is_whole(void **state)
{
    struct world *w = *state;
    atomic_store(&w->engine.pause_us, 0);
    char *body = scored_body("\"max_tokens\":2");
    char *answer = post(w, body);
    assert_non_null(strstr(answer, "\"prompt_tokens\":3000,\"completion_tokens\":2,"));
    const char *own = strstr(answer, "\"token_logprobs\":[null,-0.5,-0.75,");
    assert_non_null(own);
    assert_non_null(strstr(own, ",-750.0,-750.25,-750.5],\"top_logprobs\"")); /* -(i + 1) / 4 */
    free(answer);
    free(body);
}

/* ---- how much of them there may be ---- */

/* Some megabytes of scores: of so many characters of a prompt, in so many choices. */
static int dial_large(const struct world *w, int32_t characters, int32_t n, const char *more)
{
    struct buf b;
    int fd = dial(w);
    buf_init(&b, 1 << 20);
    buf_puts(&b, "{\"prompt\":\"");
    for (int32_t i = 0; i < characters; i++)
        buf_puts(&b, "x");
    buf_printf(&b, "\",\"n\":%d,\"max_tokens\":1," SCORED "%s}", n, more);
    say_post(fd, b.data, "Connection: close\r\n");
    buf_free(&b);
    return fd;
}

static void await_submits(struct world *w, int32_t count)
{
    for (int i = 0; i < 2000 && atomic_load(&w->engine.submits) < count; i++)
        usleep(5000);
    assert_int_equal(atomic_load(&w->engine.submits), count);
}

static void test_large_answers_have_a_bound(void **state)
{
    struct world *w = *state;
    const int small = 4096;
    atomic_store(&w->engine.pause_us, 0);
    int held = dial_large(w, 15000, 8, ""); /* 7 MB of 8, and nobody reads them */
    await_submits(w, 8);
    setsockopt(held, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    await_idle(w);
    usleep(500000);
    int fd = dial_large(w, 15000, 8, "");
    char *answer = listen_until(fd, NULL);
    assert_non_null(strstr(answer, "HTTP/1.1 503 "));
    assert_non_null(strstr(answer, "Retry-After: 1\r\n"));
    assert_non_null(strstr(answer, "\"code\":\"out_of_capacity\""));
    free(answer);
    close(fd);
    fd = dial_large(w, 40000, 1, ",\"stream\":true");
    answer = listen_until(fd, NULL);
    assert_non_null(strstr(answer, "HTTP/1.1 200 "));
    assert_non_null(strstr(answer, "\"code\":\"out_of_capacity\""));
    assert_null(strstr(answer, "[DONE]"));
    free(answer);
    close(fd);
    expect_good(post(w, "{\"prompt\":[1],\"max_tokens\":3}"), "\"text\":\"abc\"");
    close(held);
    usleep(500000);
    fd = dial_large(w, 40000, 1, ",\"stream\":true");
    expect_good(listen_until(fd, NULL), "[DONE]");
    close(fd);
}

/* However large. */
static void test_one_large_answer_always_fits(void **state)
{
    struct world *w = *state;
    atomic_store(&w->engine.pause_us, 0);
    for (int i = 0; i < 2; i++) { /* the second as the first */
        int fd = dial_large(w, 20000, 8, "");
        char *answer = listen_until(fd, NULL);
        assert_true(strlen(answer) > 8 << 20);
        expect_good(answer, "\"total_tokens\":");
        close(fd);
    }
}

/* ---- vectors ---- */

static int setup_vectors(void **state)
{
    return setup_of(state, FAKE_COLUMNS);
}

/* The answer; the caller frees. */
static char *embed(const struct world *w, const char *body)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_printf(&b,
               "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
               "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
               strlen(body), body);
    assert_false(b.failed);
    char *answer = ask(w, b.data);
    buf_free(&b);
    return answer;
}

/* Many end in the same step; the engine's numbers are gone when the next one begins. */
static void test_each_text_has_its_vector(void **state)
{
    struct world *w = *state;
    enum { TEXTS = 60 };
    struct buf b;
    buf_init(&b, 1 << 16);
    atomic_store(&w->engine.pause_us, 0);
    for (int round = 0; round < 20; round++) {
        buf_clear(&b);
        buf_puts(&b, "{\"normalize\":false,\"input\":[");
        for (int i = 0; i < TEXTS; i++)
            buf_printf(&b, i ? ",[%d,1]" : "[%d,1]", 20 + (i * 7 + round) % 300);
        buf_puts(&b, "]}");
        char *answer = embed(w, b.data);
        const char *at = strstr(answer, "\"data\":[");
        assert_non_null(at);
        for (int i = 0; i < TEXTS; i++) {
            char wanted[128];
            const double first = 20 + (i * 7 + round) % 300;
            snprintf(wanted, sizeof wanted, "\"index\":%d,\"embedding\":[%g,%g,%g,%g]}", i, first,
                     first + 0.5, first + 1, first + 1.5);
            at = strstr(at, wanted); /* in the order of the texts */
            if (!at)
                fail_msg("round %d: %s is not in %s", round, wanted, answer);
        }
        assert_null(strstr(at + 1, "\"index\""));
        expect_good(answer, "\"prompt_tokens\":120,\"completion_tokens\":0,\"total_tokens\":120,");
    }
    buf_free(&b);
}

static void test_wanted_of_a_vector(void **state)
{
    struct world *w = *state;
    expect_good(embed(w, "{\"input\":[[3]],\"dimensions\":2,\"normalize\":false}"),
                "\"embedding\":[3,3.5]}");
    expect_good(embed(w, "{\"input\":[[1]],\"dimensions\":1,\"normalize\":true}"),
                "\"embedding\":[1]}");
    expect_good(embed(w, "{\"input\":[1],\"dimensions\":1,\"encoding_format\":\"base64\"}"),
                "\"embedding\":\"AACAPw==\"}");
    /* one without a finite vector fails all: nobody looks for a hole in a list */
    char *answer = embed(w, "{\"input\":[[20],[13],[21]]}");
    assert_non_null(strstr(answer, "HTTP/1.1 500 "));
    assert_null(strstr(answer, "\"embedding\""));
    free(answer);
    answer = post(w, "{\"prompt\":[1],\"max_tokens\":3}");
    assert_non_null(strstr(answer, "HTTP/1.1 400 "));
    assert_non_null(strstr(answer, "\"code\":\"unsupported_model\""));
    assert_non_null(strstr(answer, "/v1/embeddings"));
    free(answer);
    await_idle(w);
}

static void test_no_vectors_of_texts(void **state)
{
    struct world *w = *state;
    char *answer = embed(w, "{\"input\":[1]}");
    assert_non_null(strstr(answer, "HTTP/1.1 400 "));
    assert_non_null(strstr(answer, "\"code\":\"unsupported_model\""));
    assert_non_null(strstr(answer, "--runner pooling"));
    free(answer);
    assert_int_equal(atomic_load(&w->engine.submits), 0);
}

int main(void)
{
#define VECTORS(f) cmocka_unit_test_setup_teardown(f, setup_vectors, teardown)
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_client_leaves_while_its_answer_is_written),
        TEST(test_others_go_on_while_a_large_answer_is_written),
        TEST(test_small_answers_stay),
        TEST(test_large_stream_is_in_order),
        TEST(test_large_answer_is_whole),
        TEST(test_large_answers_have_a_bound),
        TEST(test_one_large_answer_always_fits),
        VECTORS(test_each_text_has_its_vector),
        VECTORS(test_wanted_of_a_vector),
        TEST(test_no_vectors_of_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
