/* DESIGN: the grammar is made deterministic as it is used. A state is the set of all places where
 * the text so far can be: a node that wants a byte, and the stack of nodes to return to. Stacks and
 * states are stored once each, so that equal ones have equal numbers, and a state remembers for
 * each class of bytes where it leads to; texts stay in few states, and then a token's bytes are as
 * many table lookups. A mask is one walk over the vocabulary's tree, which leaves out whatever
 * begins with bytes that do not fit, and is kept with its state.
 * What is kept is forgotten when it is too much, all but the state that is at work. Other places
 * know the era they are of, and are found again by what they keep of their state, or from their
 * tokens. */
#include "engine/grammar/guide.h"

#include "kernels/backend.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    UNKNOWN = -1,
    DEAD = 0,  /* the state without places */
    START = 1, /* the state of the empty text */
    NO_STACK = 0,
    SPOTS_MAX = 1 << 14,  /* of one state, nodes on the way included */
    STATES_MAX = 1 << 14, /* in all: */
    PLACES_MAX = 1 << 18,
    STACKS_MAX = 1 << 15,
    STEPS_BYTES_MAX = 2 << 20,
    MASKS_BYTES_MAX = 2 << 20,
    MASKS_MIN = 8,
    WORK_MAX = 1 << 18, /* spots that one token or mask may look at: about 10 ms */
};

struct spot {
    int32_t node, stack;
};

struct stack {
    int32_t next; /* node to return to */
    int32_t below;
    int32_t depth;
};

struct state {
    int32_t first, count; /* in places */
    int32_t mask;         /* UNKNOWN: not made */
    bool whole;           /* the text may end here */
};

/* Numbers of equal things + 1, found by their hash; 0 where there is none. */
struct index {
    int32_t *at;
    int32_t size; /* a power of two, more than twice as many as there are */
};

struct guide {
    atomic_int references;
    struct grammar *grammar;
    const struct grammar_node *nodes;
    const struct vocabulary *vocabulary;
    uint8_t classes[256];
    int32_t class_count, words;
    uint64_t era;
    bool full;    /* there is no room or no time for what was asked */
    int32_t work; /* spots looked at for this token or mask */
    struct stack *stacks;
    struct state *states;
    struct spot *places;
    int32_t *steps;  /* [states, class_count] */
    uint32_t *masks; /* [.., words] */
    int32_t stack_count, state_count, place_count, mask_count;
    struct spot *spots; /* of the state that is being made */
    int32_t spot_count;
    int32_t stack_room, state_room, place_room, step_room, mask_room, spot_room;
    struct index stack_index, state_index, spot_index;
};

/* The array, with room for one more than the `count` things that are in it, of which max may be
 * there; g->full: it has none. */
static void *grow(struct guide *g, void *array, int32_t count, int32_t *room, int32_t max,
                  size_t size)
{
    if (count < *room)
        return array;
    int32_t more = *room > 0 ? 2 * *room : 64;
    more = more < max ? more : max;
    void *grown = count < more ? realloc(array, (size_t)more * size) : NULL;
    if (!grown) {
        g->full = true;
        return array;
    }
    *room = more;
    return grown;
}

static uint64_t hash_bytes(const void *bytes, size_t n)
{
    const uint64_t hash = base_hash(BASE_HASH_INIT, bytes, n);
    return hash ^ hash >> 32;
}

static uint64_t hash_stack(const struct guide *g, int32_t n)
{
    return hash_bytes(&g->stacks[n], sizeof *g->stacks);
}

static uint64_t hash_spot(const struct guide *g, int32_t n)
{
    return hash_bytes(&g->spots[n], sizeof *g->spots);
}

static uint64_t hash_state(const struct guide *g, int32_t n)
{
    const struct state *s = &g->states[n];
    return hash_bytes(g->places + s->first, (size_t)s->count * sizeof *g->places);
}

static int32_t slot_of(const struct index *x, uint64_t hash)
{
    return (int32_t)(hash & (uint64_t)(x->size - 1));
}

static int32_t after(const struct index *x, int32_t slot)
{
    return (slot + 1) & (x->size - 1);
}

