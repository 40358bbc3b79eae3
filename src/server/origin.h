/* origin.h - other machines that a browser's page or a proxy may name: the settings allowed_hosts
 * and cors_origins.
 *
 * A list is a text with commas: names of hosts without a port, or origins such as
 * https://app.example:8443; "*" allows all. Upper and lower case are the same.
 *
 * Thread: any, after creation.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_ORIGIN_H
#define QUIRE_SERVER_ORIGIN_H

#include <stdbool.h>
#include <stddef.h>

#include "quire/error.h"

#define QUIRE_ORIGINS_MAX      64u  /* of one list */
#define QUIRE_ORIGIN_BYTES_MAX 255u /* of one item */

typedef struct quire_origins {
    char *text; /* owned; items end with NUL */
    const char *items[QUIRE_ORIGINS_MAX];
    unsigned n;
    bool has_all; /* "*" */
} quire_origins;

/* Read a list; NULL is an empty one. are_hosts: names without scheme, port and path; else origins.
 * Errors, which name the setting `name`: QUIRE_INVAL (an item), QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_origins_init(quire_origins *list, const char *text, const char *name, bool are_hosts,
                       quire_error *err);
void quire_origins_fini(quire_origins *list);

/* Whether the list has this origin, or the host of this Host header (the port does not count). */
bool quire_origins_has(const quire_origins *list, const char *origin);
bool quire_origins_has_host(const quire_origins *list, const char *host);
/* Bytes of a Host header without its port; a bracket that nothing ends is part of the name. */
size_t quire_host_bytes(const char *host);

#endif /* QUIRE_SERVER_ORIGIN_H */
