/* offload_file.h - the slots of offloaded pages, in a file: written by page, read by layer.
 *
 * A page has parts, one per stored layer (quire/cache.h). Attention needs one part of many pages at
 * a time. So the file keeps part p of all pages side by side, as an extent in memory does:
 *
 *            stripe 0          stripe 1
 *          +-----------------+-----------------+
 *   part 0 | slot 0 ... 7 |/ | slot 8 ... 15 |/| ...      / padding to QUIRE_OFFLOAD_ALIGN
 *   part 1 | slot 0 ... 7 |/ | slot 8 ... 15 |/| ...
 *
 * A *stripe* is QUIRE_OFFLOAD_STRIPE slots. Its pages are written together, so that every write is
 * aligned and large; it is free again when all of its pages have been released.
 *
 * Parts may end with bytes that stay in memory as well: bounds, by which rows choose pages. Pages
 * of such a file can be read one by one, so each slot is padded, and not the stripe alone.
 *
 * The file has no name (O_TMPFILE, or unlinked at once): it goes with the process, however that
 * ends. Nothing in it is needed after a restart. The checksum (XXH3-128, 64 bits of it) of every
 * part of every page stays in memory, and every read compares it.
 *
 * Stuck disks: only the file's threads wait for the disk. Their owner waits with a time limit,
 * after which the file is *broken* and takes no more calls. Reads and writes that have not ended by
 * then own their buffers for ever (reads.h).
 *
 * Thread: the owner's; within a step any of its threads begins a job and waits for it, one at a
 * time, while the owner changes no slot.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_FILE_H
#define QUIRE_OFFLOAD_OFFLOAD_FILE_H

#include "quire/cache.h"
#include "quire/error.h"
#include "store/file/reads.h"

#define QUIRE_OFFLOAD_STRIPE     8u
#define QUIRE_OFFLOAD_ALIGN      4096u
#define QUIRE_OFFLOAD_READ_BYTES ((size_t)1 << 20) /* of one read; at least a stripe */
#define QUIRE_OFFLOAD_READS      8u                /* under way at once */
#define QUIRE_OFFLOAD_WAIT_MS    10000u            /* for the disk, before the file is broken */
#define QUIRE_OFFLOAD_CLOSE_MS   2000u

typedef struct quire_offload_file quire_offload_file;

typedef struct quire_offload_file_opts {
    const char *dir; /* of the file; made with mode 0700 if it is missing */
    uint64_t capacity_bytes;
    uint32_t n_parts;         /* >= 1 */
    const size_t *part_bytes; /* [n_parts], of one page, multiples of 64; copied */
    /* [n_parts], the last bytes of each part, which stay in memory; copied. NULL: none, and pages
     * cannot be read one by one. */
    const size_t *kept_bytes;
    uint32_t extent_pages; /* quire_cache_extent_pages() of these pages */
    uint32_t wait_ms;      /* 0: QUIRE_OFFLOAD_WAIT_MS */
    quire_reads_kind reads_kind;
    const quire_file_ops *ops; /* NULL: the operating system's */
} quire_offload_file_opts;

/* The least capacity of a file for parts of these bytes, [n_parts]: a stripe. is_kept: with
 * kept_bytes. Thread: any. */
uint64_t quire_offload_file_bytes_min(const size_t *part_bytes, uint32_t n_parts, bool is_kept);

/* Errors: QUIRE_IO (the file cannot be made), QUIRE_INVAL (no room for one stripe), QUIRE_NOMEM.
 * Memory: quire_offload_file_close(). */
int quire_offload_file_open(quire_offload_file **out, const quire_offload_file_opts *opts,
                            quire_error *err);
/* Reads and writes under way have QUIRE_OFFLOAD_CLOSE_MS to end; the memory of those that last
 * longer is never freed. Accepts NULL. */
void quire_offload_file_close(quire_offload_file *file);

/* Bytes of a part of a stripe, a multiple of QUIRE_OFFLOAD_ALIGN. */
size_t quire_offload_stripe_bytes(const quire_offload_file *file, uint32_t part);
/* The largest of all parts. */
size_t quire_offload_stripe_bytes_max(const quire_offload_file *file);
uint32_t quire_offload_n_parts(const quire_offload_file *file);
/* Where part p begins in an extent, as the lanes of quire_kv_layout() count it. */
size_t quire_offload_part_offset(const quire_offload_file *file, uint32_t part);
size_t quire_offload_part_bytes(const quire_offload_file *file, uint32_t part);
/* From a page's part to that of the next slot of its stripe. */
size_t quire_offload_slot_bytes(const quire_offload_file *file, uint32_t part);
/* Memory of the bytes of a stripe's pages that stay there. */
size_t quire_offload_kept_bytes(const quire_offload_file *file);

