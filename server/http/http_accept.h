/* What a client wants to read (RFC 9110, section 12.5.1). Pure. */
#ifndef TESSERA_SERVER_HTTP_HTTP_ACCEPT_H
#define TESSERA_SERVER_HTTP_HTTP_ACCEPT_H

#include <stdbool.h>

/* Does an Accept header ask for HTML by name, as those of browsers do? NULL, ranges such as star
 * slash star, and a weight of 0: no. */
bool http_accept_html(const char *accept);

#endif
