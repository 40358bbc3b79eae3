/* settings.c - reads settings from all their sources. settings_print.c prints them.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/settings/settings.h"

#include "base/check.h"
#include "base/parse.h"
#include "cli/commands/talk.h"
#include "cli/settings/options_internal.h"
#include "cli/settings/settings_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHOWN_MAX 80
#define NAMES_MAX (QUIRE_SETTINGS_MAX * QUIRE_OPT_NAMES_MAX + 16)

_Static_assert(QUIRE_SETTINGS_MAX == QUIRE_OPTIONS_MAX, "the same tables");

/* Variables with our prefix that are no settings: the file of settings, the kernels to use, the
 * folder of models, the hub, and variables of tests and comparisons. */
static const char *const other_variables[] = {
    QUIRE_SETTINGS_PREFIX "CONFIG",    QUIRE_SETTINGS_PREFIX "ISA",
    QUIRE_SETTINGS_PREFIX "SEED",      QUIRE_SETTINGS_PREFIX "OPS",
    QUIRE_SETTINGS_PREFIX "MUTATIONS", QUIRE_SETTINGS_PREFIX "PROGRAM",
    QUIRE_SETTINGS_PREFIX "SHARED",    QUIRE_SETTINGS_PREFIX "MODELS_DIR",
    QUIRE_SETTINGS_PREFIX "LLAMA_DIR", QUIRE_SETTINGS_PREFIX "WRITE_DOCS",
    QUIRE_SETTINGS_PREFIX "MODELS",    QUIRE_SETTINGS_PREFIX "HUB",
};
#define N_OTHERS (sizeof(other_variables) / sizeof(other_variables[0]))

bool quire_settings_variable(const char *name, char *buffer, size_t buffer_bytes)
{
    const size_t n = strlen(QUIRE_SETTINGS_PREFIX);

    memcpy(buffer, QUIRE_SETTINGS_PREFIX, n + 1);
    if (!quire_config_key_of(name, buffer + n, buffer_bytes - n)) {
        return false;
    }
    for (char *at = buffer; *at != '\0'; at++) {
        *at = (char)toupper((unsigned char)*at);
    }
    return true;
}

/* ---- the file ---- */

static int read_file(quire_settings *s, void *args, quire_error *err)
{
    QUIRE_TRY(quire_config_file_load(&s->file, s->command, s->path, err));
    for (size_t i = 0; i < s->command->n_options; i++) {
        char name[256];
        const char *text;
        const char *key;

        QUIRE_TRY(quire_config_file_value(s->file, i, &text, &key, err));
        if (text == NULL) {
            continue;
        }
        (void)snprintf(name, sizeof(name), "%.150s: %s", s->path, key);
        QUIRE_TRY(quire_options_store(&s->command->options[i], name, text, args, err));
        s->list[i] = (quire_setting){ QUIRE_SETTING_FILE, text, key };
    }
    return QUIRE_OK;
}

/* ---- the environment ---- */

static bool is_called(const char *variable, size_t n, const char *name)
{
    return strlen(name) == n && memcmp(name, variable, n) == 0;
}

/* The option that a variable's name stands for; n_options if none does. */
static size_t option_of(const quire_command *command, const char *variable, size_t n)
{
    for (size_t i = 0; i < command->n_options; i++) {
        const quire_opt *opt = &command->options[i];

        for (size_t j = 0; !opt->is_flag_only && j < QUIRE_OPT_NAMES_MAX; j++) {
            char name[QUIRE_SETTINGS_VARIABLE_MAX];

            if (opt->names[j] != NULL &&
                quire_settings_variable(opt->names[j], name, sizeof(name)) &&
                is_called(variable, n, name)) {
                return i;
            }
        }
    }
    return command->n_options;
}

/* The setting that a variable's name was probably meant to be, by the name after the prefix, since
 * all variables begin with the prefix. Memory: static. */
static const char *nearest_variable(const quire_command *command, const char *shown)
{
    const size_t n_prefix = strlen(QUIRE_SETTINGS_PREFIX);
    static char names[NAMES_MAX][QUIRE_SETTINGS_VARIABLE_MAX];
    const char *list[NAMES_MAX];
    size_t n_names = 0;
    const char *nearest;

    for (size_t i = 0; i < command->n_options; i++) {
        const quire_opt *opt = &command->options[i];

        for (size_t j = 0; !opt->is_flag_only && j < QUIRE_OPT_NAMES_MAX; j++) {
            if (opt->names[j] != NULL &&
                quire_settings_variable(opt->names[j], names[n_names], sizeof(names[0]))) {
                list[n_names] = names[n_names] + n_prefix;
                n_names++;
            }
        }
    }
    for (size_t i = 0; i < N_OTHERS; i++) {
        list[n_names++] = other_variables[i] + n_prefix;
    }
    nearest = quire_nearest_name(shown + n_prefix, list, n_names);
    return nearest != NULL ? nearest - n_prefix : NULL;
}

