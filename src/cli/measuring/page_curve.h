/* page_curve.h - how fast a memory copies pages and attention reads them, by the size of a page.
 *
 * A larger page is a longer piece for copies and for attention, and wastes more where texts part.
 * The size to take is the smallest one at which no rate is far below its best.
 *
 *   memory   copies of                                  attention
 *   device   one layer of a page, from and to the host  by the device's kernels
 *   host     one layer of a page, within the memory     by the CPU's kernels, on one thread
 *   disk     one layer of a stripe of pages             none
 *
 * Stripes are those of pages outside of memory (offload/offload_file.h). Pieces are copied in an
 * order that jumps through the memory.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_PAGE_CURVE_H
#define QUIRE_CLI_PAGE_CURVE_H

#include "cli/measuring/attn_rate.h"

#define QUIRE_PAGE_SHARE  0.9 /* of each rate's best, that a page size must reach */
#define QUIRE_PAGE_POINTS 5u  /* 64 to 1024 tokens */

/* Bytes per second; 0 = none. */
typedef struct quire_page_point {
    uint32_t page_tokens;
    uint64_t piece_bytes; /* of a copy */
    double in;            /* into this memory; host: within it */
    double out;
    double attention;
} quire_page_point;

typedef struct quire_page_curve {
    quire_page_point points[QUIRE_PAGE_POINTS]; /* by size */
    uint32_t choice;                            /* index of the size to take */
    bool has_share;                             /* of each best, QUIRE_PAGE_SHARE at that size */
    bool is_cached; /* disk: its file system has no direct access, so copies are the memory's */
} quire_page_curve;

/* The size of point i: 64, 128 ... */
uint32_t quire_page_point_tokens(uint32_t i);

/* The best rate of each kind, of any size. */
quire_page_point quire_page_curve_best(const quire_page_curve *curve);

/* The index of the smallest size whose rates in all n curves are QUIRE_PAGE_SHARE of their best. If
 * no size has that, *has_share is false, and it is the size whose smallest share is the largest. */
uint32_t quire_page_curves_choose(const quire_page_curve *curves, uint32_t n, bool *has_share);

/* Memory that quire_page_curve_device() takes of the device, of the host's if that is the device.
 */
uint64_t quire_page_curve_bytes(const quire_attn_work *work);

/* Measure the memory of work->device; page_tokens is set by the call. Errors: as
 * quire_attn_rate_get() and quire_device_copy(), and QUIRE_CANCELED (Ctrl-C, seen between two
 * sizes: talk.h). */
int quire_page_curve_device(quire_page_curve *out, const quire_attn_work *work, quire_error *err);

/* Measure a file in a directory, which is removed: four pieces of the largest size, each written 15
 * times. One piece at a time, as pread() and pwrite() of one thread. Errors: QUIRE_IO (err names
 * the directory), QUIRE_NOMEM, QUIRE_CANCELED (as above). */
int quire_page_curve_disk(quire_page_curve *out, const quire_attn_work *work, const char *dir,
                          quire_error *err);

/* Whether quire_page_curve_disk() can make its file in the directory. Errors: QUIRE_INVAL, QUIRE_IO
 * and the like, as of that call. */
int quire_page_curve_disk_check(const char *dir, quire_error *err);

#endif /* QUIRE_CLI_PAGE_CURVE_H */
