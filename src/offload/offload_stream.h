/* offload_stream.h - attention on pages that lie in a file: a device in front of another.
 *
 *              step
 *   plan        |   the batch's offloaded pages -> stripes; begin to read part 0 and part 1
 *   append(0)   |   part 0 is in memory now: point the pages' addresses at it
 *   run(0)      |   as ever                           disk: part 1
 *   append(1)   |   part 1 is in memory now;          disk: part 2, over the bytes of part 0
 *   run(1)      |   ...
 *   append(n)   |                                     disk: part 0, for the next step
 *
 * Layers are computed in the order of the stops (offload_stops.h). There are two buffers, each of
 * the size of one part of all offloaded pages of the batch. While attention reads one, the other is
 * filled. The bytes of a page are the same in either place, and so are results: the inner device is
 * told other addresses, and nothing else.
 *
 * Layers that share K and V. A layer that stores nothing has no append(): its parts are brought at
 * the begin of its run(). A layer may read two parts, one of them at the batch's second addresses.
 * There are as many buffers as a stop and the next one read, and a part stays in its buffer while
 * stops in a row read it. At an early exit the batch is planned again with fewer rows, behind the
 * append() of a layer: that layer's parts stay, if the pages are the same.
 *
 * Rows may choose pages (quire_offload_choice). In a step in which all rows with offloaded pages
 * do, the first n_dense parts come as above. Of the parts behind them nothing is read ahead: run()
 * says which pages it needs (offload_chosen.h), and these come into the buffer that part 1 does not
 * have. So part 1 stays there for the next step, if that chooses as well.
 *
 * A layer whose parts no stop has is QUIRE_UNSUPP by check(). Layers that read other groups alone
 * pass through.
 *
 * When a part cannot be read, the step goes on with the bytes in the buffer, and sync() returns the
 * error: append() and run() cannot fail.
 *
 * Thread: plan, sync, create and close: one. append and run: as quire_attn_device says.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_STREAM_H
#define QUIRE_OFFLOAD_OFFLOAD_STREAM_H

#include "offload/offload.h"

typedef struct quire_offload_stream quire_offload_stream;

/* A stream for steps that go to opts->inner, of pages of opts->group of the cache, which lie in the
 * file. The cache and the file are borrowed. Errors: QUIRE_NOMEM. Memory:
 * quire_offload_stream_close(), before the file is closed. */
int quire_offload_stream_open(quire_offload_stream **out, const quire_offload_opts *opts,
                              quire_offload_file *file);
void quire_offload_stream_close(quire_offload_stream *stream);

/* The device in front; valid as long as the stream. */
quire_attn_device quire_offload_stream_device(quire_offload_stream *stream);

/* As quire_offload_page_kept() and quire_offload_pages_need(). */
const void *quire_offload_stream_kept(const quire_offload_stream *stream, quire_page_id page);
void quire_offload_stream_need(quire_offload_stream *stream, const quire_page_id *pages,
                               uint32_t n);

/* Memory that a step with n_stripes stripes of offloaded pages takes for the buffers, and for the
 * parts of these stripes that stay in memory. Thread: any. */
uint64_t quire_offload_stream_bytes(const quire_offload_stream *stream, uint32_t n_stripes);

/* Give back the buffers' memory until a step needs it again: the owner is idle. */
void quire_offload_stream_rest(quire_offload_stream *stream);

#endif /* QUIRE_OFFLOAD_OFFLOAD_STREAM_H */
