/* The API's routes. ctx of each is the struct service. Handlers run on HTTP threads: what needs
 * time goes to the request workers. */
#ifndef TESSERA_SERVER_ROUTE_H
#define TESSERA_SERVER_ROUTE_H

#include "server/http/http.h"

void route_completions(void *ctx, struct http_request *r);     /* POST /v1/completions */
void route_chat(void *ctx, struct http_request *r);            /* POST /v1/chat/completions */
void route_chat_responses(void *ctx, struct http_request *r);  /* POST /v1/responses */
void route_chat_messages(void *ctx, struct http_request *r);   /* POST /v1/messages */
void route_chat_count(void *ctx, struct http_request *r);      /* POST /v1/messages/count_tokens */
void route_embeddings(void *ctx, struct http_request *r);      /* POST /v1/embeddings */
void route_tokenize(void *ctx, struct http_request *r);        /* POST /tokenize */
void route_detokenize(void *ctx, struct http_request *r);      /* POST /detokenize */
void route_tokenizer_info(void *ctx, struct http_request *r);  /* GET /tokenizer_info */
void route_models(void *ctx, struct http_request *r);          /* GET /v1/models */
void route_models_by_name(void *ctx, struct http_request *r);  /* GET /v1/models/{id} */
void route_models_document(void *ctx, struct http_request *r); /* GET /openapi.json */

/* The chat page, which uses the routes above. It holds no data, and needs no key. */
#define ROUTE_PAGE "/index.html"
#define ROUTE_PAGE_STYLE "/style.css"
#define ROUTE_PAGE_SCRIPT "/script.js"
void route_page(void *ctx, struct http_request *r);
void route_page_style(void *ctx, struct http_request *r);
void route_page_script(void *ctx, struct http_request *r);

#endif
