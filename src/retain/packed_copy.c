/* packed_copy.c - see packed_copy.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/packed_copy.h"

#include "base/check.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

#define TILE       QUIRE_TILE_TOKENS
#define WORD_BYTES sizeof(uint32_t)

/* ---- the list ---- */

/* Copies that wait for one call of the device. */
typedef struct queue {
    const quire_page_memory *memory;
    quire_page_copy kind;
    quire_page_piece pieces[QUIRE_PAGE_PIECES];
    uint32_t n;
} queue;

static int queue_flush(queue *q)
{
    const uint32_t n = q->n;

    q->n = 0;
    return n > 0 ? q->memory->copy(q->memory->ctx, q->kind, q->pieces, n) : QUIRE_OK;
}

/* Bytes of a page, to the host or from there. */
static int queue_add(queue *q, unsigned char *page, unsigned char *host, size_t n_bytes)
{
    const bool is_out = q->kind == QUIRE_PAGE_COPY_OUT;

    q->pieces[q->n++] = (quire_page_piece){ .to = is_out ? host : page,
                                            .from = is_out ? page : host,
                                            .bytes = n_bytes };
    return q->n == QUIRE_PAGE_PIECES ? queue_flush(q) : QUIRE_OK;
}

/* Parts [first, end) of the list. */
static int list_copy(const quire_packing *p, const quire_packed_pages *pages, queue *q,
                     uint32_t first, uint32_t end)
{
    const size_t part_bytes = quire_packing_part_bytes(p);

    for (uint32_t i = first; i < end; i++) {
        QUIRE_TRY(
            queue_add(q, quire_packed_part(p, pages, i), pages->list + i * part_bytes, part_bytes));
    }
    return queue_flush(q);
}

static int list_grow(const quire_packing *p, quire_packed_pages *pages, uint64_t n_parts)
{
    unsigned char *list = realloc(pages->list, n_parts * quire_packing_part_bytes(p));

    QUIRE_FAIL_IF(list == NULL, QUIRE_NOMEM);
    pages->list = list;
    return QUIRE_OK;
}

/* Places that the head of the list names; UINT64_MAX: more than the pages can have. */
static uint64_t n_places_of(const quire_packing *p, const quire_packed_pages *pages)
{
    const uint32_t n_lanes = quire_packing_n_lanes(p);
    const uint64_t n_max = (uint64_t)pages->n * p->n_layers * quire_packing_part_places(p);
    uint64_t n = 0;

    for (uint32_t i = 0; i < n_lanes; i++) {
        uint32_t word;

        memcpy(&word, pages->list + (1 + i) * WORD_BYTES, sizeof word);
        n += word;
    }
    return n <= n_max ? n : UINT64_MAX;
}

int quire_packed_list_fetch(const quire_packing *p, quire_packed_pages *pages,
                            const quire_page_memory *memory)
{
    const uint64_t n_pages_parts = (uint64_t)pages->n * p->n_layers;
    const uint64_t n_head = quire_packing_list_parts(p, 0);
    queue q = { .memory = memory, .kind = QUIRE_PAGE_COPY_OUT };
    uint64_t n_places, n_parts;

    if (memory == NULL || pages->n == 0) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(n_head > n_pages_parts, QUIRE_CORRUPT);
    QUIRE_TRY(list_grow(p, pages, n_head));
    QUIRE_TRY(list_copy(p, pages, &q, 0, (uint32_t)n_head));
    n_places = n_places_of(p, pages);
    QUIRE_FAIL_IF(n_places == UINT64_MAX, QUIRE_CORRUPT);
    n_parts = quire_packing_list_parts(p, n_places);
    QUIRE_FAIL_IF(n_parts > n_pages_parts, QUIRE_CORRUPT);
    QUIRE_TRY(list_grow(p, pages, n_parts));
    return list_copy(p, pages, &q, (uint32_t)n_head, (uint32_t)n_parts);
}

