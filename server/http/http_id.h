/* The id of a request, which its answer carries as X-Request-Id. */
#ifndef TESSERA_SERVER_HTTP_HTTP_ID_H
#define TESSERA_SERVER_HTTP_HTTP_ID_H

#define HTTP_ID_MAX 128

/* The client's, when it is printable and not too long; else one of ours. NULL: there is none. */
void http_id_choose(const char *from_client, char id[HTTP_ID_MAX + 1]);

#endif
