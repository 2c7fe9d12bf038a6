/* What the HTTP library gets from a socket through recv(): good requests whole and in order however
 * they were cut, nothing of a bad one that it could answer, and never a short read that leaves
 * something behind without a new edge. A small reader of our own stands for the library. */
#include "server/http/http_intake.h"
#include "tests/scratch.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define GET "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
#define POST "POST / HTTP/1.1\r\nHost: x\r\n"
#define REQUESTS_MAX 8

/* Bodies that a reader who lost count would take for requests. */
static const char *const good[] = {
    GET,
    POST "Content-Length: 27\r\n\r\n" GET,
    POST "Content-Length: 0\r\n\r\n",
    POST "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST "Transfer-Encoding: chunked\r\n\r\n1b\r\n" GET "\r\n0\r\n\r\n",
    POST "Transfer-Encoding: chunked\r\n\r\n1\r\n0\r\n1B\r\n" GET
         "\r\n5\r\n0\r\n\r\n\r\n00\r\n\r\n",
};

static const struct {
    const char *text;
    const char *status;
} bad[] = {
    {"GET / HTTP/1.1\r\n\r\n" GET, "400"},
    {"\r\n" GET, "400"},
    {"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", "501"},
    {POST "Content-Length: 1\r\nContent-Length: 1\r\n\r\n" GET, "400"},
    {POST "Transfer-Encoding: chunked\r\n\r\nx" GET, "400"},
    {POST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello" GET, "400"},
    {POST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n" GET, "400"},
};

static const struct http_limits limits = {
    .header_bytes = 256, .target_bytes = 64, .headers = 8, .header_s = 10, .idle_s = 60};
static const struct http_routes routes;

/* ---- a connection ---- */

struct pair {
    int client, server;
    struct http_peers *peers;
    struct http_peer *peer;
};

/* Not TCP, which delivers when it sees fit. */
static struct pair connect_pair(void)
{
    struct pair p;
    struct err err;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    p.client = ends[0];
    p.server = ends[1];
    assert_int_equal(http_peer_open(&limits, &p.peers, &err), OK);
    p.peer = http_peer_enter(p.peers, p.server);
    assert_true(http_intake_open(p.server, &limits, &routes, p.peer));
    return p;
}

static void disconnect(struct pair *p)
{
    http_intake_close(p->server);
    http_peer_leave(p->peers, p->peer);
    http_peer_close(p->peers);
    close(p->server);
    close(p->client);
}

static void say(const struct pair *p, const char *text, size_t n)
{
    assert_int_equal(send(p->client, text, n, MSG_NOSIGNAL), n);
}

/* What the client has been told; "" for nothing. */
static const char *told(const struct pair *p)
{
    static char text[4096];
    ssize_t n = recv(p->client, text, sizeof text - 1, MSG_DONTWAIT);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static void check_told(const struct pair *p, const char *status)
{
    const char *text = told(p);
    if (strncmp(text, "HTTP/1.1 ", 9) != 0 || strncmp(text + 9, status, 3) != 0)
        fail_msg("not %s: %s", status, text);
    assert_non_null(strstr(text, "Connection: close"));
}

/* ---- a reader with the library's habits ---- */

struct reader {
    int fd, epoll;
    bool is_ready; /* as far as edges and short reads tell */
    char all[4096];
    size_t n;
    size_t ends[REQUESTS_MAX]; /* of the good requests */
    int32_t count, answered;
    bool is_open;
};

static uint64_t seed_now;

static size_t below(size_t n) /* splitmix64 */
{
    uint64_t z = seed_now += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (size_t)((z ^ (z >> 31)) % n);
}

static void reader_start(struct reader *r, int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    r->fd = fd;
    r->epoll = epoll_create1(0);
    r->is_open = true;
    assert_int_equal(epoll_ctl(r->epoll, EPOLL_CTL_ADD, fd, &event), 0);
}

/* Answers what is whole, unless busy; reads only when it wants more of the request at hand. */
static void reader_run(struct reader *r, bool busy)
{
    struct epoll_event event;
    r->is_ready |= epoll_wait(r->epoll, &event, 1, 0) == 1;
    for (;;) {
        while (!busy && r->answered < r->count && r->n >= r->ends[r->answered]) {
            assert_true(http_intake_has_request(r->fd));
            http_intake_done(r->fd, false);
            r->answered++;
        }
        if (r->answered < r->count && r->n >= r->ends[r->answered])
            return;
        if (!r->is_ready || !r->is_open)
            return;
        size_t room = 1 + below(below(2) ? 8 : 600);
        ssize_t k = recv(r->fd, r->all + r->n, room, 0);
        assert_true(k >= 0 || errno == EAGAIN);
        r->is_open = k != 0;
        r->n += k > 0 ? (size_t)k : 0;
        r->is_ready = k == (ssize_t)room;
        assert_true(r->n < sizeof r->all - 600);
    }
}

/* ---- tests ---- */

static void run_seed(uint64_t seed)
{
    char text[4096];
    size_t n = 0, at = 0, good_n;
    struct reader r = {.n = 0};
    struct pair p = connect_pair();
    seed_now = seed;
    reader_start(&r, p.server);
    r.count = (int32_t)below(REQUESTS_MAX);
    for (int32_t i = 0; i < r.count; i++) {
        const char *request = good[below(ARRAY_LEN(good))];
        memcpy(text + n, request, strlen(request));
        r.ends[i] = n += strlen(request);
    }
    good_n = n;
    size_t fault = below(2 * ARRAY_LEN(bad)); /* none as often */
    if (fault < ARRAY_LEN(bad)) {
        memcpy(text + n, bad[fault].text, strlen(bad[fault].text));
        n += strlen(bad[fault].text);
    }
    const size_t largest = below(2) ? 5 : n + 1;
    while (at < n) {
        size_t k = 1 + below(largest);
        k = k < n - at ? k : n - at;
        say(&p, text + at, k);
        at += k;
        reader_run(&r, below(3) == 0);
    }
    reader_run(&r, false);
    if (r.answered != r.count || r.n < good_n || memcmp(r.all, text, r.n) != 0)
        fail_msg("seed %llu: %d of %d requests", (unsigned long long)seed, r.answered, r.count);
    if (fault < ARRAY_LEN(bad)) {
        check_told(&p, bad[fault].status);
        shutdown(p.client, SHUT_WR);
        reader_run(&r, false);
        assert_false(r.is_open);
    } else {
        assert_int_equal(r.n, n);
        assert_string_equal(told(&p), "");
    }
    close(r.epoll);
    disconnect(&p);
}

static void test_any_cut(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 3000; seed++)
        run_seed(seed * 1000003);
}

/* A fault is answered when all before it are, unless the last of those closes the connection. */
static void test_turn(void **state)
{
    char to[4096];
    (void)state;
    for (int is_last = 0; is_last < 2; is_last++) {
        struct pair p = connect_pair();
        say(&p, GET GET "\r\n" GET, sizeof GET GET GET - 1 + 2);
        assert_int_equal(recv(p.server, to, sizeof to, 0), sizeof GET GET - 1);
        assert_string_equal(told(&p), "");
        http_intake_done(p.server, false);
        assert_string_equal(told(&p), "");
        http_intake_done(p.server, is_last);
        if (is_last)
            assert_string_equal(told(&p), "");
        else
            check_told(&p, "400");
        disconnect(&p);
    }
}

/* In the midst of a request that the library knows, nobody else would answer. */
static void test_fault_in_a_body(void **state)
{
    char to[4096];
    struct pair p = connect_pair();
    (void)state;
    say(&p, POST "Transfer-Encoding: chunked\r\n\r\n5\r\nhel", sizeof POST + 36);
    assert_int_equal(recv(p.server, to, sizeof to, 0), sizeof POST + 36);
    say(&p, "loX\n", 4);
    assert_int_equal(recv(p.server, to, sizeof to, 0), -1);
    check_told(&p, "400");
    http_intake_done(p.server, false); /* the library gives it up */
    assert_string_equal(told(&p), "");
    disconnect(&p);
}

/* What it does not know, and what it cannot know. */
static void test_other_sockets(void **state)
{
    char to[8];
    struct pair p = connect_pair();
    (void)state;
    assert_int_equal(send(p.server, "\r\nabc", 5, 0), 5);
    assert_int_equal(recv(p.client, to, 3, MSG_PEEK), 3);
    assert_int_equal(recv(p.client, to, sizeof to, 0), 5);
    assert_int_equal(recv(p.client, to, sizeof to, MSG_DONTWAIT), -1);
    assert_int_equal(recv(-1, to, sizeof to, 0), -1);
    assert_int_equal(errno, EBADF);
    assert_false(http_intake_open(1 << 20, &limits, &routes, p.peer));
    assert_false(http_intake_has_request(p.client));
    http_intake_close(p.client);
    disconnect(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_cut),
        cmocka_unit_test(test_turn),
        cmocka_unit_test(test_fault_in_a_body),
        cmocka_unit_test(test_other_sockets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
