/* What a client may ask of a connection. Each is an option (config/options.c), which holds the
 * defaults. */
#ifndef TESSERA_SERVER_HTTP_HTTP_LIMITS_H
#define TESSERA_SERVER_HTTP_HTTP_LIMITS_H

#include <stddef.h>
#include <stdint.h>

struct http_limits {
    int32_t connections;
    /* of a request's head */
    size_t header_bytes, target_bytes;
    int32_t headers;
    size_t body_bytes;   /* of one body; more is 413 */
    size_t bodies_bytes; /* of all bodies held at once; more is 503 */
    size_t unsent_bytes; /* of one stream; a slower reader is dropped */
    size_t output_bytes; /* of all answers larger than unsent_bytes, until they are sent */
    /* seconds, from the first byte to the last whatever comes between */
    double header_s, body_s;
    double send_s; /* of a stream with something unsent, without progress */
    double idle_s; /* between requests */
};

#endif