/* Sees to it that there is room for one more than the `count` things that are in it. */
static bool widen(struct guide *g, struct index *x, int32_t count,
                  uint64_t (*hash)(const struct guide *g, int32_t n))
{
    if (2 * (count + 1) < x->size)
        return true;
    struct index wide = {.size = x->size > 0 ? 2 * x->size : 64};
    wide.at = calloc((size_t)wide.size, sizeof *wide.at);
    if (!wide.at) {
        g->full = true;
        return false;
    }
    for (int32_t n = 0; n < count; n++) {
        int32_t slot = slot_of(&wide, hash(g, n));
        while (wide.at[slot] != 0)
            slot = after(&wide, slot);
        wide.at[slot] = n + 1;
    }
    free(x->at);
    *x = wide;
    return true;
}

static void clear_index(struct index *x)
{
    if (x->at)
        memset(x->at, 0, (size_t)x->size * sizeof *x->at);
}

/* ---- states ---- */

static int32_t push_stack(struct guide *g, int32_t next, int32_t below)
{
    const struct stack s = {next, below, g->stacks[below].depth + 1};
    if (!widen(g, &g->stack_index, g->stack_count, hash_stack))
        return NO_STACK;
    int32_t slot = slot_of(&g->stack_index, hash_bytes(&s, sizeof s));
    for (int32_t n; (n = g->stack_index.at[slot] - 1) >= 0; slot = after(&g->stack_index, slot))
        if (memcmp(&g->stacks[n], &s, sizeof s) == 0)
            return n;
    g->stacks = grow(g, g->stacks, g->stack_count, &g->stack_room, STACKS_MAX, sizeof s);
    if (g->full)
        return NO_STACK;
    g->stacks[g->stack_count] = s;
    g->stack_index.at[slot] = g->stack_count + 1;
    return g->stack_count++;
}

/* The text so far can be at this node; unless the rules would become too deep from here. */
static void add_spot(struct guide *g, int32_t node, int32_t stack)
{
    const struct spot s = {node, stack};
    if (g->full || g->nodes[node].height + g->stacks[stack].depth > GRAMMAR_DEPTH_MAX)
        return;
    if (!widen(g, &g->spot_index, g->spot_count, hash_spot))
        return;
    int32_t slot = slot_of(&g->spot_index, hash_bytes(&s, sizeof s));
    for (int32_t n; (n = g->spot_index.at[slot] - 1) >= 0; slot = after(&g->spot_index, slot))
        if (memcmp(&g->spots[n], &s, sizeof s) == 0)
            return;
    if (++g->work > WORK_MAX)
        g->full = true;
    g->spots = grow(g, g->spots, g->spot_count, &g->spot_room, SPOTS_MAX, sizeof s);
    if (g->full)
        return;
    g->spots[g->spot_count++] = s;
    g->spot_index.at[slot] = g->spot_count;
}

/* The spots that s leads to without a byte; true when the text may end there. */
static bool follow(struct guide *g, struct spot s)
{
    const struct grammar_node *node = &g->nodes[s.node];
    const struct stack top = g->stacks[s.stack];
    int32_t stack = s.stack;
    switch ((enum grammar_kind)node->kind) {
    case GRAMMAR_FORK:
        add_spot(g, node->next, s.stack);
        add_spot(g, node->other, s.stack);
        break;
    case GRAMMAR_CALL: /* a call that is the last of its rule returns to where the rule does */
        if (g->nodes[node->next].kind != GRAMMAR_RETURN)
            stack = push_stack(g, node->next, s.stack);
        add_spot(g, grammar_first(g->grammar, node->other), stack);
        break;
    case GRAMMAR_RETURN:
        if (s.stack == NO_STACK)
            return true;
        add_spot(g, top.next, top.below);
        break;
    case GRAMMAR_RANGE:
    case GRAMMAR_NOWHERE:
        break;
    }
    return false;
}

static int by_node(const void *a, const void *b)
{
    const struct spot *x = a, *y = b;
    if (x->node != y->node)
        return (x->node > y->node) - (x->node < y->node);
    return (x->stack > y->stack) - (x->stack < y->stack);
}

