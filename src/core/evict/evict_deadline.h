/* evict_deadline.h - candidates by the time from which they may go before all others (evict.h): the
 * end of their time to live, or the moment from which they are low traffic.
 *
 * A candidate with such a time is in one of its region's two heaps. In `deadlines` the key is the
 * earlier of both. When low traffic comes first and its moment has passed, the node goes over to
 * `low`, whose key is the end of its time to live, so that what has expired is still found first.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_EVICT_DEADLINE_H
#define QUIRE_CORE_EVICT_DEADLINE_H

#include "core/evict/evict.h"

/* A node becomes a candidate, ceases to be one. */
void quire_evict_deadline_add(quire_evict *evict, uint32_t node);
void quire_evict_deadline_remove(quire_evict *evict, uint32_t node);

/* Check the keys of a candidate. */
void quire_evict_deadline_validate(const quire_evict *evict, uint32_t node);

#endif /* QUIRE_CORE_EVICT_DEADLINE_H */
