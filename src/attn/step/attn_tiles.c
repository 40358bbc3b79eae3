/* attn_tiles.c - the parts of a tile that the driver itself reads.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/step/attn_tiles.h"

static bool is_finite_32(const uint32_t *x, size_t n)
{
    uint32_t max = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t magnitude = x[i] & 0x7fffffffu;

        max = magnitude > max ? magnitude : max;
    }
    return max < 0x7f800000u;
}

static bool is_finite_16(const uint16_t *x, size_t n, uint16_t infinity)
{
    uint16_t max = 0;

    for (size_t i = 0; i < n; i++) {
        uint16_t magnitude = x[i] & 0x7fffu;

        max = magnitude > max ? magnitude : max;
    }
    return max < infinity;
}

bool quire_attn_tile_v_is_finite(quire_format format, uint32_t d, const void *tile, uint32_t begin,
                                 uint32_t end)
{
    const uint16_t *h = tile;

    switch (format) {
    case QUIRE_FORMAT_F32:
        return is_finite_32((const uint32_t *)tile + (size_t)begin * d, (size_t)(end - begin) * d);
    case QUIRE_FORMAT_F16:
        return is_finite_16(h + (size_t)begin * d, (size_t)(end - begin) * d, 0x7c00u);
    case QUIRE_FORMAT_BF16: { /* in pairs of slots: a neighbour may give a false alarm, no more */
        uint32_t pair = begin / 2;

        return is_finite_16(h + (size_t)pair * 2 * d, (size_t)((end + 1) / 2 - pair) * 2 * d,
                            0x7f80u);
    }
    default:
        return is_finite_16(h + begin, end - begin, 0x7c00u);
    }
}