/* The number of the state that consists of the first `count` spots. */
static int32_t find_state(struct guide *g, int32_t count, bool whole)
{
    const size_t bytes = (size_t)count * sizeof *g->spots;
    if (!widen(g, &g->state_index, g->state_count, hash_state))
        return DEAD;
    int32_t slot = slot_of(&g->state_index, hash_bytes(g->spots, bytes)), n;
    for (; (n = g->state_index.at[slot] - 1) >= 0; slot = after(&g->state_index, slot))
        if (g->states[n].count == count && g->states[n].whole == whole &&
            memcmp(g->places + g->states[n].first, g->spots, bytes) == 0)
            return n;
    const size_t row = (size_t)g->class_count * sizeof *g->steps;
    const int32_t rows_max = (int32_t)(STEPS_BYTES_MAX / row);
    g->states = grow(g, g->states, g->state_count, &g->state_room, STATES_MAX, sizeof *g->states);
    g->steps = grow(g, g->steps, g->state_count, &g->step_room, rows_max, row);
    for (int32_t i = 0; i < count && !g->full; i++) {
        const int32_t at = g->place_count + i;
        g->places = grow(g, g->places, at, &g->place_room, PLACES_MAX, sizeof *g->places);
        if (!g->full)
            g->places[at] = g->spots[i];
    }
    if (g->full)
        return DEAD;
    n = g->state_count;
    g->states[n] = (struct state){g->place_count, count, UNKNOWN, whole};
    g->place_count += count;
    memset(g->steps + (size_t)n * (size_t)g->class_count, 0xff, row);
    g->state_index.at[slot] = ++g->state_count;
    return n;
}

/* The same, once they are in order. */
static int32_t intern(struct guide *g, int32_t count, bool whole)
{
    if (count > 1)
        qsort(g->spots, (size_t)count, sizeof *g->spots, by_node);
    return find_state(g, count, whole);
}

static void drop_spots(struct guide *g)
{
    g->spot_count = 0;
    clear_index(&g->spot_index);
}

/* The state of the spots that were added and of all that they lead to. */
static int32_t settle(struct guide *g)
{
    bool whole = false;
    int32_t kept = 0;
    for (int32_t i = 0; i < g->spot_count && !g->full; i++)
        whole |= follow(g, g->spots[i]);
    for (int32_t i = 0; i < g->spot_count; i++)
        if (g->nodes[g->spots[i].node].kind == GRAMMAR_RANGE)
            g->spots[kept++] = g->spots[i];
    drop_spots(g);
    if (g->full)
        return DEAD;
    return kept == 0 && !whole ? DEAD : intern(g, kept, whole);
}

static int32_t step(struct guide *g, int32_t state, uint8_t byte)
{
    const size_t at = (size_t)state * (size_t)g->class_count + g->classes[byte];
    if (g->steps[at] != UNKNOWN)
        return g->steps[at];
    const struct state s = g->states[state];
    g->work += s.count / 16; /* which are looked at, too, but that is quick */
    for (int32_t i = s.first; i < s.first + s.count; i++) {
        const struct grammar_node *node = &g->nodes[g->places[i].node];
        if (node->lo <= byte && byte <= node->hi)
            add_spot(g, node->next, g->places[i].stack);
    }
    const int32_t to = settle(g);
    if (!g->full)
        g->steps[at] = to;
    return to;
}

/* All but the grammar: another era begins. */
static void forget(struct guide *g)
{
    g->full = false;
    g->work = 0;
    g->stack_count = g->state_count = g->place_count = g->mask_count = 0;
    g->era++;
    clear_index(&g->stack_index);
    clear_index(&g->state_index);
    g->stacks = grow(g, g->stacks, 0, &g->stack_room, STACKS_MAX, sizeof *g->stacks);
    if (g->full)
        return;
    g->stacks[g->stack_count++] = (struct stack){.next = UNKNOWN}; /* NO_STACK */
    find_state(g, 0, false);                                       /* DEAD */
    add_spot(g, grammar_start(g->grammar), NO_STACK);
    settle(g);
}

/* ---- masks ---- */

static void allow(uint32_t *mask, const struct vocabulary *v, int32_t token)
{
    for (; token >= 0; token = vocabulary_same(v, token))
        mask[token / 32] |= 1u << (token % 32);
}

