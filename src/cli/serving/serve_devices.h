/* serve_devices.h - several devices of quire serve: --device with commas, and the list `placement`.
 *
 * The first device is that of the server's own session; the others have a runtime each beside it,
 * on the same model.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_DEVICES_H
#define QUIRE_CLI_SERVE_DEVICES_H

#include "cli/commands/opened.h"
#include "cli/serving/serve_args.h"
#include "cli/serving/serve_events.h"
#include "cli/serving/serve_log.h"
#include "cli/serving/serve_store.h"
#include "engine/replicas.h"
#include "server/service_tier.h"
#include "server/tenant.h"

typedef struct quire_serve_devices {
    char *text; /* of --device, cut at its commas; the names point into it */
    const char *names[QUIRE_REPLICAS_MAX];
    uint32_t n;                                /* 0: --device was not given */
    quire_binding *bindings;                   /* [n_bindings] */
    quire_tenant_salt *tenants;                /* [n_bindings], of those of tenants */
    char **bound;                              /* [n_places] names of tenants; NULL = of a class */
    uint32_t n_places;                         /* entries of the list */
    uint32_t n_bindings;                       /* read so far */
    quire_opened sessions[QUIRE_REPLICAS_MAX]; /* [n - 1], of devices 1 to n - 1 */
    quire_engine_device items[QUIRE_REPLICAS_MAX];
    bool is_lost[QUIRE_REPLICAS_MAX];       /* and the log says so */
    const char *lost_last;                  /* of these; NULL = none */
    char lost_part[QUIRE_SPLIT_NAME_BYTES]; /* of a split; "" = none */
} quire_serve_devices;

/* Read the names and the placement, and check the settings that depend on several devices.
 * args->common.device becomes the first name; n_cpus, card and n_cards of args are set.
 * Errors: QUIRE_INVAL, QUIRE_NOMEM; err names the setting. Memory: quire_serve_devices_fini(), also
 * after a failure. */
int quire_serve_devices_read(quire_serve_devices *out, quire_serve_args *args,
                             const quire_tiers *tiers, quire_error *err);
void quire_serve_devices_fini(quire_serve_devices *devices);

/* Whether the devices beyond the first are there, before weights are loaded. Errors: as
 * quire_device_open(). */
int quire_serve_devices_look(const quire_serve_devices *devices, quire_error *err);

/* The share of the memory left when device i opens that its KV budget may take. With these shares
 * all devices of one name together take `share` of their memory, in equal parts. */
double quire_serve_devices_share(const quire_serve_devices *devices, uint32_t i, double share);

/* The wants of device i >= 1 beside the devices before it, from those of the first; own: its
 * settings, which name it. Memory that the devices have in common was counted with the first. */
quire_opened_want quire_serve_devices_want(const quire_serve_devices *devices, uint32_t i,
                                           const quire_serve_args *own,
                                           const quire_opened_want *first);

/* Open the stores of all devices and the runtimes beyond the first, and fill in the engine's
 * options of devices, stores and watchers. *store: that of the first device, the caller's until an
 * engine has it; NULL = none. Errors: quire_opened_open_runtime(), quire_serve_store_open().
 * Memory: quire_serve_devices_close(), also after a failure. */
typedef struct quire_serve_devices_from {
    const quire_opened *first; /* with its runtime */
    const quire_serve_args *args;
    const quire_opened_want *want;
    quire_serve_tenants *tenants;
    const quire_serve_log *log;
    const quire_serve_watchers *watchers;
} quire_serve_devices_from;
int quire_serve_devices_open(quire_serve_devices *devices, const quire_serve_devices_from *from,
                             quire_engine_opts *out, quire_store **store, quire_error *err);
/* The engine has taken the stores. */
void quire_serve_devices_taken(quire_serve_devices *devices);
/* The engine has ended. */
void quire_serve_devices_close(quire_serve_devices *devices);

/* Whether a device can be lost. */
bool quire_serve_devices_can_end(const quire_serve_devices *devices);
/* Move the pins of lost devices, unless all are lost. The log has a line for each device that was
 * lost since the last call, and for pins that moved later. first: the runtime of the first device.
 */
void quire_serve_devices_watch(quire_serve_devices *devices, quire_engine *engine,
                               const quire_runtime *first, const quire_serve_log *log);
/* The engine has ended: note which device of a split was lost. */
void quire_serve_devices_part_lost(quire_serve_devices *devices, const quire_engine *engine);
/* The device whose loss ended the engine. */
const char *quire_serve_devices_lost(const quire_serve_devices *devices,
                                     const quire_serve_args *args);
/* The line of the log for that loss; and_then: what the server does. */
void quire_serve_devices_say_lost(const char *device, const quire_runtime *runtime,
                                  const char *and_then, const quire_serve_log *log);

#endif /* QUIRE_CLI_SERVE_DEVICES_H */
