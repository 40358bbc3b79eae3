/* evict_policies.h - the tables of the policies (evict.h); each file says where its algorithm comes
 * from and what a tree changes in it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_EVICT_POLICIES_H
#define QUIRE_CORE_EVICT_POLICIES_H

#include "core/evict.h"

extern const quire_evict_ops quire_evict_lru; /* evict_recency.c */

#endif /* QUIRE_CORE_EVICT_POLICIES_H */
