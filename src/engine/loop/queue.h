/* queue.h - requests in the order of service: by priority, then by arrival.
 *
 * An intrusive list; a request is in at most one queue. A preempted request keeps its arrival
 * number and so precedes later arrivals.
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
