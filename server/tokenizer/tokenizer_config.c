/* DESIGN: clients that render chat templates or look for the end token want strings, but the file
 * has strings, objects or lists in those places; so the file is told on with these few replaced. */
#include "server/tokenizer/tokenizer_config.h"

#include "config/buf.h"
#include "config/jdoc.h"
#include "config/utf8.h"

#include <stdlib.h>
#include <string.h>

#define INFO_BYTES_MAX ((size_t)64 << 20)

static bool is_string(const struct jdoc *v)
{
    return v && jdoc_type(v) == JDOC_STRING;
}

/* "</s>" or {"content": "</s>", ...}; NULL when it is neither. */
static const struct jdoc *token_text(const struct jdoc *v)
{
    if (v && jdoc_type(v) == JDOC_OBJECT)
        v = jdoc_get(v, "content");
    return is_string(v) ? v : NULL;
}

/* Of a list of {"name", "template"} the one with that name, else the first if that will do. */
static const struct jdoc *named_template(const struct jdoc *list, const char *wanted, bool any)
{
    const struct jdoc *found = NULL;
    for (size_t i = 0; i < jdoc_size(list); i++) {
        const struct jdoc *entry = jdoc_at(list, i);
        if (jdoc_type(entry) != JDOC_OBJECT || !is_string(jdoc_get(entry, "template")))
            continue;
        const struct jdoc *name = jdoc_get(entry, "name");
        if ((any && !found) || (is_string(name) && strcmp(jdoc_string(name), wanted) == 0))
            found = jdoc_get(entry, "template");
    }
    return found;
}

/* A text, or a list. */
static const struct jdoc *template_text(const struct jdoc *v)
{
    if (v && jdoc_type(v) == JDOC_ARRAY)
        return named_template(v, "default", true);
    return is_string(v) ? v : NULL;
}

/* What transformers takes where there are tools: only lists have it. */
static const struct jdoc *tools_template(const struct jdoc *v)
{
    return v && jdoc_type(v) == JDOC_ARRAY ? named_template(v, "tool_use", false) : NULL;
}

static void write_string(const char *text, size_t n, struct buf *out)
{
    if (text)
        buf_json(out, text, n);
    else
        buf_puts(out, "null");
}

/* From the file when it says so, else what another file says. */
static void write_member(const char *key, const struct jdoc *in_file, const char *else_text,
                         struct buf *out)
{
    buf_printf(out, ",\"%s\":", key);
    if (in_file)
        write_string(jdoc_string(in_file), jdoc_string_len(in_file), out);
    else
        write_string(else_text, else_text ? strlen(else_text) : 0, out);
}

