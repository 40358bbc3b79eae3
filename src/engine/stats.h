/* stats.h - counters, gauges and histograms of the engine.
 *
 * Counters only grow; readers compute rates from them (vLLM's lesson: export hits and queries,
 * never a hit rate). Times are in seconds, the unit of Prometheus.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_STATS_H
#define QUIRE_ENGINE_STATS_H

#include <stdint.h>

#include "base/histogram.h"
#include "engine/classes.h"
#include "engine/events.h"
#include "engine/loop/cost.h"
#include "engine/overflow.h"
#include "engine/precache.h"
#include "engine/saver.h"
#include "engine/tier.h"
#include "quire/cache.h"
#include "quire/prefix.h"
#include "trace/online/shadow.h"

/* Figures of one service class, in the order of quire_engine_opts.classes. Under pressure a low
 * class degrades in stages, each counted: requests are displaced (parked, or preempted when pages
 * are short); running_limit is cut; the queue fills; requests are refused. */
typedef struct quire_class_stats {
    uint64_t requests_total; /* accepted */
    uint64_t refused_total;  /* queue full */
    uint64_t finished_total;
    uint64_t displaced_total; /* lost their place to a higher class: parked or preempted */
    uint64_t parked_total;
    uint64_t resumed_total;     /* of the parked ones */
    uint64_t preempted_total;   /* for lack of pages, on behalf of any request */
    uint64_t promoted_total;    /* admitted before a higher class after a long wait */
    uint64_t turns_total;       /* steps in which its long wait earned it rows */
    uint64_t cuts_total;        /* of running_limit */
    uint64_t steps_total;       /* steps with its rows */
    uint64_t interrupted_total; /* steps with its rows that were given up for a higher class */
    uint64_t late_steps_total;  /* of steps_total, longer than promised */
    uint64_t left_out_total;    /* decode rows postponed to a later step */
    uint64_t prefill_rows_total;
    uint64_t decode_rows_total;
    uint32_t waiting; /* without the parked ones */
    uint32_t running;
    uint32_t parked;
    uint32_t running_limit; /* maximum of running at present */
    /* seconds */
    quire_histogram queue;
    quire_histogram ttft;
    quire_histogram tpot; /* per request: mean time between its tokens */
} quire_class_stats;

/* Guaranteed memory and automatic adaptation. */
typedef struct quire_memory_stats {
    /* the pinned region (pinned.h); all 0 without one */
    uint64_t pinned_budget_bytes;
    uint64_t pinned_charged_bytes;
    uint64_t pinned_cached_bytes; /* of charged: eviction can free them */
    uint64_t pinned_pin_bytes;    /* of charged: held by pins */
    uint64_t pinned_need_bytes;   /* of the high classes: in use or recently used */
    uint64_t pinned_need_p99_bytes;
    uint64_t pinned_grown_total; /* steps */
    uint64_t pinned_shrunk_total;
    uint64_t spilled_bytes; /* of the high classes, currently in the dynamic region */
    uint64_t spilled_pages_total;
    uint64_t dynamic_budget_bytes;
    uint64_t dynamic_charged_bytes;
    /* pins.h, in any region */
    uint32_t pins;
    uint32_t pins_computing;
    uint64_t pin_bytes;
    uint64_t pins_created_total;
    uint64_t pins_expired_total;
    uint64_t pins_dropped_total; /* on request or by invalidation */
    uint64_t pins_refused_total;
    uint64_t events_total[QUIRE_EVENT_KIND_COUNT];
    quire_precache_stats precache;
    quire_shadow_stats shadow; /* all 0 without ghost caches */
} quire_memory_stats;