static void walk(struct guide *g, int32_t state, uint32_t *mask)
{
    int32_t states[VOCABULARY_TOKEN_BYTES_MAX + 1] = {state}, count;
    const struct vocabulary_node *nodes = vocabulary_nodes(g->vocabulary, &count);
    for (int32_t i = 0; i < count && !g->full;) {
        const struct vocabulary_node *n = &nodes[i];
        const int32_t to = step(g, states[n->depth - 1], n->byte);
        states[n->depth] = to;
        i = to == DEAD ? n->end : i + 1;
        if (to != DEAD && n->token >= 0)
            allow(mask, g->vocabulary, n->token);
    }
}

static int32_t make_mask(struct guide *g, int32_t state)
{
    const size_t row = (size_t)g->words * sizeof *g->masks;
    const int32_t fit = (int32_t)(MASKS_BYTES_MAX / row);
    const int32_t max = fit > MASKS_MIN ? fit : MASKS_MIN;
    if (g->mask_count == max) {
        for (int32_t i = 0; i < g->state_count; i++)
            g->states[i].mask = UNKNOWN;
        g->mask_count = 0;
    }
    g->masks = grow(g, g->masks, g->mask_count, &g->mask_room, max, row);
    if (g->full)
        return UNKNOWN;
    uint32_t *mask = g->masks + (size_t)g->mask_count * (size_t)g->words;
    memset(mask, 0, row);
    g->work = 0;
    walk(g, state, mask);
    if (g->full)
        return UNKNOWN;
    return g->states[state].mask = g->mask_count++;
}

/* ---- places ---- */

/* Writes the nodes that a stack returns to, the last first; returns how many. */
static int32_t list_stack(const struct guide *g, int32_t stack, int32_t *nodes)
{
    int32_t n = 0;
    for (; stack != NO_STACK; stack = g->stacks[stack].below)
        nodes[n++] = g->stacks[stack].next;
    return n;
}

static void save_spots(const struct guide *g, const struct state *s, int32_t *rows)
{
    for (int32_t i = 0; i < s->count; i++) {
        const struct spot *spot = &g->places[s->first + i];
        rows[i * GUIDE_SPOT_WORDS] = spot->node;
        rows[i * GUIDE_SPOT_WORDS + 1] =
            list_stack(g, spot->stack, rows + i * GUIDE_SPOT_WORDS + 2);
    }
}

static void restore_spots(struct guide *g, const int32_t *rows, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        const int32_t *row = rows + (ptrdiff_t)i * GUIDE_SPOT_WORDS;
        int32_t stack = NO_STACK;
        for (int32_t k = row[1]; k-- > 0;)
            stack = push_stack(g, row[2 + k], stack);
        add_spot(g, row[0], stack);
    }
}

/* Forgets all but the state of this place. g->full: there is no memory for that. */
static void forget_others(struct guide *g, struct guide_place *place)
{
    const struct state s = g->states[place->state];
    int32_t *rows = malloc(((size_t)s.count + 1) * GUIDE_SPOT_WORDS * sizeof *rows);
    if (rows)
        save_spots(g, &s, rows);
    forget(g);
    if (rows && !g->full)
        restore_spots(g, rows, s.count);
    drop_spots(g);
    g->full = g->full || !rows;
    if (!g->full && place->state != DEAD)
        place->state = intern(g, s.count, s.whole);
    place->era = g->full ? 0 : g->era;
    free(rows);
}

/* So that the place is found again in another era. */
static void keep_spots(const struct guide *g, struct guide_place *place)
{
    const struct state *s = &g->states[place->state];
    place->spots = s->count <= GUIDE_SPOTS_MAX ? s->count : 0;
    place->whole = s->whole;
    if (place->spots > 0)
        save_spots(g, s, place->kept);
}

/* The place in this era: where it was, or else at the beginning. */
static void find_again(struct guide *g, struct guide_place *place)
{
    int32_t state = DEAD;
    if (place->spots > 0) {
        restore_spots(g, place->kept, place->spots);
        const bool all = !g->full && g->spot_count == place->spots;
        drop_spots(g);
        if (all)
            state = intern(g, place->spots, place->whole);
    }
    if (state != DEAD && !g->full) {
        place->state = state;
        place->era = g->era;
    } else {
        *place = (struct guide_place){.era = g->era, .state = START};
    }
}

