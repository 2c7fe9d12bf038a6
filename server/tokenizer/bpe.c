/* DESIGN: the symbols of a piece are a list, the pairs that could be joined a heap by rank, then
 * place. A pair that is taken from the heap may be gone meanwhile: it counts only if the two
 * symbols there still make what they made. So n symbols cost n log n however they are chosen. */
#include "server/tokenizer/bpe.h"

#include "config/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES_MAX ((size_t)256 << 20)
#define NONE (-1)

struct piece {
    uint32_t begin, len; /* len 0: no piece */
    bool hidden;
};

struct merge {
    uint64_t pair; /* left and right id */
    int32_t joined;
    int32_t rank; /* from 1; 0: the slot is free */
};

struct symbol {
    int32_t id; /* NONE: joined to the symbol before it */
    int32_t previous, next;
};

struct candidate {
    int32_t rank, at, joined;
};

struct bpe {
    struct bpe_settings settings;
    struct buf text;
    struct piece *pieces; /* [settings.ids] */
    uint32_t *slots;      /* [slot_mask + 1] id + 1 by hash of text, at most half full */
    struct merge *merges; /* [merge_mask + 1] by hash of pair, at most half full */
    size_t slot_mask, merge_mask;
    int32_t merge_count, unknown;
    int32_t bytes[256]; /* a byte as a unit, or as <0xNN>; NONE: no such piece */
};

/* ---- filling ---- */

static size_t slots_for(int32_t count)
{
    size_t slots = 64;
    while (slots < 2 * (size_t)count)
        slots *= 2;
    return slots;
}

enum status bpe_open(const struct bpe_settings *s, struct bpe **out, struct err *err)
{
    struct bpe *b = calloc(1, sizeof *b);
    if (b) {
        b->settings = *s;
        buf_init(&b->text, TEXT_BYTES_MAX);
        b->slot_mask = slots_for(s->ids) - 1;
        b->merge_mask = slots_for(s->merges) - 1;
        b->pieces = calloc((size_t)s->ids + 1, sizeof *b->pieces);
        b->slots = calloc(b->slot_mask + 1, sizeof *b->slots);
        b->merges = calloc(b->merge_mask + 1, sizeof *b->merges);
        b->unknown = NONE;
        for (int i = 0; i < 256; i++)
            b->bytes[i] = NONE;
    }
    if (!b || !b->pieces || !b->slots || !b->merges) {
        bpe_close(b);
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory for %d pieces and %d merges", s->ids,
                         s->merges);
    }
    *out = b;
    return OK;
}

void bpe_close(struct bpe *b)
{
    if (!b)
        return;
    buf_free(&b->text);
    free(b->pieces);
    free(b->slots);
    free(b->merges);
    free(b);
}

/* The slot of a text, or the free one where it would be. */
static uint32_t *slot_of(const struct bpe *b, const char *text, size_t n)
{
    size_t i = base_hash(BASE_HASH_INIT, text, n) & b->slot_mask;
    for (; b->slots[i]; i = (i + 1) & b->slot_mask) {
        const struct piece *p = &b->pieces[b->slots[i] - 1];
        if (p->len == n && memcmp(b->text.data + p->begin, text, n) == 0)
            break;
    }
    return &b->slots[i];
}

int32_t bpe_find(const struct bpe *b, const char *text, size_t n)
{
    return n > 0 ? (int32_t)*slot_of(b, text, n) - 1 : NONE;
}

/* The byte that a piece stands for where units are looked up byte by byte; -1: none. */
static int byte_of(const struct bpe *b, const char *text, size_t n)
{
    static const char digits[] = "0123456789ABCDEF";
    if (b->settings.units_are_bytes)
        return n == 1 ? (unsigned char)text[0] : -1;
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    const char *high = memchr(digits, text[3], 16), *low = memchr(digits, text[4], 16);
    return high && low ? (int)(high - digits) * 16 + (int)(low - digits) : -1;
}

