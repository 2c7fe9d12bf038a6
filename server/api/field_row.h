/* Short forms of rows, for the files that have tables of them. AT(member) is the includer's: where
 * in its target a row stores. */
#ifndef TESSERA_SERVER_API_FIELD_ROW_H
#define TESSERA_SERVER_API_FIELD_ROW_H

#include "server/api/field.h"

#include <math.h>
#include <stddef.h>

#define INT(field, low, high)                                                                      \
    {                                                                                              \
        .name = #field, .kind = FIELD_INT, .int_min = (low), .int_max = (high), AT(field)          \
    }
#define OPTIONAL_INT(field, low, high)                                                             \
    {                                                                                              \
        .name = #field, .kind = FIELD_INT, .int_min = (low), .int_max = (high),                    \
        .no_default = true, AT(field)                                                              \
    }
#define NUMBER(field, low, high, open)                                                             \
    {                                                                                              \
        .name = #field, .kind = FIELD_NUMBER, .min = (low), .max = (high), .above_min = (open),    \
        AT(field)                                                                                  \
    }
#define BOOL(field)                                                                                \
    {                                                                                              \
        .name = #field, .kind = FIELD_BOOL, AT(field)                                              \
    }
#define LIST(field, field_kind, count)                                                             \
    {                                                                                              \
        .name = #field, .kind = (field_kind), .int_max = (count), AT(field)                        \
    }
#define STRING(field, low, high)                                                                   \
    {                                                                                              \
        .name = #field, .kind = FIELD_STRING, .int_min = (low), .int_max = (high), AT(field)       \
    }
#define UNSUPPORTED(field, field_kind, nothing)                                                    \
    {                                                                                              \
        .name = #field, .kind = (field_kind), .use = FIELD_UNSUPPORTED, .int_min = INT64_MIN,      \
        .int_max = INT64_MAX, .min = -HUGE_VAL, .max = HUGE_VAL, .neutral = (nothing)              \
    }
#define IGNORED(field)                                                                             \
    {                                                                                              \
        .name = #field, .use = FIELD_IGNORED                                                       \
    }

#endif
