/* payload.c - see payload.h.
 *
 * SPDX-License-Identifier: MIT */
#include "core/pool/payload.h"

#include <string.h>

quire_page_addr quire_payload_addr(const quire_extent *extent, uint32_t slot)
{
    return extent->base != NULL ? (quire_page_addr){ extent->base, slot }
                                : (quire_page_addr){ NULL, 0 };
}

void quire_payload_copy(const quire_pool_class *class, quire_page_addr to, quire_page_addr from)
{
    size_t offset = 0; /* of the part of slot 0 */

    for (uint32_t p = 0; p < class->n_parts; p++) {
        const size_t bytes = class->part_bytes[p];

        memcpy(to.extent + offset + to.slot * bytes, from.extent + offset + from.slot * bytes,
               bytes);
        offset += class->shape.n_slots * bytes;
    }
}
