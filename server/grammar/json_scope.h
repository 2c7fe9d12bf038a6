/* What the builders of a schema's parts share: the words of JSON, the document, and the place in
 * it, which every refusal names. */
#ifndef TESSERA_SERVER_GRAMMAR_JSON_SCOPE_H
#define TESSERA_SERVER_GRAMMAR_JSON_SCOPE_H

#include "config/buf.h"
#include "server/grammar/json_keyword.h"
#include "server/grammar/json_text.h"

struct json_scope {
    struct json_text t;
    const struct jdoc *root;
    struct json_search search;
    int32_t match_steps; /* that are left for names, and patterns, of the whole document */
    struct buf path;     /* where in the document we are */
};

#define JSON_SCOPE_FAIL(s, err, fmt, ...)                                                          \
    base_fail(err, ERR_INPUT, "schema at #%.*s: " fmt, (int)(s)->path.len,                         \
              (s)->path.data ? (s)->path.data : "", __VA_ARGS__)

/* t and root are borrowed; to be closed by freeing the path. */
void json_scope_open(struct json_scope *s, const struct json_text *t, const struct jdoc *root);
/* A step further in the document; `key` may be a number's text. Returns the length of the path
 * before, to which who leaves sets it. */
size_t json_scope_enter(struct json_scope *s, const char *keyword, const char *key);
/* What went wrong in a part of it, said where it is. */
enum status json_scope_fail(const struct json_scope *s, enum status st, const struct err *why,
                            struct err *err);
/* Takes steps for so many comparisons of whole names. ERR_INPUT: none are left. */
enum status json_scope_compare(struct json_scope *s, int64_t names, struct err *err) MUST_USE;
/* A count of characters, elements or members; *out is left where the keyword is absent. */
enum status json_scope_count(const struct json_scope *s, const struct jdoc *v, const char *keyword,
                             int64_t *out, struct err *err) MUST_USE;

/* Where the schema's references lead, and allOf of one; NULL: nowhere. */
const struct jdoc *json_scope_follow(const struct json_scope *s, const struct jdoc *v);

#endif
