/* config_file.c - settings from YAML, through a libcyaml schema made from an option table.
 *
 * All values are arrays inside one block of memory, so that libcyaml allocates nothing else and
 * nothing can be left behind when a file turns out to be wrong half-way. Aliases are off: a few
 * bytes must not stand for many.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/config_file.h"

#include "base/check.h"
#include "base/parse.h"
#include "cli/options_internal.h"
#include "cli/session.h"

#include <cyaml/cyaml.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API_KEYS     "api_keys"
#define ENTRIES_MAX  (2 * QUIRE_OPTIONS_MAX)
#define REASON_BYTES 200u
#define FIELDS_BYTES 200u
#define SHOWN_MAX    80

/* One key that an option's value can stand under. */
typedef struct entry {
    char name[QUIRE_CONFIG_KEY_MAX];
    const char *key; /* in name; what stands in the file */
    size_t option;
    size_t offset; /* of its value in the data */
} entry;

struct quire_config_file {
    char *data; /* libcyaml's; NULL for an empty file */
    const char *path;
    entry entries[ENTRIES_MAX]; /* those of the block last */
    size_t n_entries;
    size_t n_top;
    size_t keys_offset; /* of quire_config_key [QUIRE_SERVER_KEYS_MAX] in the data */
    size_t count_offset;
    cyaml_schema_field_t top_fields[ENTRIES_MAX + 3];
    cyaml_schema_field_t block_fields[ENTRIES_MAX + 1];
    cyaml_schema_value_t schema;
};

/* clang-format off */
static const cyaml_schema_field_t key_fields[] = {
    CYAML_FIELD_STRING("key", CYAML_FLAG_OPTIONAL, quire_config_key, key, 1),
    CYAML_FIELD_STRING("key_env", CYAML_FLAG_OPTIONAL, quire_config_key, key_env, 1),
    CYAML_FIELD_STRING("key_file", CYAML_FLAG_OPTIONAL, quire_config_key, key_file, 1),
    CYAML_FIELD_STRING("tenant", CYAML_FLAG_OPTIONAL, quire_config_key, tenant, 1),
    CYAML_FIELD_STRING("admin", CYAML_FLAG_OPTIONAL, quire_config_key, admin, 1),
    CYAML_FIELD_END,
};

static const cyaml_schema_value_t key_value = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, quire_config_key, key_fields),
};
/* clang-format on */

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

/* ---- the schema ---- */

static cyaml_schema_field_t text_field(const char *key, size_t offset)
{
    return (cyaml_schema_field_t){
        .key = key,
        .data_offset = (uint32_t)offset,
        .value = { .type = CYAML_STRING,
                   .flags = CYAML_FLAG_OPTIONAL,
                   .data_size = QUIRE_CONFIG_VALUE_MAX,
                   .string = { .min = 1, .max = QUIRE_CONFIG_VALUE_MAX - 1 } },
    };
}

static entry *add_entry(quire_config_file *file, size_t option)
{
    entry *e = &file->entries[file->n_entries];

    QUIRE_CHECK(file->n_entries < ENTRIES_MAX);
    e->option = option;
    e->key = e->name;
    e->offset = file->n_entries * QUIRE_CONFIG_VALUE_MAX;
    file->n_entries++;
    return e;
}

/* Top-level keys first, then those of the block, whose fields count from its first. */
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
            entry *e = add_entry(file, i);

            (void)snprintf(e->name, sizeof(e->name), QUIRE_CONFIG_BLOCK ".%s", key);
            e->key = e->name + sizeof(QUIRE_CONFIG_BLOCK);
        }
    }
}

