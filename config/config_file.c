/* DESIGN: libyaml's events, not its document tree: what is not a flat mapping is refused at the
 * event that shows it, with its line. Values stay text; the options table knows their kinds. */
#include "config/config_file.h"

#include "config/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct reader {
    const char *path;
    yaml_parser_t parser;
    yaml_event_t event;
    struct config_file *file;
    struct err *err;
};

static int32_t line_of(const struct reader *r)
{
    return (int32_t)r->event.start_mark.line + 1;
}

static enum status next(struct reader *r)
{
    yaml_event_delete(&r->event);
    if (yaml_parser_parse(&r->parser, &r->event))
        return OK;
    if (r->parser.error == YAML_MEMORY_ERROR)
        return base_fail(r->err, ERR_NOMEM, "%s: no memory to read it", r->path);
    return base_fail(r->err, ERR_USAGE, "%s:%zu: not YAML: %s", r->path,
                     r->parser.problem_mark.line + 1, r->parser.problem);
}

/* The text of the scalar at hand, which becomes the caller's. */
static enum status take_scalar(struct reader *r, const char *what, char **out)
{
    const yaml_event_t *e = &r->event;
    if (e->type != YAML_SCALAR_EVENT || e->data.scalar.anchor)
        return base_fail(r->err, ERR_USAGE,
                         "%s:%d: expected one plain %s, no list, mapping, anchor or alias (JSON in "
                         "quotes is one)",
                         r->path, line_of(r), what);
    const char *text = (const char *)e->data.scalar.value;
    if (strlen(text) != e->data.scalar.length)
        return base_fail(r->err, ERR_USAGE, "%s:%d: a %s holds a NUL", r->path, line_of(r), what);
    *out = strdup(text);
    return *out ? OK : base_fail(r->err, ERR_NOMEM, "%s: no memory to read it", r->path);
}

static enum status check_entry(struct reader *r, const struct config_entry *new)
{
    static const char *const nothing[] = {"", "~", "null"};
    for (size_t i = 0; i < ARRAY_LEN(nothing); i++)
        if (strcmp(new->value, nothing[i]) == 0)
            return base_fail(r->err, ERR_USAGE, "%s:%d: %.80s has no value", r->path, new->line,
                             new->key);
    for (const struct config_entry *e = r->file->entries; e < new; e++)
        if (strcmp(e->key, new->key) == 0)
            return base_fail(r->err, ERR_USAGE, "%s:%d: %.80s is there already, in line %d",
                             r->path, new->line, new->key, e->line);
    return OK;
}

static enum status read_entry(struct reader *r)
{
    enum status st = OK;
    if (r->file->count == CONFIG_FILE_ENTRIES_MAX)
        return base_fail(r->err, ERR_USAGE, "%s:%d: more than %d entries", r->path, line_of(r),
                         CONFIG_FILE_ENTRIES_MAX);
    struct config_entry *entry = &r->file->entries[r->file->count++];
    entry->line = line_of(r);
    TRY(take_scalar(r, "key", &entry->key));
    for (char *c = entry->key; *c; c++) /* vLLM's files have either */
        *c = *c == '_' ? '-' : *c;
    TRY(next(r));
    TRY(take_scalar(r, "value", &entry->value));
    TRY(check_entry(r, entry));
    TRY(next(r));
out:
    return st;
}

static enum status read_events(struct reader *r)
{
    enum status st = OK;
    TRY(next(r)); /* the start of the stream */
    TRY(next(r));
    if (r->event.type == YAML_STREAM_END_EVENT)
        goto out;
    TRY(next(r)); /* after the start of the document */
    if (r->event.type != YAML_MAPPING_START_EVENT || r->event.data.mapping_start.anchor) {
        st = base_fail(r->err, ERR_USAGE, "%s:%d: expected lines of the form \"name: value\"",
                       r->path, line_of(r));
        goto out;
    }
    TRY(next(r));
    while (r->event.type != YAML_MAPPING_END_EVENT)
        TRY(read_entry(r));
    TRY(next(r)); /* the end of the document */
    TRY(next(r));
    if (r->event.type != YAML_STREAM_END_EVENT)
        st = base_fail(r->err, ERR_USAGE, "%s:%d: one document is wanted, here begins another",
                       r->path, line_of(r));
out:
    return st;
}

enum status config_file_open(const char *path, struct config_file **out, struct err *err)
{
    enum status st = OK;
    struct reader r = {.path = path, .err = err};
    const struct file_spec f = {.path = path,
                                .what = "configuration file ",
                                .bytes_max = CONFIG_FILE_BYTES_MAX,
                                .failure = ERR_USAGE,
                                .pipes = true};
    char *bytes = NULL;
    size_t n = 0;
    r.file = calloc(1, sizeof *r.file);
    if (!r.file || !yaml_parser_initialize(&r.parser)) {
        st = base_fail(err, ERR_NOMEM, "configuration file %s: no memory to read it", path);
        goto out;
    }
    TRY(file_read(&f, &bytes, &n, err));
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)bytes, n);
    TRY(read_events(&r));
    *out = r.file;
    r.file = NULL;
out:
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    config_file_close(r.file);
    free(bytes);
    return st;
}

void config_file_close(struct config_file *f)
{
    for (int32_t i = 0; f && i < f->count; i++) {
        free(f->entries[i].key);
        free(f->entries[i].value);
    }
    free(f);
}