int quire_packed_list_make(const quire_packing *p, quire_packed_pages *pages, uint64_t n_places,
                           const quire_page_memory *memory)
{
    const uint64_t n_parts = quire_packing_list_parts(p, n_places);

    if (memory == NULL) {
        return QUIRE_OK;
    }
    pages->list = calloc(n_parts, quire_packing_part_bytes(p));
    return pages->list != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

/* Zeros to the bounds of all parts. */
static int bounds_clear(const quire_packing *p, const quire_packed_pages *pages, queue *q,
                        unsigned char *zeros)
{
    const size_t n_bytes = quire_packing_part_places(p) * p->bounds_bytes;

    for (uint32_t i = 0; n_bytes > 0 && i < pages->n * p->n_layers; i++) {
        QUIRE_TRY(queue_add(q, quire_packed_part(p, pages, i) + quire_packing_part_bytes(p), zeros,
                            n_bytes));
    }
    return QUIRE_OK;
}

/* Zeros to the places of a part from `first` on: K, and V behind it. */
static int part_clear(const quire_packing *p, queue *q, unsigned char *part, uint32_t first,
                      unsigned char *zeros)
{
    const uint32_t n = quire_packing_part_places(p) - first;

    QUIRE_TRY(queue_add(q, part + first * p->k_bytes, zeros, n * p->k_bytes));
    return queue_add(q, part + quire_packing_v_offset(p) + first * p->v_bytes, zeros,
                     n * p->v_bytes);
}

static int rest_clear(const quire_packing *p, const quire_packed_pages *pages,
                      const quire_packed_lanes *lanes, queue *q)
{
    const uint32_t n_places = lanes->first[quire_packing_n_lanes(p)];
    const uint32_t each = quire_packing_part_places(p);
    unsigned char *zeros = calloc(1, quire_packing_part_bytes(p) + each * p->bounds_bytes);
    int rc = zeros != NULL ? bounds_clear(p, pages, q, zeros) : QUIRE_NOMEM;

    for (uint32_t i = lanes->n_list_parts + n_places / each;
         rc == QUIRE_OK && i < pages->n * p->n_layers; i++) {
        const uint32_t first = (i - lanes->n_list_parts) * each;

        rc = part_clear(p, q, quire_packed_part(p, pages, i),
                        n_places > first ? n_places - first : 0, zeros);
    }
    rc = rc == QUIRE_OK ? queue_flush(q) : rc;
    free(zeros);
    return rc;
}

int quire_packed_list_send(const quire_packing *p, const quire_packed_pages *pages,
                           const quire_packed_lanes *lanes, const quire_page_memory *memory)
{
    queue q = { .memory = memory, .kind = QUIRE_PAGE_COPY_IN };

    if (memory == NULL) {
        return QUIRE_OK;
    }
    QUIRE_TRY(list_copy(p, pages, &q, 0, lanes->n_list_parts));
    return rest_clear(p, pages, lanes, &q);
}

void quire_packed_list_free(quire_packed_pages *pages)
{
    free(pages->list);
    pages->list = NULL;
}

/* ---- tiles ---- */

/* Tiles of the lane that are packed. */
static uint32_t n_packed_of(const quire_packed_window *w)
{
    return w->lanes->first[w->lane + 1] - w->lanes->first[w->lane];
}

static const quire_page_addr *addr_of(const quire_packed_window *w,
                                      const quire_page_entry *const *leaves, uint32_t i)
{
    const quire_page_id id = leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES].page;

    return id != QUIRE_PAGE_NULL ? &w->pages.addrs[id] : NULL;
}

/* Where a tile lies, and its form. */
static quire_tile_view place_of(const quire_packed_window *w, uint32_t i)
{
    const quire_packing *p = w->packing;
    const uint32_t n_packed = n_packed_of(w), tiles = p->page_tokens / TILE;
    uint32_t entry;

    if (i < n_packed) {
        return (quire_tile_view){ quire_packing_store(p, w->lane, w->side)->format,
                                  quire_packed_tile(p, &w->pages, w->lanes,
                                                    w->lanes->first[w->lane] + i, w->side) };
    }
    i -= n_packed;
    entry = w->lanes->n_pages + i / tiles;
    return quire_full_view(p, addr_of(w, w->pages.leaves, entry),
                           w->hot != NULL ? addr_of(w, w->hot, entry) : NULL, w->lane, i % tiles,
                           w->side);
}

/* A quire_tile_run.at. */
static unsigned char *tile_at(const void *ctx, uint32_t i)
{
    return (unsigned char *)(uintptr_t)place_of(ctx, i).tile;
}

/* The most bytes of a tile, also of one in 8 bits. */
static size_t tile_bytes_max(const quire_packing *p)
{
    const quire_attn_layer *layer = &p->layers[0];
    size_t max = p->k_bytes > p->v_bytes ? p->k_bytes : p->v_bytes;

    if (quire_packing_is_sealed(p)) {
        max = quire_max_u64(max, quire_tile_bytes(QUIRE_FORMAT_HOT, QUIRE_SIDE_K, layer->d_k));
        max = quire_max_u64(max, quire_tile_bytes(QUIRE_FORMAT_HOT, QUIRE_SIDE_V, layer->d_v));
    }
    return max;
}

int quire_packed_window_init(quire_packed_window *window, const quire_packing *packing,
                             const quire_page_memory *memory, bool writes, int *status)
{
    const quire_tile_window_opts opts = {
        .memory = memory,
        .tile_bytes = tile_bytes_max(packing),
        .writes = writes,
        .status = status,
    };

    *window = (quire_packed_window){ .packing = packing };
    return quire_tile_window_init(&window->window, &opts);
}

void quire_packed_window_put(quire_packed_window *w, const quire_packed_pages *pages,
                             const quire_page_entry *const *hot, const quire_packed_lanes *lanes,
                             uint32_t lane, quire_side side, uint32_t n_tiles)
{
    quire_tile_window_flush(&w->window);
    w->pages = *pages;
    w->hot = hot;
    w->lanes = lanes;
    w->lane = lane;
    w->side = side;
    w->n_tiles = n_tiles;
    w->first = w->end = 0;
}

/* Go to tile i and those of its form behind it. */
static void form_begin(quire_packed_window *w, uint32_t i)
{
    const quire_attn_layer *layer = &w->packing->layers[0];
    const quire_format format = place_of(w, i).format;
    quire_tile_run run = { .at = tile_at,
                           .ctx = w,
                           .bytes = quire_tile_bytes(
                               format, w->side, w->side == QUIRE_SIDE_K ? layer->d_k : layer->d_v),
                           .n_heads = 1 };

    w->first = i;
    w->end = i + 1;
    while (w->end < w->n_tiles && place_of(w, w->end).format == format) {
        w->end++;
    }
    run.n = w->end;
    quire_tile_window_put(&w->window, &run);
}

unsigned char *quire_packed_window_at(quire_packed_window *w, uint32_t tile)
{
    QUIRE_CHECK(tile < w->n_tiles);
    if (tile < w->first || tile >= w->end) {
        form_begin(w, tile);
    }
    return quire_tile_window_at(&w->window, tile, 0);
}

quire_tile_view quire_packed_window_view(quire_packed_window *w, uint32_t tile)
{
    quire_tile_view view = place_of(w, tile);

    view.tile = quire_packed_window_at(w, tile);
    return view;
}
