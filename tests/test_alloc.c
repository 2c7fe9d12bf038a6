/* Every allocation on the way from a body to its answer fails once, one after the other: each time
 * there is a proper answer or a cut connection, and the next request works. That nothing is lost is
 * for the leak sanitizer. The linker sends this program's allocations here (--wrap). */
#include "tests/scratch.h"
#include "tests/world.h"

/* Allocations of other threads count, too: that of the test, which plays the client, says whether
 * its own do. */
static _Thread_local bool is_client;
static _Atomic int64_t fail_after = -1; /* so many succeed, the next fails; -1: none does */

void *__real_malloc(size_t n);
void *__real_calloc(size_t count, size_t n);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t count, size_t n);
void *__wrap_realloc(void *p, size_t n);

static bool refuses(void)
{
    return !is_client && atomic_load(&fail_after) >= 0 && atomic_fetch_sub(&fail_after, 1) == 0;
}

void *__wrap_malloc(size_t n)
{
    return refuses() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t count, size_t n)
{
    return refuses() ? NULL : __real_calloc(count, n);
}

void *__wrap_realloc(void *p, size_t n)
{
    return refuses() ? NULL : __real_realloc(p, n);
}

/* The k-th allocation from now on fails; 0 is the first. */
static void arm(int64_t k)
{
    atomic_store(&fail_after, k);
}

/* Whether it came to that. */
static bool disarm(void)
{
    return atomic_exchange(&fail_after, -1) < 0;
}

#define COMPLETION                                                                                 \
    "{\"prompt\": [\"Once\", \"upon\"], \"stop\": [\"a\", \"b\"], \"bad_words\": [\"c\"], "        \
    "\"logit_bias\": {\"5\": 1, \"6\": 2}, \"stop_token_ids\": [7, 8], \"logprobs\": 2, "          \
    "\"echo\": true, \"max_tokens\": 8, \"cache_salt\": \"x\", \"unknown\": {\"a\": [1, {}]}}"
#define STREAM "{\"prompt\": [[4, 5], [6]], \"stream\": true, \"n\": 2, \"max_tokens\": 40}"
#define TEXT "{\"prompt\": \"Once upon a time\", \"return_token_strs\": true}"
#define IDS "{\"tokens\": [4, 5, 6, 7]}"

static int32_t count_of(const char *text, const char *word)
{
    int32_t n = 0;
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        n++;
    return n;
}

static char *post_to(const struct world *w, const char *path, const char *body)
{
    struct buf b;
    size_t n;
    buf_init(&b, 1 << 16);
    buf_printf(&b,
               "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
               path, strlen(body), body);
    char *text = buf_take(&b, &n);
    char *answer = ask(w, text);
    free(text);
    return answer;
}

static const struct request {
    const char *path, *body; /* NULL: GET */
    const char *from;        /* from here on a good answer is always the same; NULL: it is not */
} requests[] = {
    {"/v1/completions", COMPLETION, ",\"choices\":["},
    {"/v1/completions", STREAM, NULL},
    {"/tokenize", TEXT, "{\"count\":"},
    {"/detokenize", IDS, "{\"prompt\":"},
    {"/tokenizer_info", NULL, "\r\n\r\n{"},
    {"/v1/models", NULL, "\r\n\r\n{"},
    {"/v1/models/alias", NULL, "\r\n\r\n{"},
    {"/openapi.json", NULL, "\r\n\r\n{"},
    {"/metrics", NULL, NULL},
    {"/health", NULL, "\r\n\r\n{"},
};

static char *send_request(const struct world *w, const struct request *r)
{
    return r->body ? post_to(w, r->path, r->body) : get(w, r->path);
}

/* Whole and the same as without a failure, an error object, or cut off. */
static bool is_proper(const char *answer, const char *reference, const struct request *r)
{
    const char *body = strstr(answer, "\r\n\r\n");
    if (!answer[0])
        return true;
    if (strncmp(answer, "HTTP/1.1 503 ", 13) == 0)
        return body && strstr(body, "{\"error\":{\"message\":\"") &&
               strstr(body, "\"unavailable\"");
    if (strncmp(answer, "HTTP/1.1 200 ", 13) != 0)
        return false;
    if (r->from)
        return strstr(answer, r->from) &&
               strcmp(strstr(answer, r->from), strstr(reference, r->from)) == 0;
    return !strstr(answer, "[DONE]") || count_of(answer, "\"finish_reason\":\"length\"") == 4;
}

static void test_requests(void **state)
{
    const struct world *w = *state;
    is_client = true;
    for (size_t i = 0; i < ARRAY_LEN(requests); i++) {
        const struct request *r = &requests[i];
        char *reference = send_request(w, r);
        assert_true(strncmp(reference, "HTTP/1.1 200 ", 13) == 0);
        assert_true(is_proper(reference, reference, r));
        bool failed = true;
        for (int64_t k = 0; failed; k++) {
            arm(k);
            char *answer = send_request(w, r);
            failed = disarm();
            if (!is_proper(answer, reference, r))
                fail_msg("%s, allocation %lld: %s", r->path, (long long)k, answer);
            free(answer);
            answer = post_to(w, "/v1/completions", "{\"prompt\": [4], \"max_tokens\": 1}");
            if (strncmp(answer, "HTTP/1.1 200 ", 13) != 0)
                fail_msg("after %s, allocation %lld: %s", r->path, (long long)k, answer);
            free(answer);
        }
        free(reference);
    }
    is_client = false;
}

static int open_world(void **state)
{
    is_client = true;
    int failed = setup(state);
    is_client = false;
    return failed;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_requests, open_world, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
