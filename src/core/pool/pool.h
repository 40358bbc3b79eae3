/* pool.h - reference-counted pages, placed in extents.
 *
 *             take                        last unref, not kept
 *   free ------------> live (refs >= 1) ------------------------> free
 *                       |  ^                                        ^
 *   last unref, kept    |  | ref                                    | evict
 *                       v  |                                        |
 *                      cached (refs == 0, kept by the prefix tree) -'
 *
 * A page is an id. Its payload lies at (extent, slot); coalescing may change the place, but not the
 * id. Groups whose pages have equal size and parts share a class; a class owns extents. Slots are
 * taken from the fullest extent with a free slot, so that sparse extents run empty by themselves.
 *
 * An offloaded page has no place in an extent: its payload lies with the owner (pool_offload.c).
 *
 * Plan, then apply: quire_pool_plan() makes sure that the next takes succeed, and is the only
 * function of the allocation path that can fail.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_POOL_H
#define QUIRE_CORE_POOL_H

#include "base/check.h"
#include "core/cache/counter.h"
#include "core/cache/history.h"
#include "core/cache/region.h"
#include "core/pool/extent.h"
#include "quire/alloc.h"
#include "quire/cache.h"

typedef enum quire_page_state {
    QUIRE_PAGE_FREE = 0,
    QUIRE_PAGE_LIVE = 1,
    QUIRE_PAGE_CACHED = 2
} quire_page_state;

/* The record of a page id. quire_page_state_of() derives the state. */
typedef struct quire_page {
    uint32_t refs;     /* table leaves that hold the page */
    uint32_t extent;   /* number; of a free id: the next free id */
    uint16_t slot;     /* in the extent */
    uint16_t n_filled; /* slots known to be written; see quire_pool_fill_set() */
    uint16_t n_kept;   /* slots from 0 on that the prefix tree relies on; 0 = not kept */
    uint16_t group : 4;
    uint16_t region : 4;    /* to which the page is charged */
    uint16_t home : 4;      /* live and spilled: the region of the sequence that took it; else 0 */
    uint16_t is_pinned : 1; /* a pin holds the page: kept and not evicted */
    uint16_t is_marked : 1; /* scratch of charge.c: false between calls */
    uint16_t is_offloaded : 1; /* `extent` is the owner's slot (quire/cache.h, offloaded pages) */
} quire_page;

_Static_assert(sizeof(quire_page) == 16, "quire_page: one per page, keep it small");
_Static_assert(QUIRE_GROUPS_MAX <= 16 && QUIRE_REGIONS_MAX <= 16, "fit quire_page");

static inline quire_page_state quire_page_state_of(const quire_page *page)
{
    if (page->refs > 0) {
        return QUIRE_PAGE_LIVE;
    }
    return page->n_kept > 0 ? QUIRE_PAGE_CACHED : QUIRE_PAGE_FREE;
}

/* By fill: empty, eight partial eighths, full. */
#define QUIRE_EXTENT_BUCKET_EMPTY 0u
#define QUIRE_EXTENT_BUCKET_FULL  9u
#define QUIRE_EXTENT_BUCKETS      10u

/* An entry of slots[]: a page id, or a link of the extent's list of freed slots. */
#define QUIRE_SLOT_FREE 0x80000000u
#define QUIRE_SLOT_NONE 0x7fffffffu /* ends the list */

typedef struct quire_extent {
    unsigned char *base; /* NULL without payload */
    size_t size_bytes;
    struct quire_extent *prev; /* in its bucket */
    struct quire_extent *next;
    uint64_t serial; /* counts mappings, to find the mappings of one plan */
    uint32_t number;
    uint32_t n_slots;
    uint32_t n_slots_max; /* room in slots[] */
    uint32_t n_used;
    uint32_t n_fresh;   /* slots from n_fresh on were never handed out */
    uint32_t n_touched; /* slots below are memory-backed; >= n_fresh */
    size_t
        touched_bytes;  /* of pages in several parts: maintain() has backed this number of bytes */
    uint32_t free_head; /* freed slots, newest first */
    uint32_t used_min;  /* n_used below this or at used_end: the extent changes its bucket */
    uint32_t used_end;
    uint8_t class_index;
    uint8_t bucket;
    bool is_locked;
    uint32_t slots[]; /* [n_slots_max], valid up to n_fresh */
} quire_extent;

