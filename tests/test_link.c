/* Links: one exchange over several ranks, each a thread at the other end of a socketpair that reads
 * and answers as its script says: slowly, in pieces, wrongly, or not at all. */
#include "engine/link.h"

#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

enum { RANKS = 3, IDS_MAX = 8, BIG = 1 << 20 };
enum { TEXT_MAX = sizeof((struct err *)0)->text }; /* with its NUL, which is not sent */

enum script {
    ANSWER,          /* reads the message, answers */
    READ_SLOWLY,     /* 4 KiB at a time with pauses */
    READ_LAST,       /* reads when the others have read everything */
    ANSWER_IN_BYTES, /* byte by byte */
    ANSWER_TEXT,     /* a failed rank */
    ANSWER_LONGEST,  /* the most ids, logprobs and text */
    BAD_MAGIC,
    TOO_MANY_IDS,
    NEGATIVE_IDS,
    TOO_LONG_TEXT,
    NEGATIVE_TEXT,
    FEW_LOGPROBS, /* fewer than ids */
    TOO_MANY_BEST,
    NEGATIVE_BEST,
    CLOSE_AT_ONCE,
    CLOSE_IN_MESSAGE, /* after the first bytes */
    CLOSE_IN_ANSWER,  /* after half a head */
    CLOSE_BEFORE_IDS, /* after the head */
    STAY_SILENT,
};

struct peer {
    int32_t rank, fd;
    enum script script;
    size_t bytes; /* of the message */
    bool intact;  /* what came is what was sent */
    pthread_t thread;
};

static struct link_set *links;
static struct peer peers[RANKS];
static struct link_answer answers[RANKS];
static sem_t have_read;
static unsigned char message[BIG];

static bool read_message(struct peer *p, size_t n, size_t piece)
{
    unsigned char *got = malloc(n + 1);
    size_t at = 0;
    CHECK(got != NULL);
    while (at < n) {
        ssize_t r = read(p->fd, got + at, n - at < piece ? n - at : piece);
        if (r <= 0)
            break;
        at += (size_t)r;
        if (piece < BIG)
            usleep(50);
    }
    bool same = at == n && memcmp(got, message, n) == 0;
    free(got);
    return same;
}

static struct step_answer head_of(const struct peer *p)
{
    struct step_answer head = {.magic = STEP_ANSWER_MAGIC, .epoch = 3, .seq = 4, .rank = p->rank};
    if (p->script != STAY_SILENT)
        head.ids = p->rank == 0 ? 2 : 0;
    if (p->script == BAD_MAGIC)
        head.magic++;
    else if (p->script == TOO_MANY_IDS)
        head.ids = IDS_MAX + 1;
    else if (p->script == NEGATIVE_IDS)
        head.ids = -1;
    else if (p->script == TOO_LONG_TEXT)
        head.text_bytes = TEXT_MAX;
    else if (p->script == NEGATIVE_TEXT)
        head.text_bytes = -1;
    else if (p->script == ANSWER_TEXT)
        head.text_bytes = 9;
    else if (p->script == ANSWER_LONGEST)
        head.text_bytes = TEXT_MAX - 1;
    else if (p->script == FEW_LOGPROBS)
        head.logprobs = 1, head.ids = 2;
    else if (p->script == TOO_MANY_BEST)
        head.stride = ENGINE_LOGPROBS_MAX + 1;
    else if (p->script == NEGATIVE_BEST)
        head.stride = -1;
    if (p->script == ANSWER_LONGEST) {
        head.ids = head.logprobs = IDS_MAX;
        head.stride = ENGINE_LOGPROBS_MAX;
    }
    if (p->script == ANSWER_TEXT)
        head.status = ERR_DEVICE;
    return head;
}

static const int32_t ids[IDS_MAX + 2] = {11, 22, 33, 44, 55, 66, 77, 88, 99};
static const float logprobs[IDS_MAX] = {-1, -2, -3};
static const struct token_top best[IDS_MAX * ENGINE_LOGPROBS_MAX] = {{5, -1}, {6, -2}, {7, -3}};
static const struct step_result result = {.ids = ids, .logprob = logprobs, .best = best};

