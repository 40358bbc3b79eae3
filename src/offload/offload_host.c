/* offload_host.c - see offload_host.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_host.h"

#include "base/check.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct host_part {
    size_t page_bytes;
    size_t mem_offset;    /* of the part in an extent */
    size_t stripe_offset; /* of the part in a stripe */
} host_part;

struct quire_offload_host {
    quire_page_memory memory;
    uint32_t n_parts;
    host_part *parts; /* [n_parts] */
    size_t page_bytes;
    size_t stripe_bytes;
    uint32_t block_stripes;
    uint32_t n_blocks;
    unsigned char **blocks; /* [n_blocks]; NULL: not pinned */
    uint32_t *block_used;   /* [n_blocks]: stripes in use */
    uint32_t stripes_max;
    atomic_uint stripes_used; /* the owner counts, any thread reads */
    uint32_t stripe_hint;     /* no free stripe lies below */
    uint8_t *slots_used;      /* [stripes_max]: a bit by slot; 0: free */
    quire_offload_file_stats stats;
    char trouble[160];
};

/* ---- opening ---- */

static int parts_init(quire_offload_host *h, const quire_offload_file_opts *o)
{
    h->n_parts = o->n_parts;
    h->parts = calloc(o->n_parts, sizeof *h->parts);
    QUIRE_FAIL_IF(h->parts == NULL, QUIRE_NOMEM);
    for (uint32_t p = 0; p < o->n_parts; p++) {
        const size_t bytes = o->part_bytes[p];

        h->parts[p] = (host_part){ .page_bytes = bytes,
                                   .mem_offset = o->extent_pages * h->page_bytes,
                                   .stripe_offset = QUIRE_OFFLOAD_STRIPE * h->page_bytes };
        h->page_bytes += bytes;
    }
    h->stripe_bytes = QUIRE_OFFLOAD_STRIPE * h->page_bytes;
    return QUIRE_OK;
}

static int stripes_init(quire_offload_host *h, const quire_offload_file_opts *o, quire_error *err)
{
    const uint64_t n = o->capacity_bytes / h->stripe_bytes;
    const uint64_t n_most = UINT32_MAX / QUIRE_OFFLOAD_STRIPE;

    if (n == 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "offloaded pages: %llu bytes of the host's memory have no room for "
                               "%u pages (%llu bytes)",
                               (unsigned long long)o->capacity_bytes, QUIRE_OFFLOAD_STRIPE,
                               (unsigned long long)h->stripe_bytes);
    }
    h->stripes_max = (uint32_t)(n < n_most ? n : n_most);
    h->block_stripes = (uint32_t)(QUIRE_OFFLOAD_BLOCK_BYTES / h->stripe_bytes);
    h->block_stripes = h->block_stripes > 0 ? h->block_stripes : 1;
    h->block_stripes = h->block_stripes < h->stripes_max ? h->block_stripes : h->stripes_max;
    h->n_blocks = (h->stripes_max + h->block_stripes - 1) / h->block_stripes;
    h->blocks = calloc(h->n_blocks, sizeof *h->blocks);
    h->block_used = calloc(h->n_blocks, sizeof *h->block_used);
    h->slots_used = calloc(h->stripes_max, sizeof *h->slots_used);
    if (h->blocks == NULL || h->block_used == NULL || h->slots_used == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for offloaded pages");
    }
    return QUIRE_OK;
}

int quire_offload_host_open(quire_offload_host **out, const quire_page_memory *memory,
                            const quire_offload_file_opts *opts, quire_error *err)
{
    quire_offload_host *h = calloc(1, sizeof *h);
    int rc;

    *out = NULL;
    if (h == NULL || parts_init(h, opts) < 0) {
        quire_offload_host_close(h);
        return quire_error_set(err, QUIRE_NOMEM, "no memory for offloaded pages");
    }
    h->memory = *memory;
    rc = stripes_init(h, opts, err);
    if (rc < 0) {
        quire_offload_host_close(h);
        return rc;
    }
    *out = h;
    return QUIRE_OK;
}

/* The last block ends with the last stripe. */
static size_t block_bytes(const quire_offload_host *h, uint32_t block)
{
    const uint32_t left = h->stripes_max - block * h->block_stripes;

    return (left < h->block_stripes ? left : h->block_stripes) * h->stripe_bytes;
}