static void make_schema(quire_config_file *file)
{
    const size_t block_offset = file->n_top * QUIRE_CONFIG_VALUE_MAX;
    const size_t n_block = file->n_entries - file->n_top;
    cyaml_schema_field_t *at = file->top_fields;

    /* An empty field, as calloc() left it, ends both lists. */
    for (size_t i = 0; i < file->n_top; i++) {
        *at++ = text_field(file->entries[i].key, file->entries[i].offset);
    }
    for (size_t i = 0; i < n_block; i++) {
        const entry *e = &file->entries[file->n_top + i];

        file->block_fields[i] = text_field(e->key, e->offset - block_offset);
    }
    *at++ = (cyaml_schema_field_t){
        .key = QUIRE_CONFIG_BLOCK,
        .data_offset = (uint32_t)block_offset,
        .value = { .type = CYAML_MAPPING,
                   .flags = CYAML_FLAG_OPTIONAL,
                   .data_size = (uint32_t)(n_block * QUIRE_CONFIG_VALUE_MAX),
                   .mapping = { .fields = file->block_fields } },
    };
    file->keys_offset = file->n_entries * QUIRE_CONFIG_VALUE_MAX;
    file->count_offset = file->keys_offset + QUIRE_SERVER_KEYS_MAX * sizeof(quire_config_key);
    file->count_offset = (file->count_offset + 7) / 8 * 8;
    *at = (cyaml_schema_field_t){
        .key = API_KEYS,
        .data_offset = (uint32_t)file->keys_offset,
        .count_offset = (uint32_t)file->count_offset,
        .count_size = sizeof(uint32_t),
        .value = { .type = CYAML_SEQUENCE,
                   .flags = CYAML_FLAG_OPTIONAL,
                   .data_size = sizeof(quire_config_key),
                   .sequence = { .entry = &key_value, .min = 0, .max = QUIRE_SERVER_KEYS_MAX } },
    };
    file->schema = (cyaml_schema_value_t){
        .type = CYAML_MAPPING,
        .flags = CYAML_FLAG_POINTER,
        .data_size = (uint32_t)(file->count_offset + 8),
        .mapping = { .fields = file->top_fields },
    };
}

/* ---- what libcyaml has against a file ---- */

typedef struct complaint {
    char reason[REASON_BYTES];
    char unknown[SHOWN_MAX + 1];
    char twice[SHOWN_MAX + 1];
    char field[FIELDS_BYTES]; /* "kv", "inference_params.max_seq_len", "api_keys[2].tenant" */
    unsigned line;            /* where reading had come to; 0 = not said */
    const char *no_value;     /* not NULL: the value is missing or too long, as this says */
} complaint;

static void copy_line(char *out, size_t out_bytes, const char *line)
{
    size_t n = strcspn(line, "\n");

    n = n < out_bytes ? n : out_bytes - 1;
    memcpy(out, line, n);
    out[n] = '\0';
    for (size_t i = 0; i < n; i++) {
        out[i] = out[i] >= ' ' && out[i] != 0x7f ? out[i] : '?';
    }
}

/* The backtrace comes from the inside out: "in mapping field 'tenant' (line: ...", "in sequence
 * entry '1' (...", "in mapping field 'api_keys' (...". */
static void add_place(complaint *c, const char *line)
{
    const char *name = strchr(line, '\'');
    const char *number = strstr(line, "(line: ");
    char inner[FIELDS_BYTES / 2];
    int n;

    if (number != NULL && c->line == 0) {
        c->line = (unsigned)strtoul(number + 7, NULL, 10);
    }
    if (name == NULL) {
        return;
    }
    name++;
    n = (int)strcspn(name, "'");
    n = n < (int)QUIRE_CONFIG_KEY_MAX ? n : (int)QUIRE_CONFIG_KEY_MAX;
    copy_line(inner, sizeof(inner), c->field);
    if (strstr(line, "sequence") != NULL) {
        /* libcyaml counts from 1 once an entry is begun. */
        (void)snprintf(c->field, sizeof(c->field), "[%.*s]%s%s", n, name,
                       inner[0] != '\0' ? "." : "", inner);
    } else {
        (void)snprintf(c->field, sizeof(c->field), "%.*s%s%s", n, name,
                       inner[0] != '\0' && inner[0] != '[' ? "." : "", inner);
    }
}

