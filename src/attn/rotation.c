/* rotation.c - see rotation.h.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/rotation.h"

#include <math.h>

void quire_rotation_turns(const quire_rotation *rotation, double position, float *turns)
{
    for (uint32_t i = 0; i < rotation->d / 2; i++) {
        const double angle = position * (double)rotation->frequencies[i];

        turns[2 * i] = (float)cos(angle);
        turns[2 * i + 1] = (float)sin(angle);
    }
}

void quire_rotation_apply(const quire_rotation *rotation, const float *turns, float *row)
{
    const uint32_t half = rotation->d / 2;

    for (uint32_t i = 0; i < half; i++) {
        float *a = rotation->has_halves ? row + i : row + 2 * i;
        float *b = rotation->has_halves ? row + half + i : row + 2 * i + 1;
        const float x = *a, y = *b;

        *a = x * turns[2 * i] - y * turns[2 * i + 1];
        *b = x * turns[2 * i + 1] + y * turns[2 * i];
    }
}
