/* offload_stops.h - the parts of pages that the layers of a step read, in the order of the layers.
 *
 * A *stop* is a layer whose attention reads pages that may be offloaded: one part of each, or two
 * where K and V, or two sources of them, are stored by different layers. Layers that share K and V
 * have stops with the same parts.
 *
 *   stops of a model whose last two layers read what the others stored:   0   1   2   0 2   0 2
 *
 * A medium brings the parts of a stop to attention before the layer runs, and those of the next
 * stop with other parts meanwhile. A part that several stops in a row read is brought once.
 *
 * Thread: any; the list does not change.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_STOPS_H
#define QUIRE_OFFLOAD_OFFLOAD_STOPS_H

#include <stdbool.h>
#include <stdint.h>

#define QUIRE_OFFLOAD_READS_MAX                                                                    \
    2u /* parts of a stop; quire_attn_batch has addresses for as many                              \
        */
#define QUIRE_OFFLOAD_STOP_NONE UINT32_MAX

typedef struct quire_offload_stop {
    uint32_t n; /* 1 to QUIRE_OFFLOAD_READS_MAX; 0: the layer reads none of these pages */
    uint32_t parts[QUIRE_OFFLOAD_READS_MAX]; /* ascending */
} quire_offload_stop;

typedef struct quire_offload_stops {
    quire_offload_stop *list; /* [n], owned */
    uint32_t n;
} quire_offload_stops;

/* Let a layer read one more part, unless it does. Errors: QUIRE_UNSUPP (too many). */
int quire_offload_stop_add(quire_offload_stop *stop, uint32_t part);
bool quire_offload_stop_has(const quire_offload_stop *stop, uint32_t part);
bool quire_offload_stop_is_same(const quire_offload_stop *a, const quire_offload_stop *b);

/* Copy a list of stops that are not empty; n = 0: one stop for each of n_parts parts. Errors:
 * QUIRE_NOMEM. Memory: quire_offload_stops_fini(), of a list that is zero too. */
int quire_offload_stops_init(quire_offload_stops *stops, const quire_offload_stop *list, uint32_t n,
                             uint32_t n_parts);
void quire_offload_stops_fini(quire_offload_stops *stops);

/* Numbers of stops. The list is a circle: behind the last stop comes the first of the next step.
 *
 * find: the first stop behind `at` that has these parts, `at` itself last of all; at NONE: from the
 * first on. NONE: no stop has them. */
uint32_t quire_offload_stops_find(const quire_offload_stops *stops, uint32_t at,
                                  const quire_offload_stop *stop);
/* The first stop behind `at` with other parts; `at` if there is none. */
uint32_t quire_offload_stops_next(const quire_offload_stops *stops, uint32_t at);
/* How many stops from `at` on do not read a part. */
uint32_t quire_offload_stops_until(const quire_offload_stops *stops, uint32_t at, uint32_t part);

/* The most parts of one stop, and of one and the next one with other parts together. */
uint32_t quire_offload_stops_reads_max(const quire_offload_stops *stops);
uint32_t quire_offload_stops_span_max(const quire_offload_stops *stops);

#endif /* QUIRE_OFFLOAD_OFFLOAD_STOPS_H */
