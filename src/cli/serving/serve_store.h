/* serve_store.h - the store below memory that quire serve's settings name.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_STORE_H
#define QUIRE_CLI_SERVE_STORE_H

#include "cli/commands/opened.h"
#include "cli/serving/serve_args.h"
#include "cli/serving/serve_classes.h"
#include "cli/serving/serve_log.h"
#include "engine/overflow.h"
#include "engine/replicas.h"
#include "store/store.h"

/* Check that the settings of the store agree. Errors: QUIRE_INVAL. */
int quire_serve_store_check(const quire_serve_args *args, quire_error *err);

/* Check the settings of the store that need a device, once the device is chosen. Errors:
 * QUIRE_INVAL. */
int quire_serve_host_check(const quire_serve_args *args, quire_error *err);

/* The device is lost: go on with the CPU, without the settings that need a device. */
void quire_serve_device_leave(quire_serve_args *args);

/* Whether there is a store below memory. */
bool quire_serve_has_store(const quire_serve_args *args);

/* Whether the stores have room for the records of a model, of which the largest has so many bytes;
 * 0: pages are larger than a record may be. Errors: QUIRE_INVAL. */
int quire_serve_store_room_check(const quire_serve_args *args, uint64_t record_bytes,
                                 quire_error *err);

/* Whether cache_dir is there or can be made; nothing stays of the attempt. Errors: QUIRE_IO. */
int quire_serve_dir_check(const quire_serve_args *args, quire_error *err);

/* The inputs for opening a store; all are borrowed as long as the store is there. */
typedef struct quire_serve_store_from {
    const quire_serve_args *args;
    quire_serve_tenants *tenants;
    const quire_serve_log *log; /* of trouble */
    uint64_t identity[2];       /* of the model on the device */
    uint64_t record_bytes;      /* quire_serve_store_room_check(); 0 = not known */
} quire_serve_store_from;

/* State that the stores of several devices share. The stores are borrowed: the open store of each
 * kind. All devices use the same store of a kind, except that a shared store belongs to one
 * identity. All zeros for one device. */
typedef struct quire_serve_common {
    bool has_several; /* devices */
    quire_store *host;
    quire_store *file;
    quire_store *shared[QUIRE_REPLICAS_MAX]; /* [n_shared] */
    uint64_t identities[QUIRE_REPLICAS_MAX][2];
    uint32_t n_shared;
} quire_serve_common;

/* Open the store of a device: the host's memory, a directory and a shared store, as far as the
 * settings name them, each behind the store before; *out is NULL if the settings name none. Stores
 * that are open in `common` are used, and newly opened stores are noted there. Errors:
 * quire_file_store_create(), quire_serve_shared_open(), QUIRE_NOMEM. Memory: end with
 * (*out)->ops->close(), or give it to an engine. */
int quire_serve_store_open(quire_store **out, const quire_serve_store_from *from,
                           quire_serve_common *common, quire_error *err);

/* Whether tokens of texts that fill their context move (--context-overflow shift, sinks, condense).
 */
bool quire_serve_moves_tokens(const quire_serve_args *args);
/* Whether tokens choose pages on a device (--attend): these lie in its memory. */
bool quire_serve_attends_on_card(const quire_serve_args *args);
/* Settle for this model whether requests larger than the KV budget run. If kv_overflow is auto and
 * the model cannot, texts are condensed (retain), tokens move or choose pages on a device,
 * args->no_kv_overflow is set: such requests are refused. If the host has too little memory for
 * devices that are not the CPU, these refuse them: args->no_overflow_memory. beside_bytes: see
 * quire_runtime_opts. Errors: quire_opened_overflow_bytes(); quire_overflow_check(), if kv_overflow
 * is tier; QUIRE_INVAL and QUIRE_UNSUPP: kv_overflow_attend asks for pages that are never there. */
int quire_serve_overflow_settle(quire_serve_args *args, quire_opened *described,
                                uint64_t beside_bytes, quire_error *err);
/* Why requests larger than the KV budget are refused beside the setting itself, after
 * quire_serve_overflow_settle(); NULL = nothing refuses them. Printed by --check-config and when
 * serving begins. */
const char *quire_serve_overflow_note(const quire_serve_args *args);
/* Whether requests larger than the KV budget run on args' device: their pages go to a file, or from
 * a device that is not the CPU to the host's memory. */
bool quire_serve_overflow_is_on(const quire_serve_args *args);
/* Whether they run on one of several devices. */
bool quire_serve_overflow_is_on_any(const quire_serve_args *args);
/* Whether steps may attend such pages where they lie: quire_runtime_opts.attends_host. */
bool quire_serve_attends_host(const quire_serve_args *args);

/* The engine's options for them, with this KV budget. Memory: borrows from args. */
quire_overflow_opts quire_serve_overflow(const quire_serve_args *args, uint64_t budget_bytes);

/* Close a store that no engine has taken. NULL is allowed. */
void quire_serve_store_close(quire_store *store);

/* The engine's options for state that outlives a restart, by cache_dir and cache_state: a list of
 * "sessions", "pins" and "reuse" with commas in between, or "none". Memory: borrows from args and
 * log. Errors: QUIRE_INVAL. */
int quire_serve_state_read(quire_saver_opts *out, const quire_serve_args *args,
                           const quire_serve_log *log, quire_error *err);

#endif /* QUIRE_CLI_SERVE_STORE_H */
