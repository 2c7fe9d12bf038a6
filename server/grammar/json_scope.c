#include "server/grammar/json_scope.h"

enum status json_scope_fail(const struct json_scope *s, enum status st, const struct err *why,
                            struct err *err)
{
    return st == ERR_INPUT ? JSON_SCOPE_FAIL(s, err, "%s", why->text)
                           : base_fail(err, st, "%s", why->text);
}

enum status json_scope_count(const struct json_scope *s, const struct jdoc *v, const char *keyword,
                             int64_t *out, struct err *err)
{
    const struct jdoc *n = jdoc_get(v, keyword);
    if (n && (!jdoc_whole(n, out) || *out < 0))
        return JSON_SCOPE_FAIL(s, err, "%s must be an integer of at least 0", keyword);
    return OK;
}
