/* DESIGN: every rank elects from the same surveys and ballots, so all know which rows to gather
 * without a word about it. The gathered rows go to their own places, and rows that have a token
 * already are given to backend_sample as targets: one path ends both ways. */
#include "engine/parallel/sampler.h"

#include <stdlib.h>

struct sampler {
    struct backend *b;
    struct comm *comm;
    struct parallel *parallel;
    int32_t vocab;
    bool distributed;
    /* own part, and all ranks' parts; in communicator buffers */
    struct sample_survey *survey, *surveys;
    union sample_ballot *ballot, *ballots;
    float *rows; /* [samples_max, vocab] rows that were gathered, at their places */
};

static size_t survey_bytes(int32_t samples)
{
    return base_align((size_t)samples * sizeof(struct sample_survey), 64);
}

static size_t ballot_bytes(int32_t samples)
{
    return base_align((size_t)samples * (1 + SAMPLE_PLACES_MAX) * sizeof(union sample_ballot), 64);
}

size_t sampler_arena_bytes(bool distributed, int32_t ranks, int32_t samples_max)
{
    const size_t one = survey_bytes(samples_max) + ballot_bytes(samples_max);
    return distributed ? one * (size_t)(1 + ranks) : 0;
}

size_t sampler_local_bytes(bool distributed, int32_t samples_max, int32_t vocab)
{
    return distributed ? base_align((size_t)samples_max * (size_t)vocab * sizeof(float), 64) : 0;
}

enum status sampler_open(bool distributed, struct backend *b, struct comm *c, struct parallel *p,
                         int32_t samples_max, int32_t vocab, struct sampler **out, struct err *err)
{
    struct sampler *s = calloc(1, sizeof *s);
    if (!s)
        return base_fail(err, ERR_NOMEM, "sampler: no memory");
    *s = (struct sampler){
        .b = b, .comm = c, .parallel = p, .vocab = vocab, .distributed = distributed};
    if (distributed) {
        const size_t ranks = (size_t)c->ranks;
        s->rows = b->ops->alloc(b, sampler_local_bytes(true, samples_max, vocab));
        if (!s->rows) {
            sampler_close(s);
            return base_fail(err, ERR_NOMEM, "sampler: no memory for %d rows", samples_max);
        }
        s->survey = comm_buffer(c, survey_bytes(samples_max));
        s->surveys = comm_buffer(c, ranks * survey_bytes(samples_max));
        s->ballot = comm_buffer(c, ballot_bytes(samples_max));
        s->ballots = comm_buffer(c, ranks * ballot_bytes(samples_max));
        if (!s->survey || !s->surveys || !s->ballot || !s->ballots) {
            sampler_close(s);
            return base_fail(err, ERR_LIMIT, "sampler: the communicator's arena is too small");
        }
    }
    *out = s;
    return OK;
}

void sampler_close(struct sampler *s)
{
    if (!s)
        return;
    if (s->rows)
        s->b->ops->free(s->b, s->rows);
    free(s);
}

/* all = every rank's `own`, in rank order. */
static enum status exchange(struct sampler *s, void *all, const void *own, size_t bytes,
                            struct err *err)
{
    int32_t words[COMM_RANKS_MAX];
    for (int32_t r = 0; r < s->comm->ranks; r++)
        words[r] = (int32_t)(bytes / 4);
    return comm_all_gather(s->comm, all, own, 1, words, err);
}

static enum status elect(struct sampler *s, const struct sampler_input *in, int32_t *ids,
                         struct err *err)
{
    enum status st = OK;
    const int32_t rows = in->logits.rows, places = in->places;
    const int32_t first = (int32_t)parallel_vocab(s->parallel, s->comm->rank).begin;
    const struct sample_election e = {rows,      s->comm->ranks, s->vocab,
                                      in->begin, s->surveys,     s->ballots};
    TRY(backend_survey(s->b, s->survey, in->logits, first, &e, &in->rows, &in->slots, err));
    TRY(exchange(s, s->surveys, s->survey, (size_t)rows * sizeof *s->survey, err));
    if (places > 0) {
        TRY(backend_nominate(s->b, s->ballot, in->logits, first, &e, &in->rows, &in->slots, err));
        TRY(exchange(s, s->ballots, s->ballot, (size_t)(rows + places) * sizeof *s->ballot, err));
    }
    TRY(backend_elect(s->b, ids, &e, &in->rows, &in->slots, err));
    TRY(s->b->ops->download(s->b, in->elected_host, ids, (size_t)rows * sizeof *ids, err));
out:
    return st;
}

static enum status gather_some(struct sampler *s, struct cview logits, int32_t begin, int32_t end,
                               struct err *err)
{
    struct cview some;
    enum status st = OK;
    if (begin == end)
        return OK;
    TRY(parallel_gather(s->parallel, logits, begin, end, &some, err));
    s->b->ops->copy(s->b, s->rows + (size_t)begin * (size_t)s->vocab, (size_t)s->vocab, some.data,
                    (size_t)s->vocab, some.rows, some.cols);
out:
    return st;
}

/* Gathers the rows without a token and those that want logprobs, neighbours at once. */
static enum status gather_rest(struct sampler *s, const struct sampler_input *in,
                               struct cview *whole, int32_t *undecided, struct err *err)
{
    enum status st = OK;
    const int32_t rows = in->logits.rows;
    int32_t begin = 0;
    *undecided = 0;
    for (int32_t r = 0; r <= rows; r++) {
        const bool wanted = r < rows && (in->elected_host[r] < 0 || in->top[r] >= 0);
        *undecided += r < rows && in->elected_host[r] < 0;
        if (wanted)
            continue;
        TRY(gather_some(s, in->logits, begin, r, err));
        begin = r + 1;
    }
    *whole = cview_of(view_f32(s->rows, rows, s->vocab));
out:
    return st;
}

enum status sampler_run(struct sampler *s, const struct sampler_input *in, int32_t *ids,
                        struct cview *whole, int32_t *undecided, struct err *err)
{
    enum status st = OK;
    struct sample_rows rows = in->rows;
    *undecided = 0;
    if (s->distributed) {
        TRY(elect(s, in, in->elected, err));
        TRY(gather_rest(s, in, whole, undecided, err));
        rows.target = in->elected;
    } else {
        TRY(parallel_gather(s->parallel, in->logits, 0, in->logits.rows, whole, err));
    }
    TRY(backend_sample(s->b, ids, *whole, &rows, &in->slots, err));
out:
    return st;
}
