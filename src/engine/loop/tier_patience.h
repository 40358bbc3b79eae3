/* tier_patience.h - how long a request waits for its next page from a store before it computes.
 *
 * A store that other machines reach may hang at any time, and a request pays at most a short wait
 * for that. A disk of this machine pauses now and then, for example while it writes, and goes on.
 * There a request with much to compute waits longer: up to a quarter of the time that computing
 * would take. So a pause of the disk costs less than the pages are worth, and a disk that never
 * answers delays the request by a quarter at most.
 *
 * Pure.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_TIER_PATIENCE_H
#define QUIRE_ENGINE_TIER_PATIENCE_H

#include <stdbool.h>

#define QUIRE_TIER_PAGE_PATIENCE  4.0  /* mean times of a page */
#define QUIRE_TIER_LOCAL_PATIENCE 0.25 /* of the time of computing, for a store of this machine */

typedef struct quire_tier_patience {
    double wait_us;    /* the shortest wait of a request, unless computing takes less */
    double local_us;   /* the longest wait by QUIRE_TIER_LOCAL_PATIENCE; 0 = the store is shared */
    double page_us;    /* mean time of reading a page; 0 = not known */
    double compute_us; /* time of computing the pages that are missing; 0 = not known */
} quire_tier_patience;

/* Microseconds without a page after which the request computes. */
double quire_tier_patience_us(const quire_tier_patience *p);

#endif /* QUIRE_ENGINE_TIER_PATIENCE_H */
