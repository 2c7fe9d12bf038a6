/* How ranks of other machines come to the front end: here threads of one process, over loopback. */
#include "config/base.h"
#include "engine/rendezvous.h"

#include <setjmp.h>
#include <stdio.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const struct rendezvous_secret ours = {{0x0123456789abcdef, 0xfedcba9876543210}};
static const struct rendezvous_secret other = {{0x0123456789abcdef, 0xfedcba9876543211}};

/* ---- place ---- */

static void set_launcher(const char *rank, const char *ranks)
{
    static const char *const all[] = {
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK",    "PMI_SIZE",
        "SLURM_PROCID",         "SLURM_NTASKS",         "PMIX_RANK",   "RANK",
        "WORLD_SIZE",           "LWS_WORKER_INDEX",     "MASTER_ADDR", "MASTER_PORT",
        "LWS_LEADER_ADDRESS",   "SLURM_STEP_NODELIST"};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        unsetenv(all[i]);
    if (rank)
        setenv("OMPI_COMM_WORLD_RANK", rank, 1);
    if (ranks)
        setenv("OMPI_COMM_WORLD_SIZE", ranks, 1);
}

static void test_place(void **state)
{
    (void)state;
    static const char *const bad[][2] = {{"2", "2"},  {"-1", "2"}, {"x", "2"}, {"", "2"},
                                         {"1", NULL}, {"1", "3"},  {"1 ", "2"}};
    struct rendezvous_place p = {NULL, -7, -7};
    struct err err = {""};
    set_launcher(NULL, NULL);
    assert_int_equal(rendezvous_place(2, &p, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "not started by a launcher: mpirun -n 2"));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        set_launcher(bad[i][0], bad[i][1]);
        assert_int_equal(rendezvous_place(2, &p, &err), ERR_USAGE);
        assert_int_equal(p.rank, -7);
    }
    set_launcher(NULL, NULL);
    setenv("SLURM_PROCID", "3", 1);
    setenv("SLURM_NTASKS", "4", 1);
    assert_int_equal(rendezvous_place(4, &p, &err), OK);
    assert_string_equal(p.launcher, "Slurm");
    assert_int_equal(p.rank, 3);
    setenv("OMPI_COMM_WORLD_RANK", "1", 1); /* mpirun within a Slurm job */
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    assert_int_equal(rendezvous_place(2, &p, &err), OK);
    assert_string_equal(p.launcher, "Open MPI");
    assert_int_equal(p.rank, 1);
    assert_int_equal(p.ranks, 2);
    set_launcher(NULL, NULL);
}

/* The launchers that there are, by the variables they set. */
static void test_launchers(void **state)
{
    (void)state;
    static const struct {
        const char *name, *rank, *ranks;
    } all[] = {{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
               {"PMI", "PMI_RANK", "PMI_SIZE"},
               {"Slurm", "SLURM_PROCID", "SLURM_NTASKS"},
               {"PMIx", "PMIX_RANK", NULL}};
    static const char *const no_mpi[][2] = {{"torchrun", "RANK"},
                                            {"LeaderWorkerSet", "LWS_WORKER_INDEX"}};
    struct rendezvous_place p;
    struct err err;
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        set_launcher(NULL, NULL);
        setenv("RANK", "0", 1); /* mpirun started by another */
        setenv(all[i].rank, "2", 1);
        if (all[i].ranks)
            setenv(all[i].ranks, "3", 1);
        assert_int_equal(rendezvous_place(3, &p, &err), OK);
        assert_string_equal(p.launcher, all[i].name);
        assert_int_equal(p.rank, 2);
        assert_int_equal(p.ranks, 3);
        assert_int_equal(rendezvous_place(2, &p, &err), ERR_USAGE);
    }
    for (size_t i = 0; i < ARRAY_LEN(no_mpi); i++) {
        set_launcher(NULL, NULL);
        setenv(no_mpi[i][1], "0", 1);
        assert_int_equal(rendezvous_place(2, &p, &err), ERR_USAGE);
        assert_non_null(strstr(err.text, no_mpi[i][0]));
        assert_non_null(strstr(err.text, "starts no MPI"));
    }
    set_launcher(NULL, NULL);
}

