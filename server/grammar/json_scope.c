#include "server/grammar/json_scope.h"

enum { PATH_BYTES_MAX = 200, STEPS_MAX = 16 };
enum { MATCH_STEPS_MAX = 1 << 22, NAMES_OF_A_STEP = 4 }; /* some 100 ms */

void json_scope_open(struct json_scope *s, const struct json_text *t, const struct jdoc *root)
{
    *s = (struct json_scope){
        .t = *t, .root = root, .search = json_search(root), .match_steps = MATCH_STEPS_MAX};
    buf_init(&s->path, (size_t)2 * PATH_BYTES_MAX);
}

enum status json_scope_fail(const struct json_scope *s, enum status st, const struct err *why,
                            struct err *err)
{
    return st == ERR_INPUT ? JSON_SCOPE_FAIL(s, err, "%s", why->text)
                           : base_fail(err, st, "%s", why->text);
}

size_t json_scope_enter(struct json_scope *s, const char *keyword, const char *key)
{
    const size_t here = s->path.len;
    if (here < PATH_BYTES_MAX)
        buf_printf(&s->path, "/%s%s%.64s", keyword, key ? "/" : "", key ? key : "");
    return here;
}

enum status json_scope_compare(struct json_scope *s, int64_t names, struct err *err)
{
    const int64_t left = s->match_steps - names / NAMES_OF_A_STEP - 1;
    s->match_steps = left > 0 ? (int32_t)left : 0;
    return left > 0 ? OK
                    : JSON_SCOPE_FAIL(s, err, "%s", "it has too many names to compare them all");
}

enum status json_scope_count(const struct json_scope *s, const struct jdoc *v, const char *keyword,
                             int64_t *out, struct err *err)
{
    const struct jdoc *n = jdoc_get(v, keyword);
    if (n && (!jdoc_whole(n, out) || *out < 0))
        return JSON_SCOPE_FAIL(s, err, "%s must be an integer of at least 0", keyword);
    return OK;
}

const struct jdoc *json_scope_follow(const struct json_scope *s, const struct jdoc *v)
{
    for (int32_t i = 0; i < STEPS_MAX && v && jdoc_type(v) == JDOC_OBJECT; i++) {
        const struct jdoc *ref = jdoc_get(v, "$ref"), *all = jdoc_get(v, "allOf");
        if (!ref && !(all && jdoc_type(all) == JDOC_ARRAY && jdoc_size(all) == 1))
            return v;
        struct json_keywords k;
        struct err ignored;
        if (json_keywords_read(v, &k, &ignored) != OK) /* which will be said of it */
            return v;
        v = ref ? json_ref(s->root, ref) : jdoc_at(all, 0);
    }
    return v && jdoc_type(v) != JDOC_OBJECT ? v : NULL;
}
