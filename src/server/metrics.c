/* metrics.c - the table of metrics, written as Prometheus text and as documentation.
 *
 * SPDX-License-Identifier: MIT */
#include "server/metrics.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* What values are read from. */
typedef struct sources {
    const quire_engine_stats *engine;
    const quire_server_stats *server;
    const quire_metrics_config *config;
} sources;

typedef enum value_type {
    VALUE_U64,
    VALUE_U32,
    VALUE_US, /* uint64_t microseconds, written as seconds */
    VALUE_F64,
    VALUE_DERIVED,
    VALUE_HISTOGRAM,
    VALUE_INFO /* always 1; what matters are its labels */
} value_type;

typedef struct sample {
    const char *labels; /* "state=\"live\""; NULL = none */
    value_type type;
    bool is_server; /* the offset is in quire_server_stats */
    size_t offset;
    double (*derive)(const quire_engine_stats *engine);
    const char *const *info; /* names of the config's texts, see info_text(); NULL-terminated */
} sample;

typedef struct family {
    const char *name;
    const char *type;   /* of Prometheus */
    const char *unit;   /* for people */
    const char *labels; /* for people; NULL = none */
    const char *help;
    const sample *samples;
    size_t n_samples;
} family;

static double running(const quire_engine_stats *engine)
{
    return (double)engine->requests_prefilling + (double)engine->requests_decoding;
}

/* What could not be had by evicting: a cache full of old prefixes is not a full cache. */
static double usage(const quire_engine_stats *engine)
{
    const uint64_t charged = engine->cache.charged_bytes;
    const uint64_t evictable = engine->prefix.evictable_bytes;

    if (engine->cache.budget_bytes == 0 || charged <= evictable) {
        return 0.0;
    }
    return (double)(charged - evictable) / (double)engine->cache.budget_bytes;
}

static const char *const config_names[] = { "model",          "kv", "page_tokens", "max_seq_len",
                                            "max_batch_size", NULL };
static const char *const build_names[] = { "version", NULL };

#define ENGINE(labels_, type_, field)                                                              \
    {                                                                                              \
        .labels = (labels_), .type = (type_), .offset = offsetof(quire_engine_stats, field)        \
    }
#define SERVER(labels_, type_, field)                                                              \
    {                                                                                              \
        .labels = (labels_), .type = (type_), .is_server = true,                                   \
        .offset = offsetof(quire_server_stats, field)                                              \
    }
#define DERIVED(function)                                                                          \
    {                                                                                              \
        .type = VALUE_DERIVED, .derive = (function)                                                \
    }
#define INFO(names)                                                                                \
    {                                                                                              \
        .type = VALUE_INFO, .info = (names)                                                        \
    }
#define SAMPLES(...)                                                                               \
    .samples = (const sample[]){ __VA_ARGS__ },                                                    \
    .n_samples = sizeof((const sample[]){ __VA_ARGS__ }) / sizeof(sample)
#define ONE(type_, field) SAMPLES(ENGINE(NULL, (type_), field))

#define STATE(name)    "region=\"dynamic\",state=\"" name "\""
#define REGION         "region=\"dynamic\""
#define REASON(name)   "reason=\"" name "\""
#define FINISHED(name) "finished_reason=\"" name "\""
#define SOURCE(name)   "cache_source=\"" name "\""

/* Reasons as quire_prefix_gone_name() has them. */
#define GONE(field)                                                                                \
    SAMPLES(ENGINE(REASON("memory"), VALUE_U64, prefix.field[QUIRE_PREFIX_GONE_MEMORY]),           \
            ENGINE(REASON("low_traffic"), VALUE_U64, prefix.field[QUIRE_PREFIX_GONE_LOW_TRAFFIC]), \
            ENGINE(REASON("ttl"), VALUE_U64, prefix.field[QUIRE_PREFIX_GONE_TTL]),                 \
            ENGINE(REASON("invalidated"), VALUE_U64, prefix.field[QUIRE_PREFIX_GONE_INVALIDATED]), \
            ENGINE(REASON("closed"), VALUE_U64, prefix.field[QUIRE_PREFIX_GONE_CLOSED]))
