/* gguf_keys.c - typed, range-checked reads of a GGUF file's keys.
 *
 * gguf.h's getters abort when the type is not the one asked for, so the type is looked up first.
 *
 * SPDX-License-Identifier: MIT */
#include "model/gguf_keys.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

const char *quire_gguf_key(char *buffer, const char *arch, const char *suffix)
{
    (void)snprintf(buffer, QUIRE_GGUF_KEY_NAME_MAX, "%s.%s", arch, suffix);
    return buffer;
}

int64_t quire_gguf_find(const quire_gguf *file, const char *key)
{
    return gguf_find_key(quire_gguf_context(file), key);
}

static int missing_error(const quire_gguf *file, const char *key, quire_error *err)
{
    return quire_error_set(err, QUIRE_CORRUPT, "%s: key %s is missing (damaged file?)",
                           quire_gguf_path(file), key);
}

static int type_error(const quire_gguf *file, const char *key, const char *expected,
                      quire_error *err)
{
    const struct gguf_context *gguf = quire_gguf_context(file);

    return quire_error_set(err, QUIRE_CORRUPT, "%s: %s is of type %s; expected %s (damaged file?)",
                           quire_gguf_path(file), key,
                           gguf_type_name(gguf_get_kv_type(gguf, gguf_find_key(gguf, key))),
                           expected);
}

/* Element i of an integer value or array of type type at data; false for other types. */
static bool integer_at(enum gguf_type type, const void *data, size_t i, int64_t *out)
{
    switch (type) {
    case GGUF_TYPE_UINT8:
        *out = ((const uint8_t *)data)[i];
        return true;
    case GGUF_TYPE_INT8:
        *out = ((const int8_t *)data)[i];
        return true;
    case GGUF_TYPE_UINT16:
        *out = ((const uint16_t *)data)[i];
        return true;
    case GGUF_TYPE_INT16:
        *out = ((const int16_t *)data)[i];
        return true;
    case GGUF_TYPE_UINT32:
        *out = ((const uint32_t *)data)[i];
        return true;
    case GGUF_TYPE_INT32:
        *out = ((const int32_t *)data)[i];
        return true;
    case GGUF_TYPE_UINT64: {
        uint64_t value = ((const uint64_t *)data)[i];

        *out = value > INT64_MAX ? INT64_MAX : (int64_t)value;
        return true;
    }
    case GGUF_TYPE_INT64:
        *out = ((const int64_t *)data)[i];
        return true;
    default:
        return false;
    }
}

static int range_check(const quire_gguf *file, const char *key, quire_gguf_range range,
                       int64_t value, quire_error *err)
{
    if (value < (int64_t)range.min || value > (int64_t)range.max) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: %s is %" PRId64 "; expected %" PRIu32 "..%" PRIu32
                               " (damaged file?)",
                               quire_gguf_path(file), key, value, range.min, range.max);
    }
    return QUIRE_OK;
}

int quire_gguf_get_u32(const quire_gguf *file, const char *key, quire_gguf_range range,
                       uint32_t *value, quire_error *err)
{
    const struct gguf_context *gguf = quire_gguf_context(file);
    int64_t index = gguf_find_key(gguf, key);
    enum gguf_type type;
    int64_t number;

    if (index < 0) {
        return range.is_required ? missing_error(file, key, err) : QUIRE_OK;
    }
    type = gguf_get_kv_type(gguf, index);
    if (type == GGUF_TYPE_STRING || type == GGUF_TYPE_ARRAY ||
        !integer_at(type, gguf_get_val_data(gguf, index), 0, &number)) {
        return type_error(file, key, "an integer", err);
    }
    QUIRE_TRY(range_check(file, key, range, number, err));
    *value = (uint32_t)number;
    return QUIRE_OK;
}