static void check_address(const char *host, int32_t port, const char *want, int32_t want_port,
                          const char *by)
{
    struct rendezvous_address a;
    struct err err = {""};
    assert_int_equal(rendezvous_address(host, port, &a, &err), want ? OK : ERR_USAGE);
    if (!want) {
        assert_non_null(strstr(err.text, by));
        return;
    }
    assert_string_equal(a.host, want);
    assert_int_equal(a.port, want_port);
    assert_string_equal(a.said_by, by);
}

static void test_address(void **state)
{
    (void)state;
    static const char *const lists[][2] = {{"node7", "node7"},
                                           {"a,b", "a"},
                                           {"n[1-4]", "n1"},
                                           {"n[03,7-9]-ib,x[1-2]", "n03-ib"},
                                           {"r[1-2]n[5-6],z", "r1n5"},
                                           {"", NULL},
                                           {",a", NULL},
                                           {"n[", NULL},
                                           {"n[1-4", NULL},
                                           {"n[x]", NULL}};
    static const char *const ports[] = {"", "0", "65536", "-1", "x", "80x"};
    char longest[300];
    set_launcher(NULL, NULL);
    check_address(NULL, 0, "127.0.0.1", 29500, "the default of --master-addr");
    check_address("here", 77, "here", 77, "--master-addr");
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        setenv("SLURM_STEP_NODELIST", lists[i][0], 1);
        check_address(NULL, 0, lists[i][1], 29500, "SLURM_STEP_NODELIST");
    }
    memset(longest, 'n', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    setenv("SLURM_STEP_NODELIST", longest, 1);
    check_address(NULL, 0, NULL, 0, "SLURM_STEP_NODELIST");
    setenv("OMPI_COMM_WORLD_RANK", "0", 1); /* mpirun: the list may be that of its helpers */
    check_address(NULL, 0, "127.0.0.1", 29500, "the default of --master-addr");
    setenv("LWS_LEADER_ADDRESS", "lws-0.lws.default", 1);
    check_address(NULL, 0, "lws-0.lws.default", 29500, "LWS_LEADER_ADDRESS");
    setenv("MASTER_ADDR", "10.0.0.1", 1);
    setenv("MASTER_PORT", "1234", 1);
    check_address(NULL, 0, "10.0.0.1", 1234, "MASTER_ADDR");
    check_address("::1", 5, "::1", 5, "--master-addr");
    for (size_t i = 0; i < ARRAY_LEN(ports); i++) {
        setenv("MASTER_PORT", ports[i], 1);
        check_address(NULL, 0, NULL, 0, "MASTER_PORT");
        check_address(NULL, 9, "10.0.0.1", 9, "MASTER_ADDR");
    }
    set_launcher(NULL, NULL);
}

/* ---- secret ---- */

static enum status read_back(const char *text, mode_t mode, struct rendezvous_secret *out,
                             struct err *err)
{
    char path[] = "/tmp/test_rendezvous.XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
    enum status st = rendezvous_secret(path, out, err);
    unlink(path);
    return st;
}

static void test_secret(void **state)
{
    (void)state;
    static const char good[] = "0123456789abcdefFEDCBA9876543210";
    static const char *const bad[] = {"",
                                      "\n",
                                      "0123456789abcdef",
                                      "0123456789abcdeffedcba987654321",
                                      "0123456789abcdeffedcba98765432100",
                                      "0123456789abcdeffedcba987654321g",
                                      "0123456789abcdeffedcba9876543210 x",
                                      " 0123456789abcdeffedcba9876543210"};
    struct rendezvous_secret s = {{0, 0}};
    struct err err = {""};
    char line[64];
    (void)snprintf(line, sizeof line, "%s\n", good);
    assert_int_equal(read_back(line, 0600, &s, &err), OK);
    assert_memory_equal(&s, &ours, sizeof s);
    assert_int_equal(read_back(good, 0400, &s, &err), OK);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(read_back(bad[i], 0600, &s, &err), ERR_USAGE);
    static const mode_t loose[] = {0640, 0604, 0660, 0602};
    for (size_t i = 0; i < ARRAY_LEN(loose); i++) {
        assert_int_equal(read_back(line, loose[i], &s, &err), ERR_USAGE);
        assert_non_null(strstr(err.text, "chmod 600"));
    }
    assert_int_equal(rendezvous_secret(NULL, &s, &err), ERR_USAGE);
    assert_int_equal(rendezvous_secret("/dev/null", &s, &err), ERR_USAGE);
    assert_int_equal(rendezvous_secret("/nowhere/secret", &s, &err), ERR_USAGE);
}

