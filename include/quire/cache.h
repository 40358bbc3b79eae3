/* quire/cache.h - the KV cache: pages, page tables, sequences, regions.
 *
 * A cache owns extents of memory, cut into pages. Sequences hold page tables. Forks share pages by
 * reference; a page without holders is free. Core is metadata: it never reads or writes a payload
 * except to copy a whole page (copy-on-write, coalescing, gather, scatter). A group with page_bytes
 * = 0 has no payload, so that simulators and tests run the real code.
 *
 *             reserve/append                  last reference dropped
 *   free ----------------------> live (refs >= 1) --------------------> free
 *                                  ^  \__ kept by the prefix tree: cached __/  evicted
 *                                  '---------- reused by a sequence ----'
 *
 * Sharing. fork() shares every page and every table leaf. A leaf is copied when one side writes it.
 * A full page with two or more holders is never written (but by an owner that ends one of both
 * holders: quire_seq_inherit()); a sole holder may truncate into its page and append again. A
 * partly filled tail page has one appender. A sequence that must append into another sequence's
 * tail page first copies the page. So token i of a sequence always sits in slot i % page_tokens,
 * and attention sums in the same order whether or not a prefix was shared. Pages in the prefix tree
 * (quire/prefix.h) are shared in the same way: slots that the tree relies on are not written again,
 * and the sequence that fills such a page continues in the slots behind them.
 *
 * Holes. All groups of a sequence have the same tokens but need not keep all pages. A group whose
 * readers no longer need some tokens releases their pages; the table entries stay, without a page.
 *
 * Windows. A group with needs_last_tokens = w > 0 has a window: the token at position p is computed
 * from the group's tokens at positions p - w + 1 to p, and from no others. So a sequence of n
 * tokens can go on while the group has the pages of tokens n - w + 1 to n - 1, and the page of a
 * partly filled tail. This has four consequences.
 *
 *   release     the sequence's owner releases the pages behind the window, whenever it likes
 *   truncation  a cut is possible where the pages of the window before the cut are there:
 *               quire_seq_truncatable()
 *   look-up     a hit of n tokens needs the group's pages of the last window before n alone, and
 *               the sequence gets no others: quire/prefix.h
 *   eviction    the prefix tree may lose pages of such a group alone, without the node's other
 *               pages
 *
 * A group without a window that has holes (needs_last_tokens 0) has a reader that can do without
 * these pages at all, as for hot pages. Group 0 has no window.
 *
 * States. A model with recurrent layers has, beside KV, a state at each place of a text. A cache
 * with state_bytes > 0 has pages for states: each holds the state behind one token of one text.
 * These pages belong to nodes of the prefix tree (quire/prefix.h, "States") and to sequences. A
 * sequence has no table for them, but two pages (quire_seq_states()): for the state of its last
 * token, and for that of the step at hand. Their contents are the owner's business, since every
 * step changes them, and so are cuts and forks. In lists of pages and events, states are the group
 * behind the last one (quire_cache_groups()). Where the pages of sequences have a size of their own
 * (seq_state_bytes), they are the group behind that.
 *
 * Plan, then apply. A call that takes memory first computes its needs in every group. When
 * something is missing, the call asks the prefix tree to evict cached pages. When that is not
 * enough, the call returns QUIRE_NOPAGES (budget) or QUIRE_NOMEM (the OS), and nothing live has
 * changed.
 *
 * Parts. A page may be cut into parts, such as the K and V of each layer; the default is one part.
 * In an extent of n pages (quire_cache_extent_pages()), part p of the page in slot s lies at
 *
 *   extent + n * (bytes of the parts before p) + s * (bytes of part p)
 *
 * A layer's attention reads one part of every page. With this layout attention reads memory in
 * order, like one plain array per layer, instead of jumping over the other layers' parts
 * (docs/benchmarks.md has measurements).
 *
 * Memory. Extents come from mmap (huge pages advised, mlock on request). The size of an extent is
 * the smallest multiple of 2 MiB for which the unusable tail is under 1 %, and for which one part
 * of all pages takes 384 KiB on average (or the extent has 1,024 pages). maintain() keeps free
 * pages ready ahead of demand; coalesce() empties sparse extents. An empty extent can serve another
 * group or go back to the OS.
 *
 * Thread: owner. One thread makes every call on a given cache; only quire_cache_stats_get() may be
 * called from elsewhere.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CACHE_H
#define QUIRE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/alloc.h"
#include "quire/status.h"
#include "quire/types.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

typedef struct quire_cache quire_cache;

#ifdef QUIRE_TINY /* see quire/types.h */
#define QUIRE_PAGE_TOKENS_MIN 2u
#else
#define QUIRE_PAGE_TOKENS_MIN 64u /* page_tokens is a multiple of it */
#endif
#define QUIRE_PAGE_TOKENS_MAX        1024u
#define QUIRE_PAGE_BYTES_MAX         ((size_t)1 << 36)
#define QUIRE_PARTS_MAX              4096u
#define QUIRE_REGIONS_MAX            16u
#define QUIRE_REGION_DYNAMIC         0u /* the one region every cache has */
#define QUIRE_PAGES_MAX              (1u << 28)
#define QUIRE_EXTENTS_MAX            (1u << 20)
#define QUIRE_SEQS_MAX               (1u << 20)
#define QUIRE_SEQ_TOKENS_MAX         (1u << 30)
#define QUIRE_HISTORY_EVENTS_MAX     (1u << 24)
#define QUIRE_HISTORY_EVENTS_DEFAULT 4096

