/* offload_medium.h - where the pages lie that leave memory: a file, or below a device's memory the
 * host's with a file behind it; and the device in front, which brings them to attention.
 *
 * The functions are those of offload_file.h and offload_stream.h, or of offload_tiers.h and
 * offload_fetch.h; for offload.c alone.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_MEDIUM_H
#define QUIRE_OFFLOAD_OFFLOAD_MEDIUM_H

#include "offload/offload.h"
#include "offload/offload_fetch.h"
#include "offload/offload_stream.h"

typedef struct quire_offload_medium {
    quire_offload_file *file; /* NULL: tiers */
    quire_offload_stream *stream;
    quire_offload_tiers *tiers;
    quire_offload_fetch *fetch;
} quire_offload_medium;

/* Errors: quire_offload_open(). Memory: quire_offload_medium_close(). */
int quire_offload_medium_open(quire_offload_medium *out, const quire_offload_opts *opts,
                              quire_error *err);
void quire_offload_medium_close(quire_offload_medium *medium);

/* The owner of the slots. */
quire_offload_ops quire_offload_medium_ops(quire_offload_medium *medium);
quire_attn_device quire_offload_medium_device(const quire_offload_medium *medium);
int quire_offload_medium_write(const quire_offload_medium *medium, const quire_page_addr *pages,
                               uint32_t n_pages, uint8_t order, uint32_t *first_slot);
int quire_offload_medium_raise(const quire_offload_medium *medium);
/* Whether the page in a slot lies in a file. */
bool quire_offload_medium_in_file(const quire_offload_medium *medium, uint32_t slot);
/* Whether the last step that could not read a page missed one in a file. */
bool quire_offload_medium_missed_file(const quire_offload_medium *medium);
/* Give a device's buffer back until a step needs it. Buffers in the host's memory stay. */
void quire_offload_medium_give(const quire_offload_medium *medium);
void quire_offload_medium_rest(const quire_offload_medium *medium);

/* Memory that a step with n_stripes stripes takes for buffers. Thread: any. */
uint64_t quire_offload_medium_bytes(const quire_offload_medium *medium, uint32_t n_stripes);
uint32_t quire_offload_medium_stripes_max(const quire_offload_medium *medium);
uint32_t quire_offload_medium_stripes_used(const quire_offload_medium *medium);

/* The place that pages go to from memory, and the file behind it. */
void quire_offload_medium_stats_get(const quire_offload_medium *medium,
                                    quire_offload_file_stats *out,
                                    quire_offload_below_stats *below);
/* The last failure of the file, or of the host's memory; empty: none. */
const char *quire_offload_medium_trouble(const quire_offload_medium *medium, bool of_file);

#endif /* QUIRE_OFFLOAD_OFFLOAD_MEDIUM_H */
