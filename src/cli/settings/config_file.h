/* config_file.h - a command's settings as a YAML file.
 *
 * The schema comes from the command's option table: every long name of an option is a key, "--kv-
 * recent" as kv_recent, with one value. Values are kept as texts and parsed later by the rules of
 * the options. Some keys have more than one value:
 *
 *   inference_params: { max_batch_size: 8, max_seq_len: 4096 }    options by their block_key
 *   api_keys: [ { key: abc, tenant: a } ]                         lists: config_lists.h
 *
 * All other keys are refused; the error suggests the nearest key.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_CONFIG_FILE_H
#define QUIRE_CLI_CONFIG_FILE_H

#include "cli/settings/config_lists.h"
#include "cli/settings/options.h"

#define QUIRE_CONFIG_VALUE_MAX 1024u /* bytes of a value, with a zero byte */
#define QUIRE_CONFIG_KEY_MAX   64u   /* of a key, "inference_params." included */
#define QUIRE_CONFIG_BLOCK     "inference_params"

typedef struct quire_config_file quire_config_file;

/* Read a file. Errors: QUIRE_IO, QUIRE_INVAL (its contents), QUIRE_NOMEM; err names file and key.
 * Memory: quire_config_file_free(). */
int quire_config_file_load(quire_config_file **out, const quire_command *command, const char *path,
                           quire_error *err);
void quire_config_file_free(quire_config_file *file);

/* The value of option i; *text is NULL if the file does not have it. *key is its key in the file.
 * Memory: the file's. Errors: QUIRE_INVAL (given under two keys). */
int quire_config_file_value(const quire_config_file *file, size_t i, const char **text,
                            const char **key, quire_error *err);

/* The number of entries of a list. */
uint32_t quire_config_file_count(const quire_config_file *file, quire_config_which which);
/* Entry i of a list, a struct of config_lists.h, with its defaults. Errors: QUIRE_INVAL,
 * QUIRE_RANGE; err names file, entry and field. Memory: texts are the file's. */
int quire_config_file_entry(const quire_config_file *file, quire_config_which which, uint32_t i,
                            void *out, quire_error *err);

/* The key for an option's name: "--kv-recent" as kv_recent; false for names with one dash. */
bool quire_config_key_of(const char *name, char *buffer, size_t buffer_bytes);

#endif /* QUIRE_CLI_CONFIG_FILE_H */
