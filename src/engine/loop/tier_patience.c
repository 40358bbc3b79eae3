/* tier_patience.c - see tier_patience.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/tier_patience.h"

#include <math.h>

double quire_tier_patience_us(const quire_tier_patience *p)
{
    const double local_us = fmin(p->compute_us * QUIRE_TIER_LOCAL_PATIENCE, p->local_us);
    const double wait_us = fmax(fmax(p->wait_us, local_us), p->page_us * QUIRE_TIER_PAGE_PATIENCE);

    return p->compute_us > 0.0 ? fmin(wait_us, p->compute_us) : wait_us;
}
