/* sealed.c - the sealed formats in plain C: the definition of their bytes.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/sealed.h"

#include "codec/sealed_body.h"

/* Lloyd-Max levels of a normal distribution, the largest set to 127. */
/* clang-format off */
static _Alignas(64) const int8_t levels_q6[QUIRE_SEALED_LEVELS_MAX] = {
    -127, -110, -99, -91, -84, -78, -73, -68, -64, -60, -56, -53, -49, -46, -43, -40,
    -38, -35, -32, -30, -27, -24, -22, -20, -17, -15, -13, -10, -8, -6, -3, -1,
    1, 3, 6, 8, 10, 13, 15, 17, 20, 22, 24, 27, 30, 32, 35, 38,
    40, 43, 46, 49, 53, 56, 60, 64, 68, 73, 78, 84, 91, 99, 110, 127,
};
#define LEVELS_Q5                                                                                  \
    -127, -105, -90, -79, -70, -61, -54, -47, -41, -35, -29, -24, -18, -13, -8, -3,                \
    3, 8, 13, 18, 24, 29, 35, 41, 47, 54, 61, 70, 79, 90, 105, 127
static _Alignas(64) const int8_t levels_q5[QUIRE_SEALED_LEVELS_MAX] = { LEVELS_Q5, LEVELS_Q5 };
#define LEVELS_Q4 -127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127
static _Alignas(64) const int8_t levels_q4[QUIRE_SEALED_LEVELS_MAX] = { LEVELS_Q4, LEVELS_Q4,
                                                                        LEVELS_Q4, LEVELS_Q4 };
#define LEVELS_Q3 -127, -79, -45, -14, 14, 45, 79, 127
static _Alignas(64) const int8_t levels_q3[QUIRE_SEALED_LEVELS_MAX] = { LEVELS_Q3, LEVELS_Q3,
                                                                        LEVELS_Q3, LEVELS_Q3,
                                                                        LEVELS_Q3, LEVELS_Q3,
                                                                        LEVELS_Q3, LEVELS_Q3 };
/* clang-format on */

const int8_t *quire_sealed_levels(quire_format format, quire_side side)
{
    (void)side;
    switch (format) {
    case QUIRE_FORMAT_Q6:
        return levels_q6;
    case QUIRE_FORMAT_Q5:
        return levels_q5;
    case QUIRE_FORMAT_Q4:
        return levels_q4;
    default:
        return levels_q3;
    }
}

void quire_sealed_encode(quire_format format, quire_side side, const quire_tile_rows *rows,
                         const float *x, void *tile)
{
    tile_encode(format, side, rows, x, tile);
}

void quire_sealed_decode(quire_format format, quire_side side, const quire_tile_rows *rows,
                         const void *tile, float *x)
{
    tile_decode(format, side, rows, tile, x);
}
