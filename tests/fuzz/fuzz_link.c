/* Arbitrary bytes as what a rank says on its link: answers to one step after the other, until they
 * end or are malformed. Each part of an answer must lie within what came, and what is taken for the
 * answer of the step must be in its range. Magic and status of the first are made right, so that
 * most inputs reach what lies behind. The first byte says whether the rank sends reports, too. */
#include "engine/link.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SLOTS = 4, VOCAB = 4096, BYTES_MAX = 1 << 16 };

static struct step *three_samples(void)
{
    static struct step *s;
    const struct step_limits limits = {.slots = SLOTS,
                                       .samples = SLOTS,
                                       .rows = 8,
                                       .groups = {.keep = 1},
                                       .table_cols = 4,
                                       .vocab = VOCAB,
                                       .blocks = 8,
                                       .history_max = 64};
    struct err err;
    if (s)
        return s;
    CHECK(step_open_new(&limits, &s, &err) == OK);
    s->samples = 3;
    for (int32_t i = 0; i < s->samples; i++) {
        s->target[i] = i == 1 ? 17 : STEP_TARGET_SAMPLE;
        s->top[i] = i == 2 ? -1 : 2 * i;
        s->mask[i] = -1;
    }
    return s;
}

static void check_answer(const struct link_answer *a)
{
    const struct step *s = three_samples();
    const struct step_result *r = &a->result;
    struct err err = {""};
    CHECK(a->head.magic == STEP_ANSWER_MAGIC && a->head.status == OK);
    CHECK(r->count >= 0 && r->count <= SLOTS);
    CHECK(r->stride >= 0 && r->stride <= ENGINE_LOGPROBS_MAX);
    if (step_check_result(s, VOCAB, r, &err) != OK) {
        CHECK(err.text[0]);
        return;
    }
    CHECK(r->count == s->samples);
    for (int32_t i = 0; i < r->count; i++) {
        CHECK(r->ids[i] >= -1 && r->ids[i] < VOCAB);
        CHECK(i != 1 || r->ids[i] == 17);
        for (int32_t k = 0; k < s->top[i] && !isnan(r->logprob[i]); k++)
            CHECK(r->best[i * r->stride + k].token >= 0 &&
                  r->best[i * r->stride + k].token < VOCAB);
    }
}

static void say(int fd, const uint8_t *data, size_t size)
{
    static uint8_t bytes[BYTES_MAX];
    struct step_answer h;
    memcpy(bytes, data, size);
    if (size >= sizeof h) {
        memcpy(&h, bytes, sizeof h);
        h.magic = STEP_ANSWER_MAGIC;
        h.status = h.status % 16 == 3 ? h.status : OK;
        memcpy(bytes, &h, sizeof h);
    }
    CHECK(send(fd, bytes, size, 0) == (ssize_t)size);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int ends[2];
    struct link_set *links;
    struct link_answer answer;
    struct board_rank board = {.progress = 0};
    struct err err = {""};
    enum status st;
    if (size == 0 || size - 1 > BYTES_MAX)
        return 0;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(link_open(ends, 1, SLOTS, 0, &links, &err) == OK);
    if (data[0] % 2)
        link_hear(links, 0, &board);
    say(ends[1], data + 1, size - 1);
    while ((st = link_await(links, NULL, NULL, &answer, &err)) == OK)
        check_answer(&answer);
    CHECK(st != ERR_CANCELLED && strncmp(err.text, "rank 0", 6) == 0);
    link_close(links);
    return 0;
}
