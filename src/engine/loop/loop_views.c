/* loop_views.c - see views.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/loop_views.h"

#include "base/check.h"
#include "engine/loop/chores.h"
#include "engine/loop/condense_names.h"
#include "engine/loop/loop_object.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sizes of slices: some microseconds each. */
#define SLICE_PAGES    256u
#define SLICE_NODES    64u
#define SLICE_ACCOUNTS 16u

/* ---- pages ---- */

typedef struct map_work {
    quire_page_map *map;
    uint32_t page; /* next page; 0 = all pages are in the map */
    uint32_t node; /* next node, likewise */
    int status;
} map_work;

static quire_page_cell_state state_of(const quire_page_info *info)
{
    if (info->refs > 0) {
        return info->n_kept > 0 ? QUIRE_PAGE_CELL_SHARED : QUIRE_PAGE_CELL_LIVE;
    }
    return info->is_pinned ? QUIRE_PAGE_CELL_PINNED : QUIRE_PAGE_CELL_CACHED;
}

static void page_add(void *ctx, const quire_page_info *info)
{
    map_work *work = ctx;

    if (info->page < work->map->n_cells) { /* else the page is newer than the map */
        work->map->cells[info->page] = (quire_page_cell){
            .n_filled = (uint16_t)info->n_filled,
            .group = (uint8_t)info->group,
            .state = (uint8_t)state_of(info),
        };
        work->map->n_in_use++;
    }
}

static void use_add(void *ctx, const quire_prefix_page_use *use)
{
    const map_work *work = ctx;

    for (uint32_t g = 0; g < use->n_groups; g++) {
        const quire_page_id page = use->pages[g];

        if (page != QUIRE_PAGE_NULL && page < work->map->n_cells &&
            work->map->cells[page].state != QUIRE_PAGE_CELL_FREE) {
            work->map->cells[page].owner = use->owner;
            work->map->cells[page].used_us = use->used_us;
        }
    }
}

static bool map_slice(void *ctx, const quire_cache *cache, const quire_prefix *tree)
{
    map_work *work = ctx;

    if (work->map->cells == NULL) {
        work->map->n_cells = quire_cache_page_id_end(cache);
        work->map->cells = calloc(work->map->n_cells, sizeof work->map->cells[0]);
        work->status = work->map->cells != NULL ? QUIRE_OK : QUIRE_NOMEM;
        return work->status < 0;
    }
    if (work->page != QUIRE_PAGE_NULL) {
        work->page = quire_cache_pages_visit_some(cache, work->page, SLICE_PAGES, page_add, work);
        return false;
    }
    work->node = quire_prefix_visit_some(tree, work->node, SLICE_NODES, use_add, work);
    return work->node == 0;
}

int quire_loop_page_map(quire_loop *loop, quire_page_map *out)
{
    map_work work = { .map = out, .page = 1, .node = 1 };

    *out = (quire_page_map){ 0 };
    QUIRE_TRY(quire_loop_chore_do(loop, map_slice, &work));
    return work.status;
}

void quire_page_map_fini(quire_page_map *map)
{
    free(map->cells);
    *map = (quire_page_map){ 0 };
}

/* ---- sessions ---- */

typedef struct kv_work {
    const quire_loop *loop;
    quire_session_kv *items;
    uint32_t n;
    uint32_t next;
    const quire_prefix *tree;
} kv_work;

static void path_add(const kv_work *work, const quire_session_info *info,
                     const quire_prefix_key *key, uint32_t n_gone)
{
    quire_session_kv *item = &work->items[work->next];
    uint64_t bytes, own_bytes;

    quire_prefix_path_bytes(work->tree, key, info->tokens + n_gone, info->n_tokens - n_gone,
                            info->owner, &bytes, &own_bytes);
    item->bytes += bytes;
    item->own_bytes += own_bytes;
}

/* The rules of an entry for policy and tenant, by its policy's name. False: not of this runtime. */
static bool rules_read(const quire_loop *loop, const char *name, quire_condensing *out)
{
    const char *maps = strstr(name, ",maps="); /* condensing.c adds them to the text */
    char text[QUIRE_RETAIN_TEXT_MAX];
    quire_retain_spec spec;

    (void)snprintf(text, sizeof text, "%s", name);
    text[maps != NULL ? (size_t)(maps - name) : strlen(text)] = '\0';
    if (quire_retain_parse(text, &spec, NULL) < 0) {
        return false;
    }
    quire_condensing_init(out, &spec, loop->opts.retain_chunk, loop->runtime_opts->page_tokens,
                          &loop->lanes.parts);
    return strcmp(out->name, name) == 0;
}

