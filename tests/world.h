/* A front end on a real socket with a fake engine behind it, and a client for it. */
#ifndef TESSERA_TESTS_WORLD_H
#define TESSERA_TESTS_WORLD_H

#include "server/frontend.h"
#include "server/health.h"
#include "server/tokenizer/tokenizer.h"
#include "tests/fake_engine.h"
#include "tests/http_talk.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define CONTEXT 1000000
#define QUEUED_MAX 64

struct world {
    struct frontend *frontend;
    struct health health;
    struct tokenizer *tokenizer;
    struct engine engine;
    int32_t port;
    int32_t columns; /* of vectors; 0: texts are made */
};

static inline enum status try_open(struct world *w, const char *host, int32_t port, struct err *err)
{
    const struct frontend_config config = {
        .host = host,
        .port = port,
        .health = &w->health,
        .model_name = "de/mo,alias",
        .ping_s = 0.5,
        .version = "1.2.3",
        .vocab = 400,
        .max_model_len = CONTEXT,
        .tokenizer = w->tokenizer,
        .columns = w->columns,
        .queued_max = QUEUED_MAX,
        .defaults = model_config_no_defaults(),
        .http = {.connections = 1000,
                 .header_bytes = 16384,
                 .target_bytes = 4096,
                 .headers = 100,
                 .body_bytes = 65536,
                 .bodies_bytes = 64 << 20,
                 .unsent_bytes = 1 << 20,
                 .output_bytes = 8 << 20,
                 .header_s = 10,
                 .body_s = 30,
                 .send_s = 30,
                 .idle_s = 75},
    };
    health_init(&w->health, 10);
    return frontend_open(&config, &w->frontend, err);
}

static inline int setup_of(void **state, int32_t columns)
{
    static struct world w;
    struct err err = {""};
    memset(&w, 0, sizeof w);
    w.columns = columns;
    if (tokenizer_open(TEST_DATA_DIR "/corpus/tokenizer/bytes", 400, &w.tokenizer, &err) != OK ||
        try_open(&w, "127.0.0.1", 0, &err) != OK)
        return -1;
    w.port = frontend_port(w.frontend);
    fake_engine_start(&w.engine, frontend_sink, w.frontend);
    frontend_ready(w.frontend, &w.engine);
    *state = &w;
    return 0;
}

static inline int setup(void **state)
{
    return setup_of(state, 0);
}

static inline int teardown(void **state)
{
    struct world *w = *state;
    fake_engine_stop(&w->engine);
    frontend_close(w->frontend);
    tokenizer_close(w->tokenizer);
    return 0;
}

/* ---- a client ---- */

static inline int dial(const struct world *w)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)w->port)};
    struct timeval patience = {30, 0};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    CHECK(connect(fd, (const struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

/* One request on its own connection, as text; the answer as text. The caller frees. */
static inline char *ask(const struct world *w, const char *text)
{
    int fd = dial(w);
    say(fd, text, strlen(text));
    char *answer = listen_until(fd, NULL);
    close(fd);
    return answer;
}

static inline char *post(const struct world *w, const char *body)
{
    int fd = dial(w);
    say_post(fd, body, "Connection: close\r\n");
    char *answer = listen_until(fd, NULL);
    close(fd);
    return answer;
}

static inline char *get(const struct world *w, const char *path)
{
    char text[200];
    snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path);
    return ask(w, text);
}

#endif
