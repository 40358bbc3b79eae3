/* settings.h - the options of a command from its command line, the environment and a file.
 *
 * One table for all: the option --kv-recent is QUIRE_KV_RECENT in the environment and kv_recent in
 * the YAML file that --config (or QUIRE_CONFIG) names. Precedence: command line, environment, file,
 * default. An empty variable counts as none.
 *
 * quire serve reads all three. The other commands read their command line, and from the environment
 * those settings of quire serve that are also options of theirs: QUIRE_KV works everywhere.
 *
 * An unknown variable that begins with QUIRE_ is an error, like an unknown key in the file, so that
 * a misspelt setting is noticed.
 *
 * Thread: the main thread only (the environment).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SETTINGS_H
#define QUIRE_CLI_SETTINGS_H

#include <jansson.h>
#include <stdio.h>

#include "base/bytes.h"
#include "cli/settings/config_file.h"
#include "cli/settings/options.h"

#define QUIRE_SETTINGS_MAX 128u /* options of a command */

typedef enum quire_setting_source {
    QUIRE_SETTING_DEFAULT,
    QUIRE_SETTING_FILE,
    QUIRE_SETTING_ENVIRONMENT,
    QUIRE_SETTING_FLAG
} quire_setting_source;

typedef struct quire_setting {
    quire_setting_source source;
    const char *text; /* as it was written; NULL for a default */
    const char *name; /* its name in the source: a key, NAME=value, a flag */
} quire_setting;

typedef struct quire_settings {
    const quire_command *command;
    const quire_command *others; /* whose variables are passed over; NULL = none */
    const char *path;            /* of the file; NULL = none */
    quire_config_file *file;     /* texts of args point into it */
    quire_setting list[QUIRE_SETTINGS_MAX];
} quire_settings;

/* Read all settings into args (initialised before) and check them. The command's table has a row
 * --config, a TEXT that is_flag_only. A variable that only command `others` has as a setting is
 * passed over; others NULL = any variable that is no setting is refused. Returns QUIRE_OK or
 * QUIRE_OPTIONS_HELP. Errors: as quire_options_parse() and quire_config_file_load(); err names file
 * or variable, value and the accepted values. Memory: after QUIRE_OK, quire_settings_fini(), when
 * args are needed no more. */
int quire_settings_read(quire_settings *out, const quire_command *command,
                        const quire_command *others, int argc, char *const *argv, void *args,
                        quire_error *err);
void quire_settings_fini(quire_settings *settings);

/* For the other commands: the command line, and in the environment the settings of command
 * `settings` that this command has under the same name. A variable that is nearly a setting's name
 * causes a warning on stderr. Results as quire_options_parse(). */
int quire_settings_parse(const quire_command *command, const quire_command *settings, int argc,
                         char *const *argv, void *args, quire_error *err);

/* Print every setting with its value and source, as YAML that --config reads. */
void quire_settings_print(const quire_settings *settings, FILE *out);
/* The same as an object: name -> { value, source, name }. NULL when out of memory. */
json_t *quire_settings_json(const quire_settings *settings);

/* The tables of docs/configuration.md. Errors: QUIRE_NOMEM. */
int quire_settings_document(const quire_command *command, quire_bytes *out);

#endif /* QUIRE_CLI_SETTINGS_H */
