/* DESIGN: the server has validated all of this against its own table; it is checked again here
 * because a rank refuses the whole step for one number out of range, and with it every request. */
#include "engine/request.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

static enum status check_count(const char *what, int32_t count, int32_t max, struct err *err)
{
    if (count < 0 || count > max)
        return base_fail(err, ERR_INPUT, "%s has %d entries, expected at most %d", what, count,
                         max);
    return OK;
}

static enum status check_ids(const char *what, const int32_t *ids, int32_t count, int32_t vocab,
                             struct err *err)
{
    for (int32_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return base_fail(err, ERR_INPUT, "token id %d of %s is outside 0..%d", ids[i], what,
                             vocab - 1);
    return OK;
}

static enum status check_real(const char *what, float v, float min, float max, struct err *err)
{
    if (!(v >= min && v <= max))
        return base_fail(err, ERR_INPUT, "%s is %g, expected %g to %g", what, (double)v,
                         (double)min, (double)max);
    return OK;
}

static enum status check_bias(const struct request_params *p, int32_t vocab, struct err *err)
{
    enum status st = check_count("logit_bias", p->bias_count, ENGINE_BIAS_MAX, err);
    for (int32_t i = 0; st == OK && i < p->bias_count; i++) {
        st = check_ids("logit_bias", &p->bias[i].token, 1, vocab, err);
        if (st == OK)
            st = check_real("logit_bias", p->bias[i].value, -100, 100, err);
    }
    return st;
}

static int32_t bad_ids(const struct request_params *p)
{
    return p->bad_count > 0 ? p->bad_ends[p->bad_count - 1] : 0;
}

static enum status check_bad_words(const struct request_params *p, int32_t vocab, struct err *err)
{
    enum status st = check_count("bad_words", p->bad_count, ENGINE_BAD_IDS_MAX, err);
    for (int32_t i = 0; st == OK && i < p->bad_count; i++)
        if (p->bad_ends[i] <= (i > 0 ? p->bad_ends[i - 1] : 0))
            st = base_fail(err, ERR_INPUT, "bad_words: word %d has no tokens", i);
    if (st == OK)
        st = check_count("bad_words", bad_ids(p), ENGINE_BAD_IDS_MAX, err);
    return st == OK ? check_ids("bad_words", p->bad_ids, bad_ids(p), vocab, err) : st;
}

static enum status check_reals(const struct request_params *p, struct err *err)
{
    const struct {
        const char *name;
        float value, min, max;
    } reals[] = {{"temperature", p->temperature, 0, FLT_MAX},
                 {"top_p", p->top_p, 0, 1},
                 {"min_p", p->min_p, 0, 1},
                 {"repetition_penalty", p->repetition_penalty, FLT_MIN, FLT_MAX},
                 {"frequency_penalty", p->frequency_penalty, -FLT_MAX, FLT_MAX},
                 {"presence_penalty", p->presence_penalty, -FLT_MAX, FLT_MAX}};
    enum status st = OK;
    for (size_t i = 0; st == OK && i < ARRAY_LEN(reals); i++)
        st = check_real(reals[i].name, reals[i].value, reals[i].min, reals[i].max, err);
    return st;
}

static enum status check_logprobs(const char *what, int32_t n, struct err *err)
{
    if (n < -1 || n > ENGINE_LOGPROBS_MAX)
        return base_fail(err, ERR_INPUT, "%s is %d, expected -1 to %d", what, n,
                         ENGINE_LOGPROBS_MAX);
    return OK;
}

static enum status check(const struct request_params *p, int32_t vocab, struct err *err)
{
    enum status st = OK;
    TRY(check_reals(p, err));
    TRY(check_logprobs("logprobs", p->logprobs, err));
    TRY(check_logprobs("prompt_logprobs", p->prompt_logprobs, err));
    if (p->min_tokens < 0)
        st = base_fail(err, ERR_INPUT, "min_tokens is %d, expected at least 0", p->min_tokens);
    TRY(st);
    TRY(check_bias(p, vocab, err));
    TRY(check_count("stop_token_ids", p->stop_id_count, ENGINE_STOP_IDS_MAX, err));
    TRY(check_ids("stop_token_ids", p->stop_ids, p->stop_id_count, vocab, err));
    TRY(check_bad_words(p, vocab, err));
out:
    return st;
}

/* Copies n words to *at and moves it on. */
static void *copy(int32_t **at, const void *src, int32_t n)
{
    void *dst = *at;
    if (n > 0)
        memcpy(dst, src, (size_t)n * sizeof **at);
    *at += n;
    return dst;
}

enum status request_rules(const struct request_params *p, int32_t prompt_len, const int32_t *eos,
                          int32_t eos_count, int32_t vocab, struct sample_rules **out,
                          struct err *err)
{
    enum status st = check(p, vocab, err);
    if (st != OK)
        return st;
    const int32_t bans = eos_count + p->stop_id_count;
    const size_t words = 2 * (size_t)p->bias_count + (size_t)(bans + p->bad_count + bad_ids(p));
    struct sample_rules *r = malloc(sizeof *r + words * sizeof(int32_t));
    if (!r)
        return base_fail(err, ERR_NOMEM, "no memory for the rules of a request");
    *r = (struct sample_rules){.prompt = prompt_len,
                               .min_tokens = p->min_tokens,
                               .repetition = p->repetition_penalty,
                               .frequency = p->frequency_penalty,
                               .presence = p->presence_penalty,
                               .biases = p->bias_count,
                               .bans = bans,
                               .bads = p->bad_count};
    int32_t *at = (int32_t *)(void *)(r + 1);
    r->bias = copy(&at, p->bias, 2 * p->bias_count);
    r->ban = copy(&at, eos, eos_count);
    copy(&at, p->stop_ids, p->stop_id_count);
    r->bad_end = copy(&at, p->bad_ends, p->bad_count);
    r->bad = copy(&at, p->bad_ids, bad_ids(p));
    *out = r;
    return OK;
}

struct sample_params request_draw(const struct request_params *p)
{
    return (struct sample_params){.temperature = p->temperature,
                                  .top_p = p->top_p,
                                  .min_p = p->min_p,
                                  .top_k = p->top_k,
                                  .seed = p->seed,
                                  .choice = p->choice};
}
