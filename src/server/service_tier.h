/* service_tier.h - choice of a request's service class; for src/server only.
 *
 *   service_tier     class
 *   absent, "auto"   the key's default
 *   "default"        the server's default
 *   "flex"           the lowest class
 *   "priority"       the highest class; also "scale", which clients of OpenAI's API may send
 *   a class's name   that class (even if the name is one of the words above)
 *
 * A request for a class above the maximum of its key gets the maximum, as OpenAI does for projects
 * without priority processing. The reply's service_tier tells the class: as a word of OpenAI's if
 * the request used one, because typed clients fail on unknown words; else as the class's name. A
 * pin is refused in this case, because it is a promise about the budget of one class.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_SERVICE_TIER_H
#define QUIRE_SERVER_SERVICE_TIER_H

#include "engine/classes.h"
#include "quire/error.h"
#include "server/auth.h"
#include "server/fields.h"

#define QUIRE_TIER_TEXT_MAX 64u /* bytes of the fields */

typedef struct quire_tiers {
    quire_classes classes; /* resolved */
    uint32_t default_index;
} quire_tiers;

/* classes.n 0 = one class. default_name NULL = "standard" if it exists, else the lowest class.
 * Errors: QUIRE_INVAL, with a message for people. */
int quire_tiers_init(quire_tiers *tiers, const quire_classes *classes, const char *default_name,
                     quire_error *err);

/* Set a key's highest class and default class, by name (NULL = not given). `what` names the key in
 * messages. Errors: QUIRE_INVAL. */
int quire_tiers_limit(const quire_tiers *tiers, const char *what, const quire_server_key *key,
                      quire_caller *caller, quire_error *err);

typedef struct quire_tier {
    uint32_t class_index;
    const char *reply; /* service_tier of the reply; NULL = the request has none */
} quire_tier;

/* Choose the class by the fields service_tier and priority; priority may also be a text. Errors:
 * fields->err. */
void quire_tier_read(const quire_tiers *tiers, const quire_caller *caller, quire_fields *fields,
                     quire_tier *out);

/* A pin's class; NULL = the caller's default. Errors: err (400; 403 for a class above the key's
 * maximum). */
int quire_tier_of_pin(const quire_tiers *tiers, const quire_caller *caller, const char *name,
                      uint32_t *class_index, quire_api_error *err);

#endif /* QUIRE_SERVER_SERVICE_TIER_H */
