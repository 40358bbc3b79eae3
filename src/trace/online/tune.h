/* tune.h - suggested changes of a server's settings, from the requests of its last hour.
 *
 * Two halves. quire_tune_measure() looks at a trace and is slow (up to seconds: run it on a thread
 * of its own). quire_tune_suggest() turns measurements into changes; it is a pure function of
 * measurements, settings, bounds and its own state from the last call.
 *
 * Against oscillation: a value must be off by more than a dead band, in the same direction, in
 * QUIRE_TUNE_PATIENCE measurements in a row. Then the value moves by at most one step, within its
 * bounds. With too few requests nothing moves.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_TUNE_H
#define QUIRE_TRACE_TUNE_H

#include <stdbool.h>
#include <stdint.h>

#include "quire/prefix.h"
#include "trace/sim/sim.h"
#include "trace/trace.h"

#define QUIRE_TUNE_PATIENCE     2u
#define QUIRE_TUNE_REASON_MAX   200u
#define QUIRE_TUNE_REQUESTS_MIN 100u

/* X(symbol, value, "name of the setting") */
#define QUIRE_TUNE_KNOB_MAP(X)                                                                     \
    X(PINNED_SHARE, 0, "pinned_share")                                                             \
    X(TTL, 1, "cache_ttl")                                                                         \
    X(LOW_TRAFFIC, 2, "low_traffic_after")                                                         \
    X(MEMORY, 3, "kv_budget")    /* suggested only: a running server keeps its memory */           \
    X(POLICY, 4, "cache_policy") /* suggested only: a tree keeps its policy */

typedef enum quire_tune_knob {
#define X(sym, val, name) QUIRE_TUNE_##sym = (val),
    QUIRE_TUNE_KNOB_MAP(X)
#undef X
    QUIRE_TUNE_KNOB_COUNT
} quire_tune_knob;
const char *quire_tune_knob_name(quire_tune_knob knob);

typedef struct quire_tune_settings {
    double pinned_share;           /* of the memory, 0..1 */
    uint64_t ttl_us;               /* 0 = never */
    uint64_t low_traffic_after_us; /* 0 = no such rule */
    uint64_t memory_bytes;         /* for KV pages */
    quire_evict_policy policy;
} quire_tune_settings;

/* The bounds of changes that may be applied. A setting whose least and largest value are equal is
 * not changed. */
typedef struct quire_tune_bounds {
    double pinned_share_min, pinned_share_max;
    uint64_t ttl_min_us, ttl_max_us;                 /* a TTL of 0 stays 0 */
    uint64_t low_traffic_min_us, low_traffic_max_us; /* 0 stays 0 */
} quire_tune_bounds;

/* Pinned 0 to 0.8, TTL 1 minute to 7 days, low traffic 1 minute to 1 day. */
#define QUIRE_TUNE_BOUNDS_INIT                                                                     \
    {                                                                                              \
        .pinned_share_min = 0.0, .pinned_share_max = 0.8, .ttl_min_us = 60000000u,                 \
        .ttl_max_us = 604800000000u, .low_traffic_min_us = 60000000u,                              \
        .low_traffic_max_us = 86400000000u                                                         \
    }

typedef struct quire_tune_ask {
    quire_tune_settings settings;
    double token_bytes; /* KV of one token, its share of windows and states included */
    quire_sim_kv kv;    /* with windows or states: the memory of a block of the trace; else 0 */
    double prefill_token_us;   /* cost of computing a token: see quire_sim_cost */
    double decode_token_us;    /* from one token of an answer to the next */
    uint8_t pinned_class_mask; /* bit c: class c is one that memory is pinned for */
    bool compares_policies;    /* runs the simulator once per policy */
    uint64_t seed;
} quire_tune_ask;

/* The measurements of a trace. Rates are shares of prompt blocks, 0..1. */
typedef struct quire_tune_facts {
    uint64_t requests;
    uint64_t span_us;
    double hit_rate;          /* LRU at the memory as it is; has no TTL. With kv: by simulation */
    double hit_rate_half;     /* with half of it */
    double hit_rate_double;   /* with twice as much */
    double hit_rate_infinite; /* nothing is ever evicted */
    double one_time_share;    /* of distinct blocks, those asked for once */
    uint64_t gap_p50_us;      /* between two uses of a block */
    uint64_t gap_p90_us;
    uint64_t gap_p99_us;
    double pinned_need_p99_bytes; /* of the classes of the mask, held at once */
    uint64_t distinct_bytes;      /* all different blocks */
    quire_evict_policy best_policy;
    double best_policy_hit_rate; /* 0 when policies were not compared */
    double current_policy_hit_rate;
} quire_tune_facts;

/* Errors: QUIRE_NOMEM, as quire_sim_run(). Cost: that of an LRU stack over the blocks; with kv,
 * which such a stack cannot follow, four runs of the simulator. */
int quire_tune_measure(const quire_trace *trace, const quire_tune_ask *ask, quire_tune_facts *out);

/* Begin with { 0 }. */
typedef struct quire_tune_state {
    int8_t direction[QUIRE_TUNE_KNOB_COUNT]; /* wanted the last time: -1, 0, 1 */
    uint8_t times[QUIRE_TUNE_KNOB_COUNT];    /* in a row */
    quire_evict_policy policy;               /* wanted the last time */
} quire_tune_state;

typedef struct quire_tune_change {
    quire_tune_knob knob;
    bool is_applicable; /* while running, within the bounds; otherwise a word to the operator */
    double from, to;    /* share, microseconds, bytes, or quire_evict_policy */
    char reason[QUIRE_TUNE_REASON_MAX]; /* the figures that it rests on */
} quire_tune_change;

/* Fill in changes and return their number. Nothing is applied; a caller that applies a change
 * passes the new settings in its next call. */
uint32_t quire_tune_suggest(const quire_tune_facts *facts, const quire_tune_settings *settings,
                            const quire_tune_bounds *bounds, quire_tune_state *state,
                            quire_tune_change changes[QUIRE_TUNE_KNOB_COUNT]);

#endif /* QUIRE_TRACE_TUNE_H */