static void feed(struct guide *g, struct guide_place *place, int32_t token)
{
    int32_t n;
    g->work = 0;
    const char *bytes = vocabulary_bytes(g->vocabulary, token, &n);
    int32_t state = n > 0 ? place->state : DEAD;
    for (int32_t i = 0; i < n && state != DEAD; i++)
        state = step(g, state, (uint8_t)bytes[i]);
    if (g->full)
        return;
    place->state = state;
    place->count++;
}

static void catch_up(struct guide *g, struct guide_place *place, const int32_t *tokens,
                     int32_t count)
{
    if (place->era != g->era)
        find_again(g, place);
    while (place->count < count && !g->full)
        feed(g, place, tokens[place->count]);
}

/* Each time that there is no more room it has to be some tokens further. */
enum guide_move guide_move(struct guide *g, struct guide_place *place, const int32_t *tokens,
                           int32_t count)
{
    g->full = false;
    if (g->state_count <= START)
        forget(g);
    for (int32_t before = -1; !g->full;) {
        catch_up(g, place, tokens, count);
        if (!g->full || place->count == before)
            break;
        before = place->count;
        forget_others(g, place);
    }
    if (g->full || place->state == DEAD)
        return GUIDE_LOST;
    keep_spots(g, place);
    const struct state *s = &g->states[place->state];
    return s->whole && s->count == 0 ? GUIDE_COMPLETE : GUIDE_OPEN;
}

const uint32_t *guide_mask(struct guide *g, struct guide_place *place, const int32_t *tokens,
                           int32_t count, bool *whole)
{
    for (int32_t attempt = 0; attempt < 2; attempt++) {
        if (guide_move(g, place, tokens, count) == GUIDE_LOST)
            return NULL;
        *whole = g->states[place->state].whole;
        int32_t mask = g->states[place->state].mask;
        if (mask == UNKNOWN)
            mask = make_mask(g, place->state);
        if (mask != UNKNOWN)
            return g->masks + (size_t)mask * (size_t)g->words;
        forget_others(g, place);
    }
    return NULL;
}

/* ---- life ---- */

static bool is_empty(const uint32_t *mask, int32_t words)
{
    int32_t i = 0;
    while (i < words && mask[i] == 0)
        i++;
    return i == words;
}

/* Can a model begin such a text? */
static enum status try_start(struct guide *g, struct err *err)
{
    struct guide_place place = {0};
    bool whole;
    const uint32_t *mask = guide_mask(g, &place, NULL, 0, &whole);
    if (!mask)
        return base_fail(err, ERR_INPUT, "it is too ambiguous");
    if (is_empty(mask, g->words))
        return base_fail(err, ERR_INPUT, "%s",
                         whole ? "nothing but an empty text fulfils it"
                               : "no token of the model can begin it");
    return OK;
}

enum status guide_open(struct grammar *grammar, const struct vocabulary *v, struct guide **out,
                       struct err *err)
{
    enum status st = OK;
    struct guide *g = calloc(1, sizeof *g);
    if (!g) {
        grammar_free(grammar);
        return base_fail(err, ERR_NOMEM, "no memory for a grammar");
    }
    atomic_init(&g->references, 1);
    g->grammar = grammar;
    g->nodes = grammar_nodes(grammar);
    g->vocabulary = v;
    g->words = sample_mask_words(vocabulary_count(v));
    g->class_count = grammar_classes(grammar, g->classes);
    TRY(try_start(g, err));
    *out = g;
    g = NULL;
out:
    guide_unref(g);
    return st;
}

struct guide *guide_ref(struct guide *g)
{
    atomic_fetch_add(&g->references, 1);
    return g;
}

bool guide_is_shared(const struct guide *g)
{
    return atomic_load(&g->references) > 1;
}

int32_t guide_vocab(const struct guide *g)
{
    return vocabulary_count(g->vocabulary);
}

void guide_unref(struct guide *g)
{
    if (!g || atomic_fetch_sub(&g->references, 1) > 1)
        return;
    grammar_free(g->grammar);
    free(g->stack_index.at);
    free(g->state_index.at);
    free(g->spot_index.at);
    free(g->stacks);
    free(g->states);
    free(g->places);
    free(g->steps);
    free(g->masks);
    free(g->spots);
    free(g);
}
