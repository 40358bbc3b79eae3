/* config_file_internal.h - a file of settings in memory, and the schema that it is read by; for
 * config_file.c and config_schema.c only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_CONFIG_FILE_INTERNAL_H
#define QUIRE_CLI_CONFIG_FILE_INTERNAL_H

#include <cyaml/cyaml.h>

#include "cli/settings/config_file.h"
#include "cli/settings/options_internal.h"

#define QUIRE_CONFIG_ENTRIES_MAX (2 * QUIRE_OPTIONS_MAX)

/* One key that an option's value can stand under. */
typedef struct quire_config_entry {
    char name[QUIRE_CONFIG_KEY_MAX];
    const char *key; /* in name; the key in the file */
    size_t option;
    size_t offset; /* of its value in the data */
} quire_config_entry;

/* Where a list lies in the data: texts of all its entries, then their number. */
typedef struct quire_config_place {
    size_t offset;
    size_t count_offset;
    size_t entry_bytes;
    char keys[QUIRE_CONFIG_FIELDS_MAX][QUIRE_CONFIG_KEY_MAX];
    cyaml_schema_field_t fields[QUIRE_CONFIG_FIELDS_MAX + 1];
    cyaml_schema_value_t entry;
} quire_config_place;

struct quire_config_file {
    char *data; /* libcyaml's; NULL for an empty file */
    const char *path;
    quire_config_entry entries[QUIRE_CONFIG_ENTRIES_MAX]; /* those of the block last */
    size_t n_entries;
    size_t n_top;
    quire_config_place lists[QUIRE_CONFIG_LISTS];
    cyaml_schema_field_t top_fields[QUIRE_CONFIG_ENTRIES_MAX + QUIRE_CONFIG_LISTS + 2];
    cyaml_schema_field_t block_fields[QUIRE_CONFIG_ENTRIES_MAX + 1];
    cyaml_schema_value_t schema;
};

/* Lay the data out and make the schema, from the command's options and the table of lists. */
void quire_config_schema_make(quire_config_file *file, const quire_command *command);

#endif /* QUIRE_CLI_CONFIG_FILE_INTERNAL_H */
