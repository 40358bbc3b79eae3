/* pool.c - page ids and references; pool_plan.c makes sure that there are some; placement.c places
 * pages in extents; pool_offload.c lets their payload lie elsewhere.
 *
 * Invariants (quire_pool_validate checks all of them, and those of placement.h)
 *   I1  a page is free, live (refs > 0) or cached (refs == 0, kept); addrs[id] is the address of
 *       its payload, or null when the page is free or has no payload. The payload of an offloaded
 *       page, live or cached, lies outside
 *   I2  ids below id_end are in use or on the free-id list; page 0 is neither
 *   I3  a region's charge is the sum of the charges of its pages in memory; likewise its cached
 *       bytes. Pinned and spilled bytes are sums over all pages, offloaded bytes over the others:
 *       evicting those frees no memory
 *   I4  the counters of a class are the sums over its extents and pages; offloaded pages count as
 *       neither live nor cached
 *
 * SPDX-License-Identifier: MIT */
#include "core/pool/pool.h"

#include "base/check.h"
#include "core/pool/payload.h"
#include "core/pool/placement.h"

#include <string.h>

#ifdef QUIRE_TINY
#define IDS_CAPACITY_FIRST 2u
#else
#define IDS_CAPACITY_FIRST 1024u
#endif

static void *pool_alloc(quire_pool *pool, size_t size_bytes)
{
    return pool->allocator.alloc(pool->allocator.ctx, size_bytes);
}

static void pool_free(quire_pool *pool, void *ptr)
{
    if (ptr != NULL) {
        pool->allocator.free(pool->allocator.ctx, ptr);
    }
}

int quire_pool_ids_resize(quire_pool *pool, uint32_t capacity)
{
    quire_page *pages = pool_alloc(pool, capacity * sizeof(*pages));
    quire_page_addr *addrs = pool_alloc(pool, capacity * sizeof(*addrs));

    if (pages == NULL || addrs == NULL) {
        pool_free(pool, addrs);
        pool_free(pool, pages);
        return QUIRE_NOMEM;
    }
    memset(pages, 0, capacity * sizeof(*pages));
    memset(addrs, 0, capacity * sizeof(*addrs));
    if (pool->ids_capacity > 0) {
        memcpy(pages, pool->pages, pool->ids_capacity * sizeof(*pages));
        memcpy(addrs, pool->addrs, pool->ids_capacity * sizeof(*addrs));
    }
    pool_free(pool, pool->addrs);
    pool_free(pool, pool->pages);
    pool->pages = pages;
    pool->addrs = addrs;
    pool->ids_capacity = capacity;
    return QUIRE_OK;
}

static bool is_hosts(const quire_pool_opts *opts, uint32_t g)
{
    return opts->memory == NULL || g >= opts->n_memory_groups;
}

/* Whether the memory has other extents for each group. */
static bool is_own(const quire_pool_opts *opts, uint32_t g)
{
    return !is_hosts(opts, g) && opts->memory->map_extent != NULL;
}

/* Whether a group's pages fit the class. */
static bool class_fits(const quire_pool_class *class, const quire_pool_opts *opts, uint32_t g)
{
    uint32_t n_parts = opts->n_parts[g] > 1 ? opts->n_parts[g] : 1;

    return !class->is_own && !is_own(opts, g) && class->is_hosts == is_hosts(opts, g) &&
           class->page_bytes == opts->page_bytes[g] && class->n_parts == n_parts &&
           (n_parts == 1 ||
            memcmp(class->part_bytes, opts->part_bytes[g], n_parts * sizeof(size_t)) == 0);
}

