/* metrics_table.c - the table of metrics: requests, tokens, prefix cache, memory, latency, server.
 *
 * SPDX-License-Identifier: MIT */
#include "server/metrics_internal.h"

static double running(const quire_engine_stats *engine)
{
    return (double)engine->requests_prefilling + (double)engine->requests_decoding;
}

/* The share that eviction cannot free: a cache full of old prefixes is not full. */
static double usage(const quire_engine_stats *engine)
{
    const uint64_t charged = engine->cache.charged_bytes + engine->memory.pinned_charged_bytes;
    const uint64_t budget = engine->cache.budget_bytes + engine->memory.pinned_budget_bytes;
    const uint64_t evictable = engine->prefix.evictable_bytes;

    if (budget == 0 || charged <= evictable) {
        return 0.0;
    }
    return (double)(charged - evictable) / (double)budget;
}

static double condensed_whole(const quire_engine_stats *engine)
{
    return (double)(engine->condensings_total - engine->condensings_again_total);
}

static double found_whole(const quire_engine_stats *engine)
{
    return (double)(engine->condensings_found_total - engine->condensings_found_again_total);
}

static const char *const config_names[] = { "model",          "kv", "page_tokens", "max_seq_len",
                                            "max_batch_size", NULL };
static const char *const build_names[] = { "version", NULL };

#define STATE(name)    "state=\"" name "\""
#define FINISHED(name) "finished_reason=\"" name "\""
#define SOURCE(name)   "cache_source=\"" name "\""
#define INPUT(name)    "input=\"" name "\""
#define PAGES(name)    "pages=\"" name "\""

#define REGION(name) "region=\"" name "\""
#define REGIONS      "`region`: `dynamic`, `pinned`"

/* Reasons named as by quire_prefix_gone_name(). */
#define GONE(field)                                                                                \
    SAMPLES(ENGINE(REASON("memory"), VALUE_U64, prefix.field[QUIRE_PREFIX_GONE_MEMORY]),           \
            ENGINE(REASON("low_traffic"), VALUE_U64, prefix.field[QUIRE_PREFIX_GONE_LOW_TRAFFIC]), \
            ENGINE(REASON("ttl"), VALUE_U64, prefix.field[QUIRE_PREFIX_GONE_TTL]),                 \
            ENGINE(REASON("invalidated"), VALUE_U64, prefix.field[QUIRE_PREFIX_GONE_INVALIDATED]), \
            ENGINE(REASON("closed"), VALUE_U64, prefix.field[QUIRE_PREFIX_GONE_CLOSED]))
#define GONE_LABELS "`reason`: `memory`, `low_traffic`, `ttl`, `invalidated`, `closed`"
_Static_assert(QUIRE_PREFIX_GONE_COUNT == 6, "a reason without its label");

