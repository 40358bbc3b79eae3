/* offload.c - the choice of pages that leave memory, and the budget without them; see offload.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload.h"

#include "base/check.h"
#include "base/num.h"
#include "offload/offload_medium.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

struct quire_offload {
    quire_cache *cache;
    quire_attn_device inner;
    quire_group_id group;
    quire_offload_medium medium;
    size_t page_bytes;
    unsigned char *page;          /* [page_bytes] */
    atomic_uint_fast64_t buffers; /* bytes taken from the dynamic region's budget */
};

/* ---- opening ---- */

int quire_offload_open(quire_offload **out, const quire_offload_opts *opts, quire_error *err)
{
    quire_offload *o = calloc(1, sizeof *o);
    quire_offload_ops ops;
    int rc;

    *out = NULL;
    if (o == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for offloaded pages");
    }
    o->cache = opts->cache;
    o->inner = *opts->inner;
    o->group = opts->group;
    o->page_bytes = quire_cache_payload_bytes(opts->cache, opts->group);
    o->page = malloc(o->page_bytes);
    rc = o->page != NULL ? quire_offload_medium_open(&o->medium, opts, err)
                         : quire_error_set(err, QUIRE_NOMEM, "no memory for offloaded pages");
    if (rc < 0) {
        quire_offload_close(o);
        return rc;
    }
    ops = quire_offload_medium_ops(&o->medium);
    quire_cache_offload_set(o->cache, &ops);
    *out = o;
    return QUIRE_OK;
}

void quire_offload_close(quire_offload *o)
{
    if (o == NULL) {
        return;
    }
    quire_offload_medium_close(&o->medium);
    free(o->page);
    free(o);
}

quire_attn_device quire_offload_device(quire_offload *o)
{
    return quire_offload_medium_device(&o->medium);
}

quire_attn_device quire_offload_inner(const quire_offload *o)
{
    return o->inner;
}

const void *quire_offload_page_kept(const quire_offload *o, quire_page_id page)
{
    return o->medium.stream != NULL ? quire_offload_stream_kept(o->medium.stream, page) : NULL;
}

void quire_offload_pages_need(quire_offload *o, const quire_page_id *pages, uint32_t n)
{
    if (o->medium.stream != NULL) {
        quire_offload_stream_need(o->medium.stream, pages, n);
    }
}

void quire_offload_rest(quire_offload *o)
{
    quire_offload_medium_rest(&o->medium);
}

void quire_offload_attend(quire_offload *o, bool may_attend)
{
    if (o->medium.fetch != NULL) {
        quire_offload_fetch_attend(o->medium.fetch, may_attend);
    }
}

bool quire_offload_attended(const quire_offload *o)
{
    return o->medium.fetch != NULL && quire_offload_fetch_attended(o->medium.fetch);
}

/* ---- the budget ---- */

static quire_region_stats region_of(const quire_offload *o)
{
    quire_region_stats stats = { 0 };

    (void)quire_region_stats_get(o->cache, QUIRE_REGION_DYNAMIC, &stats);
    return stats;
}

static uint64_t buffer_bytes_of(const quire_offload *o, uint32_t n_stripes)
{
    return quire_offload_medium_bytes(&o->medium, n_stripes);
}

static uint32_t stripes_used(const quire_offload *o)
{
    return quire_offload_medium_stripes_used(&o->medium);
}

uint64_t quire_offload_buffer_bytes(const quire_offload *o)
{
    return atomic_load(&o->buffers);
}

/* Let the budget follow the number of stripes in use. Growth takes from room that there is. Another
 * thread that adds buffers and budget may count some bytes twice, and misses none. */
static int buffers_charge(quire_offload *o)
{
    const uint64_t old_bytes = quire_offload_buffer_bytes(o);
    const uint64_t bytes = buffer_bytes_of(o, stripes_used(o));
    int rc;

    if (bytes == old_bytes) {
        return QUIRE_OK;
    }
    atomic_store(&o->buffers, bytes > old_bytes ? bytes : old_bytes);
    rc = quire_region_budget_set(o->cache, QUIRE_REGION_DYNAMIC,
                                 region_of(o).budget_bytes + old_bytes - bytes);
    atomic_store(&o->buffers, rc == QUIRE_OK ? bytes : old_bytes);
    return rc;
}

uint64_t quire_offload_settle(quire_offload *o)
{
    const uint64_t old_bytes = quire_offload_buffer_bytes(o);

    if (buffer_bytes_of(o, stripes_used(o)) >= old_bytes) {
        return 0;
    }
    QUIRE_FAIL_IF(buffers_charge(o) < 0, 0);
    quire_offload_medium_give(&o->medium); /* the device's memory is as much as the charge says */
    return old_bytes - quire_offload_buffer_bytes(o);
}

