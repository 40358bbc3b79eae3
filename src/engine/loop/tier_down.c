/* tier_down.c - see tier_down.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/tier_down.h"

#include "base/check.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

#define CAPACITY_MIN 64u

/* Room for one more behind the last. Returns whether there is some. */
static bool has_room(quire_tier_down *d)
{
    quire_tier_down_page *pages;
    uint32_t capacity;

    if (d->first + d->n < d->capacity) {
        return true;
    }
    if (d->first > d->capacity / 2) {
        memmove(d->pages, d->pages + d->first, d->n * sizeof *d->pages);
        d->first = 0;
        return true;
    }
    capacity = quire_max_u32(CAPACITY_MIN, 2 * d->capacity);
    pages = realloc(d->pages, capacity * sizeof *pages);
    if (pages == NULL) {
        return false;
    }
    d->pages = pages;
    d->capacity = capacity;
    return true;
}

void quire_tier_down_add(quire_tier_down *d, uint32_t node, const quire_page_key *key)
{
    if (d->n < QUIRE_TIER_DOWN_MAX && has_room(d)) {
        d->pages[d->first + d->n++] = (quire_tier_down_page){ node, *key };
    }
}

void quire_tier_down_pop(quire_tier_down *d)
{
    QUIRE_CHECK(d->n > 0);
    d->n--;
    d->first = d->n > 0 ? d->first + 1 : 0;
}

void quire_tier_down_fini(quire_tier_down *d)
{
    free(d->pages);
    *d = (quire_tier_down){ 0 };
}
