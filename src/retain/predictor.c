/* predictor.c - the maps, and their file.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/predictor.h"

#include "base/check.h"
#include "base/ckd.h"
#include "base/hash128.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC        "QRETAIN1"
#define MAGIC_BYTES  8u
#define HEADER_BYTES (MAGIC_BYTES + 3 * 4u + 8u)

/* Neighbouring elements, of which every CPU adds four at once. */
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

#define ROWS 4u /* that read a map together: their sums take turns, and none waits for its last */

/* Errors: QUIRE_LIMIT. */
static int maps_floats(const quire_predictor_shape *shape, size_t *out)
{
    size_t n;

    if (!quire_ckd_mul(shape->n_layers, shape->n_kv_head, &n) ||
        !quire_ckd_mul(n, (size_t)shape->n_hidden + 1, &n) ||
        n > QUIRE_PREDICTOR_BYTES_MAX / sizeof(float)) {
        return QUIRE_LIMIT;
    }
    *out = n;
    return QUIRE_OK;
}

uint64_t quire_predictor_bytes(const quire_predictor_shape *shape)
{
    return (uint64_t)shape->n_layers * shape->n_kv_head * ((uint64_t)shape->n_hidden + 1) *
           sizeof(float);
}

int quire_predictor_create(quire_predictor **out, const quire_predictor_shape *shape)
{
    quire_predictor *predictor;
    size_t n;

    *out = NULL;
    QUIRE_TRY(maps_floats(shape, &n));
    predictor = calloc(1, sizeof *predictor);
    QUIRE_FAIL_IF(predictor == NULL, QUIRE_NOMEM);
    predictor->shape = *shape;
    predictor->maps = calloc(n, sizeof *predictor->maps);
    if (predictor->maps == NULL) {
        free(predictor);
        return QUIRE_NOMEM;
    }
    *out = predictor;
    return QUIRE_OK;
}

void quire_predictor_free(quire_predictor *predictor)
{
    if (predictor != NULL) {
        free(predictor->maps);
        free(predictor);
    }
}

float *quire_predictor_map(const quire_predictor *predictor, uint32_t layer, uint32_t kv_head)
{
    const quire_predictor_shape *shape = &predictor->shape;

    return predictor->maps +
           ((size_t)layer * shape->n_kv_head + kv_head) * ((size_t)shape->n_hidden + 1);
}

/* The predicted attention of n_rows rows, ROWS at the most: a constant where it is inlined. Each
 * sum has an order of its own, whatever rows stand beside it. */
static inline void apply_some(const float *map, uint32_t n, const float *hidden, size_t stride,
                              uint32_t n_rows, float *out)
{
    four low[ROWS] = { 0 }, high[ROWS] = { 0 }; /* eight sums of each row */
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8) {
        for (uint32_t r = 0; r < n_rows; r++) {
            const float *at = hidden + r * stride + i;

            low[r] += *(const four *)(map + i) * *(const four *)at;
            high[r] += *(const four *)(map + i + 4) * *(const four *)(at + 4);
        }
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        float sum = map[n];

        for (uint32_t k = i; k < n; k++) {
            sum += map[k] * hidden[r * stride + k];
        }
        for (uint32_t x = 0; x < 8; x++) {
            sum += x < 4 ? low[r][x] : high[r][x - 4];
        }
        out[r] = sum < 0.0f ? expf(sum) : 1.0f;
    }
}

void quire_predictor_apply(const quire_predictor *predictor, uint32_t layer, uint32_t kv_head,
                           const quire_predictor_rows *rows, float *out)
{
    const float *map = quire_predictor_map(predictor, layer, kv_head);
    const uint32_t n = predictor->shape.n_hidden;
    uint32_t i = 0;

    for (; i + ROWS <= rows->n; i += ROWS) {
        apply_some(map, n, rows->hidden + i * rows->stride, rows->stride, ROWS, out + i);
    }
    for (; i < rows->n; i++) {
        apply_some(map, n, rows->hidden + i * rows->stride, rows->stride, 1, out + i);
    }
}

void quire_predictor_hash(const quire_predictor *predictor, unsigned char hash[QUIRE_HASH128_BYTES])
{
    unsigned char shape[3 * 4u + 8u];
    unsigned char *at = quire_le_put(shape, predictor->shape.n_layers, 4);
    size_t n = 0;

    at = quire_le_put(at, predictor->shape.n_kv_head, 4);
    at = quire_le_put(at, predictor->shape.n_hidden, 4);
    (void)quire_le_put(at, predictor->shape.fingerprint, 8);
    (void)maps_floats(&predictor->shape, &n); /* as when it was created */
    quire_hash128_parts(shape, sizeof shape, predictor->maps, n * sizeof *predictor->maps, hash);
}