/* Pages of one size and the same parts. */
typedef struct quire_pool_class {
    size_t page_bytes;
    bool is_hosts;            /* the extents are in the host's memory, not in pool->memory */
    bool is_own;              /* of one group, whose extents serve no other class */
    quire_group_id group;     /* the first one of the class */
    uint32_t n_parts;         /* >= 1; with several parts all extents have shape.n_slots */
    const size_t *part_bytes; /* [n_parts] */
    quire_extent_shape shape;
    uint32_t bucket_mask; /* bit b: bucket b has extents; never the full bucket's bit */
    quire_extent *buckets[QUIRE_EXTENT_BUCKETS];
    uint64_t plan_pages;  /* free pages that the plan in progress counts on */
    uint64_t ready_pages; /* free and backed by memory: sum of n_touched - n_used */
    uint64_t taken_pages; /* since the last maintain() */
    uint64_t demand_q8;   /* decaying peak of taken_pages, in 1/256 */
    quire_counter live_pages;
    quire_counter cached_pages;
    quire_counter free_pages;
    quire_counter free_empty_pages; /* of these, pages in empty extents */
    quire_counter slack_slots;      /* slots of live pages without a token */
    quire_counter tail_bytes;
    quire_counter extents_empty;
} quire_pool_class;

typedef struct quire_pool_group {
    uint64_t charge_bytes;
    uint32_t class_index;
} quire_pool_group;

typedef struct quire_pool_opts {
    uint32_t page_tokens;
    uint32_t n_groups;
    const size_t *page_bytes; /* [n_groups] */
    const uint32_t *n_parts;  /* [n_groups], as in quire_cache_opts; so is part_bytes */
    const size_t *const *part_bytes;
    const size_t *charge_bytes; /* [n_groups], each > 0 */
    uint32_t pages_max;         /* <= QUIRE_PAGES_MAX */
    uint32_t extents_max;       /* <= QUIRE_EXTENTS_MAX */
    bool lock_memory;
    const quire_allocator *allocator;
    const quire_extent_source *source; /* of the host's memory */
    const quire_page_memory *memory;   /* of the first n_memory_groups groups; NULL = the host's */
    uint32_t n_memory_groups;
    quire_regions *regions; /* borrowed for the life of the pool, as is history */
    quire_history *history;
} quire_pool_opts;

typedef struct quire_pool {
    quire_allocator allocator;
    quire_extent_source source;
    quire_page_memory memory; /* of classes that are not the host's */
    quire_regions *regions;
    quire_history *history;
    quire_page *pages;      /* [ids_capacity], entry 0 unused */
    quire_page_addr *addrs; /* [ids_capacity], by page id */
    size_t *part_bytes;     /* of all classes, one after the other */
    uint32_t ids_capacity;
    uint32_t id_end;  /* ids from here on were never used */
    uint32_t id_free; /* list of freed ids, newest first */
    uint32_t n_ids_free;
    uint32_t pages_max;
    quire_extent **extents; /* [extents_capacity], by number */
    uint32_t extents_capacity;
    uint32_t extent_hint; /* all numbers below are in use */
    uint32_t extents_max;
    uint32_t page_tokens;
    uint32_t n_groups;
    uint32_t n_classes;
    bool lock_memory;
    quire_offload_ops offload; /* all NULL: no page can be offloaded */
    uint64_t next_serial;
    uint64_t plan_serial; /* extents from here on were mapped by the last plan */
    quire_pool_group groups[QUIRE_GROUPS_MAX];
    quire_pool_class classes[QUIRE_GROUPS_MAX];
    quire_counter extents_now;
    quire_counter extent_bytes;
    quire_counter extent_peak_bytes;
    quire_counter locked_bytes;
    quire_counter pages_now; /* live and cached */
    quire_counter pages_peak;
    quire_counter allocs_total;
    quire_counter frees_total;
    quire_counter alloc_failures_total;
    quire_counter page_copies_total;
    quire_counter page_moves_total;
    quire_counter watermark_pages;
    quire_counter offloaded_pages;
    quire_counter offloads_total;
    quire_counter onloads_total;
} quire_pool;

/* Errors: QUIRE_NOMEM (the pool then needs no fini). The caller checks the options. */
int quire_pool_init(quire_pool *pool, const quire_pool_opts *opts);

/* Pages still in use lose their memory. */
void quire_pool_fini(quire_pool *pool);

/* Make sure that n_pages[group] takes in each group, charged to region, succeed: budget (with the
 * dynamic region's budget when the region spills), page ids and slots. A later plan replaces this
 * plan. All or nothing: on failure no page, charge or extent has changed, except that empty extents
 * may have gone back to the OS. Errors: QUIRE_NOPAGES (budget), QUIRE_LIMIT (pages_max,
 * extents_max), QUIRE_NOMEM. */
int quire_pool_plan(quire_pool *pool, quire_region_id region, const uint32_t *n_pages);

/* The bytes of charge that the region's budget lacks for such a plan; saturates. */
uint64_t quire_pool_shortage_bytes(const quire_pool *pool, quire_region_id region,
                                   const uint32_t *n_pages);

