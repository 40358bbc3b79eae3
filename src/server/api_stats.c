/* api_stats.c - GET /v1/cache/stats and /v1/cache/explain[/{id}].
 *
 * SPDX-License-Identifier: MIT */
#include "server/handlers.h"

#include "base/parse.h"
#include "server/generate.h"

#include <stdlib.h>
#include <string.h>

#define EXPLAIN_DEFAULT 20
#define EXPLAIN_MAX     256

static void write_latency(quire_json_out *json, const char *key, const quire_histogram *histogram)
{
    quire_json_object(json, key);
    quire_json_u64(json, "n", histogram->n);
    quire_json_number(json, "sum_s", histogram->sum);
    quire_json_number(json, "p50_s", quire_histogram_quantile(histogram, 0.50));
    quire_json_number(json, "p95_s", quire_histogram_quantile(histogram, 0.95));
    quire_json_number(json, "p99_s", quire_histogram_quantile(histogram, 0.99));
    quire_json_object_end(json);
}

static void write_requests(quire_json_out *json, const quire_engine_stats *s)
{
    quire_json_object(json, "requests");
    quire_json_u64(json, "waiting", s->requests_waiting);
    quire_json_u64(json, "prefilling", s->requests_prefilling);
    quire_json_u64(json, "decoding", s->requests_decoding);
    quire_json_u64(json, "parked", s->requests_parked);
    quire_json_u64(json, "accepted_total", s->requests_total);
    quire_json_u64(json, "stop_total", s->finished_stop_total);
    quire_json_u64(json, "length_total", s->finished_length_total);
    quire_json_u64(json, "cancelled_total", s->finished_cancelled_total);
    quire_json_u64(json, "error_total", s->finished_error_total);
    quire_json_u64(json, "queue_full_total", s->rejected_queue_full_total);
    quire_json_u64(json, "invalid_total", s->rejected_invalid_total);
    quire_json_u64(json, "preemptions_total", s->preemptions_total);
    quire_json_u64(json, "prefix_waits_total", s->prefix_waits_total);
    quire_json_object_end(json);
}

static void write_tokens(quire_json_out *json, const quire_engine_stats *s)
{
    quire_json_object(json, "tokens");
    quire_json_u64(json, "prompt_total", s->prompt_tokens_total);
    quire_json_u64(json, "cached_session_total", s->cached_tokens_session_total);
    quire_json_u64(json, "cached_prefix_total", s->cached_tokens_prefix_total);
    quire_json_u64(json, "computed_prompt_total", s->computed_prompt_tokens_total);
    quire_json_u64(json, "scored_prompt_total", s->scored_prompt_tokens_total);
    quire_json_u64(json, "recomputed_total", s->recomputed_tokens_total);
    quire_json_u64(json, "generated_total", s->generated_tokens_total);
    quire_json_object_end(json);
}

static void write_prefix(quire_json_out *json, const quire_prefix_stats *s)
{
    quire_json_object(json, "prefix");
    quire_json_u64(json, "query_tokens_total", s->query_tokens_total);
    quire_json_u64(json, "hit_tokens_total", s->hit_tokens_total);
    quire_json_u64(json, "lookups_total", s->lookups_total);
    quire_json_u64(json, "hits_total", s->hits_total);
    quire_json_u64(json, "published_tokens_total", s->published_tokens_total);
    quire_json_u64(json, "regret_tokens_total", s->regret_tokens_total);
    quire_json_u64(json, "nodes", s->nodes);
    quire_json_u64(json, "tokens", s->tokens);
    quire_json_u64(json, "roots", s->roots);
    quire_json_u64(json, "evictable_bytes", s->evictable_bytes);
    quire_json_object(json, "gone_tokens_total");
    for (int i = QUIRE_PREFIX_GONE_NONE + 1; i < QUIRE_PREFIX_GONE_COUNT; i++) {
        quire_json_u64(json, quire_prefix_gone_name((quire_prefix_gone)i), s->gone_tokens_total[i]);
    }
    quire_json_object_end(json);
    quire_json_object_end(json);
}

