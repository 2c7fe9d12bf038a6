/* What a step costs the host: microseconds of a rank's thread to decode a step's message, prepare
 * its arrays, upload them and enqueue the ops, and to take what came of it; without the link's
 * system calls. The step that runs meanwhile hides it as long as it is shorter. One rank, decodes
 * of so many rows, each launched before the one before has landed, as CUDA graphs and op by op:
 * bench_step MODEL [OPTION...], whose options are those of `tessera plan`. */
#include "tests/cluster.h"

enum { STEPS = 200, WARM = 20, POSITIONS = STEPS + WARM + 8 };

static void must(enum status st, const struct err *err)
{
    if (st == OK)
        return;
    fprintf(stderr, "bench_step: %s\n", err->text);
    exit(1);
}

struct timing {
    int64_t launch, land, all; /* ns */
};

static size_t encode(struct cluster *c, int32_t rows, int32_t position, void *message)
{
    for (int32_t s = 0; s < rows; s++)
        cluster_row(c, s, position, STEP_TOKEN_FROM_SLOT, true);
    c->step->epoch = 1;
    c->step->seq = ++c->seq;
    const size_t n = step_encode(c->step, message);
    step_clear(c->step);
    return n;
}

static void launch(struct cluster *c, struct step *step, const void *message, size_t n,
                   struct timing *t)
{
    struct err err;
    const int64_t start = base_now_ns();
    must(step_decode(step, message, n, &err), &err);
    must(rank_launch(c->ranks[0], step, NULL, &err), &err);
    t->launch += base_now_ns() - start;
}

static void land(struct cluster *c, struct timing *t)
{
    struct err err;
    struct step_result result;
    while (!rank_landed(c->ranks[0]))
        ;
    const int64_t start = base_now_ns();
    must(rank_land(c->ranks[0], &result, &err), &err);
    t->land += base_now_ns() - start;
}

/* A prompt of one token each, then decodes. */
static struct timing decodes(struct cluster *c, int32_t rows)
{
    static const int32_t prompt[1] = {3};
    struct timing t = {0};
    struct step *step = NULL;
    struct err err;
    void *message = malloc(step_bytes_max(&c->footprint.limits));
    CHECK(message != NULL);
    must(step_open_new(&c->footprint.limits, &step, &err), &err);
    for (int32_t s = 0; s < rows; s++) {
        const struct sample_params greedy = {.top_p = 1};
        cluster_open_slot(c, s, prompt, 1, POSITIONS, greedy);
        cluster_row(c, s, 0, prompt[0], true);
    }
    cluster_step(c);
    int64_t start = 0;
    for (int32_t i = 0; i < WARM + STEPS; i++) {
        const size_t n = encode(c, rows, 1 + i, message);
        launch(c, step, message, n, &t);
        if (i > 0)
            land(c, &t);
        if (i + 1 == WARM) {
            t = (struct timing){0};
            start = base_now_ns();
        }
    }
    land(c, &t);
    t.all = base_now_ns() - start;
    step_free(step);
    free(message);
    return t;
}

static void measure(const char *model, char **options, int count, bool eager)
{
    const char *args[16] = {"--device=cuda"};
    int n = 1;
    for (int i = 0; i < count && n < (int)ARRAY_LEN(args) - 2; i++)
        args[n++] = options[i];
    if (eager)
        args[n] = "--enforce-eager";
    struct cluster *c = cluster_open(model, 1, args);
    for (int32_t rows = 1; rows <= c->footprint.limits.slots && rows <= 64; rows *= 4) {
        const struct timing t = decodes(c, rows);
        printf("| %d | %s | %.1f | %.1f | %.1f |\n", rows, eager ? "ops" : "a graph",
               (double)t.launch / STEPS * 1e-3, (double)t.land / STEPS * 1e-3,
               (double)t.all / STEPS * 1e-3);
        fflush(stdout);
    }
    cluster_close(c);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "bench_step MODEL [OPTION...]\n");
        return 2;
    }
    printf("| rows | as | launch us | land us | step us |\n| --- | --- | --- | --- | --- |\n");
    measure(argv[1], argv + 2, argc - 2, false);
    measure(argv[1], argv + 2, argc - 2, true);
    return 0;
}
