/* chain_copies.h - the bounded pool of copies of records; for chain_store.c.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_CHAIN_COPIES_H
#define QUIRE_STORE_CHAIN_COPIES_H

#include "store/chain_store.h"

/* The copy of a record, on its way into one of the stores. */
typedef struct quire_chain_copy {
    quire_transfer *transfer; /* its owner is the copy; NULL: no memory yet */
    quire_transfer *of;       /* to the far store: the put that the near store still has, or that
                                 waits for this copy's answer; else NULL */
    bool is_used;
    bool is_away;     /* a store has the transfer */
    bool is_answered; /* the far store has answered, the near one has not */
    bool is_awaited;  /* the near store has refused `of` */
} quire_chain_copy;

typedef struct quire_chain_copies {
    quire_chain_copy items[QUIRE_CHAIN_COPIES_MAX];
    size_t n_bytes;
    size_t bytes_max;
} quire_chain_copies;

/* A copy of the first n_bytes of a transfer's record; NULL: the pool is used up. The copy has the
 * transfer's capacity, which is the same for all of an owner's transfers. */
quire_chain_copy *quire_chain_copy_make(quire_chain_copies *pool, const quire_transfer *t,
                                        size_t n_bytes);
/* Give the copy back; its memory stays for the next one. */
void quire_chain_copy_give(quire_chain_copy *copy);
/* The copy that this transfer carries; NULL: the transfer is one of the caller's. */
quire_chain_copy *quire_chain_copy_of(quire_chain_copies *pool, const quire_transfer *t);

#endif /* QUIRE_STORE_CHAIN_COPIES_H */
