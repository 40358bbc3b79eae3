/* serve_devices.c - see serve_devices.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_devices.h"

#include "base/check.h"
#include "base/num.h"
#include "cli/commands/device_choice.h"
#include "engine/pins.h"
#include "model/kv_identity.h"
#include "model/memory.h"
#include "store/page_io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

static int names_read(quire_serve_devices *out, const quire_common_args *args, quire_error *err)
{
    const char *device = args->device;
    char *rest;

    if (device == NULL) {
        return QUIRE_OK;
    }
    if (args->split_mode != QUIRE_SPLIT_NONE) {
        out->names[out->n++] = device; /* several devices with one runtime */
        return QUIRE_OK;
    }
    out->text = strdup(device);
    if (out->text == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    rest = out->text;
    while (rest != NULL) {
        char *comma = strchr(rest, ',');

        if (out->n == QUIRE_REPLICAS_MAX) {
            return quire_error_set(err, QUIRE_INVAL, "device: more than %u names",
                                   QUIRE_REPLICAS_MAX);
        }
        if (comma != NULL) {
            *comma++ = '\0';
        }
        out->names[out->n++] = rest;
        rest = comma;
    }
    for (uint32_t i = 0; out->n > 1 && i < out->n; i++) {
        if (out->names[i][0] == '\0' || strcmp(out->names[i], "auto") == 0) {
            return quire_error_set(err, QUIRE_INVAL, "device: '%s' among several names",
                                   out->names[i]);
        }
    }
    return QUIRE_OK;
}

/* ---- relay ---- */

#define RELAY_BYTES ((uint64_t)256 << 20)
#define RELAY_SHARE 16u /* of the host's memory: one part at most */

/* Whether two names are of one kind, as vulkan0 and vulkan1 are. */
static bool are_alike(const char *a, const char *b)
{
    const size_t n = strcspn(a, "0123456789");

    return n == strcspn(b, "0123456789") && memcmp(a, b, n) == 0;
}

static bool has_twins(const quire_serve_devices *devices)
{
    for (uint32_t i = 0; i < devices->n; i++) {
        for (uint32_t j = 0; j < i; j++) {
            if (are_alike(devices->names[i], devices->names[j])) {
                return true;
            }
        }
    }
    return false;
}

/* Pages go from one device to another through a store. Without one, a part of the host's memory is
 * it, unless cache_host_memory is 0. */
static void relay_settle(const quire_serve_devices *devices, quire_serve_args *args)
{
    const uint64_t limit = args->common.memory_limit_bytes != 0 ? args->common.memory_limit_bytes
                                                                : quire_memory_available();

    if (has_twins(devices) && !args->no_prefix_cache && !args->is_host_given &&
        !quire_serve_has_store(args)) {
        args->is_relay = true;
        args->cache_host_bytes = quire_min_u64(RELAY_BYTES, limit / RELAY_SHARE);
    }
}

/* ---- placement ---- */

/* The devices with names in a list with commas. */
static int mask_read(const quire_serve_devices *devices, const char *list, uint32_t *mask,
                     const char **unknown)
{
    bool has_more = true;

    *mask = 0;
    while (has_more) {
        const size_t n = strcspn(list, ",");
        uint32_t found = 0;

        for (uint32_t i = 0; i < devices->n; i++) {
            found |= strlen(devices->names[i]) == n && memcmp(devices->names[i], list, n) == 0
                         ? 1u << i
                         : 0;
        }
        *unknown = list;
        QUIRE_FAIL_IF(found == 0, QUIRE_NOTFOUND);
        *mask |= found;
        has_more = list[n] == ',';
        list += n + has_more;
    }
    return QUIRE_OK;
}

/* Of two bindings of one class or tenant one would have no effect. */
static int check_twice(const quire_serve_devices *devices, const quire_serve_args *args,
                       const char *bound, quire_error *err)
{
    const uint32_t i = devices->n_bindings;
    const quire_binding *b = &devices->bindings[i];

    for (uint32_t j = 0; j < i; j++) {
        const quire_binding *other = &devices->bindings[j];

        if ((b->tenant == NULL) == (other->tenant == NULL) &&
            b->class_index == other->class_index && b->tenant_bytes == other->tenant_bytes &&
            (b->tenant == NULL || memcmp(b->tenant, other->tenant, b->tenant_bytes) == 0)) {
            return quire_error_set(
                err, QUIRE_INVAL, "%.200s: placement[%u]: %s '%.60s' is bound by placement[%u]",
                args->settings.path, i + 1, b->tenant != NULL ? "tenant" : "class", bound, j + 1);
        }
    }
    return QUIRE_OK;
}

