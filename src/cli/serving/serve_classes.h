/* serve_classes.h - service classes and tenants of quire serve, from its file of settings.
 *
 * Thread: the main thread only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_CLASSES_H
#define QUIRE_CLI_SERVE_CLASSES_H

#include "cli/serving/serve_args.h"
#include "server/service_tier.h"
#include "store/file/file_store.h"

/* Tenants with an account of their own: entry i has number i + 1. */
typedef struct quire_serve_tenants {
    const char **names;        /* [n]; memory: the file's */
    quire_account_opts *items; /* [n] */
    quire_file_account *disk;  /* [n] */
    uint32_t n;
} quire_serve_tenants;

/* Read the classes of the file, highest first, or the default classes; and the classes of keys.
 * Errors: QUIRE_INVAL, QUIRE_RANGE; err names file, entry and field. */
int quire_serve_classes_read(quire_tiers *out, const quire_serve_args *args, quire_error *err);

/* Errors: as above, QUIRE_NOMEM. Memory: quire_serve_tenants_fini(), also after a failure. */
int quire_serve_tenants_read(quire_serve_tenants *out, const quire_serve_args *args,
                             quire_error *err);
void quire_serve_tenants_fini(quire_serve_tenants *tenants);
/* As the engine wants them. Memory: tenants' own. */
quire_engine_accounts quire_serve_tenants_accounts(quire_serve_tenants *tenants);
/* As the file store wants them: sets accounts, n_accounts, account_of and account_ctx. Memory: as
 * above. */
void quire_serve_tenants_disk(quire_serve_tenants *tenants, quire_file_store_opts *opts);

#endif /* QUIRE_CLI_SERVE_CLASSES_H */
