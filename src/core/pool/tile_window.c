/* tile_window.c - see tile_window.h.
 *
 * SPDX-License-Identifier: MIT */
#include "core/pool/tile_window.h"

#include "base/check.h"

#include <string.h>

int quire_tile_window_init(quire_tile_window *w, const quire_tile_window_opts *opts)
{
    *w = (quire_tile_window){ .opts = *opts };
    if (opts->memory == NULL) {
        return QUIRE_OK;
    }
    w->room_bytes =
        opts->tile_bytes > QUIRE_TILE_WINDOW_BYTES ? opts->tile_bytes : QUIRE_TILE_WINDOW_BYTES;
    w->room = quire_allocator_default()->alloc(NULL, w->room_bytes);
    return w->room != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

static size_t stride_of(const quire_tile_window *w)
{
    return w->run.n_heads * w->run.bytes;
}

/* Copies on their way to one call of the device. */
typedef struct queue {
    const quire_tile_window_opts *opts;
    quire_page_piece pieces[QUIRE_PAGE_PIECES];
    uint32_t n;
} queue;

static int queue_flush(queue *q)
{
    const quire_page_memory *memory = q->opts->memory;
    const quire_page_copy kind = q->opts->writes ? QUIRE_PAGE_COPY_IN : QUIRE_PAGE_COPY_OUT;
    const uint32_t n = q->n;

    q->n = 0;
    return n > 0 ? memory->copy(memory->ctx, kind, q->pieces, n) : QUIRE_OK;
}

/* Bytes between the room and a page. */
static int queue_add(queue *q, unsigned char *page, unsigned char *room, size_t bytes)
{
    q->pieces[q->n++] = (quire_page_piece){ .to = q->opts->writes ? page : room,
                                            .from = q->opts->writes ? room : page,
                                            .bytes = bytes };
    return q->n == QUIRE_PAGE_PIECES ? queue_flush(q) : QUIRE_OK;
}

/* Copy the tiles of the room whose bits are set. */
static int copy(const quire_tile_window *w, uint64_t tiles)
{
    const quire_tile_run *run = &w->run;
    const bool is_dense = run->n_heads == 1 || run->head_stride == run->bytes;
    const uint32_t n_pieces = is_dense ? 1 : run->n_heads;
    const size_t bytes = is_dense ? stride_of(w) : run->bytes;
    queue q = { .opts = &w->opts, .n = 0 };

    for (uint32_t i = 0; i < w->n; i++) {
        for (uint32_t h = 0; (tiles >> i & 1) != 0 && h < n_pieces; h++) {
            QUIRE_TRY(queue_add(&q, w->pages[i] + h * run->head_stride,
                                w->room + i * stride_of(w) + h * run->bytes, bytes));
        }
    }
    return queue_flush(&q);
}

void quire_tile_window_flush(quire_tile_window *w)
{
    if (w->opts.writes && w->asked != 0 && *w->opts.status == QUIRE_OK) {
        w->has_sent = true;
        *w->opts.status = copy(w, w->asked);
    }
    w->asked = 0;
    w->n = 0;
}

void quire_tile_window_put(quire_tile_window *w, const quire_tile_run *run)
{
    quire_tile_window_flush(w);
    w->run = *run;
    w->first = 0;
    QUIRE_CHECK(w->opts.memory == NULL || stride_of(w) <= w->room_bytes);
}

/* Tiles from i on come to the room. */
static void move(quire_tile_window *w, uint32_t i)
{
    const uint32_t n_left = w->run.n - i;
    const size_t n_room = w->room_bytes / stride_of(w);
    uint32_t n = n_left < QUIRE_TILE_WINDOW_MAX ? n_left : QUIRE_TILE_WINDOW_MAX;

    quire_tile_window_flush(w);
    n = n < n_room ? n : (uint32_t)n_room;
    w->first = i;
    w->n = n;
    for (uint32_t t = 0; t < n; t++) {
        w->pages[t] = w->run.at(w->run.ctx, i + t);
    }
    memset(w->room, 0, n * stride_of(w));
    if (!w->opts.writes && *w->opts.status == QUIRE_OK) {
        *w->opts.status = copy(w, UINT64_MAX);
        if (*w->opts.status < 0) {
            memset(w->room, 0, n * stride_of(w));
        }
    }
}

unsigned char *quire_tile_window_at(quire_tile_window *w, uint32_t i, uint32_t head)
{
    QUIRE_ASSERT(i < w->run.n && head < w->run.n_heads);
    if (w->opts.memory == NULL) {
        return w->run.at(w->run.ctx, i) + head * w->run.head_stride;
    }
    if (i < w->first || i - w->first >= w->n) {
        QUIRE_CHECK(!w->opts.writes || i >= w->first);
        move(w, i);
    }
    w->asked |= UINT64_C(1) << (i - w->first);
    return w->room + (i - w->first) * stride_of(w) + head * w->run.bytes;
}

void quire_tile_window_end(quire_tile_window *w)
{
    if (w->room != NULL) {
        quire_tile_window_flush(w);
    }
    quire_allocator_default()->free(NULL, w->room);
    *w = (quire_tile_window){ .has_sent = w->has_sent };
}