typedef struct quire_cache_opts {
    uint32_t struct_bytes;
    uint32_t page_tokens; /* QUIRE_PAGE_TOKENS_MIN .. _MAX, a multiple of _MIN; default 64 */
    uint32_t n_groups;    /* 1 .. QUIRE_GROUPS_MAX */
    size_t page_bytes[QUIRE_GROUPS_MAX]; /* payload of a page by group, multiple of 64; 0 = none */
    uint32_t n_parts[QUIRE_GROUPS_MAX];  /* of a page, up to _MAX; 0 or 1: one */
    const size_t *part_bytes[QUIRE_GROUPS_MAX]; /* [n_parts], multiples of 64 (or 0) that add up to
                                                   page_bytes; copied; not read when n_parts < 2 */
    size_t charge_bytes[QUIRE_GROUPS_MAX]; /* charged to the region; 0 = page_bytes (at least 1) */
    uint32_t needs_last_tokens[QUIRE_GROUPS_MAX]; /* the group's window; 0 = none. [0] must be 0 */
    uint64_t budget_bytes;                        /* of the dynamic region; pages never exceed it */
    uint32_t seqs_max;            /* open sequences at once, 1 .. _MAX; default 1024 */
    uint32_t seq_tokens_max;      /* longest sequence, 1 .. _MAX; default 1 << 20 */
    uint32_t history_events;      /* ring of allocation events; 0 = off; default 4096 */
    uint32_t watermark_pages_max; /* cap on pages kept ready; default 256, 0 = off */
    bool lock_memory;             /* mlock extents; stats.locked_bytes: the locked part */
    size_t state_bytes; /* payload of a page with a state, multiple of 64; 0 = no states. With
                           states n_groups is below QUIRE_GROUPS_MAX */
    size_t state_charge_bytes; /* charged for it; 0 = state_bytes */
    size_t seq_state_bytes;    /* the same of a sequence's pages; 0 = as the nodes' pages. Only with
                                  states, and n_groups is below QUIRE_GROUPS_MAX - 1 */
    size_t seq_state_charge_bytes;    /* charged for it; 0 = seq_state_bytes */
    const quire_allocator *allocator; /* metadata; NULL = C library */
    const quire_page_memory *memory;  /* of pages of tokens; NULL = the host's. States are in the
                                         host's memory. Copied; its ctx outlives the cache. Not with
                                         lock_memory */
    uint64_t (*clock_us)(void *ctx);  /* for the history only; NULL = event numbers */
    void *clock_ctx;
} quire_cache_opts;

