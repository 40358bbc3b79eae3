/* config_file.h - a command's settings as a YAML file.
 *
 * The schema comes from the command's option table: every long name of an option is a key, "--kv-
 * recent" as kv_recent, with one value; the values are texts here, read later by the rules of the
 * options. Two keys are more than one value:
 *
 *   inference_params: { max_batch_size: 8, max_seq_len: 4096 }    options by their block_key
 *   api_keys: [ { key: abc, tenant: a }, { key_env: NAME, admin: true } ]
 *
 * Anything else is refused, an unknown key with the nearest one.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_CONFIG_FILE_H
#define QUIRE_CLI_CONFIG_FILE_H

#include "cli/options.h"
#include "server/server.h"
#include "server/tenant.h"

#define QUIRE_CONFIG_VALUE_MAX 1024u /* bytes of a value, with a zero byte */
#define QUIRE_CONFIG_KEY_MAX   64u   /* of a key, "inference_params." included */
#define QUIRE_CONFIG_BLOCK     "inference_params"

/* One entry of api_keys, as it stands there; "" = not given. */
typedef struct quire_config_key {
    char key[QUIRE_SERVER_KEY_BYTES_MAX + 1];
    char key_env[QUIRE_CONFIG_VALUE_MAX];
    char key_file[QUIRE_CONFIG_VALUE_MAX];
    char tenant[QUIRE_TENANT_MAX + 1];
    char admin[8];
} quire_config_key;

typedef struct quire_config_file quire_config_file;

/* Read a file. Errors: QUIRE_IO, QUIRE_INVAL (what it holds), QUIRE_NOMEM; err names file and key.
 * Memory: quire_config_file_free(). */
int quire_config_file_load(quire_config_file **out, const quire_command *command, const char *path,
                           quire_error *err);
void quire_config_file_free(quire_config_file *file);

/* The value of option i; *text is NULL where the file does not give it. *key is the key that does.
 * Memory: the file's. Errors: QUIRE_INVAL (given under two keys). */
int quire_config_file_value(const quire_config_file *file, size_t i, const char **text,
                            const char **key, quire_error *err);

/* The entries of api_keys. Memory: the file's. */
size_t quire_config_file_keys(const quire_config_file *file, const quire_config_key **keys);

/* The key for an option's name: "--kv-recent" as kv_recent; false for names with one dash. */
bool quire_config_key_of(const char *name, char *buffer, size_t buffer_bytes);

#endif /* QUIRE_CLI_CONFIG_FILE_H */
