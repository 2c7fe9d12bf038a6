/* DESIGN: a handshake of three messages of fixed size. The front end sends a challenge; the rank
 * answers with its own, its place and build, and a tag over all of it; the front end answers with a
 * tag over the rank's challenge. Tags are SipHash-2-4 under the secret: 64 bits that a stranger can
 * only guess, once per connection. */
#include "engine/rendezvous.h"

#include "config/file.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x3130707247737354ull
#define STRANGER_S 2 /* how long one connection may keep the others waiting */
#define RETRY_NS 100000000

struct challenge {
    uint64_t magic;
    uint8_t nonce[16];
};

/* The rank's side; tag is over both, in this order, without itself. */
struct claim {
    struct challenge of; /* the front end's, given back */
    struct challenge own;
    char build[48];
    int32_t rank, ranks;
    uint64_t tag;
};

struct proof {
    struct challenge of; /* the rank's, given back */
    uint64_t tag;
};

/* ---- who this process is ---- */

static enum status parse_place(const char *name, const char *text, int32_t *out, struct err *err)
{
    char *end = NULL;
    errno = 0;
    const long v = text ? strtol(text, &end, 10) : -1;
    if (!text || end == text || *end != '\0' || errno != 0 || v < 0 || v > COMM_RANKS_MAX)
        return base_fail(err, ERR_USAGE, "the launcher's %s is \"%.40s\", expected 0 to %d", name,
                         text ? text : "", COMM_RANKS_MAX);
    *out = (int32_t)v;
    return OK;
}

/* These tell processes who they are, but give them no MPI to talk by. */
static enum status no_launcher(int32_t ranks, struct err *err)
{
    static const struct {
        const char *name, *rank;
    } others[] = {{"torchrun", "RANK"}, {"a LeaderWorkerSet", "LWS_WORKER_INDEX"}};
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (getenv(others[i].rank))
            return base_fail(err, ERR_USAGE,
                             "--comm mpi: %s started this (%s is set), which starts no MPI; have "
                             "its first process start the ranks: mpirun -n %d tessera serve ...",
                             others[i].name, others[i].rank, ranks);
    return base_fail(err, ERR_USAGE,
                     "--comm mpi: not started by a launcher: mpirun -n %d tessera serve ...",
                     ranks);
}

/* The launcher closest to MPI first: mpirun may itself have been started by the others. */
enum status rendezvous_place(int32_t ranks, struct rendezvous_place *out, struct err *err)
{
    static const struct {
        const char *launcher, *rank, *ranks;
    } known[] = {
        {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
        {"PMI", "PMI_RANK", "PMI_SIZE"},
        {"Slurm", "SLURM_PROCID", "SLURM_NTASKS"},
        {"PMIx", "PMIX_RANK", NULL}, /* MPI itself will say of how many */
    };
    enum status st = OK;
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        struct rendezvous_place p = {.launcher = known[i].launcher, .ranks = ranks};
        if (!getenv(known[i].rank))
            continue;
        TRY(parse_place(known[i].rank, getenv(known[i].rank), &p.rank, err));
        if (known[i].ranks)
            TRY(parse_place(known[i].ranks, getenv(known[i].ranks), &p.ranks, err));
        if (p.ranks != ranks || p.rank >= p.ranks)
            return base_fail(err, ERR_USAGE,
                             "%s started this as rank %d of %d processes, -tp is %d: start as many "
                             "processes as there are ranks",
                             p.launcher, p.rank, p.ranks, ranks);
        *out = p;
        return OK;
    }
    st = no_launcher(ranks, err);
out:
    return st;
}

/* ---- where rank 0 is ---- */

/* The first name of a list as Slurm writes it: "rack1n[03-07,9],x" is "rack1n03", ... */
static bool first_node(const char *list, char *out, size_t cap)
{
    size_t n = 0;
    for (const char *c = list; *c != '\0' && *c != ',' && n + 1 < cap; c++) {
        if (*c != '[') {
            out[n++] = *c;
            continue;
        }
        const size_t digits = strspn(++c, "0123456789");
        const char *end = strchr(c, ']');
        if (digits == 0 || !end || digits + n + 1 > cap)
            return false;
        memcpy(out + n, c, digits);
        n += digits;
        c = end;
    }
    out[n] = '\0';
    return n > 0 && n + 1 < cap;
}

