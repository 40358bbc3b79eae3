/* running_set.h - waiting, running and parked requests, and the choice of requests to displace.
 *
 * Thread: the engine's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_RUNNING_SET_H
#define QUIRE_ENGINE_RUNNING_SET_H

#include "engine/loop/request.h"

typedef struct quire_running_set {
    quire_queue queues[QUIRE_CLASSES_MAX]; /* waiting and parked, by class */
    uint32_t n_queued;                     /* in all of them */
    quire_request **running;               /* [n_running_max], by admission */
    uint32_t n_running;
    quire_request **parked; /* [n_parked_max] */
    uint32_t n_parked;
    /* By class. */
    uint32_t n_running_of[QUIRE_CLASSES_MAX];
    uint32_t n_parked_of[QUIRE_CLASSES_MAX];
    uint32_t n_promoted_of[QUIRE_CLASSES_MAX];  /* running, admitted by promotion */
    uint32_t n_promoted_max[QUIRE_CLASSES_MAX]; /* constant after create */
    uint32_t limits[QUIRE_CLASSES_MAX];         /* maximum of running requests at present */
    uint8_t rank_max;                           /* of any class. Constant after create */
} quire_running_set;

void quire_loop_enqueue(quire_loop *loop, quire_request *request);
void quire_loop_dequeue(quire_loop *loop, quire_request *request);
void quire_loop_running_add(quire_loop *loop, quire_request *request, uint8_t rank_now);
void quire_loop_running_remove(quire_loop *loop, quire_request *request);
/* Park a running request: back to its queue, with its pages. Requires a free parked place. */
void quire_loop_park(quire_loop *loop, quire_request *request);
/* Remove a parked request from its queue and from the parked ones; it is then in no list. */
void quire_loop_unpark(quire_loop *loop, quire_request *request);

typedef struct quire_victim_ask {
    uint8_t rank;               /* of the request that needs room or a place */
    bool is_below;              /* only victims of lower rank */
    bool has_parked;            /* consider parked ones too */
    bool by_cost;               /* order lower ones by cost of recomputation */
    const quire_request *asker; /* only victims whose pages it can use; NULL = all */
} quire_victim_ask;
/* The request to displace first; NULL = none. */
quire_request *quire_loop_victim(const quire_loop *loop, const quire_victim_ask *ask);

/* Take a place, or pages, from one request of lower rank. Returns false if there is none. */
bool quire_loop_place_make(quire_loop *loop, const quire_request *request);
bool quire_loop_room_make(quire_loop *loop, const quire_request *request);
/* Bytes that requests of lower rank hold and will need. */
uint64_t quire_loop_lower_bytes(const quire_loop *loop, const quire_request *request);

#endif /* QUIRE_ENGINE_RUNNING_SET_H */
