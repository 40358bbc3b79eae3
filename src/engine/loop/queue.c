/* queue.c - see queue.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/queue.h"

#include "base/check.h"

#include <stddef.h>

static bool is_before(const quire_queue_link *a, const quire_queue_link *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
}

void quire_queue_insert(quire_queue *queue, quire_queue_link *link)
{
    quire_queue_link *before = queue->last;

    while (before != NULL && is_before(link, before)) {
        before = before->prev;
    }
    link->prev = before;
    link->next = before != NULL ? before->next : queue->first;
    *(link->prev != NULL ? &link->prev->next : &queue->first) = link;
    *(link->next != NULL ? &link->next->prev : &queue->last) = link;
    queue->n++;
}

void quire_queue_remove(quire_queue *queue, quire_queue_link *link)
{
    QUIRE_ASSERT(queue->n > 0);
    *(link->prev != NULL ? &link->prev->next : &queue->first) = link->next;
    *(link->next != NULL ? &link->next->prev : &queue->last) = link->prev;
    link->prev = NULL;
    link->next = NULL;
    queue->n--;
}