/* srun's list is of the step that this process is in; under mpirun that may be another. */
static enum status find_host(const char *host, struct rendezvous_address *out, struct err *err)
{
    static const char *const names[] = {"MASTER_ADDR", "LWS_LEADER_ADDRESS", "SLURM_STEP_NODELIST"};
    const int count = getenv("OMPI_COMM_WORLD_RANK") ? 2 : 3;
    out->said_by = host ? "--master-addr" : "the default of --master-addr";
    for (int i = 0; i < count && !host; i++) {
        host = getenv(names[i]);
        if (host)
            out->said_by = names[i];
    }
    if (!host)
        host = "127.0.0.1";
    const bool list = strcmp(out->said_by, names[2]) == 0;
    const int n = snprintf(out->host, sizeof out->host, "%s", host);
    if (list ? first_node(host, out->host, sizeof out->host)
             : n > 0 && (size_t)n < sizeof out->host)
        return OK;
    return base_fail(err, ERR_USAGE, "%s is \"%.100s\", expected a host", out->said_by, host);
}

enum status rendezvous_address(const char *host, int32_t port, struct rendezvous_address *out,
                               struct err *err)
{
    const char *text = getenv("MASTER_PORT");
    char *end = NULL;
    *out = (struct rendezvous_address){.port = port > 0 ? port : 29500};
    if (port == 0 && text) {
        const long v = strtol(text, &end, 10);
        if (end == text || *end != '\0' || v < 1 || v > 65535)
            return base_fail(err, ERR_USAGE, "MASTER_PORT is \"%.40s\", expected 1 to 65535", text);
        out->port = (int32_t)v;
    }
    return find_host(host, out, err);
}

/* ---- the secret ---- */

enum status rendezvous_secret(const char *file, struct rendezvous_secret *out, struct err *err)
{
    enum status st = OK;
    const struct file_spec f = {.path = file,
                                .what = "group secret ",
                                .bytes_max = 64,
                                .failure = ERR_USAGE,
                                .forbidden = S_IRWXG | S_IRWXO};
    char *text = NULL;
    size_t n = 0;
    if (!file)
        return base_fail(err, ERR_USAGE,
                         "--comm mpi wants --group-secret-file FILE, the same on every machine: "
                         "install -m 600 /dev/null FILE && openssl rand -hex 16 > FILE");
    TRY(file_read(&f, &text, &n, err));
    const size_t digits = strspn(text, "0123456789abcdefABCDEF");
    if (digits != 32 || digits + strspn(text + digits, "\r\n") != n)
        TRY(base_fail(err, ERR_USAGE,
                      "group secret %.200s: expected 32 hexadecimal digits (openssl rand -hex 16)",
                      file));
    out->key[1] = strtoull(text + 16, NULL, 16);
    text[16] = '\0';
    out->key[0] = strtoull(text, NULL, 16);
out:
    if (text)
        explicit_bzero(text, n);
    free(text);
    return st;
}

/* ---- the wire ---- */

static bool send_whole(int fd, const void *src, size_t n)
{
    for (size_t sent = 0; sent < n;) {
        const ssize_t w = send(fd, (const char *)src + sent, n - sent, MSG_NOSIGNAL);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return false;
        sent += (size_t)w;
    }
    return true;
}

/* Until then at the latest, also when the other side sends a byte now and then. */
static bool receive_whole(int fd, void *dst, size_t n, double until)
{
    for (size_t got = 0; got < n;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        const int left_ms = until < INFINITY ? (int)(fmax(until - base_now(), 0) * 1e3) : -1;
        if (poll(&p, 1, left_ms) == 0)
            return false;
        const ssize_t r = recv(fd, (char *)dst + got, n - got, MSG_DONTWAIT);
        if (r < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (r <= 0)
            return false;
        got += (size_t)r;
    }
    return true;
}

/* Small messages at once; a machine that is gone is noticed within half a minute. */
static void tune(int fd, int send_timeout_s)
{
    static const int yes = 1, idle = 10, interval = 5, count = 3, unanswered_ms = 30000;
    const struct timeval t = {.tv_sec = send_timeout_s};
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof unanswered_ms);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
}

