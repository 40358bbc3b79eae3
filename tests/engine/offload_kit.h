/* offload_kit.h - what tests of steps through offloaded pages share: a cache whose pages have six
 * parts, the file behind it, and the device that reads the pages.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_OFFLOAD_KIT_H
#define QUIRE_TESTS_OFFLOAD_KIT_H

#include "offload/offload.h"
#include "store/file/file_ops.h"

#define P          64u /* tokens of a page */
#define N_PARTS    6u
#define N_DENSE    2u
#define PART_BYTES ((size_t)4096) /* a slot of the file without padding */
#define KEPT_BYTES ((size_t)64)
#define PAGE_BYTES (N_PARTS * PART_BYTES)

/* Where a part of an extent's pages begins, in bytes. */
size_t offload_part_offset(uint32_t part);
/* Page i of a sequence. */
quire_page_id offload_page_of(const quire_seq_table *table, uint32_t i);

/* A device that checks and appends nothing. */
quire_attn_device offload_inner(void *ctx, int (*plan)(void *ctx, const quire_attn_batch *batch),
                                void (*run)(void *ctx, const quire_attn_layer *layer, uint32_t call,
                                            uint32_t thread, uint32_t n_threads),
                                int (*sync)(void *ctx));

/* A cache, and pages behind it in a file of test_dir. The caller has set inner, stops, memory,
 * host_bytes and the file's ops and capacity_bytes. has_choice: rows with lanes choose pages. */
void offload_open(quire_cache **cache, uint64_t budget_bytes, quire_offload **offload,
                  quire_offload_opts *opts, bool has_choice);

/* A sequence of n_pages full pages and one token. Part p of page i holds byte_of(number, i, p). */
void offload_fill(quire_cache *cache, quire_seq_id *seq, quire_seq_table *table, uint32_t n_pages,
                  unsigned char (*byte_of)(uint32_t number, uint32_t page, uint32_t part),
                  uint32_t number);

#endif /* QUIRE_TESTS_OFFLOAD_KIT_H */
