/* tier.h - which service class a request gets; for src/server only.
 *
 *   service_tier     class
 *   absent, "auto"   the key's default
 *   "default"        the server's default
 *   "flex"           the lowest there is
 *   "priority"       the highest there is; "scale", which clients of OpenAI's may send, is the same
 *   a class's name   that one (also where it is one of the words above)
 *
 * No request gets a higher class than its key may ask for: it gets that one instead, as OpenAI does
 * with a project that has no priority processing, and the reply's service_tier says so. It speaks
 * the client's language: a word of OpenAI's where the request used one, else the class's name,
 * since a typed client fails on a word that it does not know. A pin is refused instead: it is a
 * promise about one budget and cannot stand in another's place.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_TIER_H
#define QUIRE_SERVER_TIER_H

#include "engine/classes.h"
#include "quire/error.h"
#include "server/auth.h"
#include "server/fields.h"

#define QUIRE_TIER_TEXT_MAX 64u /* bytes of the fields */

typedef struct quire_tiers {
    quire_classes classes; /* resolved */
    uint32_t default_index;
} quire_tiers;

/* classes.n 0 = one class. default_name NULL = "standard" where there is one, else the lowest.
 * Errors: QUIRE_INVAL, with a message for people. */
int quire_tiers_init(quire_tiers *tiers, const quire_classes *classes, const char *default_name,
                     quire_error *err);

/* What a key may ask for, by names (NULL = not said); what names the key in messages. Errors:
 * QUIRE_INVAL. */
int quire_tiers_limit(const quire_tiers *tiers, const char *what, const quire_server_key *key,
                      quire_caller *caller, quire_error *err);

typedef struct quire_tier {
    uint32_t class_index;
    const char *reply; /* service_tier of the reply; NULL = the request did not ask */
} quire_tier;

/* From the fields service_tier and priority, of which the latter may be a text too. Errors:
 * fields->err. */
void quire_tier_read(const quire_tiers *tiers, const quire_caller *caller, quire_fields *fields,
                     quire_tier *out);

/* A pin's class; NULL = the caller's default. Errors: err (400; 403 for one that the key may not
 * ask for). */
int quire_tier_of_pin(const quire_tiers *tiers, const quire_caller *caller, const char *name,
                      uint32_t *class_index, quire_api_error *err);

#endif /* QUIRE_SERVER_TIER_H */