#define GONE_LABELS "`reason`: `memory`, `low_traffic`, `ttl`, `invalidated`, `closed`"
_Static_assert(QUIRE_PREFIX_GONE_COUNT == 6, "a reason without its label");

/* clang-format off */
static const family families[] = {
    /* requests */
    { "quire_num_requests_running", "gauge", "requests", NULL,
      "Requests being computed, prefill and decode.", SAMPLES(DERIVED(running)) },
    { "quire_num_requests_waiting", "gauge", "requests", NULL,
      "Requests that wait to be admitted.", ONE(VALUE_U32, requests_waiting) },
    { "quire_num_requests", "gauge", "requests", "`phase`: `waiting`, `prefill`, `decode`",
      "Requests by phase.",
      SAMPLES(ENGINE("phase=\"waiting\"", VALUE_U32, requests_waiting),
              ENGINE("phase=\"prefill\"", VALUE_U32, requests_prefilling),
              ENGINE("phase=\"decode\"", VALUE_U32, requests_decoding)) },
    { "quire_requests_total", "counter", "requests", NULL, "Requests accepted.",
      ONE(VALUE_U64, requests_total) },
    { "quire_requests_finished_total", "counter", "requests",
      "`finished_reason`: `stop`, `length`, `cancelled`, `error`", "Requests that have ended.",
      SAMPLES(ENGINE(FINISHED("stop"), VALUE_U64, finished_stop_total),
              ENGINE(FINISHED("length"), VALUE_U64, finished_length_total),
              ENGINE(FINISHED("cancelled"), VALUE_U64, finished_cancelled_total),
              ENGINE(FINISHED("error"), VALUE_U64, finished_error_total)) },
    { "quire_requests_rejected_total", "counter", "requests", "`reason`: `queue_full`, `invalid`",
      "Requests that were not accepted.",
      SAMPLES(ENGINE(REASON("queue_full"), VALUE_U64, rejected_queue_full_total),
              ENGINE(REASON("invalid"), VALUE_U64, rejected_invalid_total)) },
    { "quire_num_preemptions_total", "counter", "preemptions", NULL,
      "Requests that gave their pages up because others needed them; they go on later.",
      ONE(VALUE_U64, preemptions_total) },
    { "quire_prefix_waits_total", "counter", "requests", NULL,
      "Requests held back while another computed the same prefix.",
      ONE(VALUE_U64, prefix_waits_total) },
    /* tokens */
    { "quire_prompt_tokens_total", "counter", "tokens", NULL,
      "Prompt tokens of admitted requests, cached ones included.",
      ONE(VALUE_U64, prompt_tokens_total) },
    { "quire_generation_tokens_total", "counter", "tokens", NULL, "Tokens generated.",
      ONE(VALUE_U64, generated_tokens_total) },
    { "quire_cached_tokens_total", "counter", "tokens", "`cache_source`: `session`, `prefix`",
      "Prompt tokens that were not computed, by where they were found: the request's own session, "
      "or what others have left.",
      SAMPLES(ENGINE(SOURCE("session"), VALUE_U64, cached_tokens_session_total),
              ENGINE(SOURCE("prefix"), VALUE_U64, cached_tokens_prefix_total)) },
    { "quire_prompt_tokens_computed_total", "counter", "tokens", NULL,
      "Prompt tokens computed, those after a preemption included.",
      ONE(VALUE_U64, computed_prompt_tokens_total) },
    { "quire_tokens_recomputed_total", "counter", "tokens", NULL,
      "Tokens computed again because of preemptions.", ONE(VALUE_U64, recomputed_tokens_total) },
    /* prefix cache */
    { "quire_prefix_cache_queries_total", "counter", "tokens", NULL,
      "Tokens looked for in the prefix cache.", ONE(VALUE_U64, prefix.query_tokens_total) },
    { "quire_prefix_cache_hits_total", "counter", "tokens", NULL,
      "Tokens found there; the hit rate is rate(hits) / rate(queries).",
      ONE(VALUE_U64, prefix.hit_tokens_total) },
    { "quire_prefix_cache_lookups_total", "counter", "lookups", NULL, "Lookups.",
      ONE(VALUE_U64, prefix.lookups_total) },
    { "quire_prefix_cache_lookup_hits_total", "counter", "lookups", NULL,
      "Lookups that found at least one token.", ONE(VALUE_U64, prefix.hits_total) },
    { "quire_prefix_cache_published_tokens_total", "counter", "tokens", NULL,
      "Tokens added to the prefix cache.", ONE(VALUE_U64, prefix.published_tokens_total) },
    { "quire_prefix_cache_regret_tokens_total", "counter", "tokens", NULL,
      "Tokens that were asked for after they had been evicted.",
      ONE(VALUE_U64, prefix.regret_tokens_total) },
    { "quire_evicted_tokens_total", "counter", "tokens", GONE_LABELS,
      "Tokens that left the prefix cache, by reason.", GONE(gone_tokens_total) },
    { "quire_evicted_pages_total", "counter", "pages", GONE_LABELS,
      "Pages' worth of tokens that left the prefix cache, by reason.", GONE(gone_nodes_total) },
    { "quire_prefix_cache_pages", "gauge", "pages", NULL,
      "Pages' worth of tokens in the prefix cache, those in use included.",
      ONE(VALUE_U64, prefix.nodes) },
    { "quire_prefix_cache_tokens", "gauge", "tokens", NULL, "Tokens in the prefix cache.",
      ONE(VALUE_U64, prefix.tokens) },
    { "quire_prefix_cache_evictable_bytes", "gauge", "bytes", NULL,
      "Charge of pages that nothing but the prefix cache holds.",
      ONE(VALUE_U64, prefix.evictable_bytes) },
    /* memory */
    { "quire_kv_cache_usage_perc", "gauge", "share, 0 to 1", NULL,
      "Share of the KV budget that running requests hold: what could not be had by evicting.",
      SAMPLES(DERIVED(usage)) },
    { "quire_kv_pages", "gauge", "pages", "`region`; `state`: `live`, `cached`, `free`",
      "KV pages: in use, held by the prefix cache only, and free in memory that is mapped.",
      SAMPLES(ENGINE(STATE("live"), VALUE_U64, cache.pages_live),
              ENGINE(STATE("cached"), VALUE_U64, cache.pages_cached),
              ENGINE(STATE("free"), VALUE_U64, cache.pages_free)) },
    { "quire_kv_bytes", "gauge", "bytes",
      "`region`; `state`: `live`, `cached`, `free`, `tail`, `slack`",
      "KV memory: pages in use, pages that only the prefix cache holds, free pages, unusable ends "
      "of extents; slack is a part of live, its slots without a token.",
      SAMPLES(ENGINE(STATE("live"), VALUE_U64, cache.live_bytes),
              ENGINE(STATE("cached"), VALUE_U64, cache.cached_bytes),
              ENGINE(STATE("free"), VALUE_U64, cache.free_bytes),
              ENGINE(STATE("tail"), VALUE_U64, cache.tail_bytes),
              ENGINE(STATE("slack"), VALUE_U64, cache.slack_bytes)) },
    { "quire_kv_locked_bytes", "gauge", "bytes", NULL, "KV memory that cannot be swapped out.",
      ONE(VALUE_U64, cache.locked_bytes) },
    { "quire_kv_budget_bytes", "gauge", "bytes", "`region`", "What KV pages may take.",
      SAMPLES(ENGINE(REGION, VALUE_U64, cache.budget_bytes)) },
    { "quire_kv_charged_bytes", "gauge", "bytes", "`region`",
      "Of the budget, what pages in use or cached are charged.",
      SAMPLES(ENGINE(REGION, VALUE_U64, cache.charged_bytes)) },
    { "quire_kv_charged_peak_bytes", "gauge", "bytes", "`region`", "The most that was charged.",
      SAMPLES(ENGINE(REGION, VALUE_U64, cache.charged_peak_bytes)) },
    { "quire_kv_extent_bytes", "gauge", "bytes", NULL, "KV memory taken from the system.",
      ONE(VALUE_U64, cache.extent_bytes) },
    { "quire_kv_page_allocations_total", "counter", "pages", NULL, "Pages taken.",
      ONE(VALUE_U64, cache.allocs_total) },
    { "quire_kv_page_allocation_failures_total", "counter", "calls", NULL,
      "Calls that did not get the pages they needed.",
      ONE(VALUE_U64, cache.alloc_failures_total) },
    { "quire_kv_page_copies_total", "counter", "pages", NULL, "Pages copied on write.",
      ONE(VALUE_U64, cache.page_copies_total) },
    /* latency */
    { "quire_time_to_first_token_seconds", "histogram", "seconds", NULL,
      "From the arrival of a request to its first token.", ONE(VALUE_HISTOGRAM, ttft) },
    { "quire_inter_token_latency_seconds", "histogram", "seconds", NULL,
      "Between two tokens of a request.", ONE(VALUE_HISTOGRAM, inter_token) },
    { "quire_request_queue_time_seconds", "histogram", "seconds", NULL,
      "From the arrival of a request to its admission.", ONE(VALUE_HISTOGRAM, queue) },
    { "quire_e2e_request_latency_seconds", "histogram", "seconds", NULL,
      "From the arrival of a request to its end.", ONE(VALUE_HISTOGRAM, e2e) },
    /* steps */
    { "quire_steps_total", "counter", "steps", NULL, "Steps of the model.",
      ONE(VALUE_U64, steps_total) },
    { "quire_step_rows_total", "counter", "tokens", NULL, "Tokens computed in them.",
      ONE(VALUE_U64, step_rows_total) },
    { "quire_step_seconds_total", "counter", "seconds", NULL, "Time spent in them.",
      ONE(VALUE_F64, step_seconds_total) },
    /* sessions */
    { "quire_sessions", "gauge", "sessions", NULL, "Sessions that are open.",
      ONE(VALUE_U32, sessions) },
    { "quire_session_evictions_total", "counter", "sessions", NULL,
      "Sessions closed because they were idle too long, or because there were too many.",
      ONE(VALUE_U64, session_evictions_total) },
    /* server */
    { "quire_http_requests_total", "counter", "requests",
      "`class`: `1xx` to `5xx`", "HTTP requests answered, by the class of the status.",
      SAMPLES(SERVER("class=\"1xx\"", VALUE_U64, http_requests_total[1]),
              SERVER("class=\"2xx\"", VALUE_U64, http_requests_total[2]),
              SERVER("class=\"3xx\"", VALUE_U64, http_requests_total[3]),
              SERVER("class=\"4xx\"", VALUE_U64, http_requests_total[4]),
              SERVER("class=\"5xx\"", VALUE_U64, http_requests_total[5])) },
    { "quire_http_client_gone_total", "counter", "requests", NULL,
      "Requests cancelled because their client had closed the connection.",
      SAMPLES(SERVER(NULL, VALUE_U64, client_gone_total)) },
    { "quire_http_connections", "gauge", "connections", NULL, "Connections that are open.",
      SAMPLES(SERVER(NULL, VALUE_U32, connections)) },
    { "quire_uptime_seconds", "gauge", "seconds", NULL, "Since the engine was started.",
      ONE(VALUE_US, uptime_us) },
    { "quire_cache_config_info", "gauge", "always 1",
      "`model`, `kv`, `page_tokens`, `max_seq_len`, `max_batch_size`", "How the cache is set up.",
      SAMPLES(INFO(config_names)) },
    { "quire_build_info", "gauge", "always 1", "`version`", "What is running.",
      SAMPLES(INFO(build_names)) },
};
/* clang-format on */
#define N_FAMILIES (sizeof(families) / sizeof(families[0]))

