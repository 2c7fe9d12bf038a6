/* DESIGN: two ways of reading by turns: text up to the next tag, and the parts of a tag. White
 * space around tags goes here, as trim_blocks and lstrip_blocks of Jinja2 have it, so that the
 * parser never sees it. */
#include "server/template/jinja_lex.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_BYTES_MAX 64

static const char *here(const struct lexer *l)
{
    return l->t->text + l->at;
}

static size_t rest(const struct lexer *l)
{
    return l->t->n - l->at;
}

static bool looking_at(const struct lexer *l, const char *text)
{
    return rest(l) >= strlen(text) && memcmp(here(l), text, strlen(text)) == 0;
}

static enum status bad(const struct lexer *l, const char *message)
{
    return jinja_refuse(l->t, (uint32_t)l->at, l->err, "%s", message);
}

static void skip_space(struct lexer *l)
{
    for (size_t width = 1; width > 0; l->at += width)
        width = jinja_space(here(l), rest(l));
}

static bool at_line_start(const struct lexer *l)
{
    return l->at > 0 && l->t->text[l->at - 1] == '\n';
}

/* ---- text outside of tags ---- */

/* What a tag's sign, or lstrip_blocks where it has none, leaves of the text before it. */
static size_t strip_before(const char *text, size_t n, char sign, bool block, bool line_starting)
{
    size_t kept = n;
    for (size_t width; kept > 0; kept -= width) {
        width = jinja_space_before(text, kept);
        if (width == 0 || (sign != '-' && text[kept - 1] == '\n'))
            break;
    }
    if (sign == '-')
        return kept;
    const bool whole_line = kept == 0 ? line_starting : text[kept - 1] == '\n';
    return block && sign != '+' && whole_line ? kept : n;
}

/* Goes past "-%}" and the like when they are here. trims: a plain one takes a line end with it. */
static bool skip_close(struct lexer *l, char brace, bool plus, bool trims)
{
    const char *s = here(l);
    const size_t sign = rest(l) > 0 && (s[0] == '-' || (plus && s[0] == '+')) ? 1 : 0;
    if (rest(l) < sign + 2 || s[sign] != brace || s[sign + 1] != '}')
        return false;
    l->at += sign + 2;
    if (sign && s[0] == '-')
        skip_space(l);
    else if (!sign && trims && rest(l) > 0 && here(l)[0] == '\n')
        l->at++;
    l->line_starting = at_line_start(l);
    return true;
}

/* Goes past "{%", a sign, the word and "%}" when they are here; the sign in *sign. */
static bool skip_word_tag(struct lexer *l, const char *word, bool end, char *sign)
{
    const size_t start = l->at;
    if (!looking_at(l, "{%"))
        return false;
    l->at += 2;
    *sign = rest(l) > 0 && (here(l)[0] == '-' || here(l)[0] == '+') ? here(l)[0] : '\0';
    l->at += *sign != '\0';
    skip_space(l);
    if (looking_at(l, word)) {
        l->at += strlen(word);
        skip_space(l);
        if (skip_close(l, '%', end, end))
            return true;
    }
    l->at = start;
    return false;
}

static void set_data(struct token *out, const struct lexer *l, size_t start, size_t n)
{
    *out = (struct token){
        .kind = TOKEN_DATA, .at = (uint32_t)start, .bytes = l->t->text + start, .n = n};
}

/* Behind "{% raw %}": everything up to "{% endraw %}" is data. */
static enum status lex_raw(struct lexer *l, struct token *out)
{
    const size_t start = l->at;
    const bool line_starting = l->line_starting;
    char sign;
    for (; l->at < l->t->n; l->at++) {
        const size_t end = l->at;
        if (!skip_word_tag(l, "endraw", true, &sign))
            continue;
        set_data(out, l, start,
                 strip_before(l->t->text + start, end - start, sign, true, line_starting));
        return OK;
    }
    if (start == l->t->n) /* as Jinja2 has it: nothing has to be ended */
        return OK;
    l->at = start;
    return bad(l, "raw is not ended");
}

static enum status skip_comment(struct lexer *l)
{
    const size_t start = l->at;
    l->at += 2;
    if (rest(l) > 0 && (here(l)[0] == '-' || here(l)[0] == '+'))
        l->at++;
    if (rest(l) == 0) /* as Jinja2 has it: nothing has to be ended */
        return OK;
    for (; l->at < l->t->n; l->at++)
        if (skip_close(l, '#', true, true))
            return OK;
    l->at = start;
    return bad(l, "a comment is not ended");
}

static void begin_tag(struct lexer *l)
{
    const bool print = here(l)[1] == '{';
    l->pending = (struct token){.kind = print ? TOKEN_PRINT_BEGIN : TOKEN_BLOCK_BEGIN,
                                .at = (uint32_t)l->at};
    l->closes = print ? TOKEN_PRINT_END : TOKEN_BLOCK_END;
    l->at += 2;
    if (rest(l) > 0 && (here(l)[0] == '-' || here(l)[0] == '+'))
        l->at++;
    l->open_count = 0;
}

