/* auth.h - who asks: API keys and their tenants.
 *
 * Every key is compared with what was sent, over its whole length, whatever the outcome: the time
 * taken says nothing about keys. Without keys everybody is the tenant "" and may administer; the
 * server then listens on loopback only, and requests that a web page of elsewhere makes a browser
 * send (Host or Origin name another machine) are refused.
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
    bool is_tenant;     /* may use the API; without keys one is both */
    uint32_t class_max; /* indices: what it may ask for, and what it gets when it does not ask */
    uint32_t class_default;
} quire_caller;

/* tiers: borrowed. Errors: QUIRE_INVAL (a key or tenant that is empty, too long or no printable
 * ASCII, two keys the same, a class that there is not), QUIRE_LIMIT, QUIRE_NOMEM. */
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

/* authorization: the header "Bearer KEY", NULL when absent. Fills *out when it is OK. */
quire_auth_result quire_auth_find(const quire_auth *auth, const char *authorization,
                                  quire_caller *out);

/* Whether a Host header or an Origin ("http://localhost:8080") names this machine by a loopback
 * name or address. NULL (absent) does. */
bool quire_auth_is_local(const char *host_or_origin);
/* The same for the address a server listens on: without name and port. */
bool quire_auth_is_loopback(const char *host);

#endif /* QUIRE_SERVER_AUTH_H */
