/* calibration_file.c - a calibration as YAML, through libcyaml's schemas; see calibration.h.
 *
 * The schema's structs hold arrays, not pointers, so that a file that names a key twice overwrites
 * instead of leaking. Aliases are off: a file of a few bytes must not stand for a large one.
 *
 * SPDX-License-Identifier: MIT */
#include "model/calibration.h"

#include "base/check.h"

#include <cyaml/cyaml.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REASON_BYTES  160u
#define TOKENS_MAX    (1u << 30)
#define FINGERPRINT_N 16u /* hexadecimal digits */

#define UNIT 1e-9 /* of the costs in a file, in nats */

static const char heading[] = "# What quire calibrate measured; --kv auto reads it. Costs are KL "
                              "divergences in 1e-9 nats.\n";

/* ---- the schema ---- */

/* Costs in billionths: whole numbers of few digits. libcyaml would write 17 digits of a double. */
typedef struct file_side {
    uint64_t q8;
    uint64_t q6;
    uint64_t q5;
    uint64_t q4;
    uint64_t q3;
} file_side;

typedef struct file_layer {
    file_side k;
    file_side v;
} file_layer;

typedef struct file {
    uint32_t version;
    char fingerprint[FINGERPRINT_N + 1];
    char model[sizeof((quire_calibration *)NULL)->model];
    char text[sizeof((quire_calibration *)NULL)->text];
    uint32_t n_ctx;
    uint32_t n_chunks;
    uint32_t n_scored;
    uint32_t kv_recent;
    uint32_t kv_sinks;
    uint32_t measured;
    bool uniform_wins; /* optional: false in files that say nothing of it */
    char choice[QUIRE_KV_LAYERS_TEXT_MAX];
    file_layer layers[QUIRE_LAYERS_MAX];
    uint32_t layers_count;
} file;

typedef struct version_only {
    uint32_t version;
} version_only;

static const cyaml_strval_t format_names[] = {
    { "q8", 1 << QUIRE_FORMAT_Q8 }, { "q6", 1 << QUIRE_FORMAT_Q6 }, { "q5", 1 << QUIRE_FORMAT_Q5 },
    { "q4", 1 << QUIRE_FORMAT_Q4 }, { "q3", 1 << QUIRE_FORMAT_Q3 },
};

/* clang-format off */
static const cyaml_schema_field_t side_fields[] = {
    CYAML_FIELD_UINT("q8", CYAML_FLAG_DEFAULT, file_side, q8),
    CYAML_FIELD_UINT("q6", CYAML_FLAG_DEFAULT, file_side, q6),
    CYAML_FIELD_UINT("q5", CYAML_FLAG_DEFAULT, file_side, q5),
    CYAML_FIELD_UINT("q4", CYAML_FLAG_DEFAULT, file_side, q4),
    CYAML_FIELD_UINT("q3", CYAML_FLAG_DEFAULT, file_side, q3),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t layer_fields[] = {
    CYAML_FIELD_MAPPING("k", CYAML_FLAG_FLOW, file_layer, k, side_fields),
    CYAML_FIELD_MAPPING("v", CYAML_FLAG_FLOW, file_layer, v, side_fields),
    CYAML_FIELD_END,
};

static const cyaml_schema_value_t layer_value = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, file_layer, layer_fields),
};