/* ---- Prometheus text ---- */

/* A label's value between its quotes. */
static void add_escaped(quire_bytes *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\n') {
            (void)quire_bytes_add(out, "\\n", 2);
        } else if (*text == '"' || *text == '\\') {
            (void)quire_bytes_addf(out, "\\%c", *text);
        } else {
            (void)quire_bytes_add(out, text, 1);
        }
    }
}

static void add_info(quire_bytes *out, const char *name, const quire_metrics_config *config)
{
    const struct {
        const char *name;
        const char *text;
        uint32_t number; /* where text is NULL */
    } values[] = {
        { "model", config->model, 0 },          { "kv", config->kv, 0 },
        { "version", config->version, 0 },      { "page_tokens", NULL, config->page_tokens },
        { "max_seq_len", NULL, config->n_ctx }, { "max_batch_size", NULL, config->n_running_max },
    };

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        if (strcmp(values[i].name, name) == 0) {
            (void)quire_bytes_addf(out, "%s=\"", name);
            if (values[i].text != NULL) {
                add_escaped(out, values[i].text);
            } else {
                (void)quire_bytes_addf(out, "%" PRIu32, values[i].number);
            }
            (void)quire_bytes_add(out, "\"", 1);
        }
    }
}

static void write_info(quire_bytes *out, const family *f, const sample *s, const sources *from)
{
    (void)quire_bytes_addf(out, "%s{", f->name);
    for (size_t i = 0; s->info[i] != NULL; i++) {
        (void)quire_bytes_addf(out, "%s", i > 0 ? "," : "");
        add_info(out, s->info[i], from->config);
    }
    (void)quire_bytes_addf(out, "} 1\n");
}

