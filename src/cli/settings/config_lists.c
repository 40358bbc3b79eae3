/* config_lists.c - the table of lists that a file of settings may hold.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/settings/config_lists.h"

#include "cli/settings/config_file.h"
#include "cli/settings/options_internal.h"
#include "engine/classes.h"
#include "server/server.h"
#include "server/tenant.h"

#define NUMBER_BYTES 64u /* texts of numbers, times and sizes */
#define DAYS_MAX     31536000

#define TEXT(name_, member_, bytes_, unit_, help_)                                                 \
    {                                                                                              \
        { .names = { "--" name_ },                                                                 \
          .type = QUIRE_OPT_TEXT,                                                                  \
          .unit = (unit_),                                                                         \
          .offset = offsetof(ENTRY, member_),                                                      \
          .help = (help_) },                                                                       \
            (bytes_)                                                                               \
    }

/* clang-format off */
#define ENTRY quire_config_key
static const quire_config_field key_fields[] = {
    TEXT("key", key, QUIRE_SERVER_KEY_BYTES_MAX + 1, "KEY", "the API key as text"),
    TEXT("key-env", key_env, QUIRE_CONFIG_VALUE_MAX, "NAME", "name of the environment variable "
                                                             "that holds the API key"),
    TEXT("key-file", key_file, QUIRE_CONFIG_VALUE_MAX, "FILE", "file whose first line is the API "
                                                               "key"),
    TEXT("tenant", tenant, QUIRE_TENANT_MAX + 1, "NAME",
         "tenant to whose cache, sessions and pins the key gives access (default: default)"),
    { { .names = { "--admin" }, .type = QUIRE_OPT_FLAG,
        .offset = offsetof(quire_config_key, is_admin),
        .help = "the key is for administration only" }, NUMBER_BYTES },
    TEXT("max-class", max_class, QUIRE_CLASS_NAME_MAX, "CLASS",
         "highest class that requests with this key may have (default: any)"),
    TEXT("default-class", default_class, QUIRE_CLASS_NAME_MAX, "CLASS",
         "class of requests with this key that name no class (default: --default-class, or "
         "max_class if that is lower)"),
};
#undef ENTRY

