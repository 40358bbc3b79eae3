/* payload.c - see payload.h.
 *
 * SPDX-License-Identifier: MIT */
#include "core/pool/payload.h"

#include <string.h>

quire_page_addr quire_payload_addr(const quire_extent *extent, uint32_t slot)
{
    return extent->base != NULL ? (quire_page_addr){ .extent = extent->base, .slot = slot }
                                : (quire_page_addr){ .extent = NULL };
}

/* The place of a page's parts: part p lies at bytes + skip * (bytes of the parts before p) + slot *
 * (bytes of part p). A contiguous buffer has skip 1 and slot 0. */
typedef struct place {
    size_t slot;
    size_t skip;
} place;

static void parts_copy(const quire_pool_class *class, unsigned char *to, place to_place,
                       const unsigned char *from, place from_place)
{
    size_t before = 0;

    for (uint32_t p = 0; p < class->n_parts; p++) {
        const size_t bytes = class->part_bytes[p];

        memcpy(to + to_place.skip * before + to_place.slot * bytes,
               from + from_place.skip * before + from_place.slot * bytes, bytes);
        before += bytes;
    }
}

static place in_extent(const quire_pool_class *class, quire_page_addr addr)
{
    return (place){ .slot = addr.slot, .skip = class->shape.n_slots };
}

static const place in_one_piece = { .slot = 0, .skip = 1 };

void quire_payload_copy(const quire_pool_class *class, quire_page_addr to, quire_page_addr from)
{
    parts_copy(class, to.extent, in_extent(class, to), from.extent, in_extent(class, from));
}

void quire_payload_gather(const quire_pool_class *class, unsigned char *to, quire_page_addr from)
{
    parts_copy(class, to, in_one_piece, from.extent, in_extent(class, from));
}

void quire_payload_scatter(const quire_pool_class *class, quire_page_addr to,
                           const unsigned char *from)
{
    parts_copy(class, to.extent, in_extent(class, to), from, in_one_piece);
}
