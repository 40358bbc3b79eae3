/* page_choice.h - the pages of a lane that a row of one token may need most, by the bounds of their
 * keys (Quest, arXiv 2406.10774).
 *
 * The bounds of a page are the least and the greatest value of each channel of its K, as K is
 * stored: turned and transformed. They are in bf16, rounded down and up, and bound the product of a
 * query with any key of the page:
 *
 *   bound = sum over channels of max(q * least, q * greatest), summed over the lane's query heads
 *         = sum over channels of (sum of heads' q < 0) * least + (sum of heads' q > 0) * greatest
 *
 * so that each page is read once for all heads.
 *
 * A row reads the share of its lane's pages with the highest bounds. It always reads the first page
 * and the last QUIRE_ATTEND_RECENT ones, without regard to their bounds, so a page that is not full
 * yet needs none. Rows read all pages in the first QUIRE_ATTEND_DENSE layers. Nothing is dropped. A
 * bound that is NaN counts as infinite, and of equal bounds the later page is read.
 *
 * Thread: any; the caller's memory.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_PAGE_CHOICE_H
#define QUIRE_RETAIN_PAGE_CHOICE_H

#include "base/prefetch.h"
#include "quire/attn.h"

#define QUIRE_ATTEND_DENSE  2u /* layers that read all pages (Quest) */
#define QUIRE_ATTEND_RECENT 2u /* last pages of a lane that are always read */

typedef struct quire_page_rank {
    const uint16_t *bounds; /* [2][d_k] least and greatest; not read of pages always read */
    uint64_t key;           /* ascends with the bound, then with the place in the lane's table */
    uint64_t sorted;        /* keys in the order of a selection */
    uint32_t entry;         /* a page that is read: its place in the lane's table */
} quire_page_rank;

/* The share of "top:SHARE", above 0 and at most 1. Errors: QUIRE_INVAL. */
int quire_attend_parse(const char *text, double *share);

/* Whether a share leaves pages out. */
static inline bool quire_attends(double share)
{
    return share > 0 && share < 1;
}

/* Bytes of the bounds of a page of a lane: whole lines of memory, so that parts of pages are. */
static inline size_t quire_page_bounds_bytes(uint32_t d_k)
{
    const size_t n_bytes = 2 * (size_t)d_k * sizeof(uint16_t);

    return (n_bytes + QUIRE_PREFETCH_LINE - 1) / QUIRE_PREFETCH_LINE * QUIRE_PREFETCH_LINE;
}

/* Widen the bounds of a page by a row of K; its first row begins them. */
void quire_page_bounds_add(uint16_t *bounds, uint32_t d_k, const float *row, bool is_first);

/* How many of n pages a row reads. */
uint32_t quire_pages_read(double share, uint32_t n);

/* Choose n_read of a lane's n pages: those that a row may need most. Their entries come to the
 * front of the ranks, ascending. ranks: [n] with bounds, in the order of the lane's table. queries:
 * the row's, of the lane's `group` query heads, before the transform of K. n_read:
 * quire_pages_read(). */
void quire_pages_choose(quire_page_rank *ranks, uint32_t n, uint32_t n_read,
                        const quire_attn_layer *one, uint32_t group, const float *queries);

#endif /* QUIRE_RETAIN_PAGE_CHOICE_H */
