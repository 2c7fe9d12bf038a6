/* Does a text match a regular expression? For the few that a schema gives itself. */
#ifndef TESSERA_SERVER_GRAMMAR_PATTERN_MATCH_H
#define TESSERA_SERVER_GRAMMAR_PATTERN_MATCH_H

#include "config/base.h"

enum { PATTERN_MATCH_TEXT_MAX = 1023 }; /* characters */

struct pattern_match;
/* As pattern_build reads it, which has more to refuse. ERR_INPUT: what is wrong or not supported.
 */
enum status pattern_match_open(const char *pattern, size_t n, bool whole,
                               struct pattern_match **out, struct err *err) MUST_USE;
void pattern_match_close(struct pattern_match *m); /* NULL is fine */
/* text is valid UTF-8. Takes steps from *steps, which are comparisons of characters. ERR_INPUT: the
 * text is too long, or no steps are left. */
enum status pattern_match_fits(struct pattern_match *m, const char *text, int32_t *steps,
                               bool *fits, struct err *err) MUST_USE;

#endif
