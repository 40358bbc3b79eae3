/* evict_bin.h - the bins of evict.h, and which nodes are in them.
 *
 * Account 0 has a bin for each region and rank from the beginning; the bins of others are made when
 * they are first needed. A node for which that fails is in account 0's bin, and says so.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_EVICT_BIN_H
#define QUIRE_CORE_EVICT_BIN_H

#include "core/evict/evict.h"

/* Errors: QUIRE_NOMEM. */
int quire_evict_bins_init(quire_evict *evict);
void quire_evict_bins_fini(quire_evict *evict);

/* A node enters the bin that its region, rank and account name, which is returned; it leaves. */
quire_evict_bin *quire_evict_bin_enter(quire_evict *evict, quire_prefix_node *node);
void quire_evict_bin_leave(quire_evict *evict, quire_evict_bin *bin, const quire_prefix_node *node);

#endif /* QUIRE_CORE_EVICT_BIN_H */