/* ---- handshake ---- */

struct visitor {
    pthread_t id;
    int32_t port, rank, ranks;
    const struct rendezvous_secret *secret; /* NULL: sends rubbish */
    int link;
    enum status st;
    struct err err;
};

static int listen_anywhere(int32_t *port)
{
    struct err err = {""};
    struct sockaddr_in a;
    socklen_t n = sizeof a;
    int fd = -1;
    const struct rendezvous_address here = {.host = "127.0.0.1", .said_by = "this test"};
    assert_int_equal(rendezvous_listen(&here, &fd, &err), OK);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static void send_rubbish(int32_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    char rubbish[4096];
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) { /* all others came before */
        close(fd);
        return;
    }
    memset(rubbish, 'x', sizeof rubbish);
    (void)send(fd, rubbish, sizeof rubbish, MSG_NOSIGNAL);
    while (recv(fd, rubbish, sizeof rubbish, 0) > 0)
        ;
    close(fd);
}

static void *visit(void *arg)
{
    struct visitor *v = arg;
    v->link = -1;
    if (v->secret)
        v->st = rendezvous_join(&(struct rendezvous_address){.host = "127.0.0.1", .port = v->port},
                                v->secret, v->rank, v->ranks, 60, &v->link, &v->err);
    else
        send_rubbish(v->port);
    return NULL;
}

static void start(struct visitor *v, int32_t port)
{
    v->port = port;
    assert_int_equal(pthread_create(&v->id, NULL, visit, v), 0);
}

static void test_all_come(void **state)
{
    (void)state;
    struct visitor v[3];
    struct err err = {""};
    int links[4] = {-7, 0, 0, 0};
    int32_t port;
    const int listener = listen_anywhere(&port);
    struct visitor stranger = {.secret = NULL}, liar = {.rank = 1, .ranks = 4, .secret = &other};
    start(&stranger, port);
    start(&liar, port);
    for (int32_t r = 3; r >= 1; r--) {
        v[r - 1] = (struct visitor){.rank = r, .ranks = 4, .secret = &ours};
        start(&v[r - 1], port);
    }
    assert_int_equal(rendezvous_accept(listener, &ours, 4, 120, NULL, NULL, links, &err), OK);
    close(listener); /* whoever was not looked at yet is turned away by it */
    pthread_join(stranger.id, NULL);
    pthread_join(liar.id, NULL);
    assert_int_equal(liar.st, ERR_COMM);
    assert_int_equal(links[0], -7);
    for (int32_t r = 1; r < 4; r++) {
        char text[RENDEZVOUS_TEXT_MAX], words[] = "tessera\0rank\0--rank=N", *heard[48];
        int count = 0;
        pthread_join(v[r - 1].id, NULL);
        assert_int_equal(v[r - 1].st, OK);
        words[sizeof words - 2] = (char)('0' + r); /* the link is that of this rank */
        assert_int_equal(rendezvous_tell(links[r], words, sizeof words, &err), OK);
        assert_int_equal(rendezvous_hear(v[r - 1].link, text, heard, &count, &err), OK);
        assert_int_equal(count, 3);
        assert_string_equal(heard[1], "rank");
        assert_string_equal(heard[2], words + 13);
        assert_null(heard[3]);
        close(links[r]);
        close(v[r - 1].link);
    }
}

static void *drip(void *arg)
{
    const int fd = *(const int *)arg;
    const struct timespec pause = {.tv_nsec = 100000000};
    for (int i = 0; i < 3000 && send(fd, "x", 1, MSG_NOSIGNAL) == 1; i++)
        nanosleep(&pause, NULL);
    return NULL;
}

