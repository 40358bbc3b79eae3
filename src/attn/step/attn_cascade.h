/* attn_cascade.h - which sequences of a batch share the pages of whole splits.
 *
 * A cascade is a set of sequences with few rows whose tables of a group have the same entries in
 * front: the splits before n_splits are read once for all of them, by the table of the first.
 * Shared splits end before the first row of each member or with it, so that every row of the
 * cascade sees all of their tokens, but for those behind its window. Splits that a member does not
 * see at all, because they lie behind the widest window of the group, may differ in its table. A
 * sequence that shares nothing is a cascade of its own. Cascades may share prefixes with each
 * other; only one level is used.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_CASCADE_H
#define QUIRE_ATTN_CASCADE_H

#include "attn/attn_internal.h"

/* Fill order[] and cascades[] of a group's plan for the batch at hand, whose tables have been
 * checked and cut into splits. Cost: O(table entries + sequences * QUIRE_ATTN_CASCADE_WINDOW *
 * split_entries), the second term only where first pages are the same; attn_cascade.c says why. */
void quire_attn_cascade_plan(quire_attn_workspace *workspace, uint32_t group);

#endif /* QUIRE_ATTN_CASCADE_H */
