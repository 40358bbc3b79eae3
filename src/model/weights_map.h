/* weights_map.h - a file of weights, mapped read-only; for weights.c only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_WEIGHTS_MAP_H
#define QUIRE_MODEL_WEIGHTS_MAP_H

#include "quire/error.h"

#include <ggml-backend.h>

typedef struct quire_weights_map {
    void *base;
    size_t bytes;
    ggml_backend_buffer_t buffer; /* over it; NULL at first, freed by quire_weights_map_close() */
} quire_weights_map;

/* Map a file that had file_bytes when it was checked. Errors: QUIRE_IO (a file that is shorter now,
 * too). Memory: release with quire_weights_map_close(). */
int quire_weights_map_open(quire_weights_map *map, const char *path, uint64_t file_bytes,
                           quire_error *err);
void quire_weights_map_close(quire_weights_map *map);

/* Copied bytes will not be read again: give their pages back instead of counting them twice. */
void quire_weights_map_drop(const quire_weights_map *map, uint64_t offset, size_t n_bytes);

#endif /* QUIRE_MODEL_WEIGHTS_MAP_H */
