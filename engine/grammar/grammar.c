/* DESIGN: heights make dead ends impossible: a rule is entered only where there is depth left to
 * come out of it again, so every byte that is allowed can be the beginning of a whole text. */
#include "engine/grammar/grammar.h"

#include "config/buf.h"

#include <stdlib.h>
#include <string.h>

enum { HEIGHT_NEVER = INT16_MAX };

struct grammar {
    struct buf nodes; /* struct grammar_node */
    struct buf rules; /* int32_t: the first node of each, GRAMMAR_NEVER until it is defined */
    int32_t start;
};

static int32_t node_count(const struct grammar *g)
{
    return (int32_t)(g->nodes.len / sizeof(struct grammar_node));
}

static struct grammar_node *nodes_of(const struct grammar *g)
{
    return (struct grammar_node *)(void *)g->nodes.data;
}

static int32_t *rules_of(const struct grammar *g)
{
    return (int32_t *)(void *)g->rules.data;
}

bool grammar_failed(const struct grammar *g)
{
    return g->nodes.failed || g->rules.failed;
}

enum status grammar_check(const struct grammar *g, struct err *err)
{
    if (!grammar_failed(g))
        return OK;
    return g->nodes.no_memory || g->rules.no_memory
               ? base_fail(err, ERR_NOMEM, "no memory for a grammar")
               : base_fail(err, ERR_INPUT, "it needs more than %d states", GRAMMAR_NODES_MAX);
}

void grammar_break(struct grammar *g, const struct buf *text)
{
    g->nodes.failed = true;
    g->nodes.no_memory = g->nodes.no_memory || text->no_memory;
}

static int32_t add(struct grammar *g, const struct grammar_node *node)
{
    if (grammar_failed(g))
        return GRAMMAR_NEVER;
    buf_add(&g->nodes, node, sizeof *node);
    return grammar_failed(g) ? GRAMMAR_NEVER : node_count(g) - 1;
}

struct grammar *grammar_new(void)
{
    struct grammar *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    buf_init(&g->nodes, GRAMMAR_NODES_MAX * sizeof(struct grammar_node));
    buf_init(&g->rules, GRAMMAR_NODES_MAX * sizeof(int32_t));
    add(g, &(struct grammar_node){.kind = GRAMMAR_RETURN});
    add(g, &(struct grammar_node){.kind = GRAMMAR_NOWHERE});
    return g;
}

void grammar_free(struct grammar *g)
{
    if (!g)
        return;
    buf_free(&g->nodes);
    buf_free(&g->rules);
    free(g);
}

int32_t grammar_range(struct grammar *g, uint8_t lo, uint8_t hi, int32_t next)
{
    if (lo > hi || next == GRAMMAR_NEVER)
        return GRAMMAR_NEVER;
    return add(g, &(struct grammar_node){.kind = GRAMMAR_RANGE, .lo = lo, .hi = hi, .next = next});
}

int32_t grammar_text(struct grammar *g, const char *text, size_t n, int32_t next)
{
    for (size_t i = n; i-- > 0;)
        next = grammar_range(g, (uint8_t)text[i], (uint8_t)text[i], next);
    return next;
}

int32_t grammar_fork(struct grammar *g)
{
    return add(g, &(struct grammar_node){
                      .kind = GRAMMAR_FORK, .next = GRAMMAR_NEVER, .other = GRAMMAR_NEVER});
}

void grammar_fork_set(struct grammar *g, int32_t fork, int32_t a, int32_t b)
{
    if (grammar_failed(g))
        return;
    nodes_of(g)[fork].next = a;
    nodes_of(g)[fork].other = b;
}

int32_t grammar_either(struct grammar *g, int32_t a, int32_t b)
{
    if (a == GRAMMAR_NEVER || a == b)
        return b;
    if (b == GRAMMAR_NEVER)
        return a;
    return add(g, &(struct grammar_node){.kind = GRAMMAR_FORK, .next = a, .other = b});
}

/* ---- characters ---- */

static uint8_t tail_of(uint32_t c, int32_t tails)
{
    return (uint8_t)(0x80 | (c >> (6 * tails) & 0x3f));
}

/* lo..hi, whose encodings have the same first byte but for `tails` bytes of the form 10xxxxxx. */
static int32_t tails(struct grammar *g, uint32_t lo, uint32_t hi, int32_t count, int32_t next)
{
    if (count == 0)
        return next;
    const uint32_t low = (1u << (6 * (count - 1))) - 1; /* what the bytes after this one hold */
    const uint8_t first = tail_of(lo, count - 1), last = tail_of(hi, count - 1);
    if (first == last)
        return grammar_range(g, first, last, tails(g, lo, hi, count - 1, next));
    int32_t all = GRAMMAR_NEVER;
    uint8_t begin = first, end = last;
    if ((lo & low) != 0) {
        all = grammar_range(g, first, first, tails(g, lo, lo | low, count - 1, next));
        begin++;
    }
    if ((hi & low) != low) {
        const int32_t way = tails(g, hi & ~low, hi, count - 1, next);
        all = grammar_either(g, all, grammar_range(g, last, last, way));
        end--;
    }
    if (begin <= end)
        all =
            grammar_either(g, all, grammar_range(g, begin, end, tails(g, 0, low, count - 1, next)));
    return all;
}