static void send_answer(struct peer *p)
{
    static char longest[TEXT_MAX + 1];
    struct step_answer head = head_of(p);
    struct err err;
    memset(longest, 'x', TEXT_MAX);
    const char *text = p->script == ANSWER_TEXT ? "no device" : longest;
    if (p->script == ANSWER_IN_BYTES) {
        char all[sizeof head + 2 * sizeof *ids];
        size_t n = sizeof head + (size_t)head.ids * sizeof *ids;
        memcpy(all, &head, sizeof head);
        memcpy(all + sizeof head, ids, n - sizeof head);
        for (size_t i = 0; i < n; i++) {
            CHECK(send(p->fd, all + i, 1, MSG_NOSIGNAL) == 1);
            usleep(200);
        }
        return;
    }
    if (p->script == CLOSE_IN_ANSWER || p->script == CLOSE_BEFORE_IDS) {
        head.ids = 2;
        size_t n = p->script == CLOSE_IN_ANSWER ? sizeof head / 2 : sizeof head;
        CHECK(send(p->fd, &head, n, MSG_NOSIGNAL) == (ssize_t)n);
        return;
    }
    if (p->script >= BAD_MAGIC && p->script <= NEGATIVE_BEST)
        CHECK(send(p->fd, &head, sizeof head, MSG_NOSIGNAL) == (ssize_t)sizeof head);
    else
        (void)!link_answer(p->fd, &head, &result, text, &err); /* the reader may be gone */
}

static void *act(void *arg)
{
    struct peer *p = arg;
    if (p->script == READ_LAST)
        for (int32_t i = 1; i < RANKS; i++)
            sem_wait(&have_read);
    if (p->script == CLOSE_IN_MESSAGE)
        p->intact = read_message(p, 100, BIG);
    else if (p->script != CLOSE_AT_ONCE)
        p->intact = read_message(p, p->bytes, p->script == READ_SLOWLY ? 4096 : BIG);
    sem_post(&have_read);
    if (p->script != CLOSE_AT_ONCE && p->script != CLOSE_IN_MESSAGE && p->script != STAY_SILENT)
        send_answer(p);
    if (p->script >= CLOSE_AT_ONCE && p->script <= CLOSE_BEFORE_IDS)
        shutdown(p->fd, SHUT_RDWR);
    return NULL;
}

static void start(const enum script scripts[RANKS], size_t bytes)
{
    int fds[RANKS];
    struct err err;
    sem_init(&have_read, 0, 0);
    for (size_t i = 0; i < bytes; i++)
        message[i] = (unsigned char)(i * 131 + i / 251);
    for (int32_t r = 0; r < RANKS; r++) {
        int pair[2], small = 4096;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        assert_int_equal(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
        fds[r] = pair[0];
        peers[r] = (struct peer){.rank = r, .fd = pair[1], .script = scripts[r], .bytes = bytes};
    }
    assert_int_equal(link_open(fds, RANKS, IDS_MAX, 0, &links, &err), OK);
    for (int32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&peers[r].thread, NULL, act, &peers[r]), 0);
}

/* Closing our ends lets a rank that still reads end. */
static void stop(void)
{
    link_close(links);
    for (int32_t r = 0; r < RANKS; r++) {
        pthread_join(peers[r].thread, NULL);
        close(peers[r].fd);
    }
    sem_destroy(&have_read);
}

/* Ends a wait of 20 s, so that a fault is a failed test and not a hung one. */
static enum status patient(void *ctx, struct err *err)
{
    const double *since = ctx;
    return base_now() - *since < 20 ? OK : base_fail(err, ERR_INTERNAL, "waited for 20 s");
}

static enum status exchange(const enum script scripts[RANKS], size_t bytes, struct err *err)
{
    double since = base_now();
    err->text[0] = '\0';
    start(scripts, bytes);
    return link_exchange(links, bytes ? message : NULL, bytes, patient, &since, answers, err);
}

