/* tier_down.h - pages of preempted requests that wait for their copies below a device, in the order
 * of each text, the request that was preempted first in front.
 *
 * The tree may evict them meanwhile. A node is known by its key: a node that has another one now is
 * another page.
 *
 * Thread: the engine's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_TIER_DOWN_H
#define QUIRE_ENGINE_TIER_DOWN_H

#include "quire/prefix.h"

#define QUIRE_TIER_DOWN_MAX 16384u /* pages that wait, at most; further ones get no copy so */

typedef struct quire_tier_down_page {
    uint32_t node;
    quire_page_key key;
} quire_tier_down_page;

typedef struct quire_tier_down {
    quire_tier_down_page *pages; /* [capacity], those that wait from `first` on */
    uint32_t first;
    uint32_t n;
    uint32_t capacity;
} quire_tier_down;

/* Without memory or room the page does not wait. */
void quire_tier_down_add(quire_tier_down *down, uint32_t node, const quire_page_key *key);
/* The first one leaves; there is one. */
void quire_tier_down_pop(quire_tier_down *down);
void quire_tier_down_fini(quire_tier_down *down);

#endif /* QUIRE_ENGINE_TIER_DOWN_H */