#define QUIRE_CACHE_OPTS_INIT                                                                      \
    {                                                                                              \
        .struct_bytes = (uint32_t)sizeof(quire_cache_opts), .page_tokens = 64, .n_groups = 1,      \
        .seqs_max = 1024, .seq_tokens_max = 1u << 20,                                              \
        .history_events = QUIRE_HISTORY_EVENTS_DEFAULT, .watermark_pages_max = 256                 \
    }

/* Create a cache. No extent is mapped before it is needed (or maintain() asks for one).
 * On failure *out is NULL. Errors: QUIRE_INVAL, QUIRE_NOMEM.
 * Memory: release with quire_cache_destroy(), which closes all open sequences and regions. */
int quire_cache_create(quire_cache **out, const quire_cache_opts *opts);
void quire_cache_destroy(quire_cache *cache);

/* ---- regions ----
 *
 * A region is a budget of bytes. Every page is charged to one region; the region does not affect
 * where the page lies. Region 0, the dynamic region, is open to all. Every other region is pinned:
 * its budget serves the sequences and the pins (quire/pin.h) opened in the region. All regions
 * share one prefix tree, so any sequence may read pages charged to a pinned region; but a sequence
 * of the dynamic region never makes a pinned region's charge grow.
 *
 *   a sequence of region R takes a page       charged to R
 *   ... finds a page in the tree              the charge moves to R while R has room; the payload
 *                                             stays in place. Exceptions: pinned pages, and pages
 *                                             of another pinned region used by a class of the same
 *                                             or a higher rank
 *   a sequence of the dynamic region          leaves charges as they are
 *   finds a page in the tree
 *
 * A cached page of the dynamic region cannot be evicted before the cached pages below it in the
 * tree. When one of these is charged to a pinned region and the dynamic region needs room, the
 * lower page is evicted, and the upper page is charged to the pinned region in its place.
 *
 * When R has no room for a page that one of its sequences takes:
 *   1. cached pages charged to R are evicted.
 *   2. pages charged to R and held only by other regions' sequences or pins are charged to the
 *      dynamic region from now on (reclaimed). Cached pages there are evicted to make room.
 *   3. if R spills: the new page is charged to the dynamic region. Cached pages there are evicted
 *      to make room, lowest rank first. The page goes home (is charged to R) when R has room again
 *      (quire_cache_maintain()).
 *   4. QUIRE_NOPAGES
 * Each step is counted in the region's statistics. */

typedef struct quire_region_opts {
    uint32_t struct_bytes;
    uint64_t budget_bytes;  /* taken from the dynamic region's budget */
    bool spills_to_dynamic; /* step 3 above */
} quire_region_opts;

#define QUIRE_REGION_OPTS_INIT                                                                     \
    {                                                                                              \
        .struct_bytes = (uint32_t)sizeof(quire_region_opts), .spills_to_dynamic = true             \
    }

/* Open a pinned region. Errors: QUIRE_LIMIT (QUIRE_REGIONS_MAX), QUIRE_INVAL (an option),
 * QUIRE_NOPAGES (live or pinned pages of the dynamic region need the bytes). On error nothing has
 * changed except that cached pages may have been evicted. */
int quire_region_open(quire_cache *cache, const quire_region_opts *opts, quire_region_id *out);

/* Close a pinned region; the dynamic region gets its budget and its cached pages. Errors:
 * QUIRE_NOTFOUND, QUIRE_INVAL (the dynamic region), QUIRE_AGAIN (the region has open sequences or
 * pins: nothing has changed). */
int quire_region_close(quire_cache *cache, quire_region_id region);

/* Move budget from one region to another; the sum of all budgets stays. Cached pages of a pinned
 * `from` stay cached, and are charged to `to` as far as needed. Cached pages of the dynamic region
 * are evicted instead. Spilled pages go home first. Pages that `from`'s own sequences or pins hold
 * are never taken.
 * Errors: QUIRE_NOTFOUND, QUIRE_INVAL (from = to), QUIRE_RANGE (more than the budget of `from`),
 * QUIRE_NOPAGES (live or pinned pages need the bytes). On error no budget has changed. */
