/* api_pages.c - GET /v1/cache/pages: a picture of the pool.
 *
 * Every page in use, or every k-th when there are more than asked for: an array of
 * [page, group, state, filled tokens, owner, ms since used], with state 0 = live (a running
 * sequence's alone), 1 = live and cached, 2 = cached, 3 = cached and pinned, and -1 ms for a page
 * that the tree does not know.
 *
 * SPDX-License-Identifier: MIT */
#include "server/handlers.h"

#include "base/check.h"
#include "base/parse.h"

#include <stdlib.h>
#include <string.h>

#define CELLS_DEFAULT 4096
#define CELLS_MAX     65536

typedef struct page_cell {
    quire_page_info info;
    uint64_t owner;
    uint64_t used_us;
    bool is_known; /* to the tree */
} page_cell;

typedef struct page_map {
    page_cell *cells; /* [cap], ascending by page */
    uint32_t cap;
    uint32_t n;
    uint64_t stride;
    uint64_t n_seen;
    uint32_t n_groups; /* that have pages */
} page_map;

static int add_page(void *ctx, const quire_page_info *info)
{
    page_map *map = ctx;

    map->n_groups = info->group >= map->n_groups ? info->group + 1u : map->n_groups;
    if (map->n_seen++ % map->stride == 0 && map->n < map->cap) {
        map->cells[map->n++].info = *info;
    }
    return 0;
}

static page_cell *find_cell(page_map *map, quire_page_id page)
{
    uint32_t low = 0;
    uint32_t high = map->n;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if (map->cells[middle].info.page < page) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < map->n && map->cells[low].info.page == page ? &map->cells[low] : NULL;
}

static int add_node(void *ctx, const quire_prefix_node_info *node)
{
    page_map *map = ctx;

    for (uint32_t group = 0; group < map->n_groups; group++) {
        page_cell *cell = find_cell(map, node->pages[group]);

        if (cell != NULL) {
            cell->owner = node->owner;
            cell->used_us = node->used_us;
            cell->is_known = true;
        }
    }
    return 0;
}

/* On the engine's thread. */
static void take_picture(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    page_map *map = ctx;
    quire_cache_stats stats;

    quire_cache_stats_get(cache, &stats);
    map->stride = (stats.pages_live + stats.pages_cached) / map->cap + 1;
    (void)quire_cache_pages_visit(cache, add_page, map);
    if (tree != NULL) {
        (void)quire_prefix_visit(tree, add_node, map);
    }
}

static int add_owner(void *ctx, const quire_session_info *info)
{
    quire_json_out *json = ctx;
    quire_tenant_names names = { "", "" };

    (void)quire_tenant_salt_names(info->tenant, info->tenant_bytes, &names);
    quire_json_object(json, NULL);
    quire_json_u64(json, "owner", info->owner);
    quire_json_string(json, "session_id", info->id);
    quire_json_string(json, "tenant", names.tenant);
    quire_json_object_end(json);
    return 0;
}

static void write_cell(quire_json_out *json, const page_cell *cell, uint64_t now_us)
{
    const uint64_t age_us = now_us > cell->used_us ? now_us - cell->used_us : 0;
    const unsigned unused = cell->info.is_pinned ? 3 : 2;
    const unsigned state = cell->info.refs == 0 ? unused : cell->info.n_kept > 0 ? 1 : 0;

    quire_json_array(json, NULL);
    quire_json_u64(json, NULL, cell->info.page);
    quire_json_u64(json, NULL, cell->info.group);
    quire_json_u64(json, NULL, state);
    quire_json_u64(json, NULL, cell->info.n_filled);
    quire_json_u64(json, NULL, cell->owner);
    quire_json_i64(json, NULL, cell->is_known ? (int64_t)(age_us / 1000) : -1);
    quire_json_array_end(json);
}

static void write_map(quire_bytes *out, quire_http *http, const page_map *map)
{
    quire_json_out json = { out, false };
    const uint64_t now_us = quire_now_us();

    quire_json_object(&json, NULL);
    quire_json_u64(&json, "pages_in_use", map->n_seen);
    quire_json_u64(&json, "every", map->stride);
    quire_json_u64(&json, "page_tokens", http->server->opts.page_tokens);
    quire_json_array(&json, "pages");
    for (uint32_t i = 0; i < map->n; i++) {
        write_cell(&json, &map->cells[i], now_us);
    }
    quire_json_array_end(&json);
    quire_json_array(&json, "owners");
    (void)quire_sessions_visit(quire_engine_sessions(http->engine), NULL, 0, add_owner, &json);
    quire_json_array_end(&json);
    quire_json_object_end(&json);
}

int quire_api_pages(quire_http *http)
{
    const char *text = quire_http_query(http, "cells");
    page_map map = { 0 };
    quire_bytes body = { 0 };
    int64_t cells = CELLS_DEFAULT;
    int rc;

    if (text != NULL && quire_parse_i64(text, 1, CELLS_MAX, &cells) < 0) {
        return quire_api_error_set(&http->err, 400, "invalid_value", "cells",
                                   "cells: must be within 1 .. %d", CELLS_MAX);
    }
    map.cap = (uint32_t)cells;
    map.cells = calloc(map.cap, sizeof map.cells[0]);
    if (map.cells == NULL) {
        return quire_api_error_nomem(&http->err);
    }
    rc = quire_engine_call(http->engine, take_picture, &map);
    if (rc < 0) {
        (void)quire_api_error_set(&http->err, 503, "stopping", NULL, "the engine has ended");
    } else {
        write_map(&body, http, &map);
        rc = quire_http_reply_json(http, 200, &body);
    }
    free(map.cells);
    return rc;
}
