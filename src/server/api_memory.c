/* api_memory.c - GET /v1/cache/regions, /v1/cache/events and /v1/cache/what-if: guaranteed memory
 * and its events.
 *
 * SPDX-License-Identifier: MIT */
#include "server/handlers.h"

#include "base/check.h"
#include "base/parse.h"
#include "engine/views.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS_DEFAULT 100
#define EVENTS_MAX     1024

/* ---- regions ---- */

typedef struct region_list {
    quire_account_info *accounts; /* [n_accounts], account i + 1 at i */
    uint32_t n_accounts;
    quire_region_view items[QUIRE_REGIONS_MAX];
    uint32_t n;
} region_list;

static void write_region(quire_json_out *json, uint32_t id, const quire_region_stats *s)
{
    quire_json_object(json, NULL);
    quire_json_u64(json, "id", id);
    quire_json_string(json, "name", id == 0 ? "dynamic" : "pinned");
    quire_json_u64(json, "budget_bytes", s->budget_bytes);
    quire_json_u64(json, "charged_bytes", s->charged_bytes);
    quire_json_u64(json, "charged_peak_bytes", s->charged_peak_bytes);
    quire_json_u64(json, "cached_bytes", s->cached_bytes);
    quire_json_u64(json, "offloaded_bytes", s->offloaded_bytes);
    quire_json_u64(json, "pinned_bytes", s->pinned_bytes);
    quire_json_u64(json, "reserved_bytes", s->reserved_bytes);
    quire_json_u64(json, "spilled_bytes", s->spilled_bytes);
    quire_json_bool(json, "spills", s->spills_to_dynamic);
    quire_json_u64(json, "pages", s->pages);
    quire_json_u64(json, "sequences", s->seqs);
    quire_json_u64(json, "spilled_pages_total", s->spilled_pages_total);
    quire_json_u64(json, "returned_pages_total", s->returned_pages_total);
    quire_json_u64(json, "reclaimed_pages_total", s->reclaimed_pages_total);
    quire_json_u64(json, "adopted_pages_total", s->adopted_pages_total);
    quire_json_u64(json, "refused_total", s->refused_total);
    quire_json_object_end(json);
}

static void write_accounts(quire_json_out *json, const region_list *list,
                           const quire_server_opts *opts)
{
    quire_json_array(json, "tenants");
    for (uint32_t i = 0; i < list->n_accounts; i++) {
        const quire_account_info *a = &list->accounts[i];

        quire_json_object(json, NULL);
        quire_json_string(json, "name", opts->accounts[i]);
        quire_json_u64(json, "bytes", a->bytes);
        if (a->quota_bytes > 0) {
            quire_json_u64(json, "quota_bytes", a->quota_bytes);
        } else {
            quire_json_null(json, "quota_bytes");
        }
        quire_json_u64(json, "weight", a->weight);
        quire_json_u64(json, "quota_evicted_bytes_total", a->quota_evicted_bytes_total);
        quire_json_object_end(json);
    }
    quire_json_array_end(json);
}

/* Whether the mapped memory is locked: none, all, or as much as the system allowed. */
static const char *locked_name(const quire_cache_stats *cache)
{
    if (cache->locked_bytes == 0) {
        return "none";
    }
    return cache->locked_bytes < cache->extent_bytes ? "part" : "all";
}

static void write_regions(quire_json_out *json, const region_list *list,
                          const quire_engine_stats *stats)
{
    quire_json_string(json, "object", "list");
    quire_json_array(json, "data");
    for (uint32_t i = 0; i < list->n; i++) {
        write_region(json, list->items[i].id, &list->items[i].stats);
    }
    quire_json_array_end(json);
    quire_json_object(json, "pinned");
    quire_json_u64(json, "need_bytes", stats->memory.pinned_need_bytes);
    quire_json_u64(json, "need_p99_bytes", stats->memory.pinned_need_p99_bytes);
    quire_json_u64(json, "grown_total", stats->memory.pinned_grown_total);
    quire_json_u64(json, "shrunk_total", stats->memory.pinned_shrunk_total);
    quire_json_object_end(json);
    quire_json_u64(json, "extent_bytes", stats->cache.extent_bytes);
    quire_json_u64(json, "locked_bytes", stats->cache.locked_bytes);
    quire_json_string(json, "locked", locked_name(&stats->cache));
}

