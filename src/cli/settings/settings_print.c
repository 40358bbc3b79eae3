/* settings_print.c - settings for people: --check-config and docs/configuration.md.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/settings/settings.h"

#include "cli/commands/talk.h"
#include "cli/settings/options_internal.h"
#include "cli/settings/settings_internal.h"

#include <string.h>

#define HIDDEN "(not shown)"

/* Whether the settings have a key of clients beside the one of this option. */
static bool has_other_key(const quire_settings *s, const quire_opt *opt)
{
    bool has = quire_config_file_count(s->file, QUIRE_CONFIG_KEYS) > 0;

    for (size_t i = 0; i < s->command->n_options; i++) {
        const quire_opt *other = &s->command->options[i];

        has = has || (other != opt && other->is_key && s->list[i].source != QUIRE_SETTING_DEFAULT);
    }
    return has;
}

/* The words for a setting without a value. With another key those for a key, which say who needs
 * none, would be wrong. */
static const char *words_for_none(const quire_settings *s, const quire_opt *opt)
{
    return opt->initial_text == NULL || (opt->is_key && has_other_key(s, opt)) ? "none"
                                                                               : opt->initial_text;
}

/* The key in the file; false if the option is not a setting. */
static bool key_of(const quire_opt *opt, char *buffer, size_t buffer_bytes)
{
    return !opt->is_flag_only &&
           quire_config_key_of(quire_options_long_name(opt), buffer, buffer_bytes);
}

static const char *value_of(const quire_settings *s, size_t i)
{
    const quire_opt *opt = &s->command->options[i];

    if (s->list[i].source != QUIRE_SETTING_DEFAULT) {
        return opt->is_secret ? HIDDEN : s->list[i].text;
    }
    if (opt->initial == NULL && opt->type == QUIRE_OPT_FLAG) {
        return "false";
    }
    return opt->initial;
}

/* "flag --kv", "environment QUIRE_KV", "file quire.yaml", "default" */
static void source_of(const quire_settings *s, size_t i, char *buffer, size_t buffer_bytes)
{
    const quire_setting *setting = &s->list[i];

    switch (setting->source) {
    case QUIRE_SETTING_DEFAULT:
        (void)snprintf(buffer, buffer_bytes, "default");
        break;
    case QUIRE_SETTING_FILE:
        (void)snprintf(buffer, buffer_bytes, "file, %s", setting->name);
        break;
    case QUIRE_SETTING_ENVIRONMENT:
        (void)snprintf(buffer, buffer_bytes, "environment, %.*s", (int)strcspn(setting->name, "="),
                       setting->name);
        break;
    case QUIRE_SETTING_FLAG:
        (void)snprintf(buffer, buffer_bytes, "flag, %s", setting->name);
        break;
    }
}

/* As YAML: a text that YAML could read as another value goes between quotes. */
static void print_value(const char *text, FILE *out)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";

    if (text[0] != '\0' && text[0] != '-' && strspn(text, plain) == strlen(text)) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ') {
            fprintf(out, "\\x%02x", (unsigned)*text);
            continue;
        }
        if (*text == '"' || *text == '\\') {
            fputc('\\', out);
        }
        fputc(*text, out);
    }
    fputc('"', out);
}

void quire_settings_print(const quire_settings *settings, FILE *out)
{
    for (size_t i = 0; i < settings->command->n_options; i++) {
        const quire_opt *opt = &settings->command->options[i];
        const char *value = value_of(settings, i);
        char key[QUIRE_CONFIG_KEY_MAX];
        char source[128];

        if (!key_of(opt, key, sizeof(key))) {
            continue;
        }
        source_of(settings, i, source, sizeof(source));
        if (value == NULL || strcmp(value, HIDDEN) == 0) {
            fprintf(out, "# %s: %s", key, value != NULL ? value : words_for_none(settings, opt));
        } else {
            fprintf(out, "%s: ", key);
            print_value(value, out);
        }
        fprintf(out, "  # %s\n", source);
    }
}

static json_t *value_json(const char *value)
{
    return value != NULL ? quire_json_bytes(value, strlen(value)) : json_null();
}

json_t *quire_settings_json(const quire_settings *settings)
{
    json_t *all = json_object();

    for (size_t i = 0; all != NULL && i < settings->command->n_options; i++) {
        const quire_opt *opt = &settings->command->options[i];
        const char *value = value_of(settings, i);
        char key[QUIRE_CONFIG_KEY_MAX];
        char source[128];

        if (!key_of(opt, key, sizeof(key))) {
            continue;
        }
        source_of(settings, i, source, sizeof(source));
        if (json_object_set_new(
                all, key, json_pack("{s:o, s:s}", "value", value_json(value), "source", source)) !=
            0) {
            json_decref(all);
            all = NULL;
        }
    }
    return all;
}

/* ---- documentation ---- */

/* A bar would end the table's cell. */
static void add_cell(quire_bytes *out, const char *text)
{
    for (; *text != '\0'; text++) {
        (void)quire_bytes_addf(out, *text == '|' ? "\\|" : "%c", *text);
    }
}

static void add_names(quire_bytes *out, const quire_opt *opt)
{
    for (size_t i = 0; i < QUIRE_OPT_NAMES_MAX && opt->names[i] != NULL; i++) {
        (void)quire_bytes_addf(out, "%s`%s", i > 0 ? ", " : "", opt->names[i]);
        if (i + 1 == QUIRE_OPT_NAMES_MAX || opt->names[i + 1] == NULL) {
            if (opt->type == QUIRE_OPT_CHOICE) {
                for (size_t j = 0; opt->choices[j] != NULL; j++) {
                    (void)quire_bytes_addf(out, "%s%s", j > 0 ? "\\|" : " ", opt->choices[j]);
                }
            } else if (opt->unit != NULL) {
                (void)quire_bytes_addf(out, " %s", opt->unit);
            }
        }
        (void)quire_bytes_add(out, "`", 1);
    }
}

static void add_row(quire_bytes *out, const quire_opt *opt)
{
    char name[QUIRE_SETTINGS_VARIABLE_MAX];
    char described[QUIRE_OPTIONS_DESCRIBED_MAX];

    (void)quire_bytes_addf(out, "| ");
    add_names(out, opt);
    if (!key_of(opt, name, sizeof(name))) {
        (void)quire_bytes_addf(out, " | | | ");
    } else {
        (void)quire_bytes_addf(out, " | `%s`", name);
        if (opt->block_key != NULL) {
            (void)quire_bytes_addf(out, ", `" QUIRE_CONFIG_BLOCK ".%s`", opt->block_key);
        }
        (void)quire_settings_variable(quire_options_long_name(opt), name, sizeof(name));
        (void)quire_bytes_addf(out, " | `%s` | ", name);
    }
    quire_options_describe(opt, described, sizeof(described));
    add_cell(out, described);
    (void)quire_bytes_addf(out, " |\n");
}

int quire_settings_document(const quire_command *command, quire_bytes *out)
{
    for (size_t i = 0; i < command->n_options; i++) {
        const quire_opt *opt = &command->options[i];

        if (i == 0 || opt->section != NULL) {
            (void)quire_bytes_addf(out, "%s## %s\n\n", i > 0 ? "\n" : "",
                                   opt->section != NULL ? opt->section : "Model and memory");
            (void)quire_bytes_addf(out, "| flag | key in the file | environment | meaning |\n"
                                        "|---|---|---|---|\n");
        }
        add_row(out, opt);
    }
    return out->status;
}
