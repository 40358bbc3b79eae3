/* response_store.h - answers of /v1/responses that later requests continue (previous_response_id).
 *
 * A stored response has the messages of its turn, in OpenAI's chat form, and the response before
 * it. A conversation is the chain of these, so a long one takes the memory of its turns once, and
 * two requests may continue one response. Responses belong to a tenant and a cache_salt, and no
 * other finds them.
 *
 * Bounds: QUIRE_RESPONSES_MAX responses and QUIRE_RESPONSES_BYTES_MAX of texts; beyond, the one
 * used longest ago goes. Its turn stays as long as a later response needs it. A restart forgets
 * all.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_RESPONSE_STORE_H
#define QUIRE_SERVER_RESPONSE_STORE_H

#include <jansson.h>

#include "server/tenant.h"

#define QUIRE_RESPONSES_MAX       4096u
#define QUIRE_RESPONSES_BYTES_MAX ((size_t)64 << 20)
#define QUIRE_RESPONSE_ID_MAX     64u

typedef struct quire_response_store quire_response_store;

typedef struct quire_response_limits {
    uint32_t n_max;
    size_t bytes_max;
} quire_response_limits;

/* limits NULL = those above. Errors: QUIRE_NOMEM. */
int quire_response_store_create(quire_response_store **out, const quire_response_limits *limits);
void quire_response_store_destroy(quire_response_store *store);

typedef struct quire_response {
    const char *id;
    const char *previous_id; /* NULL = none */
    const quire_tenant_salt *salt;
    const json_t *messages; /* of the turn: new messages and the answer */
    const char *reply;      /* JSON of the response, for GET */
} quire_response;

/* Store a response; texts are copied. A response whose predecessor has gone is not stored:
 * QUIRE_NOTFOUND. Errors: QUIRE_LIMIT (with the turns before it larger than all that is allowed),
 * QUIRE_NOMEM. */
int quire_response_store_add(quire_response_store *store, const quire_response *response);
/* The messages of a conversation up to this response, oldest first. Memory: json_decref(*messages).
 * Errors: QUIRE_NOTFOUND, QUIRE_NOMEM. */
int quire_response_store_chain(quire_response_store *store, const quire_tenant_salt *salt,
                               const char *id, json_t **messages);
/* The JSON of a response. Memory: free(*reply). Errors: QUIRE_NOTFOUND, QUIRE_NOMEM. */
int quire_response_store_get(quire_response_store *store, const quire_tenant_salt *salt,
                             const char *id, char **reply);
/* Forget a response. Errors: QUIRE_NOTFOUND. */
int quire_response_store_drop(quire_response_store *store, const quire_tenant_salt *salt,
                              const char *id);
uint32_t quire_response_store_count(const quire_response_store *store);
size_t quire_response_store_bytes(const quire_response_store *store);

#endif /* QUIRE_SERVER_RESPONSE_STORE_H */
