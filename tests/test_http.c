/* The front end over real sockets, with a fake engine behind it: routes, framing, streams, clients
 * that leave, engines that die, and closing with all of it in flight. Run it under TSan as well. */
#include "server/http/http_listen.h"
#include "tests/scratch.h"
#include "tests/world.h"

#include <poll.h>

#define LONG "100000"

/* The answer must begin with this status and hold these words; freed. */
static void expect(char *answer, const char *status, const char *words)
{
    char line[64];
    snprintf(line, sizeof line, "HTTP/1.1 %s ", status);
    if (strncmp(answer, line, strlen(line)) != 0 || !strstr(answer, words))
        fail_msg("expected %s with %s, found: %.600s", status, words, answer);
    free(answer);
}

static void eventually(bool (*done)(const struct world *w), const struct world *w, const char *what)
{
    for (int i = 0; i < 20000; i++) {
        if (done(w))
            return;
        usleep(5000);
    }
    fail_msg("never: %s", what);
}

static bool is_idle(const struct world *w)
{
    return atomic_load(&w->engine.running) == 0;
}

static bool is_busy(const struct world *w)
{
    return atomic_load(&w->engine.running) > 0;
}

static int32_t count_of(const char *text, const char *word)
{
    int32_t n = 0;
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        n++;
    return n;
}

/* ---- routes ---- */