static bool challenge_make(struct challenge *c)
{
    c->magic = MAGIC;
    return getrandom(c->nonce, sizeof c->nonce, 0) == (ssize_t)sizeof c->nonce;
}

static bool challenge_same(const struct challenge *a, const struct challenge *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static enum status resolve(const struct rendezvous_address *at, bool passive, struct addrinfo **out,
                           struct err *err)
{
    char service[16];
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0)};
    (void)snprintf(service, sizeof service, "%d", at->port);
    const int failed = getaddrinfo(at->host, service, &hints, out);
    if (failed)
        return base_fail(err, ERR_USAGE, "meeting at %.100s (by %s): %s", at->host, at->said_by,
                         gai_strerror(failed));
    return OK;
}

/* ---- front end ---- */

enum status rendezvous_listen(const struct rendezvous_address *at, int *out, struct err *err)
{
    static const int yes = 1;
    struct addrinfo *a = NULL;
    enum status st = resolve(at, true, &a, err);
    if (st != OK)
        return st;
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (fd < 0 || bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, COMM_RANKS_MAX) != 0) {
        st = base_fail_errno(err, ERR_USAGE, "listening for ranks at %.100s:%d (by %s)", at->host,
                             at->port, at->said_by);
        if (fd >= 0)
            close(fd);
    } else {
        *out = fd;
    }
    freeaddrinfo(a);
    return st;
}

/* The rank on the other side; -1 and *why when it is none of ours. */
static int32_t challenge_rank(int fd, const struct rendezvous_secret *secret, int32_t ranks,
                              const char **why)
{
    struct challenge mine;
    struct claim c;
    *why = "no random numbers";
    if (!challenge_make(&mine))
        return -1;
    *why = "it did not answer";
    if (!send_whole(fd, &mine, sizeof mine) ||
        !receive_whole(fd, &c, sizeof c, base_now() + STRANGER_S))
        return -1;
    *why = "it does not know the secret";
    if (!challenge_same(&c.of, &mine) || c.own.magic != MAGIC ||
        base_siphash(secret->key, &c, offsetof(struct claim, tag)) != c.tag)
        return -1;
    *why = "it is of another build";
    if (strncmp(c.build, TESSERA_BUILD, sizeof c.build) != 0)
        return -1;
    *why = "its place is not one of this group";
    if (c.ranks != ranks || c.rank < 1 || c.rank >= ranks)
        return -1;
    struct proof p = {.of = c.own};
    p.tag = base_siphash(secret->key, &p, offsetof(struct proof, tag));
    *why = "it went away";
    return send_whole(fd, &p, sizeof p) ? c.rank : -1;
}

enum status rendezvous_accept(int listener, const struct rendezvous_secret *secret, int32_t ranks,
                              double seconds, rendezvous_patience *patience, void *ctx, int *links,
                              struct err *err)
{
    const double deadline = base_now() + seconds;
    const char *why = "nobody else came";
    int32_t came = 1;
    enum status st = OK;
    for (int32_t r = 1; r < ranks; r++)
        links[r] = -1;
    while (came < ranks && base_now() < deadline && st == OK) {
        struct pollfd p = {.fd = listener, .events = POLLIN};
        if (poll(&p, 1, 100) <= 0) {
            st = patience ? patience(ctx, err) : OK;
            continue;
        }
        const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        tune(fd, STRANGER_S);
        const int32_t r = challenge_rank(fd, secret, ranks, &why);
        if (r < 0 || links[r] >= 0) {
            why = r < 0 ? why : "it came twice";
            close(fd);
            continue;
        }
        tune(fd, 0);
        links[r] = fd;
        came++;
    }
    if (came == ranks)
        return OK;
    for (int32_t r = 1; r < ranks; r++)
        if (links[r] >= 0)
            close(links[r]);
    if (st != OK)
        return st;
    return base_fail(err, ERR_COMM, "%d of %d ranks came within %.0f s (last turned away: %s)",
                     came - 1, ranks - 1, seconds, why);
}