static int add_binding(quire_serve_devices *out, const quire_serve_args *args,
                       const quire_tiers *tiers, quire_error *err)
{
    const uint32_t i = out->n_bindings;
    quire_binding *b = &out->bindings[i];
    quire_config_placement entry;
    const char *unknown;

    QUIRE_TRY(quire_config_file_entry(args->settings.file, QUIRE_CONFIG_PLACEMENT, i, &entry, err));
    if ((entry.tenant == NULL) == (entry.class_name == NULL) || entry.devices == NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%.200s: placement[%u] needs devices, and either class or tenant",
                               args->settings.path, i + 1);
    }
    if (mask_read(out, entry.devices, &b->devices, &unknown) < 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%.200s: placement[%u]: '%.*s' is not among the names of device",
                               args->settings.path, i + 1, (int)strcspn(unknown, ","), unknown);
    }
    if (entry.tenant != NULL) {
        quire_tenant_salts_begin(&out->tenants[i], entry.tenant);
        b->tenant = out->tenants[i].bytes;
        b->tenant_bytes = out->tenants[i].n;
        out->bound[i] = strdup(entry.tenant);
        if (out->bound[i] == NULL) {
            return quire_error_set(err, QUIRE_NOMEM, "out of memory");
        }
    } else {
        while (b->class_index < tiers->classes.n &&
               strcmp(tiers->classes.items[b->class_index].name, entry.class_name) != 0) {
            b->class_index++;
        }
        if (b->class_index == tiers->classes.n) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "%.200s: placement[%u]: there is no class '%.60s'",
                                   args->settings.path, i + 1, entry.class_name);
        }
    }
    QUIRE_TRY(check_twice(out, args, entry.tenant != NULL ? entry.tenant : entry.class_name, err));
    out->n_bindings++;
    return QUIRE_OK;
}

static int placement_read(quire_serve_devices *out, const quire_serve_args *args,
                          const quire_tiers *tiers, quire_error *err)
{
    const uint32_t n = quire_config_file_count(args->settings.file, QUIRE_CONFIG_PLACEMENT);

    if (n == 0) {
        return QUIRE_OK;
    }
    if (args->common.split_mode != QUIRE_SPLIT_NONE) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%.200s: placement and split_mode %s cannot go together: each "
                               "request needs all devices",
                               args->settings.path, quire_split_modes[args->common.split_mode]);
    }
    if (out->n < 2) {
        return quire_error_set(err, QUIRE_INVAL, "%.200s: placement needs several names in device",
                               args->settings.path);
    }
    out->bindings = calloc(n, sizeof(out->bindings[0]));
    out->tenants = calloc(n, sizeof(out->tenants[0]));
    out->bound = calloc(n, sizeof(out->bound[0]));
    if (out->bindings == NULL || out->tenants == NULL || out->bound == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    out->n_places = n;
    while (out->n_bindings < n) {
        QUIRE_TRY(add_binding(out, args, tiers, err));
    }
    return QUIRE_OK;
}

int quire_serve_devices_read(quire_serve_devices *out, quire_serve_args *args,
                             const quire_tiers *tiers, quire_error *err)
{
    quire_split_choice split;

    *out = (quire_serve_devices){ .n = 0 };
    QUIRE_TRY(quire_split_choice_read(&split, &args->common, err));
    QUIRE_TRY(names_read(out, &args->common, err));
    QUIRE_TRY(placement_read(out, args, tiers, err));
    args->n_cpus = 0;
    for (uint32_t i = 0; i < out->n; i++) {
        args->n_cpus += quire_device_is_cpu(out->names[i]);
    }
    args->card = NULL;
    args->n_cards = out->n > 1 ? out->n - args->n_cpus : 0;
    for (uint32_t i = out->n; args->n_cards > 0 && i-- > 0;) {
        args->card = quire_device_is_cpu(out->names[i]) ? args->card : out->names[i];
    }
    if (out->n > 1) {
        args->common.device = out->names[0];
        args->common.device_names = out->names;
        args->common.n_device_names = out->n;
        relay_settle(out, args);
    }
    return QUIRE_OK;
}

