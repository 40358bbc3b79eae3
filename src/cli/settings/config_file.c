/* config_file.c - settings from YAML, through a libcyaml schema made from an option table.
 *
 * All values are arrays inside one block of memory, so that libcyaml allocates nothing else and
 * nothing can be left behind when a file turns out to be wrong half-way. Aliases are off: a few
 * bytes must not stand for many.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/settings/config_file_internal.h"

#include "base/check.h"
#include "base/parse.h"
#include "cli/commands/opened.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define REASON_BYTES 200u
#define FIELDS_BYTES 200u
#define SHOWN_MAX    80

/* ---- libcyaml's errors ---- */

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
        size_t place; /* in the complaint; it takes the text after `begin` */
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

/* The keys allowed in the place of an unknown key. Returns their number. */
static size_t list_names(const quire_config_file *file, const char *field, const char **names)
{
    const bool is_block = strcmp(field, QUIRE_CONFIG_BLOCK) == 0;
    const size_t first = is_block ? file->n_top : 0;
    const size_t end = is_block ? file->n_entries : file->n_top;
    size_t n = 0;

    for (int i = 0; i < QUIRE_CONFIG_LISTS; i++) {
        const size_t bytes = strlen(quire_config_lists[i].name);

        if (strncmp(field, quire_config_lists[i].name, bytes) != 0 || field[bytes] != '[') {
            continue;
        }
        for (; n < quire_config_lists[i].n_fields; n++) {
            names[n] = file->lists[i].keys[n];
        }
        return n;
    }
    for (size_t i = first; i < end; i++) {
        names[n++] = file->entries[i].key;
    }
    if (!is_block) {
        names[n++] = QUIRE_CONFIG_BLOCK;
        for (int i = 0; i < QUIRE_CONFIG_LISTS; i++) {
            names[n++] = quire_config_lists[i].name;
        }
    }
    return n;
}

static int fail_unknown(const quire_config_file *file, const complaint *c, quire_error *err)
{
    const char *names[QUIRE_CONFIG_ENTRIES_MAX + QUIRE_CONFIG_LISTS + 1];
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

/* Report a YAML syntax error. The place is libyaml's position, which may be before the error. */
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

/* A value must be one line, because messages and the terminal show it. It must not be YAML's null,
 * which would become a guessable key or a file name. */
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

/* A field of an entry, "" when it is not given. */
static const char *entry_text(const quire_config_file *file, int which, uint32_t i, size_t field)
{
    const quire_config_place *place = &file->lists[which];

    return file->data + place->offset + i * place->entry_bytes + place->fields[field].data_offset;
}

static void entry_name(const quire_config_file *file, int which, uint32_t i, size_t field,
                       char name[2 * QUIRE_CONFIG_KEY_MAX])
{
    (void)snprintf(name, 2 * QUIRE_CONFIG_KEY_MAX, "%.40s[%u].%.60s",
                   quire_config_lists[which].name, i + 1, file->lists[which].keys[field]);
}

static int check_values(const quire_config_file *file, quire_error *err)
{
    for (size_t i = 0; file->data != NULL && i < file->n_entries; i++) {
        QUIRE_TRY(
            check_value(file, file->entries[i].name, file->data + file->entries[i].offset, err));
    }
    for (int which = 0; which < QUIRE_CONFIG_LISTS; which++) {
        const uint32_t n = quire_config_file_count(file, (quire_config_which)which);

        for (uint32_t i = 0; i < n; i++) {
            for (size_t j = 0; j < quire_config_lists[which].n_fields; j++) {
                char name[2 * QUIRE_CONFIG_KEY_MAX];

                entry_name(file, which, i, j, name);
                QUIRE_TRY(check_value(file, name, entry_text(file, which, i, j), err));
            }
        }
    }
    return QUIRE_OK;
}

static bool begins_document(const char *line)
{
    return strncmp(line, "---", 3) == 0 && (line[3] == '\0' || strchr(" \t\r\n", line[3]) != NULL);
}

/* libcyaml reads only the first document, so further documents are refused. (Behind "..." libyaml
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

/* libcyaml cuts a text at a NUL byte, which "\\0" writes between double quotes. The line, or 0:
 * there is none. */
static size_t nul_line(const char *text, size_t text_bytes)
{
    yaml_parser_t parser;
    bool is_end = yaml_parser_initialize(&parser) == 0;
    size_t line = 0;

    yaml_parser_set_input_string(&parser, (const unsigned char *)text, text_bytes);
    while (!is_end) {
        yaml_token_t token;

        if (yaml_parser_scan(&parser, &token) == 0) {
            break;
        }
        if (token.type == YAML_SCALAR_TOKEN && line == 0 &&
            memchr(token.data.scalar.value, '\0', token.data.scalar.length) != NULL) {
            line = token.start_mark.line + 1;
        }
        is_end = token.type == YAML_STREAM_END_TOKEN || line > 0;
        yaml_token_delete(&token);
    }
    yaml_parser_delete(&parser);
    return line;
}

static int check_text(const quire_config_file *file, const char *text, size_t text_bytes,
                      quire_error *err)
{
    const size_t line = nul_line(text, text_bytes);

    if (line > 0) {
        return quire_error_set(err, QUIRE_INVAL, "%s: in line %zu: a text with a NUL byte",
                               file->path, line);
    }
    return has_second_document(text)
               ? quire_error_set(err, QUIRE_INVAL,
                                 "%s: a second document begins (---): one is read", file->path)
               : QUIRE_OK;
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
    quire_config_schema_make(file, command);
    rc = quire_read_file(path, &text, &text_bytes, err);
    /* libcyaml refuses no bytes at all. */
    if (rc == QUIRE_OK && text_bytes > 0) {
        status = cyaml_load_data((const uint8_t *)text, text_bytes, &config, &file->schema,
                                 (cyaml_data_t **)&file->data, NULL);
        rc = status == CYAML_OK ? check_values(file, err) : fail_load(file, status, &c, err);
        rc = rc == QUIRE_OK ? check_text(file, text, text_bytes, err) : rc;
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
        const quire_config_entry *e = &file->entries[j];

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

uint32_t quire_config_file_count(const quire_config_file *file, quire_config_which which)
{
    if (file == NULL || file->data == NULL) {
        return 0;
    }
    return *(const uint32_t *)(const void *)(file->data + file->lists[which].count_offset);
}

int quire_config_file_entry(const quire_config_file *file, quire_config_which which, uint32_t i,
                            void *out, quire_error *err)
{
    const quire_config_list *list = &quire_config_lists[which];

    QUIRE_CHECK(i < quire_config_file_count(file, which));
    memset(out, 0, list->entry_bytes);
    for (size_t j = 0; j < list->n_fields; j++) {
        const quire_opt *opt = &list->fields[j].opt;
        const char *text = entry_text(file, (int)which, i, j);
        char key[2 * QUIRE_CONFIG_KEY_MAX];
        char name[256];

        if (text[0] == '\0') {
            text = opt->initial;
        }
        if (text == NULL) {
            continue;
        }
        entry_name(file, (int)which, i, j, key);
        (void)snprintf(name, sizeof(name), "%.120s: %s", file->path, key);
        QUIRE_TRY(quire_options_store(opt, name, text, out, err));
    }
    return QUIRE_OK;
}
