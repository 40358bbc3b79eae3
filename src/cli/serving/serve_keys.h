/* serve_keys.h - the API keys of quire serve, from all their sources.
 *
 * Thread: the main thread only (the environment).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_KEYS_H
#define QUIRE_CLI_SERVE_KEYS_H

#include "cli/serving/serve_args.h"
#include "server/service_tier.h"

#define QUIRE_SERVE_TENANT "default" /* of --api-key, and of entries that name none */

typedef struct quire_serve_keys {
    quire_server_key *list; /* [n] */
    char **texts;           /* [n] that were read from files, NULL for the others */
    uint32_t n;
} quire_serve_keys;

/* Collect --api-key, --admin-key and the file's api_keys, whose key_env and key_file are read now.
 * Keys are borrowed from args where they stand there. Errors: QUIRE_INVAL (err names the entry),
 * QUIRE_IO, QUIRE_NOMEM. Memory: quire_serve_keys_fini(), also after a failure. */
int quire_serve_keys_read(quire_serve_keys *out, const quire_serve_args *args,
                          const quire_tiers *tiers, quire_error *err);
void quire_serve_keys_fini(quire_serve_keys *keys);

#endif /* QUIRE_CLI_SERVE_KEYS_H */
