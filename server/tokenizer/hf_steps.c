/* DESIGN: every supported normalizer and pre-tokenizer is one to three steps of textstep.h; those
 * without a pattern of their own get the one that says what they do. */
#include "server/tokenizer/hf_steps.h"

#include <string.h>

#define SPACE_MARK "\xe2\x96\x81" /* U+2581 */

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Where the steps that are read now go to. */
struct reader {
    const struct hf_json *json;
    struct hf_steps *out;
    struct textsteps *steps;
};

typedef enum status read_one(struct reader *r, const struct jdoc *v, const char *place);

/* ---- steps ---- */

/* NULL, and the error is set, when there is no room. */
static struct textstep *add_step(struct reader *r, const char *place, enum textstep_kind kind)
{
    if (r->steps->count == TEXTSTEP_MAX) {
        hf_json_bad(r->json, place, "more than %d steps", TEXTSTEP_MAX);
        return NULL;
    }
    struct textstep *s = &r->steps->steps[r->steps->count++];
    s->kind = kind;
    return s;
}

static enum status set_content(struct reader *r, struct textstep *s, const char *content,
                               const char *place)
{
    s->content_len = strlen(content);
    if (s->content_len > sizeof s->content)
        return hf_json_bad(r->json, place, "a text of %zu bytes, at most %zu are supported",
                           s->content_len, sizeof s->content);
    memcpy(s->content, content, s->content_len);
    return OK;
}

static enum status set_pattern(struct reader *r, struct textstep *s, const char *pattern,
                               bool literal, const char *place)
{
    const struct hf_json_place at = hf_json_place("%s: %s", r->json->where, place);
    return regex_open(pattern, strlen(pattern), literal, at.text, &s->regex, r->json->err);
}

static enum status add_prepend(struct reader *r, const char *content, enum textstep_prepend when,
                               const char *place)
{
    struct textstep *s = add_step(r, place, TEXTSTEP_PREPEND);
    if (!s)
        return ERR_MODEL;
    s->when = when;
    return set_content(r, s, content, place);
}

static enum status add_replace(struct reader *r, const char *pattern, bool literal,
                               const char *content, const char *place)
{
    struct textstep *s = add_step(r, place, TEXTSTEP_REPLACE);
    if (!s)
        return ERR_MODEL;
    if (!literal || strlen(content) < strlen(pattern))
        r->out->removes_text = true;
    enum status st = set_pattern(r, s, pattern, literal, place);
    return st == OK ? set_content(r, s, content, place) : st;
}

static enum status add_split(struct reader *r, const char *pattern, bool literal,
                             enum textstep_behavior behavior, bool invert, const char *place)
{
    struct textstep *s = add_step(r, place, TEXTSTEP_SPLIT);
    if (!s)
        return ERR_MODEL;
    s->behavior = behavior;
    s->invert = invert;
    if (behavior == SPLIT_REMOVED)
        r->out->removes_text = true;
    return set_pattern(r, s, pattern, literal, place);
}

/* ---- JSON ---- */

