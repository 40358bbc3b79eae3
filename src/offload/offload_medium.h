/* offload_medium.h - where the pages lie that leave memory: a file, or the host's memory below a
 * device's; and the device in front, which brings them to attention.
 *
 * The functions are those of offload_file.h and offload_stream.h, or of offload_host.h and
 * offload_fetch.h; for offload.c alone.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_MEDIUM_H
#define QUIRE_OFFLOAD_OFFLOAD_MEDIUM_H

#include "offload/offload.h"
#include "offload/offload_fetch.h"
#include "offload/offload_stream.h"

typedef struct quire_offload_medium {
    quire_offload_file *file; /* NULL: host */
    quire_offload_stream *stream;
    quire_offload_host *host;
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
                               uint32_t n_pages, uint32_t *first_slot);
/* Whether pages lie in the host's memory, and the buffer is a device's. */
bool quire_offload_medium_is_host(const quire_offload_medium *m);
void quire_offload_medium_rest(const quire_offload_medium *medium);

/* Memory that a step with n_stripes stripes takes for buffers. Thread: any. */
uint64_t quire_offload_medium_bytes(const quire_offload_medium *medium, uint32_t n_stripes);
uint32_t quire_offload_medium_stripes_max(const quire_offload_medium *medium);
uint32_t quire_offload_medium_stripes_used(const quire_offload_medium *medium);

void quire_offload_medium_stats_get(const quire_offload_medium *medium,
                                    quire_offload_file_stats *out);
const char *quire_offload_medium_trouble(const quire_offload_medium *medium);

#endif /* QUIRE_OFFLOAD_OFFLOAD_MEDIUM_H */