/* Set up a class for the pages of a group; *rest: room for the sizes of several parts. */
static void class_init(quire_pool_class *class, const quire_pool_opts *opts, uint32_t g,
                       size_t **rest)
{
    class->page_bytes = opts->page_bytes[g];
    class->is_hosts = is_hosts(opts, g);
    class->is_own = is_own(opts, g);
    class->group = (quire_group_id)g;
    class->n_parts = 1;
    class->part_bytes = &class->page_bytes;
    if (opts->n_parts[g] > 1) {
        class->n_parts = opts->n_parts[g];
        class->part_bytes = memcpy(*rest, opts->part_bytes[g], class->n_parts * sizeof(**rest));
        *rest += class->n_parts;
    }
    class->shape = quire_extent_shape_for(class->page_bytes, class->n_parts);
}

static int groups_init(quire_pool *pool, const quire_pool_opts *opts)
{
    size_t n_parts = 0;
    size_t *rest;

    for (uint32_t g = 0; g < opts->n_groups; g++) {
        n_parts += opts->n_parts[g];
    }
    if (n_parts > 0) {
        pool->part_bytes = pool_alloc(pool, n_parts * sizeof(*pool->part_bytes));
        QUIRE_FAIL_IF(pool->part_bytes == NULL, QUIRE_NOMEM);
    }
    rest = pool->part_bytes;
    for (uint32_t g = 0; g < opts->n_groups; g++) {
        uint32_t c = 0;

        while (c < pool->n_classes && !class_fits(&pool->classes[c], opts, g)) {
            c++;
        }
        if (c == pool->n_classes) {
            class_init(&pool->classes[c], opts, g, &rest);
            pool->n_classes++;
        }
        pool->groups[g].class_index = c;
        pool->groups[g].charge_bytes = opts->charge_bytes[g];
    }
    pool->n_groups = opts->n_groups;
    return QUIRE_OK;
}

int quire_pool_init(quire_pool *pool, const quire_pool_opts *opts)
{
    int rc;

    memset(pool, 0, sizeof(*pool));
    pool->allocator = *opts->allocator;
    pool->source = *opts->source;
    if (opts->memory != NULL) {
        pool->memory = *opts->memory;
    }
    pool->regions = opts->regions;
    pool->history = opts->history;
    pool->pages_max = opts->pages_max;
    pool->extents_max = opts->extents_max;
    pool->page_tokens = opts->page_tokens;
    pool->lock_memory = opts->lock_memory;
    pool->id_end = 1; /* 0 is the null page */
    QUIRE_TRY(groups_init(pool, opts));
    rc = quire_pool_ids_resize(pool, opts->pages_max < IDS_CAPACITY_FIRST ? opts->pages_max + 1
                                                                          : IDS_CAPACITY_FIRST);
    if (rc < 0) {
        pool_free(pool, pool->part_bytes);
    }
    return rc;
}

void quire_pool_fini(quire_pool *pool)
{
    for (uint32_t i = 0; i < pool->extents_capacity; i++) {
        quire_extent *extent = pool->extents[i];

        if (extent != NULL) {
            quire_placement_memory_give(pool, extent);
        }
        pool_free(pool, extent);
    }
    pool_free(pool, pool->extents);
    pool_free(pool, pool->addrs);
    pool_free(pool, pool->pages);
    pool_free(pool, pool->part_bytes);
    memset(pool, 0, sizeof(*pool));
}

/* ---- pages ---- */

static quire_pool_class *page_class(quire_pool *pool, const quire_page *page)
{
    return &pool->classes[pool->groups[page->group].class_index];
}

static quire_page *page_in_use(quire_pool *pool, quire_page_id id)
{
    QUIRE_CHECK(id != QUIRE_PAGE_NULL && id < pool->id_end);
    QUIRE_CHECK(quire_page_state_of(&pool->pages[id]) != QUIRE_PAGE_FREE);
    return &pool->pages[id];
}

void quire_pool_history(quire_pool *pool, quire_history_kind kind, quire_page_id id,
                        quire_seq_id seq)
{
    const quire_page *page = &pool->pages[id];
    quire_history_event *event = quire_history_next(pool->history);

    if (event != NULL) {
        event->kind = kind;
        event->page = id;
        event->seq = seq;
        event->group = page->group;
        event->region = page->region;
        event->extent = page->extent;
    }
}