int quire_region_transfer(quire_cache *cache, quire_region_id from, quire_region_id to,
                          uint64_t bytes);

/* ---- sequences ---- */

/* Open an empty sequence charged to a region. Errors: QUIRE_LIMIT (seqs_max), QUIRE_INVAL (no such
 * region), QUIRE_NOMEM. */
int quire_seq_open(quire_cache *cache, quire_region_id region, quire_seq_id *out);

/* Open a second sequence with the same tokens and the same holes (quire_seq_release()). Reserved
 * room stays with seq. A partly filled tail page becomes shared, and is copied before seq is
 * appended to: reserve again. Cost: O(leaves), no page is copied. Errors: QUIRE_NOTFOUND,
 * QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_seq_fork(quire_cache *cache, quire_seq_id seq, quire_seq_id *out);

/* Make room for n more tokens: take pages, copy a shared tail page. Later appends of up to n tokens
 * in total cannot fail until seq is forked. All or nothing.
 * Errors: QUIRE_NOTFOUND, QUIRE_NOPAGES, QUIRE_NOMEM, QUIRE_LIMIT (seq_tokens_max, QUIRE_PAGES_MAX,
 * QUIRE_EXTENTS_MAX). */
int quire_seq_reserve(quire_cache *cache, quire_seq_id seq, uint32_t n_tokens);

/* Add n tokens behind the last: reserve, then grow the table in every group. The contents of the
 * new slots are undefined until the caller writes them. An append within reserved room cannot fail
 * and allocates nothing. Errors: as quire_seq_reserve(). */
int quire_seq_append(quire_cache *cache, quire_seq_id seq, uint32_t n_tokens);

/* Release the pages of one group whose tokens all lie in [begin_token, end_token), because the
 * group's readers no longer need these tokens. The table entries become holes: page
 * QUIRE_PAGE_NULL, other fields unchanged. The pages lose this sequence's reference. The number of
 * tokens, the positions, the reserved room and the other groups do not change. The range may end
 * beyond the sequence.
 *
 * Two kinds of entries in the range keep their page: a partly filled tail, because appends still go
 * there, and entries in a leaf shared with another sequence, because the other sequence would get
 * the hole too. After the sharing has ended (the leaf was copied, or the forks were closed), a call
 * with the same range releases the remaining pages.
 *
 * Allocates nothing and cannot fail half-way. n_released, if not NULL, gets the number of released
 * pages. Cost: O(pages in the range); O(new pages in the range) when the range grows from call to
 * call, as for an owner that calls after every step with a slowly moving end.
 * Errors: QUIRE_NOTFOUND, QUIRE_INVAL (group, begin_token > end_token). */
int quire_seq_release(quire_cache *cache, quire_seq_id seq, quire_group_id group,
                      uint32_t begin_token, uint32_t end_token, uint32_t *n_released);

/* The largest length up to n_tokens to which the sequence can be truncated; 0 for an unknown id. A
 * cut inside a page leaves a tail for appends, and so needs the page in every group. When a group
 * has a hole or an offloaded page there, the cut moves down to the start of the entry. A group with
 * a window needs the pages of the window before the cut. Behind a hole among them, the cut moves
 * down to the start of the hole, and so on; the result may be 0. */
uint32_t quire_seq_truncatable(const quire_cache *cache, quire_seq_id seq, uint32_t n_tokens);

/* Keep the first n_tokens tokens, drop the rest and any reserved room. Holes before the cut stay
 * holes; tokens appended at a page boundary get fresh pages in every group.
 * Errors: QUIRE_NOTFOUND, QUIRE_RANGE (longer than the sequence, or a cut that a hole forbids: see
 * quire_seq_truncatable()), QUIRE_NOMEM (a shared leaf had to be copied). On error nothing has
 * changed. */
int quire_seq_truncate(quire_cache *cache, quire_seq_id seq, uint32_t n_tokens);

