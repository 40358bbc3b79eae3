/* evict_deadline.h - candidates by deadline (evict.h): the end of the time to live, or the moment
 * when a node becomes low traffic. A candidate past its deadline is evicted before all others.
 *
 * A candidate with a deadline is in one of its region's two heaps. In `deadlines` the key is the
 * earlier of the two times. When low traffic is the earlier and has passed, the node moves to
 * `low`, where the key is the end of the time to live. So expired nodes are still found first.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_EVICT_DEADLINE_H
#define QUIRE_CORE_EVICT_DEADLINE_H

#include "core/evict/evict.h"

/* Add a node that becomes a candidate; remove a node that ceases to be a candidate. */
void quire_evict_deadline_add(quire_evict *evict, uint32_t node);
void quire_evict_deadline_remove(quire_evict *evict, uint32_t node);

/* Check the keys of a candidate. */
void quire_evict_deadline_validate(const quire_evict *evict, uint32_t node);

#endif /* QUIRE_CORE_EVICT_DEADLINE_H */