static int fail_variable(const quire_command *command, const char *variable, size_t n,
                         quire_error *err)
{
    char shown[SHOWN_MAX + 1];
    const char *nearest;

    (void)snprintf(shown, sizeof(shown), "%.*s", (int)(n < SHOWN_MAX ? n : SHOWN_MAX), variable);
    nearest = nearest_variable(command, shown);
    if (nearest != NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "unknown setting %s in the environment (did you mean %s?)", shown,
                               nearest);
    }
    return quire_error_set(err, QUIRE_INVAL,
                           "unknown setting %s in the environment ('quire %s --help' lists what "
                           "there is)",
                           shown, command->name);
}

/* Whether a variable is known, but no setting. */
static bool is_other(const char *variable, size_t n)
{
    for (size_t i = 0; i < N_OTHERS; i++) {
        if (is_called(variable, n, other_variables[i])) {
            return true;
        }
    }
    return false;
}

/* Whether the file has a key in a variable. */
static bool is_key(const quire_settings *s, const char *variable, size_t n)
{
    const uint32_t n_keys = quire_config_file_count(s->file, QUIRE_CONFIG_KEYS);
    quire_error ignored = QUIRE_ERROR_INIT; /* errors of a key are reported at its use */

    for (uint32_t i = 0; i < n_keys; i++) {
        quire_config_key key;

        (void)quire_config_file_entry(s->file, QUIRE_CONFIG_KEYS, i, &key, &ignored);
        if (key.key_env != NULL && is_called(variable, n, key.key_env)) {
            return true;
        }
    }
    return false;
}

/* Whether a variable is a setting of the command whose settings are passed over. */
static bool is_of_others(const quire_settings *s, const char *variable, size_t n)
{
    return s->others != NULL && option_of(s->others, variable, n) < s->others->n_options;
}

/* One variable, "NAME=value". */
static int take_variable(quire_settings *s, const char *variable, void *args, quire_error *err)
{
    const size_t n = strcspn(variable, "=");
    const size_t i = option_of(s->command, variable, n);
    char name[QUIRE_SETTINGS_VARIABLE_MAX];

    if (i == s->command->n_options) {
        return is_other(variable, n) || is_key(s, variable, n) || is_of_others(s, variable, n)
                   ? QUIRE_OK
                   : fail_variable(s->command, variable, n, err);
    }
    if (variable[n] == '\0' || variable[n + 1] == '\0') {
        return QUIRE_OK;
    }
    (void)snprintf(name, sizeof(name), "%.*s", (int)n, variable);
    if (s->list[i].source == QUIRE_SETTING_ENVIRONMENT) {
        return quire_error_set(err, QUIRE_INVAL, "%s and %.*s are the same setting: give one", name,
                               (int)strcspn(s->list[i].name, "="), s->list[i].name);
    }
    s->list[i] = (quire_setting){ QUIRE_SETTING_ENVIRONMENT, variable + n + 1, variable };
    return quire_options_store(&s->command->options[i], name, variable + n + 1, args, err);
}

static int read_environment(quire_settings *s, void *args, quire_error *err)
{
    for (char *const *at = environ; at != NULL && *at != NULL; at++) {
        if (strncmp(*at, QUIRE_SETTINGS_PREFIX, strlen(QUIRE_SETTINGS_PREFIX)) == 0) {
            QUIRE_TRY(take_variable(s, *at, args, err));
        }
    }
    return QUIRE_OK;
}

/* ---- commands other than the one with settings ---- */

/* One variable, "NAME=value". A setting that this command lacks is ignored; an unknown variable may
 * belong to another program. */
