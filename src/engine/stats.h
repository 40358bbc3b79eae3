/* stats.h - what the engine counts.
 *
 * Counters only grow; rates are the reader's business (vLLM's lesson: export hits and queries,
 * never a hit rate). Times in seconds, as Prometheus wants them.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_STATS_H
#define QUIRE_ENGINE_STATS_H

#include <stdint.h>

#include "base/histogram.h"
#include "quire/cache.h"
#include "quire/prefix.h"

typedef struct quire_engine_stats {
    /* requests */
    uint64_t requests_total; /* accepted */
    uint64_t finished_stop_total;
    uint64_t finished_length_total;
    uint64_t finished_cancelled_total;
    uint64_t finished_error_total;
    uint64_t rejected_queue_full_total;
    uint64_t rejected_invalid_total;
    uint64_t preemptions_total;
    uint64_t prefix_waits_total; /* held back for another's prefix */
    uint32_t requests_waiting;
    uint32_t requests_prefilling;
    uint32_t requests_decoding;
    /* tokens */
    uint64_t prompt_tokens_total;          /* of admitted requests */
    uint64_t cached_tokens_session_total;  /* of these, found because of their session */
    uint64_t cached_tokens_prefix_total;   /* or otherwise */
    uint64_t computed_prompt_tokens_total; /* prefill rows, recomputation included */
    uint64_t recomputed_tokens_total;      /* after preemption */
    uint64_t generated_tokens_total;
    /* steps */
    uint64_t steps_total;
    uint64_t step_rows_total;
    double step_seconds_total;
    double prefill_token_seconds; /* running mean cost of a prefill token; for explanations */
    /* seconds */
    quire_histogram ttft;
    quire_histogram inter_token;
    quire_histogram queue;
    quire_histogram e2e;
    /* the parts below */
    quire_prefix_stats prefix;
    quire_cache_stats cache;
    uint32_t sessions;
    uint64_t session_evictions_total; /* idle TTL and sessions_max */
    uint64_t uptime_us;
} quire_engine_stats;

#endif /* QUIRE_ENGINE_STATS_H */