static void write_cache(quire_json_out *json, const quire_cache_stats *s)
{
    quire_json_object(json, "cache");
    quire_json_u64(json, "budget_bytes", s->budget_bytes);
    quire_json_u64(json, "charged_bytes", s->charged_bytes);
    quire_json_u64(json, "charged_peak_bytes", s->charged_peak_bytes);
    quire_json_u64(json, "extent_bytes", s->extent_bytes);
    quire_json_u64(json, "live_bytes", s->live_bytes);
    quire_json_u64(json, "cached_bytes", s->cached_bytes);
    quire_json_u64(json, "offloaded_bytes", s->offloaded_bytes);
    quire_json_u64(json, "free_bytes", s->free_bytes);
    quire_json_u64(json, "slack_bytes", s->slack_bytes);
    quire_json_u64(json, "pages_live", s->pages_live);
    quire_json_u64(json, "pages_cached", s->pages_cached);
    quire_json_u64(json, "pages_free", s->pages_free);
    quire_json_u64(json, "page_copies_total", s->page_copies_total);
    quire_json_number(json, "external_fragmentation", s->external_fragmentation);
    quire_json_object_end(json);
}

static void write_class(quire_json_out *json, const quire_class *c, const quire_class_stats *s)
{
    quire_json_object(json, NULL);
    quire_json_string(json, "name", c->name);
    quire_json_u64(json, "rank", c->rank);
    quire_json_u64(json, "weight", c->weight);
    quire_json_bool(json, "pinned", c->is_pinned);
    quire_json_number(json, "ttft_target_s", c->ttft_target_ms / 1000.0);
    quire_json_number(json, "tpot_target_s", c->tpot_target_ms / 1000.0);
    quire_json_u64(json, "waiting", s->waiting);
    quire_json_u64(json, "running", s->running);
    quire_json_u64(json, "parked", s->parked);
    quire_json_u64(json, "running_limit", s->running_limit);
    quire_json_u64(json, "accepted_total", s->requests_total);
    quire_json_u64(json, "finished_total", s->finished_total);
    quire_json_u64(json, "refused_total", s->refused_total);
    quire_json_u64(json, "displaced_total", s->displaced_total);
    quire_json_u64(json, "parked_total", s->parked_total);
    quire_json_u64(json, "preempted_total", s->preempted_total);
    quire_json_u64(json, "promoted_total", s->promoted_total);
    quire_json_u64(json, "cuts_total", s->cuts_total);
    quire_json_u64(json, "steps_total", s->steps_total);
    quire_json_u64(json, "interrupted_total", s->interrupted_total);
    quire_json_u64(json, "late_steps_total", s->late_steps_total);
    write_latency(json, "queue", &s->queue);
    write_latency(json, "ttft", &s->ttft);
    write_latency(json, "tpot", &s->tpot);
    quire_json_object_end(json);
}

static const char *state_name(quire_store_state state)
{
    switch (state) {
    case QUIRE_STORE_READY:
        return "ready";
    case QUIRE_STORE_READONLY:
        return "readonly";
    case QUIRE_STORE_DEGRADED:
        break;
    }
    return "degraded";
}

static void write_store(quire_json_out *json, const quire_store_stats *s)
{
    quire_json_string(json, "state", state_name(s->state));
    quire_json_string(json, "trouble", s->trouble);
    quire_json_u64(json, "records", s->records);
    quire_json_u64(json, "record_bytes", s->record_bytes);
    quire_json_u64(json, "stored_bytes", s->stored_bytes);
    quire_json_u64(json, "capacity_bytes", s->capacity_bytes);
    quire_json_u64(json, "read_bytes_total", s->read_bytes_total);
    quire_json_u64(json, "written_bytes_total", s->written_bytes_total);
    quire_json_object(json, "results_total");
    for (int i = 0; i < QUIRE_STORE_RESULT_COUNT; i++) {
        quire_json_u64(json, quire_store_result_name((quire_store_result)i), s->results_total[i]);
    }
    quire_json_object_end(json);
}