/* Pages of the text as one policy has condensed it: each condensing has a root of its own. */
static void condensed_add(const kv_work *work, const quire_session_info *info,
                          quire_condensed policy)
{
    const quire_loop *loop = work->loop;
    quire_condensing rules;
    const quire_condensed_text text = { &rules, info->tokens, info->tenant, info->tenant_bytes };
    quire_condensed entry;
    uint32_t n_bytes, k;

    if (!rules_read(loop, quire_condensed_bytes(loop->condensed, policy, &n_bytes), &rules)) {
        return;
    }
    entry = quire_loop_condensed_find(loop, &text,
                                      quire_condensing_before(&rules, info->n_tokens - 1), &k);
    for (; k > 0; k--, entry = quire_condensed_parent(loop->condensed, entry)) {
        const quire_prefix_key key =
            quire_loop_condensed_key(loop, info->tenant, info->tenant_bytes, entry);

        path_add(work, info, &key, quire_condensing_gone(&rules, k));
    }
}

static bool is_policy_of(const quire_loop *loop, quire_condensed entry,
                         const quire_session_info *info)
{
    const void *tenant;
    uint32_t n_bytes;

    if (entry == QUIRE_CONDENSED_NULL ||
        quire_condensed_parent(loop->condensed, entry) != QUIRE_CONDENSED_NULL) {
        return false;
    }
    tenant = quire_loop_condensed_tenant(loop, entry, &n_bytes);
    return n_bytes == info->tenant_bytes &&
           (n_bytes == 0 || memcmp(tenant, info->tenant, n_bytes) == 0);
}

/* A session does not know the policies of its requests, so all of its tenant's are tried. */
static void kv_measure(void *ctx, const quire_session_info *info)
{
    const kv_work *work = ctx;
    const quire_loop *loop = work->loop;
    const quire_prefix_key key = quire_loop_key(loop, info->tenant, info->tenant_bytes);
    const bool is_condensed = quire_condensed_count(loop->condensed) > 0;

    if (info->n_tokens == 0) {
        return;
    }
    path_add(work, info, &key, 0);
    for (uint32_t i = 0; is_condensed && i < QUIRE_CONDENSED_MAX; i++) {
        const quire_condensed entry = quire_condensed_at(loop->condensed, i);

        if (is_policy_of(loop, entry, info)) {
            condensed_add(work, info, entry);
        }
    }
}

/* One session per slice: its tokens are read in place, under the table's lock. */
static bool kv_slice(void *ctx, const quire_cache *cache, const quire_prefix *tree)
{
    kv_work *work = ctx;
    const quire_session_kv *item = &work->items[work->next];

    (void)cache;
    work->tree = tree;
    quire_sessions_look(work->loop->sessions, item->tenant, item->tenant_bytes, item->id,
                        kv_measure, work);
    return ++work->next == work->n;
}

int quire_loop_sessions_kv(quire_loop *loop, quire_session_kv *items, uint32_t n)
{
    kv_work work = { .loop = loop, .items = items, .n = n };

    for (uint32_t i = 0; i < n; i++) {
        items[i].bytes = 0;
        items[i].own_bytes = 0;
    }
    return n > 0 ? quire_loop_chore_do(loop, kv_slice, &work) : QUIRE_OK;
}

/* ---- regions and accounts ---- */

uint32_t quire_loop_regions(const quire_loop *loop, quire_region_view out[QUIRE_REGIONS_MAX])
{
    uint32_t n = 0;

    for (quire_region_id id = 0; id < QUIRE_REGIONS_MAX; id++) {
        if (quire_region_stats_get(loop->cache, id, &out[n].stats) == QUIRE_OK) {
            out[n++].id = id;
        }
    }
    return n;
}

typedef struct account_work {
    quire_account_info *out;
    uint32_t n;
    uint32_t next;
} account_work;

static bool account_slice(void *ctx, const quire_cache *cache, const quire_prefix *tree)
{
    account_work *work = ctx;

    (void)cache;
    for (uint32_t i = 0; i < SLICE_ACCOUNTS && work->next < work->n; i++) {
        (void)quire_prefix_account_get(tree, (uint16_t)(work->next + 1), &work->out[work->next]);
        work->next++;
    }
    return work->next == work->n;
}

int quire_loop_accounts_get(quire_loop *loop, quire_account_info *out, uint32_t n)
{
    account_work work = { .out = out, .n = n };

    return quire_loop_chore_do(loop, account_slice, &work);
}
