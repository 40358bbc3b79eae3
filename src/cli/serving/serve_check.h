/* serve_check.h - checks at the start of quire serve before weights are loaded, so that
 * --check-config refuses the same settings.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_CHECK_H
#define QUIRE_CLI_SERVE_CHECK_H

#include "cli/commands/opened.h"
#include "cli/serving/serve_args.h"
#include "cli/serving/serve_devices.h"

/* A model that is described, and its server. Borrowed. */
typedef struct quire_serve_described {
    quire_opened *session; /* gets the maps of `predict` */
    const quire_serve_args *args;
    const quire_server_opts *opts;
    const quire_serve_devices *devices;
    const quire_opened_want *want;
    quire_runtime_opts *plan; /* of the first device, with kv_pairs */
} quire_serve_described;

/* Whether the runtimes of all devices, the stores and the engine can be made. A context that the
 * settings leave open becomes one that all devices have room for. Errors: those of
 * quire_runtime_opts_check(), quire_opened_plan(), quire_context_condense_check(),
 * quire_serve_store_room_check(), quire_serve_retain_check(); QUIRE_INVAL (the overflow file;
 * regions of a device behind the first). */
int quire_serve_described_check(const quire_serve_described *described, quire_error *err);

/* A note on a KV budget that has more bytes than memory; "" where there is none. */
#define QUIRE_SERVE_BUDGET_NOTE_MAX 192u
void quire_serve_budget_note(const quire_serve_described *described,
                             char note[QUIRE_SERVE_BUDGET_NOTE_MAX]);

/* The same on the engine. Errors: quire_engine_context_check() and those behind it. */
int quire_serve_engine_check(const quire_engine *engine, const quire_serve_args *args,
                             const quire_server_opts *opts, quire_error *err);

#endif /* QUIRE_CLI_SERVE_CHECK_H */