/* The store below memory, if there is one; `parts` are the stores that it consists of. */
static void write_tier(quire_json_out *json, const quire_tier_stats *s)
{
    if (!s->has_store) {
        return;
    }
    quire_json_object(json, "tier");
    quire_json_string(json, "store", s->name);
    write_store(json, &s->store);
    quire_json_u64(json, "fetching", s->fetching);
    quire_json_u64(json, "fetches_total", s->fetches_total);
    quire_json_u64(json, "fetched_tokens_total", s->fetched_tokens_total);
    quire_json_u64(json, "slow_total", s->slow_total);
    quire_json_u64(json, "copied_pages_total", s->copied_pages_total);
    quire_json_array(json, "parts");
    for (uint32_t i = 0; i < s->n_parts; i++) {
        quire_json_object(json, NULL);
        quire_json_string(json, "store", s->parts[i].name);
        write_store(json, &s->parts[i].stats);
        quire_json_u64(json, "passed_total", s->parts[i].stats.passed_total);
        quire_json_u64(json, "unpassed_total", s->parts[i].stats.unpassed_total);
        quire_json_object_end(json);
    }
    quire_json_array_end(json);
    quire_json_object_end(json);
}

/* The file behind the host's memory below a device's. */
static void write_below(quire_json_out *json, const quire_offload_below_stats *s)
{
    quire_json_object(json, "file");
    quire_json_u64(json, "pages", s->pages);
    quire_json_u64(json, "pages_down_total", s->pages_down_total);
    quire_json_u64(json, "pages_up_total", s->pages_up_total);
    quire_json_u64(json, "used_bytes", s->file.used_bytes);
    quire_json_u64(json, "capacity_bytes", s->file.capacity_bytes);
    quire_json_u64(json, "read_bytes_total", s->file.read_bytes_total);
    quire_json_u64(json, "written_bytes_total", s->file.written_bytes_total);
    quire_json_u64(json, "failures_total", s->file.failures_total);
    quire_json_object_end(json);
}

void quire_api_overflow_write(quire_json_out *json, const quire_overflow_stats *s)
{
    const quire_offload_stats *o = &s->offload;

    if (!s->is_on) {
        return;
    }
    quire_json_object(json, "overflow");
    quire_json_u64(json, "requests_total", s->requests_total);
    quire_json_u64(json, "lost_total", s->lost_total);
    quire_json_u64(json, "pages", o->pages);
    quire_json_u64(json, "pages_out_total", o->pages_out_total);
    quire_json_u64(json, "pages_back_total", o->pages_back_total);
    quire_json_u64(json, "buffer_bytes", o->buffer_bytes);
    quire_json_u64(json, "used_bytes", o->file.used_bytes);
    quire_json_u64(json, "capacity_bytes", o->file.capacity_bytes);
    quire_json_u64(json, "read_bytes_total", o->file.read_bytes_total);
    quire_json_u64(json, "written_bytes_total", o->file.written_bytes_total);
    quire_json_u64(json, "attended_bytes_total", o->file.attended_bytes_total);
    quire_json_u64(json, "chosen_parts_total", o->file.chosen_total);
    quire_json_u64(json, "left_parts_total", o->file.left_total);
    quire_json_u64(json, "failures_total", o->file.failures_total);
    if (o->below.is_on) {
        write_below(json, &o->below);
    }
    quire_json_string(json, "trouble", o->trouble);
    quire_json_object_end(json);
}

/* Figures of state that outlives a restart, if such state is kept. */
static void write_state(quire_json_out *json, const quire_saver_stats *s)
{
    if (!s->is_on) {
        return;
    }
    quire_json_object(json, "state");
    quire_json_u64(json, "items", s->items);
    quire_json_u64(json, "bytes", s->bytes);
    quire_json_u64(json, "capacity_bytes", s->bytes_max);
    quire_json_u64(json, "left_out", s->left_out);
    quire_json_u64(json, "written_total", s->written_total);
    quire_json_u64(json, "failures_total", s->failures_total);
    quire_json_object(json, "restored_total");
    for (int i = 0; i < QUIRE_STATE_KIND_COUNT; i++) {
        quire_json_u64(json, quire_state_kind_name((quire_state_kind)i), s->restored_total[i]);
    }
    quire_json_object_end(json);
    quire_json_object(json, "refused_total");
    for (int i = 1; i < QUIRE_STATE_RESULT_COUNT; i++) {
        quire_json_u64(json, quire_state_result_name((quire_state_result)i), s->refused_total[i]);
    }
    quire_json_object_end(json);
    quire_json_object_end(json);
}