void quire_serve_devices_fini(quire_serve_devices *devices)
{
    for (uint32_t i = 0; devices->bound != NULL && i < devices->n_places; i++) {
        free(devices->bound[i]);
    }
    free(devices->bound);
    free(devices->text);
    free(devices->bindings);
    free(devices->tenants);
    *devices = (quire_serve_devices){ .n = 0 };
}

/* ---- runtimes ---- */

int quire_serve_devices_look(const quire_serve_devices *devices, quire_error *err)
{
    for (uint32_t i = 1; i < devices->n; i++) {
        quire_device *device;

        if (!quire_device_is_cpu(devices->names[i])) {
            QUIRE_TRY(quire_device_peek(&device, devices->names[i], err));
            quire_device_close(device);
        }
    }
    return QUIRE_OK;
}

double quire_serve_devices_share(const quire_serve_devices *devices, uint32_t i, double share)
{
    uint32_t n = 0, n_before = 0;
    double each, of_rest;

    for (uint32_t k = 0; k < devices->n; k++) {
        if (strcmp(devices->names[k], devices->names[i]) == 0) {
            n++;
            n_before += k < i;
        }
    }
    each = share / (n > 1 ? n : 1);
    of_rest = each / (1.0 - n_before * each);
    return of_rest < 1.0 ? of_rest : 1.0;
}

quire_opened_want quire_serve_devices_want(const quire_serve_devices *devices, uint32_t i,
                                           const quire_serve_args *own,
                                           const quire_opened_want *first)
{
    quire_opened_want want = *first;

    QUIRE_CHECK(i > 0 && want.beside_bytes >= own->cache_host_bytes);
    want.beside_bytes -= own->cache_host_bytes;
    want.kv_share = quire_serve_devices_share(devices, i, own->cache_memory_ratio);
    want.attends_host = quire_serve_attends_host(own);
    return want;
}

/* The parts that are opened device by device. */
typedef struct opening {
    const quire_serve_devices_from *from;
    quire_serve_store_from store; /* but for the identity, equal for all */
    quire_serve_common common;
} opening;

/* The store of a device with this runtime. */
static int store_open(quire_store **out, opening *o, const quire_runtime *runtime, quire_error *err)
{
    quire_kv_identity_get(runtime, o->store.identity);
    return quire_serve_store_open(out, &o->store, &o->common, err);
}

static int first_open(quire_store **store, opening *o, quire_error *err)
{
    quire_runtime *runtime = o->from->first->runtime;
    quire_page_parts parts;

    if (quire_page_parts_get(quire_runtime_cache(runtime),
                             quire_runtime_opts_get(runtime)->page_tokens, &parts) == QUIRE_OK) {
        o->store.record_bytes = parts.record_bytes; /* else the engine reports the error */
    }
    return store_open(store, o, runtime, err);
}

/* The runtime of device i + 1, beside the session before, and its store. */
static int device_open(quire_serve_devices *devices, uint32_t i, opening *o, quire_error *err)
{
    const quire_serve_devices_from *from = o->from;
    const quire_opened *before = i == 0 ? from->first : &devices->sessions[i - 1];
    quire_opened *session = &devices->sessions[i];
    quire_engine_device *item = &devices->items[i];
    quire_serve_args own = *from->args;
    quire_opened_want want;

    own.common.device = devices->names[i + 1];
    want = quire_serve_devices_want(devices, i + 1, &own, from->want);
    *item = (quire_engine_device){ .watcher = from->watchers->items[i + 1] };
    QUIRE_TRY(quire_opened_beside_on(session, before, own.common.device, err));
    QUIRE_TRY(quire_opened_open_runtime(session, &own.common, &want, err));
    item->runtime = session->runtime;
    item->overflow =
        quire_serve_overflow(&own, quire_runtime_opts_get(session->runtime)->kv_budget_bytes);
    return store_open(&item->store, o, session->runtime, err);
}