bool bpe_add_piece(struct bpe *b, int32_t id, const char *text, size_t n)
{
    CHECK(id >= 0 && id < b->settings.ids && b->pieces[id].len == 0);
    CHECK(n > 0 && n <= BPE_PIECE_BYTES_MAX);
    uint32_t *slot = slot_of(b, text, n);
    CHECK(*slot == 0);
    const struct piece p = {.begin = (uint32_t)b->text.len, .len = (uint32_t)n};
    buf_add(&b->text, text, n);
    if (b->text.failed)
        return false;
    b->pieces[id] = p;
    *slot = (uint32_t)id + 1;
    int byte = byte_of(b, text, n);
    if (byte >= 0)
        b->bytes[byte] = id;
    return true;
}

void bpe_hide(struct bpe *b, int32_t id)
{
    b->pieces[id].hidden = true;
    for (int i = 0; i < 256; i++)
        if (b->bytes[i] == id)
            b->bytes[i] = NONE;
}

void bpe_set_unknown(struct bpe *b, int32_t id)
{
    b->unknown = id;
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static struct merge *merge_of(const struct bpe *b, int32_t left, int32_t right)
{
    const uint64_t pair = pair_of(left, right);
    size_t i = (size_t)((pair * 0x9e3779b97f4a7c15u) >> 32) & b->merge_mask;
    while (b->merges[i].rank && b->merges[i].pair != pair)
        i = (i + 1) & b->merge_mask;
    return &b->merges[i];
}

void bpe_add_merge(struct bpe *b, int32_t left, int32_t right, int32_t joined)
{
    CHECK(b->merge_count < b->settings.merges);
    const int32_t rank = ++b->merge_count;
    if (!b->pieces[joined].hidden)
        *merge_of(b, left, right) = (struct merge){pair_of(left, right), joined, rank};
}

const char *bpe_piece(const struct bpe *b, int32_t id, int32_t *len)
{
    if (id < 0 || id >= b->settings.ids || b->pieces[id].len == 0)
        return NULL;
    *len = (int32_t)b->pieces[id].len;
    return b->text.data + b->pieces[id].begin;
}

static int32_t visible(const struct bpe *b, int32_t id)
{
    return id != NONE && b->pieces[id].hidden ? NONE : id;
}

/* The byte of an ASCII character is only met as that, which may be a piece: so is Gemma's tab. */
bool bpe_keeps_all(const struct bpe *b)
{
    bool all = b->settings.units_are_bytes || b->settings.byte_fallback;
    for (int i = 0; i < 256 && all; i++)
        all = b->bytes[i] != NONE ||
              (i < 0x80 && visible(b, bpe_find(b, (const char[]){(char)i}, 1)) != NONE);
    return all;
}

/* ---- a piece into symbols ---- */

struct row {
    struct symbol *symbols;
    int32_t count;
};

static void add_symbol(struct row *r, int32_t id)
{
    r->symbols[r->count] = (struct symbol){id, r->count - 1, r->count + 1};
    r->count++;
}

/* The bytes of a character, if all of them are pieces. */
static bool add_bytes(const struct bpe *b, const char *text, size_t n, struct row *r)
{
    for (size_t i = 0; i < n; i++)
        if (b->bytes[(unsigned char)text[i]] == NONE)
            return false;
    for (size_t i = 0; i < n; i++)
        add_symbol(r, b->bytes[(unsigned char)text[i]]);
    return true;
}

/* An unknown token waits for what follows: a run of them can be one. */
static void make_symbols(const struct bpe *b, const char *text, size_t n, struct row *r)
{
    bool waiting = false;
    for (size_t i = 0, k; i < n; i += k) {
        int32_t id;
        if (b->settings.units_are_bytes) {
            k = 1;
            id = b->bytes[(unsigned char)text[i]];
        } else {
            k = utf8_char(text + i, n - i);
            CHECK(k > 0);
            id = visible(b, bpe_find(b, text + i, k));
        }
        if (id == NONE && b->settings.byte_fallback && add_bytes(b, text + i, k, r))
            continue;
        if (waiting && (id != NONE || !b->settings.fuse_unknown)) {
            add_symbol(r, b->unknown);
            waiting = false;
        }
        if (id != NONE)
            add_symbol(r, id);
        else
            waiting = b->unknown != NONE;
    }
    if (waiting)
        add_symbol(r, b->unknown);
    if (r->count > 0)
        r->symbols[r->count - 1].next = NONE;
}

/* ---- joining ---- */

struct heap {
    struct candidate *at;
    size_t count;
};

static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(struct heap *h, struct candidate c)
{
    size_t i = h->count++;
    while (i > 0 && before(&c, &h->at[(i - 1) / 2])) {
        h->at[i] = h->at[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->at[i] = c;
}

static struct candidate pop(struct heap *h)
{
    const struct candidate first = h->at[0], last = h->at[--h->count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->count)
            break;
        if (child + 1 < h->count && before(&h->at[child + 1], &h->at[child]))
            child++;
        if (!before(&h->at[child], &last))
            break;
        h->at[i] = h->at[child];
        i = child;
    }
    h->at[i] = last;
    return first;
}

static void push_pair(const struct bpe *b, struct heap *h, const struct symbol *symbols, int32_t at)
{
    if (at == NONE || symbols[at].next == NONE)
        return;
    const struct merge *m = merge_of(b, symbols[at].id, symbols[symbols[at].next].id);
    if (m->rank)
        push(h, (struct candidate){m->rank, at, m->joined});
}

static bool still_there(const struct bpe *b, const struct symbol *symbols,
                        const struct candidate *c)
{
    const struct symbol *s = &symbols[c->at];
    if (s->id == NONE || s->next == NONE)
        return false;
    const struct merge *m = merge_of(b, s->id, symbols[s->next].id);
    return m->rank && m->joined == c->joined;
}

static void join(const struct bpe *b, struct symbol *symbols, int32_t count, struct heap *h)
{
    for (int32_t i = 0; i + 1 < count; i++)
        push_pair(b, h, symbols, i);
    while (h->count > 0) {
        const struct candidate c = pop(h);
        struct symbol *s = &symbols[c.at];
        if (!still_there(b, symbols, &c))
            continue;
        struct symbol *gone = &symbols[s->next];
        s->id = c.joined;
        s->next = gone->next;
        gone->id = NONE;
        if (s->next != NONE)
            symbols[s->next].previous = c.at;
        push_pair(b, h, symbols, s->previous);
        push_pair(b, h, symbols, c.at);
    }
}

void bpe_work_free(struct bpe_work *w)
{
    free(w->symbols);
    free(w->heap);
    *w = (struct bpe_work){0};
}

/* A join takes one candidate and adds two at most; n symbols are joined less than n times. */
static enum status make_room(struct bpe_work *w, size_t n, struct err *err)
{
    if (n <= w->capacity)
        return OK;
    bpe_work_free(w);
    size_t capacity = n < 256 ? 256 : n;
    w->symbols = malloc(capacity * sizeof *w->symbols);
    w->heap = malloc(2 * capacity * sizeof *w->heap);
    if (!w->symbols || !w->heap)
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory for a piece of %zu bytes", n);
    w->capacity = capacity;
    return OK;
}

enum status bpe_encode(const struct bpe *b, struct bpe_work *w, const char *text, size_t n,
                       struct buf *ids, struct err *err)
{
    if (b->settings.ignore_merges) {
        int32_t whole = visible(b, bpe_find(b, text, n));
        if (whole != NONE) {
            buf_add(ids, &whole, sizeof whole);
            return OK;
        }
    }
    if (n > INT32_MAX / 2)
        return base_fail(err, ERR_INPUT, "a piece of %zu bytes is too long", n);
    enum status st = make_room(w, n, err);
    if (st != OK)
        return st;
    struct row row = {.symbols = w->symbols};
    struct heap heap = {.at = w->heap};
    make_symbols(b, text, n, &row);
    join(b, row.symbols, row.count, &heap);
    for (int32_t i = row.count > 0 ? 0 : NONE; i != NONE; i = row.symbols[i].next)
        buf_add(ids, &row.symbols[i].id, sizeof row.symbols[i].id);
    return OK;
}