/* The regions of each device, where there are several. */
static void write_device_regions(quire_json_out *json, quire_engine *engine)
{
    quire_engine_device_stats devices[QUIRE_REPLICAS_MAX];
    const uint32_t n = quire_engine_devices_get(engine, devices);

    if (n < 2) {
        return;
    }
    quire_json_array(json, "devices");
    for (uint32_t i = 0; i < n; i++) {
        quire_region_view regions[QUIRE_REGIONS_MAX];
        const uint32_t n_regions = quire_engine_device_regions(engine, i, regions);

        quire_json_object(json, NULL);
        quire_json_string(json, "name", devices[i].name);
        quire_json_bool(json, "lost", devices[i].is_lost);
        quire_json_array(json, "data");
        for (uint32_t j = 0; j < n_regions; j++) {
            write_region(json, regions[j].id, &regions[j].stats);
        }
        quire_json_array_end(json);
        quire_json_object_end(json);
    }
    quire_json_array_end(json);
}

/* The layers of each device, where they are on several. */
static void write_layers(quire_json_out *json, const quire_engine *engine)
{
    quire_layers_view layers[QUIRE_DEVICE_SPLIT_MAX];
    const uint32_t n = quire_engine_layers(engine, layers);

    if (n == 0) {
        return;
    }
    quire_json_array(json, "layers");
    for (uint32_t i = 0; i < n; i++) {
        quire_json_object(json, NULL);
        quire_json_string(json, "device", layers[i].name);
        quire_json_u64(json, "first_layer", layers[i].first_layer);
        quire_json_u64(json, "last_layer", layers[i].last_layer);
        quire_json_number(json, "kv_share", layers[i].kv_share);
        quire_json_u64(json, "budget_bytes", layers[i].budget_bytes);
        quire_json_object_end(json);
    }
    quire_json_array_end(json);
}

/* The size of a page, and the measurements of other sizes. */
static void write_page_sizes(quire_json_out *json, const quire_server_opts *opts)
{
    quire_json_u64(json, "page_tokens", opts->page_tokens);
    if (opts->page_curve != NULL) {
        quire_json_raw(json, "page_curve", opts->page_curve, strlen(opts->page_curve));
    } else {
        quire_json_null(json, "page_curve");
    }
}

int quire_api_regions(quire_http *http)
{
    const quire_server_opts *opts = &http->server->opts;
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    region_list list = { .n_accounts = opts->n_accounts };
    quire_engine_stats stats;

    list.accounts = calloc(opts->n_accounts + 1, sizeof list.accounts[0]);
    if (list.accounts == NULL) {
        return quire_api_error_nomem(&http->err);
    }
    list.n = quire_engine_regions(http->engine, list.items);
    if (quire_engine_accounts_get(http->engine, list.accounts, list.n_accounts) < 0) {
        free(list.accounts);
        return quire_api_error_set(&http->err, 503, "stopping", NULL, "the engine has ended");
    }
    quire_engine_stats_get(http->engine, &stats);
    quire_json_object(&json, NULL);
    write_regions(&json, &list, &stats);
    write_device_regions(&json, http->engine);
    write_layers(&json, http->engine);
    write_accounts(&json, &list, opts);
    quire_api_overflow_write(&json, &stats.overflow);
    write_page_sizes(&json, opts);
    quire_json_object_end(&json);
    free(list.accounts);
    return quire_http_reply_json(http, 200, &body);
}

/* ---- events ---- */

static int number_of(quire_http *http, const char *name, int64_t min, int64_t max, int64_t *out)
{
    const char *text = quire_http_query(http, name);

    if (text != NULL && quire_parse_i64(text, min, max, out) < 0) {
        return quire_api_error_set(&http->err, 400, "invalid_value", name,
                                   "%s: must be a number from %lld to %lld", name, (long long)min,
                                   (long long)max);
    }
    return QUIRE_OK;
}

