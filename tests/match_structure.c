/* Tells for the black-box tests what structures allow: reads lines of JSON {"kind": "json",
 * "object", "regex" or "choice", "value", "texts", "walks", "seed"} and writes a line {"fits",
 * "walked"} or
 * {"error"} for each: which of the texts are whole, and texts that were made by taking any byte
 * that may follow until nothing could ("walks" of them, but for those that became too long). A
 * vocabulary of single bytes. */
#include "engine/grammar/guide.h"
#include "server/grammar/structure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WALK_BYTES_MAX = 3000 };

static const char *byte_text(const void *ctx, int32_t id, int32_t *n)
{
    static char text;
    (void)ctx;
    text = (char)id;
    *n = 1;
    return &text;
}

static uint64_t seed;

static uint32_t below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

static bool allows(const uint32_t *mask, int32_t id)
{
    return (mask[id / 32] >> (id % 32) & 1) != 0;
}

/* Number n of those that may follow. */
static int32_t nth(const uint32_t *mask, uint32_t n)
{
    int32_t id = 0;
    for (; !allows(mask, id) || n > 0; id++)
        n -= allows(mask, id);
    return id;
}

/* Closing what is open is more likely than all else, so that texts end; so is ASCII. */
static int32_t choose(const uint32_t *mask)
{
    static const char closers[] = "\"]}";
    for (size_t i = 0; i < strlen(closers); i++)
        if (allows(mask, closers[i]) && below(6) == 0)
            return closers[i];
    uint32_t few = 0;
    for (int32_t i = 0; i < 256; i++)
        few += allows(mask, i);
    if (few > 0 && few <= 8)
        return nth(mask, below(few));
    const int32_t from = (int32_t)below(below(8) ? 128 : 256);
    for (int32_t i = 0; i < 256; i++)
        if (allows(mask, (from + i) % 256))
            return (from + i) % 256;
    return -1; /* a dead end */
}

/* False: it became too long. */
static bool walk(struct guide *g, int32_t *tokens, int32_t *count)
{
    struct guide_place place = {0};
    for (*count = 0; *count < WALK_BYTES_MAX;) {
        bool whole;
        const enum guide_move move = guide_move(g, &place, tokens, *count);
        if (move == GUIDE_COMPLETE)
            return true;
        const uint32_t *mask =
            move == GUIDE_OPEN ? guide_mask(g, &place, tokens, *count, &whole) : NULL;
        if (!mask || (whole && below(3) == 0))
            return mask != NULL;
        tokens[*count] = choose(mask);
        if (tokens[*count] < 0)
            return true; /* and no whole text, as the test will see */
        ++*count;
    }
    return false;
}

static bool fits(struct guide *g, const char *text, size_t n)
{
    struct guide_place place = {0};
    bool whole = false;
    int32_t *tokens = calloc(n + 1, sizeof *tokens);
    CHECK(tokens != NULL);
    for (size_t i = 0; i < n; i++)
        tokens[i] = (uint8_t)text[i];
    const bool may = guide_mask(g, &place, tokens, (int32_t)n, &whole) != NULL;
    free(tokens);
    return may && whole;
}

static enum status open_guide(const struct jdoc *line, const struct vocabulary *v,
                              struct guide **out, struct err *err)
{
    const char *kind = jdoc_string(jdoc_get(line, "kind"));
    struct grammar *grammar;
    struct structure s = {.field = "", .value = jdoc_get(line, "value"), .name = ""};
    s.kind = strcmp(kind, "json") == 0     ? STRUCTURE_SCHEMA
             : strcmp(kind, "object") == 0 ? STRUCTURE_OBJECT
             : strcmp(kind, "regex") == 0  ? STRUCTURE_PATTERN
                                           : STRUCTURE_CHOICES;
    enum status st = structure_build(&s, &grammar, err);
    if (st == OK)
        st = guide_open(grammar, v, out, err);
    return st;
}

static void write_walks(struct guide *g, int64_t walks, struct buf *out)
{
    static int32_t tokens[WALK_BYTES_MAX];
    static char text[WALK_BYTES_MAX];
    bool first = true;
    for (int64_t i = 0; i < walks; i++) {
        int32_t count;
        if (!walk(g, tokens, &count))
            continue;
        for (int32_t k = 0; k < count; k++)
            text[k] = (char)tokens[k];
        buf_puts(out, first ? "" : ", ");
        buf_json(out, text, (size_t)count);
        first = false;
    }
}

static void answer(const struct jdoc *line, const struct vocabulary *v)
{
    struct buf out;
    struct err err = {""};
    struct guide *g = NULL;
    buf_init(&out, (size_t)64 << 20);
    if (open_guide(line, v, &g, &err) == OK) {
        const struct jdoc *texts = jdoc_get(line, "texts");
        seed = (uint64_t)jdoc_int(jdoc_get(line, "seed"));
        buf_puts(&out, "{\"fits\": [");
        for (size_t i = 0; i < jdoc_size(texts); i++)
            buf_printf(&out, "%s%s", i > 0 ? ", " : "",
                       fits(g, jdoc_string(jdoc_at(texts, i)), jdoc_string_len(jdoc_at(texts, i)))
                           ? "true"
                           : "false");
        buf_puts(&out, "], \"walked\": [");
        write_walks(g, jdoc_int(jdoc_get(line, "walks")), &out);
        buf_puts(&out, "]}");
    } else {
        buf_puts(&out, "{\"error\": ");
        buf_json(&out, err.text, strlen(err.text));
        buf_puts(&out, "}");
    }
    printf("%s\n", out.failed ? "{\"error\": \"too long\"}" : out.data);
    guide_unref(g);
    buf_free(&out);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    struct err err = {""};
    struct vocabulary *v = NULL;
    CHECK(vocabulary_open(256, byte_text, NULL, &v, &err) == OK);
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        struct jdoc *doc = NULL;
        if (jdoc_parse(line, (size_t)n, &jdoc_limits_request, "line", &doc, &err) == OK) {
            answer(doc, v);
            jdoc_close(doc);
        } else {
            printf("{\"error\": \"%s\"}\n", err.text);
        }
    }
    vocabulary_close(v);
    free(line);
    return 0;
}
