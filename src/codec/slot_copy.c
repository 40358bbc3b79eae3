/* slot_copy.c - see slot_copy.h. The layouts are those of quire/codec.h.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/slot_copy.h"

#include "base/check.h"

#include <string.h>

/* Where the row of slot s lies in a tile: n pieces of `bytes` bytes, the first at
 * (s / run) * run_stride + (s % run) * bytes, the next ones `stride` further. */
typedef struct row_layout {
    uint32_t n;
    size_t bytes;
    size_t stride;
    uint32_t run;
    size_t run_stride;
} row_layout;

static row_layout layout_of(const quire_tile_kind *kind)
{
    const bool is_k = kind->side == QUIRE_SIDE_K;
    const size_t value = kind->format == QUIRE_FORMAT_F32  ? 4
                         : kind->format == QUIRE_FORMAT_Q8 ? 1
                                                           : 2;
    /* Neighbours that lie side by side: dimensions in K, tokens in V. */
    const uint32_t group = kind->format == QUIRE_FORMAT_BF16 ? 2
                           : kind->format == QUIRE_FORMAT_Q8 ? 4
                                                             : 1;

    if (is_k) { /* [d / group][64][group] */
        return (row_layout){ .n = kind->d / group,
                             .bytes = group * value,
                             .stride = QUIRE_TILE_TOKENS * group * value,
                             .run = QUIRE_TILE_TOKENS };
    }
    /* [64 / group][d][group] */
    return (row_layout){ .n = kind->d,
                         .bytes = value,
                         .stride = group * value,
                         .run = group,
                         .run_stride = (size_t)kind->d * group * value };
}

static size_t place_of(const row_layout *layout, uint32_t slot)
{
    return slot / layout->run * layout->run_stride + slot % layout->run * layout->bytes;
}

void quire_tile_slot_copy(const quire_tile_kind *kind, const void *from_tile, uint32_t from,
                          void *to_tile, uint32_t to)
{
    const row_layout layout = layout_of(kind);
    const unsigned char *source = from_tile;
    unsigned char *target = to_tile;

    QUIRE_CHECK(from < QUIRE_TILE_TOKENS && to < QUIRE_TILE_TOKENS);
    QUIRE_CHECK(!quire_format_is_sealed(kind->format));
    if (kind->format == QUIRE_FORMAT_Q8) { /* the scales come first */
        memmove(target + 2 * to, source + 2 * from, 2);
        source += 2 * QUIRE_TILE_TOKENS;
        target += 2 * QUIRE_TILE_TOKENS;
    }
    source += place_of(&layout, from);
    target += place_of(&layout, to);
    for (uint32_t i = 0; i < layout.n; i++) {
        memmove(target + i * layout.stride, source + i * layout.stride, layout.bytes);
    }
}
