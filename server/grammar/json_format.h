/* The formats of strings that JSON Schema names (2020-12, validation, section 7.3), as regular
 * expressions; each a part of what the format allows, where that is not regular. Pure. */
#ifndef TESSERA_SERVER_GRAMMAR_JSON_FORMAT_H
#define TESSERA_SERVER_GRAMMAR_JSON_FORMAT_H

#include <stddef.h>

/* For the whole string; NULL: the format is not known. */
const char *json_format_pattern(const char *name);
/* The known one that may be meant; NULL: there is none. */
const char *json_format_nearest(const char *name);

#endif