/* A stranger who sends a byte now and then keeps the ranks waiting, but not for long. */
static void test_drip(void **state)
{
    (void)state;
    struct visitor v = {.rank = 1, .ranks = 2, .secret = &ours};
    struct err err = {""};
    pthread_t id;
    int links[2];
    int32_t port;
    const int listener = listen_anywhere(&port);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(pthread_create(&id, NULL, drip, &fd), 0);
    start(&v, port);
    assert_int_equal(rendezvous_accept(listener, &ours, 2, 120, NULL, NULL, links, &err), OK);
    pthread_join(v.id, NULL);
    assert_int_equal(v.st, OK);
    pthread_join(id, NULL);
    close(fd);
    close(links[1]);
    close(v.link);
    close(listener);
}

/* One visitor who must not be taken, and nobody else. */
static void refuse(struct visitor v, const char *why)
{
    struct err err = {""};
    int links[2];
    int32_t port;
    const int listener = listen_anywhere(&port);
    start(&v, port);
    assert_int_equal(rendezvous_accept(listener, &ours, 2, 2, NULL, NULL, links, &err), ERR_COMM);
    pthread_join(v.id, NULL);
    close(listener);
    assert_non_null(strstr(err.text, "0 of 1 ranks came"));
    assert_non_null(strstr(err.text, why));
    if (v.secret) {
        assert_int_equal(v.st, ERR_COMM);
        assert_non_null(strstr(v.err.text, "turned away"));
    }
}

static void test_refused(void **state)
{
    (void)state;
    refuse((struct visitor){.rank = 1, .ranks = 2, .secret = &other}, "does not know the secret");
    refuse((struct visitor){.rank = 0, .ranks = 2, .secret = &ours}, "its place");
    refuse((struct visitor){.rank = 2, .ranks = 2, .secret = &ours}, "its place");
    refuse((struct visitor){.rank = 1, .ranks = 3, .secret = &ours}, "its place");
    refuse((struct visitor){.secret = NULL}, "does not know the secret");
}

/* Whoever comes second as the same rank is sent away, and the first stays. */
static void test_twice(void **state)
{
    (void)state;
    struct visitor a = {.rank = 1, .ranks = 3, .secret = &ours}, b = a;
    struct err err = {""};
    int links[3];
    int32_t port;
    const int listener = listen_anywhere(&port);
    start(&a, port);
    start(&b, port);
    assert_int_equal(rendezvous_accept(listener, &ours, 3, 2, NULL, NULL, links, &err), ERR_COMM);
    assert_non_null(strstr(err.text, "1 of 2 ranks came"));
    assert_non_null(strstr(err.text, "it came twice"));
    pthread_join(a.id, NULL);
    pthread_join(b.id, NULL);
    close(a.link);
    close(b.link);
    close(listener);
}

static enum status enough(void *ctx, struct err *err)
{
    int *asked = ctx;
    return ++*asked < 3 ? OK : base_fail(err, ERR_CANCELLED, "enough");
}

/* Waiting for ranks can be ended, and then none of those that came is kept. */
static void test_patience(void **state)
{
    (void)state;
    struct visitor a = {.rank = 1, .ranks = 3, .secret = &ours};
    struct err err = {""};
    int links[3], asked = 0;
    char byte;
    int32_t port;
    const int listener = listen_anywhere(&port);
    start(&a, port);
    assert_int_equal(rendezvous_accept(listener, &ours, 3, 120, enough, &asked, links, &err),
                     ERR_CANCELLED);
    assert_string_equal(err.text, "enough");
    close(listener);
    pthread_join(a.id, NULL);
    if (a.st == OK) {
        assert_int_equal(recv(a.link, &byte, 1, 0), 0);
        close(a.link);
    }
}

struct pretender {
    int listener;
    bool protocol; /* knows the messages, but not the secret */
};

