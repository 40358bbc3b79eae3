/* serve_shared.h - the shared store that quire serve's settings name (--store).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_SHARED_H
#define QUIRE_CLI_SERVE_SHARED_H

#include "cli/serving/serve_args.h"
#include "cli/serving/serve_log.h"
#include "store/store.h"

/* Check the settings of the shared store, its files included; no server is asked. Errors:
 * QUIRE_INVAL, quire_valkey_store_check(). */
int quire_serve_shared_check(const quire_serve_args *args, quire_error *err);

/* Open the shared store; *out is NULL if the settings name none. identity: of the model. Trouble
 * goes to the log, which is borrowed. Errors: as above, quire_valkey_store_create(). */
int quire_serve_shared_open(quire_store **out, const quire_serve_args *args,
                            const uint64_t identity[2], const quire_serve_log *log,
                            quire_error *err);

#endif /* QUIRE_CLI_SERVE_SHARED_H */
