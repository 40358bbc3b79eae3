/* payload.h - the parts of a page's payload in its slot (quire/cache.h, "Parts").
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_PAYLOAD_H
#define QUIRE_CORE_PAYLOAD_H

#include "core/pool/pool.h"

/* The address of the payload in a slot of the pool's extent; the address's extent is NULL for a
 * class without payload. */
quire_page_addr quire_payload_addr(const quire_pool *pool, const quire_extent *extent,
                                   uint32_t slot);

/* Copy a payload between two pages of a class. */
void quire_payload_copy(const quire_pool *pool, const quire_pool_class *class, quire_page_addr to,
                        quire_page_addr from);

/* Copy a payload to or from a contiguous buffer of class->page_bytes: all parts in order, without
 * gaps. Errors: quire_page_memory.copy's; never in the host's memory. */
int quire_payload_gather(const quire_pool *pool, const quire_pool_class *class, unsigned char *to,
                         quire_page_addr from);
int quire_payload_scatter(const quire_pool *pool, const quire_pool_class *class, quire_page_addr to,
                          const unsigned char *from);

#endif /* QUIRE_CORE_PAYLOAD_H */