static void write_memory(quire_json_out *json, const quire_memory_stats *s)
{
    quire_json_object(json, "memory");
    quire_json_u64(json, "pinned_budget_bytes", s->pinned_budget_bytes);
    quire_json_u64(json, "pinned_charged_bytes", s->pinned_charged_bytes);
    quire_json_u64(json, "pinned_cached_bytes", s->pinned_cached_bytes);
    quire_json_u64(json, "pinned_pin_bytes", s->pinned_pin_bytes);
    quire_json_u64(json, "pinned_need_bytes", s->pinned_need_bytes);
    quire_json_u64(json, "pinned_need_p99_bytes", s->pinned_need_p99_bytes);
    quire_json_u64(json, "spilled_bytes", s->spilled_bytes);
    quire_json_u64(json, "spilled_pages_total", s->spilled_pages_total);
    quire_json_u64(json, "pins", s->pins);
    quire_json_u64(json, "pin_bytes", s->pin_bytes);
    quire_json_u64(json, "pins_refused_total", s->pins_refused_total);
    quire_json_object(json, "precache");
    quire_json_bool(json, "active", s->precache.is_on);
    quire_json_u64(json, "runs_total", s->precache.runs_total);
    quire_json_u64(json, "tokens_total", s->precache.tokens_total);
    quire_json_u64(json, "gain_tokens_total", s->precache.gain_tokens_total);
    quire_json_u64(json, "waste_tokens_total", s->precache.waste_tokens_total);
    quire_json_object_end(json);
    quire_json_object_end(json);
}

/* Texts that keep a share of their tokens. */
static void write_condensed(quire_json_out *json, const quire_engine_stats *s)
{
    quire_json_object(json, "condensed");
    quire_json_u64(json, "texts", s->condensed_texts);
    quire_json_u64(json, "held_bytes", s->condensed_held_bytes);
    quire_json_u64(json, "text_bytes", s->condensed_text_bytes);
    quire_json_u64(json, "cached_bytes", s->prefix.apart_bytes);
    quire_json_u64(json, "computed_total", s->condensings_total);
    quire_json_u64(json, "computed_again_total", s->condensings_again_total);
    quire_json_u64(json, "found_total", s->condensings_found_total);
    quire_json_u64(json, "found_again_total", s->condensings_found_again_total);
    quire_json_u64(json, "dropped_tokens_total", s->condensed_tokens_total);
    quire_json_u64(json, "repeated_tokens_total", s->repeated_tokens_total);
    quire_json_u64(json, "context_whole_total", s->context_condensings_whole_total);
    quire_json_u64(json, "context_again_total", s->context_condensings_again_total);
    quire_json_object_end(json);
}

/* Generated tokens that read a share of the pages. */
static void write_attend(quire_json_out *json, const quire_engine_stats *s)
{
    quire_json_object(json, "attend");
    quire_json_u64(json, "read_pages_total", s->attend_read_pages_total);
    quire_json_u64(json, "left_pages_total", s->attend_left_pages_total);
    quire_json_object_end(json);
}

static void write_classes(quire_json_out *json, const quire_classes *classes,
                          const quire_engine_stats *stats)
{
    quire_json_array(json, "classes");
    for (uint32_t i = 0; i < stats->n_classes && i < classes->n; i++) {
        write_class(json, &classes->items[i], &stats->classes[i]);
    }
    quire_json_array_end(json);
}

static void write_devices(quire_json_out *json, quire_engine *engine)
{
    quire_engine_device_stats devices[QUIRE_REPLICAS_MAX];
    const uint32_t n = quire_engine_devices_get(engine, devices);

    quire_json_array(json, "devices");
    for (uint32_t i = 0; i < n; i++) {
        const quire_engine_device_stats *d = &devices[i];

        quire_json_object(json, NULL);
        quire_json_string(json, "name", d->name);
        quire_json_bool(json, "lost", d->is_lost);
        quire_json_u64(json, "requests", d->requests);
        quire_json_u64(json, "to_compute_tokens", d->to_compute_tokens);
        quire_json_u64(json, "requests_total", d->requests_total);
        quire_json_u64(json, "adopted_total", d->adopted_total);
        quire_json_u64(json, "prompt_tokens_total", d->prompt_tokens_total);
        quire_json_u64(json, "cached_tokens_total", d->cached_tokens_total);
        quire_json_u64(json, "generated_tokens_total", d->generated_tokens_total);
        quire_json_u64(json, "fetched_tokens_total", d->fetched_tokens_total);
        quire_json_u64(json, "copied_pages_total", d->copied_pages_total);
        quire_json_u64(json, "budget_bytes", d->budget_bytes);
        quire_json_u64(json, "live_bytes", d->live_bytes);
        quire_json_u64(json, "cached_bytes", d->cached_bytes);
        quire_json_object_end(json);
    }
    quire_json_array_end(json);
}