static void good(enum script a, enum script b, enum script c, size_t bytes)
{
    const enum script scripts[RANKS] = {a, b, c};
    struct err err;
    if (exchange(scripts, bytes, &err) != OK)
        fail_msg("%d %d %d: %s", (int)a, (int)b, (int)c, err.text);
    for (int32_t r = 0; r < RANKS; r++) {
        const struct step_answer *h = &answers[r].head;
        struct step_answer want = head_of(&peers[r]);
        assert_memory_equal(h, &want, sizeof want);
        const struct step_result *got = &answers[r].result;
        assert_int_equal(got->count, h->ids);
        assert_int_equal(got->logprob != NULL, h->logprobs > 0);
        for (int32_t i = 0; i < h->ids; i++)
            assert_int_equal(got->ids[i], ids[i]);
        for (int32_t i = 0; i < h->logprobs; i++)
            assert_true(got->logprob[i] == logprobs[i]);
        for (int32_t i = 0; i < h->logprobs * h->stride; i++)
            assert_memory_equal(&got->best[i], &best[i], sizeof best[i]);
    }
    stop();
    for (int32_t r = 0; r < RANKS; r++)
        assert_true(peers[r].intact);
}

/* The rank with the fault is tried in every seat. */
static void bad(enum script fault, size_t bytes, const char *wanted)
{
    for (int32_t r = 0; r < RANKS; r++) {
        enum script scripts[RANKS] = {ANSWER, ANSWER, ANSWER};
        struct err err;
        char text[64];
        scripts[r] = fault;
        if (exchange(scripts, bytes, &err) != ERR_COMM)
            fail_msg("script %d in rank %d: %s", (int)fault, r, err.text);
        snprintf(text, sizeof text, "rank %d %s", r, wanted);
        assert_string_equal(err.text, text);
        stop();
    }
}

static void test_answers(void **state)
{
    (void)state;
    good(ANSWER, ANSWER, ANSWER, 0); /* nothing is sent: the first answers of a group */
    good(ANSWER, ANSWER, ANSWER, 1);
    good(ANSWER_IN_BYTES, ANSWER, ANSWER_IN_BYTES, 100);
    good(ANSWER, ANSWER_LONGEST, ANSWER, 100);
    good(ANSWER_LONGEST, ANSWER_LONGEST, ANSWER_LONGEST, 5000);
}

/* A rank that failed is told at once, in its own words: the others may wait for it for ever. */
static void test_failed_rank(void **state)
{
    (void)state;
    for (int32_t r = 0; r < RANKS; r++) {
        enum script scripts[RANKS] = {STAY_SILENT, STAY_SILENT, STAY_SILENT};
        struct err err;
        char text[64];
        scripts[r] = ANSWER_TEXT;
        assert_int_equal(exchange(scripts, 100, &err), ERR_DEVICE);
        snprintf(text, sizeof text, "rank %d: no device", r);
        assert_string_equal(err.text, text);
        stop();
    }
}

/* What is no status of a failure is still one. */
static void test_status_of_failure(void **state)
{
    (void)state;
    static const int32_t odd[] = {-1, ERR_CANCELLED, ERR_INTERNAL + 1, INT32_MAX};
    for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
        int pair[2];
        struct link_set *l;
        struct link_answer answer;
        struct err err;
        const struct step_answer head = {.magic = STEP_ANSWER_MAGIC, .status = odd[i]};
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        assert_int_equal(link_open(pair, 1, IDS_MAX, 0, &l, &err), OK);
        assert_int_equal(link_answer(pair[1], &head, &result, "", &err), OK);
        assert_int_equal(link_exchange(l, NULL, 0, NULL, NULL, &answer, &err), ERR_COMM);
        link_close(l);
        close(pair[1]);
    }
}

static void set_stats(struct comm_stats *s, uint64_t base)
{
    for (uint64_t op = 0; op < COMM_OP_COUNT; op++) {
        atomic_store(&s->op[op].calls, base + 3 * op);
        atomic_store(&s->op[op].bytes, base + 3 * op + 1);
        atomic_store(&s->op[op].nanoseconds, base + 3 * op + 2);
    }
}

static void check_stats(struct comm_stats *s, uint64_t base)
{
    for (uint64_t op = 0; op < COMM_OP_COUNT; op++) {
        assert_int_equal(atomic_load(&s->op[op].calls), base + 3 * op);
        assert_int_equal(atomic_load(&s->op[op].bytes), base + 3 * op + 1);
        assert_int_equal(atomic_load(&s->op[op].nanoseconds), base + 3 * op + 2);
    }
}

