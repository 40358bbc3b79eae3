/* packed_bounds.c - bounds of full tiles: made in their pages, and read where a row chooses. On a
 * device keys and bounds pass the host's memory, and a text that chooses keeps the bounds of its
 * pages there. See packed_device.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/packed_device_internal.h"

#include "base/check.h"

#include <stdlib.h>

#define TILE          QUIRE_TILE_TOKENS
#define TILES_AT_ONCE 8u /* that pass the host's memory in one copy */

/* ---- memory ---- */

/* Of a tile of K, also of one in 8 bits. */
static size_t key_bytes(const quire_packing *p)
{
    const size_t hot = quire_packing_is_sealed(p)
                           ? quire_tile_bytes(QUIRE_FORMAT_HOT, QUIRE_SIDE_K, p->layers[0].d_k)
                           : 0;

    return hot > p->k_bytes ? hot : p->k_bytes;
}

uint64_t quire_packed_bounder_bytes(const quire_packing *p, uint32_t n_entries_max, bool has_queue)
{
    const uint64_t rows = (uint64_t)TILE * p->layers[0].d_k * sizeof(float);
    const uint64_t copies = has_queue ? TILES_AT_ONCE * (key_bytes(p) + p->bounds_bytes) : 0;

    return p->bounds_bytes == 0
               ? 0
               : n_entries_max * (sizeof(quire_page_rank) + sizeof(quire_page_id)) + rows + copies;
}