static bool is(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

static enum status read_type(struct reader *r, const struct jdoc *v, const char *place,
                             const char **type)
{
    enum status st = hf_json_check(r->json, v, place, JDOC_OBJECT);
    return st == OK ? hf_json_string(r->json, v, place, "type", type) : st;
}

static enum status read_list(struct reader *r, const struct jdoc *v, const char *place,
                             const char *key, read_one *read)
{
    const struct jdoc *list = NULL;
    enum status st = hf_json_member(r->json, v, place, key, JDOC_ARRAY, &list);
    for (size_t i = 0; st == OK && i < jdoc_size(list); i++)
        st = read(r, jdoc_at(list, i), hf_json_place("%s.%s[%zu]", place, key, i).text);
    return st;
}

/* {"String": "..."} or {"Regex": "..."} */
static enum status read_pattern(struct reader *r, const struct jdoc *v, const char *place,
                                const char **pattern, bool *literal)
{
    const struct jdoc *object = NULL;
    const struct hf_json_place at = hf_json_place("%s.pattern", place);
    enum status st = hf_json_member(r->json, v, place, "pattern", JDOC_OBJECT, &object);
    if (st != OK)
        return st;
    *literal = jdoc_get_value(object, "String") != NULL;
    return hf_json_string(r->json, object, at.text, *literal ? "String" : "Regex", pattern);
}

/* ---- normalizer ---- */

static enum status read_replace(struct reader *r, const struct jdoc *v, const char *place)
{
    const char *pattern = NULL, *content = NULL;
    bool literal = false;
    enum status st = OK;
    TRY(read_pattern(r, v, place, &pattern, &literal));
    TRY(hf_json_string(r->json, v, place, "content", &content));
    st = add_replace(r, pattern, literal, content, place);
out:
    return st;
}

static enum status read_normalizer(struct reader *r, const struct jdoc *v, const char *place)
{
    const char *type = NULL, *content = NULL;
    enum status st = OK;
    TRY(read_type(r, v, place, &type));
    if (is(type, "Sequence")) {
        st = read_list(r, v, place, "normalizers", read_normalizer);
    } else if (is(type, "Replace")) {
        st = read_replace(r, v, place);
    } else if (is(type, "Prepend")) {
        TRY(hf_json_string(r->json, v, place, "prepend", &content));
        st = add_prepend(r, content, PREPEND_ALWAYS, place);
    } else if (is(type, "NFC")) {
        r->out->removes_text = true; /* several characters may become one */
        st = add_step(r, place, TEXTSTEP_NFC) ? OK : ERR_MODEL;
    } else {
        st = hf_json_unsupported(r->json, place, type);
    }
out:
    return st;
}

/* ---- pre_tokenizer ---- */

static enum status read_behavior(struct reader *r, const struct jdoc *v, const char *place,
                                 const char *fallback, enum textstep_behavior *out)
{
    static const char *const names[] = {[SPLIT_ISOLATED] = "Isolated",
                                        [SPLIT_REMOVED] = "Removed",
                                        [SPLIT_PREVIOUS] = "MergedWithPrevious",
                                        [SPLIT_NEXT] = "MergedWithNext",
                                        [SPLIT_CONTIGUOUS] = "Contiguous"};
    const char *name = fallback;
    enum status st = OK;
    if (!fallback || jdoc_get_value(v, "behavior"))
        st = hf_json_string(r->json, v, place, "behavior", &name);
    if (st != OK)
        return st;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (is(name, names[i])) {
            *out = (enum textstep_behavior)i;
            return OK;
        }
    return hf_json_unsupported(r->json, hf_json_place("%s.behavior", place).text, name);
}

static enum status read_split(struct reader *r, const struct jdoc *v, const char *place)
{
    const char *pattern = NULL;
    enum textstep_behavior behavior = SPLIT_ISOLATED;
    bool literal = false, invert = false;
    enum status st = OK;
    TRY(read_pattern(r, v, place, &pattern, &literal));
    TRY(read_behavior(r, v, place, NULL, &behavior));
    TRY(hf_json_bool(r->json, v, place, "invert", &invert));
    st = add_split(r, pattern, literal, behavior, invert, place);
out:
    return st;
}

static enum status read_byte_level(struct reader *r, const struct jdoc *v, const char *place)
{
    bool add_prefix_space = true, use_regex = true;
    enum status st = OK;
    TRY(hf_json_bool(r->json, v, place, "add_prefix_space", &add_prefix_space));
    TRY(hf_json_bool(r->json, v, place, "use_regex", &use_regex));
    if (add_prefix_space)
        TRY(add_prepend(r, " ", PREPEND_WHERE_ABSENT, place));
    if (use_regex)
        TRY(add_split(r, gpt2_pattern, false, SPLIT_ISOLATED, false, place));
    r->out->byte_level = true;
out:
    return st;
}

static enum status read_metaspace(struct reader *r, const struct jdoc *v, const char *place)
{
    const char *mark = SPACE_MARK, *scheme = "always";
    bool split = true, add_prefix_space = true;
    enum status st = OK;
    if (jdoc_get_value(v, "replacement"))
        TRY(hf_json_string(r->json, v, place, "replacement", &mark));
    TRY(hf_json_bool(r->json, v, place, "split", &split));
    TRY(hf_json_bool(r->json, v, place, "add_prefix_space", &add_prefix_space));
    if (jdoc_get_value(v, "prepend_scheme"))
        TRY(hf_json_string(r->json, v, place, "prepend_scheme", &scheme));
    else if (!add_prefix_space)
        scheme = "never";
    TRY(add_replace(r, " ", true, mark, place));
    if (is(scheme, "always"))
        TRY(add_prepend(r, mark, PREPEND_WHERE_ABSENT, place));
    else if (is(scheme, "first"))
        TRY(add_prepend(r, mark, PREPEND_FIRST_WHERE_ABSENT, place));
    else if (!is(scheme, "never"))
        TRY(hf_json_unsupported(r->json, hf_json_place("%s.prepend_scheme", place).text, scheme));
    if (split)
        TRY(add_split(r, mark, true, SPLIT_NEXT, false, place));
out:
    return st;
}

static enum status read_classes(struct reader *r, const struct jdoc *v, const char *place,
                                const char *type)
{
    enum textstep_behavior behavior = SPLIT_ISOLATED;
    bool each = false;
    enum status st = OK;
    if (is(type, "Digits")) {
        TRY(hf_json_bool(r->json, v, place, "individual_digits", &each));
        st = add_split(r, "\\p{N}", false, each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, false, place);
    } else if (is(type, "Punctuation")) {
        TRY(read_behavior(r, v, place, "Isolated", &behavior));
        st = add_split(r, "[!-/:-@\\[-`{-~\\p{P}]", false, behavior, false, place);
    } else if (is(type, "WhitespaceSplit")) {
        st = add_split(r, "\\s", false, SPLIT_REMOVED, false, place);
    } else {
        st = hf_json_unsupported(r->json, place, type);
    }
out:
    return st;
}

static enum status read_pre_tokenizer(struct reader *r, const struct jdoc *v, const char *place)
{
    const char *type = NULL;
    enum status st = read_type(r, v, place, &type);
    if (st != OK)
        return st;
    if (is(type, "Sequence"))
        return read_list(r, v, place, "pretokenizers", read_pre_tokenizer);
    if (r->out->byte_level)
        return hf_json_unsupported(r->json, place, "a step after ByteLevel");
    if (is(type, "ByteLevel"))
        return read_byte_level(r, v, place);
    if (is(type, "Split"))
        return read_split(r, v, place);
    if (is(type, "Metaspace"))
        return read_metaspace(r, v, place);
    return read_classes(r, v, place, type);
}

/* ---- decoder ---- */

/* ByteLevel alone, or of Replace, ByteFallback, Fuse and Strip in this order those that are there.
 */
struct decoder {
    bool byte_level, replace, byte_fallback, fuse, strip;
};

static enum status check_replace(struct reader *r, const struct jdoc *v, const char *place)
{
    const char *pattern = NULL, *content = NULL;
    bool literal = false;
    enum status st = OK;
    TRY(read_pattern(r, v, place, &pattern, &literal));
    TRY(hf_json_string(r->json, v, place, "content", &content));
    if (!literal || !is(pattern, SPACE_MARK) || !is(content, " "))
        st = hf_json_unsupported(r->json, place, "a replacement other than U+2581 by a space");
out:
    return st;
}

static enum status check_strip(struct reader *r, const struct jdoc *v, const char *place)
{
    const char *content = NULL;
    const struct jdoc *start = NULL, *stop = NULL;
    enum status st = OK;
    TRY(hf_json_string(r->json, v, place, "content", &content));
    TRY(hf_json_member(r->json, v, place, "start", JDOC_INT, &start));
    TRY(hf_json_member(r->json, v, place, "stop", JDOC_INT, &stop));
    if (!is(content, " ") || jdoc_int(start) != 1 || jdoc_int(stop) != 0)
        st = hf_json_unsupported(r->json, place, "stripping other than one space at the start");
out:
    return st;
}

static enum status read_decoder_step(struct reader *r, struct decoder *d, const struct jdoc *v,
                                     const char *place)
{
    const char *type = NULL;
    enum status st = OK;
    TRY(read_type(r, v, place, &type));
    const bool late = d->byte_level || d->strip;
    if (is(type, "ByteLevel") && !late && !d->replace && !d->byte_fallback && !d->fuse) {
        d->byte_level = true;
    } else if (is(type, "Replace") && !late && !d->replace && !d->byte_fallback && !d->fuse) {
        d->replace = true;
        st = check_replace(r, v, place);
    } else if (is(type, "ByteFallback") && !late && !d->fuse) {
        d->byte_fallback = true;
    } else if (is(type, "Fuse") && !late) {
        d->fuse = true;
    } else if (is(type, "Strip") && !late && d->fuse) {
        d->strip = true;
        st = check_strip(r, v, place);
    } else {
        st = hf_json_unsupported(r->json, place, type);
    }
out:
    return st;
}

static enum status read_decoder(struct reader *r, const struct jdoc *root)
{
    const struct jdoc *v = NULL, *list = NULL;
    const char *type = NULL;
    struct decoder d = {0};
    enum status st = OK;
    TRY(hf_json_member(r->json, root, "the tokenizer", "decoder", JDOC_OBJECT, &v));
    TRY(read_type(r, v, "decoder", &type));
    if (!is(type, "Sequence")) {
        TRY(read_decoder_step(r, &d, v, "decoder"));
    } else {
        TRY(hf_json_member(r->json, v, "decoder", "decoders", JDOC_ARRAY, &list));
        for (size_t i = 0; i < jdoc_size(list); i++)
            TRY(read_decoder_step(r, &d, jdoc_at(list, i),
                                  hf_json_place("decoder.decoders[%zu]", i).text));
    }
    if (d.byte_level != r->out->byte_level)
        TRY(hf_json_bad(r->json, "decoder", "ByteLevel is %s the pre_tokenizer, but %s the decoder",
                        d.byte_level ? "not in" : "in", d.byte_level ? "in" : "not in"));
    r->out->space_marks = d.replace;
    r->out->byte_tokens = d.byte_fallback;
    r->out->drops_space = d.strip;
out:
    return st;
}

/* ---- the whole ---- */

enum status hf_steps_parse(const struct hf_json *j, const struct jdoc *root, struct hf_steps *out)
{
    struct hf_steps steps = {.byte_level = false};
    struct reader r = {.json = j, .out = &steps, .steps = &steps.normalizer};
    const struct jdoc *v = jdoc_get_value(root, "normalizer");
    enum status st = OK;
    if (v)
        TRY(read_normalizer(&r, v, "normalizer"));
    r.steps = &steps.pieces;
    v = jdoc_get_value(root, "pre_tokenizer");
    if (v)
        TRY(read_pre_tokenizer(&r, v, "pre_tokenizer"));
    TRY(read_decoder(&r, root));
out:
    if (st == OK)
        *out = steps;
    else
        hf_steps_free(&steps);
    return st;
}

void hf_steps_free(struct hf_steps *s)
{
    textstep_free(&s->normalizer);
    textstep_free(&s->pieces);
}