/* ---- the file ---- */

int quire_predictor_format(const quire_predictor *predictor, void **bytes, size_t *n_bytes)
{
    const quire_predictor_shape *shape = &predictor->shape;
    unsigned char *buffer, *at;
    size_t n;

    *bytes = NULL;
    QUIRE_TRY(maps_floats(shape, &n));
    *n_bytes = HEADER_BYTES + n * sizeof(float) + QUIRE_HASH128_BYTES;
    buffer = malloc(*n_bytes);
    QUIRE_FAIL_IF(buffer == NULL, QUIRE_NOMEM);
    memcpy(buffer, MAGIC, MAGIC_BYTES);
    at = quire_le_put(buffer + MAGIC_BYTES, shape->n_layers, 4);
    at = quire_le_put(at, shape->n_kv_head, 4);
    at = quire_le_put(at, shape->n_hidden, 4);
    at = quire_le_put(at, shape->fingerprint, 8);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, &predictor->maps[i], sizeof bits);
        at = quire_le_put(at, bits, 4);
    }
    quire_hash128(buffer, (size_t)(at - buffer), at);
    *bytes = buffer;
    return QUIRE_OK;
}

/* Errors: QUIRE_CORRUPT. */
static int check_bytes(const unsigned char *at, size_t n_bytes, const quire_predictor_shape *found,
                       quire_error *err)
{
    unsigned char hash[QUIRE_HASH128_BYTES];
    size_t n;

    if (maps_floats(found, &n) < 0 ||
        n_bytes != HEADER_BYTES + n * sizeof(float) + QUIRE_HASH128_BYTES) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%zu bytes do not fit the %u layers, %u KV heads and %u floats of a "
                               "hidden state that its beginning names",
                               n_bytes, found->n_layers, found->n_kv_head, found->n_hidden);
    }
    quire_hash128(at, n_bytes - sizeof hash, hash);
    if (memcmp(hash, at + n_bytes - sizeof hash, sizeof hash) != 0) {
        return quire_error_set(err, QUIRE_CORRUPT, "its bytes do not fit its hash (damaged file?)");
    }
    return QUIRE_OK;
}

static int read_maps(quire_predictor *predictor, const unsigned char *at)
{
    size_t n = 0;

    QUIRE_TRY(maps_floats(&predictor->shape, &n));
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = (uint32_t)quire_le_get(at + 4 * i, 4);

        memcpy(&predictor->maps[i], &bits, sizeof bits);
        QUIRE_FAIL_IF(!isfinite(predictor->maps[i]), QUIRE_CORRUPT);
    }
    return QUIRE_OK;
}

int quire_predictor_parse(quire_predictor **out, const void *bytes, size_t n_bytes,
                          const quire_predictor_shape *shape, quire_error *err)
{
    const unsigned char *at = bytes;
    quire_predictor_shape found;
    int rc;

    *out = NULL;
    if (n_bytes < HEADER_BYTES || memcmp(at, MAGIC, MAGIC_BYTES) != 0) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "it is no file of quire calibrate --retain, or of another version");
    }
    found = (quire_predictor_shape){ .n_layers = (uint32_t)quire_le_get(at + MAGIC_BYTES, 4),
                                     .n_kv_head = (uint32_t)quire_le_get(at + MAGIC_BYTES + 4, 4),
                                     .n_hidden = (uint32_t)quire_le_get(at + MAGIC_BYTES + 8, 4),
                                     .fingerprint = quire_le_get(at + MAGIC_BYTES + 12, 8) };
    QUIRE_TRY(check_bytes(at, n_bytes, &found, err));
    if (found.n_layers != shape->n_layers || found.n_kv_head != shape->n_kv_head ||
        found.n_hidden != shape->n_hidden || found.fingerprint != shape->fingerprint) {
        return quire_error_set(err, QUIRE_INVAL, "it belongs to another model");
    }
    rc = quire_predictor_create(out, shape);
    if (rc == QUIRE_OK) {
        rc = read_maps(*out, at + HEADER_BYTES);
    }
    if (rc < 0) {
        quire_predictor_free(*out);
        *out = NULL;
        return quire_error_set(err, rc, "%s",
                               rc == QUIRE_CORRUPT ? "it has a number that is not finite"
                                                   : "out of memory");
    }
    return QUIRE_OK;
}