int quire_gguf_get_u32_or_array(const quire_gguf *file, const char *key, uint32_t n,
                                quire_gguf_range range, uint32_t *value, quire_error *err)
{
    const struct gguf_context *gguf = quire_gguf_context(file);
    int64_t index = gguf_find_key(gguf, key);
    int64_t first = 0;

    if (index < 0 || gguf_get_kv_type(gguf, index) != GGUF_TYPE_ARRAY) {
        return quire_gguf_get_u32(file, key, range, value, err);
    }
    if (gguf_get_arr_type(gguf, index) == GGUF_TYPE_STRING) {
        return type_error(file, key, "an integer or an array of integers", err);
    }
    if (gguf_get_arr_n(gguf, index) != n) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: %s has %zu elements; expected %" PRIu32
                               ", one per layer (damaged file?)",
                               quire_gguf_path(file), key, gguf_get_arr_n(gguf, index), n);
    }
    for (uint32_t i = 0; i < n; i++) {
        int64_t number;

        if (!integer_at(gguf_get_arr_type(gguf, index), gguf_get_arr_data(gguf, index), i,
                        &number)) {
            return type_error(file, key, "an integer or an array of integers", err);
        }
        QUIRE_TRY(range_check(file, key, range, number, err));
        first = i == 0 ? number : first;
        if (number != first) {
            return quire_error_set(err, QUIRE_UNSUPP,
                                   "%s: %s differs between layers (%" PRId64 " in layer 0, %" PRId64
                                   " in layer %" PRIu32 "); not supported",
                                   quire_gguf_path(file), key, first, number, i);
        }
    }
    *value = (uint32_t)first;
    return QUIRE_OK;
}

int quire_gguf_get_i32_array(const quire_gguf *file, const char *key, uint32_t n,
                             quire_gguf_range_i32 range, int32_t *out, quire_error *err)
{
    const struct gguf_context *gguf = quire_gguf_context(file);
    int64_t index = gguf_find_key(gguf, key);

    if (index < 0) {
        return missing_error(file, key, err);
    }
    if (gguf_get_kv_type(gguf, index) != GGUF_TYPE_ARRAY ||
        gguf_get_arr_type(gguf, index) == GGUF_TYPE_STRING) {
        return type_error(file, key, "an array of integers", err);
    }
    if (gguf_get_arr_n(gguf, index) != n) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: %s has %zu elements; expected %" PRIu32 " (damaged file?)",
                               quire_gguf_path(file), key, gguf_get_arr_n(gguf, index), n);
    }
    for (uint32_t i = 0; i < n; i++) {
        int64_t number;

        if (!integer_at(gguf_get_arr_type(gguf, index), gguf_get_arr_data(gguf, index), i,
                        &number)) {
            return type_error(file, key, "an array of integers", err);
        }
        if (number < range.min || number > range.max) {
            return quire_error_set(err, QUIRE_CORRUPT,
                                   "%s: element %" PRIu32 " of %s is %" PRId64 "; expected %" PRId32
                                   "..%" PRId32 " (damaged file?)",
                                   quire_gguf_path(file), i, key, number, range.min, range.max);
        }
        out[i] = (int32_t)number;
    }
    return QUIRE_OK;
}

int quire_gguf_get_f32(const quire_gguf *file, const char *key, quire_gguf_range_f32 range,
                       float *value, quire_error *err)
{
    const struct gguf_context *gguf = quire_gguf_context(file);
    int64_t index = gguf_find_key(gguf, key);
    float number;

    if (index < 0) {
        return range.is_required ? missing_error(file, key, err) : QUIRE_OK;
    }
    if (gguf_get_kv_type(gguf, index) != GGUF_TYPE_FLOAT32) {
        return type_error(file, key, "f32", err);
    }
    number = gguf_get_val_f32(gguf, index);
    if (!(number >= range.min && number <= range.max)) {
        return quire_error_set(err, QUIRE_CORRUPT, "%s: %s is %g; expected %g..%g (damaged file?)",
                               quire_gguf_path(file), key, (double)number, (double)range.min,
                               (double)range.max);
    }
    *value = number;
    return QUIRE_OK;
}

static int number_check(const quire_gguf *file, const quire_gguf_f32_by_layer *what, float number,
                        quire_error *err)
{
    if (!(number >= what->range.min && number <= what->range.max)) {
        return quire_error_set(err, QUIRE_CORRUPT, "%s: %s is %g; expected %g..%g (damaged file?)",
                               quire_gguf_path(file), what->key, (double)number,
                               (double)what->range.min, (double)what->range.max);
    }
    return QUIRE_OK;
}

