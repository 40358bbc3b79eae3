/* condensed_set.h - names of condensed texts: which texts were condensed, chunk by chunk, and a
 * name of 256 bits for each.
 *
 *   policy and tenant --> chunk --> chunk --> chunk     an entry each, found by its parent and its
 *                           '-----> chunk               bytes, which are compared
 *
 * An entry stands for the text of all chunks on its path. Its name makes a root of the prefix tree,
 * whose texts begin with the tokens that the policy kept (condense_loop.h). The name is SHA-256
 * over the name of the parent, the number of bytes (4, least significant first) and the bytes; the
 * parent of an entry for policy and tenant is the set's base. So the name of a text is the same in
 * every process, and nobody can make two texts with one name: a store below memory finds the pages
 * of a condensed text by it, without the text beside them.
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

#include "base/sha256.h"

#define QUIRE_CONDENSED_MAX 4096u /* entries; 4 bytes a token of their chunks */

typedef struct quire_condensed_set quire_condensed_set;
typedef uint32_t quire_condensed; /* an entry */
#define QUIRE_CONDENSED_NULL 0u

typedef struct quire_condensed_name {
    unsigned char bytes[QUIRE_SHA256_BYTES];
} quire_condensed_name;

typedef struct quire_condensed_set_opts {
    uint32_t n_max;            /* entries */
    quire_condensed_name base; /* of the model and of the rules by which texts are condensed */
    /* An entry leaves the set: its owner forgets the text's pages, because an invalidation of the
     * text would not find them any more. Called inside of quire_condensed_hold(); must not change
     * the set. NULL: nobody is told. */
    void (*leaves)(void *ctx, quire_condensed entry);
    void *ctx;
} quire_condensed_set_opts;

/* The most bytes that a set takes whose entries have texts of n_bytes each. */
uint64_t quire_condensed_set_bytes(uint32_t n_max, uint32_t n_bytes);

/* Errors: QUIRE_NOMEM. */
int quire_condensed_set_create(quire_condensed_set **out, const quire_condensed_set_opts *opts);
void quire_condensed_set_destroy(quire_condensed_set *set);

/* The entry of these bytes behind a parent (QUIRE_CONDENSED_NULL: of a policy and a tenant), or
 * QUIRE_CONDENSED_NULL. Changes nothing. */
quire_condensed quire_condensed_find(const quire_condensed_set *set, quire_condensed parent,
                                     const void *bytes, uint32_t n_bytes);
/* The same, and a new entry where there is none. QUIRE_CONDENSED_NULL: no memory, or all entries
 * have holders. The entry gets a holder: quire_condensed_release(). */
quire_condensed quire_condensed_hold(quire_condensed_set *set, quire_condensed parent,
                                     const void *bytes, uint32_t n_bytes);
/* Add a holder to an entry. */
void quire_condensed_keep(quire_condensed_set *set, quire_condensed entry);
/* QUIRE_CONDENSED_NULL is allowed. */
void quire_condensed_release(quire_condensed_set *set, quire_condensed entry);

/* The name of an entry; of QUIRE_CONDENSED_NULL: the base. */
const quire_condensed_name *quire_condensed_name_of(const quire_condensed_set *set,
                                                    quire_condensed entry);
/* The name of an entry with these bytes behind a parent of this name, whether there is one or not.
 * out may be parent. Thread: any. */
void quire_condensed_name_add(const quire_condensed_name *parent, const void *bytes,
                              uint32_t n_bytes, quire_condensed_name *out);
quire_condensed quire_condensed_parent(const quire_condensed_set *set, quire_condensed entry);
/* Memory: until the entry leaves the set. */
const void *quire_condensed_bytes(const quire_condensed_set *set, quire_condensed entry,
                                  uint32_t *n_bytes);
/* Entry number i < QUIRE_CONDENSED_MAX in no order, or QUIRE_CONDENSED_NULL where there is none. */
quire_condensed quire_condensed_at(const quire_condensed_set *set, uint32_t i);
/* Entries of texts: without those of a policy and a tenant. */
uint32_t quire_condensed_count(const quire_condensed_set *set);

#endif /* QUIRE_ENGINE_CONDENSED_SET_H */
