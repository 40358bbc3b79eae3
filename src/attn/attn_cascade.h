/* attn_cascade.h - which sequences of a batch share the pages of whole splits.
 *
 * A group is a set of sequences with few rows whose tables begin with the same entries: their first
 * n_splits splits are read once for all of them. Shared splits end before the first row of each
 * member or with it, so that every row of the group sees all of their tokens. A sequence that
 * shares nothing is a group of its own. Groups may share prefixes with each other; only one level
 * is used.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_CASCADE_H
#define QUIRE_ATTN_CASCADE_H

#include "attn/attn_internal.h"

/* Fill order[] and groups[] for the batch at hand, whose tables have been checked and cut into
 * splits. Cost: O(table entries + sequences * QUIRE_ATTN_CASCADE_WINDOW * split_entries), the
 * latter only where first pages are the same; attn_cascade.c says why. */
void quire_attn_cascade_plan(quire_attn_workspace *workspace);

#endif /* QUIRE_ATTN_CASCADE_H */
