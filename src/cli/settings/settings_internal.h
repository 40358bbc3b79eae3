/* settings_internal.h - common to reading and printing settings.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SETTINGS_INTERNAL_H
#define QUIRE_CLI_SETTINGS_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#define QUIRE_SETTINGS_PREFIX       "QUIRE_"
#define QUIRE_SETTINGS_VARIABLE_MAX 72u

/* "--kv-recent" as QUIRE_KV_RECENT; false for names with one dash. */
bool quire_settings_variable(const char *name, char *buffer, size_t buffer_bytes);

#endif /* QUIRE_CLI_SETTINGS_INTERNAL_H */
