/* DESIGN: jansson parses, we bound. A 7 MiB text of "{}," becomes a tree of hundreds of MiB, so a
 * scan counts nesting and structural tokens first; jansson sees only what passed. Values are
 * jansson's own nodes behind an opaque name, so reading costs nothing. */
#include "config/jdoc.h"

#include "config/buf.h"
#include "config/file.h"

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct jdoc_limits jdoc_limits_request = {
    JDOC_REQUEST_BYTES_MAX, 64, 200000, true, false, false};
const struct jdoc_limits jdoc_limits_call = {JDOC_REQUEST_BYTES_MAX, 64, 200000, true, true, true};
const struct jdoc_limits jdoc_limits_config = {4u << 20, 64, 200000, false, false, false};
const struct jdoc_limits jdoc_limits_file = {100000000, 64, 20000000, false, false, false};
const struct jdoc_limits jdoc_limits_tokenizer = {100000000, 64, 20000000, false, true, false};

/* jansson's lexer goes on after a failed allocation: it drops a byte of a string, or asserts. So a
 * failure leaves the parser at once, and what it held is freed by this list: the blocks of one
 * document, of which `parse.first` is the newest while it is being made. */
struct block {
    struct block *newer, *older;
    max_align_t bytes[];
};

static _Thread_local struct {
    struct block *first;
    jmp_buf *way_out;
} parse;

static void *allocate(size_t n)
{
    struct block *b = malloc(sizeof *b + n);
    if (!b && parse.way_out)
        longjmp(*parse.way_out, 1);
    if (!b)
        return NULL;
    *b = (struct block){.older = parse.first};
    if (b->older)
        b->older->newer = b;
    parse.first = b;
    return b->bytes;
}

static void release(void *bytes)
{
    if (!bytes)
        return;
    struct block *b = (struct block *)(void *)((char *)bytes - offsetof(struct block, bytes));
    if (b->newer)
        b->newer->older = b->older;
    else if (parse.first == b)
        parse.first = b->older;
    if (b->older)
        b->older->newer = b->newer;
    free(b);
}

static void use_blocks(void)
{
    json_set_alloc_funcs(allocate, release);
}

/* False when there is no memory. */
static bool load(const char *text, size_t n, size_t flags, json_t **root, json_error_t *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    jmp_buf way_out;
    volatile bool loaded = false;
    pthread_once(&once, use_blocks);
    parse.way_out = &way_out;
    if (setjmp(way_out) == 0) {
        *root = json_loadb(text, n, flags, e);
        loaded = true;
    }
    parse.way_out = NULL;
    while (!loaded && parse.first)
        release(parse.first->bytes);
    parse.first = NULL;
    return loaded;
}

static const json_t *node(const struct jdoc *v)
{
    return (const json_t *)(const void *)v;
}

/* Walks strings so that brackets inside them do not count. A NUL behind a number or a word is
 * refused here, because jansson, which puts that byte back, then takes it for the end of what it
 * has buffered and drops it. */
static enum status scan(const char *text, size_t n, const struct jdoc_limits *limits,
                        const char *where, struct err *err)
{
    size_t tokens = 0;
    int32_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        if (c == '"') {
            in_string = true;
            continue;
        }
        if (c == '\0')
            return base_fail(err, ERR_INPUT, "%s: a NUL byte between JSON tokens", where);
        if (c == '[' || c == '{')
            depth++;
        else if (c == ']' || c == '}')
            depth--;
        else if (c != ',' && c != ':')
            continue;
        if (++tokens > limits->tokens_max)
            return base_fail(err, ERR_INPUT, "%s: more than %zu JSON tokens", where,
                             limits->tokens_max);
        if (depth > limits->depth_max)
            return base_fail(err, ERR_INPUT, "%s: JSON nested deeper than %d", where,
                             limits->depth_max);
    }
    return OK;
}

bool jdoc_is_huge(const char *number, size_t n)
{
    const size_t sign = *number == '-', digits = n - sign;
    const char *most = sign ? "9223372036854775808" : "9223372036854775807";
    if (memchr(number, '.', n) || memchr(number, 'e', n) || memchr(number, 'E', n))
        return false;
    return digits > 19 || (digits == 19 && memcmp(number + sign, most, 19) > 0);
}

/* The text with ".0" behind each integer that is too big for int64_t: a real, then. */
static void make_reals(const char *text, size_t n, struct buf *out)
{
    size_t done = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"')
            in_string = !in_string;
        if (in_string)
            i += text[i] == '\\';
        if (in_string || !(text[i] == '-' || (text[i] >= '0' && text[i] <= '9')))
            continue;
        const size_t begin = i;
        while (i + 1 < n && text[i + 1] && strchr("0123456789+-.eE", text[i + 1]))
            i++;
        if (!jdoc_is_huge(text + begin, i + 1 - begin))
            continue;
        buf_add(out, text + done, i + 1 - done);
        buf_puts(out, ".0");
        done = i + 1;
    }
    buf_add(out, text + done, n - done);
}

/* What jansson makes of the text, and once more where only the size of its integers was wrong. */
static enum status load_limited(const char *text, size_t n, const struct jdoc_limits *limits,
                                const char *where, json_t **root, json_error_t *e, struct err *err)
{
    enum status st = OK;
    struct buf reals;
    const size_t flags = JSON_DECODE_ANY | (limits->repeats ? 0 : JSON_REJECT_DUPLICATES) |
                         (limits->nul ? JSON_ALLOW_NUL : 0);
    buf_init(&reals, n + 2 * limits->tokens_max + 2);
    if (!load(text, n, flags, root, e))
        st = base_fail(err, ERR_NOMEM, "%s: no memory for its JSON", where);
    else if (!*root && limits->big && json_error_code(e) == json_error_numeric_overflow) {
        make_reals(text, n, &reals);
        if (reals.failed || !load(reals.data, reals.len, flags, root, e))
            st = base_fail(err, ERR_NOMEM, "%s: no memory for its JSON", where);
    }
    buf_free(&reals);
    return st;
}