static size_t find_tag(const struct lexer *l)
{
    for (size_t i = l->at; i + 1 < l->t->n; i++)
        if (l->t->text[i] == '{' && strchr("{%#", l->t->text[i + 1]) && l->t->text[i + 1])
            return i;
    return l->t->n;
}

static enum status lex_text(struct lexer *l, struct token *out)
{
    const size_t start = l->at, tag = find_tag(l);
    if (tag == l->t->n) {
        set_data(out, l, start, tag - start);
        l->at = tag;
        return OK;
    }
    const char after = tag + 2 < l->t->n ? l->t->text[tag + 2] : '\0';
    set_data(out, l, start,
             strip_before(l->t->text + start, tag - start, after, l->t->text[tag + 1] != '{',
                          l->line_starting));
    l->at = tag;
    l->line_starting = false;
    char sign;
    if (looking_at(l, "{#"))
        return skip_comment(l);
    if (skip_word_tag(l, "raw", false, &sign))
        return lex_raw(l, &l->pending);
    begin_tag(l);
    return OK;
}

/* ---- numbers ---- */

static bool is_digit(char c, int base)
{
    if (base == 16)
        return isxdigit((unsigned char)c);
    return c >= '0' && c < '0' + base;
}

/* Bytes of digits that may have single underscores between them. */
static size_t digits(const char *s, size_t n, int base)
{
    size_t i = 0;
    while (i < n && (is_digit(s[i], base) || (s[i] == '_' && i > 0 && s[i - 1] != '_' &&
                                              i + 1 < n && is_digit(s[i + 1], base))))
        i++;
    return i;
}

/* Bytes of a number with a fraction, an exponent, or both; 0: no such number is here. */
static size_t float_bytes(const char *s, size_t n)
{
    const size_t whole = digits(s, n, 10);
    size_t i = whole;
    if (i + 1 < n && s[i] == '.')
        i = digits(s + i + 1, n - i - 1, 10) > 0 ? i + 1 + digits(s + i + 1, n - i - 1, 10) : i;
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        const size_t sign = i + 1 < n && (s[i + 1] == '+' || s[i + 1] == '-') ? 1 : 0;
        const size_t exponent = digits(s + i + 1 + sign, n - i - 1 - sign, 10);
        if (exponent > 0)
            return i + 1 + sign + exponent;
    }
    return i > whole ? i : 0;
}

/* The digits without underscores, for strtod and strtoll. */
static bool plain_digits(const char *s, size_t n, char out[NUMBER_BYTES_MAX])
{
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (used == NUMBER_BYTES_MAX - 1)
            return false;
        if (s[i] != '_')
            out[used++] = s[i];
    }
    out[used] = '\0';
    return true;
}

static size_t integer_bytes(const char *s, size_t n, int *base, size_t *prefix)
{
    static const char marks[] = "bBoOxX";
    static const int bases[] = {2, 8, 16};
    const char *mark = n > 1 && s[0] == '0' && s[1] ? strchr(marks, s[1]) : NULL;
    *base = mark ? bases[(mark - marks) / 2] : 10;
    *prefix = mark ? 2 : 0;
    if (mark && n > 2) {
        const size_t underscore = s[2] == '_' ? 1 : 0;
        const size_t count = digits(s + 2 + underscore, n - 2 - underscore, *base);
        if (count > 0)
            return 2 + underscore + count;
    }
    *base = 10;
    *prefix = 0;
    if (s[0] != '0')
        return digits(s, n, 10);
    size_t zeros = 1;
    while (zeros < n &&
           (s[zeros] == '0' || (s[zeros] == '_' && zeros + 1 < n && s[zeros + 1] == '0')))
        zeros++;
    return zeros;
}

static enum status lex_number(struct lexer *l, struct token *out)
{
    char text[NUMBER_BYTES_MAX];
    int base = 10;
    size_t prefix = 0;
    const bool after_dot = l->at > 0 && l->t->text[l->at - 1] == '.';
    size_t n = after_dot ? 0 : float_bytes(here(l), rest(l));
    const bool real = n > 0;
    if (!real)
        n = integer_bytes(here(l), rest(l), &base, &prefix);
    if (!plain_digits(here(l) + prefix, n - prefix, text))
        return bad(l, "a number is too long");
    errno = 0;
    out->value = real ? jinja_float(strtod(text, NULL)) : jinja_int(strtoll(text, NULL, base));
    if (!real && errno != 0)
        return bad(l, "a whole number does not fit 64 bits");
    out->kind = TOKEN_LITERAL;
    l->at += n;
    return OK;
}

/* ---- strings ---- */

