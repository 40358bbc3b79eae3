/* even_choice.h - the tokens that a lane keeps when all lanes keep the same number of them: scores
 * by keys and positions, and the choice of the best. For texts that are condensed in chunks
 * (condensing.h) and contexts that are condensed when they are full (context_condense.h).
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_EVEN_CHOICE_H
#define QUIRE_ENGINE_EVEN_CHOICE_H

#include "retain/policy.h"

/* Room for the lanes of a sequence, one after the other. */
typedef struct quire_even_room {
    float *scores;      /* [n] */
    float *keys;        /* [n_rows][d_k]; NULL: the policy does not read keys */
    int32_t *positions; /* [n] ascending */
} quire_even_room;

/* Make room for lanes of n tokens. Their keys are read together with other rows, n_rows in all.
 * Errors: QUIRE_NOMEM. Memory: quire_even_room_fini(), on errors too. */
int quire_even_room_init(quire_even_room *room, const quire_retain_spec *spec, size_t n,
                         size_t n_rows, size_t d_k);
void quire_even_room_fini(quire_even_room *room);

/* A lane before the choice; room has its positions and keys. */
typedef struct quire_even_lane {
    uint64_t lane;
    uint32_t n;         /* tokens */
    uint32_t n_text;    /* of the text, up to the last one */
    uint32_t n_kept;    /* of n: the number that the policy keeps */
    uint32_t first_row; /* of room->keys that belongs to a token */
    uint32_t d_k;
} quire_even_lane;

/* is_kept: [n], of which n_kept become true. Errors: QUIRE_NOMEM. */
int quire_even_choose(const quire_retain_spec *spec, const quire_even_room *room,
                      const quire_even_lane *lane, bool *is_kept);

#endif /* QUIRE_ENGINE_EVEN_CHOICE_H */