/* Fill an open, empty sequence with n_tokens tokens, for an owner that moves the tokens of `from`
 * within its pages and then closes `from`. In group 0 the pages of the first n_shared tokens are
 * those of `from`, up to n_tokens, except for those that another sequence or a pin holds. The other
 * pages are new. Groups with a window have new pages for the last window, the others have holes.
 * n_tokens > 0 and n_shared are multiples of page_tokens. Both sequences hold the shared pages, and
 * the prefix tree may: the owner writes them when the tree has let go of them (quire/prefix.h,
 * quire_prefix_leave()), which quire_cache_page_info_get() tells. All or nothing. Errors:
 * QUIRE_INVAL (a number, or `to` has tokens or reserved room), and those of quire_seq_reserve(). */
int quire_seq_inherit(quire_cache *cache, quire_seq_id from, uint32_t n_shared, quire_seq_id to,
                      uint32_t n_tokens);

/* Close the sequence and drop its references. Errors: QUIRE_NOTFOUND. */
int quire_seq_close(quire_cache *cache, quire_seq_id seq);

/* Tokens in the sequence; 0 for an unknown id. */
uint32_t quire_seq_tokens(const quire_cache *cache, quire_seq_id seq);

/* A sequence's table in one group, for kernels. Released entries are holes: see quire_page_entry.
 * Memory: borrowed, valid until the next append, reserve, release, truncate or close of this
 * sequence, successful or not. Errors: QUIRE_NOTFOUND, QUIRE_INVAL (group). */
typedef struct quire_seq_table {
    const quire_page_entry *const *leaves;
    uint32_t n_entries; /* entries that hold tokens (reserved ones are not counted) */
    uint32_t n_tokens;
} quire_seq_table;
int quire_seq_table_get(const quire_cache *cache, quire_seq_id seq, quire_group_id group,
                        quire_seq_table *out);

/* ---- pages ---- */

/* The number of pages in an extent, for a page size and a number of parts. Thread: any. */
uint32_t quire_cache_extent_pages(size_t page_bytes, uint32_t n_parts);

/* quire_cache_opts.page_tokens. */
uint32_t quire_cache_page_tokens(const quire_cache *cache);

/* quire_cache_opts.n_groups. */
uint32_t quire_cache_groups(const quire_cache *cache);

/* Payload addresses by page id. The extent is NULL in entry 0, for pages without payload and for
 * pages not in use. Memory: borrowed. The array moves when pages are taken, and entries change in
 * coalesce(): fetch the array after the last append of a step. */
const quire_page_addr *quire_cache_page_addrs(const quire_cache *cache);

/* The payload bytes of a page of this group: quire_cache_opts.page_bytes; 0 for a group without
 * payload or an unknown group. */
size_t quire_cache_payload_bytes(const quire_cache *cache, quire_group_id group);

/* The two pages for states of a sequence. The first call takes them, and evicts cached pages for
 * them; they are charged to the sequence's region, and go when the sequence closes. A fork begins
 * without them. Errors: QUIRE_NOTFOUND, QUIRE_NOPAGES, QUIRE_NOMEM, QUIRE_LIMIT (page ids); then
 * nothing has changed, apart from evicted pages. The cache has states. */
int quire_seq_states(quire_cache *cache, quire_seq_id seq, quire_page_id pages[2]);

/* The payload of a page with a state: state_bytes bytes, seq_state_bytes of a sequence's page.
 * Memory: borrowed, until the page ends or moves (quire_cache_coalesce()). The page is in use and
 * holds a state. */
void *quire_cache_state(const quire_cache *cache, quire_page_id page);

/* Copy a page's payload into one contiguous buffer: all parts in order, without gaps; slots without
 * a token have undefined contents. The layout is independent of the page's extent and slot, and
 * equal in every cache with the same parts. buffer_bytes must equal quire_cache_payload_bytes().
 * An offloaded page is read from its slot, which may wait for the medium.
 * Errors: QUIRE_NOTFOUND (the page is not in use), QUIRE_INVAL (buffer_bytes, or no payload), those
 * of quire_offload_ops.read() and of quire_page_memory.copy(). */
