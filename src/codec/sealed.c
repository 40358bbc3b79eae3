/* sealed.c - the sealed formats in plain C: the definition of their bytes.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/sealed.h"

#include "base/check.h"
#include "codec/sealed_body.h"

/* Found on K (centred) and V of real models with the fit of sealed_body.h: docs/formats.md. */
/* clang-format off */
#define LEVELS_Q6                                                                                  \
    -127, -117, -110, -103, -97, -92, -87, -81, -76, -71, -67, -63, -59, -55, -52, -49,            \
    -46, -43, -40, -37, -34, -31, -28, -25, -22, -19, -16, -13, -10, -7, -4, -1,                   \
    1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 37, 40, 43, 46,                                   \
    49, 52, 55, 59, 63, 67, 71, 76, 81, 87, 92, 97, 103, 110, 117, 127
#define LEVELS_Q5                                                                                  \
    -127, -110, -97, -86, -76, -68, -60, -53, -46, -39, -33, -27, -21, -15, -9, -3,                \
    3, 9, 15, 21, 27, 33, 39, 46, 53, 60, 68, 76, 86, 97, 110, 127
#define LEVELS_Q4 -127, -97, -76, -59, -44, -31, -18, -6, 6, 18, 31, 44, 59, 76, 97, 127
#define LEVELS_Q3 -127, -78, -43, -14, 14, 43, 78, 127

static _Alignas(64) const int8_t levels_of[4][QUIRE_SEALED_LEVELS_MAX] = {
    { LEVELS_Q6 },
    { LEVELS_Q5, LEVELS_Q5 },
    { LEVELS_Q4, LEVELS_Q4, LEVELS_Q4, LEVELS_Q4 },
    { LEVELS_Q3, LEVELS_Q3, LEVELS_Q3, LEVELS_Q3, LEVELS_Q3, LEVELS_Q3, LEVELS_Q3, LEVELS_Q3 },
};
/* clang-format on */

static const struct {
    uint32_t n;
    float at[4];
} starts_of[4] = {
    { 2, { 1.0f, 0.926f } },
    { 2, { 1.064f, 1.0f } },
    { 2, { 1.11f, 1.0f } },
    { 4, { 1.43f, 1.25f, 1.11f, 1.0f } },
};

const int8_t *quire_sealed_levels(quire_format format, quire_side side)
{
    (void)side; /* one table serves K and V */
    QUIRE_CHECK(quire_format_is_sealed(format));
    return levels_of[format - QUIRE_FORMAT_Q6];
}

const float *quire_sealed_starts(quire_format format, uint32_t *n)
{
    QUIRE_CHECK(quire_format_is_sealed(format));
    *n = starts_of[format - QUIRE_FORMAT_Q6].n;
    return starts_of[format - QUIRE_FORMAT_Q6].at;
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
