/* watch.c - see watch.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/watch.h"

#include "base/check.h"
#include "retain/probe.h"

#include <stdlib.h>
#include <string.h>

/* ---- room ---- */

static size_t query_floats(uint32_t group, uint32_t d_k)
{
    return (size_t)group * QUIRE_WATCH_ROWS * d_k;
}

static size_t attention_floats(uint32_t n_max, uint32_t group)
{
    return (size_t)group * QUIRE_WATCH_ROWS * n_max;
}

uint64_t quire_watch_room_bytes(uint32_t n_max, uint32_t group, uint32_t d_k)
{
    const uint64_t n = n_max;

    return n > 0 ? (n * (d_k + 1) + attention_floats(n_max, group) + query_floats(group, d_k)) *
                       sizeof(float)
                 : 0;
}

int quire_watch_room_init(quire_watch_room *room, uint32_t n_max, uint32_t group, uint32_t d_k)
{
    *room = (quire_watch_room){ .n_max = n_max };
    room->keys = malloc((size_t)n_max * d_k * sizeof *room->keys);
    room->positions = malloc(n_max * sizeof *room->positions);
    room->queries = malloc(query_floats(group, d_k) * sizeof *room->queries);
    room->attention = malloc(attention_floats(n_max, group) * sizeof *room->attention);
    QUIRE_FAIL_IF(room->keys == NULL || room->positions == NULL || room->queries == NULL ||
                      room->attention == NULL,
                  QUIRE_NOMEM);
    return QUIRE_OK;
}

void quire_watch_room_fini(quire_watch_room *room)
{
    free(room->attention);
    free(room->queries);
    free(room->positions);
    free(room->keys);
    *room = (quire_watch_room){ 0 };
}

/* ---- rows ---- */

/* Queries of rows [first, first + n), transformed as K is: [group][n][d_k]. */
static void gather_queries(const quire_watch *w, uint32_t first, uint32_t n, float *queries)
{
    const quire_attn_layer *one = w->one;

    for (uint32_t h = 0; h < w->group; h++) {
        for (uint32_t i = 0; i < n; i++) {
            float *to = queries + ((size_t)h * n + i) * one->d_k;

            memcpy(to,
                   one->q[0] + (w->first_row + first + i) * one->q_stride + (size_t)h * one->d_k,
                   one->d_k * sizeof *to);
            if (one->k[0].rotate != 0) {
                quire_hadamard(to, one->d_k, one->k[0].rotate);
            }
        }
    }
}

/* Row by row, all heads of a row together: the order of a sum does not depend on the steps. */
static void add_worth(const quire_watch *w, const float *attention, uint32_t n_rows, float *worth)
{
    for (uint32_t r = 0; r < n_rows * w->group; r++) {
        const size_t place = (size_t)(r % w->group) * n_rows + r / w->group;
        const float *row = attention + place * w->n + w->at;

        for (uint32_t t = 0; t < w->n_worth; t++) {
            worth[t] = w->is_sum ? worth[t] + row[t] : (worth[t] > row[t] ? worth[t] : row[t]);
        }
    }
}

void quire_watch_rows(const quire_watch *w, const quire_watch_room *room, float *worth)
{
    const quire_attn_layer *one = w->one;
    const quire_retain_lane part = {
        .n_tokens = w->n, .positions = room->positions, .keys = room->keys, .d = one->d_k
    };
    int32_t rows_at[QUIRE_WATCH_ROWS];

    QUIRE_CHECK(w->n <= room->n_max);
    for (uint32_t first = 0; first < w->n_rows; first += QUIRE_WATCH_ROWS) {
        const uint32_t n =
            w->n_rows - first < QUIRE_WATCH_ROWS ? w->n_rows - first : QUIRE_WATCH_ROWS;
        const quire_retain_probe probe = { .queries = room->queries,
                                           .rows_at = rows_at,
                                           .n_heads = w->group,
                                           .n_queries = n,
                                           .scale = one->scale,
                                           .softcap = one->softcap,
                                           .sinks = one->sinks };

        for (uint32_t i = 0; i < n; i++) {
            rows_at[i] = (int32_t)(w->first_at + first + i);
        }
        gather_queries(w, first, n, room->queries);
        quire_retain_attend(&probe, &part, room->attention);
        add_worth(w, room->attention, n, worth);
    }
}
