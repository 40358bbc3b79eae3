/* page_io.h - copies between a cache's pages and records: the parts of a record.
 *
 * Part g of a record is the gathered page of group g. Group 0 always has a part. Another group may
 * have a hole at a full page: a part of 0 bytes. In a cache with states the last part is the state
 * behind the record's last token (quire/cache.h, "States"), or 0 bytes where there is none.
 *
 * Thread: owner of the cache.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_PAGE_IO_H
#define QUIRE_STORE_PAGE_IO_H

#include "quire/cache.h"
#include "store/store.h"

/* The parts of a cache's pages. */
typedef struct quire_page_parts {
    uint32_t page_tokens;
    uint32_t n_groups; /* the group of states included */
    uint32_t state;    /* the group of states; 0 = none */
    size_t bytes[QUIRE_GROUPS_MAX];
    size_t record_bytes; /* of the largest record of one page */
} quire_page_parts;

/* Errors: QUIRE_RANGE (pages are larger than a record may be), QUIRE_INVAL (no payload). */
int quire_page_parts_get(const quire_cache *cache, uint32_t page_tokens, quire_page_parts *out);
/* The same of a cache that would have pages of out->bytes, [out->n_groups], of out->page_tokens,
 * and states of state_bytes; 0 = none. Thread: any. */
int quire_page_parts_end(quire_page_parts *out, size_t state_bytes);

/* Begin a record of a text in transfer->record, and gather its pages ([n_groups], QUIRE_PAGE_NULL =
 * hole) into it. state: that of the record's last token, in place of a page; NULL = that of the
 * page. Errors: quire_page_record_begin(), quire_cache_page_gather(). */
int quire_page_write(const quire_cache *cache, const quire_page_parts *parts,
                     const quire_page_text *text, const quire_page_id *pages, const void *state,
                     quire_transfer *transfer);

/* Append the first n_tokens tokens of a verified record to a sequence that ends at the record's
 * first token, and scatter the record's pages into the sequence's. n_tokens is at most the
 * record's; less than a page only if no part of KV is a hole. The state is left to the caller:
 * quire_page_state(). Errors: QUIRE_CORRUPT (the parts are not those of this cache; nothing has
 * changed), quire_seq_append(), quire_cache_page_scatter(). */
int quire_page_read(quire_cache *cache, const quire_page_parts *parts, quire_seq_id seq,
                    const quire_page_record *record, uint32_t n_tokens);

/* The state behind the first n_tokens tokens of a record that quire_page_read() took: its bytes, as
 * long as parts->bytes[parts->state]; NULL = the record has none there. Memory: the record's. */
const void *quire_page_state(const quire_page_parts *parts, const quire_page_record *record,
                             uint32_t n_tokens);

/* Leading tokens of a record that equal these n_tokens tokens. */
uint32_t quire_page_same(const quire_page_record *record, const int32_t *tokens, uint32_t n_tokens);

#endif /* QUIRE_STORE_PAGE_IO_H */