__attribute__((format(printf, 3, 0))) static void hear(cyaml_log_t level, void *ctx,
                                                       const char *format, va_list ap)
{
    static const struct {
        const char *begin;
        size_t place; /* in the complaint; it takes what follows */
    } wordings[] = {
        { "Load: Unexpected key: ", offsetof(complaint, unknown) },
        { "Load: Mapping field already seen: ", offsetof(complaint, twice) },
    };
    complaint *c = ctx;
    char line[REASON_BYTES];

    (void)level;
    (void)vsnprintf(line, sizeof(line), format, ap);
    if (strncmp(line, "  in ", 5) == 0) {
        add_place(c, line);
        return;
    }
    for (size_t i = 0; i < sizeof(wordings) / sizeof(wordings[0]); i++) {
        size_t n = strlen(wordings[i].begin);

        if (strncmp(line, wordings[i].begin, n) == 0) {
            copy_line((char *)c + wordings[i].place, SHOWN_MAX + 1, line + n);
        }
    }
    if (strncmp(line, "Load: STRING length ", 20) == 0) {
        c->no_value = line[20] == '<' ? "has no value" : "is too long";
    }
    if (c->reason[0] == '\0' && strncmp(line, "Load: Backtrace", 15) != 0) {
        copy_line(c->reason, sizeof(c->reason), strncmp(line, "Load: ", 6) == 0 ? line + 6 : line);
    }
}

/* What may stand where an unknown key stands. Returns the number of names. */
static size_t list_names(const quire_config_file *file, const char *field, const char **names)
{
    const bool is_block = strcmp(field, QUIRE_CONFIG_BLOCK) == 0;
    const size_t first = is_block ? file->n_top : 0;
    const size_t end = is_block ? file->n_entries : file->n_top;
    size_t n = 0;

    if (strncmp(field, API_KEYS, strlen(API_KEYS)) == 0) {
        for (size_t i = 0; key_fields[i].key != NULL; i++) {
            names[n++] = key_fields[i].key;
        }
        return n;
    }
    for (size_t i = first; i < end; i++) {
        names[n++] = file->entries[i].key;
    }
    if (!is_block) {
        names[n++] = QUIRE_CONFIG_BLOCK;
        names[n++] = API_KEYS;
    }
    return n;
}

static int fail_unknown(const quire_config_file *file, const complaint *c, quire_error *err)
{
    const char *names[ENTRIES_MAX + 2];
    size_t n = list_names(file, c->field, names);
    const char *nearest = quire_nearest_name(c->unknown, names, n);
    const char *where = c->field[0] != '\0' ? c->field : "";
    const char *colon = c->field[0] != '\0' ? ": " : "";

    for (size_t i = file->n_top; c->field[0] == '\0' && i < file->n_entries; i++) {
        if (strcmp(file->entries[i].key, c->unknown) == 0) {
            nearest = file->entries[i].name;
        }
    }
    if (nearest != NULL) {
        return quire_error_set(err, QUIRE_INVAL, "%s: %s%sunknown key '%s' (did you mean %s?)",
                               file->path, where, colon, c->unknown, nearest);
    }
    return quire_error_set(err, QUIRE_INVAL,
                           "%s: %s%sunknown key '%s' (docs/configuration.md lists them)",
                           file->path, where, colon, c->unknown);
}

/* "Expecting STRING, got event: SCALAR" in words; false if it is something else. */
static bool fail_kind(const quire_config_file *file, const complaint *c, quire_error *err)
{
    static const struct {
        const char *kind, *takes, *event, *got;
    } words[] = {
        { "STRING", "one value", "SCALAR", "one value or none" },
        { "MAPPING", "keys with their values", "MAPPING_START", "keys with their values" },
        { "SEQUENCE", "a list", "SEQUENCE_START", "a list" },
    };
    const char *takes = NULL, *got = "something else";
    char kind[16], event[24];

    if (sscanf(c->reason, "Expecting %15[A-Z], got event: %23[A-Z_]", kind, event) != 2) {
        return false;
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        takes = strcmp(words[i].kind, kind) == 0 ? words[i].takes : takes;
        got = strcmp(words[i].event, event) == 0 ? words[i].got : got;
    }
    if (takes == NULL) {
        return false;
    }
    (void)quire_error_set(err, QUIRE_INVAL, "%s: %s takes %s, not %s", file->path,
                          c->field[0] != '\0' ? c->field : "the file", takes, got);
    return true;
}