/* Stripes that the places and the buffers allow. */
static uint64_t stripes_max(const quire_offload *o, uint64_t budget_bytes)
{
    const uint64_t by_buffers =
        (uint64_t)((double)budget_bytes * QUIRE_OFFLOAD_BUFFER_SHARE) / buffer_bytes_of(o, 1);

    return quire_min_u64(by_buffers, quire_offload_medium_stripes_max(&o->medium));
}

uint64_t quire_offload_bytes_max(const quire_offload *o, uint64_t budget_bytes)
{
    return stripes_max(o, budget_bytes) * QUIRE_OFFLOAD_STRIPE * o->page_bytes;
}

/* Memory for n_pages pages of which those of n stripes are offloaded, all but the last if n allows.
 */
static uint64_t held_bytes(const quire_offload *o, uint64_t n_pages, uint64_t n)
{
    const uint64_t n_moved = quire_min_u64(n * QUIRE_OFFLOAD_STRIPE, n_pages - 1);

    return (n_pages - n_moved) * o->page_bytes + n * buffer_bytes_of(o, 1);
}

uint64_t quire_offload_memory_min(const quire_offload *o, uint64_t budget_bytes, uint64_t n_pages)
{
    const uint64_t n_full = (n_pages - 1) / QUIRE_OFFLOAD_STRIPE;
    const uint64_t n_most = stripes_max(o, budget_bytes);
    uint64_t least = n_pages * o->page_bytes;

    /* Each full stripe takes and gives as much, so the least is with none or with the most; a
     * stripe that is not full may gain nothing. */
    for (uint64_t n = n_full; n <= n_full + 1; n++) {
        least = quire_min_u64(least, held_bytes(o, n_pages, quire_min_u64(n, n_most)));
    }
    return least;
}

/* ---- the pages of a sequence ---- */

/* The pages of a sequence's table, in order. */
typedef struct walk {
    quire_seq_table table;
    uint32_t at;
} walk;

static bool walk_begin(const quire_offload *o, quire_seq_id seq, walk *w)
{
    *w = (walk){ 0 };
    return quire_seq_table_get(o->cache, seq, o->group, &w->table) == QUIRE_OK;
}

/* The next page that the sequence fills; QUIRE_PAGE_NULL at the end. */
static quire_page_id walk_next(const quire_offload *o, walk *w)
{
    const uint32_t page_tokens = quire_cache_page_tokens(o->cache);

    while (w->at < w->table.n_entries) {
        const quire_page_entry *e =
            &w->table.leaves[w->at / QUIRE_LEAF_ENTRIES][w->at % QUIRE_LEAF_ENTRIES];

        w->at++;
        if (e->page != QUIRE_PAGE_NULL && e->n_tokens == page_tokens) {
            return e->page;
        }
    }
    return QUIRE_PAGE_NULL;
}

static bool is_movable(const quire_offload *o, quire_page_id page)
{
    quire_page_info info;

    return quire_cache_page_info_get(o->cache, page, &info) == QUIRE_OK && !info.is_offloaded &&
           !info.is_pinned && info.refs <= 1 && info.region == QUIRE_REGION_DYNAMIC &&
           info.n_filled == quire_cache_page_tokens(o->cache);
}

/* Whether the page is offloaded, and comes back to the dynamic region. */
static bool is_returnable(const quire_offload *o, quire_page_id page)
{
    quire_page_info info;

    return quire_cache_page_info_get(o->cache, page, &info) == QUIRE_OK && info.is_offloaded &&
           info.region == QUIRE_REGION_DYNAMIC;
}

static bool is_offloaded(const quire_offload *o, quire_page_id page)
{
    return quire_cache_page_addrs(o->cache)[page].memory == QUIRE_MEMORY_OFFLOADED;
}

static bool is_in_file(const quire_offload *o, quire_page_id page)
{
    return is_offloaded(o, page) &&
           quire_offload_medium_in_file(&o->medium, quire_cache_page_addrs(o->cache)[page].slot);
}

void quire_offload_share_get(const quire_offload *o, quire_seq_id seq, quire_offload_share *out)
{
    quire_page_id page;
    walk w;

    *out = (quire_offload_share){ .memory_tokens = UINT32_MAX };
    if (!walk_begin(o, seq, &w)) {
        return;
    }
    while ((page = walk_next(o, &w)) != QUIRE_PAGE_NULL) {
        if (is_offloaded(o, page)) {
            const uint32_t n_before = (w.at - 1) * quire_cache_page_tokens(o->cache);

            out->offloaded_bytes += o->page_bytes;
            out->memory_tokens = quire_min_u32(out->memory_tokens, n_before);
        }
        out->file_bytes += is_in_file(o, page) ? o->page_bytes : 0;
        out->movable_bytes += is_movable(o, page) ? o->page_bytes : 0;
    }
}

