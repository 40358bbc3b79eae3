/* parts.h - work in numbered parts on a team of threads.
 *
 * The caller decides the parts by the shapes alone, never by the number of threads. A part writes
 * places of its own, so results are the same bits for every number of threads.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_PARTS_H
#define QUIRE_TRAIN_PARTS_H

#include "base/team.h"

#include <stdint.h>

/* member: 0 <= member < threads of the team; two parts at one time never have the same. */
typedef void quire_part_fn(void *ctx, uint32_t part, uint32_t member);

/* Call fn once for each part below n_parts, and return when all are done. */
void quire_parts_run(quire_team *team, uint32_t n_parts, quire_part_fn *fn, void *ctx);

/* The range of part `part` of n items in parts of n_each: [*first, *end). */
static inline void quire_part_range(uint32_t part, uint32_t n_each, uint32_t n, uint32_t *first,
                                    uint32_t *end)
{
    *first = part * n_each;
    *end = n - *first < n_each ? n : *first + n_each;
}

/* Parts of n items, n_each in a part but the last. */
static inline uint32_t quire_parts_count(uint32_t n, uint32_t n_each)
{
    return n / n_each + (n % n_each != 0);
}

#endif /* QUIRE_TRAIN_PARTS_H */
