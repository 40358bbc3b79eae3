/* evict_reference.h - the classical policies as their papers have them, on lists that are searched
 * from end to end: small, slow, and sharing nothing with src/core.
 *
 * Texts are numbers below REFERENCE_TEXTS_MAX; a request for one that is not there makes room, if
 * need be, and puts it in.
 *
 * SPDX-License-Identifier: MIT */
#ifndef TESTS_EVICT_REFERENCE_H
#define TESTS_EVICT_REFERENCE_H

#include "quire/prefix.h"

#include <stdbool.h>
#include <stdint.h>

#define REFERENCE_TEXTS_MAX 256u

/* at[0] is the oldest. */
typedef struct reference_list {
    uint32_t at[REFERENCE_TEXTS_MAX];
    uint32_t n;
} reference_list;

typedef struct reference {
    quire_evict_policy policy;
    uint32_t capacity;
    double page_bytes;
    uint64_t now;            /* requests so far */
    reference_list lists[4]; /* what each is depends on the policy */
    uint32_t uses[REFERENCE_TEXTS_MAX];
    uint64_t used[REFERENCE_TEXTS_MAX]; /* when */
    double value[REFERENCE_TEXTS_MAX];
    double inflation;
    uint64_t ghost_at[REFERENCE_TEXTS_MAX]; /* 0 = none */
    uint64_t n_ghosts;
    uint32_t hand; /* sieve: index into lists[0] */
    double p;
} reference;

void reference_start(reference *ref, quire_evict_policy policy, uint32_t capacity,
                     double page_bytes);
/* Whether it was a hit. */
bool reference_request(reference *ref, uint32_t text, uint32_t n_tokens);
bool reference_has(const reference *ref, uint32_t text);

#endif /* TESTS_EVICT_REFERENCE_H */