static void write_histogram(quire_bytes *out, const family *f, const quire_histogram *h)
{
    uint64_t below = 0;

    for (uint32_t i = 0; i < h->n_bounds; i++) {
        below += h->counts[i];
        (void)quire_bytes_addf(out, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", f->name, h->bounds[i],
                               below);
    }
    (void)quire_bytes_addf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %.9g\n", f->name, h->n,
                           f->name, h->sum);
    (void)quire_bytes_addf(out, "%s_count %" PRIu64 "\n", f->name, h->n);
}

static void write_sample(quire_bytes *out, const family *f, const sample *s, const sources *from)
{
    const char *base = s->is_server ? (const char *)from->server : (const char *)from->engine;
    const void *place = base + s->offset;

    if (s->type == VALUE_INFO) {
        write_info(out, f, s, from);
        return;
    }
    if (s->type == VALUE_HISTOGRAM) {
        write_histogram(out, f, place);
        return;
    }
    (void)quire_bytes_addf(out, "%s", f->name);
    if (s->labels != NULL) {
        (void)quire_bytes_addf(out, "{%s}", s->labels);
    }
    switch (s->type) {
    case VALUE_U64:
        (void)quire_bytes_addf(out, " %" PRIu64 "\n", *(const uint64_t *)place);
        break;
    case VALUE_U32:
        (void)quire_bytes_addf(out, " %" PRIu32 "\n", *(const uint32_t *)place);
        break;
    case VALUE_US:
        (void)quire_bytes_addf(out, " %.3f\n", 1e-6 * (double)*(const uint64_t *)place);
        break;
    case VALUE_F64:
        (void)quire_bytes_addf(out, " %.9g\n", *(const double *)place);
        break;
    default:
        (void)quire_bytes_addf(out, " %.9g\n", s->derive(from->engine));
        break;
    }
}

