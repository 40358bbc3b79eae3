/* evict_reference.h - the classical policies exactly as in their papers, on lists with linear
 * search: small, slow, and without code of src/core.
 *
 * Texts are numbers below REFERENCE_TEXTS_MAX. A request for an absent text makes room if needed,
 * and adds the text.
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
    reference_list lists[4]; /* their meaning depends on the policy */
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
/* Request a text. Returns whether the request was a hit. */
bool reference_request(reference *ref, uint32_t text, uint32_t n_tokens);
bool reference_has(const reference *ref, uint32_t text);

#endif /* TESTS_EVICT_REFERENCE_H */