/* A page gained or lost a holder: see quire_region_changed(). */
static void page_changed(quire_pool *pool, const quire_page *page)
{
    quire_region_changed(pool->regions, page->region);
    if (page->home != 0) {
        quire_region_changed(pool->regions, page->home);
    }
}

static quire_page_id id_take(quire_pool *pool)
{
    quire_page_id id = pool->id_free;

    if (id != QUIRE_PAGE_NULL) {
        pool->id_free = pool->pages[id].extent;
        pool->n_ids_free--;
    } else {
        QUIRE_CHECK(pool->id_end < pool->ids_capacity);
        id = pool->id_end++;
    }
    return id;
}

/* The region to charge for a page taken for `region`: the region itself, or the dynamic region when
 * the region is full and spills. */
static quire_region_id take_region(quire_pool *pool, quire_region_id region, uint64_t charge_bytes)
{
    quire_region *own = &pool->regions->items[region];

    if (quire_counter_get(&own->spills) == 0 || quire_region_headroom_bytes(own) >= charge_bytes) {
        return region;
    }
    quire_counter_add(&own->spilled_pages, 1);
    quire_counter_add(&own->spilled_bytes, charge_bytes);
    return QUIRE_REGION_DYNAMIC;
}

quire_page_id quire_pool_take(quire_pool *pool, quire_group_id group, quire_region_id region,
                              quire_seq_id seq)
{
    quire_pool_class *class = &pool->classes[pool->groups[group].class_index];
    uint64_t charge_bytes = pool->groups[group].charge_bytes;
    quire_region_id charged = take_region(pool, region, charge_bytes);
    quire_page_id id = id_take(pool);
    quire_page *page = &pool->pages[id];
    uint32_t slot;
    quire_extent *extent = quire_placement_take(class, &slot);

    extent->slots[slot] = id;
    *page = (quire_page){ .refs = 1,
                          .extent = extent->number,
                          .slot = (uint16_t)slot,
                          .group = group & 0xfu,
                          .region = charged & 0xfu,
                          .home = (charged != region ? region : 0) & 0xfu };
    pool->addrs[id] = quire_payload_addr(pool, extent, slot);
    class->taken_pages++;
    quire_counter_add(&class->live_pages, 1);
    quire_counter_add(&class->slack_slots, pool->page_tokens);
    quire_counter_add(&pool->pages_now, 1);
    quire_counter_peak(&pool->pages_peak, quire_counter_get(&pool->pages_now));
    quire_counter_add(&pool->allocs_total, 1);
    quire_region_charge(&pool->regions->items[charged], charge_bytes, false);
    quire_pool_history(pool, QUIRE_HISTORY_ALLOC, id, seq);
    return id;
}

/* A page is no longer spilled. */
static void page_settle(quire_pool *pool, quire_page *page)
{
    if (page->home != 0) {
        quire_counter_sub(&pool->regions->items[page->home].spilled_bytes,
                          pool->groups[page->group].charge_bytes);
        page->home = 0;
    }
}

/* Free a page in use. The caller updates the counters of the page's state. */
static void page_give(quire_pool *pool, quire_page_id id, quire_seq_id seq)
{
    quire_page *page = &pool->pages[id];

    QUIRE_CHECK(!page->is_pinned);
    quire_pool_history(pool, QUIRE_HISTORY_FREE, id, seq);
    page_settle(pool, page);
    quire_region_uncharge(&pool->regions->items[page->region],
                          pool->groups[page->group].charge_bytes, page->is_offloaded);
    if (page->is_offloaded) {
        quire_pool_slot_release(pool, page);
    } else {
        quire_placement_give(page_class(pool, page), pool->extents[page->extent], page->slot);
    }
    *page = (quire_page){ .extent = pool->id_free };
    pool->addrs[id] = (quire_page_addr){ .extent = NULL };
    pool->id_free = id;
    pool->n_ids_free++;
    quire_counter_sub(&pool->pages_now, 1);
    quire_counter_add(&pool->frees_total, 1);
}