static void *pretend(void *arg)
{
    const struct pretender *p = arg;
    struct pollfd wait = {.fd = p->listener, .events = POLLIN};
    CHECK(poll(&wait, 1, 60000) == 1);
    const int fd = accept(p->listener, NULL, NULL);
    uint8_t challenge[24] = {'T', 's', 's', 'G', 'r', 'p', '0', '1'}, claim[112];
    if (!p->protocol)
        memset(challenge, 0, sizeof challenge);
    CHECK(send(fd, challenge, sizeof challenge, MSG_NOSIGNAL) == (ssize_t)sizeof challenge);
    if (p->protocol && recv(fd, claim, sizeof claim, MSG_WAITALL) == (ssize_t)sizeof claim) {
        uint8_t proof[32] = {0};
        memcpy(proof, claim + 24, 24); /* gives the rank's challenge back, with a guessed tag */
        (void)send(fd, proof, sizeof proof, MSG_NOSIGNAL);
    }
    close(fd);
    return NULL;
}

/* A rank does not take options from whoever listens at that port. */
static void test_false_front_end(void **state)
{
    (void)state;
    struct err err = {""};
    pthread_t id;
    int32_t port;
    int link = -7, listener = listen_anywhere(&port);
    struct rendezvous_address at = {.host = "127.0.0.1", .said_by = "this test"};
    for (int protocol = 0; protocol < 2; protocol++) {
        struct pretender p = {.listener = listener, .protocol = protocol != 0};
        assert_int_equal(pthread_create(&id, NULL, pretend, &p), 0);
        at.port = port;
        assert_int_equal(rendezvous_join(&at, &ours, 1, 2, 60, &link, &err), ERR_COMM);
        assert_non_null(strstr(err.text, protocol ? "does not know the secret" : "no tessera"));
        assert_int_equal(link, -7);
        pthread_join(id, NULL);
    }
    close(listener);
    assert_int_equal(rendezvous_join(&at, &ours, 1, 2, 0.2, &link, &err), ERR_COMM);
    assert_non_null(strstr(err.text, "no front end at 127.0.0.1"));
}

/* What a rank is told is bounded and ends in a NUL. */
static void test_hear(void **state)
{
    (void)state;
    static const struct {
        uint32_t length;
        const char *bytes;
    } bad[] = {{0, ""}, {3, "abc"}, {RENDEZVOUS_TEXT_MAX + 1, ""}, {9, "ab"}};
    char text[RENDEZVOUS_TEXT_MAX], *words[RENDEZVOUS_WORDS_MAX], many[2 * RENDEZVOUS_WORDS_MAX];
    struct err err = {""};
    int count = -7, pair[2];
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        assert_int_equal(send(pair[0], &bad[i].length, 4, 0), 4);
        assert_true(send(pair[0], bad[i].bytes, strlen(bad[i].bytes), 0) >= 0);
        close(pair[0]);
        assert_int_equal(rendezvous_hear(pair[1], text, words, &count, &err), ERR_COMM);
        assert_int_equal(count, -7);
        close(pair[1]);
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    close(pair[0]); /* it left before there was anything to do: no failure of this rank */
    assert_int_equal(rendezvous_hear(pair[1], text, words, &count, &err), ERR_CANCELLED);
    close(pair[1]);
    for (size_t i = 0; i < sizeof many; i++)
        many[i] = i % 2 ? '\0' : 'w';
    for (size_t n = RENDEZVOUS_WORDS_MAX - 1; n <= RENDEZVOUS_WORDS_MAX; n++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        assert_int_equal(rendezvous_tell(pair[0], many, 2 * n, &err), OK);
        assert_int_equal(rendezvous_hear(pair[1], text, words, &count, &err),
                         n < RENDEZVOUS_WORDS_MAX ? OK : ERR_COMM);
        close(pair[0]);
        close(pair[1]);
    }
    assert_int_equal(count, RENDEZVOUS_WORDS_MAX - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_place),           cmocka_unit_test(test_secret),
        cmocka_unit_test(test_all_come),        cmocka_unit_test(test_drip),
        cmocka_unit_test(test_refused),         cmocka_unit_test(test_twice),
        cmocka_unit_test(test_false_front_end), cmocka_unit_test(test_launchers),
        cmocka_unit_test(test_address),         cmocka_unit_test(test_hear),
        cmocka_unit_test(test_patience),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