static void test_routes(void **state)
{
    const struct world *w = *state;
    expect(get(w, "/health"), "200", "ready");
    expect(get(w, "/readyz"), "200", "ready");
    expect(get(w, "/livez"), "200", "alive");
    expect(get(w, "/version"), "200", "\"1.2.3\"");
    expect(get(w, "/"), "200", "/v1/completions");
    expect(get(w, "/v1/models"), "200", "\"id\":\"de/mo\"");
    expect(get(w, "/v1/models/de/mo"), "200", "\"max_model_len\":1000000");
    expect(get(w, "/v1/models/de%2Fmo"), "200", "\"id\":\"de/mo\"");
    expect(get(w, "/v1/models"), "200", "\"id\":\"alias\"");
    expect(get(w, "/v1/models/alias"), "200", "\"id\":\"alias\",");
    expect(get(w, "/v1/models/other"), "404", "model_not_found");
    expect(get(w, "/metrics"), "200", "text/plain; version=0.0.4; charset=utf-8");
    expect(get(w, "/metrics"), "200", "\ntessera:comm_bytes_total{rank=\"1\",group=\"tp\",op=\"");
    expect(get(w, "/nothing"), "404", "\"code\":\"not_found\"");
    expect(get(w, "/v1/completions"), "405", "Allow: POST, OPTIONS");
    expect(ask(w, "DELETE /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), "405",
           "Allow: GET, HEAD, OPTIONS");
    expect(ask(w, "OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), "204",
           "Allow: GET, HEAD, OPTIONS");
    char *head = ask(w, "HEAD /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_null(strstr(head, "1.2.3"));
    expect(head, "200", "Content-Length: 19");
}

static void test_request_id(void **state)
{
    const struct world *w = *state;
    expect(ask(w, "GET /livez HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine-7\r\nConnection: close"
                  "\r\n\r\n"),
           "200", "X-Request-Id: mine-7\r\n");
    expect(get(w, "/livez"), "200", "X-Request-Id: req-");
}

static void test_framing(void **state)
{
    static const struct {
        const char *head, *status, *words;
    } cases[] = {
        {"Content-Length: 5\r\nContent-Length: 6", "400", "more than one header"},
        {"Content-Length: 5\r\nTransfer-Encoding: chunked", "400", "more than one header"},
        {"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "400", "more than one"},
        {"Transfer-Encoding: xchunked", "501", "chunked"},
        {"Content-Length: five", "400", "not a number"},
        {"Content-Encoding: gzip\r\nContent-Length: 5\r\nConnection: close", "415", "compressed"},
        {"Connection: close", "411", "Content-Length"},
    };
    const struct world *w = *state;
    char text[400];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        snprintf(text, sizeof text,
                 "POST /v1/completions HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
                 cases[i].head);
        expect(ask(w, text), cases[i].status, cases[i].words);
        int fd = dial(w); /* later on a connection */
        say_text(fd, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
        free(listen_until(fd, "alive"));
        say_text(fd, text);
        expect(listen_until(fd, NULL), cases[i].status, cases[i].words);
        close(fd);
    }
    expect(get(w, "/livez"), "200", "alive");
}

/* In the form of the path, for the first request of a connection and for later ones. */
static void test_framing_of_messages(void **state)
{
    static const struct {
        const char *head, *status, *type;
    } cases[] = {
        {"\r\n", "411", "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\""},
        {"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\n", "415", "{\"type\":\"error\""},
        {"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", "400", "{\"type\":\"error\""},
        {"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX", "400", "{\"type\":\"error\""},
    };
    static const char *const paths[] = {"/v1/messages", "/v1/messages/count_tokens?beta=true"};
    const struct world *w = *state;
    char text[400];
    for (size_t i = 0; i < ARRAY_LEN(cases) * ARRAY_LEN(paths); i++) {
        snprintf(text, sizeof text, "POST %s HTTP/1.1\r\nHost: x\r\n%s", paths[i % 2],
                 cases[i / 2].head);
        char *answer = ask(w, text);
        assert_non_null(strstr(answer, "\r\nRequest-Id: req-"));
        expect(answer, cases[i / 2].status, cases[i / 2].type);
        int fd = dial(w);
        say_text(fd, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
        free(listen_until(fd, "alive"));
        say_text(fd, text);
        expect(listen_until(fd, NULL), cases[i / 2].status, cases[i / 2].type);
        close(fd);
    }
    expect(ask(w, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n"), "411", "{\"error\":");
}

static void test_body_limit(void **state)
{
    const struct world *w = *state;
    static const size_t sizes[] = {65536, 65537, 100000, 8 * 65536};
    char *body = malloc(10000001);
    memset(body, ' ', 10000000);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        memcpy(body, "{\"prompt\":[1]}", 14);
        body[sizes[i]] = '\0';
        expect(post(w, body), i == 0 ? "200" : "413", i == 0 ? "choices" : "larger than 65536");
        body[sizes[i]] = ' ';
    }
    body[10000000] = '\0'; /* so much is not read to its end: the answer may be lost */
    free(post(w, body));
    int fd = dial(w); /* in chunks, nothing is announced */
    say_text(fd, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 100; i++) {
        say_text(fd, "3e8\r\n");
        say(fd, body + 100, 1000);
        say_text(fd, "\r\n");
    }
    say_text(fd, "0\r\n\r\n");
    expect(listen_until(fd, "}}"), "413", "larger than 65536");
    close(fd);
    free(body);
}

static void test_body_in_pieces(void **state)
{
    static const char body[] = "{\"prompt\":[1],\"max_tokens\":3}";
    const struct world *w = *state;
    char piece[8];
    int fd = dial(w);
    say_text(fd, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (size_t i = 0; i < sizeof body - 1; i++) {
        snprintf(piece, sizeof piece, "1\r\n%c\r\n", body[i]);
        say_text(fd, piece);
    }
    say_text(fd, "0\r\n\r\n");
    expect(listen_until(fd, "usage"), "200", "\"text\":\"abc\"");
    close(fd);
}

static void test_keep_alive(void **state)
{
    const struct world *w = *state;
    int fd = dial(w);
    for (int i = 0; i < 3; i++) {
        say_post(fd, "{\"prompt\":\"hi\",\"max_tokens\":3}", "");
        expect(listen_until(fd, "\"total_tokens\""), "200", "\"text\":\"abc\"");
    }
    close(fd);
}

/* ---- completions ---- */

static void test_plain(void **state)
{
    struct world *w = *state;
    expect(post(w, "{\"prompt\":[1,2],\"max_tokens\":30}"), "200",
           "\"text\":\"abcdefghijklmnopqrstuvwxyzabcd\"");
    expect(post(w, "{\"prompt\":[1,2]}"), "200",
           "\"prompt_tokens\":2,\"completion_tokens\":16,\"total_tokens\":18");
    expect(post(w, "{\"prompt\":[1],\"max_tokens\":2,\"return_token_ids\":true}"), "200",
           "\"token_ids\":[100,101],\"prompt_token_ids\":[1]");
    expect(post(w, "{\"prompt\":[1],\"max_tokens\":0}"), "200", "\"finish_reason\":\"length\"");
    expect(post(w, "{\"prompt\":[400]}"), "400", "\"param\":\"prompt\"");
    expect(post(w, "{\"prompt\":[1],\"max_tokens\":1000000}"), "400", "context_length_exceeded");
    expect(post(w, "{"), "400", "invalid_json");
    expect(post(w, "{\"prompt\":[1],\"model\":\"other\"}"), "404", "model_not_found");
}

static void test_choices(void **state)
{
    struct world *w = *state;
    char *answer = post(w, "{\"prompt\":[[1],[2]],\"n\":3,\"max_tokens\":2}");
    for (int i = 0; i < 6; i++) {
        char text[32];
        snprintf(text, sizeof text, "{\"index\":%d,", i);
        assert_non_null(strstr(answer, text));
        assert_int_equal(w->engine.choices[i], i); /* all differ, equal prompts, too */
        assert_int_equal(w->engine.seeds[i], w->engine.seeds[0]);
    }
    expect(answer, "200", "\"prompt_tokens\":2,\"completion_tokens\":12");
    int32_t next = atomic_load(&w->engine.submits);
    answer = post(w, "{\"prompt\":[[1],[2]],\"n\":3,\"max_tokens\":2,\"seed\":7}");
    for (int i = 0; i < 6; i++) /* each prompt has the answers that it has alone */
        assert_int_equal(w->engine.choices[next + i], i % 3);
    expect(answer, "200", "");
    next = atomic_load(&w->engine.submits);
    expect(post(w, "{\"prompt\":[1],\"max_tokens\":1,\"seed\":-5}"), "200", "");
    assert_int_equal(w->engine.seeds[next], (uint64_t)-5);
}

static void test_echo(void **state)
{
    struct world *w = *state;
    expect(post(w, "{\"prompt\":\"hi\",\"max_tokens\":2,\"echo\":true}"), "200",
           "\"text\":\"hiab\"");
    expect(post(w, "{\"prompt\":\"hi\",\"max_tokens\":0,\"echo\":true}"), "200",
           "\"text\":\"hi\",\"logprobs\":null,\"finish_reason\":\"length\"");
    expect(
        post(w, "{\"prompt\":\"hi\",\"max_tokens\":1,\"echo\":true,\"skip_special_tokens\":false}"),
        "200", "\"text\":\"<s>hia\"");
    char *answer = post(w, "{\"prompt\":\"hi\",\"max_tokens\":2,\"echo\":true,\"stream\":true}");
    assert_int_equal(count_of(answer, "data: {"), 2);
    assert_non_null(strstr(answer, "\"text\":\"hia\""));
    expect(answer, "200", "\"text\":\"b\"");
}

/* The fake's logprob is -(position + 1) / 4; prompt ids 100, 101, 102 are the letters a, b, c. */
static void test_logprobs(void **state)
{
    struct world *w = *state;
    expect(post(w, "{\"prompt\":[100,101,102],\"max_tokens\":2,\"echo\":true,\"logprobs\":2}"),
           "200",
           "\"text\":\"abcab\",\"logprobs\":{\"tokens\":[\"a\",\"b\",\"c\",\"a\",\"b\"],"
           "\"token_logprobs\":[null,-0.5,-0.75,-1.0,-1.25],"
           "\"top_logprobs\":[null,{\"c\":-0.25,\"b\":-0.5},{\"d\":-0.375,\"c\":-0.75},"
           "{\"b\":-0.5,\"a\":-1.0},{\"c\":-0.625,\"b\":-1.25}],\"text_offset\":[0,1,2,3,4]}");
    expect(post(w, "{\"prompt\":[100,101],\"max_tokens\":0,\"echo\":true,\"logprobs\":0}"), "200",
           "\"token_logprobs\":[null,-0.5],\"top_logprobs\":[null,{\"b\":-0.5}]");
    expect(post(w, "{\"prompt\":[100],\"max_tokens\":1,\"logprobs\":3}"), "200",
           "\"top_logprobs\":[{\"b\":-0.25,\"a\":-0.5,\"`\":-9999.0}],\"text_offset\":[0]");
    expect(
        post(w, "{\"prompt\":[100,101],\"max_tokens\":1,\"prompt_logprobs\":1}"), "200",
        "\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\"prompt_logprobs\":"
        "[null,{\"102\":{\"logprob\":-0.25,\"rank\":1,\"decoded_token\":\"c\"},"
        "\"101\":{\"logprob\":-0.5,\"rank\":null,\"decoded_token\":\"b\"}}]");
    expect(post(w, "{\"prompt\":[100],\"max_tokens\":1,\"logprobs\":0,"
                   "\"return_tokens_as_token_ids\":true}"),
           "200", "\"tokens\":[\"token_id:100\"]");
}

/* Chunks hold what is new; the prompt is in the first. */
static void test_logprobs_in_a_stream(void **state)
{
    struct world *w = *state;
    char *answer = post(w, "{\"prompt\":[100,101],\"max_tokens\":3,\"echo\":true,\"logprobs\":0,"
                           "\"stream\":true}");
    assert_int_equal(count_of(answer, "data: {"), 3);
    assert_non_null(strstr(answer, "\"token_logprobs\":[null,-0.5,-0.75]"));
    assert_non_null(strstr(answer, "\"tokens\":[\"b\"],\"token_logprobs\":[-1.0]"));
    expect(answer, "200", "\"top_logprobs\":[{\"c\":-1.25}],\"text_offset\":[4]");
}

static void test_usage(void **state)
{
    struct world *w = *state;
    expect(post(w, "{\"prompt\":[[1,2],[3]],\"n\":2,\"max_tokens\":1}"), "200",
           "\"prompt_tokens\":3,\"completion_tokens\":4,\"total_tokens\":7,"
           "\"prompt_tokens_details\":{\"cached_tokens\":2}");
    char *answer = post(w, "{\"prompt\":[1],\"max_tokens\":3,\"stream\":true,\"stream_options\":"
                           "{\"include_usage\":true,\"continuous_usage_stats\":true}}");
    assert_int_equal(count_of(answer, "\"usage\":{"), 4);
    expect(answer, "200", "\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2,");
}

static void test_stop_tokens(void **state)
{
    struct world *w = *state;
    expect(post(w, "{\"prompt\":[1],\"max_tokens\":" LONG ",\"stop_token_ids\":[7,103]}"), "200",
           "\"text\":\"abc\",\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":103");
    expect(post(w, "{\"prompt\":[1],\"max_tokens\":" LONG ",\"stop_token_ids\":[103],"
                   "\"include_stop_str_in_output\":true}"),
           "200", "\"text\":\"abcd\"");
    expect(post(w, "{\"prompt\":[1],\"max_tokens\":" LONG ",\"stop\":\"cd\","
                   "\"include_stop_str_in_output\":true}"),
           "200", "\"text\":\"abcd\"");
    expect(post(w, "{\"prompt\":[1],\"max_tokens\":" LONG ",\"stop\":\"cd\",\"min_tokens\":4}"),
           "200", "\"text\":\"abcdefghijklmnopqrstuvwxyzab\"");
    eventually(is_idle, w, "the engine was told");
}

static void test_what_the_engine_is_asked(void **state)
{
    struct world *w = *state;
    const struct request_params *p = &w->engine.last;
    expect(post(w, "{\"prompt\":[1],\"max_tokens\":1,\"priority\":-3,\"cache_salt\":\"s\","
                   "\"presence_penalty\":0.5,\"frequency_penalty\":-1,\"repetition_penalty\":1.5,"
                   "\"logit_bias\":{\"5\":-100},\"bad_words\":[\" hi\"],\"ignore_eos\":true}"),
           "200", "choices");
    assert_int_equal(p->priority, -3);
    assert_true(p->cache_salt != 0);
    assert_true(p->presence_penalty == 0.5F && p->frequency_penalty == -1);
    assert_true(p->repetition_penalty == 1.5F && p->ignore_eos);
    assert_int_equal(p->bias_count, 1);
    assert_int_equal(w->engine.last_bias[0].token, 5);
    int32_t *ids = NULL, count = 0; /* after a space, then inside a word */
    struct err err = {""};
    assert_int_equal(tokenizer_encode(w->tokenizer, "hi", 2, false, &ids, &count, &err), OK);
    assert_int_equal(p->bad_count, 2);
    assert_int_equal(w->engine.last_bad_ends[0], count);
    assert_memory_equal(w->engine.last_bad_ids, ids, (size_t)count * sizeof *ids);
    assert_true(w->engine.last_bad_ends[1] > count);
    for (int32_t i = count; i < w->engine.last_bad_ends[1]; i++)
        assert_false(tokenizer_view(w->tokenizer, w->engine.last_bad_ids[i]).starts_word);
    free(ids);
    uint64_t salt = p->cache_salt;
    expect(post(w, "{\"prompt\":[1],\"max_tokens\":1,\"cache_salt\":\"t\"}"), "200", "choices");
    assert_true(p->cache_salt != salt);
    expect(post(w, "{\"prompt\":[1],\"max_tokens\":1}"), "200", "choices");
    assert_int_equal(p->cache_salt, 0);
}

static void expect_ping(int fd)
{
    char *text = listen_until(fd, ": ping\n\n");
    assert_non_null(strstr(text, ": ping\n\n"));
    free(text);
}

/* While nothing comes, before the first token or later; not in between. */
static void test_pings(void **state)
{
    struct world *w = *state;
    atomic_store(&w->engine.pause_us, 600 * 1000 * 1000);
    usleep(300000); /* the engine sleeps now */
    int fd = dial(w);
    say_post(fd, "{\"prompt\":[1],\"max_tokens\":9,\"stream\":true}", "Connection: close\r\n");
    expect_ping(fd);
    atomic_store(&w->engine.pause_us, 50000);
    free(listen_until(fd, "data: {"));
    atomic_store(&w->engine.pause_us, 600 * 1000 * 1000);
    expect_ping(fd);
    atomic_store(&w->engine.pause_us, 200);
    char *answer = listen_until(fd, NULL);
    const char *rest = strstr(answer, "data: {");
    assert_non_null(rest);
    assert_null(strstr(rest, ": ping"));
    assert_non_null(strstr(rest, "data: [DONE]\n\n"));
    free(answer);
    close(fd);
}

static char *post_to(const struct world *w, const char *path, const char *body)
{
    char text[2000];
    snprintf(text, sizeof text,
             "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
             path, strlen(body), body);
    return ask(w, text);
}

static void test_tokenizer_routes(void **state)
{
    struct world *w = *state;
    expect(post_to(w, "/tokenize", "{\"prompt\":\"\"}"), "200",
           "{\"count\":1,\"max_model_len\":1000000,\"tokens\":[1],\"token_strs\":null}");
    expect(post_to(w, "/tokenize", "{\"content\":\"</s>\",\"add_special\":false}"), "200",
           "{\"count\":1,\"max_model_len\":1000000,\"tokens\":[2]");
    expect(post_to(w, "/tokenize", "{\"prompt\":\"\",\"add_special_tokens\":false}"), "200",
           "\"tokens\":[]");
    char *spelt = post_to(w, "/tokenize", "{\"prompt\":\"</s>\",\"parse_special\":false}");
    assert_null(strstr(spelt, "\"tokens\":[1,2]"));
    expect(spelt, "200", "\"tokens\":[1,");
    expect(post_to(w, "/tokenize", "{\"prompt\":\"</s>\",\"return_token_strs\":true}"), "200",
           "\"token_strs\":[\"<s>\",\"</s>\"]");
    expect(post_to(w, "/detokenize", "{\"tokens\":[1,107,108,2]}"), "200",
           "{\"prompt\":\"<s>hi</s>\",\"content\":\"<s>hi</s>\"}");
    expect(post_to(w, "/detokenize", "{\"tokens\":[400]}"), "400", "\"param\":\"tokens\"");
    expect(post_to(w, "/tokenize", "{"), "400", "invalid_json");
    expect(get(w, "/tokenizer_info"), "200", "\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"");
    expect(get(w, "/openapi.json"), "200", "{\"openapi\":\"3.1.0\"");
    assert_true(frontend_idle(w->frontend, 5));
}

static void test_stop_string(void **state)
{
    struct world *w = *state;
    expect(
        post(w, "{\"prompt\":[1],\"max_tokens\":" LONG ",\"stop\":[\"zz\",\"efg\"]}"), "200",
        "\"text\":\"abcd\",\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":\"efg\"");
    eventually(is_idle, w, "the engine was told");
    assert_int_equal(atomic_load(&w->engine.cancels), 1);
    expect(post(w, "{\"prompt\":[1],\"max_tokens\":7,\"stop\":\"gx\"}"), "200",
           "\"text\":\"abcdefg\",\"logprobs\":null,\"finish_reason\":\"length\"");
    expect(post(w, "{\"prompt\":[1],\"max_tokens\":" LONG ",\"stop\":\"c\",\"stream\":true}"),
           "200", "\"finish_reason\":\"stop\",\"stop_reason\":\"c\"");
}

static void test_stream(void **state)
{
    const struct world *w = *state;
    char *answer = post(w, "{\"prompt\":[1],\"max_tokens\":20,\"stream\":true,"
                           "\"stream_options\":{\"include_usage\":true}}");
    assert_int_equal(count_of(answer, "data: {"), 21);
    assert_int_equal(count_of(answer, "\"finish_reason\":\"length\""), 1);
    assert_int_equal(count_of(answer, "data: [DONE]\n\n"), 1);
    assert_non_null(strstr(answer, "Content-Type: text/event-stream; charset=utf-8\r\n"));
    assert_non_null(strstr(answer, "Cache-Control: no-cache\r\n"));
    assert_non_null(strstr(answer, "X-Accel-Buffering: no\r\n"));
    expect(answer, "200", "\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":20");
    expect(post(w, "{\"prompt\":[1],\"max_tokens\":0,\"stream\":true}"), "200", "data: [DONE]");
}

struct client {
    const struct world *world;
    int32_t rounds, good;
    pthread_t thread;
};

static void *client_loop(void *arg)
{
    struct client *c = arg;
    for (int32_t i = 0; i < c->rounds; i++) {
        char body[128];
        bool stream = i % 2;
        snprintf(body, sizeof body, "{\"prompt\":[1],\"max_tokens\":%d,\"stream\":%s}", 1 + i % 40,
                 stream ? "true" : "false");
        char *answer = post(c->world, body);
        c->good += stream ? count_of(answer, "data: {") == 1 + i % 40 && strstr(answer, "[DONE]")
                          : strstr(answer, "\"finish_reason\":\"length\"") != NULL;
        free(answer);
    }
    return NULL;
}

static void test_many_clients(void **state)
{
    struct world *w = *state;
    struct client clients[24];
    atomic_store(&w->engine.pause_us, 50);
    for (size_t i = 0; i < ARRAY_LEN(clients); i++) {
        clients[i] = (struct client){.world = w, .rounds = 40};
        assert_int_equal(pthread_create(&clients[i].thread, NULL, client_loop, &clients[i]), 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(clients); i++) {
        pthread_join(clients[i].thread, NULL);
        assert_int_equal(clients[i].good, clients[i].rounds);
    }
    assert_true(frontend_idle(w->frontend, 5));
}

/* ---- what goes wrong ---- */

static void test_client_leaves(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < 20; i++) {
        bool stream = i % 2;
        int fd = dial(w);
        say_post(fd,
                 stream ? "{\"prompt\":[1],\"n\":2,\"max_tokens\":" LONG ",\"stream\":true}"
                        : "{\"prompt\":[1],\"n\":2,\"max_tokens\":" LONG "}",
                 "");
        if (stream)
            free(listen_until(fd, "data: "));
        else
            eventually(is_busy, w, "running");
        close(fd);
        eventually(is_idle, w, "cancelled");
    }
    assert_true(frontend_idle(w->frontend, 5));
}

static void test_slow_reader(void **state)
{
    struct world *w = *state;
    atomic_store(&w->engine.pause_us, 0);
    int fd = dial(w);
    say_post(fd, "{\"prompt\":[1],\"n\":8,\"max_tokens\":900000,\"stream\":true}", "");
    free(listen_until(fd, "data: "));
    eventually(is_idle, w, "dropped");
    assert_true(frontend_idle(w->frontend, 5));
    close(fd);
}

static void test_queue_full(void **state)
{
    struct world *w = *state;
    atomic_store(&w->engine.places, 2);
    char *answer = post(w, "{\"prompt\":[1],\"n\":3,\"max_tokens\":" LONG "}");
    assert_non_null(strstr(answer, "Retry-After: 1\r\n"));
    expect(answer, "429", "\"code\":\"queue_full\"");
    eventually(is_idle, w, "the others were cancelled");
    expect(post(w, "{\"prompt\":[1],\"n\":2,\"max_tokens\":2}"), "200", "choices");
}

/* What is refused then is not read any further, and may be sent again over its connection. */
static void test_no_room(void **state)
{
    struct world *w = *state;
    atomic_store(&w->engine.places, 1);
    int running = dial(w), refused = dial(w);
    say_post(running, "{\"prompt\":[1],\"stream\":true,\"max_tokens\":" LONG "}", "");
    eventually(is_busy, w, "running");
    for (int i = 0; i < 3; i++) {
        say_post(refused, "{", "");
        char *answer = listen_until(refused, "}}");
        assert_non_null(strstr(answer, "Retry-After: 1\r\n"));
        assert_null(strstr(answer, "Connection: close"));
        expect(answer, "429", "\"code\":\"queue_full\"");
    }
    close(running);
    eventually(is_idle, w, "cancelled");
    say_post(refused, "{", "");
    expect(listen_until(refused, "}}"), "400", "invalid_json");
    close(refused);
}

/* The two workers are stopped within the engine, so requests pile up before them. */
static void test_workers_busy(void **state)
{
    struct world *w = *state;
    struct pollfd clients[QUEUED_MAX + 3];
    int32_t refused = 0;
    pthread_mutex_lock(&w->engine.lock);
    for (size_t i = 0; i < ARRAY_LEN(clients); i++) {
        clients[i] = (struct pollfd){.fd = dial(w), .events = POLLIN};
        say_post(clients[i].fd, "{\"prompt\":[1],\"max_tokens\":1}", "Connection: close\r\n");
    }
    int answered = poll(clients, ARRAY_LEN(clients), 30000);
    pthread_mutex_unlock(&w->engine.lock);
    assert_true(answered > 0); /* while everything else stands still */
    for (size_t i = 0; i < ARRAY_LEN(clients); i++) {
        char *answer = listen_until(clients[i].fd, NULL);
        bool is_refused = strncmp(answer, "HTTP/1.1 429 ", 13) == 0;
        refused += is_refused;
        expect(answer, is_refused ? "429" : "200", is_refused ? "queue_full" : "\"length\"");
        close(clients[i].fd);
    }
    assert_in_range(refused, 1, 3); /* before the workers took theirs, or after */
}

static void test_lost(void **state)
{
    struct world *w = *state;
    int plain = dial(w), stream = dial(w);
    say_post(plain, "{\"prompt\":[1],\"max_tokens\":" LONG "}", "");
    say_post(stream, "{\"prompt\":[1],\"n\":2,\"max_tokens\":" LONG ",\"stream\":true}", "");
    free(listen_until(stream, "data: "));
    eventually(is_busy, w, "running");
    while (atomic_load(&w->engine.running) < 3)
        usleep(1000);
    health_enter(&w->health, HEALTH_LOST);
    atomic_store(&w->engine.lost, true);
    expect(listen_until(plain, "}}"), "503", "\"code\":\"rank_lost\"");
    char *answer = listen_until(stream, NULL); /* it is cut off */
    assert_int_equal(count_of(answer, "data: {\"error\":{"), 1);
    assert_null(strstr(answer, "[DONE]"));
    assert_null(strstr(answer, "\r\n0\r\n")); /* nor the end that chunked encoding has */
    free(answer);
    close(plain);
    close(stream);
    expect(get(w, "/health"), "503", "\"code\":\"rank_lost\"");
    expect(get(w, "/livez"), "503", "\"code\":\"rank_lost\"");
    health_enter(&w->health, HEALTH_DRAINING); /* no way back */
    expect(get(w, "/readyz"), "503", "\"code\":\"rank_lost\"");
    expect(post(w, "{\"prompt\":[1]}"), "503", "\"code\":\"rank_lost\"");
    assert_true(frontend_idle(w->frontend, 5));
}

/* Ranks that are alive and do not move are not ready. */
static void test_stalled(void **state)
{
    struct world *w = *state;
    atomic_store(&w->engine.stalled_s, 10);
    expect(get(w, "/readyz"), "200", "ready");
    atomic_store(&w->engine.stalled_s, 11);
    expect(get(w, "/readyz"), "503", "\"code\":\"stalled\"");
    expect(get(w, "/health"), "503", "no progress for 11 s");
    expect(get(w, "/livez"), "200", "alive");
    expect(get(w, "/startupz"), "200", "{\"phase\":\"ready\",");
    atomic_store(&w->engine.stalled_s, 0);
    expect(get(w, "/readyz"), "200", "ready");
}

static void test_draining(void **state)
{
    struct world *w = *state;
    int fd = dial(w);
    say_post(fd, "{\"prompt\":[1],\"max_tokens\":2000}", "");
    eventually(is_busy, w, "running");
    health_enter(&w->health, HEALTH_DRAINING);
    assert_false(frontend_idle(w->frontend, 0.01));
    char *answer = get(w, "/health");
    assert_non_null(strstr(answer, "Retry-After: 1\r\n"));
    expect(answer, "503", "\"code\":\"draining\"");
    expect(get(w, "/livez"), "200", "alive");
    expect(post(w, "{\"prompt\":[1]}"), "503", "\"code\":\"draining\"");
    expect(post_to(w, "/tokenize", "{\"prompt\":\"a\"}"), "503", "\"code\":\"draining\"");
    answer = post_to(w, "/detokenize", "{\"tokens\":[1]}");
    assert_non_null(strstr(answer, "Retry-After: 1\r\n"));
    expect(answer, "503", "\"code\":\"draining\"");
    expect(post_to(w, "/v1/messages/count_tokens", "{}"), "503",
           "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",");
    expect(listen_until(fd, "\"total_tokens\""), "200", "\"completion_tokens\":2000");
    close(fd);
    assert_true(frontend_idle(w->frontend, 5));
}

/* Teardown finds streams, plain requests and idle connections. */
static void test_close_in_flight(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < 12; i++) {
        int fd = dial(w); /* closed by the end of the program */
        if (i % 3 < 2)
            say_post(fd,
                     i % 3 ? "{\"prompt\":[1],\"max_tokens\":" LONG ",\"stream\":true}"
                           : "{\"prompt\":[1],\"max_tokens\":" LONG "}",
                     "");
    }
    eventually(is_busy, w, "running");
}

/* ---- opening ---- */

static void test_addresses(void **state)
{
    struct world w = {0};
    struct err err = {""};
    int fd;
    int32_t port;
    char text[16];
    (void)state;
    assert_int_equal(http_listen_on("127.0.0.1", 0, &fd, &port, &err), OK);
    snprintf(text, sizeof text, "%d", port);
    assert_int_equal(try_open(&w, "127.0.0.1", port, &err), ERR_PEER);
    assert_non_null(strstr(err.text, text));
    assert_null(w.frontend);
    close(fd);
    assert_int_equal(try_open(&w, "nowhere", 0, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "nowhere"));
}

static void test_loading(void **state)
{
    struct world w = {0};
    struct err err = {""};
    (void)state;
    assert_int_equal(try_open(&w, "127.0.0.1", 0, &err), OK);
    w.port = frontend_port(w.frontend);
    expect(get(&w, "/health"), "503", "\"code\":\"loading\"");
    expect(get(&w, "/livez"), "200", "alive");
    expect(get(&w, "/startupz"), "503", "{\"phase\":\"starting\",\"bytes_done\":0,");
    atomic_store(&w.health.bytes_total, 1000);
    atomic_store(&w.health.ranks, 2);
    health_enter(&w.health, HEALTH_LOADING);
    expect(get(&w, "/startupz"), "503", ",\"eta_seconds\":null}");
    health_progress(&w.health, 250, 1);
    expect(get(&w, "/startupz"), "503",
           "{\"phase\":\"loading\",\"bytes_done\":250,\"bytes_total\":1000,\"ranks_done\":1,"
           "\"ranks\":2,");
    char text[160];
    assert_non_null(strstr(health_text(&w.health, text, sizeof text),
                           "loading weights: 250 B of 1000 B, 1 of 2 ranks done, "));
    health_enter(&w.health, HEALTH_WARMING);
    expect(get(&w, "/startupz"), "503", ",\"eta_seconds\":0.000}");
    expect(get(&w, "/readyz"), "503", "\"code\":\"loading\"");
    expect(post(&w, "{\"prompt\":[1]}"), "503", "\"code\":\"loading\"");
    expect(get(&w, "/v1/models"), "200", "de/mo");
    expect(get(&w, "/tokenizer_info"), "501", "no_tokenizer");
    expect(get(&w, "/metrics"), "200", "vllm:num_requests_running{model_name=\"de/mo\"");
    frontend_close(w.frontend);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_routes),
        TEST(test_stalled),
        TEST(test_request_id),
        TEST(test_framing),
        TEST(test_framing_of_messages),
        TEST(test_body_limit),
        TEST(test_body_in_pieces),
        TEST(test_keep_alive),
        TEST(test_plain),
        TEST(test_choices),
        TEST(test_echo),
        TEST(test_logprobs),
        TEST(test_logprobs_in_a_stream),
        TEST(test_usage),
        TEST(test_stop_tokens),
        TEST(test_what_the_engine_is_asked),
        TEST(test_pings),
        TEST(test_tokenizer_routes),
        TEST(test_stop_string),
        TEST(test_stream),
        TEST(test_many_clients),
        TEST(test_client_leaves),
        TEST(test_slow_reader),
        TEST(test_queue_full),
        TEST(test_no_room),
        TEST(test_workers_busy),
        TEST(test_lost),
        TEST(test_draining),
        TEST(test_close_in_flight),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_loading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
