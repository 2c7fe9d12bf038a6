/* UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef TESSERA_CONFIG_UTF8_H
#define TESSERA_CONFIG_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character that text (n bytes) begins with; 0 when it begins with none, be it invalid
 * or cut short. */
size_t utf8_char(const char *text, size_t n);
/* The code point of that character, whose bytes they are (n of 1 to 4). */
uint32_t utf8_code(const char *character, size_t n);
/* True when more bytes after these n (>= 1) can still make a character of them. */
bool utf8_is_prefix(const char *text, size_t n);
/* Is all of it UTF-8? */
bool utf8_is_valid(const char *text, size_t n);
/* UTF-8 without controls: fit for JSON, for labels and for a terminal. */
bool utf8_is_plain(const char *text);
/* Characters of valid text. */
size_t utf8_count(const char *text, size_t n);

#endif
