/* room.h - memory budgets of requests: bytes of pages, by region.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_ROOM_H
#define QUIRE_ENGINE_ROOM_H

#include "engine/loop/request.h"
#include "model/runtime.h"

typedef struct quire_room {
    /* Constant after create. */
    uint64_t page_bytes;    /* charge of a page of all tokens */
    quire_kv_price price;   /* of a sequence's pages */
    uint64_t states_bytes;  /* of a sequence's states; 0 without recurrent layers */
    bool is_page_exact;     /* hits end at full pages */
    quire_region_id pinned; /* QUIRE_REGION_DYNAMIC = no pinned region */
    /* The engine's thread. */
    /* Counts events after which a request that found no room is tried again. The cache's generation
     * is no substitute: parking a request frees memory that only the loop had promised, and does
     * not change the generation; a hit, a copy and each page released behind a window change it
     * without making the room that a blocked request needs, and each try costs a lookup of the
     * prompt. */
    uint64_t n_releases;
} quire_room;

/* Open the pinned region before the tree is filled; close it when it is empty. */
int quire_room_open(quire_loop *loop, quire_error *err);
void quire_room_close(quire_loop *loop);

/* Upper bound of bytes for requests of a class, which drop tokens or do not. Thread: any. */
uint64_t quire_loop_budget_bytes(const quire_loop *loop, uint32_t class_index, bool drops);
/* quire_loop_need_bytes() of a request that condenses so. */
uint64_t quire_loop_condensing_bytes(const quire_loop *loop, const quire_condensing *c,
                                     uint32_t n_tokens);
/* The bytes of the first n_held tokens of a request's sequence. If it condenses, kept tokens have
 * no hot pages, and neither have the cached ones that a waiting request would begin with. */
uint64_t quire_loop_held_bytes(const quire_loop *loop, const quire_request *request,
                               uint32_t n_held);
/* Bytes that a request will need beyond the pages of its first n_have tokens. */
uint64_t quire_loop_bytes_ahead(const quire_loop *loop, const quire_request *request,
                                uint32_t n_have);
/* Bytes to be taken, by the region charged. */
typedef struct quire_demand {
    uint64_t pinned_bytes;
    uint64_t dynamic_bytes;
    uint64_t moved_bytes; /* of pinned_bytes: charge of pages in use that the dynamic region pays
                             for now */
} quire_demand;
/* Whether the demand fits, if cached pages are evicted. */
bool quire_loop_fits(const quire_loop *loop, const quire_demand *demand);
/* Whether asker can use the memory that `other` would release. */
bool quire_loop_helps(const quire_loop *loop, const quire_request *asker,
                      const quire_request *other);

#endif /* QUIRE_ENGINE_ROOM_H */