#define ENTRY quire_config_class
static const quire_config_field class_fields[] = {
    TEXT("name", name, QUIRE_CLASS_NAME_MAX, "NAME", "name of the class in requests: a-z 0-9 _ -"),
    { { .names = { "--weight" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,
        .max = QUIRE_CLASS_WEIGHT_MAX, .initial = "1",
        .offset = offsetof(quire_config_class, weight),
        .help = "this weight, divided by the sum of the weights of all classes, is the share of "
                "computing time that the class gets even when higher classes could use all of it" },
      NUMBER_BYTES },
    { { .names = { "--ttft-target" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 0,
        .max = 3600, .initial = "0", .initial_text = "0, none",
        .offset = offsetof(quire_config_class, ttft_us),
        .help = "target for the time to the first token of a request" }, NUMBER_BYTES },
    { { .names = { "--tpot-target" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 0,
        .max = 3600, .initial = "0", .initial_text = "0, none",
        .offset = offsetof(quire_config_class, tpot_us),
        .help = "target for the mean time per further token; rows of lower classes may join the "
                "steps of this class until they take this time" }, NUMBER_BYTES },
    { { .names = { "--stretch" }, .type = QUIRE_OPT_REAL, .unit = "X", .min = 1,
        .max = QUIRE_CLASS_STRETCH_MAX, .initial = "1.15",
        .offset = offsetof(quire_config_class, stretch),
        .help = "without tpot_target: factor by which rows of lower classes that join may lengthen "
                "the steps of this class" },
      NUMBER_BYTES },
    { { .names = { "--max-running" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0, .max = 4096,
        .initial = "0", .initial_text = "0, --max-batch-size",
        .offset = offsetof(quire_config_class, running_max),
        .help = "most requests of the class that run at once" }, NUMBER_BYTES },
    { { .names = { "--max-queue" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0,
        .max = QUIRE_ENGINE_QUEUE_MAX, .initial = "0", .initial_text = "0, --max-queue",
        .offset = offsetof(quire_config_class, queue_max),
        .help = "most requests of the class that wait; further requests get 429" }, NUMBER_BYTES },
    { { .names = { "--pinned" }, .type = QUIRE_OPT_FLAG,
        .offset = offsetof(quire_config_class, is_pinned),
        .help = "the class uses the pinned memory, which other classes cannot take, if --pinned "
                "or --pinned-ceiling sets any" },
      NUMBER_BYTES },
    { { .names = { "--cache-ttl" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 0,
        .max = DAYS_MAX, .initial = "0", .initial_text = "0, --cache-ttl",
        .offset = offsetof(quire_config_class, cache_ttl_us),
        .help = "drop cached text of the class that was not used for this time" }, NUMBER_BYTES },
};
#undef ENTRY

#define ENTRY quire_config_tenant
static const quire_config_field tenant_fields[] = {
    TEXT("name", name, QUIRE_TENANT_MAX + 1, "NAME", "name of the tenant in api_keys"),
    { { .names = { "--cache-quota" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 0,
        .max = 1e15, .initial = "0", .initial_text = "0, none",
        .offset = offsetof(quire_config_tenant, cache_quota_bytes),
        .help = "most KV memory of the tenant's cached text" }, NUMBER_BYTES },
    { { .names = { "--cache-disk" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 0,
        .max = 1e15, .initial = "0", .initial_text = "0, no bound of its own",
        .offset = offsetof(quire_config_tenant, cache_disk_bytes),
        .help = "most bytes of the tenant's pages in --cache-dir; beyond, its oldest go" },
      NUMBER_BYTES },
    { { .names = { "--weight" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1, .max = 1000,
        .initial = "1", .offset = offsetof(quire_config_tenant, weight),
        .help = "this weight, divided by the sum of the weights of all tenants with cached text, "
                "is the tenant's fair share of a region, and of half of --cache-dir" },
      NUMBER_BYTES },
};
#undef ENTRY

#define ENTRY quire_config_placement
static const quire_config_field placement_fields[] = {
    TEXT("class", class_name, QUIRE_CLASS_NAME_MAX, "CLASS", "class that is bound"),
    TEXT("tenant", tenant, QUIRE_TENANT_MAX + 1, "NAME",
         "tenant that is bound; this goes before the binding of a class"),
    TEXT("devices", devices, QUIRE_CONFIG_VALUE_MAX, "NAMES",
         "names from --device, separated by commas: these devices serve the class or tenant, and "
         "hold its pins"),
};
#undef ENTRY

#define FIELDS(fields) (fields), sizeof(fields) / sizeof((fields)[0])

const quire_config_list quire_config_lists[QUIRE_CONFIG_LISTS] = {
    [QUIRE_CONFIG_KEYS] = {
        "api_keys", "API keys. Each needs one of `key`, `key_env` and `key_file`.",
        QUIRE_SERVER_KEYS_MAX, sizeof(quire_config_key), FIELDS(key_fields) },
    [QUIRE_CONFIG_CLASSES] = {
        "classes",
        "Service classes, the most important first.\nWithout this list: `realtime` (weight 16, "
        "pinned), `standard` (weight 4) and `batch` (weight 1).",
        QUIRE_CLASSES_MAX, sizeof(quire_config_class), FIELDS(class_fields) },
    [QUIRE_CONFIG_TENANTS] = {
        "tenants", "Tenants with a quota or a weight of their own.\nOther tenants share "
                   "one account of weight 1.",
        QUIRE_ACCOUNTS_MAX - 1, sizeof(quire_config_tenant), FIELDS(tenant_fields) },
    [QUIRE_CONFIG_PLACEMENT] = {
        "placement", "Classes and tenants that are bound to devices, where --device names "
                     "several.\nAn entry has `class` or `tenant`. A binding ends when all of its "
                     "devices are lost.",
        QUIRE_CONFIG_PLACEMENTS_MAX, sizeof(quire_config_placement), FIELDS(placement_fields) },
};
/* clang-format on */

void quire_config_lists_document(quire_bytes *out)
{
    (void)quire_bytes_addf(out, "\n## Lists in the file\n");
    for (int i = 0; i < QUIRE_CONFIG_LISTS; i++) {
        const quire_config_list *list = &quire_config_lists[i];

        (void)quire_bytes_addf(out, "\n`%s`: %s\n\n| key | meaning |\n|---|---|\n", list->name,
                               list->about);
        for (size_t j = 0; j < list->n_fields; j++) {
            char key[QUIRE_CONFIG_KEY_MAX];
            char described[QUIRE_OPTIONS_DESCRIBED_MAX];
            const quire_opt *opt = &list->fields[j].opt;

            (void)quire_config_key_of(opt->names[0], key, sizeof(key));
            quire_options_describe(opt, described, sizeof(described));
            (void)quire_bytes_addf(out, "| `%s` | %s |\n", key, described);
        }
    }
}
