/* DESIGN: a merge sort, because the C library's has no way to stop at a comparison that fails. */
#include "server/template/jinja_sort.h"

#include <string.h>

struct sorter {
    struct run *r;
    struct pair *spare;
    bool reverse;
};

/* Does b belong before a, which stands before it? */
static enum status out_of_order(const struct sorter *s, const struct pair *a, const struct pair *b,
                                bool *out)
{
    int order = 0;
    enum status st = jinja_order(s->r, &b->key, &a->key, &order);
    *out = s->reverse ? order == 1 : order == -1;
    return st;
}

static enum status merge(const struct sorter *s, struct pair *p, size_t middle, size_t n)
{
    size_t left = 0, right = middle, used = 0;
    enum status st = OK;
    while (left < middle && right < n) {
        bool take_right = false;
        TRY(jinja_spend(s->r, 0));
        TRY(out_of_order(s, &p[left], &p[right], &take_right));
        s->spare[used++] = take_right ? p[right++] : p[left++];
    }
    memcpy(s->spare + used, p + left, (middle - left) * sizeof *p);
    memcpy(p, s->spare, (used + middle - left) * sizeof *p);
out:
    return st;
}

enum status jinja_sort_pairs(struct run *r, struct pair *pairs, size_t n, bool reverse)
{
    struct sorter s = {.r = r, .reverse = reverse};
    enum status st = OK;
    TAKE(r, s.spare, n);
    for (size_t run = 1; run < n; run *= 2)
        for (size_t at = 0; at + run < n; at += 2 * run)
            TRY(merge(&s, pairs + at, run, n - at < 2 * run ? n - at : 2 * run));
out:
    return st;
}
