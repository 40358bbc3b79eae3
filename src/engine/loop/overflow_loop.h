/* overflow_loop.h - the loop's calls to the places for pages of requests that are larger than the
 * budget: see engine/overflow.h. Without such a place, all functions do nothing and return false or
 * 0.
 *
 * Thread: the engine's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_OVERFLOW_LOOP_H
#define QUIRE_ENGINE_OVERFLOW_LOOP_H

#include "engine/loop/request.h"

/* Open the file and put its stream before the runtime's device. Errors: quire_offload_open(). */
int quire_overflow_create(quire_loop *loop, quire_error *err);
/* After the tree was destroyed. */
void quire_overflow_destroy(quire_loop *loop);

/* The most bytes of KV that a request may have in the dynamic region, and in the file unless it
 * drops tokens, for the region's budget of these bytes. Thread: any. */
uint64_t quire_overflow_bytes_max(const quire_loop *loop, uint64_t budget_bytes, bool drops);

/* A request that drops tokens has begun with cached pages: its tokens in front of the first page
 * outside of memory. UINT32_MAX: there is none, or the request drops no tokens. */
uint32_t quire_overflow_memory_tokens(const quire_loop *loop, const quire_request *request);

/* A lower bound of the bytes of this memory that a step takes which ends a text of n tokens, n >=
 * 1: windows and states stay there. 0: no pages move. Thread: any. */
uint64_t quire_overflow_memory_min(const quire_loop *loop, uint64_t budget_bytes,
                                   uint32_t n_tokens);

/* The bytes of memory that a request takes beyond its first n_have tokens, if it would take `bytes`
 * more with all of its pages in memory. */
uint64_t quire_overflow_ahead(const quire_loop *loop, const quire_request *request,
                              uint64_t need_bytes, uint64_t bytes);

/* Which of the pages that the last step has read go on from the host's memory to the file first:
 * those of a lower order. Requests of pinned classes follow all others. */
uint8_t quire_overflow_order(const quire_loop *loop, const quire_request *request);

/* A step found no pages: whether a large request has given some up. */
bool quire_overflow_relieve(quire_loop *loop);
/* A page that comes from below for a request finds no room: whether the sequence that pages are
 * written to has given some up. */
bool quire_overflow_fetch_room(quire_loop *loop, const quire_request *request, quire_seq_id seq);
/* A request was admitted for the first time. */
void quire_overflow_admitted(quire_loop *loop, const quire_request *request);
/* A request waits for room: whether a large request has given up pages. */
bool quire_overflow_yield(quire_loop *loop);
/* Before a step of n items of loop->step: whether it attends pages where they lie. */
void quire_overflow_step_begin(quire_loop *loop, uint32_t n_items);
/* Behind it, before its items advance: requests whose tokens have another rounding from here on are
 * marked. is_done: it has succeeded. */
void quire_overflow_step_end(quire_loop *loop, uint32_t n_items, bool is_done);

/* A step failed with this status: whether the cause is an offloaded page. The requests that stream
 * have been queued again, to be computed. */
bool quire_overflow_lost(quire_loop *loop, int status);

/* A request that was alone and short of pages is computed again from its begin: let its pages leave
 * the file. Where requests gave up few pages at a time, stripes are thinly filled, and their
 * buffers take more memory than full ones. */
void quire_overflow_clear(quire_loop *loop);

/* The last failure of the file, or of the host's memory below a device's; empty: none. */
const char *quire_overflow_trouble(const quire_loop *loop, bool of_file);
/* Whether the last attempt to make room failed because the file could not be written, rather than
 * because it is full. */
bool quire_overflow_has_failed(const quire_loop *loop);

/* After a round: pages may come back. While nothing runs (is_idle), memory is given back. */
void quire_overflow_upkeep(quire_loop *loop, bool is_idle);
void quire_overflow_stats_fill(quire_loop *loop);

#endif /* QUIRE_ENGINE_OVERFLOW_LOOP_H */