static void block_unpin(quire_offload_host *h, uint32_t block)
{
    if (h->blocks[block] != NULL) {
        h->memory.unpin(h->memory.ctx, h->blocks[block], block_bytes(h, block));
        h->blocks[block] = NULL;
    }
}

void quire_offload_host_close(quire_offload_host *h)
{
    if (h == NULL) {
        return;
    }
    for (uint32_t i = 0; h->blocks != NULL && i < h->n_blocks; i++) {
        block_unpin(h, i);
    }
    free(h->slots_used);
    free(h->block_used);
    free(h->blocks);
    free(h->parts);
    free(h);
}

/* ---- slots ---- */

unsigned char *quire_offload_host_stripe(const quire_offload_host *h, uint32_t stripe)
{
    return h->blocks[stripe / h->block_stripes] + stripe % h->block_stripes * h->stripe_bytes;
}

static unsigned char *at(const quire_offload_host *h, uint32_t slot, uint32_t part)
{
    const host_part *p = &h->parts[part];

    return quire_offload_host_stripe(h, slot / QUIRE_OFFLOAD_STRIPE) + p->stripe_offset +
           slot % QUIRE_OFFLOAD_STRIPE * p->page_bytes;
}

const unsigned char *quire_offload_host_at(const quire_offload_host *h, uint32_t slot,
                                           uint32_t part)
{
    return at(h, slot, part);
}

static bool block_pin(quire_offload_host *h, uint32_t block)
{
    if (h->blocks[block] == NULL) {
        h->blocks[block] = h->memory.pin(h->memory.ctx, block_bytes(h, block));
        if (h->blocks[block] == NULL) {
            quire_offload_host_failed(h, "pinning memory of the host", QUIRE_NOMEM);
        }
    }
    return h->blocks[block] != NULL;
}

/* The first free stripe, if its block is or can be pinned, else the first one of a pinned block;
 * the caller counts it. */
static int stripe_find(quire_offload_host *h, uint32_t *out)
{
    uint32_t i = h->stripe_hint;

    while (i < h->stripes_max && h->slots_used[i] != 0) {
        i++;
    }
    h->stripe_hint = i;
    QUIRE_FAIL_IF(i == h->stripes_max, QUIRE_LIMIT);
    if (!block_pin(h, i / h->block_stripes)) {
        while (i < h->stripes_max &&
               (h->slots_used[i] != 0 || h->blocks[i / h->block_stripes] == NULL)) {
            i++;
        }
    }
    QUIRE_FAIL_IF(i == h->stripes_max, QUIRE_LIMIT);
    *out = i;
    return QUIRE_OK;
}

static void stripe_use(quire_offload_host *h, uint32_t stripe, uint8_t slots)
{
    h->slots_used[stripe] = slots;
    h->block_used[stripe / h->block_stripes]++;
    atomic_fetch_add(&h->stripes_used, 1);
}

static int pages_copy(quire_offload_host *h, uint32_t slot, const quire_page_addr *pages,
                      uint32_t n_pages)
{
    quire_page_piece pieces[QUIRE_PAGE_PIECES];
    uint32_t n = 0;

    for (uint32_t p = 0; p < h->n_parts; p++) {
        const host_part *part = &h->parts[p];

        for (uint32_t i = 0; i < n_pages; i++) {
            pieces[n++] = (quire_page_piece){ .to = at(h, slot + i, p),
                                              .from = pages[i].extent + part->mem_offset +
                                                      pages[i].slot * part->page_bytes,
                                              .bytes = part->page_bytes };
            if (n == QUIRE_PAGE_PIECES || (p + 1 == h->n_parts && i + 1 == n_pages)) {
                QUIRE_TRY(h->memory.copy(h->memory.ctx, QUIRE_PAGE_COPY_OUT, pieces, n));
                n = 0;
            }
        }
    }
    return QUIRE_OK;
}

