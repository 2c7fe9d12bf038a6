/* Arbitrary bytes as what a launcher says in the environment, and as the command line that a front
 * end sends to a rank. */
#include "engine/rendezvous.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The words, one after the other, are the bytes behind the length. */
static void hear(const uint8_t *data, size_t size)
{
    static char text[RENDEZVOUS_TEXT_MAX];
    char *words[RENDEZVOUS_WORDS_MAX];
    struct err err = {""};
    int ends[2], count = 0;
    size_t at = 0;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(send(ends[0], data, size, 0) == (ssize_t)size);
    close(ends[0]);
    const enum status st = rendezvous_hear(ends[1], text, words, &count, &err);
    close(ends[1]);
    if (st != OK) {
        CHECK((st == ERR_CANCELLED || st == ERR_COMM) && err.text[0]);
        return;
    }
    CHECK(count > 0 && count < RENDEZVOUS_WORDS_MAX && !words[count]);
    for (int i = 0; i < count; at += strlen(words[i++]) + 1) {
        CHECK(words[i] == text + at && 4 + at + strlen(words[i]) < size);
        CHECK(memcmp(words[i], data + 4 + at, strlen(words[i]) + 1) == 0);
    }
}

static void ask_environment(const char *text)
{
    static const char *const names[] = {"SLURM_STEP_NODELIST", "MASTER_ADDR", "MASTER_PORT",
                                        "SLURM_PROCID", "SLURM_NTASKS"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct rendezvous_address at = {.port = 0};
        struct rendezvous_place place = {.ranks = 0};
        struct err err = {""};
        if (i == 4)
            setenv("SLURM_PROCID", "0", 1);
        setenv(names[i], text, 1);
        enum status st = rendezvous_address(NULL, 0, &at, &err);
        CHECK(st == OK ? at.host[0] && at.port >= 1 && at.port <= 65535
                       : st == ERR_USAGE && err.text[0]);
        st = rendezvous_place(8, &place, &err);
        CHECK(st == OK ? place.rank >= 0 && place.rank < 8 && place.ranks == 8
                       : st == ERR_USAGE && err.text[0]);
        unsetenv(names[i]);
        unsetenv("SLURM_PROCID");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[400];
    if (size > 2 * RENDEZVOUS_TEXT_MAX)
        return 0;
    hear(data, size);
    const size_t n = size < sizeof text ? size : sizeof text - 1;
    memcpy(text, data, n);
    text[n] = '\0';
    ask_environment(text);
    return 0;
}
