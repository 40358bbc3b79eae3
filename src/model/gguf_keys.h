/* gguf_keys.h - typed, range-checked reads of a GGUF file's keys.
 *
 * Each getter returns QUIRE_OK, or QUIRE_CORRUPT with a message that names the file, the key, its
 * value and the expected value. An absent optional key (is_required false) leaves *value unchanged,
 * so the caller stores the default in *value first.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GGUF_KEYS_H
#define QUIRE_MODEL_GGUF_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "model/gguf_file.h"

#define QUIRE_GGUF_KEY_NAME_MAX 96u

/* The bounds of a number. */
typedef struct quire_gguf_range {
    uint32_t min;
    uint32_t max;
    bool is_required;
} quire_gguf_range;

/* "llama.block_count" from "llama" and "block_count". buffer of QUIRE_GGUF_KEY_NAME_MAX bytes.
 * Returns buffer. */
const char *quire_gguf_key(char *buffer, const char *arch, const char *suffix);

/* Index of a key, -1 if absent. */
int64_t quire_gguf_find(const quire_gguf *file, const char *key);

/* An integer of any width and sign. */
int quire_gguf_get_u32(const quire_gguf *file, const char *key, quire_gguf_range range,
                       uint32_t *value, quire_error *err);

/* An integer, or an array of n equal ones (per layer). Arrays whose elements differ are
 * QUIRE_UNSUPP: no runtime here varies them by layer. */
int quire_gguf_get_u32_or_array(const quire_gguf *file, const char *key, uint32_t n,
                                quire_gguf_range range, uint32_t *value, quire_error *err);

/* An integer for all of n layers, or an array with one for each. out: [n]. */
int quire_gguf_get_u32_by_layer(const quire_gguf *file, const char *key, uint32_t n,
                                quire_gguf_range range, uint32_t *out, quire_error *err);

/* The bounds of signed numbers. */
typedef struct quire_gguf_range_i32 {
    int32_t min;
    int32_t max;
} quire_gguf_range_i32;

/* A required array of n integers of any width, each within the range. out: [n]. */
int quire_gguf_get_i32_array(const quire_gguf *file, const char *key, uint32_t n,
                             quire_gguf_range_i32 range, int32_t *out, quire_error *err);

/* A finite float within [min, max]. */
typedef struct quire_gguf_range_f32 {
    float min;
    float max;
    bool is_required;
} quire_gguf_range_f32;
int quire_gguf_get_f32(const quire_gguf *file, const char *key, quire_gguf_range_f32 range,
                       float *value, quire_error *err);

/* A required float per layer: one number for all of them, or an array of n. */
typedef struct quire_gguf_f32_by_layer {
    const char *key;
    uint32_t n;
    quire_gguf_range_f32 range;
} quire_gguf_f32_by_layer;
int quire_gguf_get_f32_by_layer(const quire_gguf *file, const quire_gguf_f32_by_layer *what,
                                float *out, quire_error *err);

int quire_gguf_get_bool(const quire_gguf *file, const char *key, bool *value, quire_error *err);

/* A required array of n truth values, or of integers that are 0 or 1. out: [n]. */
int quire_gguf_get_bool_array(const quire_gguf *file, const char *key, uint32_t n, bool *out,
                              quire_error *err);

/* Memory: *value is borrowed from the file. */
int quire_gguf_get_str(const quire_gguf *file, const char *key, bool is_required,
                       const char **value, quire_error *err);

#endif /* QUIRE_MODEL_GGUF_KEYS_H */