/* Every counter of a rank, by its name, is in the front end when the answer is. */
static void test_reports(void **state)
{
    (void)state;
    static struct board_rank theirs, ours;
    struct link_set *l;
    struct link_answer answer;
    struct err err;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(link_open(pair, 1, IDS_MAX, 0, &l, &err), OK);
    link_hear(l, 0, &ours);
    const struct step_answer head = {.magic = STEP_ANSWER_MAGIC, .ids = 2};
    for (uint64_t base = 1; base < 2000000; base += 1000000) {
        assert_int_equal(link_report(pair[1], &theirs, false, &err), OK); /* is overtaken */
        atomic_store(&theirs.progress, base);
        atomic_store(&theirs.weight_bytes, base + 1);
        atomic_store(&theirs.read_bytes, base + 2);
        atomic_store(&theirs.sampler_fallbacks, base + 3);
        atomic_store(&theirs.load.bytes_done, base + 4);
        for (uint64_t i = 0; i < LOADER_READERS_MAX; i++)
            atomic_store(&theirs.load.reading[i], base + 10 + i);
        set_stats(&theirs.comm, base + 1000);
        for (uint64_t i = 0; i < MESH_AXES_MAX; i++)
            set_stats(&theirs.axis[i], base + 2000 + 1000 * i);
        assert_int_equal(link_report(pair[1], &theirs, true, &err), OK);
        assert_int_equal(link_answer(pair[1], &head, &result, "", &err), OK);
        assert_int_equal(link_exchange(l, NULL, 0, NULL, NULL, &answer, &err), OK);
        assert_memory_equal(&answer.head, &head, sizeof head);
        assert_int_equal(answer.result.ids[1], ids[1]);
        assert_int_equal(atomic_load(&ours.progress), base);
        assert_int_equal(atomic_load(&ours.weight_bytes), base + 1);
        assert_int_equal(atomic_load(&ours.read_bytes), base + 2);
        assert_int_equal(atomic_load(&ours.sampler_fallbacks), base + 3);
        assert_int_equal(atomic_load(&ours.load.bytes_done), base + 4);
        for (uint64_t i = 0; i < LOADER_READERS_MAX; i++)
            assert_int_equal(atomic_load(&ours.load.reading[i]), base + 10 + i);
        check_stats(&ours.comm, base + 1000);
        for (uint64_t i = 0; i < MESH_AXES_MAX; i++)
            check_stats(&ours.axis[i], base + 2000 + 1000 * i);
    }
    link_close(l);
    close(pair[1]);
}

/* A report of another length, and one from a rank that has no reason to send any. */
static void test_bad_reports(void **state)
{
    (void)state;
    for (int heard = 0; heard < 2; heard++) {
        static struct board_rank board;
        struct board_report report;
        struct link_set *l;
        struct link_answer answer;
        struct err err;
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        assert_int_equal(link_open(pair, 1, IDS_MAX, 0, &l, &err), OK);
        board_tell(&board, &report);
        report.counters -= (uint32_t)heard;
        if (heard)
            link_hear(l, 0, &board);
        assert_int_equal(write(pair[1], &report, sizeof report), sizeof report);
        assert_int_equal(link_exchange(l, NULL, 0, NULL, NULL, &answer, &err), ERR_COMM);
        assert_string_equal(err.text, "rank 0 sent a malformed answer");
        link_close(l);
        close(pair[1]);
    }
}