int quire_cache_page_gather(const quire_cache *cache, quire_page_id page, void *buffer,
                            size_t buffer_bytes);

/* Copy a gathered buffer into a page held by exactly one sequence and not by the prefix tree.
 * Errors: as above; QUIRE_AGAIN (the page has another holder: nothing has changed. A fork that
 * shares the table leaf is not detected: scatter before forking). */
int quire_cache_page_scatter(quire_cache *cache, quire_page_id page, const void *buffer,
                             size_t buffer_bytes);

/* ---- offloaded pages ----
 *
 * The payload of a full page may lie outside of the cache, in a *slot* that the owner manages, for
 * example in a file. Such a page is *offloaded*. An offloaded page keeps its id, its references,
 * its region, and its place in tables and in the prefix tree. It takes no memory: the region does
 * not charge the page until it is onloaded, and counts the page as offloaded instead. Evicting an
 * offloaded page frees a slot and no memory. A pin may hold offloaded pages. The region
 * promises the charge of these pages to the pin, so that there is room to onload them.
 *
 * Attention on an offloaded page needs the payload in memory, under another address
 * (quire_attn_batch.page_addr). A sequence cannot be cut inside an offloaded page, and no sequence
 * begins with a part of one. */

typedef struct quire_offload_ops {
    /* The payload in a slot: bytes = quire_cache_payload_bytes() of the page's group, as
     * quire_cache_page_gather() gives it. Errors: QUIRE_IO, QUIRE_CORRUPT. */
    int (*read)(void *ctx, uint32_t slot, void *buffer, size_t bytes);
    void (*release)(void *ctx, uint32_t slot); /* the page ended, or was onloaded */
    void *ctx;
} quire_offload_ops;

/* The owner of the slots; before the first page is offloaded. The table is copied. */
void quire_cache_offload_set(quire_cache *cache, const quire_offload_ops *ops);

/* The page's payload, as gathered, lies in the slot: give up its memory. If a sequence holds the
 * page, the sequence uses all of its slots. Errors: QUIRE_NOTFOUND (not in use), QUIRE_INVAL (not
 * full, without payload, offloaded already, or no quire_offload_ops), QUIRE_AGAIN (a pin holds the
 * page, or more than one sequence, of which one may use a part and append behind it). */
int quire_cache_page_offload(quire_cache *cache, quire_page_id page, uint32_t slot);

/* Pages that are offloaded now. Cost: O(1). */
uint32_t quire_cache_pages_offloaded(const quire_cache *cache);

/* Take memory for an offloaded page again, and scatter a gathered buffer into it; releases the
 * slot. Nothing is evicted. Errors: QUIRE_NOTFOUND (not offloaded), QUIRE_INVAL (bytes),
 * QUIRE_NOPAGES (the budget has no room for the page), QUIRE_NOMEM, QUIRE_LIMIT. */
int quire_cache_page_onload(quire_cache *cache, quire_page_id page, const void *buffer,
                            size_t buffer_bytes);

/* A number, never 0, that changes whenever a call that failed for lack of room (QUIRE_NOPAGES,
 * QUIRE_LIMIT, QUIRE_NOMEM) might now succeed: a sequence, a pin or the prefix tree released
 * something, or a budget moved. While the number is unchanged, a retry is useless; a changed number
 * promises nothing. Taking free pages, appending and publishing do not change the number.
 * Cost: O(1), nothing is searched. */
uint64_t quire_cache_generation(const quire_cache *cache);

/* ---- upkeep, between steps ---- */

/* Keep as many free pages mapped and touched as recent demand suggests, within the budget and
 * watermark_pages_max. A page in parts is spread over its extent: while such pages are missing,
 * each call touches as many bytes of the extent as they have, until the whole extent is touched.
 * Failure to get memory is counted, not reported as an error. */
void quire_cache_maintain(quire_cache *cache);

/* Move up to moves_max pages out of the sparsest extents so that whole extents become empty.
 * Page ids stay, addresses change. Returns the number of pages moved. */
