/* replicas_views.c - views of an engine with several devices: the sum over those that are left.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop_views.h"
#include "engine/views.h"
#include "model/memory.h"
#include "model/runtime_split.h"

#include <stdlib.h>
#include <string.h>

/* ---- pages and sessions ---- */

static int cells_append(quire_page_map *map, const quire_page_map *more)
{
    quire_page_cell *cells =
        realloc(map->cells, ((size_t)map->n_cells + more->n_cells) * sizeof *cells);

    QUIRE_FAIL_IF(cells == NULL, QUIRE_NOMEM);
    memcpy(cells + map->n_cells, more->cells, more->n_cells * sizeof *cells);
    map->cells = cells;
    map->n_cells += more->n_cells;
    map->n_in_use += more->n_in_use;
    return QUIRE_OK;
}

/* The cells of one device follow those of another. */
int quire_engine_page_map(quire_engine *engine, quire_page_map *out)
{
    const uint32_t first = quire_replicas_first(engine);

    QUIRE_TRY(quire_loop_page_map(engine->loops[first], out));
    for (uint32_t i = first + 1; i < engine->n_replicas; i++) {
        quire_page_map more;
        int rc;

        if (quire_replicas_is_out(engine, i)) {
            continue;
        }
        rc = quire_loop_page_map(engine->loops[i], &more);
        rc = rc == QUIRE_OK ? cells_append(out, &more) : rc;
        quire_page_map_fini(&more);
        QUIRE_TRY(rc);
    }
    return QUIRE_OK;
}

int quire_engine_sessions_kv(quire_engine *engine, quire_session_kv *items, uint32_t n)
{
    const uint32_t first = quire_replicas_first(engine);
    quire_session_kv *more;
    int rc = quire_loop_sessions_kv(engine->loops[first], items, n);

    if (rc < 0 || engine->n_replicas == 1 || n == 0) {
        return rc;
    }
    more = malloc(n * sizeof *more);
    QUIRE_FAIL_IF(more == NULL, QUIRE_NOMEM);
    memcpy(more, items, n * sizeof *more);
    for (uint32_t i = first + 1; rc == QUIRE_OK && i < engine->n_replicas; i++) {
        if (quire_replicas_is_out(engine, i)) {
            continue;
        }
        rc = quire_loop_sessions_kv(engine->loops[i], more, n);
        for (uint32_t j = 0; rc == QUIRE_OK && j < n; j++) {
            items[j].bytes += more[j].bytes;
            items[j].own_bytes += more[j].own_bytes;
        }
    }
    free(more);
    return rc;
}

/* ---- regions and accounts ---- */

static void region_add(quire_region_stats *sum, const quire_region_stats *more, bool is_out)
{
    sum->spilled_pages_total += more->spilled_pages_total;
    sum->returned_pages_total += more->returned_pages_total;
    sum->reclaimed_pages_total += more->reclaimed_pages_total;
    sum->adopted_pages_total += more->adopted_pages_total;
    sum->refused_total += more->refused_total;
    if (is_out) {
        return;
    }
    sum->budget_bytes += more->budget_bytes;
    sum->charged_bytes += more->charged_bytes;
    sum->charged_peak_bytes += more->charged_peak_bytes;
    sum->cached_bytes += more->cached_bytes;
    sum->pinned_bytes += more->pinned_bytes;
    sum->reserved_bytes += more->reserved_bytes;
    sum->spilled_bytes += more->spilled_bytes;
    sum->offloaded_bytes += more->offloaded_bytes;
    sum->pages += more->pages;
    sum->seqs += more->seqs;
}

/* All devices have the same regions. */
uint32_t quire_engine_regions(const quire_engine *engine, quire_region_view out[QUIRE_REGIONS_MAX])
{
    const uint32_t first = quire_replicas_first(engine);
    const uint32_t n = quire_loop_regions(engine->loops[first], out);

    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        quire_region_view more[QUIRE_REGIONS_MAX];
        const uint32_t n_more = i != first ? quire_loop_regions(engine->loops[i], more) : 0;

        for (uint32_t j = 0; j < n && j < n_more; j++) {
            region_add(&out[j].stats, &more[j].stats, quire_replicas_is_out(engine, i));
        }
    }
    return n;
}

