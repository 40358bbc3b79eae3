/* offload_stops.c - see offload_stops.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_stops.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* ---- one stop ---- */

bool quire_offload_stop_has(const quire_offload_stop *stop, uint32_t part)
{
    for (uint32_t i = 0; i < stop->n; i++) {
        if (stop->parts[i] == part) {
            return true;
        }
    }
    return false;
}

int quire_offload_stop_add(quire_offload_stop *stop, uint32_t part)
{
    uint32_t i;

    if (quire_offload_stop_has(stop, part)) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(stop->n == QUIRE_OFFLOAD_READS_MAX, QUIRE_UNSUPP);
    for (i = stop->n++; i > 0 && stop->parts[i - 1] > part; i--) {
        stop->parts[i] = stop->parts[i - 1];
    }
    stop->parts[i] = part;
    return QUIRE_OK;
}

bool quire_offload_stop_is_same(const quire_offload_stop *a, const quire_offload_stop *b)
{
    bool is_same = a->n == b->n;

    for (uint32_t i = 0; is_same && i < a->n; i++) {
        is_same = a->parts[i] == b->parts[i];
    }
    return is_same;
}

/* ---- the list ---- */

int quire_offload_stops_init(quire_offload_stops *stops, const quire_offload_stop *list, uint32_t n,
                             uint32_t n_parts)
{
    stops->n = n > 0 ? n : n_parts;
    stops->list = calloc(stops->n, sizeof *stops->list);
    QUIRE_FAIL_IF(stops->list == NULL, QUIRE_NOMEM);
    if (n > 0) {
        memcpy(stops->list, list, n * sizeof *list);
        return QUIRE_OK;
    }
    for (uint32_t p = 0; p < n_parts; p++) {
        stops->list[p] = (quire_offload_stop){ .n = 1, .parts = { p } };
    }
    return QUIRE_OK;
}

void quire_offload_stops_fini(quire_offload_stops *stops)
{
    free(stops->list);
    *stops = (quire_offload_stops){ 0 };
}

/* The i-th stop behind `at`. */
static uint32_t behind(const quire_offload_stops *stops, uint32_t at, uint32_t i)
{
    return (uint32_t)(((uint64_t)at + i) % stops->n);
}

uint32_t quire_offload_stops_find(const quire_offload_stops *stops, uint32_t at,
                                  const quire_offload_stop *stop)
{
    const uint32_t from = at == QUIRE_OFFLOAD_STOP_NONE ? 0 : behind(stops, at, 1);

    for (uint32_t i = 0; i < stops->n; i++) {
        const uint32_t place = behind(stops, from, i);

        if (quire_offload_stop_is_same(&stops->list[place], stop)) {
            return place;
        }
    }
    return QUIRE_OFFLOAD_STOP_NONE;
}

uint32_t quire_offload_stops_next(const quire_offload_stops *stops, uint32_t at)
{
    for (uint32_t i = 1; i < stops->n; i++) {
        const uint32_t place = behind(stops, at, i);

        if (!quire_offload_stop_is_same(&stops->list[place], &stops->list[at])) {
            return place;
        }
    }
    return at;
}

uint32_t quire_offload_stops_until(const quire_offload_stops *stops, uint32_t at, uint32_t part)
{
    uint32_t n = 0;

    while (n < stops->n && !quire_offload_stop_has(&stops->list[behind(stops, at, n)], part)) {
        n++;
    }
    return n;
}

uint32_t quire_offload_stops_reads_max(const quire_offload_stops *stops)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < stops->n; i++) {
        most = stops->list[i].n > most ? stops->list[i].n : most;
    }
    return most;
}

uint32_t quire_offload_stops_span_max(const quire_offload_stops *stops)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < stops->n; i++) {
        const quire_offload_stop *next = &stops->list[quire_offload_stops_next(stops, i)];
        uint32_t n = stops->list[i].n;

        for (uint32_t p = 0; p < next->n; p++) {
            n += !quire_offload_stop_has(&stops->list[i], next->parts[p]);
        }
        most = n > most ? n : most;
    }
    return most;
}
