/* config_schema.c - libcyaml's schema of a file of settings, made from the tables of options and of
 * lists.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/settings/config_file_internal.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

bool quire_config_key_of(const char *name, char *buffer, size_t buffer_bytes)
{
    if (strncmp(name, "--", 2) != 0) {
        return false;
    }
    (void)snprintf(buffer, buffer_bytes, "%s", name + 2);
    for (char *at = buffer; *at != '\0'; at++) {
        *at = *at == '-' ? '_' : *at;
    }
    return true;
}

static cyaml_schema_field_t text_field(const char *key, size_t offset, uint32_t bytes)
{
    return (cyaml_schema_field_t){
        .key = key,
        .data_offset = (uint32_t)offset,
        .value = { .type = CYAML_STRING,
                   .flags = CYAML_FLAG_OPTIONAL,
                   .data_size = bytes,
                   .string = { .min = 1, .max = bytes - 1 } },
    };
}

static quire_config_entry *add_entry(quire_config_file *file, size_t option)
{
    quire_config_entry *e = &file->entries[file->n_entries];

    QUIRE_CHECK(file->n_entries < QUIRE_CONFIG_ENTRIES_MAX);
    e->option = option;
    e->key = e->name;
    e->offset = file->n_entries * QUIRE_CONFIG_VALUE_MAX;
    file->n_entries++;
    return e;
}

/* List the top-level keys first, then the keys of the block; fields of the block are numbered from
 * its first. */
static void list_entries(quire_config_file *file, const quire_command *command)
{
    for (size_t i = 0; i < command->n_options; i++) {
        const quire_opt *opt = &command->options[i];

        for (size_t j = 0; !opt->is_flag_only && j < QUIRE_OPT_NAMES_MAX; j++) {
            char key[QUIRE_CONFIG_KEY_MAX];

            if (opt->names[j] != NULL && quire_config_key_of(opt->names[j], key, sizeof(key))) {
                memcpy(add_entry(file, i)->name, key, sizeof(key));
            }
        }
    }
    file->n_top = file->n_entries;
    for (size_t i = 0; i < command->n_options; i++) {
        const char *key = command->options[i].block_key;

        if (key != NULL) {
            quire_config_entry *e = add_entry(file, i);

            (void)snprintf(e->name, sizeof(e->name), QUIRE_CONFIG_BLOCK ".%s", key);
            e->key = e->name + sizeof(QUIRE_CONFIG_BLOCK);
        }
    }
}

/* A list at *end of the data, which moves on behind it. */
static cyaml_schema_field_t list_field(quire_config_place *place, const quire_config_list *list,
                                       size_t *end)
{
    size_t offset = 0;

    QUIRE_CHECK(list->n_fields <= QUIRE_CONFIG_FIELDS_MAX);
    for (size_t i = 0; i < list->n_fields; i++) {
        const quire_config_field *field = &list->fields[i];

        (void)quire_config_key_of(field->opt.names[0], place->keys[i], sizeof(place->keys[i]));
        place->fields[i] = text_field(place->keys[i], offset, field->text_bytes);
        offset += field->text_bytes;
    }
    place->entry_bytes = offset;
    place->offset = *end;
    place->count_offset = (*end + list->entries_max * offset + 7) / 8 * 8;
    *end = place->count_offset + 8;
    place->entry = (cyaml_schema_value_t){ .type = CYAML_MAPPING,
                                           .flags = CYAML_FLAG_DEFAULT,
                                           .data_size = (uint32_t)offset,
                                           .mapping = { .fields = place->fields } };
    return (cyaml_schema_field_t){
        .key = list->name,
        .data_offset = (uint32_t)place->offset,
        .count_offset = (uint32_t)place->count_offset,
        .count_size = sizeof(uint32_t),
        .value = { .type = CYAML_SEQUENCE,
                   .flags = CYAML_FLAG_OPTIONAL,
                   .data_size = (uint32_t)offset,
                   .sequence = { .entry = &place->entry, .min = 0, .max = list->entries_max } },
    };
}

static void make_schema(quire_config_file *file)
{
    const size_t block_offset = file->n_top * QUIRE_CONFIG_VALUE_MAX;
    const size_t n_block = file->n_entries - file->n_top;
    cyaml_schema_field_t *at = file->top_fields;
    size_t end = file->n_entries * QUIRE_CONFIG_VALUE_MAX;

    /* An empty field, as calloc() left it, ends both lists. */
    for (size_t i = 0; i < file->n_top; i++) {
        *at++ = text_field(file->entries[i].key, file->entries[i].offset, QUIRE_CONFIG_VALUE_MAX);
    }
    for (size_t i = 0; i < n_block; i++) {
        const quire_config_entry *e = &file->entries[file->n_top + i];

        file->block_fields[i] =
            text_field(e->key, e->offset - block_offset, QUIRE_CONFIG_VALUE_MAX);
    }
    *at++ = (cyaml_schema_field_t){
        .key = QUIRE_CONFIG_BLOCK,
        .data_offset = (uint32_t)block_offset,
        .value = { .type = CYAML_MAPPING,
                   .flags = CYAML_FLAG_OPTIONAL,
                   .data_size = (uint32_t)(n_block * QUIRE_CONFIG_VALUE_MAX),
                   .mapping = { .fields = file->block_fields } },
    };
    for (int i = 0; i < QUIRE_CONFIG_LISTS; i++) {
        *at++ = list_field(&file->lists[i], &quire_config_lists[i], &end);
    }
    file->schema = (cyaml_schema_value_t){
        .type = CYAML_MAPPING,
        .flags = CYAML_FLAG_POINTER,
        .data_size = (uint32_t)end,
        .mapping = { .fields = file->top_fields },
    };
}

void quire_config_schema_make(quire_config_file *file, const quire_command *command)
{
    list_entries(file, command);
    make_schema(file);
}