static const cyaml_schema_field_t file_fields[] = {
    CYAML_FIELD_UINT("version", CYAML_FLAG_DEFAULT, file, version),
    CYAML_FIELD_STRING("fingerprint", CYAML_FLAG_DEFAULT, file, fingerprint, FINGERPRINT_N),
    CYAML_FIELD_STRING("model", CYAML_FLAG_DEFAULT, file, model, 0),
    CYAML_FIELD_STRING("text", CYAML_FLAG_DEFAULT, file, text, 0),
    CYAML_FIELD_UINT("n_ctx", CYAML_FLAG_DEFAULT, file, n_ctx),
    CYAML_FIELD_UINT("n_chunks", CYAML_FLAG_DEFAULT, file, n_chunks),
    CYAML_FIELD_UINT("n_scored", CYAML_FLAG_DEFAULT, file, n_scored),
    CYAML_FIELD_UINT("kv_recent", CYAML_FLAG_DEFAULT, file, kv_recent),
    CYAML_FIELD_UINT("kv_sinks", CYAML_FLAG_DEFAULT, file, kv_sinks),
    CYAML_FIELD_FLAGS("measured", CYAML_FLAG_STRICT, file, measured,
                      format_names, CYAML_ARRAY_LEN(format_names)),
    CYAML_FIELD_BOOL("uniform_wins", CYAML_FLAG_OPTIONAL, file, uniform_wins),
    CYAML_FIELD_STRING("choice", CYAML_FLAG_DEFAULT, file, choice, 1),
    CYAML_FIELD_SEQUENCE("layers", CYAML_FLAG_DEFAULT, file, layers, &layer_value,
                         1, QUIRE_LAYERS_MAX),
    CYAML_FIELD_END,
};
/* clang-format on */

static const cyaml_schema_value_t file_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, file, file_fields),
};

static const cyaml_schema_field_t version_fields[] = {
    CYAML_FIELD_UINT("version", CYAML_FLAG_DEFAULT, version_only, version),
    CYAML_FIELD_END,
};

static const cyaml_schema_value_t version_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, version_only, version_fields),
};

/* ---- text from outside ---- */

/* Others may have written the file: no byte of it reaches a terminal as a control character. */
static void make_printable(char *text)
{
    for (; *text != '\0'; text++) {
        *text = *text >= ' ' && *text <= '~' ? *text : '?';
    }
}

/* A name as one line of printable ASCII, which YAML takes without quotes or escapes. */
static void name_copy(char *out, const char *name, size_t cap)
{
    size_t n = strnlen(name, cap - 1);

    memcpy(out, name, n);
    out[n] = '\0';
    make_printable(out);
}

/* ---- libcyaml ---- */

/* libcyaml's message, and the first line of its backtrace, which names the place in the file. */
typedef struct reason {
    char text[REASON_BYTES];
    char place[REASON_BYTES];
} reason;

__attribute__((format(printf, 3, 0))) static void reason_add(cyaml_log_t level, void *ctx,
                                                             const char *format, va_list ap)
{
    reason *r = ctx;
    char line[REASON_BYTES] = "";
    char *out;

    (void)level;
    (void)vsnprintf(line, sizeof(line), format, ap);
    line[strcspn(line, "\n")] = '\0';
    out = strncmp(line, "  in ", 5) == 0 ? r->place : r->text;
    if (out[0] == '\0' && strstr(format, "Backtrace") == NULL) {
        name_copy(out, strncmp(line, "Load: ", 6) == 0 ? line + 6 : line, REASON_BYTES);
    }
}

static cyaml_config_t configuration(reason *r)
{
    return (cyaml_config_t){
        .log_fn = reason_add,
        .log_ctx = r,
        .mem_fn = cyaml_mem,
        .log_level = CYAML_LOG_ERROR,
        .flags = CYAML_CFG_NO_ALIAS | CYAML_CFG_STYLE_BLOCK,
    };
}

/* libcyaml's words and ours. The rest of its message is a key or a value, or left out. */
static const struct {
    const char *theirs, *ours;
    bool is_all;
} wordings[] = {
    { "Missing required mapping field: ", "a key is missing: ", false },
    { "Unexpected key: ", "unknown key: ", false },
    { "Mapping field already seen: ", "given twice: ", false },
    { "Invalid UINT value: ", "no number, or too large a one: ", false },
    { "Invalid uint64_t value: ", "no number, or too large a one: ", false },
    { "Unknown flag: ", "no format: ", false },
    { "libyaml: ", "not YAML: ", false },
    { "STRING length <", "no value", true },
    { "STRING length >", "too long", true },
    { "Insufficient entries", "no entry", true },
    { "Excessive entries", "too many entries", true },
    { "Expecting ", "another kind of value", true },
};

/* The key that the place names and its line, as far as it does. */
static void place_read(const char *place, char key[REASON_BYTES], unsigned *line)
{
    const char *name = strstr(place, "field '");
    const char *number = strstr(place, "(line: ");

    (void)snprintf(key, REASON_BYTES, "%s", name != NULL ? name + 7 : "");
    key[strcspn(key, "'")] = '\0';
    *line = number != NULL ? (unsigned)strtoul(number + 7, NULL, 10) : 0;
}

