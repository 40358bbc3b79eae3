/* condensed_set.h - names of condensed texts: which texts were condensed, chunk by chunk, and a
 * number for each.
 *
 *   policy and tenant --> chunk --> chunk --> chunk     an entry each, found by its parent and its
 *                           '-----> chunk               bytes, which are compared
 *
 * An entry stands for the text of all chunks on its path. Its number makes a root of the prefix
 * tree, whose texts begin with the tokens that the policy kept (condense_loop.h). Numbers are not
 * used again: the pages of an entry that has left the set are never found, and leave the tree as
 * other unused pages do.
 *
 * When the set is full, the entry whose last use is longest ago goes, among those without entries
 * behind them and without a holder.
 *
 * Thread: the engine's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_CONDENSED_SET_H
#define QUIRE_ENGINE_CONDENSED_SET_H

#include <stddef.h>
#include <stdint.h>

#define QUIRE_CONDENSED_MAX 4096u /* entries; 4 bytes a token of their chunks */

typedef struct quire_condensed_set quire_condensed_set;
typedef uint32_t quire_condensed; /* an entry */
#define QUIRE_CONDENSED_NULL 0u

/* Errors: QUIRE_NOMEM. n_max: entries. */
int quire_condensed_set_create(quire_condensed_set **out, uint32_t n_max);
void quire_condensed_set_destroy(quire_condensed_set *set);

/* The entry of these bytes behind a parent (QUIRE_CONDENSED_NULL: of a policy and a tenant), or
 * QUIRE_CONDENSED_NULL. Changes nothing. */
quire_condensed quire_condensed_find(const quire_condensed_set *set, quire_condensed parent,
                                     const void *bytes, uint32_t n_bytes);
/* The same, and a new entry where there is none. QUIRE_CONDENSED_NULL: no memory, or all entries
 * have holders. The entry gets a holder: quire_condensed_release(). */
quire_condensed quire_condensed_hold(quire_condensed_set *set, quire_condensed parent,
                                     const void *bytes, uint32_t n_bytes);
/* One holder more of an entry. */
void quire_condensed_keep(quire_condensed_set *set, quire_condensed entry);
/* QUIRE_CONDENSED_NULL is allowed. */
void quire_condensed_release(quire_condensed_set *set, quire_condensed entry);

/* Not 0, and different for every entry that there ever was. */
uint64_t quire_condensed_number(const quire_condensed_set *set, quire_condensed entry);
quire_condensed quire_condensed_parent(const quire_condensed_set *set, quire_condensed entry);
/* Memory: until the entry leaves the set. */
const void *quire_condensed_bytes(const quire_condensed_set *set, quire_condensed entry,
                                  uint32_t *n_bytes);
/* Entry number i < QUIRE_CONDENSED_MAX in no order, or QUIRE_CONDENSED_NULL where there is none. */
quire_condensed quire_condensed_at(const quire_condensed_set *set, uint32_t i);
/* Entries of texts: without those of a policy and a tenant. */
uint32_t quire_condensed_count(const quire_condensed_set *set);

#endif /* QUIRE_ENGINE_CONDENSED_SET_H */