/* ---- writing ---- */

/* Write n_pages (1 .. QUIRE_OFFLOAD_STRIPE) pages in memory into a free stripe; page i is in slot
 * *first_slot + i. Waits for the disk. Errors: QUIRE_LIMIT (no free stripe), QUIRE_IO (nothing has
 * changed; see quire_offload_file_trouble()). */
int quire_offload_file_write(quire_offload_file *file, const quire_page_addr *pages,
                             uint32_t n_pages, uint32_t *first_slot);

/* quire_offload_ops: give up a slot; read the page in a slot into one piece. read() waits for the
 * disk. Errors: QUIRE_IO, QUIRE_CORRUPT. */
void quire_offload_file_release(quire_offload_file *file, uint32_t slot);
int quire_offload_file_read(quire_offload_file *file, uint32_t slot, void *buffer, size_t bytes);

/* The last bytes of a part of the page in a slot; with kept_bytes. Memory: the file's, until the
 * slot is released. Thread: any, while the owner changes no slot. */
const void *quire_offload_kept(const quire_offload_file *file, uint32_t slot, uint32_t part);

/* ---- reading one part of many pages ---- */

/* A page to be read by itself, and its place in the buffer: slot i of the buffer's stripe k has the
 * place k * QUIRE_OFFLOAD_STRIPE + i, where i is its slot in the file's stripe. */
typedef struct quire_offload_page {
    uint32_t slot;
    uint32_t place;
} quire_offload_page;

/* One order for reads. The owner keeps it in place until wait() has returned. */
typedef struct quire_offload_job {
    uint32_t part;
    const uint32_t *stripes; /* [n_stripes] whole ones; unchanged until the end */
    uint32_t n_stripes;
    const quire_offload_page *pages; /* [n_pages] in place of stripes, of a file with kept_bytes;
                                        unchanged until the end. NULL: stripes */
    uint32_t n_pages;
    unsigned char *buffer; /* of whole stripes, aligned to QUIRE_OFFLOAD_ALIGN */
    /* The file's. */
    struct quire_offload_job *next;
    uint64_t generation; /* of the file at the begin */
    uint32_t n_asked;    /* stripes or pages whose read has begun */
    uint32_t n_done;
    int status;
    bool is_active;
} quire_offload_job;

/* Begin to read; stripe i comes to buffer + i * stripe bytes, a page to its place. Jobs are served
 * in order. A job during which the file's generation changes is stale: its bytes may be anything,
 * unchecked. */
void quire_offload_job_begin(quire_offload_file *file, quire_offload_job *job);

/* Wait for a job that was begun; at once for one that was not. Errors: QUIRE_IO, QUIRE_CORRUPT (a
 * checksum), QUIRE_AGAIN (the time limit: the file is broken from now on, and the buffer is lost).
 */
int quire_offload_job_wait(quire_offload_file *file, quire_offload_job *job);

/* ---- figures ---- */

typedef struct quire_offload_file_stats {
    uint64_t capacity_bytes;
    uint64_t used_bytes; /* of stripes in use */
    uint32_t stripes_used;
    uint32_t stripes_max;
    uint64_t read_bytes_total;
    uint64_t written_bytes_total;
    uint64_t attended_bytes_total; /* of pages in the host's memory, read there by the CPU */
    uint64_t read_us_total;        /* time during which a job was under way */
    uint64_t wait_us_total;        /* of quire_offload_job_wait() */
    uint64_t chosen_total;         /* parts of pages that rows chose, and that were read for them */
    uint64_t left_total;           /* parts of pages of such steps that no row chose */
    uint64_t failures_total;
    bool is_broken;
} quire_offload_file_stats;

void quire_offload_file_stats_get(const quire_offload_file *file, quire_offload_file_stats *out);
/* The last failure: call, reason; empty before the first. Memory: the file's, until the next call.
 */
const char *quire_offload_file_trouble(const quire_offload_file *file);
/* A layer of a step whose rows choose has ended. */
void quire_offload_file_chosen(quire_offload_file *file, uint32_t n_chosen, uint32_t n_left);
/* A number that changes whenever the pages of a stripe change. */
uint64_t quire_offload_file_generation(const quire_offload_file *file);

#endif /* QUIRE_OFFLOAD_OFFLOAD_FILE_H */