/* What is no YAML. The place is where libyaml had come to, which may be before what is wrong. */
static int fail_syntax(const quire_config_file *file, const complaint *c, quire_error *err)
{
    static const char by[] = "libyaml: ";
    const char *what = strncmp(c->reason, by, strlen(by)) == 0 ? c->reason + strlen(by) : c->reason;

    if (c->line > 0) {
        return quire_error_set(err, QUIRE_INVAL, "%s: not YAML, in or after line %u: %s",
                               file->path, c->line, what);
    }
    return quire_error_set(err, QUIRE_INVAL, "%s: not YAML: %s", file->path, what);
}

static int fail_load(const quire_config_file *file, cyaml_err_t status, const complaint *c,
                     quire_error *err)
{
    if (status == CYAML_ERR_OOM) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    if (c->unknown[0] != '\0') {
        return fail_unknown(file, c, err);
    }
    if (c->twice[0] != '\0') {
        return quire_error_set(err, QUIRE_INVAL, "%s: %s is given twice", file->path, c->field);
    }
    if (c->no_value != NULL) {
        return quire_error_set(err, QUIRE_INVAL, "%s: %s %s", file->path, c->field, c->no_value);
    }
    if (status == CYAML_ERR_ALIAS) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s: %s is an alias (*), which is not supported: write it out",
                               file->path, c->field[0] != '\0' ? c->field : "the file");
    }
    if (status == CYAML_ERR_LIBYAML_PARSER) {
        return fail_syntax(file, c, err);
    }
    if (status == CYAML_ERR_INTERNAL_ERROR && c->reason[0] == '\0') {
        return quire_error_set(err, QUIRE_INVAL, "%s: in or after line %u: a key that is no text",
                               file->path, c->line);
    }
    if (fail_kind(file, c, err)) {
        return err->status;
    }
    return quire_error_set(err, QUIRE_INVAL, "%s: %s%s%s", file->path, c->field,
                           c->field[0] != '\0' ? ": " : "",
                           c->reason[0] != '\0' ? c->reason : cyaml_strerror(status));
}

static cyaml_config_t configuration(complaint *c)
{
    return (cyaml_config_t){
        .log_fn = hear,
        .log_ctx = c,
        .mem_fn = cyaml_mem,
        .log_level = CYAML_LOG_ERROR,
        .flags = CYAML_CFG_NO_ALIAS,
    };
}

/* Texts of one line, as they go into messages and to the terminal; and not YAML's nothing, which
 * would be a key that everybody can guess, or a file of that name. */
static int check_value(const quire_config_file *file, const char *name, const char *text,
                       quire_error *err)
{
    static const char *const nothing[] = { "~", "null", "Null", "NULL" };

    for (size_t i = 0; i < sizeof(nothing) / sizeof(nothing[0]); i++) {
        if (strcmp(text, nothing[i]) == 0) {
            return quire_error_set(err, QUIRE_INVAL, "%s: %s is %s: leave it out for its default",
                                   file->path, name, text);
        }
    }
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ' || *text == 0x7f) {
            return quire_error_set(err, QUIRE_INVAL, "%s: %s holds a control character", file->path,
                                   name);
        }
    }
    return QUIRE_OK;
}

