/* DESIGN: one Knuth-Morris-Pratt automaton per string, stepped byte by byte, so the result cannot
 * depend on where the text was cut and the cost per byte is constant. What is held back is as long
 * as the furthest automaton has come. */
#include "server/tokenizer/stop.h"

#include <stdlib.h>
#include <string.h>

struct pattern {
    char text[STOP_BYTES_MAX];
    int16_t len;
    int16_t back[STOP_BYTES_MAX + 1]; /* longest proper border of each prefix */
};

struct stop_set {
    int32_t count;
    struct pattern pattern[];
};

static int16_t step(const struct pattern *p, int16_t state, char c)
{
    while (state > 0 && (state == p->len || p->text[state] != c))
        state = p->back[state];
    return (int16_t)(p->text[state] == c ? state + 1 : 0);
}

static void make_pattern(struct pattern *p, const char *text, size_t len)
{
    memcpy(p->text, text, len);
    p->len = (int16_t)len;
    int16_t state = 0;
    for (int16_t i = 1; i < p->len; i++) {
        state = step(p, state, text[i]);
        p->back[i + 1] = state;
    }
}

enum status stop_set_open(const char *const *strings, const size_t *lens, int32_t count,
                          struct stop_set **out, struct err *err)
{
    CHECK(count <= STOP_STRINGS_MAX);
    if (count == 0) {
        *out = NULL;
        return OK;
    }
    struct stop_set *s = calloc(1, sizeof *s + (size_t)count * sizeof s->pattern[0]);
    if (!s)
        return base_fail(err, ERR_NOMEM, "no memory for stop strings");
    s->count = count;
    for (int32_t i = 0; i < count; i++) {
        CHECK(lens[i] >= 1);
        CHECK(lens[i] <= STOP_BYTES_MAX);
        make_pattern(&s->pattern[i], strings[i], lens[i]);
    }
    *out = s;
    return OK;
}

void stop_set_close(struct stop_set *s)
{
    free(s);
}

const char *stop_set_string(const struct stop_set *s, int32_t i, size_t *len)
{
    *len = (size_t)s->pattern[i].len;
    return s->pattern[i].text;
}

void stop_init(struct stop *s, const struct stop_set *set)
{
    *s = (struct stop){.set = set};
}

/* Moves the oldest of what is held to out, so that keep bytes stay. */
static void release(struct stop *s, int32_t keep, struct buf *out)
{
    int32_t n = s->held_len - keep;
    if (n <= 0)
        return;
    buf_add(out, s->held, (size_t)n);
    memmove(s->held, s->held + n, (size_t)keep);
    s->held_len = keep;
}

/* One byte: -1, or the longest string that it completes. *reach: bytes that must be held. */
static int32_t step_all(struct stop *s, char c, int32_t *reach)
{
    int32_t matched = -1, longest = 0;
    *reach = 0;
    for (int32_t i = 0; i < s->set->count; i++) {
        const struct pattern *p = &s->set->pattern[i];
        s->state[i] = step(p, s->state[i], c);
        if (s->state[i] > *reach)
            *reach = s->state[i];
        if (s->state[i] == p->len && p->len > longest) {
            matched = i;
            longest = p->len;
        }
    }
    return matched;
}

int32_t stop_push(struct stop *s, const char *text, size_t n, struct buf *out)
{
    if (!s->set) {
        buf_add(out, text, n);
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        int32_t reach;
        int32_t matched = step_all(s, text[i], &reach);
        if (matched >= 0) { /* the byte itself is not held yet */
            release(s, s->set->pattern[matched].len - 1, out);
            s->held_len = 0;
            return matched;
        }
        /* one more than held before at most, so make room first */
        if (reach == 0) {
            release(s, 0, out);
            buf_add(out, &text[i], 1);
            continue;
        }
        release(s, reach - 1, out);
        s->held[s->held_len++] = text[i];
    }
    return -1;
}

void stop_finish(struct stop *s, struct buf *out)
{
    release(s, 0, out);
}
