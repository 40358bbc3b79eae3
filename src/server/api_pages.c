/* api_pages.c - GET /v1/cache/pages: a picture of the pool.
 *
 * The reply lists every page in use, or every k-th if there are more than requested. Each is an
 * array of [page, group, state, filled tokens, owner, ms since used], with state 0 = live (a
 * running sequence's alone), 1 = live and cached, 2 = cached, 3 = cached and pinned, and -1 ms for
 * a page that the tree does not know.
 *
 * SPDX-License-Identifier: MIT */
#include "server/handlers.h"

#include "base/check.h"
#include "base/parse.h"
#include "engine/views.h"

#define CELLS_DEFAULT 4096
#define CELLS_MAX     65536

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

static void write_cell(quire_json_out *json, uint32_t page, const quire_page_cell *cell,
                       uint64_t now_us)
{
    const uint64_t age_us = now_us > cell->used_us ? now_us - cell->used_us : 0;

    quire_json_array(json, NULL);
    quire_json_u64(json, NULL, page);
    quire_json_u64(json, NULL, cell->group);
    quire_json_u64(json, NULL, (uint64_t)cell->state - QUIRE_PAGE_CELL_LIVE);
    quire_json_u64(json, NULL, cell->n_filled);
    quire_json_u64(json, NULL, cell->owner);
    quire_json_i64(json, NULL, cell->used_us > 0 ? (int64_t)(age_us / 1000) : -1);
    quire_json_array_end(json);
}

/* Write every k-th page in use, at most n_max. */
static void write_cells(quire_json_out *json, const quire_page_map *map, uint32_t stride,
                        uint32_t n_max)
{
    const uint64_t now_us = quire_now_us();
    uint32_t n_seen = 0;
    uint32_t n = 0;

    quire_json_array(json, "pages");
    for (uint32_t page = 0; page < map->n_cells && n < n_max; page++) {
        if (map->cells[page].state != QUIRE_PAGE_CELL_FREE && n_seen++ % stride == 0) {
            write_cell(json, page, &map->cells[page], now_us);
            n++;
        }
    }
    quire_json_array_end(json);
}

static void write_map(quire_bytes *out, quire_http *http, const quire_page_map *map, uint32_t n_max)
{
    const uint32_t stride = map->n_in_use / n_max + 1;
    quire_json_out json = { out, false };

    quire_json_object(&json, NULL);
    quire_json_u64(&json, "pages_in_use", map->n_in_use);
    quire_json_u64(&json, "every", stride);
    quire_json_u64(&json, "page_tokens", http->server->opts.page_tokens);
    write_cells(&json, map, stride, n_max);
    quire_json_array(&json, "owners");
    (void)quire_sessions_visit(quire_engine_sessions(http->engine), NULL, 0, add_owner, &json);
    quire_json_array_end(&json);
    quire_json_object_end(&json);
}

int quire_api_pages(quire_http *http)
{
    const char *text = quire_http_query(http, "cells");
    quire_page_map map;
    quire_bytes body = { 0 };
    int64_t cells = CELLS_DEFAULT;
    int rc;

    if (text != NULL && quire_parse_i64(text, 1, CELLS_MAX, &cells) < 0) {
        return quire_api_error_set(&http->err, 400, "invalid_value", "cells",
                                   "cells: must be within 1 .. %d", CELLS_MAX);
    }
    rc = quire_engine_page_map(http->engine, &map);
    if (rc == QUIRE_NOMEM) {
        (void)quire_api_error_nomem(&http->err);
    } else if (rc < 0) {
        (void)quire_api_error_set(&http->err, 503, "stopping", NULL, "the engine has ended");
    } else {
        write_map(&body, http, &map, (uint32_t)cells);
        rc = quire_http_reply_json(http, 200, &body);
    }
    quire_page_map_fini(&map);
    return rc;
}
