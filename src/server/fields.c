/* fields.c - reading fields of a JSON body.
 *
 * SPDX-License-Identifier: MIT */
#include "server/fields.h"

#include "base/bytes.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *quire_json_type_text(json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

char *quire_json_dump(const json_t *value)
{
    for (size_t digits = 15;; digits++) { /* 17 are always enough */
        char *text =
            json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits));
        json_t *again =
            text != NULL && digits < 17 ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        const bool is_same = again != NULL && json_equal(again, value);

        json_decref(again);
        if (text == NULL || is_same || digits == 17) {
            return text;
        }
        free(text);
    }
}

static void set_error(quire_fields *fields, const char *code, const char *name, const char *what)
{
    char where[QUIRE_API_PARAM_MAX];

    (void)snprintf(where, sizeof where, "%s%s%s", fields->path != NULL ? fields->path : "",
                   fields->path != NULL ? "." : "", name);
    (void)quire_api_error_set(fields->err, 400, code, where, "%s: %s", where, what);
}

void quire_field_error(quire_fields *fields, const char *name, const char *format, ...)
{
    char what[QUIRE_ERROR_MESSAGE_MAX / 2];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    set_error(fields, "invalid_value", name, what);
}

void quire_field_unsupported(quire_fields *fields, const char *name, const char *format, ...)
{
    char what[QUIRE_ERROR_MESSAGE_MAX / 2];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    set_error(fields, "unsupported_parameter", name, what);
}

void quire_field_type_error(quire_fields *fields, const char *name, const char *expected,
                            json_t *got)
{
    quire_field_error(fields, name, "expected %s, got %s", expected, quire_json_type_text(got));
}

json_t *quire_field(const quire_fields *fields, const char *name)
{
    json_t *value = json_object_get(fields->object, name);
    quire_fields_asked *asked = fields->asked;

    if (asked != NULL && asked->n < QUIRE_FIELDS_ASKED_MAX) {
        asked->names[asked->n++] = name;
    }
    return json_is_null(value) ? NULL : value;
}

json_t *quire_field_required(quire_fields *fields, const char *name)
{
    json_t *value = quire_field(fields, name);

    if (value == NULL) {
        quire_field_error(fields, name, "is required");
    }
    return value;
}

bool quire_field_retain(quire_fields *fields, quire_retain_spec *out)
{
    const char *policy = quire_field_string(fields, "retain", QUIRE_RETAIN_TEXT_MAX);
    quire_error why = QUIRE_ERROR_INIT;

    out->policy = NULL;
    if (policy != NULL && strcmp(policy, "none") != 0 &&
        quire_retain_parse(policy, out, &why) < 0) {
        quire_field_error(fields, "retain", "%s", why.message);
        out->policy = NULL;
    }
    return policy != NULL;
}

bool quire_field_attend(quire_fields *fields, double *share)
{
    const char *text = quire_field_string(fields, "attend", 64);

    *share = 0.0;
    if (text != NULL && strcmp(text, "none") != 0 && quire_attend_parse(text, share) < 0) {
        quire_field_error(fields, "attend",
                          "must be \"none\" or \"top:SHARE\", a share above 0 and at most 1");
    }
    return text != NULL;
}

bool quire_field_bool(quire_fields *fields, const char *name, bool fallback)
{
    json_t *value = quire_field(fields, name);

    if (value == NULL) {
        return fallback;
    }
    if (!json_is_boolean(value)) {
        quire_field_type_error(fields, name, "a boolean", value);
        return fallback;
    }
    return json_is_true(value);
}

int64_t quire_field_int(quire_fields *fields, const char *name, int64_t fallback, int64_t min,
                        int64_t max)
{
    json_t *value = quire_field(fields, name);
    int64_t n;

    if (value == NULL) {
        return fallback;
    }
    if (json_is_real(value) && !(fabs(json_real_value(value)) < 0x1p63)) {
        quire_field_error(fields, name, "%.17g is not within %" PRId64 " .. %" PRId64,
                          json_real_value(value), min, max); /* see json_in.h */
        return fallback;
    }
    if (!json_is_integer(value)) {
        quire_field_type_error(fields, name, "an integer", value);
        return fallback;
    }
    n = (int64_t)json_integer_value(value);
    if (n < min || n > max) {
        quire_field_error(fields, name, "%" PRId64 " is not within %" PRId64 " .. %" PRId64, n, min,
                          max);
        return fallback;
    }
    return n;
}

double quire_field_number(quire_fields *fields, const char *name, double fallback, double min,
                          double max)
{
    json_t *value = quire_field(fields, name);
    double x;

    if (value == NULL) {
        return fallback;
    }
    if (!json_is_number(value)) {
        quire_field_type_error(fields, name, "a number", value);
        return fallback;
    }
    x = json_number_value(value);
    if (!(x >= min && x <= max)) {
        quire_field_error(fields, name, "%g is not within %g .. %g", x, min, max);
        return fallback;
    }
    return x;
}

const char *quire_field_string(quire_fields *fields, const char *name, size_t bytes_max)
{
    json_t *value = quire_field(fields, name);

    if (value == NULL) {
        return NULL;
    }
    if (!json_is_string(value)) {
        quire_field_type_error(fields, name, "a string", value);
        return NULL;
    }
    if (json_string_length(value) > bytes_max) {
        quire_field_error(fields, name, "%zu bytes, at most %zu", json_string_length(value),
                          bytes_max);
        return NULL;
    }
    return json_string_value(value);
}

json_t *quire_field_array(quire_fields *fields, const char *name, size_t n_max)
{
    json_t *value = quire_field(fields, name);

    if (value == NULL) {
        return NULL;
    }
    if (!json_is_array(value)) {
        quire_field_type_error(fields, name, "an array", value);
        return NULL;
    }
    if (json_array_size(value) > n_max) {
        quire_field_error(fields, name, "%zu elements, at most %zu", json_array_size(value), n_max);
        return NULL;
    }
    return value;
}

json_t *quire_field_object(quire_fields *fields, const char *name)
{
    json_t *value = quire_field(fields, name);

    if (value != NULL && !json_is_object(value)) {
        quire_field_type_error(fields, name, "an object", value);
        return NULL;
    }
    return value;
}

static bool is_same(json_t *a, json_t *b)
{
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b)
                                                  : json_equal(a, b) != 0;
}

/* Whether a value is one of a list. Errors: QUIRE_NOMEM. */
static int is_among(json_t *value, const char *list)
{
    quire_bytes text = { 0 };
    json_t *array = NULL;
    int rc = QUIRE_NOMEM;

    if (quire_bytes_addf(&text, "[%s]", list) == QUIRE_OK) {
        array = json_loadb(text.data, text.n, 0, NULL);
    }
    if (array != NULL) {
        rc = 0;
        for (size_t i = 0; i < json_array_size(array); i++) {
            rc |= is_same(value, json_array_get(array, i));
        }
    }
    json_decref(array);
    quire_bytes_fini(&text);
    return rc;
}

void quire_field_refuse(quire_fields *fields, const char *name, const char *accepted,
                        const char *why)
{
    json_t *value = quire_field(fields, name);
    const int is_accepted = value == NULL ? 1 : is_among(value, accepted);

    if (is_accepted < 0) {
        (void)quire_api_error_nomem(fields->err);
    } else if (is_accepted == 0) {
        quire_field_unsupported(fields, name, "not supported: %s (accepted: null%s%s)", why,
                                accepted[0] != '\0' ? ", " : "", accepted);
    }
}
