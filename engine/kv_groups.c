#include "engine/kv_groups.h"

static int32_t div_up(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

/* A block at least, so that none is given back before its tokens are known: those that steps in
 * flight draw. */
static int32_t window_of(const struct model_config *m)
{
    return m->window > BACKEND_BLOCK_TOKENS ? m->window : BACKEND_BLOCK_TOKENS;
}

/* How many layers with keys and values of their own keep all, and how many slide. */
struct counts {
    int32_t keep, slide;
};

static struct counts counts_of(const struct model_config *m)
{
    return (struct counts){model_config_storing_window(m, false),
                           model_config_storing_window(m, true)};
}

static struct kv_groups groups_of(const struct model_config *m, struct counts n, int32_t layers,
                                  int32_t keep_layers)
{
    const int32_t all = n.keep + n.slide;
    if (n.slide == 0 && model_config_kinds(m) > 1) /* all have the heads of those that keep */
        return (struct kv_groups){.keep = 1, .layers = 1, .keep_layers = all};
    if (layers == 0)
        return (struct kv_groups){.keep = 1, .layers = all};
    return (struct kv_groups){div_up(n.keep, keep_layers > 0 ? keep_layers : layers),
                              div_up(n.slide, layers), layers, window_of(m), keep_layers};
}

struct kv_groups kv_groups_of(const struct model_config *m, int32_t layers, int32_t keep_layers)
{
    return groups_of(m, counts_of(m), layers, keep_layers);
}

int32_t kv_groups_layers(const struct kv_groups *g, int32_t kind)
{
    return kind > 0 && g->keep_layers > 0 ? g->keep_layers : g->layers;
}

size_t kv_groups_bytes(const struct kv_groups *g, const size_t bytes[MODEL_KINDS])
{
    const size_t all = (size_t)g->layers * bytes[0];
    return g->keep_layers > 0 ? base_max_size(all, (size_t)g->keep_layers * bytes[1]) : all;
}

/* Where heads are of two sizes one table more has to save so much of the memory. */
#define TABLE_SHARE 256

/* Takes the groups if they are fewer blocks or smaller ones. */
static void take_less(struct kv_groups *best, int64_t *least, const struct kv_groups *g,
                      const size_t bytes[MODEL_KINDS], int32_t context, int32_t rows)
{
    int64_t need = kv_groups_need(g, context, rows) * (int64_t)kv_groups_bytes(g, bytes);
    if (g->keep_layers > 0)
        need += need / TABLE_SHARE * kv_groups_count(g);
    if (kv_groups_count(g) > (g->keep_layers > 0 ? KV_GROUPS_MAX : KV_GROUPS_ALIKE) ||
        (*least > 0 && need >= *least))
        return;
    *least = need;
    *best = *g;
}

struct kv_groups kv_groups_find(const struct model_config *m, const size_t bytes[MODEL_KINDS],
                                int32_t context, int32_t rows)
{
    const struct counts n = counts_of(m);
    const int32_t most = n.slide + n.keep;
    const bool apart = model_config_kinds(m) > 1 && n.slide > 0;
    struct kv_groups best = groups_of(m, n, 0, 0);
    int64_t least = 0;
    if (!apart)
        take_less(&best, &least, &best, bytes, context, rows);
    for (int32_t layers = most; layers > 0 && n.slide > 0; layers--) {
        for (int32_t of = apart ? n.keep : 0; of >= apart; of--) {
            const struct kv_groups g = groups_of(m, n, layers, of);
            take_less(&best, &least, &g, bytes, context, rows);
        }
    }
    return best;
}

struct kv_group_place kv_groups_place(const struct kv_groups *g, const struct model_config *m,
                                      int32_t layer)
{
    const bool slides = g->slide > 0 && model_config_slides(m, layer);
    const int32_t source = model_config_source(m, layer);
    int32_t before = 0; /* layers of its kind */
    for (int32_t i = 0; i < source; i++)
        before +=
            model_config_stores(m, i) && (g->slide == 0 || model_config_slides(m, i) == slides);
    const int32_t layers = kv_groups_layers(g, !slides);
    return (struct kv_group_place){(slides ? g->keep : 0) + before / layers, before % layers};
}

int32_t kv_blocks_for(int32_t positions)
{
    return div_up(positions, BACKEND_BLOCK_TOKENS);
}

int32_t kv_groups_first(const struct kv_groups *g, int32_t position)
{
    const int32_t first = position + 1 - g->window;
    return g->slide > 0 && first > 0 ? first / BACKEND_BLOCK_TOKENS : 0;
}

int64_t kv_groups_need(const struct kv_groups *g, int32_t positions, int32_t rows)
{
    const int64_t all = kv_blocks_for(positions);
    /* rows and what the first of them sees, wherever in a block that begins */
    const int64_t seen =
        ((int64_t)g->window - 1 + rows + BACKEND_BLOCK_TOKENS - 2) / BACKEND_BLOCK_TOKENS + 1;
    return g->keep * all + g->slide * (seen < all ? seen : all);
}

int32_t kv_groups_longest(const struct kv_groups *g, int64_t blocks, int32_t rows, int32_t longest)
{
    int32_t fits = 0, beyond = longest + 1; /* need is monotone */
    while (fits + 1 < beyond) {
        const int32_t half = fits + (beyond - fits) / 2;
        if (kv_groups_need(g, half, rows) <= blocks)
            fits = half;
        else
            beyond = half;
    }
    return fits;
}
