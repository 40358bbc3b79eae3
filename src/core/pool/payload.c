/* payload.c - see payload.h.
 *
 * SPDX-License-Identifier: MIT */
#include "core/pool/payload.h"

#include <string.h>

quire_page_addr quire_payload_addr(const quire_pool *pool, const quire_extent *extent,
                                   uint32_t slot)
{
    const bool is_hosts = pool->classes[extent->class_index].is_hosts;

    return extent->base != NULL
               ? (quire_page_addr){ .extent = extent->base,
                                    .slot = slot,
                                    .memory = is_hosts ? QUIRE_MEMORY_HOST : pool->memory.memory }
               : (quire_page_addr){ .extent = NULL };
}

/* The place of a page's parts: part p lies at bytes + skip * (bytes of the parts before p) + slot *
 * (bytes of part p). A contiguous buffer has skip 1 and slot 0. */
typedef struct place {
    size_t slot;
    size_t skip;
} place;

static int pieces_copy(const quire_pool *pool, const quire_pool_class *class, quire_page_copy kind,
                       const quire_page_piece *pieces, uint32_t n)
{
    if (!class->is_hosts) {
        return pool->memory.copy(pool->memory.ctx, kind, pieces, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        memcpy(pieces[i].to, pieces[i].from, pieces[i].bytes);
    }
    return QUIRE_OK;
}

static int parts_copy(const quire_pool *pool, const quire_pool_class *class, quire_page_copy kind,
                      unsigned char *to, place to_place, const unsigned char *from,
                      place from_place)
{
    quire_page_piece pieces[QUIRE_PAGE_PIECES];
    size_t before = 0;
    uint32_t n = 0;

    for (uint32_t p = 0; p < class->n_parts; p++) {
        const size_t bytes = class->part_bytes[p];

        if (bytes > 0) {
            pieces[n] =
                (quire_page_piece){ .to = to + to_place.skip * before + to_place.slot * bytes,
                                    .from =
                                        from + from_place.skip * before + from_place.slot * bytes,
                                    .bytes = bytes };
            if (kind == QUIRE_PAGE_COPY_IN) {
                pieces[n].extent = to;
                pieces[n].slot = (uint32_t)to_place.slot;
            }
            n++;
        }
        before += bytes;
        if (n == QUIRE_PAGE_PIECES || (p + 1 == class->n_parts && n > 0)) {
            QUIRE_TRY(pieces_copy(pool, class, kind, pieces, n));
            n = 0;
        }
    }
    return QUIRE_OK;
}

static place in_extent(const quire_pool_class *class, quire_page_addr addr)
{
    return (place){ .slot = addr.slot, .skip = class->shape.n_slots };
}

static const place in_one_piece = { .slot = 0, .skip = 1 };

void quire_payload_copy(const quire_pool *pool, const quire_pool_class *class, quire_page_addr to,
                        quire_page_addr from)
{
    /* A device reports the failure of its copy to the step that would read it, or is lost. */
    (void)parts_copy(pool, class, QUIRE_PAGE_COPY_WITHIN, to.extent, in_extent(class, to),
                     from.extent, in_extent(class, from));
}

int quire_payload_gather(const quire_pool *pool, const quire_pool_class *class, unsigned char *to,
                         quire_page_addr from)
{
    return parts_copy(pool, class, QUIRE_PAGE_COPY_OUT, to, in_one_piece, from.extent,
                      in_extent(class, from));
}

int quire_payload_scatter(const quire_pool *pool, const quire_pool_class *class, quire_page_addr to,
                          const unsigned char *from)
{
    return parts_copy(pool, class, QUIRE_PAGE_COPY_IN, to.extent, in_extent(class, to), from,
                      in_one_piece);
}