/* ---- rank ---- */

static int connect_once(const struct addrinfo *a)
{
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        tune(fd, STRANGER_S);
    if (fd < 0 || connect(fd, a->ai_addr, a->ai_addrlen) == 0)
        return fd;
    close(fd);
    return -1;
}

static int connect_until(const struct addrinfo *list, double deadline)
{
    for (;;) {
        for (const struct addrinfo *a = list; a; a = a->ai_next) {
            const int fd = connect_once(a);
            if (fd >= 0)
                return fd;
        }
        if (base_now() >= deadline)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = RETRY_NS}, NULL);
    }
}

/* The front end may be busy with a stranger. */
static enum status answer_challenge(int fd, const struct rendezvous_secret *secret, int32_t rank,
                                    int32_t ranks, double deadline, struct err *err)
{
    struct claim c = {.build = TESSERA_BUILD, .rank = rank, .ranks = ranks};
    struct proof p;
    if (!receive_whole(fd, &c.of, sizeof c.of, deadline) || c.of.magic != MAGIC ||
        !challenge_make(&c.own))
        return base_fail(
            err, ERR_COMM,
            "rank %d: no tessera front end listens there, or none that answers in time", rank);
    c.tag = base_siphash(secret->key, &c, offsetof(struct claim, tag));
    if (!send_whole(fd, &c, sizeof c) || !receive_whole(fd, &p, sizeof p, deadline))
        return base_fail(err, ERR_COMM,
                         "rank %d was turned away: --group-secret-file, build and -tp must be the "
                         "front end's",
                         rank);
    if (!challenge_same(&p.of, &c.own) ||
        base_siphash(secret->key, &p, offsetof(struct proof, tag)) != p.tag)
        return base_fail(err, ERR_COMM, "rank %d: who listens there does not know the secret",
                         rank);
    return OK;
}

enum status rendezvous_join(const struct rendezvous_address *at,
                            const struct rendezvous_secret *secret, int32_t rank, int32_t ranks,
                            double seconds, int *out, struct err *err)
{
    struct addrinfo *list = NULL;
    enum status st = resolve(at, false, &list, err);
    if (st != OK)
        return st;
    const double deadline = base_now() + seconds;
    const int fd = connect_until(list, deadline);
    freeaddrinfo(list);
    if (fd < 0)
        return base_fail_errno(err, ERR_COMM,
                               "rank %d: no front end at %.100s:%d (by %s) within %.0f s", rank,
                               at->host, at->port, at->said_by, seconds);
    st = answer_challenge(fd, secret, rank, ranks, deadline, err);
    if (st != OK) {
        close(fd);
        return st;
    }
    tune(fd, 0);
    *out = fd;
    return OK;
}

/* ---- the command line ---- */

enum status rendezvous_tell(int link, const char *text, size_t bytes, struct err *err)
{
    const uint32_t length = (uint32_t)bytes;
    CHECK(bytes <= RENDEZVOUS_TEXT_MAX);
    if (!send_whole(link, &length, sizeof length) || !send_whole(link, text, bytes))
        return base_fail_errno(err, ERR_COMM, "telling a rank its options");
    return OK;
}

enum status rendezvous_hear(int link, char text[RENDEZVOUS_TEXT_MAX],
                            char *words[RENDEZVOUS_WORDS_MAX], int *count, struct err *err)
{
    uint32_t length = 0;
    int n = 0;
    if (!receive_whole(link, &length, sizeof length, INFINITY))
        return base_fail(err, ERR_CANCELLED, "the front end left");
    if (length == 0 || length > RENDEZVOUS_TEXT_MAX ||
        !receive_whole(link, text, length, INFINITY) || text[length - 1] != '\0')
        return base_fail(err, ERR_COMM, "the front end sent no options");
    for (char *word = text; word < text + length; word += strlen(word) + 1) {
        if (n + 1 == RENDEZVOUS_WORDS_MAX)
            return base_fail(err, ERR_COMM, "the front end sent more than %d options", n);
        words[n++] = word;
    }
    words[n] = NULL;
    *count = n;
    return OK;
}