static int check_values(const quire_config_file *file, quire_error *err)
{
    const quire_config_key *keys;
    const size_t n_keys = quire_config_file_keys(file, &keys);

    for (size_t i = 0; file->data != NULL && i < file->n_entries; i++) {
        QUIRE_TRY(
            check_value(file, file->entries[i].name, file->data + file->entries[i].offset, err));
    }
    for (size_t i = 0; i < n_keys; i++) {
        for (size_t j = 0; key_fields[j].key != NULL; j++) {
            const char *text = (const char *)&keys[i] + key_fields[j].data_offset;
            char name[QUIRE_CONFIG_KEY_MAX];

            (void)snprintf(name, sizeof(name), API_KEYS "[%zu].%s", i + 1, key_fields[j].key);
            QUIRE_TRY(check_value(file, name, text, err));
        }
    }
    return QUIRE_OK;
}

static bool begins_document(const char *line)
{
    return strncmp(line, "---", 3) == 0 && (line[3] == '\0' || strchr(" \t\r\n", line[3]) != NULL);
}

/* libcyaml reads the first document only, and the rest must not go unnoticed. (Behind "..." libyaml
 * itself takes nothing but "---".) */
static bool has_second_document(const char *text)
{
    bool has_begun = false;

    while (*text != '\0') {
        const char first = text[strspn(text, " \t\r")];

        if (begins_document(text)) {
            if (has_begun) {
                return true;
            }
            has_begun = true;
        } else if (first != '\0' && first != '\n' && first != '#' && first != '%') {
            has_begun = true;
        }
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    return false;
}

int quire_config_file_load(quire_config_file **out, const quire_command *command, const char *path,
                           quire_error *err)
{
    quire_config_file *file = calloc(1, sizeof(*file));
    complaint c = { .no_value = NULL };
    cyaml_config_t config = configuration(&c);
    char *text = NULL;
    size_t text_bytes = 0;
    cyaml_err_t status;
    int rc;

    *out = NULL;
    if (file == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    file->path = path;
    list_entries(file, command);
    make_schema(file);
    rc = quire_read_file(path, &text, &text_bytes, err);
    /* libcyaml refuses no bytes at all. */
    if (rc == QUIRE_OK && text_bytes > 0) {
        status = cyaml_load_data((const uint8_t *)text, text_bytes, &config, &file->schema,
                                 (cyaml_data_t **)&file->data, NULL);
        rc = status == CYAML_OK ? check_values(file, err) : fail_load(file, status, &c, err);
        if (rc == QUIRE_OK && has_second_document(text)) {
            rc = quire_error_set(err, QUIRE_INVAL,
                                 "%s: a second document begins (---): one is read", path);
        }
    }
    free(text);
    if (rc < 0) {
        quire_config_file_free(file);
        return rc;
    }
    *out = file;
    return QUIRE_OK;
}

void quire_config_file_free(quire_config_file *file)
{
    complaint c = { .no_value = NULL };
    cyaml_config_t config = configuration(&c);

    if (file != NULL) {
        if (file->data != NULL) {
            (void)cyaml_free(&config, &file->schema, file->data, 0);
        }
        free(file);
    }
}

int quire_config_file_value(const quire_config_file *file, size_t i, const char **text,
                            const char **key, quire_error *err)
{
    *text = NULL;
    *key = NULL;
    for (size_t j = 0; file->data != NULL && j < file->n_entries; j++) {
        const entry *e = &file->entries[j];

        if (e->option != i || file->data[e->offset] == '\0') {
            continue;
        }
        if (*text != NULL) {
            return quire_error_set(err, QUIRE_INVAL, "%s: %s and %s are the same setting: give one",
                                   file->path, *key, e->name);
        }
        *text = file->data + e->offset;
        *key = e->name;
    }
    return QUIRE_OK;
}

size_t quire_config_file_keys(const quire_config_file *file, const quire_config_key **keys)
{
    if (file->data == NULL) {
        *keys = NULL;
        return 0;
    }
    *keys = (const quire_config_key *)(file->data + file->keys_offset);
    return *(const uint32_t *)(const void *)(file->data + file->count_offset);
}