void quire_pool_ref(quire_pool *pool, quire_page_id id, quire_seq_id seq)
{
    quire_page *page = page_in_use(pool, id);

    QUIRE_CHECK(page->refs < UINT32_MAX);
    page_changed(pool, page);
    if (page->refs++ == 0 && !page->is_offloaded) {
        quire_pool_class *class = page_class(pool, page);

        quire_counter_sub(&class->cached_pages, 1);
        if (!page->is_pinned) {
            quire_counter_sub(&pool->regions->items[page->region].cached_bytes,
                              pool->groups[page->group].charge_bytes);
        }
        quire_counter_add(&class->live_pages, 1);
        quire_counter_add(&class->slack_slots, pool->page_tokens - page->n_filled);
    }
    quire_pool_history(pool, QUIRE_HISTORY_REF, id, seq);
}

void quire_pool_unref(quire_pool *pool, quire_page_id id, quire_seq_id seq)
{
    quire_page *page = page_in_use(pool, id);
    quire_pool_class *class = page_class(pool, page);

    QUIRE_CHECK(page->refs > 0);
    page_changed(pool, page);
    if (--page->refs > 0) {
        quire_pool_history(pool, QUIRE_HISTORY_UNREF, id, seq);
        return;
    }
    if (!page->is_offloaded) {
        quire_counter_sub(&class->live_pages, 1);
        quire_counter_sub(&class->slack_slots, pool->page_tokens - page->n_filled);
    }
    if (page->n_kept > 0) {
        if (!page->is_offloaded) {
            quire_counter_add(&class->cached_pages, 1);
        }
        if (!page->is_offloaded && !page->is_pinned) {
            quire_counter_add(&pool->regions->items[page->region].cached_bytes,
                              pool->groups[page->group].charge_bytes);
        }
        page_settle(pool, page);
        quire_pool_history(pool, QUIRE_HISTORY_UNREF, id, seq);
        return;
    }
    page_give(pool, id, seq);
}

void quire_pool_keep(quire_pool *pool, quire_page_id id, uint32_t n_tokens)
{
    quire_page *page = page_in_use(pool, id);

    QUIRE_CHECK(page->refs > 0 && n_tokens > 0);
    QUIRE_ASSERT(n_tokens >= page->n_kept && n_tokens <= page->n_filled);
    if (page->n_kept == 0) {
        quire_pool_history(pool, QUIRE_HISTORY_KEEP, id, QUIRE_SEQ_NULL);
    }
    page->n_kept = (uint16_t)n_tokens;
}

uint64_t quire_pool_evict(quire_pool *pool, quire_page_id id)
{
    quire_page *page = page_in_use(pool, id);
    uint64_t charge_bytes = pool->groups[page->group].charge_bytes;

    QUIRE_CHECK(page->n_kept > 0 && !page->is_pinned);
    page_changed(pool, page);
    quire_pool_history(pool, QUIRE_HISTORY_EVICT, id, QUIRE_SEQ_NULL);
    page->n_kept = 0;
    if (page->refs > 0) {
        return 0;
    }
    if (page->is_offloaded) {
        page_give(pool, id, QUIRE_SEQ_NULL);
        return 0; /* no memory is free for it */
    }
    quire_counter_sub(&page_class(pool, page)->cached_pages, 1);
    quire_counter_sub(&pool->regions->items[page->region].cached_bytes, charge_bytes);
    page_give(pool, id, QUIRE_SEQ_NULL);
    return charge_bytes;
}