/* The bytes that such a plan of a spilling region would charge to the dynamic region; saturates.
 * Groups take pages in order, from the region's own budget while a page fits. */
uint64_t quire_pool_spill_bytes(const quire_pool *pool, quire_region_id region,
                                const uint32_t *n_pages);

/* The bytes that such a plan would charge; saturates. */
uint64_t quire_pool_charge_bytes(const quire_pool *pool, const uint32_t *n_pages);

/* Cancel the last plan: extents mapped for the plan go back. Counts as a failed allocation. */
void quire_pool_cancel(quire_pool *pool);

/* Take a planned page with one reference; take the groups in order. Cost: O(1), nothing is
 * allocated. */
quire_page_id quire_pool_take(quire_pool *pool, quire_group_id group, quire_region_id region,
                              quire_seq_id seq);

/* Add, drop a reference. ref makes a cached page live. seq is for the history.
 * Cost: O(1), nothing is allocated. */
void quire_pool_ref(quire_pool *pool, quire_page_id id, quire_seq_id seq);
void quire_pool_unref(quire_pool *pool, quire_page_id id, quire_seq_id seq);

/* Keep the first n_tokens > 0 slots of a live page for the prefix tree: these slots are not written
 * again, and the page becomes cached when its last reference goes. The slots behind belong to the
 * page's appender (T4 of table.h). May be repeated with more tokens, not with fewer. */
void quire_pool_keep(quire_pool *pool, quire_page_id id, uint32_t n_tokens);
/* Undo keep; a cached page becomes free. Returns the freed charge, 0 while sequences hold the
 * page. */
uint64_t quire_pool_evict(quire_pool *pool, quire_page_id id);

/* Charge a page to another region, which has room. A spilled page is no longer spilled. */
void quire_pool_recharge(quire_pool *pool, quire_page_id id, quire_region_id to);

/* Forget an ending region as the home of spilled pages, which other regions' sequences hold now.
 * Cost: O(pages) if there are any. */
void quire_pool_home_forget(quire_pool *pool, quire_region_id region);

/* Pin or unpin a kept page: see quire_region's cached and pinned bytes. */
void quire_pool_pin(quire_pool *pool, quire_page_id id);
void quire_pool_unpin(quire_pool *pool, quire_page_id id);

/* Record how many token slots of a live page are filled. Exact when the page's only holder calls;
 * for a shared page the largest number of any holder. */
void quire_pool_fill_set(quire_pool *pool, quire_page_id id, uint32_t n_filled);

/* Copy the payload of one page to another of the same group, for seq. */
void quire_pool_copy(quire_pool *pool, quire_page_id to, quire_page_id from, quire_seq_id seq);

/* Record an event of a page in use. */
void quire_pool_history(quire_pool *pool, quire_history_kind kind, quire_page_id id,
                        quire_seq_id seq);

/* id is not the null page: holes have no page in the pool. */
static inline const quire_page *quire_pool_page(const quire_pool *pool, quire_page_id id)
{
    QUIRE_ASSERT(id != QUIRE_PAGE_NULL && id < pool->id_end);
    return &pool->pages[id];
}

static inline quire_page_state quire_pool_state(const quire_pool *pool, quire_page_id id)
{
    return quire_page_state_of(quire_pool_page(pool, id));
}

/* Room for page ids up to `capacity`. Errors: QUIRE_NOMEM. Used by init and plan. */
int quire_pool_ids_resize(quire_pool *pool, uint32_t capacity);

/* ---- offloaded pages (pool_offload.c): see quire_cache_page_offload() and _onload() ---- */

int quire_pool_offload(quire_pool *pool, quire_page_id id, uint32_t slot);
int quire_pool_onload(quire_pool *pool, quire_page_id id, const unsigned char *payload);
/* The payload of an offloaded page is not needed any more. */
void quire_pool_slot_release(quire_pool *pool, const quire_page *page);

/* Bytes of memory that the page is charged: 0 while it is offloaded. */
static inline uint64_t quire_pool_memory_bytes(const quire_pool *pool, quire_page_id id)
{
    const quire_page *page = quire_pool_page(pool, id);

    return page->is_offloaded ? 0 : pool->groups[page->group].charge_bytes;
}

/* ---- upkeep (pool_upkeep.c): see quire_cache_maintain(), _coalesce(), _trim() ---- */

void quire_pool_maintain(quire_pool *pool, uint32_t watermark_pages_max);
uint32_t quire_pool_coalesce(quire_pool *pool, uint32_t moves_max);
uint64_t quire_pool_trim(quire_pool *pool, uint64_t keep_bytes);

/* ---- checking (pool_validate.c) ---- */

void quire_pool_validate(const quire_pool *pool);

#endif /* QUIRE_CORE_POOL_H */