static int take_for(const quire_command *command, const quire_command *settings,
                    const char *variable, void *args, quire_error *err)
{
    const size_t n = strcspn(variable, "=");
    const size_t i = option_of(command, variable, n);
    char name[QUIRE_SETTINGS_VARIABLE_MAX];
    const char *nearest;

    if (n >= sizeof(name)) {
        return QUIRE_OK;
    }
    (void)snprintf(name, sizeof(name), "%.*s", (int)n, variable);
    if (option_of(settings, variable, n) == settings->n_options) {
        nearest = is_other(variable, n) ? NULL : nearest_variable(settings, name);
        if (nearest != NULL) {
            quire_say("%s in the environment is no setting: did you mean %s?", name, nearest);
        }
        return QUIRE_OK;
    }
    if (i == command->n_options || variable[n] == '\0' || variable[n + 1] == '\0') {
        return QUIRE_OK;
    }
    return quire_options_store(&command->options[i], name, variable + n + 1, args, err);
}

/* Parse the words first, so that --help and errors in options do not depend on the environment. */
int quire_settings_parse(const quire_command *command, const quire_command *settings, int argc,
                         char *const *argv, void *args, quire_error *err)
{
    int rc = quire_options_words(command, argc, argv, args, NULL, err);

    if (rc != QUIRE_OK) {
        return rc;
    }
    quire_options_init(command, args);
    for (char *const *at = environ; at != NULL && *at != NULL; at++) {
        if (strncmp(*at, QUIRE_SETTINGS_PREFIX, strlen(QUIRE_SETTINGS_PREFIX)) == 0) {
            QUIRE_TRY(take_for(command, settings, *at, args, err));
        }
    }
    return quire_options_parse(command, argc, argv, args, err);
}

/* ---- all of them ---- */

/* Refuse "": a script produces it from an unset variable. */
static int check_words(const quire_settings *s, const char *const *texts, quire_error *err)
{
    for (size_t i = 0; i < s->command->n_options; i++) {
        const quire_opt *opt = &s->command->options[i];

        if (texts[i] != NULL && texts[i][0] == '\0') {
            return quire_error_set(err, QUIRE_INVAL, "%s is empty: it takes %s",
                                   quire_options_long_name(opt), opt->unit);
        }
    }
    return QUIRE_OK;
}

/* Find the file's path on the command line, because the file is read before the command line is
 * applied. Also checks the words. */
static int find_path(quire_settings *s, int argc, char *const *argv, quire_error *err)
{
    const char *path = getenv(QUIRE_SETTINGS_PREFIX "CONFIG");
    const char *texts[QUIRE_SETTINGS_MAX] = { NULL };
    void *args = malloc(s->command->args_bytes);
    int rc;

    if (args == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    quire_options_init(s->command, args);
    rc = quire_options_words(s->command, argc, argv, args, texts, err);
    free(args);
    if (rc == QUIRE_OK) {
        rc = check_words(s, texts, err);
    }
    s->path = path != NULL && path[0] != '\0' ? path : NULL;
    for (size_t i = 0; i < s->command->n_options; i++) {
        if (strcmp(s->command->options[i].names[0], "--config") == 0 && texts[i] != NULL) {
            s->path = texts[i];
        }
    }
    return rc;
}

static int read_flags(quire_settings *s, int argc, char *const *argv, void *args, quire_error *err)
{
    const char *texts[QUIRE_SETTINGS_MAX] = { NULL };

    QUIRE_TRY(quire_options_words(s->command, argc, argv, args, texts, err));
    for (size_t i = 0; i < s->command->n_options; i++) {
        if (texts[i] != NULL) {
            s->list[i] = (quire_setting){ QUIRE_SETTING_FLAG, texts[i],
                                          quire_options_long_name(&s->command->options[i]) };
        }
    }
    return QUIRE_OK;
}

int quire_settings_read(quire_settings *out, const quire_command *command,
                        const quire_command *others, int argc, char *const *argv, void *args,
                        quire_error *err)
{
    int rc;

    QUIRE_CHECK(command->n_options <= QUIRE_SETTINGS_MAX);
    memset(out, 0, sizeof(*out));
    out->command = command;
    out->others = others;
    rc = find_path(out, argc, argv, err);
    if (rc != QUIRE_OK) {
        return rc;
    }
    if (out->path != NULL) {
        rc = read_file(out, args, err);
    }
    if (rc == QUIRE_OK) {
        rc = read_environment(out, args, err);
    }
    if (rc == QUIRE_OK) {
        rc = read_flags(out, argc, argv, args, err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_options_check(command, args, err);
    }
    if (rc < 0) {
        quire_settings_fini(out);
    }
    return rc;
}

void quire_settings_fini(quire_settings *settings)
{
    quire_config_file_free(settings->file);
    settings->file = NULL;
}