int quire_gguf_get_f32_by_layer(const quire_gguf *file, const quire_gguf_f32_by_layer *what,
                                float *out, quire_error *err)
{
    const struct gguf_context *gguf = quire_gguf_context(file);
    const int64_t index = gguf_find_key(gguf, what->key);
    const float *numbers;
    float value = 0.0f;

    if (index < 0 || gguf_get_kv_type(gguf, index) != GGUF_TYPE_ARRAY) {
        QUIRE_TRY(quire_gguf_get_f32(file, what->key, what->range, &value, err));
        for (uint32_t i = 0; i < what->n; i++) {
            out[i] = value;
        }
        return QUIRE_OK;
    }
    if (gguf_get_arr_type(gguf, index) != GGUF_TYPE_FLOAT32) {
        return type_error(file, what->key, "f32 or an array of f32", err);
    }
    if (gguf_get_arr_n(gguf, index) != what->n) {
        return quire_error_set(
            err, QUIRE_CORRUPT,
            "%s: %s has %zu elements; expected %" PRIu32 ", one per layer (damaged file?)",
            quire_gguf_path(file), what->key, gguf_get_arr_n(gguf, index), what->n);
    }
    numbers = gguf_get_arr_data(gguf, index);
    for (uint32_t i = 0; i < what->n; i++) {
        QUIRE_TRY(number_check(file, what, numbers[i], err));
        out[i] = numbers[i];
    }
    return QUIRE_OK;
}

int quire_gguf_get_u32_by_layer(const quire_gguf *file, const char *key, uint32_t n,
                                quire_gguf_range range, uint32_t *out, quire_error *err)
{
    const struct gguf_context *gguf = quire_gguf_context(file);
    const int64_t index = gguf_find_key(gguf, key);
    int32_t numbers[QUIRE_LAYERS_MAX];

    QUIRE_CHECK(n <= QUIRE_LAYERS_MAX && range.max <= INT32_MAX);
    if (index < 0 || gguf_get_kv_type(gguf, index) != GGUF_TYPE_ARRAY) {
        QUIRE_TRY(quire_gguf_get_u32(file, key, range, &out[0], err));
        for (uint32_t i = 1; i < n && index >= 0; i++) {
            out[i] = out[0];
        }
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_gguf_get_i32_array(
        file, key, n, (quire_gguf_range_i32){ (int32_t)range.min, (int32_t)range.max }, numbers,
        err));
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (uint32_t)numbers[i];
    }
    return QUIRE_OK;
}

int quire_gguf_get_bool_array(const quire_gguf *file, const char *key, uint32_t n, bool *out,
                              quire_error *err)
{
    const struct gguf_context *gguf = quire_gguf_context(file);
    const int64_t index = gguf_find_key(gguf, key);
    int32_t numbers[QUIRE_LAYERS_MAX];

    QUIRE_CHECK(n <= QUIRE_LAYERS_MAX);
    if (index >= 0 && gguf_get_kv_type(gguf, index) == GGUF_TYPE_ARRAY &&
        gguf_get_arr_type(gguf, index) == GGUF_TYPE_BOOL && gguf_get_arr_n(gguf, index) == n) {
        for (uint32_t i = 0; i < n; i++) {
            out[i] = ((const int8_t *)gguf_get_arr_data(gguf, index))[i] != 0;
        }
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_gguf_get_i32_array(file, key, n, (quire_gguf_range_i32){ 0, 1 }, numbers, err));
    for (uint32_t i = 0; i < n; i++) {
        out[i] = numbers[i] != 0;
    }
    return QUIRE_OK;
}

int quire_gguf_get_bool(const quire_gguf *file, const char *key, bool *value, quire_error *err)
{
    const struct gguf_context *gguf = quire_gguf_context(file);
    int64_t index = gguf_find_key(gguf, key);

    if (index < 0) {
        return QUIRE_OK;
    }
    if (gguf_get_kv_type(gguf, index) != GGUF_TYPE_BOOL) {
        return type_error(file, key, "bool", err);
    }
    *value = gguf_get_val_bool(gguf, index);
    return QUIRE_OK;
}

int quire_gguf_get_str(const quire_gguf *file, const char *key, bool is_required,
                       const char **value, quire_error *err)
{
    const struct gguf_context *gguf = quire_gguf_context(file);
    int64_t index = gguf_find_key(gguf, key);

    if (index < 0) {
        return is_required ? missing_error(file, key, err) : QUIRE_OK;
    }
    if (gguf_get_kv_type(gguf, index) != GGUF_TYPE_STRING) {
        return type_error(file, key, "string", err);
    }
    *value = gguf_get_val_str(gguf, index);
    return QUIRE_OK;
}