/* ---- down ---- */

/* Whether the buffers may grow by a stripe: within their share, and beside the bytes
 * promised to pins. */
static bool has_buffer_room(const quire_offload *o)
{
    const quire_region_stats region = region_of(o);
    const uint64_t memory_bytes = region.budget_bytes + quire_offload_buffer_bytes(o);
    const uint64_t bytes = buffer_bytes_of(o, stripes_used(o) + 1);

    return (double)bytes <= (double)memory_bytes * QUIRE_OFFLOAD_BUFFER_SHARE &&
           bytes + region.pinned_bytes + region.reserved_bytes <= memory_bytes;
}

int quire_offload_seq(quire_offload *o, quire_seq_id seq, uint8_t order)
{
    quire_page_addr addrs[QUIRE_OFFLOAD_STRIPE];
    quire_page_id pages[QUIRE_OFFLOAD_STRIPE];
    uint32_t slot;
    uint32_t n = 0;
    walk w;

    (void)quire_offload_settle(o);
    QUIRE_FAIL_IF(!has_buffer_room(o), QUIRE_LIMIT);
    if (!walk_begin(o, seq, &w)) {
        return 0;
    }
    while (n < QUIRE_OFFLOAD_STRIPE && (pages[n] = walk_next(o, &w)) != QUIRE_PAGE_NULL) {
        addrs[n] = quire_cache_page_addrs(o->cache)[pages[n]];
        n += is_movable(o, pages[n]);
    }
    if (n * o->page_bytes <= buffer_bytes_of(o, 1)) {
        return 0;
    }
    QUIRE_TRY(quire_offload_medium_write(&o->medium, addrs, n, order, &slot));
    for (uint32_t i = 0; i < n; i++) {
        const int rc = quire_cache_page_offload(o->cache, pages[i], slot + i);

        QUIRE_CHECK(rc == QUIRE_OK); /* is_movable() */
    }
    QUIRE_TRY(buffers_charge(o));
    return (int)n;
}

/* ---- up ---- */

/* The page of a sequence that comes back next: pages in a file cost most where they are. */
static quire_page_id back_find(const quire_offload *o, walk *w)
{
    quire_page_id found = QUIRE_PAGE_NULL;
    quire_page_id page;

    while ((page = walk_next(o, w)) != QUIRE_PAGE_NULL) {
        if (is_returnable(o, page)) {
            if (is_in_file(o, page)) {
                return page;
            }
            found = found == QUIRE_PAGE_NULL ? page : found;
        }
    }
    return found;
}

int quire_offload_back(quire_offload *o, quire_seq_id seq, uint64_t keep_bytes)
{
    const quire_region_stats region = region_of(o);
    quire_page_id page;
    walk w;

    if (!walk_begin(o, seq, &w) ||
        region.budget_bytes - region.charged_bytes < keep_bytes + o->page_bytes) {
        return 0;
    }
    page = back_find(o, &w);
    if (page == QUIRE_PAGE_NULL) {
        return 0;
    }
    QUIRE_TRY(quire_cache_page_gather(o->cache, page, o->page, o->page_bytes));
    if (quire_cache_page_onload(o->cache, page, o->page, o->page_bytes) < 0) {
        return 0; /* no memory */
    }
    QUIRE_TRY(buffers_charge(o));
    return 1;
}

int quire_offload_raise(quire_offload *o)
{
    return quire_offload_medium_raise(&o->medium);
}

bool quire_offload_missed_file(const quire_offload *o)
{
    return quire_offload_medium_missed_file(&o->medium);
}

/* ---- figures ---- */

void quire_offload_stats_get(const quire_offload *o, quire_offload_stats *out)
{
    quire_cache_stats cache;
    const char *trouble;

    quire_offload_medium_stats_get(&o->medium, &out->file, &out->below);
    quire_cache_stats_get(o->cache, &cache);
    out->pages = cache.pages_offloaded;
    out->pages_out_total = cache.offloads_total;
    out->pages_back_total = cache.onloads_total;
    out->buffer_bytes = quire_offload_buffer_bytes(o);
    trouble = quire_offload_trouble(o, true);
    (void)snprintf(out->trouble, sizeof out->trouble, "%s",
                   trouble[0] != '\0' ? trouble : quire_offload_trouble(o, false));
}

const char *quire_offload_trouble(const quire_offload *o, bool of_file)
{
    return quire_offload_medium_trouble(&o->medium, of_file);
}