/* Vectors stand behind the ids, and come over as they are, bit by bit. */
static void test_vectors(void **state)
{
    (void)state;
    enum { COLUMNS = 1024 };
    static float vectors[IDS_MAX * COLUMNS];
    const struct step_result sent = {.ids = ids, .vector = vectors, .columns = COLUMNS};
    for (int32_t i = 0; i < IDS_MAX * COLUMNS; i++) /* of every kind, NaN and subnormal too */
        memcpy(&vectors[i], &(uint32_t){(uint32_t)i * 2654435761u}, sizeof vectors[i]);
    for (int32_t count = 0; count <= IDS_MAX; count += count < 3 ? 1 : 5) {
        struct link_set *l;
        struct link_answer a;
        struct err err;
        int pair[2], large = 1 << 20; /* nobody reads while it is written */
        const struct step_answer head = {
            .magic = STEP_ANSWER_MAGIC, .ids = count, .columns = COLUMNS};
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        assert_int_equal(setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &large, sizeof large), 0);
        assert_int_equal(link_open(pair, 1, IDS_MAX, COLUMNS, &l, &err), OK);
        for (int32_t again = 0; again < 2; again++) { /* and nothing of it is left over */
            assert_int_equal(link_answer(pair[1], &head, &sent, "", &err), OK);
            assert_int_equal(link_exchange(l, NULL, 0, NULL, NULL, &a, &err), OK);
            assert_memory_equal(&a.head, &head, sizeof head);
            assert_int_equal(a.result.count, count);
            assert_int_equal(a.result.columns, COLUMNS);
            assert_null(a.result.logprob);
            assert_non_null(a.result.vector);
            assert_memory_equal(a.result.ids, ids, (size_t)count * sizeof *ids);
            assert_memory_equal(a.result.vector, vectors,
                                (size_t)(count * COLUMNS) * sizeof *vectors);
        }
        const struct step_answer none = {.magic = STEP_ANSWER_MAGIC, .ids = count};
        assert_int_equal(link_answer(pair[1], &none, &sent, "", &err), OK); /* other ranks' */
        assert_int_equal(link_exchange(l, NULL, 0, NULL, NULL, &a, &err), OK);
        assert_null(a.result.vector);
        assert_int_equal(a.result.columns, 0);
        link_close(l);
        close(pair[1]);
    }
}

/* Of other vectors than the links were opened for. */
static void test_malformed_vectors(void **state)
{
    (void)state;
    static const struct {
        int32_t opened, columns, zero;
    } cases[] = {{4, 3, 0},       {4, 5, 0}, {4, -4, 0}, {0, 4, 0},
                 {0, 1 << 30, 0}, {4, 4, 1}, {0, 0, 1},  {4, 0, -1}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct link_set *l;
        struct link_answer a;
        struct err err;
        int pair[2];
        const struct step_answer head = {.magic = STEP_ANSWER_MAGIC,
                                         .ids = 1,
                                         .columns = cases[i].columns,
                                         .zero = cases[i].zero};
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        assert_int_equal(link_open(pair, 1, IDS_MAX, cases[i].opened, &l, &err), OK);
        assert_int_equal(write(pair[1], &head, sizeof head), sizeof head);
        if (link_exchange(l, NULL, 0, patient, &(double){base_now()}, &a, &err) != ERR_COMM)
            fail_msg("case %zu", i);
        assert_string_equal(err.text, "rank 0 sent a malformed answer");
        link_close(l);
        close(pair[1]);
    }
}

static void test_slow_readers(void **state)
{
    (void)state;
    good(ANSWER, ANSWER, ANSWER, BIG);
    good(READ_SLOWLY, ANSWER, READ_SLOWLY, BIG);
    good(READ_SLOWLY, READ_SLOWLY, READ_SLOWLY, 100000);
}

/* The link that is not read comes first, and is read only after the others have everything. */
static void test_one_slow_link_holds_up_none(void **state)
{
    (void)state;
    good(READ_LAST, ANSWER, ANSWER, BIG);
    good(ANSWER, READ_LAST, ANSWER, BIG);
}

static void test_malformed(void **state)
{
    (void)state;
    for (int script = BAD_MAGIC; script <= NEGATIVE_BEST; script++)
        bad((enum script)script, 64, "sent a malformed answer");
}

static void test_closed(void **state)
{
    (void)state;
    bad(CLOSE_AT_ONCE, 0, "closed its link");
    bad(CLOSE_AT_ONCE, BIG, "closed its link");
    bad(CLOSE_IN_MESSAGE, BIG, "closed its link");
    bad(CLOSE_IN_ANSWER, 100, "closed its link");
    bad(CLOSE_BEFORE_IDS, 100, "closed its link");
}

static enum status impatient(void *ctx, struct err *err)
{
    int *calls = ctx;
    return ++*calls < 3 ? OK : base_fail(err, ERR_LIMIT, "enough");
}

static void test_patience(void **state)
{
    (void)state;
    static const enum script scripts[RANKS] = {ANSWER, STAY_SILENT, ANSWER};
    struct err err;
    int calls = 0;
    double begin = base_now();
    start(scripts, 100);
    assert_int_equal(link_exchange(links, message, 100, impatient, &calls, answers, &err),
                     ERR_LIMIT);
    assert_string_equal(err.text, "enough");
    assert_int_equal(calls, 3);
    assert_true(base_now() - begin >= 0.1); /* asked now and then, not in a loop */
    stop();
}