uint32_t quire_cache_coalesce(quire_cache *cache, uint32_t moves_max);

/* Return empty extents to the OS, keeping keep_bytes of them. Returns the bytes released. */
uint64_t quire_cache_trim(quire_cache *cache, uint64_t keep_bytes);

/* ---- observation ---- */

typedef struct quire_cache_stats {
    uint64_t budget_bytes;
    uint64_t extent_bytes; /* taken from the OS */
    uint64_t live_bytes;   /* payload of live pages */
    uint64_t cached_bytes; /* payload of pages only the prefix tree holds */
    uint64_t free_bytes;   /* payload of free pages in mapped extents */
    uint64_t tail_bytes;   /* unusable ends of extents */
    uint64_t locked_bytes; /* mlocked. An extent holds pages of any region, so locking is requested
                              for all extents or none; less than extent_bytes: the system refused
                              some */
    uint64_t slack_bytes;  /* internal fragmentation: live pages' slots that hold no token (a slot
                              of a shared page counts as filled once any sharer has filled it) */
    uint64_t offloaded_bytes; /* charge of pages outside of memory; not charged now */
    uint64_t charged_bytes;   /* of the dynamic region */
    uint64_t charged_peak_bytes;
    uint64_t extent_peak_bytes;
    uint64_t pages_live;
    uint64_t pages_cached;
    uint64_t pages_free;
    uint64_t pages_offloaded; /* neither live nor cached above */
    uint64_t pages_peak;      /* of all three */
    uint64_t allocs_total;
    uint64_t frees_total;
    uint64_t alloc_failures_total;
    uint64_t page_copies_total; /* copy-on-write */
    uint64_t page_moves_total;  /* coalescing */
    uint64_t offloads_total;
    uint64_t onloads_total;
    uint64_t watermark_pages; /* current target of pages kept ready */
    uint32_t seqs_open;
    uint32_t extents;
    uint32_t extents_empty;
    double external_fragmentation; /* share of free bytes that lie in partly used extents, 0..1 */
} quire_cache_stats;

/* Snapshot. Thread: any (each figure is atomic, the snapshot as a whole is not). */
void quire_cache_stats_get(const quire_cache *cache, quire_cache_stats *out);

typedef struct quire_region_stats {
    uint64_t budget_bytes;
    uint64_t charged_bytes;
    uint64_t charged_peak_bytes;
    uint64_t cached_bytes;   /* of charged_bytes: held by no sequence and no pin */
    uint64_t pinned_bytes;   /* pages held by pins, charged or offloaded */
    uint64_t reserved_bytes; /* set aside for pins that are not held yet */
    uint64_t
        spilled_bytes; /* live pages taken for its sequences but charged to the dynamic region */
    uint64_t offloaded_bytes; /* pages outside of memory: not in charged_bytes */
    uint64_t pages;
    uint64_t seqs;                  /* open */
    uint64_t spilled_pages_total;   /* step 3: charged to the dynamic region instead */
    uint64_t returned_pages_total;  /* spilled pages that went home */
    uint64_t reclaimed_pages_total; /* step 2: charge moved to the dynamic region */
    uint64_t adopted_pages_total;   /* charged here because its sequences used them */
    uint64_t refused_total;         /* step 4 */
    bool spills_to_dynamic;
} quire_region_stats;

/* Errors: QUIRE_NOTFOUND. Thread: any (each figure is atomic, the snapshot as a whole is not). */
int quire_region_stats_get(const quire_cache *cache, quire_region_id region,
                           quire_region_stats *out);

/* Change a region's budget, and so the sum of all budgets. Cached pages are evicted as needed; live
 * and pinned pages stay. Errors: QUIRE_NOTFOUND, QUIRE_INVAL (below the charge of live and pinned
 * pages). */
int quire_region_budget_set(quire_cache *cache, quire_region_id region, uint64_t budget_bytes);

