/* DESIGN: the table of RFC 3629 section 4: only the second byte's range depends on the first. */
#include "config/utf8.h"

#include <string.h>

/* Length that a first byte announces, and the range of the byte after it; 0: not a first byte. */
static size_t announced(unsigned char first, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (first < 0x80)
        return 1;
    if (first < 0xc2 || first > 0xf4)
        return 0;
    if (first < 0xe0)
        return 2;
    if (first == 0xe0)
        *low = 0xa0;
    if (first == 0xed)
        *high = 0x9f;
    if (first == 0xf0)
        *low = 0x90;
    if (first == 0xf4)
        *high = 0x8f;
    return first < 0xf0 ? 3 : 4;
}

/* How many of the first n bytes fit the character announced; its length in *length. */
static size_t fitting(const char *text, size_t n, size_t *length)
{
    unsigned char low = 0, high = 0;
    *length = n > 0 ? announced((unsigned char)text[0], &low, &high) : 0;
    if (*length == 0)
        return 0;
    size_t k = 1;
    for (; k < n && k < *length; k++) {
        unsigned char c = (unsigned char)text[k];
        if (c < low || c > high)
            break;
        low = 0x80;
        high = 0xbf;
    }
    return k;
}

size_t utf8_char(const char *text, size_t n)
{
    size_t length;
    size_t k = fitting(text, n, &length);
    return k == length ? length : 0;
}

uint32_t utf8_code(const char *character, size_t n)
{
    const unsigned char first = (unsigned char)character[0];
    uint32_t code = n == 1 ? first : first & (0x7fu >> n);
    for (size_t i = 1; i < n; i++)
        code = code << 6 | ((unsigned char)character[i] & 0x3f);
    return code;
}

bool utf8_is_prefix(const char *text, size_t n)
{
    size_t length;
    size_t k = fitting(text, n, &length);
    return length > 0 && k == n && n < length;
}

bool utf8_is_valid(const char *text, size_t n)
{
    for (size_t width; n > 0; text += width, n -= width) {
        width = utf8_char(text, n);
        if (width == 0)
            return false;
    }
    return true;
}

bool utf8_is_plain(const char *text)
{
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            return false;
    return utf8_is_valid(text, strlen(text));
}

size_t utf8_count(const char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}