int quire_api_events(quire_http *http)
{
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    quire_engine_stats stats;
    quire_event *list;
    int64_t after = 0;
    int64_t limit = EVENTS_DEFAULT;
    uint32_t n;

    QUIRE_TRY(number_of(http, "after", 0, INT64_MAX, &after));
    QUIRE_TRY(number_of(http, "limit", 1, EVENTS_MAX, &limit));
    list = calloc((size_t)limit, sizeof list[0]);
    if (list == NULL) {
        return quire_api_error_nomem(&http->err);
    }
    quire_engine_stats_get(http->engine, &stats);
    n = quire_engine_events(http->engine, (uint64_t)after, list, (uint32_t)limit);
    quire_json_object(&json, NULL);
    quire_json_string(&json, "object", "list");
    quire_json_array(&json, "data");
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t now_us =
            stats.uptime_us > list[i].time_us ? stats.uptime_us : list[i].time_us;

        quire_json_object(&json, NULL);
        quire_json_u64(&json, "number", list[i].number);
        quire_json_string(&json, "kind", quire_event_kind_name(list[i].kind));
        quire_json_string(&json, "text", list[i].text);
        quire_json_number(&json, "uptime_s", (double)list[i].time_us / 1e6);
        quire_json_number(&json, "ago_s", (double)(now_us - list[i].time_us) / 1e6);
        quire_json_object_end(&json);
    }
    quire_json_array_end(&json);
    quire_json_u64(&json, "last", n > 0 ? list[n - 1].number : (uint64_t)after);
    quire_json_object_end(&json);
    free(list);
    return quire_http_reply_json(http, 200, &body);
}

/* ---- estimates for other sizes ---- */

/* The reason why no rates exist yet, written into text; NULL = rates exist. */
static const char *why_unknown(const quire_shadow_stats *shadow, char *text, size_t n)
{
    if (shadow->sample_rate <= 0.0) {
        return "nothing is kept for this: the server runs with --no-what-if or without a prefix "
               "cache";
    }
    if (quire_shadow_is_telling(shadow)) {
        return NULL;
    }
    (void)snprintf(
        text, n,
        "rates are shown from %u requests with %u sampled prompt blocks of %u tokens; so "
        "far there are %llu requests with %llu blocks",
        QUIRE_SHADOW_REQUESTS_MIN, QUIRE_SHADOW_BLOCKS_MIN, QUIRE_SHADOW_BLOCK_TOKENS,
        (unsigned long long)shadow->asking_total, (unsigned long long)shadow->blocks_total);
    return text;
}

static void write_size(quire_json_out *json, const quire_shadow_stats *shadow, uint32_t i,
                       double budget_bytes)
{
    const quire_shadow_size_stats *s = &shadow->sizes[i];

    quire_json_object(json, NULL);
    quire_json_number(json, "factor", s->factor);
    quire_json_u64(json, "bytes", (uint64_t)(s->factor * budget_bytes));
    quire_json_u64(json, "tokens", s->capacity_blocks * QUIRE_SHADOW_BLOCK_TOKENS);
    if (quire_shadow_is_telling(shadow)) {
        quire_json_number(json, "hit_rate", quire_shadow_hit_rate(shadow, i));
    } else {
        quire_json_null(json, "hit_rate");
    }
    quire_json_object_end(json);
}

int quire_api_what_if(quire_http *http)
{
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    const quire_shadow_stats *shadow;
    quire_engine_stats stats;
    const char *reason;
    double budget_bytes;
    char text[256];

    quire_engine_stats_get(http->engine, &stats);
    shadow = &stats.memory.shadow;
    reason = why_unknown(shadow, text, sizeof text);
    budget_bytes = (double)stats.cache.budget_bytes + (double)stats.memory.pinned_budget_bytes;
    quire_json_object(&json, NULL);
    quire_json_bool(&json, "enabled", shadow->sample_rate > 0.0);
    if (reason != NULL) {
        quire_json_string(&json, "reason", reason);
    } else {
        quire_json_null(&json, "reason");
    }
    quire_json_array(&json, "sizes");
    for (uint32_t i = 0; i < QUIRE_SHADOW_SIZES && shadow->sample_rate > 0.0; i++) {
        write_size(&json, shadow, i, budget_bytes);
    }
    quire_json_array_end(&json);
    quire_json_u64(&json, "requests_total", shadow->requests_total);
    quire_json_u64(&json, "sampled_requests_total", shadow->asking_total);
    quire_json_u64(&json, "sampled_tokens_total", shadow->blocks_total * QUIRE_SHADOW_BLOCK_TOKENS);
    quire_json_number(&json, "sample_rate", shadow->sample_rate);
    quire_json_number(&json, "seconds_total", shadow->seconds_total);
    quire_json_object_end(&json);
    return quire_http_reply_json(http, 200, &body);
}