int quire_packed_bounder_init(quire_packed_worker *w, const quire_packing *p,
                              uint32_t n_entries_max, bool has_queue)
{
    if (p->bounds_bytes == 0) {
        return QUIRE_OK;
    }
    w->ranks = calloc(n_entries_max, sizeof *w->ranks);
    w->chosen = calloc(n_entries_max, sizeof *w->chosen);
    w->tile = malloc((size_t)TILE * p->layers[0].d_k * sizeof *w->tile);
    QUIRE_FAIL_IF(w->ranks == NULL || w->chosen == NULL || w->tile == NULL, QUIRE_NOMEM);
    if (has_queue) {
        /* Sizes of tiles and of bounds are multiples of 64. */
        w->keys = aligned_alloc(64, TILES_AT_ONCE * key_bytes(p));
        w->bounds = aligned_alloc(64, TILES_AT_ONCE * p->bounds_bytes);
        QUIRE_FAIL_IF(w->keys == NULL || w->bounds == NULL, QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

void quire_packed_bounder_fini(quire_packed_worker *w)
{
    free(w->bounds);
    free(w->keys);
    free(w->tile);
    free(w->chosen);
    free(w->ranks);
}

/* ---- bounds of a tile ---- */

static const quire_page_addr *addr_of(const quire_packed_device *d, const quire_attn_seq *seq,
                                      uint32_t tile)
{
    const uint32_t entry = tile / (d->packing.page_tokens / TILE);

    return &d->batch.page_addr[quire_packed_entry(seq, entry)->page];
}

/* K of a full tile: of a sealed format as the tokens came, in 8 bits. */
static quire_tile_view key_of(const quire_packed_device *d, const quire_attn_seq *seq,
                              uint32_t lane, uint32_t tile)
{
    const uint32_t tiles = d->packing.page_tokens / TILE;

    return quire_full_view(&d->packing, addr_of(d, seq, tile),
                           quire_packed_hot_of(d, seq, tile / tiles), lane, tile % tiles,
                           QUIRE_SIDE_K);
}

static uint16_t *bounds_of(const quire_packed_device *d, const quire_attn_seq *seq, uint32_t lane,
                           uint32_t tile)
{
    return quire_full_bounds(&d->packing, addr_of(d, seq, tile), lane,
                             tile % (d->packing.page_tokens / TILE));
}

static void make(const quire_packed_device *d, const quire_packed_worker *w,
                 const quire_tile_view *key, uint16_t *bounds)
{
    const uint32_t d_k = d->packing.layers[0].d_k;
    const quire_tile_rows rows = { .d = d_k, .n_tokens = TILE, .stride = d_k };

    quire_codec_get()->decode_k(key->format, &rows, key->tile, w->tile);
    for (uint32_t i = 0; i < TILE; i++) {
        quire_page_bounds_add(bounds, d_k, w->tile + (size_t)i * d_k, i == 0);
    }
}

/* ---- on a device ---- */

/* One thread at a time calls the device. */
static int copy(quire_packed_device *d, quire_page_copy kind, const quire_page_piece *pieces,
                uint32_t n)
{
    const quire_page_memory *memory = &d->queue->memory;
    int rc;

    (void)pthread_mutex_lock(&d->queue->lock);
    rc = memory->copy(memory->ctx, kind, pieces, n);
    (void)pthread_mutex_unlock(&d->queue->lock);
    return rc;
}

/* Tiles [first, first + n) of a lane, n <= TILES_AT_ONCE. */
static int bound_copies(quire_packed_device *d, quire_packed_worker *w, const quire_attn_seq *seq,
                        uint32_t lane, uint32_t first, uint32_t n)
{
    const size_t d_k = d->packing.layers[0].d_k, each = d->packing.bounds_bytes;
    quire_page_piece keys[TILES_AT_ONCE], bounds[TILES_AT_ONCE];
    quire_tile_view views[TILES_AT_ONCE];

    for (uint32_t i = 0; i < n; i++) {
        views[i] = key_of(d, seq, lane, first + i);
        keys[i].from = views[i].tile;
        keys[i].to = w->keys + i * key_bytes(&d->packing);
        keys[i].bytes = quire_tile_bytes(views[i].format, QUIRE_SIDE_K, (uint32_t)d_k);
        views[i].tile = keys[i].to;
        bounds[i].from = w->bounds + i * each;
        bounds[i].to = (unsigned char *)bounds_of(d, seq, lane, first + i);
        bounds[i].bytes = each;
    }
    QUIRE_TRY(copy(d, QUIRE_PAGE_COPY_OUT, keys, n));
    for (uint32_t i = 0; i < n; i++) {
        make(d, w, &views[i], (uint16_t *)(void *)(w->bounds + i * each));
    }
    return copy(d, QUIRE_PAGE_COPY_IN, bounds, n);
}

static void bound_on_device(quire_packed_device *d, quire_packed_worker *w,
                            const quire_attn_seq *seq, uint32_t lane)
{
    const uint32_t end = seq->n_tokens / TILE;
    int rc = atomic_load_explicit(&d->status, memory_order_relaxed);
    uint32_t n;

    for (uint32_t t = (seq->n_tokens - seq->n_rows) / TILE; rc == QUIRE_OK && t < end; t += n) {
        n = end - t < TILES_AT_ONCE ? end - t : TILES_AT_ONCE;
        rc = bound_copies(d, w, seq, lane, t, n);
        if (rc < 0) {
            atomic_store_explicit(&d->status, rc, memory_order_relaxed);
        }
    }
}

void quire_packed_bound(quire_packed_device *d, quire_packed_worker *w, const quire_attn_seq *seq,
                        uint32_t lane)
{
    if (d->packing.bounds_bytes == 0) {
        return;
    }
    if (d->queue != NULL) {
        bound_on_device(d, w, seq, lane);
        return;
    }
    for (uint32_t t = (seq->n_tokens - seq->n_rows) / TILE; t < seq->n_tokens / TILE; t++) {
        const quire_tile_view key = key_of(d, seq, lane, t);

        make(d, w, &key, bounds_of(d, seq, lane, t));
    }
}

/* ---- bounds that a row reads ---- */

/* Bytes of the bounds of all lanes of a layer in a page. */
static size_t block_bytes(const quire_packing *p)
{
    return quire_packing_part_places(p) * p->bounds_bytes;
}

static uint32_t n_pages_of(const quire_packed_text_opts *o)
{
    return o->n_mirrored / o->packing->page_tokens;
}

uint64_t quire_packed_mirror_bytes(const quire_packed_text_opts *o)
{
    return (uint64_t)o->packing->n_layers *
           (o->n_mirrored > 0 ? sizeof(uint32_t) + n_pages_of(o) * block_bytes(o->packing) : 0);
}

int quire_packed_mirror_init(quire_packed_mirror *mirror, const quire_packed_text_opts *o)
{
    const quire_packing *p = o->packing;

    *mirror = (quire_packed_mirror){ .n_pages_max = n_pages_of(o) };
    if (o->n_mirrored == 0) {
        return QUIRE_OK;
    }
    mirror->n_known = calloc(p->n_layers, sizeof *mirror->n_known);
    mirror->bounds = malloc(p->n_layers * (size_t)mirror->n_pages_max * block_bytes(p) + 1);
    return mirror->n_known != NULL && mirror->bounds != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

void quire_packed_mirror_fini(quire_packed_mirror *mirror)
{
    free(mirror->bounds);
    free(mirror->n_known);
}

static unsigned char *mirror_at(const quire_packed_device *d, const quire_packed_mirror *mirror,
                                uint32_t layer, uint32_t page)
{
    return mirror->bounds + ((size_t)layer * mirror->n_pages_max + page) * block_bytes(&d->packing);
}

int quire_packed_mirror_fetch(quire_packed_device *d, const quire_attn_seq *seq, uint32_t l)
{
    const quire_page_memory *memory = &d->queue->memory;
    quire_packed_mirror *mirror = &quire_packed_text_of(seq)->mirror;
    const uint32_t n_full = seq->n_tokens / d->packing.page_tokens;
    const uint32_t n_before = (seq->n_tokens - seq->n_rows) / d->packing.page_tokens;
    quire_page_piece pieces[QUIRE_PAGE_PIECES];
    uint32_t n = 0;

    QUIRE_CHECK(n_full <= mirror->n_pages_max);
    if (mirror->n_known[l] > n_before) {
        mirror->n_known[l] = n_before; /* the step failed before, and its rows came again */
    }
    for (uint32_t i = mirror->n_known[l]; i < n_full; i++) {
        const uint32_t tiles = d->packing.page_tokens / TILE;

        pieces[n].from =
            (const unsigned char *)bounds_of(d, seq, l * d->packing.n_kv_head, i * tiles);
        pieces[n].to = mirror_at(d, mirror, l, i);
        pieces[n++].bytes = block_bytes(&d->packing);
        if (n == QUIRE_PAGE_PIECES || i + 1 == n_full) {
            QUIRE_TRY(memory->copy(memory->ctx, QUIRE_PAGE_COPY_OUT, pieces, n));
            n = 0;
        }
    }
    mirror->n_known[l] = n_full;
    return QUIRE_OK;
}

const uint16_t *quire_packed_bounds_at(const quire_packed_device *d, const quire_attn_seq *seq,
                                       uint32_t lane, uint32_t tile)
{
    const uint32_t tiles = d->packing.page_tokens / TILE, layer = lane / d->packing.n_kv_head;
    const quire_packed_mirror *mirror = &quire_packed_text_of(seq)->mirror;
    const void *block = NULL;

    if (d->queue != NULL) {
        /* A page that is not full is always read, so its bounds are never looked at. */
        const uint32_t page = tile / tiles < mirror->n_known[layer] ? tile / tiles : 0;

        block = mirror_at(d, mirror, layer, page);
    } else if (d->elsewhere.bounds != NULL) {
        block = d->elsewhere.bounds(d->elsewhere.ctx, quire_packed_entry(seq, tile / tiles)->page);
    }
    if (block == NULL) {
        return bounds_of(d, seq, lane, tile);
    }
    return (const uint16_t *)(const void *)((const char *)block +
                                            (lane % d->packing.n_kv_head * tiles + tile % tiles) *
                                                d->packing.bounds_bytes);
}
