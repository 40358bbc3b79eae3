/* tile_window.h - tiles of pages for code of the host that reads or writes them one after the
 * other, wherever the pages lie.
 *
 *   run       | tile 0 | tile 1 | ... | tile i | tile i + 1 | ... | tile n - 1 |    in the pages
 *   window                            [ copies in the host's memory ]  moves on behind i
 *
 * In the host's memory a window is nothing: the code gets the tiles themselves. Of pages in the
 * memory of a device it gets copies, of at most QUIRE_TILE_WINDOW_BYTES at a time. A window to read
 * brings tiles by one copy of the device, when the first of them is asked for; a window to write
 * sends the tiles that were asked for back by one copy, before it moves on. Bytes pass the pinned
 * memory of the device on the way (device/device_pages.c).
 *
 * Two windows may be on the same tiles: a window that writes tile i, and a window that reads tile i
 * and the tiles behind. The caller reads a slot of tile i before it writes the slot.
 *
 * Failures. Windows of one move of tokens share a status. After a failed copy the code gets tiles
 * of zeros and goes on, and nothing is written any more. The caller asks for the status at the end.
 *
 * Thread: the owner of the pages' cache.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_POOL_TILE_WINDOW_H
#define QUIRE_CORE_POOL_TILE_WINDOW_H

#include <stdbool.h>

#include "quire/alloc.h"

/* Of the host's memory for a window; more where one tile of all heads is larger. */
#define QUIRE_TILE_WINDOW_BYTES ((size_t)1 << 20)
#define QUIRE_TILE_WINDOW_MAX   64u /* tiles of a head */

/* Tiles of n_heads KV heads, in order. The addresses of pages stay while a window is on them. */
typedef struct quire_tile_run {
    /* Where tile i of the first head lies. */
    unsigned char *(*at)(const void *ctx, uint32_t i);
    const void *ctx;
    size_t bytes; /* of a tile of one head */
    uint32_t n_heads;
    size_t head_stride; /* bytes from a head's tile to the next head's */
    uint32_t n;         /* tiles of a head; all that are read are there */
} quire_tile_run;

typedef struct quire_tile_window_opts {
    const quire_page_memory *memory; /* of the pages; NULL: the host's. Borrowed */
    size_t tile_bytes;               /* of a tile of all heads of a run, at most */
    bool writes;                     /* else it reads */
    int *status; /* of all windows of a move, QUIRE_OK at first: the first failure of a copy */
} quire_tile_window_opts;

typedef struct quire_tile_window {
    quire_tile_window_opts opts;
    unsigned char *room; /* [n][n_heads][bytes] */
    size_t room_bytes;
    quire_tile_run run;
    uint32_t first;                              /* tile in the room */
    uint32_t n;                                  /* tiles there */
    uint64_t asked;                              /* of these, by bits */
    unsigned char *pages[QUIRE_TILE_WINDOW_MAX]; /* where these lie */
    bool has_sent; /* bytes went to pages of a device, or a copy there failed */
} quire_tile_window;

/* Errors: QUIRE_NOMEM. Memory: quire_tile_window_end(), on errors too. */
int quire_tile_window_init(quire_tile_window *window, const quire_tile_window_opts *opts);

/* Go to another run, whose ctx may change afterwards when no tile is asked for any more. */
void quire_tile_window_put(quire_tile_window *window, const quire_tile_run *run);

/* A head's tile i of the run, i < n, until the next call with another i. In a window to write i
 * only grows in a run, and all heads are asked for before it does. What is not written of a tile
 * becomes zeros on a device. Never NULL. */
unsigned char *quire_tile_window_at(quire_tile_window *window, uint32_t i, uint32_t head);

/* Send what was written. The next tiles are those of another run, or behind it. */
void quire_tile_window_flush(quire_tile_window *window);

/* The same, and free the room. A window that was never made, all zeros, is accepted. */
void quire_tile_window_end(quire_tile_window *window);

#endif /* QUIRE_CORE_POOL_TILE_WINDOW_H */
