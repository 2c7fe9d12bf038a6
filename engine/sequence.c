/* DESIGN: a sequence is made before it is known whether there is room for it in the queue, on the
 * thread that submits it, so that the engine thread allocates nothing. */
#include "engine/sequence.h"

#include "engine/request.h"
#include "engine/sched.h"

#include <stdlib.h>
#include <string.h>

/* Does it fit the context and the cache? *answer: tokens it may produce. */
static enum status check(const struct sched_config *c, const struct request_params *params,
                         const int32_t *prompt, int32_t prompt_len, int32_t *answer,
                         struct err *err)
{
    if (prompt_len < 1 || prompt_len + (params->max_tokens > 0) > c->max_model_len)
        return base_fail(err, ERR_INPUT,
                         "This model's maximum context length is %d tokens. However, your prompt "
                         "has %d.",
                         c->max_model_len, prompt_len);
    if (params->max_tokens < 0)
        return base_fail(err, ERR_INPUT, "max_tokens is %d, expected at least 0",
                         params->max_tokens);
    for (int32_t i = 0; i < prompt_len; i++) /* a rank refuses the whole step for one bad id */
        if (prompt[i] < 0 || prompt[i] >= c->limits.vocab)
            return base_fail(err, ERR_INPUT, "token id %d of the prompt is outside 0..%d",
                             prompt[i], c->limits.vocab - 1);
    const int32_t room = c->max_model_len - prompt_len;
    *answer = params->max_tokens < room ? params->max_tokens : room;
    if (kv_blocks_for(prompt_len + *answer) > c->limits.blocks)
        return base_fail(err, ERR_INPUT, "the request needs %d KV blocks, the cache has %d",
                         kv_blocks_for(prompt_len + *answer), c->limits.blocks);
    return OK;
}

enum status sequence_open(const struct sched_config *c, const struct request_params *params,
                          const int32_t *prompt, int32_t prompt_len, struct sequence **out,
                          struct err *err)
{
    enum status st = OK;
    int32_t answer = 0;
    struct sequence *q = calloc(1, sizeof *q);
    if (!q)
        return base_fail(err, ERR_NOMEM, "no memory for a request");
    TRY(check(c, params, prompt, prompt_len, &answer, err));
    TRY(request_rules(params, prompt_len, c->eos, c->eos_count, c->limits.vocab, &q->rules, err));
    q->tokens = calloc((size_t)(prompt_len + answer), sizeof *q->tokens);
    q->blocks = calloc((size_t)kv_blocks_for(prompt_len + answer), sizeof *q->blocks);
    if (!q->tokens || !q->blocks) {
        st = base_fail(err, ERR_NOMEM, "no memory for a request of %d tokens", prompt_len);
        goto out;
    }
    memcpy(q->tokens, prompt, (size_t)prompt_len * sizeof *prompt);
    q->params = *params;
    q->params.max_tokens = answer;
    q->params.bias = NULL;
    q->params.stop_ids = q->params.bad_ids = q->params.bad_ends = NULL;
    q->prompt_len = q->length = prompt_len;
    q->scored = q->told = 1; /* nothing comes before the first */
    q->slot = -1;
    *out = q;
    q = NULL;
out:
    sequence_free(q);
    return st;
}

void sequence_free(struct sequence *q)
{
    if (!q)
        return;
    free(q->rules);
    free(q->tokens);
    free(q->blocks);
    free(q);
}

bool sequence_before(const struct sequence *a, const struct sequence *b)
{
    if (a->params.priority != b->params.priority)
        return a->params.priority < b->params.priority;
    return a->arrival < b->arrival;
}

bool sequence_is_scored(const struct sequence *q)
{
    return q->params.prompt_logprobs >= 0;
}

/* ---- its blocks ---- */

static struct kv_key key_of(const struct sequence *q, int32_t block)
{
    struct kv_key key = {.salt = q->params.cache_salt, .before = q->chain};
    memcpy(key.tokens, q->tokens + (size_t)block * BACKEND_BLOCK_TOKENS, sizeof key.tokens);
    return key;
}

void sequence_publish(struct sequence *q, struct kv_pool *kv, uint64_t step)
{
    const int32_t known = q->computed < q->length ? q->computed : q->length;
    for (; q->published < known / BACKEND_BLOCK_TOKENS; q->published++) {
        const struct kv_key key = key_of(q, q->published);
        q->chain = kv_publish(kv, q->blocks[q->published], &key, step);
    }
}

bool sequence_share(struct sequence *q, struct kv_pool *kv, uint64_t step)
{
    const int32_t most = (q->length - 1) / BACKEND_BLOCK_TOKENS;
    while (q->block_count < most) {
        const struct kv_key key = key_of(q, q->block_count);
        const int32_t block = kv_find(kv, &key);
        if (block < 0)
            break;
        if (kv_stamp(kv, block) == step) {
            if (q->deferrals++ < kv_blocks_for(q->length))
                return false;
            break;
        }
        kv_share(kv, block);
        q->chain = kv_name(kv, block);
        q->blocks[q->block_count++] = block;
    }
    q->published = q->block_count;
    q->computed = q->block_count * BACKEND_BLOCK_TOKENS;
    return true;
}

void sequence_release(struct sequence *q, struct kv_pool *kv)
{
    kv_release(kv, q->blocks, q->block_count);
    q->block_count = q->published = q->computed = 0;
    q->chain = 0;
}
