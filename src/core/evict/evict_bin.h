/* evict_bin.h - the bins of evict.h and their nodes.
 *
 * Account 0 has a bin for each region and rank from the beginning. The bins of other accounts are
 * made when they are first needed. When that fails, the node is in account 0's bin, with the flag
 * QUIRE_EVICT_IN_REST.
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

/* Add a node to the bin of its region, rank and account, which is returned; remove it. */
quire_evict_bin *quire_evict_bin_enter(quire_evict *evict, quire_prefix_node *node);
void quire_evict_bin_leave(quire_evict *evict, quire_evict_bin *bin, const quire_prefix_node *node);

#endif /* QUIRE_CORE_EVICT_BIN_H */