typedef struct quire_engine_stats {
    /* requests */
    uint64_t requests_total; /* accepted */
    uint64_t adopted_total;  /* by another device, when theirs was lost: replicas.h */
    uint64_t finished_stop_total;
    uint64_t finished_length_total;
    uint64_t finished_cancelled_total;
    uint64_t finished_error_total;
    uint64_t rejected_queue_full_total;
    uint64_t rejected_invalid_total;
    uint64_t states_left_total;    /* of recurrent layers, put into the prefix tree */
    uint64_t states_used_total;    /* from which a request went on */
    uint64_t states_fetched_total; /* read from the store, put into the prefix tree */
    uint64_t preemptions_total;
    uint64_t prefix_waits_total; /* held back while another request computed the same prefix */
    uint32_t requests_waiting;
    uint32_t requests_prefilling;
    uint32_t requests_decoding;
    /* tokens */
    uint64_t prompt_tokens_total;          /* of admitted requests */
    uint64_t cached_tokens_session_total;  /* of prompt tokens: found through their session */
    uint64_t cached_tokens_prefix_total;   /* of prompt tokens: found otherwise */
    uint64_t computed_prompt_tokens_total; /* prefill rows, recomputation included */
    uint64_t recomputed_tokens_total;      /* after preemption */
    uint64_t scored_prompt_tokens_total;   /* values of has_prompt_logprobs */
    uint64_t generated_tokens_total;
    uint64_t context_shifts_total; /* times that tokens left a full context */
    uint64_t context_dropped_tokens_total;
    /* Of context_shifts_total, those of QUIRE_CONTEXT_CONDENSE: of a sequence with all tokens of
     * its text, and of one that was condensed before. */
    uint64_t context_condensings_whole_total;
    uint64_t context_condensings_again_total;
    uint64_t condensings_total;       /* of texts that keep a share of their tokens */
    uint64_t condensings_found_total; /* times that the result was in the prefix tree */
    /* Of these, the ones whose input had been condensed before. */
    uint64_t condensings_again_total;
    uint64_t condensings_found_again_total;
    uint64_t condensed_tokens_total;  /* tokens that left sequences so */
    uint64_t repeated_tokens_total;   /* rows by which reconstruct repeated texts */
    uint64_t attend_read_pages_total; /* pages of lanes that tokens with attend_share read, */
    uint64_t attend_left_pages_total; /* and that they left out */
    uint32_t condensed_texts;         /* whose kept pages the prefix tree may have */
    uint64_t condensed_held_bytes;    /* pages of running and parked requests that were condensed */
    uint64_t condensed_text_bytes;    /* the bytes of their texts without condensing */
    /* steps */
    uint64_t steps_total;
    uint64_t step_rows_total;
    double step_seconds_total;
    double views_seconds_total;   /* time for views.h between steps, not part of step_seconds */
    double prefill_token_seconds; /* running mean cost of a prefill token; for explanations */
    quire_cost cost;              /* learned cost of a step */
    /* classes */
    quire_class_stats classes[QUIRE_CLASSES_MAX]; /* [n_classes] */
    uint32_t n_classes;
    uint32_t requests_parked;
    /* seconds */
    quire_histogram ttft;
    quire_histogram inter_token;
    quire_histogram queue;
    quire_histogram e2e;
    /* modules below the engine */
    quire_prefix_stats prefix;
    quire_cache_stats cache;
    quire_tier_stats tier; /* all 0 without a store */
    quire_saver_stats saver;
    quire_overflow_stats overflow;
    uint32_t sessions;
    uint64_t session_evictions_total; /* idle TTL and sessions_max */
    uint64_t uptime_us;
    quire_memory_stats memory;
} quire_engine_stats;

/* Add the figures of another device with the same classes and sessions. Learned
 * costs, the saved state and the ghost caches are not added: *sum keeps its values. */
void quire_engine_stats_add(quire_engine_stats *sum, const quire_engine_stats *more);
/* Keep the counters and histograms alone: of a lost device nothing else is there. */
void quire_engine_stats_gauges_clear(quire_engine_stats *stats);

#endif /* QUIRE_ENGINE_STATS_H */