/* Reads `count` hexadecimal digits. */
static bool hex(const char *s, size_t n, size_t count, uint32_t *code)
{
    *code = 0;
    for (size_t i = 0; i < count; i++) {
        if (i >= n || !isxdigit((unsigned char)s[i]))
            return false;
        const char c = (char)tolower((unsigned char)s[i]);
        *code = *code << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return true;
}

/* Decodes the escape at s, behind the backslash: *used bytes of it, *made bytes of text. */
static bool unescape(const char *s, size_t n, size_t *used, char *out, size_t *made)
{
    static const char letters[] = "\\'\"abfnrtv", means[] = "\\'\"\a\b\f\n\r\t\v";
    const char *letter = s[0] ? strchr(letters, s[0]) : NULL;
    uint32_t code = 0;
    *used = 1;
    *made = 0;
    if (s[0] == '\n')
        return true;
    if (letter) {
        code = (unsigned char)means[letter - letters];
    } else if (s[0] >= '0' && s[0] <= '7') {
        for (*used = 0; *used < 3 && *used < n && s[*used] >= '0' && s[*used] <= '7'; ++*used)
            code = code << 3 | (uint32_t)(s[*used] - '0');
    } else if (s[0] == 'x' || s[0] == 'u' || s[0] == 'U') {
        const size_t count = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : 8;
        if (!hex(s + 1, n - 1, count, &code))
            return false;
        *used = 1 + count;
    } else if (s[0] == 'N') {
        return false;
    } else { /* not an escape: the backslash stays */
        out[0] = '\\';
        *used = 0;
        *made = 1;
        return true;
    }
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        return false;
    *made = jinja_encode(code, out);
    return true;
}

static enum status lex_string(struct lexer *l, struct token *out)
{
    const char quote = here(l)[0], *s = here(l) + 1;
    size_t n = 0, made = 0;
    while (n + 1 < rest(l) && s[n] != quote)
        n += s[n] == '\\' ? 2 : 1;
    if (n + 1 >= rest(l))
        return bad(l, "a string is not ended");
    char *text = jinja_arena_take(&l->t->arena, n + 4); /* an escape is no shorter than its text */
    if (!text)
        return base_fail(l->err, l->t->arena.full ? ERR_MODEL : ERR_NOMEM,
                         "%s: no memory for a string", l->t->where);
    for (size_t i = 0; i < n;) {
        size_t used = 1, bytes = 1;
        if (s[i] != '\\') {
            text[made] = s[i];
        } else if (!unescape(s + i + 1, n - i - 1, &used, text + made, &bytes)) {
            l->at += 1 + i;
            return bad(l, "this escape is not supported in a string");
        } else {
            used++;
        }
        i += used;
        made += bytes;
    }
    out->kind = TOKEN_LITERAL;
    out->value = (struct value){.kind = VALUE_STRING, .s = {.bytes = text, .n = made}};
    l->at += n + 2;
    return OK;
}

/* ---- the rest of a tag ---- */

static enum status lex_operator(struct lexer *l, struct token *out)
{
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                            "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                            ">",  "<",  "=",  ".",  ":",  "|",  ","};
    static const char opening[] = "([{", closing[] = ")]}";
    size_t i = 0;
    while (i < ARRAY_LEN(operators) && !looking_at(l, operators[i]))
        i++;
    if (i == ARRAY_LEN(operators))
        return bad(l, "this character is not expected here");
    const char c = here(l)[0];
    if (strchr(opening, c)) {
        if (l->open_count == LEX_BRACKETS_MAX)
            return bad(l, "nested too deep");
        l->open[l->open_count++] = closing[strchr(opening, c) - opening];
    } else if (strchr(closing, c)) {
        if (l->open_count == 0 || l->open[l->open_count - 1] != c)
            return bad(l, "this bracket closes nothing");
        l->open_count--;
    }
    out->kind = TOKEN_OPERATOR;
    out->bytes = operators[i];
    out->n = strlen(operators[i]);
    l->at += out->n;
    return OK;
}

static size_t name_bytes(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && (isalnum((unsigned char)s[i]) || s[i] == '_'))
        i++;
    return i;
}

static enum status lex_tag(struct lexer *l, struct token *out)
{
    skip_space(l);
    *out = (struct token){.kind = TOKEN_END, .at = (uint32_t)l->at};
    if (rest(l) == 0)
        return OK;
    const bool block = l->closes == TOKEN_BLOCK_END;
    if (l->open_count == 0 && skip_close(l, block ? '%' : '}', block, block)) {
        out->kind = l->closes;
        l->closes = TOKEN_END;
        return OK;
    }
    const char c = here(l)[0];
    if (c >= '0' && c <= '9')
        return lex_number(l, out);
    if (c == '\'' || c == '"')
        return lex_string(l, out);
    if (!isalpha((unsigned char)c) && c != '_')
        return lex_operator(l, out);
    out->kind = TOKEN_NAME;
    out->bytes = here(l);
    out->n = name_bytes(here(l), rest(l));
    l->at += out->n;
    return OK;
}

enum status jinja_lex(struct lexer *l, struct token *out)
{
    enum status st = OK;
    if (l->pending.kind != TOKEN_END) {
        *out = l->pending;
        l->pending.kind = TOKEN_END;
        return OK;
    }
    if (l->closes != TOKEN_END)
        return lex_tag(l, out);
    do {
        if (rest(l) == 0 && l->pending.kind == TOKEN_END) {
            *out = (struct token){.kind = TOKEN_END, .at = (uint32_t)l->at};
            return OK;
        }
        st = lex_text(l, out);
    } while (st == OK && out->n == 0 && l->pending.kind == TOKEN_END);
    return st;
}