int quire_serve_devices_open(quire_serve_devices *devices, const quire_serve_devices_from *from,
                             quire_engine_opts *out, quire_store **store, quire_error *err)
{
    opening o = { .from = from,
                  .store = { .args = from->args, .tenants = from->tenants, .log = from->log },
                  .common = { .has_several = devices->n > 1 } };

    QUIRE_TRY(first_open(store, &o, err));
    out->tier.store = *store;
    out->watcher = from->watchers->items[0];
    out->devices = (quire_engine_devices){ .items = devices->items,
                                           .bindings = devices->bindings,
                                           .n_bindings = devices->n_bindings };
    while (out->devices.n + 1 < devices->n) {
        QUIRE_TRY(device_open(devices, out->devices.n, &o, err));
        out->devices.n++;
    }
    return QUIRE_OK;
}

void quire_serve_devices_taken(quire_serve_devices *devices)
{
    for (uint32_t i = 0; i < QUIRE_REPLICAS_MAX; i++) {
        devices->items[i].store = NULL;
    }
}

void quire_serve_devices_close(quire_serve_devices *devices)
{
    for (uint32_t i = 0; i < QUIRE_REPLICAS_MAX; i++) {
        quire_serve_store_close(devices->items[i].store);
        devices->items[i].store = NULL;
        quire_opened_close_runtime(&devices->sessions[i]);
        devices->is_lost[i] = false;
    }
}

/* ---- loss ---- */

bool quire_serve_devices_can_end(const quire_serve_devices *devices)
{
    bool can = false;

    for (uint32_t i = 0; i < devices->n; i++) {
        can |= !quire_device_is_cpu(devices->names[i]);
    }
    return can;
}

/* A lost device that others go on without. */
static void say_lost_one(const quire_serve_log *log, const char *name, const quire_runtime *runtime,
                         uint32_t n_moved, uint32_t n_gone)
{
    char why[QUIRE_RUNTIME_WHY_BYTES];

    quire_serve_log_line(log, QUIRE_LOG_ERRORS,
                         "device %s was lost, and the KV on it%s: its requests go on elsewhere; "
                         "pins that moved: %u of %u",
                         name, quire_runtime_lost_why(runtime, why, sizeof why), n_moved,
                         n_moved + n_gone);
}

void quire_serve_devices_watch(quire_serve_devices *devices, quire_engine *engine,
                               const quire_runtime *first, const quire_serve_log *log)
{
    quire_engine_device_stats stats[QUIRE_REPLICAS_MAX];
    const uint32_t n = quire_engine_devices_get(engine, stats);
    const bool is_end = quire_engine_is_lost(engine);

    for (uint32_t i = 0; n > 1 && i < n; i++) {
        uint32_t n_gone = 0;
        const uint32_t n_moved =
            stats[i].is_lost && !is_end ? quire_engine_pins_move(engine, i, &n_gone) : 0;

        if (!stats[i].is_lost || (devices->is_lost[i] && n_moved + n_gone == 0)) {
            continue;
        }
        if (is_end) {
            quire_serve_log_line(log, QUIRE_LOG_ERRORS, "device %s was lost, and the KV on it",
                                 stats[i].name);
        } else {
            say_lost_one(log, stats[i].name, i == 0 ? first : devices->sessions[i - 1].runtime,
                         n_moved, n_gone);
        }
        devices->is_lost[i] = true;
        devices->lost_last = devices->names[i];
    }
}

void quire_serve_devices_part_lost(quire_serve_devices *devices, const quire_engine *engine)
{
    const char *name = devices->n > 1 ? NULL : quire_engine_lost_name(engine);

    (void)snprintf(devices->lost_part, sizeof devices->lost_part, "%s", name != NULL ? name : "");
}

const char *quire_serve_devices_lost(const quire_serve_devices *devices,
                                     const quire_serve_args *args)
{
    if (devices->lost_part[0] != '\0') {
        return devices->lost_part;
    }
    return devices->lost_last != NULL ? devices->lost_last : args->common.device;
}

void quire_serve_devices_say_lost(const char *device, const quire_runtime *runtime,
                                  const char *and_then, const quire_serve_log *log)
{
    char why[QUIRE_RUNTIME_WHY_BYTES];

    quire_serve_log_line(log, QUIRE_LOG_ERRORS,
                         "device %s was lost, and the KV on it%s: all requests failed, and the "
                         "server %s",
                         device, quire_runtime_lost_why(runtime, why, sizeof why), and_then);
}
