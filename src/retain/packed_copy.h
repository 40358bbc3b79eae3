/* packed_copy.h - packed pages (packed.h) in the memory of a device: their list by way of a copy in
 * the host's memory, and tiles of a lane through a window (core/pool/tile_window.h).
 *
 * Each byte of new pages is sent once: the list's parts, the lanes' tiles, and zeros for the places
 * behind these. In the host's memory lists and tiles are used where they lie.
 *
 * Thread: the thread of the pages' cache, or another thread while the cache's thread waits.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_PACKED_COPY_H
#define QUIRE_RETAIN_PACKED_COPY_H

#include "core/pool/tile_window.h"
#include "retain/packed.h"

/* memory of these functions: that of the pages; NULL: the host's, then they do nothing. */

/* Bring the list of the pages; nothing, of none. Errors: QUIRE_CORRUPT, QUIRE_NOMEM, QUIRE_LOST.
 * Memory: quire_packed_list_free(). */
int quire_packed_list_fetch(const quire_packing *p, quire_packed_pages *pages,
                            const quire_page_memory *memory);
/* A list of zeros for n_places places. Errors: QUIRE_NOMEM. Memory: as above. */
int quire_packed_list_make(const quire_packing *p, quire_packed_pages *pages, uint64_t n_places,
                           const quire_page_memory *memory);
/* Send the list of these lanes, and zeros to the places that no lane has. Errors: QUIRE_NOMEM,
 * QUIRE_LOST. */
int quire_packed_list_send(const quire_packing *p, const quire_packed_pages *pages,
                           const quire_packed_lanes *lanes, const quire_page_memory *memory);
void quire_packed_list_free(quire_packed_pages *pages);

/* Tiles of one side of a lane in order: packed ones, then those in the full pages behind them. */
typedef struct quire_packed_window {
    const quire_packing *packing; /* borrowed, as all of these */
    quire_packed_pages pages;
    const quire_page_entry *const *hot; /* leaves of hot pages; NULL: no side is sealed */
    const quire_packed_lanes *lanes;
    uint32_t lane;
    quire_side side;
    uint32_t n_tiles;
    uint32_t first, end; /* tiles that the window is on now: of one form */
    quire_tile_window window;
} quire_packed_window;

/* status: as in quire_tile_window_opts. Errors: QUIRE_NOMEM. Memory: quire_tile_window_end() of the
 * window, on errors too. */
int quire_packed_window_init(quire_packed_window *window, const quire_packing *packing,
                             const quire_page_memory *memory, bool writes, int *status);
/* Go to the first n_tiles tiles of a side of a lane. hot: of the pages' sequence, or NULL. The
 * window stays where it is until it ends. */
void quire_packed_window_put(quire_packed_window *window, const quire_packed_pages *pages,
                             const quire_page_entry *const *hot, const quire_packed_lanes *lanes,
                             uint32_t lane, quire_side side, uint32_t n_tiles);
/* As quire_tile_window_at(), to read: hot where there is a hot page. */
quire_tile_view quire_packed_window_view(quire_packed_window *window, uint32_t tile);
/* The same, to write packed tiles. */
unsigned char *quire_packed_window_at(quire_packed_window *window, uint32_t tile);

#endif /* QUIRE_RETAIN_PACKED_COPY_H */