/* The same links serve one exchange after the other. */
static void test_many_exchanges(void **state)
{
    (void)state;
    int pair[2];
    struct link_set *l;
    struct link_answer answer;
    struct err err;
    char buffer[256];
    size_t n;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(link_open(pair, 1, IDS_MAX, 0, &l, &err), OK);
    for (int32_t i = 0; i < 50; i++) {
        struct step_answer head = {.magic = STEP_ANSWER_MAGIC, .seq = (uint64_t)i, .ids = i % 3};
        const struct step_header h = {.bytes = (uint32_t)sizeof h + 4, .seq = (uint64_t)i};
        memcpy(buffer, &h, sizeof h);
        memcpy(buffer + sizeof h, &i, 4);
        assert_int_equal(link_answer(pair[1], &head, &result, "", &err),
                         OK); /* ahead of the message */
        assert_int_equal(link_exchange(l, buffer, sizeof h + 4, NULL, NULL, &answer, &err), OK);
        assert_memory_equal(&answer.head, &head, sizeof head);
        memset(buffer, 0, sizeof buffer);
        assert_int_equal(link_receive(pair[1], buffer, sizeof buffer, &n, &err), OK);
        assert_int_equal(n, sizeof h + 4);
        assert_memory_equal(buffer + sizeof h, &i, 4);
    }
    link_close(l);
    link_close(NULL);
    assert_int_equal(link_receive(pair[1], buffer, sizeof buffer, &n, &err), ERR_CANCELLED);
    const struct step_answer head = {.magic = STEP_ANSWER_MAGIC};
    assert_int_equal(link_answer(pair[1], &head, &result, "", &err), ERR_CANCELLED); /* no signal */
    close(pair[1]);
}

/* A front end that leaves may have something of this rank unread: that is no other end. */
static void test_closed_with_bytes_unread(void **state)
{
    (void)state;
    static struct board_rank board;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof a;
    char buffer[64];
    struct err err;
    size_t n;
    const int listener = socket(AF_INET, SOCK_STREAM, 0), ours = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &length), 0);
    assert_int_equal(connect(ours, (struct sockaddr *)&a, sizeof a), 0);
    const int theirs = accept(listener, NULL, NULL);
    assert_int_equal(link_report(ours, &board, false, &err), OK);
    close(theirs);
    assert_int_equal(link_receive(ours, buffer, sizeof buffer, &n, &err), ERR_CANCELLED);
    assert_int_equal(link_report(ours, &board, false, &err), ERR_CANCELLED);
    close(ours);
    close(listener);
}

static void test_receive_limits(void **state)
{
    (void)state;
    const size_t cap = 64;
    static const struct {
        uint32_t bytes;
        enum status wanted;
    } cases[] = {{56, OK},      {64, OK},       {55, ERR_COMM},
                 {0, ERR_COMM}, {65, ERR_COMM}, {UINT32_MAX, ERR_COMM}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int pair[2];
        char sent[64] = {0};
        size_t n;
        struct err err;
        char *buffer = malloc(cap);
        const struct step_header h = {.bytes = cases[i].bytes};
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        memcpy(sent, &h, sizeof h);
        assert_int_equal(write(pair[0], sent, sizeof sent), sizeof sent);
        assert_int_equal(link_receive(pair[1], buffer, cap, &n, &err), cases[i].wanted);
        if (cases[i].wanted == OK)
            assert_int_equal(n, cases[i].bytes);
        close(pair[0]);
        close(pair[1]);
        free(buffer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_slow_readers),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_malformed_vectors),
        cmocka_unit_test(test_one_slow_link_holds_up_none),
        cmocka_unit_test(test_closed),
        cmocka_unit_test(test_patience),
        cmocka_unit_test(test_many_exchanges),
        cmocka_unit_test(test_receive_limits),
        cmocka_unit_test(test_failed_rank),
        cmocka_unit_test(test_status_of_failure),
        cmocka_unit_test(test_closed_with_bytes_unread),
        cmocka_unit_test(test_reports),
        cmocka_unit_test(test_bad_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
