/* offload_tiers.h - the slots of offloaded pages below a device: in the host's memory, and behind
 * it in a file.
 *
 *   device --> host's memory (offload_host.h) --> file (offload_file.h)
 *     ^              |    ^                        |    |
 *     |--------------'    '------ raise() ---------'    |
 *     '------------------ read() -----------------------'
 *
 * Pages go down in stripes. When the host's memory is full, its coldest stripe goes on to the file:
 * the stripe that no step has read for the longest time. Among stripes that the same step has read,
 * the stripe of the lowest order goes first, then the stripe that came first. raise() is
 * the way back: a stripe in the file that the last step has read goes up to the host's memory while
 * that has room to spare. A page may also come from the file to the device at once.
 *
 * A slot keeps its number wherever its stripe lies: numbers of stripes here are of neither place,
 * and a table says where each one is.
 *
 * Memory of the host. The capacity has slots and the stage of the file (offload_stage.h), which
 * takes QUIRE_OFFLOAD_STAGE_SHARE of it at most and so bounds the file. A file that would hold no
 * more pages than its stage takes from the slots is left out: with pages of one or two parts, or
 * below a capacity of a few stripes.
 *
 * A crossing from or to the file is verified by the file's checksums. The first failed raise() is
 * the last one until a slot is released.
 *
 * Thread: the cache's owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_TIERS_H
#define QUIRE_OFFLOAD_OFFLOAD_TIERS_H

#include "offload/offload_host.h"
#include "offload/offload_stage.h"

#define QUIRE_OFFLOAD_STAGE_SHARE 0.25 /* of the host's memory: the stage of the file */

typedef struct quire_offload_tiers quire_offload_tiers;

typedef struct quire_offload_tiers_opts {
    const quire_page_memory *memory; /* the device's; copied */
    uint64_t host_bytes;             /* of the host's memory, with the stage */
    uint32_t n_reads;                /* parts that a layer reads at once, at most; 0 = 1 */
    /* The cache's parts and extent_pages; dir NULL: no file. No kept_bytes. */
    const quire_offload_file_opts *file;
} quire_offload_tiers_opts;

/* Errors: quire_offload_host_open(), quire_offload_file_open(). Memory:
 * quire_offload_tiers_close(), before the device ends. */
int quire_offload_tiers_open(quire_offload_tiers **out, const quire_offload_tiers_opts *opts,
                             quire_error *err);
void quire_offload_tiers_close(quire_offload_tiers *tiers);

/* Both places. Memory: the tiers'. The stage is NULL without a file. */
quire_offload_host *quire_offload_tiers_host(const quire_offload_tiers *tiers);
quire_offload_stage *quire_offload_tiers_stage(const quire_offload_tiers *tiers);

/* As quire_offload_host_write(), with the order of the stripe, after the coldest stripe of a full
 * host went to the file. Waits for the disk then. Errors: QUIRE_LIMIT (both are full, or no memory
 * to pin), QUIRE_IO (the file could not be written), QUIRE_LOST; then the pages have not moved. */
int quire_offload_tiers_write(quire_offload_tiers *tiers, const quire_page_addr *pages,
                              uint32_t n_pages, uint8_t order, uint32_t *first_slot);
/* quire_offload_ops. Errors of read(): QUIRE_IO, QUIRE_CORRUPT. */
void quire_offload_tiers_release(quire_offload_tiers *tiers, uint32_t slot);
int quire_offload_tiers_read(quire_offload_tiers *tiers, uint32_t slot, void *buffer, size_t bytes);

/* Move a stripe that the last step has read from the file to the host's memory, if a stripe stays
 * free there. Waits for the disk. Returns the number of its pages, 0 if there is none or no room,
 * or an error: QUIRE_IO, QUIRE_CORRUPT (nothing has changed). */
int quire_offload_tiers_raise(quire_offload_tiers *tiers);

/* Whether a slot's page lies in the file. */
bool quire_offload_tiers_in_file(const quire_offload_tiers *tiers, uint32_t slot);
/* The same slot in its place: of the host's memory, or of the file. A step reads it. */
uint32_t quire_offload_tiers_use(quire_offload_tiers *tiers, uint32_t slot);
/* A step begins. */
void quire_offload_tiers_step(quire_offload_tiers *tiers);

/* Stripes of both places together. Thread: any. */
uint32_t quire_offload_tiers_stripes_max(const quire_offload_tiers *tiers);
uint32_t quire_offload_tiers_stripes_used(const quire_offload_tiers *tiers);

typedef struct quire_offload_below_stats {
    bool is_on;
    quire_offload_file_stats file;
    uint64_t pages;            /* in the file now */
    uint64_t pages_down_total; /* from the host's memory to the file */
    uint64_t pages_up_total;   /* from the file to the host's memory */
} quire_offload_below_stats;

void quire_offload_tiers_stats_get(const quire_offload_tiers *tiers,
                                   quire_offload_below_stats *out);
/* The last failure of the file; empty: none, or no file. */
const char *quire_offload_tiers_file_trouble(const quire_offload_tiers *tiers);

#endif /* QUIRE_OFFLOAD_OFFLOAD_TIERS_H */
