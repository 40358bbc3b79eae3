/* running_set.h - who waits, who runs, who is parked; and who gives way to a higher class.
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
    uint32_t n_promoted_of[QUIRE_CLASSES_MAX];  /* running ones that were let in before others */
    uint32_t n_promoted_max[QUIRE_CLASSES_MAX]; /* constant after create */
    uint32_t limits[QUIRE_CLASSES_MAX];         /* so many may run now */
    uint8_t rank_max;                           /* of any class. Constant after create */
} quire_running_set;

void quire_loop_enqueue(quire_loop *loop, quire_request *request);
void quire_loop_dequeue(quire_loop *loop, quire_request *request);
void quire_loop_running_add(quire_loop *loop, quire_request *request, uint8_t rank_now);
void quire_loop_running_remove(quire_loop *loop, quire_request *request);
/* From running to its queue, with its pages; there must be a place among the parked. */
void quire_loop_park(quire_loop *loop, quire_request *request);
/* Out of its queue and of the parked ones, and now nowhere. */
void quire_loop_unpark(quire_loop *loop, quire_request *request);

typedef struct quire_victim_ask {
    uint8_t rank;               /* of who wants something */
    bool is_below;              /* lower ones only */
    bool has_parked;            /* those too */
    bool by_cost;               /* of computing again, among lower ones */
    const quire_request *asker; /* only those whose pages it can use; NULL = all */
} quire_victim_ask;
/* Who gives way first; NULL = nobody can. */
quire_request *quire_loop_victim(const quire_loop *loop, const quire_victim_ask *ask);

/* Have a lower one give up its place, or its pages. Returns false when there is none. */
bool quire_loop_place_make(quire_loop *loop, const quire_request *request);
bool quire_loop_room_make(quire_loop *loop, const quire_request *request);
/* What lower ones hold and are going to take. */
uint64_t quire_loop_lower_bytes(const quire_loop *loop, const quire_request *request);

#endif /* QUIRE_ENGINE_RUNNING_SET_H */
