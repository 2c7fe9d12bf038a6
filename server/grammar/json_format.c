#include "server/grammar/json_format.h"

#include "config/base.h"

#include <string.h>

/* RFC 3339, section 5.6; years from 1000, days by the length of the month, February with 28 */
#define DATE                                                                                       \
    "[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"                              \
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define CLOCK "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?"
#define ZONE "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
/* RFC 1123: labels of up to 63 letters, digits and hyphens inside */
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST LABEL "(?:\\." LABEL "){0,3}"
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", DATE},
    {"time", CLOCK ZONE},
    {"date-time", DATE "T" CLOCK ZONE},
    /* RFC 3339, appendix A, without weeks */
    {"duration", "P(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|"
                 "[0-9]{1,9}D|(?:[0-9]{1,9}D)?T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|"
                 "[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))"},
    {"email", ATOM "(?:\\." ATOM "){0,2}@" HOST},
    {"hostname", HOST},
    {"ipv4", OCTET "(?:\\." OCTET "){3}"},
    /* RFC 4291, section 2.2, form 1: all eight groups */
    {"ipv6", "[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){7}"},
    /* RFC 3986: with an authority and without percent signs that stand for nothing */
    {"uri", "[a-z][a-z0-9+.-]{0,15}://" HOST "(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~!$&'()*+,;=:@/-]*)?"
            "(?:\\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?(?:#[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?"},
    {"uuid", "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
};

const char *json_format_pattern(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(formats); i++)
        if (strcmp(name, formats[i].name) == 0)
            return formats[i].pattern;
    return NULL;
}

const char *json_format_nearest(const char *name)
{
    const int most = strlen(name) < 8 ? 1 : 2; /* slips; of short names two make any other one */
    const char *best = NULL;
    for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
        const int d = base_edit_distance(name, formats[i].name);
        if (d <= most && (!best || d < base_edit_distance(name, best)))
            best = formats[i].name;
    }
    return best;
}