uint32_t quire_engine_device_regions(const quire_engine *engine, uint32_t device,
                                     quire_region_view out[QUIRE_REGIONS_MAX])
{
    return quire_loop_regions(engine->loops[device], out);
}

/* An engine with a split has one loop. */
uint32_t quire_engine_layers(const quire_engine *engine,
                             quire_layers_view out[QUIRE_DEVICE_SPLIT_MAX])
{
    const quire_loop_parts *parts = quire_loop_parts_get(engine->loop);
    const quire_runtime_split *split = &parts->runtime_opts->split;
    quire_region_view regions[QUIRE_REGIONS_MAX];
    const uint32_t n_regions = quire_engine_regions(engine, regions);
    uint64_t budget_bytes = 0;

    for (uint32_t i = 0; i < n_regions; i++) {
        budget_bytes += regions[i].stats.budget_bytes;
    }
    for (uint32_t i = 0; i < split->n; i++) {
        const double share = quire_split_share(parts->desc, parts->runtime_opts, i);

        out[i] = (quire_layers_view){ .name = split->names[i],
                                      .first_layer = i > 0 ? split->end[i - 1] : 0,
                                      .last_layer = split->end[i] - 1,
                                      .kv_share = share,
                                      .budget_bytes = quire_memory_share(share, budget_bytes) };
    }
    return split->n;
}

/* Add an account's figures on a device. Bytes and quotas of a lost device do not count. */
static void account_add(quire_account_info *sum, const quire_account_info *more, bool is_out)
{
    sum->quota_evicted_bytes_total += more->quota_evicted_bytes_total;
    sum->weight = more->weight;
    if (is_out) {
        return;
    }
    sum->quota_bytes += more->quota_bytes;
    sum->bytes += more->bytes;
    for (uint32_t r = 0; r < QUIRE_REGIONS_MAX; r++) {
        sum->region_bytes[r] += more->region_bytes[r];
    }
}

/* Quotas are limits of each device: their sum goes with the sum of the bytes. */
int quire_engine_accounts_get(quire_engine *engine, quire_account_info *out, uint32_t n)
{
    quire_account_info *more;
    int rc = QUIRE_OK;

    if (engine->n_replicas == 1 || n == 0) {
        return quire_loop_accounts_get(engine->loop, out, n);
    }
    more = calloc(n, sizeof *more);
    QUIRE_FAIL_IF(more == NULL, QUIRE_NOMEM);
    memset(out, 0, n * sizeof *out);
    for (uint32_t i = 0; rc == QUIRE_OK && i < engine->n_replicas; i++) {
        rc = quire_loop_accounts_get(engine->loops[i], more, n);
        for (uint32_t j = 0; rc == QUIRE_OK && j < n; j++) {
            account_add(&out[j], &more[j], quire_replicas_is_out(engine, i));
        }
    }
    free(more);
    return rc;
}

/* ---- explanations ---- */

static int by_end(const void *a, const void *b)
{
    const uint64_t a_us = ((const quire_explanation *)a)->ended_us;
    const uint64_t b_us = ((const quire_explanation *)b)->ended_us;

    return (a_us < b_us) - (a_us > b_us);
}

uint32_t quire_engine_explain_last(quire_engine *engine, quire_explanation *out, uint32_t n)
{
    const size_t n_max = (size_t)engine->n_replicas * n;
    quire_explanation *all = engine->n_replicas > 1 ? calloc(n_max, sizeof *all) : NULL;
    uint32_t n_all = 0;

    if (all == NULL) { /* one device, or no memory for more */
        return quire_loop_explain_last(engine->loop, out, n);
    }
    for (uint32_t i = 0; i < engine->n_replicas; i++) {
        n_all += quire_loop_explain_last(engine->loops[i], all + n_all, n);
    }
    qsort(all, n_all, sizeof *all, by_end);
    n = n < n_all ? n : n_all;
    memcpy(out, all, n * sizeof *out);
    free(all);
    return n;
}
