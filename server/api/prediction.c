#include "server/api/prediction.h"

#include <string.h>

static bool is_text(const struct jdoc *object, const char *key, const char *wanted)
{
    const struct jdoc *v = jdoc_get_value(object, key);
    return v && jdoc_type(v) == JDOC_STRING && (!wanted || strcmp(jdoc_string(v), wanted) == 0);
}

static void add(const struct jdoc *text, struct buf *out)
{
    buf_add(out, jdoc_string(text), jdoc_string_len(text));
}

static enum status read_parts(const struct jdoc *parts, struct buf *out, struct api_error *e)
{
    for (size_t i = 0; i < jdoc_size(parts); i++) {
        const struct jdoc *part = jdoc_at(parts, i);
        if (jdoc_type(part) != JDOC_OBJECT || !is_text(part, "type", "text") ||
            !is_text(part, "text", NULL))
            return api_error_field(e, "prediction",
                                   "prediction.content[%zu] must be {\"type\": \"text\", \"text\": "
                                   "...}",
                                   i);
        add(jdoc_get(part, "text"), out);
    }
    return OK;
}

enum status prediction_read(const struct jdoc *v, struct buf *out, struct api_error *e)
{
    if (!v || jdoc_type(v) == JDOC_NULL)
        return OK;
    if (jdoc_type(v) != JDOC_OBJECT || !is_text(v, "type", "content"))
        return api_error_field(e, "prediction",
                               "prediction must be {\"type\": \"content\", \"content\": ...}");
    const struct jdoc *content = jdoc_get_value(v, "content");
    if (content && jdoc_type(content) == JDOC_ARRAY) {
        const enum status st = read_parts(content, out, e);
        if (st != OK)
            return st;
    } else if (is_text(v, "content", NULL)) {
        add(content, out);
    } else {
        return api_error_field(e, "prediction",
                               "prediction.content must be text, or a list of parts that are");
    }
    return out->failed ? ERR_NOMEM : OK;
}
