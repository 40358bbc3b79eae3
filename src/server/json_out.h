/* json_out.h - writing JSON, value by value, into bytes that grow.
 *
 * The writer sets commas. The bytes keep errors (base/bytes.h), so a document is checked once, when
 * it is complete. Texts may be any bytes, since names in a model file can be; invalid UTF-8 becomes
 * U+FFFD.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_JSON_OUT_H
#define QUIRE_SERVER_JSON_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

typedef struct quire_json_out {
    quire_bytes *bytes; /* borrowed */
    bool needs_comma;
} quire_json_out;

/* key NULL: an element of an array, or the document itself. */
void quire_json_object(quire_json_out *json, const char *key);
void quire_json_object_end(quire_json_out *json);
void quire_json_array(quire_json_out *json, const char *key);
void quire_json_array_end(quire_json_out *json);
void quire_json_text(quire_json_out *json, const char *key, const char *text, size_t n);
void quire_json_string(quire_json_out *json, const char *key, const char *text); /* NULL = null */
void quire_json_u64(quire_json_out *json, const char *key, uint64_t value);
void quire_json_i64(quire_json_out *json, const char *key, int64_t value);
/* NaN and infinities become null, because JSON cannot express them. */
void quire_json_number(quire_json_out *json, const char *key, double value);
void quire_json_bool(quire_json_out *json, const char *key, bool value);
void quire_json_null(quire_json_out *json, const char *key);
/* A value that is JSON already. */
void quire_json_raw(quire_json_out *json, const char *key, const char *text, size_t n);

#endif /* QUIRE_SERVER_JSON_OUT_H */