enum status jdoc_parse(const char *text, size_t n, const struct jdoc_limits *limits,
                       const char *where, struct jdoc **out, struct err *err)
{
    if (n > limits->bytes_max)
        return base_fail(err, ERR_INPUT, "%s: %zu bytes of JSON, at most %zu are read", where, n,
                         limits->bytes_max);
    enum status st = scan(text, n, limits, where, err);
    if (st != OK)
        return st;
    json_error_t e;
    json_t *root = NULL;
    st = load_limited(text, n, limits, where, &root, &e, err);
    if (st != OK)
        return st;
    if (!root)
        return base_fail(err, ERR_INPUT, "%s: line %d column %d: %s", where, e.line, e.column,
                         e.text);
    *out = (struct jdoc *)(void *)root;
    return OK;
}

enum status jdoc_load(const char *path, struct jdoc **out, struct err *err)
{
    const struct file_spec f = {
        .path = path, .bytes_max = jdoc_limits_file.bytes_max, .failure = ERR_MODEL};
    char *text = NULL;
    size_t n = 0;
    enum status st = OK;
    TRY(file_read(&f, &text, &n, err));
    st = jdoc_parse(text, n, &jdoc_limits_file, path, out, err);
    if (st == ERR_INPUT)
        st = ERR_MODEL;
out:
    free(text);
    return st;
}

void jdoc_close(struct jdoc *root)
{
    json_decref((json_t *)(void *)root);
}

enum jdoc_type jdoc_type(const struct jdoc *v)
{
    switch (json_typeof(node(v))) {
    case JSON_OBJECT:
        return JDOC_OBJECT;
    case JSON_ARRAY:
        return JDOC_ARRAY;
    case JSON_STRING:
        return JDOC_STRING;
    case JSON_INTEGER:
        return JDOC_INT;
    case JSON_REAL:
        return JDOC_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return JDOC_BOOL;
    case JSON_NULL:
        break;
    }
    return JDOC_NULL;
}

const char *jdoc_type_name(enum jdoc_type t)
{
    static const char *const names[] = {"null",     "a boolean", "an integer", "a number",
                                        "a string", "an array",  "an object"};
    return names[t];
}

const struct jdoc *jdoc_get(const struct jdoc *object, const char *key)
{
    return (const struct jdoc *)(const void *)json_object_get(node(object), key);
}

const struct jdoc *jdoc_get_value(const struct jdoc *object, const char *key)
{
    const struct jdoc *v = jdoc_get(object, key);
    return v && jdoc_type(v) == JDOC_NULL ? NULL : v;
}

const struct jdoc *jdoc_member(const struct jdoc *in, const char *key, enum jdoc_type type)
{
    const struct jdoc *v = in && jdoc_type(in) == JDOC_OBJECT ? jdoc_get(in, key) : NULL;
    return v && jdoc_type(v) == type ? v : NULL;
}

size_t jdoc_size(const struct jdoc *v)
{
    return json_is_array(node(v)) ? json_array_size(node(v)) : json_object_size(node(v));
}

const struct jdoc *jdoc_at(const struct jdoc *array, size_t i)
{
    return (const struct jdoc *)(const void *)json_array_get(node(array), i);
}

void *jdoc_iter(const struct jdoc *object, void *iter, const char **key, const struct jdoc **value)
{
    union { /* jansson's iterator functions want a non-const object but do not change it */
        const json_t *in;
        json_t *out;
    } o = {node(object)};
    void *next = iter ? json_object_iter_next(o.out, iter) : json_object_iter(o.out);
    if (next) {
        *key = json_object_iter_key(next);
        *value = (const struct jdoc *)(const void *)json_object_iter_value(next);
    }
    return next;
}

static int add_piece(const char *text, size_t n, void *out)
{
    struct buf *b = out;
    buf_add(b, text, n);
    return b->failed ? -1 : 0;
}

void jdoc_write(const struct jdoc *v, struct buf *out)
{
    if (json_dump_callback(node(v), add_piece, out, JSON_COMPACT | JSON_ENCODE_ANY) != 0 &&
        !out->failed)
        out->failed = out->no_memory = true; /* jansson's own */
}

bool jdoc_bool(const struct jdoc *v)
{
    return json_is_true(node(v));
}

int64_t jdoc_int(const struct jdoc *v)
{
    return json_integer_value(node(v));
}

bool jdoc_whole(const struct jdoc *v, int64_t *out)
{
    if (jdoc_type(v) == JDOC_INT) {
        *out = jdoc_int(v);
        return true;
    }
    if (jdoc_type(v) != JDOC_REAL)
        return false;
    double x = jdoc_number(v);
    if (!isfinite(x) || x != floor(x) || x < -0x1p63 || x >= 0x1p63)
        return false;
    *out = (int64_t)x;
    return true;
}

double jdoc_number(const struct jdoc *v)
{
    return json_number_value(node(v));
}

const char *jdoc_string(const struct jdoc *v)
{
    return json_string_value(node(v));
}

size_t jdoc_string_len(const struct jdoc *v)
{
    return json_string_length(node(v));
}