int quire_metrics_write(quire_bytes *out, const quire_engine_stats *engine,
                        const quire_server_stats *server, const quire_metrics_config *config)
{
    const sources from = { engine, server, config };

    for (size_t i = 0; i < N_FAMILIES; i++) {
        const family *f = &families[i];

        (void)quire_bytes_addf(out, "# HELP %s %s\n# TYPE %s %s\n", f->name, f->help, f->name,
                               f->type);
        for (size_t j = 0; j < f->n_samples; j++) {
            write_sample(out, f, &f->samples[j], &from);
        }
    }
    return out->status;
}

/* ---- documentation ---- */

static const char heading[] =
    "# Metrics\n\n"
    "`GET /metrics` answers in Prometheus' text format. Made from the table in "
    "src/server/metrics.c by `make docs`.\n\n"
    "Hits and queries are counters of tokens, so that a hit rate can be had over any window: "
    "`rate(quire_prefix_cache_hits_total[5m]) / rate(quire_prefix_cache_queries_total[5m])`. "
    "Counters begin at 0\nwhen the server is started. Histograms have the series `_bucket`, "
    "`_sum` and `_count`.\n\n"
    "| name | type | unit | labels | meaning |\n"
    "|---|---|---|---|---|\n";

int quire_metrics_document(quire_bytes *out)
{
    (void)quire_bytes_add(out, heading, sizeof(heading) - 1);
    for (size_t i = 0; i < N_FAMILIES; i++) {
        const family *f = &families[i];

        (void)quire_bytes_addf(out, "| `%s` | %s | %s | %s | %s |\n", f->name, f->type, f->unit,
                               f->labels != NULL ? f->labels : "", f->help);
    }
    return out->status;
}
