/* payload.h - what lies in a page's slot: the parts of its payload (quire/cache.h, "Parts").
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_PAYLOAD_H
#define QUIRE_CORE_PAYLOAD_H

#include "core/pool/pool.h"

/* Where the payload of the page in a slot of the extent is; its extent is NULL where the class has
 * none. */
quire_page_addr quire_payload_addr(const quire_extent *extent, uint32_t slot);

/* Copy the payload of one page of a class to another. */
void quire_payload_copy(const quire_pool_class *class, quire_page_addr to, quire_page_addr from);

/* The same with one side in a single piece of class->page_bytes: all parts in order, nothing
 * between them. */
void quire_payload_gather(const quire_pool_class *class, unsigned char *to, quire_page_addr from);
void quire_payload_scatter(const quire_pool_class *class, quire_page_addr to,
                           const unsigned char *from);

#endif /* QUIRE_CORE_PAYLOAD_H */
