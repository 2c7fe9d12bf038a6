/* The gate's count of who is inside, with a library that loses connections. */
#include "server/http/http_gate.h"
#include "server/http/http_listen.h"
#include "tests/http_talk.h"
#include "tests/scratch.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <unistd.h>

#define ROOM 4
#define LATE_US 3000000 /* longer than it takes to be taken for lost */

/* What stands for the library. */
struct house {
    struct http_gate *gate;
    int32_t port;
    int listener;
    _Atomic bool loses; /* whoever comes */
    _Atomic int32_t came, ticks;
    int fds[4 * ROOM]; /* of those who stay */
    _Atomic int32_t staying;
};

static bool on_admit(void *ctx, int fd, const struct sockaddr *address, socklen_t size)
{
    struct house *h = ctx;
    (void)address;
    (void)size;
    if (atomic_load(&h->loses)) {
        close(fd);
    } else {
        http_gate_arrived(h->gate);
        h->fds[atomic_fetch_add(&h->staying, 1)] = fd;
    }
    atomic_fetch_add(&h->came, 1);
    return true;
}

static void on_tick(void *ctx, int64_t now_ns)
{
    struct house *h = ctx;
    (void)now_ns;
    atomic_fetch_add(&h->ticks, 1);
}

static const struct http_limits limits = {.connections = ROOM,
                                          .header_bytes = 16384,
                                          .target_bytes = 4096,
                                          .headers = 100,
                                          .header_s = 60,
                                          .idle_s = 60};

static const struct http_routes no_routes;

static int setup(void **state)
{
    static struct house h;
    struct err err = {""};
    memset(&h, 0, sizeof h);
    const struct http_gate_config config = {
        .limits = &limits, .routes = &no_routes, .admit = on_admit, .tick = on_tick};
    struct http_gate_config c = config;
    c.ctx = &h;
    *state = &h;
    if (http_listen_on("127.0.0.1", 0, &h.listener, &h.port, &err) != OK)
        return -1;
    c.listener = h.listener;
    return http_gate_open(&c, &h.gate, &err) == OK ? 0 : -1;
}

static int teardown(void **state)
{
    struct house *h = *state;
    http_gate_close(h->gate);
    for (int32_t i = 0; i < atomic_load(&h->staying); i++)
        close(h->fds[i]);
    close(h->listener);
    return 0;
}

static int knock(const struct house *h)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)h->port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK(connect(fd, (const struct sockaddr *)&a, sizeof a) == 0);
    say_text(fd, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
    return fd;
}

static void await(const struct house *h, int32_t came)
{
    for (int i = 0; i < 2000 && atomic_load(&h->came) < came; i++)
        usleep(5000);
    assert_int_equal(atomic_load(&h->came), came);
}

static void test_lost_ones_make_room(void **state)
{
    struct house *h = *state;
    int fds[ROOM + 1];
    atomic_store(&h->loses, true);
    for (int32_t i = 0; i < ROOM; i++)
        fds[i] = knock(h);
    await(h, ROOM);
    atomic_store(&h->loses, false);
    fds[ROOM] = knock(h);
    await(h, ROOM + 1);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close(fds[i]);
}

/* Neither are those who stay taken for lost, nor do those who were give more room than there is. */
static void test_those_inside_count(void **state)
{
    struct house *h = *state;
    int fds[ROOM + 2];
    atomic_store(&h->loses, true);
    fds[0] = knock(h);
    await(h, 1);
    atomic_store(&h->loses, false);
    for (int32_t i = 1; i <= ROOM; i++)
        fds[i] = knock(h);
    await(h, 1 + ROOM);
    fds[ROOM + 1] = knock(h);
    usleep(LATE_US);
    assert_int_equal(atomic_load(&h->came), 1 + ROOM);
    http_gate_left(h->gate);
    await(h, 2 + ROOM);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close(fds[i]);
}

/* One that was taken for lost, and arrives after all, counts. */
static void test_late_ones_count(void **state)
{
    struct house *h = *state;
    int fds[ROOM + 1];
    atomic_store(&h->loses, true);
    fds[0] = knock(h);
    await(h, 1);
    usleep(LATE_US);
    http_gate_arrived(h->gate);
    const int32_t before = atomic_load(&h->ticks); /* it has deadlines, as everybody inside */
    usleep(LATE_US);
    assert_true(atomic_load(&h->ticks) > before + 1);
    atomic_store(&h->loses, false);
    fds[1] = knock(h);
    await(h, 2);
    usleep(LATE_US);
    for (int32_t i = 2; i <= ROOM; i++)
        fds[i] = knock(h);
    await(h, ROOM);
    usleep(LATE_US);
    assert_int_equal(atomic_load(&h->came), ROOM);
    http_gate_left(h->gate);
    await(h, ROOM + 1);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close(fds[i]);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_lost_ones_make_room),
        TEST(test_those_inside_count),
        TEST(test_late_ones_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