int quire_offload_host_write(quire_offload_host *h, const quire_page_addr *pages, uint32_t n_pages,
                             uint32_t *first_slot)
{
    uint32_t stripe;
    int rc;

    QUIRE_CHECK(n_pages > 0 && n_pages <= QUIRE_OFFLOAD_STRIPE);
    QUIRE_TRY(stripe_find(h, &stripe));
    rc = pages_copy(h, stripe * QUIRE_OFFLOAD_STRIPE, pages, n_pages);
    if (rc < 0) {
        quire_offload_host_failed(h, "copy to the host", rc);
        return rc;
    }
    stripe_use(h, stripe, (uint8_t)((1u << n_pages) - 1u));
    h->stats.written_bytes_total += n_pages * h->page_bytes;
    *first_slot = stripe * QUIRE_OFFLOAD_STRIPE;
    return QUIRE_OK;
}

int quire_offload_host_take(quire_offload_host *h, uint8_t slots, uint32_t *first_slot)
{
    uint32_t stripe;

    QUIRE_CHECK(slots != 0);
    QUIRE_TRY(stripe_find(h, &stripe));
    stripe_use(h, stripe, slots);
    *first_slot = stripe * QUIRE_OFFLOAD_STRIPE;
    return QUIRE_OK;
}

void quire_offload_host_fill(quire_offload_host *h, uint32_t slot, const void *page)
{
    const unsigned char *from = page;

    for (uint32_t p = 0; p < h->n_parts; p++) {
        memcpy(at(h, slot, p), from, h->parts[p].page_bytes);
        from += h->parts[p].page_bytes;
    }
    h->stats.written_bytes_total += h->page_bytes;
}

void quire_offload_host_release(quire_offload_host *h, uint32_t slot)
{
    const uint32_t stripe = slot / QUIRE_OFFLOAD_STRIPE;
    const uint32_t bit = 1u << slot % QUIRE_OFFLOAD_STRIPE;

    QUIRE_CHECK(stripe < h->stripes_max && (h->slots_used[stripe] & bit) != 0);
    h->slots_used[stripe] &= (uint8_t)~bit;
    if (h->slots_used[stripe] == 0) {
        atomic_fetch_sub(&h->stripes_used, 1);
        h->stripe_hint = stripe < h->stripe_hint ? stripe : h->stripe_hint;
        if (--h->block_used[stripe / h->block_stripes] == 0) {
            block_unpin(h, stripe / h->block_stripes);
        }
    }
}

int quire_offload_host_read(quire_offload_host *h, uint32_t slot, void *buffer, size_t bytes)
{
    unsigned char *to = buffer;

    QUIRE_CHECK(bytes == h->page_bytes);
    for (uint32_t p = 0; p < h->n_parts; p++) {
        memcpy(to, at(h, slot, p), h->parts[p].page_bytes);
        to += h->parts[p].page_bytes;
    }
    h->stats.read_bytes_total += bytes;
    return QUIRE_OK;
}

/* ---- sizes and figures ---- */

uint32_t quire_offload_host_n_parts(const quire_offload_host *h)
{
    return h->n_parts;
}

size_t quire_offload_host_part_offset(const quire_offload_host *h, uint32_t part)
{
    return h->parts[part].mem_offset;
}

size_t quire_offload_host_part_bytes(const quire_offload_host *h, uint32_t part)
{
    return h->parts[part].page_bytes;
}

uint32_t quire_offload_host_stripes_max(const quire_offload_host *h)
{
    return h->stripes_max;
}

uint32_t quire_offload_host_stripes_used(const quire_offload_host *h)
{
    return atomic_load(&h->stripes_used);
}

void quire_offload_host_fetched(quire_offload_host *h, uint64_t bytes)
{
    h->stats.read_bytes_total += bytes;
}

void quire_offload_host_attended(quire_offload_host *h, uint64_t bytes)
{
    h->stats.attended_bytes_total += bytes;
}

void quire_offload_host_failed(quire_offload_host *h, const char *call, int status)
{
    h->stats.failures_total++;
    (void)snprintf(h->trouble, sizeof h->trouble, "%s: %s", call, quire_status_text(status));
}

const char *quire_offload_host_trouble(const quire_offload_host *h)
{
    return h->trouble;
}

void quire_offload_host_stats_get(const quire_offload_host *h, quire_offload_file_stats *out)
{
    *out = h->stats;
    out->stripes_max = h->stripes_max;
    out->stripes_used = quire_offload_host_stripes_used(h);
    out->capacity_bytes = h->stripes_max * (uint64_t)h->stripe_bytes;
    out->used_bytes = out->stripes_used * (uint64_t)h->stripe_bytes;
}
