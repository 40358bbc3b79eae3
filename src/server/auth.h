/* auth.h - authentication: API keys and their tenants.
 *
 * Each key is compared with the sent key over its whole length, regardless of the result, so the
 * time reveals nothing about keys. Without keys every client is the tenant "" and an administrator.
 * The server then listens on loopback only, and refuses requests whose Host or Origin names another
 * machine: a browser sends those for foreign web pages.
 *
 * Thread: any, after creation.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_AUTH_H
#define QUIRE_SERVER_AUTH_H

#include <stdbool.h>
#include <stdint.h>

#include "quire/error.h"
#include "server/server.h"

typedef struct quire_auth quire_auth;
struct quire_tiers;

typedef struct quire_caller {
    const char *tenant; /* owned by quire_auth */
    bool is_admin;
    bool is_tenant;     /* may use the API; without keys, callers are both */
    uint32_t class_max; /* class indices: highest allowed, and default */
    uint32_t class_default;
} quire_caller;

/* tiers: borrowed. Errors: QUIRE_INVAL (a key or tenant that is empty, too long or not printable
 * ASCII, equal keys, an unknown class), QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_auth_create(quire_auth **out, const quire_server_key *keys, uint32_t n_keys,
                      const struct quire_tiers *tiers, quire_error *err);
void quire_auth_destroy(quire_auth *auth);
bool quire_auth_has_keys(const quire_auth *auth);

typedef enum quire_auth_result {
    QUIRE_AUTH_OK,
    QUIRE_AUTH_MISSING, /* no header, or one without a key */
    QUIRE_AUTH_SCHEME,  /* not "Bearer" */
    QUIRE_AUTH_WRONG    /* no such key */
} quire_auth_result;

/* authorization: the header "Bearer KEY", api_key: the header x-api-key; NULL when absent. If both
 * hold a key, authorization counts. Fills *out when it is OK. */
quire_auth_result quire_auth_find(const quire_auth *auth, const char *authorization,
                                  const char *api_key, quire_caller *out);

/* Whether a Host header or an Origin ("http://localhost:8080") names this machine by a loopback
 * name or address. NULL (absent) does. */
bool quire_auth_is_local(const char *host_or_origin);
/* The same for the address that a server listens on, without name and port. */
bool quire_auth_is_loopback(const char *host);

#endif /* QUIRE_SERVER_AUTH_H */
