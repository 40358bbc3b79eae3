/* even_choice.c - see even_choice.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/even_choice.h"

#include "base/check.h"

#include <stdlib.h>

int quire_even_room_init(quire_even_room *room, const quire_retain_spec *spec, size_t n,
                         size_t n_rows, size_t d_k)
{
    *room = (quire_even_room){ .scores = malloc(n * sizeof *room->scores),
                               .positions = malloc(n * sizeof *room->positions) };
    QUIRE_FAIL_IF(room->scores == NULL || room->positions == NULL, QUIRE_NOMEM);
    if (spec->policy->needs_keys) {
        room->keys = malloc(n_rows * d_k * sizeof *room->keys);
        QUIRE_FAIL_IF(room->keys == NULL, QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

void quire_even_room_fini(quire_even_room *room)
{
    free(room->positions);
    free(room->keys);
    free(room->scores);
}

int quire_even_choose(const quire_retain_spec *spec, const quire_even_room *room,
                      const quire_even_lane *lane, bool *is_kept)
{
    const int32_t *positions = room->positions;
    const float *scores = room->scores;
    uint64_t n_kept = 0;
    const quire_retain_lane scored = {
        .n_tokens = lane->n,
        .positions = positions,
        .n_text = lane->n_text,
        .keys = room->keys != NULL ? room->keys + (size_t)lane->first_row * lane->d_k : NULL,
        .d = lane->d_k,
        .lane = lane->lane
    };
    const quire_retain_choice choice = { .n_lanes = 1,
                                         .n_tokens = &lane->n,
                                         .positions = &positions,
                                         .scores = &scores,
                                         .n_text = lane->n_text,
                                         .budget = lane->n_kept,
                                         .granule = 1 };

    quire_retain_score(spec, &scored, room->scores);
    QUIRE_TRY(quire_retain_choose(spec, &choice, &is_kept));
    for (uint32_t t = 0; t < lane->n; t++) {
        n_kept += is_kept[t];
    }
    QUIRE_CHECK(n_kept == lane->n_kept); /* the caller has room for so many */
    return QUIRE_OK;
}