void quire_pool_recharge(quire_pool *pool, quire_page_id id, quire_region_id to)
{
    quire_page *page = page_in_use(pool, id);
    quire_region *old = &pool->regions->items[page->region];
    quire_region *new = &pool->regions->items[to];
    uint64_t charge_bytes = pool->groups[page->group].charge_bytes;

    if (old == new) {
        return;
    }
    page_changed(pool, page);
    quire_region_changed(pool->regions, to);
    quire_region_uncharge(old, charge_bytes, page->is_offloaded);
    quire_region_charge(new, charge_bytes, page->is_offloaded);
    if (page->is_pinned) {
        quire_counter_sub(&old->pinned_bytes, charge_bytes);
        quire_counter_add(&new->pinned_bytes, charge_bytes);
    } else if (page->refs == 0 && !page->is_offloaded) {
        quire_counter_sub(&old->cached_bytes, charge_bytes);
        quire_counter_add(&new->cached_bytes, charge_bytes);
    }
    if (page->home == to) {
        quire_counter_add(&new->returned_pages, 1);
    }
    page_settle(pool, page);
    page->region = to & 0xfu;
    quire_pool_history(pool, QUIRE_HISTORY_CHARGE, id, QUIRE_SEQ_NULL);
}

void quire_pool_home_forget(quire_pool *pool, quire_region_id region)
{
    const quire_region *home = &pool->regions->items[region];

    for (uint32_t id = 1; id < pool->id_end && quire_counter_get(&home->spilled_bytes) > 0; id++) {
        if (pool->pages[id].home == region) {
            page_settle(pool, &pool->pages[id]);
        }
    }
}

void quire_pool_pin(quire_pool *pool, quire_page_id id)
{
    quire_page *page = page_in_use(pool, id);
    quire_region *region = &pool->regions->items[page->region];
    uint64_t charge_bytes = pool->groups[page->group].charge_bytes;

    QUIRE_CHECK(page->n_kept > 0 && !page->is_pinned);
    page->is_pinned = 1;
    quire_counter_add(&region->pinned_bytes, charge_bytes);
    if (page->refs == 0 && !page->is_offloaded) {
        quire_counter_sub(&region->cached_bytes, charge_bytes);
    }
}

void quire_pool_unpin(quire_pool *pool, quire_page_id id)
{
    quire_page *page = page_in_use(pool, id);
    quire_region *region = &pool->regions->items[page->region];
    uint64_t charge_bytes = pool->groups[page->group].charge_bytes;

    QUIRE_CHECK(page->is_pinned);
    page_changed(pool, page);
    page->is_pinned = 0;
    quire_counter_sub(&region->pinned_bytes, charge_bytes);
    if (page->refs == 0 && !page->is_offloaded) {
        quire_counter_add(&region->cached_bytes, charge_bytes);
    }
}

void quire_pool_fill_set(quire_pool *pool, quire_page_id id, uint32_t n_filled)
{
    quire_page *page = page_in_use(pool, id);
    quire_pool_class *class = page_class(pool, page);

    QUIRE_ASSERT(page->refs > 0 && n_filled <= pool->page_tokens);
    quire_counter_set(&class->slack_slots,
                      quire_counter_get(&class->slack_slots) + page->n_filled - n_filled);
    page->n_filled = (uint16_t)n_filled;
}

void quire_pool_copy(quire_pool *pool, quire_page_id to, quire_page_id from, quire_seq_id seq)
{
    const quire_page *target = page_in_use(pool, to);

    QUIRE_CHECK(target->group == page_in_use(pool, from)->group);
    QUIRE_CHECK(!target->is_offloaded && !pool->pages[from].is_offloaded);
    if (pool->addrs[to].extent != NULL) {
        quire_payload_copy(pool, page_class(pool, target), pool->addrs[to], pool->addrs[from]);
    }
    quire_counter_add(&pool->page_copies_total, 1);
    quire_pool_history(pool, QUIRE_HISTORY_COPY, to, seq);
}
