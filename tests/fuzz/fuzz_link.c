/* Arbitrary bytes as what a rank says on its link: answers to one step after the other, until they
 * end or are malformed. Each part of an answer must lie within what came, and what is taken for the
 * answer of the step must be in its range. Magic and status of the first are made right, so that
 * most inputs reach what lies behind. The first byte says whether the rank sends reports, too, and
 * whether the step is one for vectors. */
#include "engine/link.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SLOTS = 4, COLUMNS = 2, VOCAB = 4096, BYTES_MAX = 1 << 16 };

static struct step *three_samples(bool vectors)
{
    static struct step *steps[2];
    const struct step_limits limits = {.slots = SLOTS,
                                       .samples = SLOTS,
                                       .rows = 8,
                                       .groups = {.keep = 1},
                                       .table_cols = 4,
                                       .vocab = VOCAB,
                                       .blocks = 8,
                                       .history_max = 64,
                                       .columns = vectors ? COLUMNS : 0};
    struct err err;
    if (steps[vectors])
        return steps[vectors];
    CHECK(step_open_new(&limits, &steps[vectors], &err) == OK);
    struct step *s = steps[vectors];
    static const int32_t targets[2][3] = {{STEP_TARGET_SAMPLE, 17, STEP_TARGET_SAMPLE}, {7, 17, 3}};
    s->samples = 3;
    for (int32_t i = 0; i < s->samples; i++) {
        s->target[i] = targets[vectors][i];
        s->top[i] = vectors || i == 2 ? -1 : 2 * i;
        s->mask[i] = -1;
    }
    return s;
}

static void check_answer(const struct link_answer *a, bool vectors)
{
    const struct step *s = three_samples(vectors);
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
    CHECK((r->vector != NULL) == vectors && r->columns == s->limits.columns);
    if (vectors) /* every number of them is there to be read */
        (void)base_hash(BASE_HASH_INIT, r->vector,
                        (size_t)r->count * (size_t)r->columns * sizeof *r->vector);
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
    const bool vectors = data[0] / 2 % 2;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(link_open(ends, 1, SLOTS, vectors ? COLUMNS : 0, &links, &err) == OK);
    if (data[0] % 2)
        link_hear(links, 0, &board);
    say(ends[1], data + 1, size - 1);
    while ((st = link_await(links, NULL, NULL, &answer, &err)) == OK)
        check_answer(&answer, vectors);
    CHECK(st != ERR_CANCELLED && strncmp(err.text, "rank 0", 6) == 0);
    link_close(links);
    return 0;
}
