#include "server/grammar/json_text.h"

#include "config/buf.h"

#include <string.h>

int32_t json_text_word(const struct json_text *t, const char *text, int32_t next)
{
    return grammar_text(t->g, text, strlen(text), grammar_call(t->g, t->space, next));
}

int32_t json_text_name(const struct json_text *t, const char *name, int32_t next)
{
    struct buf quoted;
    buf_init(&quoted, (size_t)1 << 20);
    buf_json(&quoted, name, strlen(name));
    next = json_text_word(t, ":", next);
    if (quoted.failed)
        grammar_break(t->g, &quoted);
    else
        next = grammar_text(t->g, quoted.data, quoted.len, next);
    buf_free(&quoted);
    return next;
}

int32_t json_text_digit(const struct json_text *t, int32_t next)
{
    return grammar_range(t->g, '0', '9', next);
}

int32_t json_text_plain(const struct json_text *t, uint32_t lo, uint32_t hi, int32_t next)
{
    static const uint32_t runs[][2] = {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0x10ffff}};
    int32_t all = GRAMMAR_NEVER;
    for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
        const uint32_t begin = lo > runs[i][0] ? lo : runs[i][0];
        const uint32_t end = hi < runs[i][1] ? hi : runs[i][1];
        if (begin <= end)
            all = grammar_either(t->g, all, grammar_chars(t->g, begin, end, next));
    }
    return all;
}

/* Any of the bytes. */
static int32_t one_of(struct grammar *g, const char *bytes, int32_t next)
{
    int32_t all = GRAMMAR_NEVER;
    for (; *bytes; bytes++)
        all = grammar_either(g, all, grammar_range(g, (uint8_t)*bytes, (uint8_t)*bytes, next));
    return all;
}

/* At most n digits more. */
static int32_t digits(const struct json_text *t, int32_t n, int32_t next)
{
    int32_t all = next;
    for (int32_t i = 0; i < n; i++)
        all = grammar_either(t->g, next, json_text_digit(t, all));
    return all;
}

static void define_space(struct json_text *t)
{
    struct grammar *g = t->g;
    int32_t spaces = GRAMMAR_END, tabs = GRAMMAR_END;
    for (int32_t i = 0; i < JSON_TEXT_SPACES_MAX; i++)
        spaces = grammar_either(g, GRAMMAR_END, grammar_text(g, " ", 1, spaces));
    for (int32_t i = 0; i < JSON_TEXT_TABS_MAX; i++)
        tabs = grammar_either(g, GRAMMAR_END, grammar_text(g, "\t", 1, tabs));
    const int32_t line = grammar_text(g, "\n", 1, grammar_either(g, spaces, tabs));
    const int32_t some = grammar_either(g, grammar_text(g, " ", 1, GRAMMAR_END), line);
    grammar_define(g, t->space, grammar_either(g, some, GRAMMAR_END));
}

static int32_t hex(struct grammar *g, int32_t next)
{
    const int32_t upper = grammar_range(g, 'A', 'F', next),
                  lower = grammar_range(g, 'a', 'f', next);
    return grammar_either(g, grammar_range(g, '0', '9', next), grammar_either(g, upper, lower));
}

/* Four hexadecimal digits that are a character: no NUL and no half of a pair; or those of a first
 * half, then \u and those of a second one. */
static int32_t hex_character(struct grammar *g, int32_t next)
{
    const int32_t one = hex(g, next), two = hex(g, one), three = hex(g, two);
    const int32_t high =
        hex(g, hex(g, grammar_text(g, "\\u", 2, one_of(g, "dD", one_of(g, "cdefCDEF", two)))));
    int32_t zero = grammar_either(
        g, grammar_range(g, '1', '9', next),
        grammar_either(g, grammar_range(g, 'A', 'F', next), grammar_range(g, 'a', 'f', next)));
    for (int32_t i = 0; i < 3; i++) { /* one digit at least is not 0 */
        const int32_t rest = i == 0 ? one : i == 1 ? two : three;
        const int32_t other =
            grammar_either(g, one_of(g, "123456789", rest),
                           one_of(g, i < 2 ? "abcdefABCDEF" : "abcefABCEF", rest));
        zero = grammar_either(g, grammar_range(g, '0', '0', zero), other);
    }
    const int32_t low = one_of(g, "01234567", two), pair = one_of(g, "89abAB", high);
    return grammar_either(g, zero, one_of(g, "dD", grammar_either(g, low, pair)));
}

