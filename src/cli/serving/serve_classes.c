/* serve_classes.c - see serve_classes.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_classes.h"

#include "base/check.h"
#include "server/tenant.h"

#include <stdlib.h>
#include <string.h>

static int add_class(quire_classes *to, const quire_serve_args *args, uint32_t n, quire_error *err)
{
    const uint32_t i = to->n;
    quire_class *c = &to->items[i];
    quire_config_class entry;

    QUIRE_TRY(quire_config_file_entry(args->settings.file, QUIRE_CONFIG_CLASSES, i, &entry, err));
    if (entry.name == NULL) {
        return quire_error_set(err, QUIRE_INVAL, "%.200s: classes[%u] needs a name",
                               args->settings.path, i + 1);
    }
    *c = (quire_class){
        .rank = (uint8_t)(n - 1 - i),
        .is_pinned = entry.is_pinned,
        .weight = (uint32_t)entry.weight,
        .ttft_target_ms = (double)entry.ttft_us / 1000.0,
        .tpot_target_ms = (double)entry.tpot_us / 1000.0,
        .stretch = entry.stretch,
        .running_max = (uint32_t)entry.running_max,
        .queue_max = (uint32_t)entry.queue_max,
        .cache_ttl_us = entry.cache_ttl_us,
    };
    (void)snprintf(c->name, sizeof(c->name), "%s", entry.name);
    to->n++;
    return QUIRE_OK;
}

static bool is_any_pinned(const quire_classes *classes)
{
    bool is_any = false;

    for (uint32_t i = 0; i < classes->n; i++) {
        is_any |= classes->items[i].is_pinned;
    }
    return is_any;
}

int quire_serve_classes_read(quire_tiers *out, const quire_serve_args *args, quire_error *err)
{
    const uint32_t n = quire_config_file_count(args->settings.file, QUIRE_CONFIG_CLASSES);
    quire_classes classes = { .n = 0 };
    quire_error inner = QUIRE_ERROR_INIT;

    if (n == 0) {
        quire_classes_default(&classes);
        classes.items[0].is_pinned = true;
    }
    while (classes.n < n) {
        QUIRE_TRY(add_class(&classes, args, n, err));
    }
    if (args->pinned_bytes + args->pinned_ceiling_bytes > 0 && !is_any_pinned(&classes)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%.200s: classes: none is pinned, so that the pinned memory would "
                               "be nobody's",
                               args->settings.path);
    }
    if (quire_classes_resolve(&classes, &inner) < 0) {
        return quire_error_set(err, inner.status, "%.200s: classes: %.250s", args->settings.path,
                               inner.message);
    }
    return quire_tiers_init(out, &classes, args->default_class, err);
}

/* Number of a tenant's account; 0 for tenants without one. */
static uint16_t account_of(const quire_serve_tenants *tenants, const char *name)
{
    for (uint32_t i = 0; i < tenants->n; i++) {
        if (strcmp(tenants->names[i], name) == 0) {
            return (uint16_t)(i + 1);
        }
    }
    return 0;
}

static int add_tenant(quire_serve_tenants *to, const quire_serve_args *args, quire_error *err)
{
    quire_config_tenant entry;

    QUIRE_TRY(
        quire_config_file_entry(args->settings.file, QUIRE_CONFIG_TENANTS, to->n, &entry, err));
    if (entry.name == NULL) {
        return quire_error_set(err, QUIRE_INVAL, "%.200s: tenants[%u] needs a name",
                               args->settings.path, to->n + 1);
    }
    if (account_of(to, entry.name) != 0) {
        return quire_error_set(err, QUIRE_INVAL, "%.200s: tenants[%u]: '%.60s' is given before",
                               args->settings.path, to->n + 1, entry.name);
    }
    to->names[to->n] = entry.name;
    to->items[to->n] = (quire_account_opts){ entry.cache_quota_bytes, (uint32_t)entry.weight };
    to->disk[to->n] = (quire_file_account){ entry.cache_disk_bytes, (uint32_t)entry.weight };
    to->n++;
    return QUIRE_OK;
}

int quire_serve_tenants_read(quire_serve_tenants *out, const quire_serve_args *args,
                             quire_error *err)
{
    const uint32_t n = quire_config_file_count(args->settings.file, QUIRE_CONFIG_TENANTS);

    *out = (quire_serve_tenants){ .n = 0 };
    if (n == 0) {
        return QUIRE_OK;
    }
    out->names = calloc(n, sizeof(out->names[0]));
    out->items = calloc(n, sizeof(out->items[0]));
    out->disk = calloc(n, sizeof(out->disk[0]));
    if (out->names == NULL || out->items == NULL || out->disk == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    while (out->n < n) {
        QUIRE_TRY(add_tenant(out, args, err));
    }
    return QUIRE_OK;
}

void quire_serve_tenants_fini(quire_serve_tenants *tenants)
{
    free(tenants->names);
    free(tenants->items);
    free(tenants->disk);
    *tenants = (quire_serve_tenants){ .n = 0 };
}

static uint16_t account_of_salt(void *ctx, const void *salt, uint32_t salt_bytes)
{
    quire_tenant_names names;

    return quire_tenant_salt_names(salt, salt_bytes, &names) ? account_of(ctx, names.tenant) : 0;
}

quire_engine_accounts quire_serve_tenants_accounts(quire_serve_tenants *tenants)
{
    return (quire_engine_accounts){
        .items = tenants->items,
        .n = tenants->n,
        .of = tenants->n > 0 ? account_of_salt : NULL,
        .ctx = tenants,
    };
}

void quire_serve_tenants_disk(quire_serve_tenants *tenants, quire_file_store_opts *opts)
{
    opts->accounts = tenants->disk;
    opts->n_accounts = tenants->n;
    opts->account_of = tenants->n > 0 ? account_of_salt : NULL;
    opts->account_ctx = tenants;
}
