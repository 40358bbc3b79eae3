/* rotation.h - the rotary embedding as a table of frequencies: to turn rows of K or Q from one
 * position to another.
 *
 * RoPE turns pair i of a row by position * frequency[i]. All scalings that Quire runs (linear,
 * YaRN, llama3's factors) change frequencies and a common factor only, so turning a row by a
 * difference of positions gives the row of the other position (arXiv 2104.09864).
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_ROTATION_H
#define QUIRE_ATTN_ROTATION_H

#include <stdbool.h>
#include <stdint.h>

typedef struct quire_rotation {
    uint32_t d;               /* turned numbers of a row, its first ones; even */
    bool has_halves;          /* pairs are (i, i + d/2), else (2i, 2i + 1) */
    const float *frequencies; /* [d / 2] radians a position; borrowed */
} quire_rotation;

/* turns, [d] = cosine and sine of each pair's angle at a position, which may be negative. */
void quire_rotation_turns(const quire_rotation *rotation, double position, float *turns);

/* Turn the first d numbers of a row in place. */
void quire_rotation_apply(const quire_rotation *rotation, const float *turns, float *row);

#endif /* QUIRE_ATTN_ROTATION_H */
