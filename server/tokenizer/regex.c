/* DESIGN: Oniguruma backtracks; so a search has a bound on steps back and on the places it keeps to
 * step back to. Patterns of real tokenizers need a place per character of a run, and few steps. */
#include "server/tokenizer/regex.h"

#include <oniguruma.h>
#include <pthread.h>
#include <stdlib.h>

#define RETRIES_MAX 10000000
#define PLACES_MAX (1u << 20) /* of some 40 bytes each */
#define GROUPS_MAX 31

struct regex {
    regex_t *compiled;
};

struct regex_work {
    OnigRegion region; /* of begin and end, so that Oniguruma allocates none: it would lose some */
    int begin[GROUPS_MAX + 1], end[GROUPS_MAX + 1];
    OnigMatchParam *limits;
};

static void initialize(void)
{
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
}

static const OnigUChar *bytes(const char *text)
{
    return (const OnigUChar *)text;
}

enum status regex_open(const char *pattern, size_t n, bool literal, const char *where,
                       struct regex **out, struct err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    OnigErrorInfo info;
    if (n > REGEX_PATTERN_BYTES_MAX)
        return base_fail(err, ERR_MODEL, "%s: a pattern of %zu bytes, at most %d are supported",
                         where, n, REGEX_PATTERN_BYTES_MAX);
    struct regex *r = calloc(1, sizeof *r);
    if (!r)
        return base_fail(err, ERR_NOMEM, "%s: no memory for a pattern", where);
    pthread_once(&once, initialize);
    int code =
        onig_new(&r->compiled, bytes(pattern), bytes(pattern) + n, ONIG_OPTION_NONE,
                 ONIG_ENCODING_UTF8, literal ? ONIG_SYNTAX_ASIS : ONIG_SYNTAX_DEFAULT, &info);
    if (code == ONIG_NORMAL && onig_number_of_captures(r->compiled) <= GROUPS_MAX) {
        *out = r;
        return OK;
    }
    if (code == ONIG_NORMAL) {
        regex_close(r);
        return base_fail(err, ERR_MODEL, "%s: a pattern of more than %d groups", where, GROUPS_MAX);
    }
    OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN] = "";
    onig_error_code_to_str(text, code, &info);
    free(r);
    return base_fail(err, code == ONIGERR_MEMORY ? ERR_NOMEM : ERR_MODEL, "%s: pattern: %s", where,
                     (const char *)text);
}

void regex_close(struct regex *r)
{
    if (r)
        onig_free(r->compiled);
    free(r);
}

enum status regex_work_open(struct regex_work **out, struct err *err)
{
    struct regex_work *w = calloc(1, sizeof *w);
    if (w)
        w->limits = onig_new_match_param();
    if (!w || !w->limits) {
        regex_work_close(w);
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory to search a text");
    }
    w->region = (OnigRegion){.allocated = GROUPS_MAX + 1, .beg = w->begin, .end = w->end};
    onig_initialize_match_param(w->limits);
    onig_set_match_stack_limit_size_of_match_param(w->limits, PLACES_MAX);
    onig_set_retry_limit_in_match_of_match_param(w->limits, RETRIES_MAX);
    onig_set_retry_limit_in_search_of_match_param(w->limits, RETRIES_MAX);
    *out = w;
    return OK;
}

void regex_work_close(struct regex_work *w)
{
    if (!w)
        return;
    if (w->limits)
        onig_free_match_param(w->limits);
    free(w);
}

enum status regex_find(const struct regex *r, struct regex_work *w, const char *text, size_t n,
                       size_t from, struct regex_match *out, bool *found, struct err *err)
{
    const OnigUChar *begin = bytes(text), *end = begin + n;
    int at = onig_search_with_param(r->compiled, begin, end, begin + from, end, &w->region,
                                    ONIG_OPTION_NONE, w->limits);
    if (at == ONIGERR_MEMORY)
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory to search %zu bytes", n);
    if (at < 0 && at != ONIG_MISMATCH)
        return base_fail(err, ERR_INPUT,
                         "a word or a run of spaces among %zu bytes is too long for the pattern of "
                         "this tokenizer",
                         n - from);
    *found = at >= 0;
    if (*found)
        *out = (struct regex_match){(size_t)w->begin[0], (size_t)w->end[0]};
    return OK;
}
