/* state_spare.h - the spare page of a sequence's states, given up before the sequence ends.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_CACHE_STATE_SPARE_H
#define QUIRE_CORE_CACHE_STATE_SPARE_H

#include "quire/cache.h"

/* Give up the page of a sequence's states that a step would write, so that a node has room for a
 * copy of the other one. kept: the payload of the page that stays. The sequence can be read and
 * closed afterwards, and computes no step any more. Without states nothing happens. Thread: the
 * cache's. */
void quire_seq_state_spare_drop(quire_cache *cache, quire_seq_id seq, const void *kept);

#endif /* QUIRE_CORE_CACHE_STATE_SPARE_H */