/* The words for an error that libcyaml says nothing of. */
static const char *words_of(cyaml_err_t status)
{
    return status == CYAML_ERR_ALIAS            ? "an alias (*), which is not supported"
           : status == CYAML_ERR_INTERNAL_ERROR ? "a key that is no text"
                                                : cyaml_strerror(status);
}

static int fail_load(cyaml_err_t status, const reason *r, quire_error *err)
{
    const char *ours = "", *rest = r->text[0] != '\0' ? r->text : words_of(status);
    char key[REASON_BYTES];
    char where[40] = "";
    unsigned line;

    if (status == CYAML_ERR_OOM) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < sizeof(wordings) / sizeof(wordings[0]) && ours[0] == '\0'; i++) {
        const size_t n = strlen(wordings[i].theirs);

        if (strncmp(rest, wordings[i].theirs, n) == 0) {
            ours = wordings[i].ours;
            rest = wordings[i].is_all ? "" : rest + n;
        }
    }
    place_read(r->place, key, &line);
    if (line > 0) {
        (void)snprintf(where, sizeof(where), "in or after line %u: ", line);
    }
    return quire_error_set(err, QUIRE_CORRUPT, "%s%s%s%s%s", where, key, key[0] != '\0' ? ": " : "",
                           ours, rest);
}

/* The version is read first. So the message about a file of a later version names the version and
 * does not call the file damaged. */
static int load_version(const char *text, size_t text_bytes, quire_error *err)
{
    reason r = { .text = "" };
    cyaml_config_t config = configuration(&r);
    version_only *v = NULL;
    cyaml_err_t status;
    uint32_t version;

    config.flags |= CYAML_CFG_IGNORE_UNKNOWN_KEYS;
    status = cyaml_load_data((const uint8_t *)text, text_bytes, &config, &version_schema,
                             (cyaml_data_t **)&v, NULL);
    if (status != CYAML_OK || v == NULL) {
        return fail_load(status, &r, err);
    }
    version = v->version;
    (void)cyaml_free(&config, &version_schema, v, 0);
    if (version != QUIRE_CALIBRATION_VERSION) {
        return quire_error_set(err, QUIRE_UNSUPP, "version %u; this build reads version %u",
                               version, QUIRE_CALIBRATION_VERSION);
    }
    return QUIRE_OK;
}

/* Memory: free(*out). */
static int load_file(const char *text, size_t text_bytes, file **out, quire_error *err)
{
    reason r = { .text = "" };
    cyaml_config_t config = configuration(&r);
    cyaml_err_t status;

    *out = NULL;
    status = cyaml_load_data((const uint8_t *)text, text_bytes, &config, &file_schema,
                             (cyaml_data_t **)out, NULL);
    return status == CYAML_OK && *out != NULL ? QUIRE_OK : fail_load(status, &r, err);
}

/* ---- between the two forms ---- */

typedef struct format_field {
    quire_format format;
    size_t offset; /* in file_side */
} format_field;

static const format_field side_formats[] = {
    { QUIRE_FORMAT_Q8, offsetof(file_side, q8) }, { QUIRE_FORMAT_Q6, offsetof(file_side, q6) },
    { QUIRE_FORMAT_Q5, offsetof(file_side, q5) }, { QUIRE_FORMAT_Q4, offsetof(file_side, q4) },
    { QUIRE_FORMAT_Q3, offsetof(file_side, q3) },
};
#define N_SIDE_FORMATS (sizeof(side_formats) / sizeof(side_formats[0]))

static uint64_t *field_of(file_side *side, const format_field *field)
{
    return (uint64_t *)((char *)side + field->offset);
}

static bool is_cost(double value)
{
    return value >= 0.0 && value <= QUIRE_CALIBRATION_COST_MAX; /* not so for NaN */
}

