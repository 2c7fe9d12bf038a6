/* Arbitrary bytes as a step message, under limits a small server would have. Magic, version and
 * length are made right for longer inputs, so that most of them reach what lies behind. What was
 * accepted must be in range and, encoded again, mean the same. */
#include "engine/step.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct step_limits limits = {.slots = 8,
                                          .samples = 11,
                                          .rows = 64,
                                          .groups = {.keep = 1, .slide = 1, .window = 16},
                                          .table_cols = 16,
                                          .vocab = 4096,
                                          .blocks = 100,
                                          .history_max = 256,
                                          .homes = 3,
                                          .home_rows = 22,
                                          .recurs = true,
                                          .states = 7};

static void check_rows(const struct step *s)
{
    const bool draws = s->limits.columns == 0;
    CHECK(s->rows >= 0 && s->rows <= limits.rows);
    for (int32_t i = 0; i < s->rows; i++) {
        CHECK(s->slot[i] >= -1 && s->slot[i] < limits.slots);
        CHECK(s->position[i] >= 0 && s->position[i] < limits.history_max);
        CHECK(s->token[i] >= STEP_TOKEN_FROM_SLOT && s->token[i] < limits.vocab);
        CHECK(s->keep[i] >= -1 && s->keep[i] < limits.states);
    }
    CHECK(s->samples >= 0 && s->samples <= limits.slots);
    for (int32_t i = 0; i < s->samples; i++) {
        CHECK(s->sample[i] > (i > 0 ? s->sample[i - 1] : -1) && s->sample[i] < s->rows);
        const int32_t after = draws ? 1 : 0;
        CHECK(s->slot[s->sample[i]] >= 0 && s->position[s->sample[i]] + after < limits.history_max);
        CHECK(s->target[i] >= (draws ? STEP_TARGET_CHECK : 0) && s->target[i] < limits.vocab);
        CHECK(s->top[i] >= -1 && s->top[i] <= ENGINE_LOGPROBS_MAX);
        CHECK(s->mask[i] >= -1 && s->mask[i] < s->mask_count);
        CHECK(s->mask[i] < 0 || s->target[i] < 0);
    }
    CHECK(s->mask_count >= 0 && s->mask_count <= s->samples);
}

static void check_ids(const int32_t *ids, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        CHECK(ids[i] >= 0 && ids[i] < limits.vocab);
}

static void check_rules(const struct sample_rules *r)
{
    int32_t end = 0;
    CHECK(r->biases >= 0 && r->biases <= ENGINE_BIAS_MAX);
    CHECK(r->bans >= 0 && r->bans <= STEP_BANS_MAX);
    CHECK(r->repetition > 0 && isfinite(r->repetition));
    CHECK(isfinite(r->frequency) && isfinite(r->presence));
    for (int32_t i = 0; i < r->biases; i++) {
        check_ids(&r->bias[i].token, 1);
        CHECK(isfinite(r->bias[i].value));
    }
    check_ids(r->ban, r->bans);
    for (int32_t i = 0; i < r->bads; end = r->bad_end[i++])
        CHECK(r->bad_end[i] > end && r->bad_end[i] <= ENGINE_BAD_IDS_MAX);
    check_ids(r->bad, end);
}

static void check_slots(const struct step *s)
{
    CHECK(s->opens >= 0 && s->opens <= limits.slots);
    for (int32_t i = 0; i < s->opens; i++) {
        const struct step_open *o = &s->open[i];
        CHECK(o->slot >= 0 && o->slot < limits.slots);
        CHECK(o->home >= 0 && o->home < limits.homes);
        CHECK(o->history >= 1 && o->history <= limits.history_max);
        CHECK(o->rules.prompt >= 1 && o->rules.prompt <= o->history);
        check_ids(o->tokens, o->history);
        check_rules(&o->rules);
    }
    CHECK(s->appends >= 0 && s->appends <= s->append_max);
    for (int32_t i = 0; i < s->appends; i++) {
        CHECK(s->append[i].slot >= 0 && s->append[i].slot < limits.slots);
        CHECK(s->append[i].group >= 0 && s->append[i].group < 2);
        CHECK(s->append[i].index >= 0 && s->append[i].index < limits.table_cols);
        CHECK(s->append[i].block >= 0 && s->append[i].block < limits.blocks);
    }
    CHECK(s->closes >= 0 && s->closes <= 2 * limits.slots);
    for (int32_t i = 0; i < s->closes; i++)
        CHECK(s->close[i] >= 0 && s->close[i] < limits.slots);
}

/* One group gives tokens, the other vectors. */
static struct step *step_of(int32_t columns)
{
    struct step *s = NULL;
    struct step_limits l = limits;
    struct err err = {{0}};
    l.columns = columns;
    CHECK(step_open_new(&l, &s, &err) == OK);
    return s;
}

static void run(struct step *step, const char *bytes, size_t size)
{
    static char *again;
    struct err err = {{0}};
    if (!again)
        again = malloc(step_bytes_max(&limits));
    CHECK(again != NULL);
    enum status st = step_decode(step, bytes, size, &err);
    if (st == OK) {
        const size_t head = sizeof(struct step_header);
        check_rows(step);
        check_slots(step);
        CHECK(step_encode(step, again) == size);
        CHECK(memcmp(again + head, bytes + head, size - head) == 0);
    } else {
        CHECK(st == ERR_COMM);
        CHECK(err.text[0] != '\0');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct step *tokens, *vectors;
    struct step_header h;
    if (!tokens) {
        tokens = step_of(0);
        vectors = step_of(4);
    }
    char *bytes = malloc(size > 0 ? size : 1); /* ends where the input ends */
    CHECK(bytes != NULL);
    if (size > 0)
        memcpy(bytes, data, size);
    if (size > sizeof h) {
        memcpy(&h, bytes, sizeof h);
        h.magic = STEP_MAGIC;
        h.version = STEP_VERSION;
        h.bytes = (uint32_t)size;
        memcpy(bytes, &h, sizeof h);
    }
    run(tokens, bytes, size);
    run(vectors, bytes, size);
    free(bytes);
    return 0;
}
