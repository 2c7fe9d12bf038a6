#include "server/grammar/json_patterns.h"

#include "config/utf8.h"
#include "server/grammar/pattern.h"
#include "server/grammar/pattern_match.h"

#include <stdlib.h>
#include <string.h>

/* ---- are they apart? ---- */

/* What all names begin with that match; its length. */
static size_t fixed_beginning(const char *text, char out[PATTERN_BYTES_MAX])
{
    size_t n = 0, last = 0; /* before the last character */
    if (text[0] != '^' || strchr(text, '|'))
        return 0;
    for (text++; *text && n + 4 < PATTERN_BYTES_MAX; text += utf8_char(text, strlen(text))) {
        if (*text == '\\' && text[1] && strchr("-._/\\$^+*?()[]{}", text[1]))
            text++;
        else if (strchr("\\.+*?()[]{}$^", *text))
            break;
        last = n;
        const size_t k = utf8_char(text, strlen(text));
        memcpy(out + n, text, k);
        n += k;
    }
    return *text && strchr("*?{", *text) ? last : n; /* which may be missing */
}

static bool begin_apart(const char *a, const char *b)
{
    char x[PATTERN_BYTES_MAX], y[PATTERN_BYTES_MAX];
    const size_t n = fixed_beginning(a, x), m = fixed_beginning(b, y);
    return memcmp(x, y, n < m ? n : m) != 0;
}

static enum status compare(const struct jdoc *a, const struct jdoc *b, bool *same, struct err *err)
{
    enum status st = OK;
    struct buf x, y;
    buf_init(&x, (size_t)1 << 20);
    buf_init(&y, (size_t)1 << 20);
    jdoc_write(a, &x);
    jdoc_write(b, &y);
    if (x.no_memory || y.no_memory)
        st = base_fail(err, ERR_NOMEM, "no memory for a schema");
    else
        *same = !x.failed && !y.failed && x.len == y.len && memcmp(x.data, y.data, x.len) == 0;
    buf_free(&x);
    buf_free(&y);
    return st;
}

static enum status check_apart(const struct json_scope *s, const struct json_patterns *p,
                               struct err *err)
{
    enum status st = OK;
    for (int32_t i = 0; i < p->count; i++)
        for (int32_t k = 0; k < i; k++) {
            bool fine = begin_apart(p->list[k].text, p->list[i].text);
            if (!fine)
                TRY(compare(p->list[k].schema, p->list[i].schema, &fine, err));
            if (!fine)
                return JSON_SCOPE_FAIL(s, err,
                                       "patternProperties: a name might match both \"%.64s\" and "
                                       "\"%.64s\"; what tells them apart must be the characters "
                                       "behind their ^, or they must say the same",
                                       p->list[k].text, p->list[i].text);
        }
out:
    return st;
}

/* ---- what they match ---- */

/* The names that are given, as the pattern number `which` takes them. */
static enum status try_names(struct json_scope *s, const struct jdoc *object,
                             struct pattern_match *match, int32_t which, struct json_patterns *out,
                             struct err *err)
{
    enum status st = OK;
    const char *name;
    bool fits;
    const struct jdoc *value, *properties = jdoc_get(object, "properties");
    const struct jdoc *required = jdoc_get(object, "required");
    for (void *i = properties ? jdoc_iter(properties, NULL, &name, &value) : NULL; i;
         i = jdoc_iter(properties, i, &name, &value)) {
        TRY(pattern_match_fits(match, name, &s->match_steps, &fits, err));
        if (fits)
            return base_fail(err, ERR_INPUT,
                             "it matches \"%.64s\", which is one of the properties, too; that is "
                             "not supported",
                             name);
    }
    for (size_t i = 0; required && i < jdoc_size(required); i++) {
        TRY(pattern_match_fits(match, jdoc_string(jdoc_at(required, i)), &s->match_steps, &fits,
                               err));
        if (fits)
            out->of_required[i] = (int8_t)which;
    }
out:
    return st;
}

/* Each by itself, since what matches is large. */
static enum status add_pattern(struct json_scope *s, const struct jdoc *object, const char *text,
                               const struct jdoc *schema, struct json_patterns *out,
                               struct err *err)
{
    struct err why;
    struct pattern_match *match = NULL;
    const size_t here = json_scope_enter(s, "patternProperties", text);
    out->list[out->count].text = text;
    out->list[out->count].schema = schema;
    enum status st = pattern_match_open(text, strlen(text), false, &match, &why);
    if (st == OK)
        st = try_names(s, object, match, out->count, out, &why);
    pattern_match_close(match);
    out->count++;
    st = st == OK ? OK : json_scope_fail(s, st, &why, err);
    s->path.len = here;
    return st;
}

enum status json_patterns_open(struct json_scope *s, const struct jdoc *object,
                               struct json_patterns *out, struct err *err)
{
    enum status st = OK;
    const char *text;
    const struct jdoc *schema, *all = jdoc_get(object, "patternProperties");
    const struct jdoc *required = jdoc_get(object, "required");
    const size_t n = required ? jdoc_size(required) : 0;
    *out = (struct json_patterns){.of_required = malloc(n + 1)};
    if (!out->of_required)
        return base_fail(err, ERR_NOMEM, "no memory for a schema");
    memset(out->of_required, -1, n + 1);
    if (!all)
        return OK;
    if (jdoc_type(all) != JDOC_OBJECT)
        return JSON_SCOPE_FAIL(s, err, "patternProperties must be an object, got %s",
                               jdoc_type_name(jdoc_type(all)));
    if (jdoc_size(all) > JSON_PATTERNS_MAX)
        return JSON_SCOPE_FAIL(s, err, "patternProperties has %zu patterns, at most are %d",
                               jdoc_size(all), JSON_PATTERNS_MAX);
    for (void *i = jdoc_iter(all, NULL, &text, &schema); i; i = jdoc_iter(all, i, &text, &schema))
        TRY(add_pattern(s, object, text, schema, out, err));
    st = check_apart(s, out, err);
out:
    return st;
}

void json_patterns_close(struct json_patterns *p)
{
    free(p->of_required);
}

enum status json_patterns_build(struct json_scope *s, const struct json_patterns *p, int32_t *rule,
                                struct err *err)
{
    enum status st = OK;
    struct err why;
    struct grammar *g = s->t.g;
    int32_t all = GRAMMAR_NEVER, name;
    for (int32_t i = 0; i < p->count; i++) {
        const char *text = p->list[i].text;
        const int32_t value = grammar_call(g, p->list[i].value, GRAMMAR_END);
        const int32_t end = grammar_text(g, "\"", 1, json_text_word(&s->t, ":", value));
        const size_t here = json_scope_enter(s, "patternProperties", text);
        st = pattern_build(g, text, strlen(text), PATTERN_JSON, false, end, &name, &why);
        if (st != OK)
            st = json_scope_fail(s, st, &why, err);
        s->path.len = here;
        if (st != OK)
            return st;
        all = grammar_either(g, all, grammar_text(g, "\"", 1, name));
    }
    *rule = grammar_rule(g);
    grammar_define(g, *rule, all);
    return OK;
}
