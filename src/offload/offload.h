/* offload.h - sequences that are larger than the memory of their cache.
 *
 * Full pages of running sequences move to a file (offload_file.h), and attention streams them from
 * there (offload_stream.h). Pages of a device move to the host's memory first, and from there to
 * the file when that is full (offload_tiers.h); they come to attention by the device's copies
 * (offload_fetch.h). Every step reads every offloaded
 * page once, so a step takes at least as long as the disk, or the link to the device, needs for
 * them: this is for sequences that could not run at all otherwise. A step whose rows choose pages
 * (quire_offload_choice) reads from the file those that they choose.
 *
 *   budget of the dynamic region = its memory - buffers - kept
 *
 * where `buffers` are the stream's, and `kept` the bytes that pages leave in memory,
 * so that pages and buffers together stay within the budget of the start. Offloaded pages are not
 * charged (quire/cache.h). The buffers grow and shrink with the stripes in use. Only pages charged
 * to the dynamic region are offloaded, and none that several sequences or a pin hold.
 *
 * Thread: the cache's owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_H
#define QUIRE_OFFLOAD_OFFLOAD_H

#include "offload/offload_stops.h"
#include "offload/offload_tiers.h"
#include "quire/attn.h"

/* The stream's buffers may take this share of the budget; more pages are not offloaded. */
#define QUIRE_OFFLOAD_BUFFER_SHARE 0.5

typedef struct quire_offload quire_offload;

/* Rows that choose pages, in attention of the inner device. Their choice needs no page: it looks at
 * the last bytes of each part, which stay in memory. For pages in a file alone. */
typedef struct quire_offload_choice {
    /* Whether all rows of a step's sequence choose. NULL: none ever does, and the fields below
     * are not used. */
    bool (*chooses)(const quire_attn_seq *seq);
    uint32_t n_dense;         /* first parts, at least 1, that these rows read whole */
    const size_t *kept_bytes; /* [parts], multiples of 4; read by open */
} quire_offload_choice;

typedef struct quire_offload_opts {
    quire_cache *cache;             /* borrowed, as are the fields below */
    const quire_attn_device *inner; /* that steps go to; copied */
    quire_group_id group;           /* of the pages that may be offloaded */
    /* The device's memory, of which the cache's pages are: they go to host_bytes of the host's
     * memory, and on to the file if it has a directory. NULL: the pages are in the host's memory,
     * and go to the file. Copied. */
    const quire_page_memory *memory;
    uint64_t host_bytes;
    quire_offload_choice choice;
    /* The layers of a step that read these pages, in their order; [n_stops], read by open. 0: each
     * layer reads the part that it stores. */
    const quire_offload_stop *stops;
    uint32_t n_stops;
    quire_offload_file_opts file; /* but its kept_bytes */
} quire_offload_opts;

/* Errors: quire_offload_file_open(), quire_offload_tiers_open(). Memory: quire_offload_close(),
 * when no page is offloaded any more: every sequence is closed, and the prefix tree destroyed. */
int quire_offload_open(quire_offload **out, const quire_offload_opts *opts, quire_error *err);
void quire_offload_close(quire_offload *offload);

/* The device that steps go to instead of the inner one; and the inner one. */
quire_attn_device quire_offload_device(quire_offload *offload);
quire_attn_device quire_offload_inner(const quire_offload *offload);

/* For the inner device, in run() of a step; with a choice. The last bytes of the part at hand of an
 * offloaded page, aligned to 4; NULL: they are where the page is. Memory: until the step ends. */
const void *quire_offload_page_kept(const quire_offload *offload, quire_page_id page);
/* Rows are about to read these pages. Those of them that are in the file are read, unless the step
 * reads all. Waits for the disk; sync() says when a page could not be read. */
void quire_offload_pages_need(quire_offload *offload, const quire_page_id *pages, uint32_t n);

