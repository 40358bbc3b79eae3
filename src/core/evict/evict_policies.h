/* evict_policies.h - the policies' function tables (evict.h). Each file names the source of its
 * algorithm and the changes for a tree.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_EVICT_POLICIES_H
#define QUIRE_CORE_EVICT_POLICIES_H

#include "core/evict/evict.h"

/* evict_predict.c: the default */
extern const quire_evict_ops quire_evict_predict;

/* evict_recency.c */
extern const quire_evict_ops quire_evict_lru;
extern const quire_evict_ops quire_evict_fifo;
extern const quire_evict_ops quire_evict_slru;

/* evict_frequency.c */
extern const quire_evict_ops quire_evict_lfu;
extern const quire_evict_ops quire_evict_gdsf;

/* evict_queues.c */
extern const quire_evict_ops quire_evict_s3fifo;
extern const quire_evict_ops quire_evict_sieve;

/* evict_arc.c */
extern const quire_evict_ops quire_evict_arc;

#endif /* QUIRE_CORE_EVICT_POLICIES_H */
