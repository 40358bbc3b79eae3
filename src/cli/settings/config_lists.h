/* config_lists.h - lists of entries in a file of settings.
 *
 *   api_keys: [ { key: abc, tenant: a }, { key_env: NAME, admin: true } ]
 *   classes:  [ { name: realtime, weight: 16, pinned: true }, { name: batch } ]
 *   tenants:  [ { name: a, cache_quota: 2GiB } ]
 *   placement: [ { tenant: a, devices: "vulkan0,vulkan1" } ]
 *
 * One table for all: a field is a row as options are (its long name with dashes is the key with
 * underscores), so that ranges, messages and docs/configuration.md come from it.
 *
 * Thread: any; nothing here changes.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_CONFIG_LISTS_H
#define QUIRE_CLI_CONFIG_LISTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "cli/settings/options.h"

#define QUIRE_CONFIG_FIELDS_MAX     12u /* of an entry */
#define QUIRE_CONFIG_PLACEMENTS_MAX 256u

typedef enum quire_config_which {
    QUIRE_CONFIG_KEYS,
    QUIRE_CONFIG_CLASSES,
    QUIRE_CONFIG_TENANTS,
    QUIRE_CONFIG_PLACEMENT,
    QUIRE_CONFIG_LISTS
} quire_config_which;

/* Texts are NULL where they are not given. */
typedef struct quire_config_key {
    const char *key;
    const char *key_env;
    const char *key_file;
    const char *tenant;
    const char *max_class;
    const char *default_class;
    bool is_admin;
} quire_config_key;

typedef struct quire_config_class {
    const char *name;
    int64_t weight;
    uint64_t ttft_us; /* target; 0 = none */
    uint64_t tpot_us;
    double stretch;
    int64_t running_max; /* 0 = no limit of its own */
    int64_t queue_max;
    bool is_pinned;
    uint64_t cache_ttl_us; /* 0 = --cache-ttl */
} quire_config_class;

typedef struct quire_config_tenant {
    const char *name;
    uint64_t cache_quota_bytes; /* 0 = none */
    uint64_t cache_disk_bytes;  /* 0 = none */
    int64_t weight;
} quire_config_tenant;

typedef struct quire_config_placement {
    const char *class_name;
    const char *tenant;
    const char *devices; /* names with commas */
} quire_config_placement;

typedef struct quire_config_field {
    quire_opt opt;       /* its offset is in the entry */
    uint32_t text_bytes; /* of its value as it stands in the file, with a zero byte */
} quire_config_field;

typedef struct quire_config_list {
    const char *name;
    const char *about; /* for the documentation */
    uint32_t entries_max;
    uint32_t entry_bytes;
    const quire_config_field *fields; /* [n_fields] */
    size_t n_fields;
} quire_config_list;

extern const quire_config_list quire_config_lists[QUIRE_CONFIG_LISTS];

/* The lists' part of docs/configuration.md. */
void quire_config_lists_document(quire_bytes *out);

#endif /* QUIRE_CLI_CONFIG_LISTS_H */