/* Offload up to QUIRE_OFFLOAD_STRIPE pages of a sequence, the first ones that can be. From a
 * place that is full, pages of the lowest order go on first. Waits for the disk. Returns their
 * number, 0 when that would free no memory (no page can be offloaded, or the buffers grow by as
 * much), or an error: QUIRE_LIMIT (all places are full, or the buffers would be too large),
 * QUIRE_IO, QUIRE_LOST. */
int quire_offload_seq(quire_offload *offload, quire_seq_id seq, uint8_t order);

/* Take one offloaded page of a sequence back into memory, the first in a file, else the first,
 * while the budget has room for keep_bytes more. Waits for the disk. Returns the number of pages, 0
 * or 1, or an error: QUIRE_IO, QUIRE_CORRUPT. */
int quire_offload_back(quire_offload *offload, quire_seq_id seq, uint64_t keep_bytes);

/* Below a device: take a stripe of pages from the file to the host's memory, as
 * quire_offload_tiers_raise(). */
int quire_offload_raise(quire_offload *offload);

/* Offloaded pages may have ended since the last call: give the budget back that the buffers do not
 * need any more. Returns these bytes. */
uint64_t quire_offload_settle(quire_offload *offload);

/* Bytes of the budget that the buffers have now. Thread: any. */
uint64_t quire_offload_buffer_bytes(const quire_offload *offload);

/* By charge: bytes of a sequence's pages in memory that could be offloaded, of its offloaded pages,
 * and of those of them that lie in a file. */
typedef struct quire_offload_share {
    uint64_t movable_bytes;
    uint64_t offloaded_bytes;
    uint64_t file_bytes;
    uint32_t memory_tokens; /* in front of the first offloaded page; UINT32_MAX: none is */
} quire_offload_share;
void quire_offload_share_get(const quire_offload *offload, quire_seq_id seq,
                             quire_offload_share *out);

/* Whether the last step that could not read an offloaded page missed one that lies in a file. Then
 * pages in the host's memory below a device's are not to blame. */
bool quire_offload_missed_file(const quire_offload *offload);

/* The most bytes that offloaded pages can have: bounded by the places, and by the buffers that this
 * budget of memory allows. */
uint64_t quire_offload_bytes_max(const quire_offload *offload, uint64_t budget_bytes);

/* The least memory of a step that reads n_pages pages, n_pages >= 1, of which the last is not full:
 * those that stay in memory, and the buffers of the others. budget_bytes: as above. */
uint64_t quire_offload_memory_min(const quire_offload *offload, uint64_t budget_bytes,
                                  uint64_t n_pages);

/* Whether the next steps may attend offloaded pages in the host's memory where they lie, rather
 * than copy them to the device; not at first. The inner device must be one that can: that of
 * quire_device_joint_attention(). Pages in a file are read as ever. */
void quire_offload_attend(quire_offload *offload, bool may_attend);
/* Whether a step has attended some since that call. Its results then have the rounding of both
 * kernels. */
bool quire_offload_attended(const quire_offload *offload);

/* No step will run for a while. */
void quire_offload_rest(quire_offload *offload);

/* The last failure of the file, or of the host's memory below a device's: call, reason; empty
 * before the first. Memory: the offload's. */
const char *quire_offload_trouble(const quire_offload *offload, bool of_file);

typedef struct quire_offload_stats {
    quire_offload_file_stats file;   /* of the place that pages go to from memory */
    quire_offload_below_stats below; /* of the file behind the host's memory */
    uint64_t pages;                  /* offloaded now, in both */
    uint64_t pages_out_total;
    uint64_t pages_back_total;
    uint64_t buffer_bytes; /* taken from the budget */
    char trouble[160];     /* the file's last failure, else the host's memory's; empty: none */
} quire_offload_stats;
void quire_offload_stats_get(const quire_offload *offload, quire_offload_stats *out);

#endif /* QUIRE_OFFLOAD_OFFLOAD_H */
