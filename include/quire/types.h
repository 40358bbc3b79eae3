/* quire/types.h - the words quire uses, and the small integers it names things by.
 *
 *   token       one position of a sequence
 *   lane        one (layer, kv head) pair: the smallest thing that has its own K and V
 *   tile        64 tokens x one lane x (K or V) in one number format (quire/codec.h)
 *   group       the lanes that keep the same tokens; a plain model has one
 *   page        page_tokens tokens of all lanes of one group: the unit of allocation and sharing
 *   extent      memory taken from the OS at once; holds pages of one size
 *   region      a byte budget with a priority contract; every page is charged to one
 *   page table  per sequence and group: which slots of which pages hold its tokens, in order
 *
 * Ids, not pointers: they copy, hash, log, go to disk and to a GPU unchanged. Id 0 names nothing:
 * page 0 is the null page, a hole that is never handed out.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TYPES_H
#define QUIRE_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

typedef uint32_t quire_page_id;
typedef uint32_t quire_seq_id;
typedef uint16_t quire_region_id;
typedef uint16_t quire_group_id;

#define QUIRE_PAGE_NULL 0u
#define QUIRE_SEQ_NULL  0u

#define QUIRE_GROUPS_MAX 8u /* of a cache, and of a batch of attention */

/* One entry of a page table: tokens in consecutive slots of one page. A sequence may use a part of
 * a page, so sharing is token-exact. Kernels read an entry as it stands.
 *
 * An entry whose page is QUIRE_PAGE_NULL is a hole: the sequence still has these tokens, at these
 * positions, but this group has released their page (quire_seq_release()). A reader of the group
 * must not need these tokens. Holes are whole pages; the other fields of the entry are unchanged.
 *
 * Positions ascend along a table. Most entries hold consecutive ones. A page from which tokens were
 * dropped keeps the rest in consecutive slots, and its entry names a list of their positions. Such
 * a list lies in an array of the batch's (quire_attn_batch.positions), which an entry indexes. */
typedef struct quire_page_entry {
    quire_page_id page;  /* QUIRE_PAGE_NULL = hole */
    uint16_t first_slot; /* 0 .. page_tokens - 1 */
    uint16_t n_tokens;   /* valid tokens from first_slot on; first_slot + n_tokens <= page_tokens */
    int32_t first_pos;   /* position (rope) of the first token */
    uint32_t
        positions; /* 0: the others follow by one. Else: where the list begins, n_tokens long */
} quire_page_entry;

/* Which memory an address belongs to. A device reads pages in its own memory only. */
typedef enum quire_memory {
    QUIRE_MEMORY_HOST,
    QUIRE_MEMORY_OFFLOADED, /* none: `slot` is the owner's (quire/cache.h, offloaded pages) */
    QUIRE_MEMORY_DEVICE     /* a device's own: `extent` is an address there (quire/device.h) */
} quire_memory;

/* Where a page's payload lies. A page may be cut into parts (a layer's K and V, say), and an extent
 * keeps part p of all its pages side by side. A reader of one part of many pages therefore reads
 * memory in order (quire/cache.h, "Parts"). */
typedef struct quire_page_addr {
    unsigned char *extent; /* its first byte; NULL: no payload, or the page is not in use */
    uint32_t slot;         /* of the page in the extent */
    quire_memory memory;   /* that `extent` belongs to */
} quire_page_addr;

/* The lower level of a page table is made of leaves of this many entries, shared copy-on-write
 * between forks; the upper level is an array of pointers to them. */
#ifdef QUIRE_TINY /* test build with small constants, so that growth paths run all the time */
#define QUIRE_LEAF_ENTRIES 2u
#else
#define QUIRE_LEAF_ENTRIES 64u
#endif

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* QUIRE_TYPES_H */