int quire_api_cache_stats(quire_http *http)
{
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    quire_engine_stats stats;

    quire_engine_stats_get(http->engine, &stats);
    quire_json_object(&json, NULL);
    quire_json_number(&json, "uptime_s", (double)stats.uptime_us / 1e6);
    write_requests(&json, &stats);
    write_tokens(&json, &stats);
    quire_json_object(&json, "steps");
    quire_json_u64(&json, "total", stats.steps_total);
    quire_json_u64(&json, "rows_total", stats.step_rows_total);
    quire_json_number(&json, "seconds_total", stats.step_seconds_total);
    quire_json_number(&json, "prefill_token_seconds", stats.prefill_token_seconds);
    quire_json_object_end(&json);
    quire_json_object(&json, "latency");
    write_latency(&json, "ttft", &stats.ttft);
    write_latency(&json, "inter_token", &stats.inter_token);
    write_latency(&json, "queue", &stats.queue);
    write_latency(&json, "e2e", &stats.e2e);
    quire_json_object_end(&json);
    write_prefix(&json, &stats.prefix);
    write_cache(&json, &stats.cache);
    write_memory(&json, &stats.memory);
    write_condensed(&json, &stats);
    write_attend(&json, &stats);
    write_tier(&json, &stats.tier);
    quire_api_overflow_write(&json, &stats.overflow);
    write_state(&json, &stats.saver);
    write_classes(&json, &http->server->tiers.classes, &stats);
    write_devices(&json, http->engine);
    quire_json_object(&json, "sessions");
    quire_json_u64(&json, "open", stats.sessions);
    quire_json_u64(&json, "evictions_total", stats.session_evictions_total);
    quire_json_object_end(&json);
    quire_json_object_end(&json);
    return quire_http_reply_json(http, 200, &body);
}

int quire_api_explain(quire_http *http)
{
    const char *cache_salt = quire_http_query(http, "cache_salt");
    quire_explanation explanation;
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    quire_tenant_salt salt;
    int rc;

    if (cache_salt != NULL && strlen(cache_salt) > QUIRE_CACHE_SALT_MAX) {
        return quire_api_error_set(&http->err, 400, "invalid_value", "cache_salt",
                                   "cache_salt: at most %u bytes", QUIRE_CACHE_SALT_MAX);
    }
    quire_http_salt(http, cache_salt, &salt);
    rc = quire_engine_explain(http->engine, http->item, http->caller.is_admin ? NULL : salt.bytes,
                              http->caller.is_admin ? 0 : salt.n, &explanation);
    if (rc < 0) {
        return quire_api_error_set(&http->err, 404, "no_such_request", "request_id",
                                   "no request of this id is remembered");
    }
    quire_explanation_write(&json, NULL, quire_engine_model(http->engine), &explanation);
    return quire_http_reply_json(http, 200, &body);
}

int quire_api_explain_last(quire_http *http)
{
    const char *text = quire_http_query(http, "n");
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    quire_explanation *list;
    int64_t n = EXPLAIN_DEFAULT;
    uint32_t n_found;

    if (text != NULL && quire_parse_i64(text, 1, EXPLAIN_MAX, &n) < 0) {
        return quire_api_error_set(&http->err, 400, "invalid_value", "n",
                                   "n: must be within 1 .. %d", EXPLAIN_MAX);
    }
    list = calloc((size_t)n, sizeof list[0]);
    if (list == NULL) {
        return quire_api_error_nomem(&http->err);
    }
    n_found = quire_engine_explain_last(http->engine, list, (uint32_t)n);
    quire_json_object(&json, NULL);
    quire_json_string(&json, "object", "list");
    quire_json_array(&json, "data");
    for (uint32_t i = 0; i < n_found; i++) {
        quire_explanation_write(&json, NULL, quire_engine_model(http->engine), &list[i]);
    }
    quire_json_array_end(&json);
    quire_json_object_end(&json);
    free(list);
    return quire_http_reply_json(http, 200, &body);
}