static int take_side(file_side *side, uint32_t layer, quire_side which, double *costs,
                     quire_error *err)
{
    for (size_t i = 0; i < N_SIDE_FORMATS; i++) {
        double value = (double)*field_of(side, &side_formats[i]) * UNIT;

        if (!is_cost(value)) {
            return quire_error_set(err, QUIRE_CORRUPT, "layer %u, %s, %s: a cost of %g nats", layer,
                                   which == QUIRE_SIDE_K ? "k" : "v",
                                   quire_format_name(side_formats[i].format), value);
        }
        costs[side_formats[i].format] = value;
    }
    return QUIRE_OK;
}

static int check_head(const file *f, const quire_model_desc *desc, quire_error *err)
{
    char expected[FINGERPRINT_N + 1];

    if (strspn(f->fingerprint, "0123456789abcdef") != FINGERPRINT_N) {
        return quire_error_set(err, QUIRE_CORRUPT, "the fingerprint is not %u hexadecimal digits",
                               FINGERPRINT_N);
    }
    (void)snprintf(expected, sizeof(expected), "%016" PRIx64, desc->fingerprint);
    if (strcmp(f->fingerprint, expected) != 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "made for another model (fingerprint %s, this one is %s)",
                               f->fingerprint, expected);
    }
    if (f->layers_count != desc->n_stored) {
        return quire_error_set(err, QUIRE_CORRUPT, "%u layers; the model stores %u",
                               f->layers_count, desc->n_stored);
    }
    if (f->n_ctx == 0 || f->n_ctx > TOKENS_MAX || f->n_chunks == 0 || f->n_scored == 0 ||
        f->kv_recent > TOKENS_MAX || f->kv_sinks > TOKENS_MAX) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "counts out of range (n_ctx %u, n_chunks %u, n_scored %u, kv_recent "
                               "%u, kv_sinks %u)",
                               f->n_ctx, f->n_chunks, f->n_scored, f->kv_recent, f->kv_sinks);
    }
    return QUIRE_OK;
}

static bool is_uniform(const quire_model_desc *desc, const quire_kv_pair *pairs)
{
    for (uint32_t l = 1; l < desc->n_stored; l++) {
        if (!quire_kv_pair_equals(pairs[l], pairs[0])) {
            return false;
        }
    }
    return true;
}

static int take_file(quire_calibration *out, file *f, const quire_model_desc *desc,
                     quire_error *err)
{
    QUIRE_TRY(check_head(f, desc, err));
    name_copy(out->model, f->model, sizeof(out->model));
    name_copy(out->text, f->text, sizeof(out->text));
    out->n_ctx = f->n_ctx;
    out->n_chunks = f->n_chunks;
    out->n_scored = f->n_scored;
    out->kv_recent = f->kv_recent;
    out->kv_sinks = f->kv_sinks;
    out->measured = f->measured;
    out->uniform_wins = f->uniform_wins;
    for (uint32_t l = 0; l < desc->n_stored; l++) {
        QUIRE_TRY(take_side(&f->layers[l].k, l, QUIRE_SIDE_K, out->costs[l].of[QUIRE_SIDE_K], err));
        QUIRE_TRY(take_side(&f->layers[l].v, l, QUIRE_SIDE_V, out->costs[l].of[QUIRE_SIDE_V], err));
    }
    if (quire_kv_layers_parse(f->choice, desc, out->pairs, err) < 0) {
        err->status = QUIRE_CORRUPT;
        make_printable(err->message);
        return QUIRE_CORRUPT;
    }
    if (f->uniform_wins && !is_uniform(desc, out->pairs)) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "uniform_wins with a choice that differs by layer");
    }
    return QUIRE_OK;
}

int quire_calibration_parse(quire_calibration *out, const char *text, size_t text_bytes,
                            const quire_model_desc *desc, quire_error *err)
{
    file *f = NULL;
    int rc;

    memset(out, 0, sizeof(*out));
    if (text_bytes > QUIRE_CALIBRATION_BYTES_MAX) {
        return quire_error_set(err, QUIRE_CORRUPT, "longer than %u bytes",
                               QUIRE_CALIBRATION_BYTES_MAX);
    }
    if (text_bytes == 0) {
        return quire_error_set(err, QUIRE_CORRUPT, "empty");
    }
    QUIRE_TRY(load_version(text, text_bytes, err));
    QUIRE_TRY(load_file(text, text_bytes, &f, err));
    rc = quire_calibration_init(out, desc, err);
    if (rc == QUIRE_OK) {
        rc = take_file(out, f, desc, err);
    }
    if (rc < 0) {
        quire_calibration_fini(out);
    }
    free(f);
    return rc;
}