/* clang-format off */
static const quire_metric_family families[] = {
    /* requests */
    { "quire_num_requests_running", "gauge", "requests", NULL,
      "Requests that are running now, in prefill or in decode.", SAMPLES(DERIVED(NULL, running)) },
    { "quire_num_requests_waiting", "gauge", "requests", NULL,
      "Requests that wait in the queues now.", ONE(VALUE_U32, requests_waiting) },
    { "quire_num_requests", "gauge", "requests",
      "`phase`: `waiting`, `prefill`, `decode`, `parked`",
      "Requests by their phase now. Parked requests have given their place to a higher class.",
      SAMPLES(ENGINE("phase=\"waiting\"", VALUE_U32, requests_waiting),
              ENGINE("phase=\"prefill\"", VALUE_U32, requests_prefilling),
              ENGINE("phase=\"decode\"", VALUE_U32, requests_decoding),
              ENGINE("phase=\"parked\"", VALUE_U32, requests_parked)) },
    { "quire_requests_total", "counter", "requests", NULL,
      "Requests that were accepted, running and waiting ones included.",
      ONE(VALUE_U64, requests_total) },
    { "quire_requests_finished_total", "counter", "requests",
      "`finished_reason`: `stop`, `length`, `cancelled`, `error`",
      "Requests that have ended, by reason.",
      SAMPLES(ENGINE(FINISHED("stop"), VALUE_U64, finished_stop_total),
              ENGINE(FINISHED("length"), VALUE_U64, finished_length_total),
              ENGINE(FINISHED("cancelled"), VALUE_U64, finished_cancelled_total),
              ENGINE(FINISHED("error"), VALUE_U64, finished_error_total)) },
    { "quire_requests_rejected_total", "counter", "requests", "`reason`: `queue_full`, `invalid`",
      "Requests that were refused, because the queue of their class was full or because they were "
      "invalid.",
      SAMPLES(ENGINE(REASON("queue_full"), VALUE_U64, rejected_queue_full_total),
              ENGINE(REASON("invalid"), VALUE_U64, rejected_invalid_total)) },
    { "quire_num_preemptions_total", "counter", "preemptions", NULL,
      "Preemptions: a request gave up its pages because other requests needed them, and continues "
      "later.",
      ONE(VALUE_U64, preemptions_total) },
    { "quire_prefix_waits_total", "counter", "requests", NULL,
      "Requests that were held back while another request computed the same prefix.",
      ONE(VALUE_U64, prefix_waits_total) },
    /* tokens */
    { "quire_prompt_tokens_total", "counter", "tokens", NULL,
      "Prompt tokens of admitted requests, cached tokens included.",
      ONE(VALUE_U64, prompt_tokens_total) },
    { "quire_generation_tokens_total", "counter", "tokens", NULL, "Tokens generated.",
      ONE(VALUE_U64, generated_tokens_total) },
    { "quire_cached_tokens_total", "counter", "tokens", "`cache_source`: `session`, `prefix`",
      "Prompt tokens taken from the cache instead of being computed, by their source: the "
      "request's own session, or any other cached text.",
      SAMPLES(ENGINE(SOURCE("session"), VALUE_U64, cached_tokens_session_total),
              ENGINE(SOURCE("prefix"), VALUE_U64, cached_tokens_prefix_total)) },
    { "quire_prompt_tokens_computed_total", "counter", "tokens", NULL,
      "Prompt tokens that were computed. Tokens computed again after a preemption are included.",
      ONE(VALUE_U64, computed_prompt_tokens_total) },
    { "quire_prompt_tokens_scored_total", "counter", "tokens", NULL,
      "Prompt tokens whose log-probability was computed, for requests that ask for the values.",
      ONE(VALUE_U64, scored_prompt_tokens_total) },
    { "quire_tokens_recomputed_total", "counter", "tokens", NULL,
      "Tokens that were computed again because of preemptions.",
      ONE(VALUE_U64, recomputed_tokens_total) },
    { "quire_context_shifts_total", "counter", "shifts", NULL,
      "Times that tokens left a full context (context_overflow: shift, sinks, condense), again "
      "after a preemption included.",
      ONE(VALUE_U64, context_shifts_total) },
    { "quire_context_dropped_tokens_total", "counter", "tokens", NULL,
      "Tokens that left full contexts in these shifts.",
      ONE(VALUE_U64, context_dropped_tokens_total) },
    { "quire_context_condensings_total", "counter", "condensings", "`input`: `whole`, `condensed`",
      "Times that a full context was condensed (context_overflow: condense), by its input: all "
      "tokens of the text (whole), or what an earlier condensing left of them (condensed).",
      SAMPLES(ENGINE(INPUT("whole"), VALUE_U64, context_condensings_whole_total),
              ENGINE(INPUT("condensed"), VALUE_U64, context_condensings_again_total)) },
    { "quire_condensings_total", "counter", "condensings",
      "`cache_source`: `computed`, `prefix`; `input`: `whole`, `condensed`",
      "Times that a text kept a share of its tokens (retain), computed or found in the prefix "
      "cache, by its input: all tokens of the text (whole), or what an earlier condensing left of "
      "them and the tokens since (condensed).",
      SAMPLES(DERIVED(SOURCE("computed") "," INPUT("whole"), condensed_whole),
              ENGINE(SOURCE("computed") "," INPUT("condensed"), VALUE_U64, condensings_again_total),
              DERIVED(SOURCE("prefix") "," INPUT("whole"), found_whole),
              ENGINE(SOURCE("prefix") "," INPUT("condensed"), VALUE_U64,
                     condensings_found_again_total)) },
    { "quire_condensed_tokens_total", "counter", "tokens", NULL,
      "Tokens that retain dropped from the texts of running requests.",
      ONE(VALUE_U64, condensed_tokens_total) },
    { "quire_repeated_tokens_total", "counter", "tokens", NULL,
      "Tokens computed to repeat texts (retain: reconstruct).",
      ONE(VALUE_U64, repeated_tokens_total) },
    { "quire_attend_pages_total", "counter", "pages", "`pages`: `read`, `left`",
      "Pages that generated tokens of requests with attend read, and pages that they left out. A "
      "page here is 64 tokens of one layer and KV head.",
      SAMPLES(ENGINE(PAGES("read"), VALUE_U64, attend_read_pages_total),
              ENGINE(PAGES("left"), VALUE_U64, attend_left_pages_total)) },
    { "quire_condensed_texts", "gauge", "texts", NULL,
      "Condensed texts whose pages the prefix cache may have.", ONE(VALUE_U32, condensed_texts) },
    { "quire_condensed_held_bytes", "gauge", "bytes", NULL,
      "KV pages of running and parked requests whose text was condensed.",
      ONE(VALUE_U64, condensed_held_bytes) },
    { "quire_condensed_text_bytes", "gauge", "bytes", NULL,
      "KV pages that the texts of quire_condensed_held_bytes would take with all of their tokens.",
      ONE(VALUE_U64, condensed_text_bytes) },
    { "quire_condensed_cached_bytes", "gauge", "bytes", NULL,
      "KV pages of condensed texts in the prefix cache: pages that remain after their "
      "requests, and pages that running requests share with the cache.",
      ONE(VALUE_U64, prefix.apart_bytes) },
    /* prefix cache */
    { "quire_prefix_cache_queries_total", "counter", "tokens", NULL,
      "Prompt tokens that were looked up in the prefix cache.",
      ONE(VALUE_U64, prefix.query_tokens_total) },
    { "quire_prefix_cache_hits_total", "counter", "tokens", NULL,
      "Prompt tokens that were found in the prefix cache. The hit rate is rate(hits) / "
      "rate(queries).",
      ONE(VALUE_U64, prefix.hit_tokens_total) },
    { "quire_prefix_cache_lookups_total", "counter", "lookups", NULL,
      "Lookups in the prefix cache, one per admission of a request.",
      ONE(VALUE_U64, prefix.lookups_total) },
    { "quire_prefix_cache_lookup_hits_total", "counter", "lookups", NULL,
      "Lookups that found at least one token.", ONE(VALUE_U64, prefix.hits_total) },
    { "quire_prefix_cache_published_tokens_total", "counter", "tokens", NULL,
      "Tokens added to the prefix cache.", ONE(VALUE_U64, prefix.published_tokens_total) },
    { "quire_prefix_cache_regret_tokens_total", "counter", "tokens", NULL,
      "Prompt tokens that were cached, were evicted or expired, and were then requested again.",
      ONE(VALUE_U64, prefix.regret_tokens_total) },
    { "quire_evicted_tokens_total", "counter", "tokens", GONE_LABELS,
      "Tokens that left the prefix cache, by reason. closed: their session was closed.",
      GONE(gone_tokens_total) },
    { "quire_evicted_pages_total", "counter", "pages", GONE_LABELS,
      "Nodes of the prefix tree (up to one page of tokens each) that left the prefix cache, by "
      "reason.", GONE(gone_nodes_total) },
    { "quire_prefix_cache_pages", "gauge", "pages", NULL,
      "Nodes of the prefix tree (up to one page of tokens each), including nodes whose pages are "
      "in use.",
      ONE(VALUE_U64, prefix.nodes) },
    { "quire_states_total", "counter", "states", "`event`: `left`, `used`, `fetched`",
      "States of recurrent layers that requests left in the prefix cache, from which requests went "
      "on, and which came into the prefix cache from the store.",
      SAMPLES(ENGINE("event=\"left\"", VALUE_U64, states_left_total),
              ENGINE("event=\"used\"", VALUE_U64, states_used_total),
              ENGINE("event=\"fetched\"", VALUE_U64, states_fetched_total)) },
    { "quire_prefix_cache_tokens", "gauge", "tokens", NULL, "Tokens in the prefix cache now.",
      ONE(VALUE_U64, prefix.tokens) },
    { "quire_prefix_cache_evictable_bytes", "gauge", "bytes", NULL,
      "KV memory of pages that only the prefix cache holds, so that eviction could free it.",
      ONE(VALUE_U64, prefix.evictable_bytes) },
    /* memory */
    { "quire_kv_cache_usage_perc", "gauge", "share, 0 to 1", NULL,
      "Share of the KV budget that eviction could not free, because requests or pins hold the "
      "pages.",
      SAMPLES(DERIVED(NULL, usage)) },
    { "quire_kv_pages", "gauge", "pages", "`state`: `live`, `cached`, `free`",
      "KV pages: live (requests use them), cached (only the prefix cache holds them), and free in "
      "memory that is mapped.",
      SAMPLES(ENGINE(STATE("live"), VALUE_U64, cache.pages_live),
              ENGINE(STATE("cached"), VALUE_U64, cache.pages_cached),
              ENGINE(STATE("free"), VALUE_U64, cache.pages_free)) },
    { "quire_kv_bytes", "gauge", "bytes",
      "`state`: `live`, `cached`, `free`, `tail`, `slack`",
      "KV memory: live, cached and free as in quire_kv_pages; tail, the unusable ends of extents; "
      "slack, the part of live whose slots hold no token.",
      SAMPLES(ENGINE(STATE("live"), VALUE_U64, cache.live_bytes),
              ENGINE(STATE("cached"), VALUE_U64, cache.cached_bytes),
              ENGINE(STATE("free"), VALUE_U64, cache.free_bytes),
              ENGINE(STATE("tail"), VALUE_U64, cache.tail_bytes),
              ENGINE(STATE("slack"), VALUE_U64, cache.slack_bytes)) },
    { "quire_kv_locked_bytes", "gauge", "bytes", NULL,
      "KV memory that is locked, so that it cannot be swapped out.",
      ONE(VALUE_U64, cache.locked_bytes) },
    { "quire_kv_budget_bytes", "gauge", "bytes", REGIONS,
      "Most memory that KV pages of the region may take.",
      SAMPLES(ENGINE(REGION("dynamic"), VALUE_U64, cache.budget_bytes),
              ENGINE(REGION("pinned"), VALUE_U64, memory.pinned_budget_bytes)) },
    { "quire_kv_charged_bytes", "gauge", "bytes", REGIONS,
      "Part of the region's budget that its KV pages take, whether they are in use or only cached.",
      SAMPLES(ENGINE(REGION("dynamic"), VALUE_U64, cache.charged_bytes),
              ENGINE(REGION("pinned"), VALUE_U64, memory.pinned_charged_bytes)) },
    { "quire_kv_charged_peak_bytes", "gauge", "bytes", "`region`: `dynamic`",
      "Largest value of quire_kv_charged_bytes since the start.",
      SAMPLES(ENGINE(REGION("dynamic"), VALUE_U64, cache.charged_peak_bytes)) },
    { "quire_kv_extent_bytes", "gauge", "bytes", NULL,
      "KV memory taken from the operating system, free pages included.",
      ONE(VALUE_U64, cache.extent_bytes) },
    { "quire_kv_page_allocations_total", "counter", "pages", NULL, "KV pages taken into use.",
      ONE(VALUE_U64, cache.allocs_total) },
    { "quire_kv_page_allocation_failures_total", "counter", "calls", NULL,
      "Attempts to take KV pages that failed for lack of room.",
      ONE(VALUE_U64, cache.alloc_failures_total) },
    { "quire_kv_page_copies_total", "counter", "pages", NULL,
      "KV pages copied because a sequence had to write to a page that it shared.",
      ONE(VALUE_U64, cache.page_copies_total) },
    /* latency */
    { "quire_time_to_first_token_seconds", "histogram", "seconds", NULL,
      "Time from the arrival of a request to its first token.", ONE(VALUE_HISTOGRAM, ttft) },
    { "quire_inter_token_latency_seconds", "histogram", "seconds", NULL,
      "Time between two successive tokens of a request.", ONE(VALUE_HISTOGRAM, inter_token) },
    { "quire_request_queue_time_seconds", "histogram", "seconds", NULL,
      "Time from the arrival of a request to its admission.", ONE(VALUE_HISTOGRAM, queue) },
    { "quire_e2e_request_latency_seconds", "histogram", "seconds", NULL,
      "Time from the arrival of a request to its end.", ONE(VALUE_HISTOGRAM, e2e) },
    /* steps */
    { "quire_steps_total", "counter", "steps", NULL, "Steps of the model.",
      ONE(VALUE_U64, steps_total) },
    { "quire_step_rows_total", "counter", "tokens", NULL, "Tokens computed in steps of the model.",
      ONE(VALUE_U64, step_rows_total) },
    { "quire_step_seconds_total", "counter", "seconds", NULL, "Time spent in steps of the model.",
      ONE(VALUE_F64, step_seconds_total) },
    /* sessions */
    { "quire_sessions", "gauge", "sessions", NULL, "Sessions that are open now.",
      ONE(VALUE_U32, sessions) },
    { "quire_session_evictions_total", "counter", "sessions", NULL,
      "Sessions that the server closed because they were idle for too long or because there were "
      "too many.",
      ONE(VALUE_U64, session_evictions_total) },
    /* server */
    { "quire_http_requests_total", "counter", "requests",
      "`class`: `1xx` to `5xx`", "HTTP requests that were answered, by the class of their status.",
      SAMPLES(SERVER("class=\"1xx\"", VALUE_U64, http_requests_total[1]),
              SERVER("class=\"2xx\"", VALUE_U64, http_requests_total[2]),
              SERVER("class=\"3xx\"", VALUE_U64, http_requests_total[3]),
              SERVER("class=\"4xx\"", VALUE_U64, http_requests_total[4]),
              SERVER("class=\"5xx\"", VALUE_U64, http_requests_total[5])) },
    { "quire_http_client_gone_total", "counter", "requests", NULL,
      "Requests that were cancelled because their client closed the connection.",
      SAMPLES(SERVER(NULL, VALUE_U64, client_gone_total)) },
    { "quire_http_connections", "gauge", "connections", NULL, "HTTP connections that are open now.",
      SAMPLES(SERVER(NULL, VALUE_U32, connections)) },
    { "quire_recording", "gauge", "1 or 0", NULL,
      "Whether requests are being recorded (`--record`). 0 also after a failed write ended the "
      "recording.",
      SAMPLES(SERVER(NULL, VALUE_BOOL, is_recording)) },
    { "quire_device_lost", "gauge", "0 or 1", NULL,
      "1 if the server lost its device and went on with the CPU (--on-device-lost cpu).",
      SAMPLES(SERVER(NULL, VALUE_BOOL, has_lost_device)) },
    { "quire_recorded_requests_total", "counter", "requests", "`result`: `written`, `dropped`",
      "Requests that were recorded, and requests left out because the disk was too slow or failed.",
      SAMPLES(SERVER("result=\"written\"", VALUE_U64, recorded_total),
              SERVER("result=\"dropped\"", VALUE_U64, record_dropped_total)) },
    { "quire_kv_events_total", "counter", "events", "`kind`: `stored`, `removed`, `cleared`",
      "Events published for routers (--kv-events): pages of text that memory got and lost, and "
      "times that subscribers were told to forget everything.",
      SAMPLES(SERVER("kind=\"stored\"", VALUE_U64, kv_events.stored_total),
              SERVER("kind=\"removed\"", VALUE_U64, kv_events.removed_total),
              SERVER("kind=\"cleared\"", VALUE_U64, kv_events.cleared_total)) },
    { "quire_kv_events_batches_total", "counter", "batches", NULL,
      "Batches of events for routers that were published.",
      SAMPLES(SERVER(NULL, VALUE_U64, kv_events.batches_total)) },
    { "quire_kv_events_lost_total", "counter", "losses", NULL,
      "Times that a removed page found the queue of events full: all pages were published again.",
      SAMPLES(SERVER(NULL, VALUE_U64, kv_events.lost_total)) },
    { "quire_kv_events_replays_total", "counter", "requests", NULL,
      "Requests of subscribers for past batches (--kv-events-replay).",
      SAMPLES(SERVER(NULL, VALUE_U64, kv_events.replays_total)) },
    { "quire_kv_events_replayed_batches_total", "counter", "batches", NULL,
      "Past batches sent to subscribers that asked for them.",
      SAMPLES(SERVER(NULL, VALUE_U64, kv_events.replayed_total)) },
    { "quire_uptime_seconds", "gauge", "seconds", NULL, "Time since the engine was started.",
      ONE(VALUE_US, uptime_us) },
    { "quire_cache_config_info", "gauge", "always 1",
      "`model`, `kv`, `page_tokens`, `max_seq_len`, `max_batch_size`",
      "Settings of the model and the cache, as labels.",
      SAMPLES(INFO(config_names)) },
    { "quire_build_info", "gauge", "always 1", "`version`", "Version of the program, as a label.",
      SAMPLES(INFO(build_names)) },
};
/* clang-format on */

const quire_metric_table quire_metrics_main = { families, sizeof(families) / sizeof(families[0]) };