static void define_strings(struct json_text *t)
{
    struct grammar *g = t->g;
    const int32_t letter = one_of(g, "\"\\/bfnrt", GRAMMAR_END);
    const int32_t code = grammar_text(g, "u", 1, hex_character(g, GRAMMAR_END));
    const int32_t escape = grammar_text(g, "\\", 1, grammar_either(g, letter, code));
    const int32_t plain = json_text_plain(t, 0, 0x10ffff, GRAMMAR_END);
    grammar_define(g, t->character, grammar_either(g, plain, escape));
    const int32_t end = grammar_text(g, "\"", 1, GRAMMAR_END);
    grammar_define(g, t->string,
                   grammar_text(g, "\"", 1, grammar_repeat(g, t->character, 0, -1, end)));
}

/* [-] and 0, or digits that do not begin with 0. */
static int32_t whole_number(const struct json_text *t, int32_t next)
{
    struct grammar *g = t->g;
    const int32_t more = digits(t, JSON_TEXT_DIGITS_MAX - 1, next);
    const int32_t number =
        grammar_either(g, grammar_text(g, "0", 1, next), grammar_range(g, '1', '9', more));
    return grammar_either(g, number, grammar_text(g, "-", 1, number));
}

static void define_numbers(struct json_text *t)
{
    struct grammar *g = t->g;
    const int32_t exponent = json_text_digit(t, digits(t, 1, GRAMMAR_END));
    const int32_t sign = grammar_either(g, exponent, one_of(g, "+-", exponent));
    const int32_t end = grammar_either(g, GRAMMAR_END, one_of(g, "eE", sign));
    const int32_t fraction =
        grammar_text(g, ".", 1, json_text_digit(t, digits(t, JSON_TEXT_FRACTION_MAX - 1, end)));
    grammar_define(g, t->integer, whole_number(t, GRAMMAR_END));
    grammar_define(g, t->number, whole_number(t, grammar_either(g, end, fraction)));
}

/* Any number of `item`, separated by commas, between two brackets. */
static int32_t list(const struct json_text *t, const char *open, int32_t item, const char *close)
{
    struct grammar *g = t->g;
    const int32_t end = grammar_text(g, close, 1, GRAMMAR_END);
    const int32_t last = grammar_call(g, t->space, end);
    const int32_t loop = grammar_fork(g);
    grammar_fork_set(g, loop, last, json_text_word(t, ",", grammar_call(g, item, loop)));
    return json_text_word(t, open, grammar_either(g, end, grammar_call(g, item, loop)));
}

static void define_values(struct json_text *t)
{
    struct grammar *g = t->g;
    const int32_t member = grammar_rule(g);
    const int32_t value = grammar_call(g, t->value, GRAMMAR_END);
    grammar_define(g, member, grammar_call(g, t->string, json_text_word(t, ":", value)));
    grammar_define(g, t->object, list(t, "{", member, "}"));
    int32_t all = grammar_either(g, grammar_call(g, t->string, GRAMMAR_END),
                                 grammar_call(g, t->number, GRAMMAR_END));
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        all = grammar_either(g, all, grammar_text(g, words[i], strlen(words[i]), GRAMMAR_END));
    all = grammar_either(g, all, grammar_call(g, t->object, GRAMMAR_END));
    grammar_define(g, t->value, grammar_either(g, all, list(t, "[", t->value, "]")));
}

void json_text_open(struct json_text *t, struct grammar *g)
{
    *t = (struct json_text){.g = g,
                            .space = grammar_rule(g),
                            .character = grammar_rule(g),
                            .string = grammar_rule(g),
                            .number = grammar_rule(g),
                            .integer = grammar_rule(g),
                            .value = grammar_rule(g),
                            .object = grammar_rule(g)};
    define_space(t);
    define_strings(t);
    define_numbers(t);
    define_values(t);
}