/* Measurements may have any value: a cost outside the bounds of the file is reported and not
 * written. */
static int check_costs(const quire_calibration *c, quire_error *err)
{
    for (uint32_t l = 0; l < c->n_stored; l++) {
        for (uint32_t side = 0; side < 2; side++) {
            for (size_t i = 0; i < N_SIDE_FORMATS; i++) {
                const quire_format format = side_formats[i].format;
                const double cost = c->costs[l].of[side][format];

                if (!is_cost(cost)) {
                    return quire_error_set(err, QUIRE_RANGE,
                                           "layer %u, %s: %s costs %g nats, a calibration holds 0 "
                                           "to %g: this model's predictions are too extreme to "
                                           "compare",
                                           l, side == QUIRE_SIDE_K ? "K" : "V",
                                           quire_format_name(format), cost,
                                           QUIRE_CALIBRATION_COST_MAX);
                }
            }
        }
    }
    return QUIRE_OK;
}

static void give_side(file_side *side, const double *costs)
{
    for (size_t i = 0; i < N_SIDE_FORMATS; i++) {
        const double cost = costs[side_formats[i].format];

        QUIRE_CHECK(is_cost(cost));
        *field_of(side, &side_formats[i]) = (uint64_t)(cost / UNIT + 0.5);
    }
}

static void fill_file(file *f, const quire_calibration *c, const quire_model_desc *desc)
{
    f->version = QUIRE_CALIBRATION_VERSION;
    (void)snprintf(f->fingerprint, sizeof(f->fingerprint), "%016" PRIx64, desc->fingerprint);
    name_copy(f->model, c->model, sizeof(f->model));
    name_copy(f->text, c->text, sizeof(f->text));
    f->n_ctx = c->n_ctx;
    f->n_chunks = c->n_chunks;
    f->n_scored = c->n_scored;
    f->kv_recent = c->kv_recent;
    f->kv_sinks = c->kv_sinks;
    f->measured = c->measured;
    f->uniform_wins = c->uniform_wins;
    (void)quire_kv_layers_text(desc, c->pairs, f->choice, sizeof(f->choice));
    f->layers_count = c->n_stored;
    for (uint32_t l = 0; l < c->n_stored; l++) {
        give_side(&f->layers[l].k, c->costs[l].of[QUIRE_SIDE_K]);
        give_side(&f->layers[l].v, c->costs[l].of[QUIRE_SIDE_V]);
    }
}

int quire_calibration_format(const quire_calibration *calibration, const quire_model_desc *desc,
                             char **text, size_t *text_bytes, quire_error *err)
{
    reason r = { .text = "" };
    cyaml_config_t config = configuration(&r);
    cyaml_err_t status = CYAML_ERR_OOM;
    char *yaml = NULL;
    size_t yaml_bytes = 0;
    int rc = QUIRE_NOMEM;
    file *f;

    *text = NULL;
    QUIRE_TRY(check_costs(calibration, err));
    f = calloc(1, sizeof(*f));
    if (f != NULL) {
        fill_file(f, calibration, desc);
        status = cyaml_save_data(&yaml, &yaml_bytes, &config, &file_schema, f, 0);
    }
    if (status == CYAML_OK) {
        *text = malloc(sizeof(heading) + yaml_bytes);
    }
    if (*text != NULL) {
        memcpy(*text, heading, sizeof(heading) - 1);
        memcpy(*text + sizeof(heading) - 1, yaml, yaml_bytes);
        *text_bytes = sizeof(heading) - 1 + yaml_bytes;
        (*text)[*text_bytes] = '\0';
        rc = QUIRE_OK;
    } else {
        quire_error_set(err, rc, "no memory for the calibration's text");
    }
    free(yaml);
    free(f);
    return rc;
}
