/* queue.h - requests in the order they are to be served: priority, then arrival.
 *
 * A list through the requests themselves; a request is in one queue at a time. A preempted request
 * keeps its arrival number, and so stands before those that came later.
 *
 * Thread: one at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_QUEUE_H
#define QUIRE_ENGINE_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct quire_queue_link {
    struct quire_queue_link *prev;
    struct quire_queue_link *next;
    uint64_t arrival;
    int32_t priority;
} quire_queue_link;

typedef struct quire_queue {
    quire_queue_link *first;
    quire_queue_link *last;
    uint32_t n;
} quire_queue;

/* Cost: O(1) for a request that belongs at the end. */
void quire_queue_insert(quire_queue *queue, quire_queue_link *link);
void quire_queue_remove(quire_queue *queue, quire_queue_link *link);

#endif /* QUIRE_ENGINE_QUEUE_H */