/* Characters of one length: 1 + `count` bytes, the first with the bits of `mark`. */
static int32_t chars_of_length(struct grammar *g, uint32_t lo, uint32_t hi, int32_t count,
                               uint8_t mark, int32_t next)
{
    const uint32_t low = (1u << (6 * count)) - 1;
    int32_t all = GRAMMAR_NEVER;
    while (lo <= hi) {
        const bool whole = (lo & low) == 0;
        /* the longest run of first bytes whose tails are free, or the part of one first byte */
        uint32_t end = lo | low;
        while (whole && end + low + 1 <= hi)
            end += low + 1;
        if (end > hi)
            end = hi;
        const uint8_t first = (uint8_t)(mark | lo >> (6 * count));
        const uint8_t last = (uint8_t)(mark | end >> (6 * count));
        const int32_t way = first == last ? tails(g, lo & low, end & low, count, next)
                                          : tails(g, 0, low, count, next);
        all = grammar_either(g, all, grammar_range(g, first, last, way));
        lo = end + 1;
    }
    return all;
}

int32_t grammar_chars(struct grammar *g, uint32_t lo, uint32_t hi, int32_t next)
{
    static const struct {
        uint32_t lo, hi;
        int32_t tails;
        uint8_t mark;
    } lengths[] = {{0, 0x7f, 0, 0},
                   {0x80, 0x7ff, 1, 0xc0},
                   {0x800, 0xd7ff, 2, 0xe0},
                   {0xe000, 0xffff, 2, 0xe0},
                   {0x10000, 0x10ffff, 3, 0xf0}};
    int32_t all = GRAMMAR_NEVER;
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        const uint32_t begin = lo > lengths[i].lo ? lo : lengths[i].lo;
        const uint32_t end = hi < lengths[i].hi ? hi : lengths[i].hi;
        if (begin <= end)
            all = grammar_either(
                g, all, chars_of_length(g, begin, end, lengths[i].tails, lengths[i].mark, next));
    }
    return all;
}

/* ---- rules ---- */

int32_t grammar_rule(struct grammar *g)
{
    const int32_t none = GRAMMAR_NEVER;
    buf_add(&g->rules, &none, sizeof none);
    return (int32_t)(g->rules.len / sizeof none) - 1;
}

void grammar_define(struct grammar *g, int32_t rule, int32_t first)
{
    if (!grammar_failed(g))
        rules_of(g)[rule] = first;
}

int32_t grammar_call(struct grammar *g, int32_t rule, int32_t next)
{
    if (next == GRAMMAR_NEVER)
        return GRAMMAR_NEVER;
    return add(g, &(struct grammar_node){.kind = GRAMMAR_CALL, .next = next, .other = rule});
}

int32_t grammar_repeat(struct grammar *g, int32_t rule, int64_t min, int64_t max, int32_t next)
{
    if (max < 0) {
        const int32_t loop = grammar_fork(g);
        grammar_fork_set(g, loop, grammar_call(g, rule, loop), next);
        next = loop;
    }
    const int32_t end = next;
    for (int64_t i = min; i < max && !grammar_failed(g); i++)
        next = grammar_either(g, grammar_call(g, rule, next), end);
    for (int64_t i = 0; i < min && !grammar_failed(g); i++)
        next = grammar_call(g, rule, next);
    return max >= 0 && max < min ? GRAMMAR_NEVER : next;
}

/* ---- heights ---- */

static int16_t height_of(const struct grammar *g, const struct grammar_node *node)
{
    const struct grammar_node *nodes = nodes_of(g);
    const int16_t next = nodes[node->next].height;
    int16_t inner;
    switch ((enum grammar_kind)node->kind) {
    case GRAMMAR_RETURN:
        return 0;
    case GRAMMAR_NOWHERE:
        return HEIGHT_NEVER;
    case GRAMMAR_RANGE:
        return next;
    case GRAMMAR_FORK:
        inner = nodes[node->other].height;
        return inner < next ? inner : next;
    case GRAMMAR_CALL:
        inner = nodes[rules_of(g)[node->other]].height;
        if (inner >= GRAMMAR_DEPTH_MAX || next == HEIGHT_NEVER)
            return HEIGHT_NEVER;
        return (int16_t)(inner + 1 > next ? inner + 1 : next);
    }
    return HEIGHT_NEVER;
}

/* From above until nothing changes; each round settles at least one more depth of rules, and nodes
 * mostly follow those that they lead to. */
static void settle_heights(struct grammar *g)
{
    const int32_t count = node_count(g);
    struct grammar_node *nodes = nodes_of(g);
    for (int32_t i = 0; i < count; i++)
        nodes[i].height = HEIGHT_NEVER;
    for (bool changed = true; changed;) {
        changed = false;
        for (int32_t i = 0; i < count; i++) {
            const int16_t height = height_of(g, &nodes[i]);
            changed = changed || height != nodes[i].height;
            nodes[i].height = height;
        }
    }
}

enum status grammar_close_rules(struct grammar *g, int32_t first, struct err *err)
{
    const enum status st = grammar_check(g, err);
    if (st != OK)
        return st;
    g->start = rules_of(g)[first];
    settle_heights(g);
    if (nodes_of(g)[g->start].height > GRAMMAR_DEPTH_MAX)
        return base_fail(err, ERR_INPUT, "nothing can fulfil it");
    return OK;
}

const struct grammar_node *grammar_nodes(const struct grammar *g)
{
    return nodes_of(g);
}

int32_t grammar_first(const struct grammar *g, int32_t rule)
{
    return rules_of(g)[rule];
}

int32_t grammar_start(const struct grammar *g)
{
    return g->start;
}

int32_t grammar_classes(const struct grammar *g, uint8_t classes[256])
{
    bool begins[257] = {true};
    const struct grammar_node *nodes = nodes_of(g);
    for (int32_t i = 0; i < node_count(g); i++)
        if (nodes[i].kind == GRAMMAR_RANGE)
            begins[nodes[i].lo] = begins[nodes[i].hi + 1] = true;
    int32_t count = 0;
    for (int32_t byte = 0; byte < 256; byte++) {
        count += begins[byte];
        classes[byte] = (uint8_t)(count - 1);
    }
    return count;
}