static bool is_special(const char *key)
{
    static const char *const keys[] = {"tokenizer_class", "bos_token", "eos_token",
                                       "unk_token",       "pad_token", "chat_template"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

static const struct jdoc *member(const struct jdoc *doc, const char *key)
{
    return doc ? jdoc_get_value(doc, key) : NULL;
}

/* beside: of a file that has only them. */
static void write_templates(const struct jdoc *doc, const struct jdoc *beside,
                            const struct tokenizer_config_more *more, struct buf *out)
{
    const struct jdoc *own = member(doc, "chat_template");
    const struct jdoc *v = own ? own : member(beside, "chat_template");
    if (more->chat_template) /* a file of its own counts, as with transformers */
        v = NULL;
    write_member("chat_template", template_text(v), more->chat_template, out);
    if (tools_template(v))
        write_member("tool_use_template", tools_template(v), NULL, out);
}

static void write_info(const struct jdoc *doc, const struct jdoc *beside,
                       const struct tokenizer_config_more *more, struct buf *out)
{
    const struct jdoc *class = member(doc, "tokenizer_class");
    const char *key;
    const struct jdoc *value;
    buf_puts(out, "{\"tokenizer_class\":");
    if (is_string(class))
        buf_json(out, jdoc_string(class), jdoc_string_len(class));
    else
        buf_json(out, more->class, strlen(more->class));
    write_member("bos_token", token_text(member(doc, "bos_token")), more->bos, out);
    write_member("eos_token", token_text(member(doc, "eos_token")), more->eos, out);
    write_member("unk_token", token_text(member(doc, "unk_token")), NULL, out);
    write_member("pad_token", token_text(member(doc, "pad_token")), NULL, out);
    write_templates(doc, beside, more, out);
    for (void *i = doc ? jdoc_iter(doc, NULL, &key, &value) : NULL; i;
         i = jdoc_iter(doc, i, &key, &value)) {
        if (is_special(key))
            continue;
        buf_puts(out, ",");
        buf_json(out, key, strlen(key));
        buf_puts(out, ":");
        jdoc_write(value, out);
    }
    buf_puts(out, "}");
}

static enum status read_end(const struct jdoc *doc, const char *add_key, const char *name_key,
                            struct tokenizer_config_end *out, struct err *err)
{
    const struct jdoc *add = member(doc, add_key), *name = token_text(member(doc, name_key));
    if (add && jdoc_type(add) != JDOC_BOOL)
        return base_fail(err, ERR_MODEL, "tokenizer_config.json: %s: expected a boolean", add_key);
    out->said = add != NULL;
    if (add)
        out->add = jdoc_bool(add);
    if (!name)
        return OK;
    out->name = strdup(jdoc_string(name));
    return out->name ? OK : base_fail(err, ERR_NOMEM, "tokenizer_config.json: no memory");
}

/* {"106": {"content": "<start_of_turn>", "special": true}}: a tokenizer.model does not say so. */
static enum status read_specials(const struct jdoc *doc, struct tokenizer_config *out,
                                 struct err *err)
{
    const struct jdoc *list = member(doc, "added_tokens_decoder"), *value;
    const char *key;
    if (!list || jdoc_type(list) != JDOC_OBJECT)
        return OK;
    out->special_ids = calloc(jdoc_size(list) + 1, sizeof *out->special_ids);
    if (!out->special_ids)
        return base_fail(err, ERR_NOMEM, "tokenizer_config.json: no memory");
    for (void *i = jdoc_iter(list, NULL, &key, &value); i; i = jdoc_iter(list, i, &key, &value)) {
        const bool object = jdoc_type(value) == JDOC_OBJECT;
        const struct jdoc *special = object ? jdoc_get(value, "special") : NULL;
        char *end;
        const long id = strtol(key, &end, 10);
        if (special && jdoc_type(special) == JDOC_BOOL && jdoc_bool(special) && end != key &&
            *end == '\0' && id >= 0 && id <= INT32_MAX)
            out->special_ids[out->special_count++] = (int32_t)id;
    }
    return OK;
}

/* An object, where there is a file. */
static enum status read_object(const char *text, size_t n, const char *where, struct jdoc **out,
                               struct err *err)
{
    if (!text)
        return OK;
    enum status st = jdoc_parse(text, n, &jdoc_limits_tokenizer, where, out, err);
    if (st == OK && jdoc_type(*out) != JDOC_OBJECT)
        st = base_fail(err, ERR_MODEL, "%s: expected a JSON object", where);
    return st;
}

enum status tokenizer_config_parse(const char *text, size_t n,
                                   const struct tokenizer_config_more *more,
                                   struct tokenizer_config *out, struct err *err)
{
    struct tokenizer_config c = {.bos = {.add = true}};
    struct jdoc *doc = NULL, *beside = NULL;
    struct buf info;
    size_t length;
    enum status st = OK;
    buf_init(&info, INFO_BYTES_MAX);
    TRY(read_object(text, n, "tokenizer_config.json", &doc, err));
    TRY(read_object(more->chat_json, more->chat_json_n, "chat_template.json", &beside, err));
    TRY(read_end(doc, "add_bos_token", "bos_token", &c.bos, err));
    TRY(read_end(doc, "add_eos_token", "eos_token", &c.eos, err));
    TRY(read_specials(doc, &c, err));
    if (more->chat_template && !utf8_is_valid(more->chat_template, strlen(more->chat_template))) {
        st = base_fail(err, ERR_MODEL, "chat_template.jinja: not UTF-8");
        goto out;
    }
    write_info(doc, beside, more, &info);
    c.info = buf_take(&info, &length);
    if (!c.info)
        st = base_fail(err, ERR_NOMEM, "tokenizer_config.json: no memory");
out:
    if (st == OK)
        *out = c;
    else
        tokenizer_config_free(&c);
    buf_free(&info);
    jdoc_close(doc);
    jdoc_close(beside);
    return st == ERR_INPUT ? ERR_MODEL : st;
}

void tokenizer_config_free(struct tokenizer_config *c)
{
    free(c->bos.name);
    free(c->eos.name);
    free(c->special_ids);
    free(c->info);
}