/*  X(symbol, value, "name")
 *
 * ALLOC  page taken by seq
 * REF    page shared with seq; a fork shares leaves, so this comes with the copy of the leaf, when
 *        one side writes it
 * UNREF  seq let go, others remain
 * FREE   last reference dropped by seq
 * COPY   page, just taken, became seq's private copy of a shared one
 * MOVE   coalescing moved the page
 * MAP    extent taken from the OS (page = extent number)
 * UNMAP  extent returned
 * KEEP   the prefix tree began to rely on the page
 * EVICT  the prefix tree let go of the page; it is freed unless sequences hold it
 * CHARGE the page is charged to another region from now on: the event's
 * OFFLOAD the page gave up its memory
 * ONLOAD  the page took memory again */
#define QUIRE_HISTORY_KIND_MAP(X)                                                                  \
    X(ALLOC, 1, "alloc")                                                                           \
    X(REF, 2, "ref")                                                                               \
    X(UNREF, 3, "unref")                                                                           \
    X(FREE, 4, "free")                                                                             \
    X(COPY, 5, "copy")                                                                             \
    X(MOVE, 6, "move")                                                                             \
    X(MAP, 7, "map")                                                                               \
    X(UNMAP, 8, "unmap")                                                                           \
    X(KEEP, 9, "keep")                                                                             \
    X(EVICT, 10, "evict")                                                                          \
    X(CHARGE, 11, "charge")                                                                        \
    X(OFFLOAD, 12, "offload")                                                                      \
    X(ONLOAD, 13, "onload")

typedef enum quire_history_kind {
#define X(sym, val, name) QUIRE_HISTORY_##sym = (val),
    QUIRE_HISTORY_KIND_MAP(X)
#undef X
} quire_history_kind;

/* "alloc"; "unknown" outside the table. Memory: static. Thread: any. */
const char *quire_history_kind_name(quire_history_kind kind);

typedef struct quire_history_event {
    uint64_t number; /* counts from 0; gaps at the front mean the ring wrapped */
    uint64_t time_us;
    quire_history_kind kind;
    quire_page_id page;
    quire_seq_id seq;
    quire_group_id group;
    quire_region_id region;
    uint32_t extent;
} quire_history_event;

/* Visit the recorded events, oldest first, until visit returns non-zero; returns that value. */
int quire_cache_history_visit(const quire_cache *cache,
                              int (*visit)(void *ctx, const quire_history_event *event), void *ctx);

typedef struct quire_page_info {
    quire_page_id page;
    quire_group_id group;
    quire_region_id region;
    uint32_t refs;     /* table leaves that hold the page; 0 = cached: only the prefix tree holds
                          it */
    uint32_t n_filled; /* slots known to hold tokens */
    uint32_t n_kept;   /* of these, slots that the prefix tree relies on */
    bool is_pinned;    /* a pin holds it */
    bool is_offloaded;
    uint32_t extent; /* number; of an offloaded page 0 */
    uint32_t slot;   /* in the extent; of an offloaded page the owner's */
} quire_page_info;

/* One page. Errors: QUIRE_NOTFOUND (not in use). */
int quire_cache_page_info_get(const quire_cache *cache, quire_page_id page, quire_page_info *out);

/* Visit every page in use, by id, until visit returns non-zero; returns that value. visit must not
 * change the cache. */
int quire_cache_pages_visit(const quire_cache *cache,
                            int (*visit)(void *ctx, const quire_page_info *page), void *ctx);
/* An id above every page id ever used. */
uint32_t quire_cache_page_id_end(const quire_cache *cache);
/* Visit the pages in use among n_ids ids from `first` on, to visit all pages in several calls;
 * begin with id 1. Returns the id for the next call, 0 after the last one. Cost: O(n_ids), a few
 * nanoseconds each. */
quire_page_id quire_cache_pages_visit_some(const quire_cache *cache, quire_page_id first,
                                           uint32_t n_ids,
                                           void (*visit)(void *ctx, const quire_page_info *page),
                                           void *ctx);

/* Check every invariant of every structure; aborts with a message when one is broken. */
void quire_cache_validate(const quire_cache *cache);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* QUIRE_CACHE_H */
