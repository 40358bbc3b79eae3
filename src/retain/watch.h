/* watch.h - the attention that rows of a step pay to tokens of a lane, added to the worth of some.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_WATCH_H
#define QUIRE_RETAIN_WATCH_H

#include "quire/attn.h"

#include <stdbool.h>

#define QUIRE_WATCH_ROWS 16u /* rows whose attention is computed together */

/* Scratch for at most n_max tokens. */
typedef struct quire_watch_room {
    uint32_t n_max;
    float *keys;        /* [n_max][d_k] */
    int32_t *positions; /* [n_max] */
    float *queries;     /* [group][QUIRE_WATCH_ROWS][d_k] */
    float *attention;   /* [group][QUIRE_WATCH_ROWS][n_max] */
} quire_watch_room;

/* Bytes of it. */
uint64_t quire_watch_room_bytes(uint32_t n_max, uint32_t group, uint32_t d_k);
/* Errors: QUIRE_NOMEM. Memory: quire_watch_room_fini(), on errors too. */
int quire_watch_room_init(quire_watch_room *room, uint32_t n_max, uint32_t group, uint32_t d_k);
void quire_watch_room_fini(quire_watch_room *room);

/* Tokens of a lane whose keys and positions are in the room. */
typedef struct quire_watch {
    const quire_attn_layer *one; /* a KV head of the layer, of `group` query heads */
    uint32_t group;
    uint32_t first_row; /* of the step's rows */
    uint32_t n_rows;
    uint32_t first_at; /* the first row's position */
    uint32_t n;        /* tokens */
    uint32_t at;       /* of these, [at, at + n_worth) get a worth: */
    uint32_t n_worth;
    bool is_sum; /* the sum over rows and query heads; else the most of any */
} quire_watch;

/* Add the rows' attention to worth, [n_worth]: a softmax over the n tokens. */
void quire_watch_rows(const quire_watch *watch, const quire_watch_room *room, float *worth);

#endif /* QUIRE_RETAIN_WATCH_H */
