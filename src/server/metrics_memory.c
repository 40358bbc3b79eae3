/* metrics_memory.c - the tables of metrics: service classes, guaranteed memory, adaptation.
 *
 * SPDX-License-Identifier: MIT */
#include "server/metrics_internal.h"

#define EVENT(name)     "event=\"" name "\""
#define STATE(name)     "state=\"" name "\""
#define PHASE(name)     "phase=\"" name "\""
#define DIRECTION(name) "direction=\"" name "\""
#define RESULT(name)    "result=\"" name "\""
#define TARGET(name)    "target=\"" name "\""
#define TABLE(families)                                                                            \
    {                                                                                              \
        (families), sizeof(families) / sizeof((families)[0])                                       \
    }
#define COUNTER "counter"
#define GAUGE   "gauge"

/* clang-format off */
static const quire_metric_family classes[] = {
    { "quire_class_requests", GAUGE, "requests", "`class`; `state`: `waiting`, `running`, `parked`",
      "Requests of a class by their state now. A parked request has given its place to a higher "
      "class, and keeps its pages.",
      SAMPLES(CLASS(STATE("waiting"), VALUE_U32, waiting),
              CLASS(STATE("running"), VALUE_U32, running),
              CLASS(STATE("parked"), VALUE_U32, parked)) },
    { "quire_class_running_limit", GAUGE, "requests", "`class`",
      "Requests of a class that may run at once now. The limit is lower than usual while a higher "
      "class misses its targets.",
      SAMPLES(CLASS(NULL, VALUE_U32, running_limit)) },
    { "quire_class_requests_total", COUNTER, "requests", "`class`",
      "Requests of a class that were accepted.",
      SAMPLES(CLASS(NULL, VALUE_U64, requests_total)) },
    { "quire_class_requests_finished_total", COUNTER, "requests", "`class`",
      "Requests of a class that have ended.", SAMPLES(CLASS(NULL, VALUE_U64, finished_total)) },
    { "quire_class_requests_rejected_total", COUNTER, "requests", "`class`",
      "Requests that were refused because the queue of their class was full.",
      SAMPLES(CLASS(NULL, VALUE_U64, refused_total)) },
    { "quire_class_events_total", COUNTER, "events",
      "`class`; `event`: `displaced`, `parked`, `resumed`, `preempted`, `promoted`, `turn`, `cut`",
      "Events of a class. displaced: a request made room for one of a higher class, parked or "
      "preempted. parked, resumed: a request was parked, or continued afterwards. preempted: a "
      "request gave up its pages. promoted: a request was admitted before a higher class because "
      "it had waited long. turn: the class got rows in a step because it had none for long. cut: "
      "the limit of running requests was lowered.",
      SAMPLES(CLASS(EVENT("displaced"), VALUE_U64, displaced_total),
              CLASS(EVENT("parked"), VALUE_U64, parked_total),
              CLASS(EVENT("resumed"), VALUE_U64, resumed_total),
              CLASS(EVENT("preempted"), VALUE_U64, preempted_total),
              CLASS(EVENT("promoted"), VALUE_U64, promoted_total),
              CLASS(EVENT("turn"), VALUE_U64, turns_total),
              CLASS(EVENT("cut"), VALUE_U64, cuts_total)) },
    { "quire_class_steps_total", COUNTER, "steps", "`class`", "Steps in which a class had rows.",
      SAMPLES(CLASS(NULL, VALUE_U64, steps_total)) },
    { "quire_class_late_steps_total", COUNTER, "steps", "`class`",
      "Steps in which a class had rows and that took longer than its tpot_target, or without one "
      "longer than its stretch allows.",
      SAMPLES(CLASS(NULL, VALUE_U64, late_steps_total)) },
    { "quire_class_rows_total", COUNTER, "tokens", "`class`; `phase`: `prefill`, `decode`",
      "Tokens that were computed for a class.",
      SAMPLES(CLASS(PHASE("prefill"), VALUE_U64, prefill_rows_total),
              CLASS(PHASE("decode"), VALUE_U64, decode_rows_total)) },
    { "quire_class_rows_left_out_total", COUNTER, "tokens", "`class`",
      "Next tokens of running answers of a class that were left out of a step, for a later one.",
      SAMPLES(CLASS(NULL, VALUE_U64, left_out_total)) },
    { "quire_class_target_seconds", GAUGE, "seconds", "`class`; `target`: `ttft`, `tpot`",
      "Target of a class for the time to the first token (ttft) and for the time per further token "
      "(tpot). 0 = no target.",
      SAMPLES(CLASS_CONFIG(TARGET("ttft"), VALUE_MS, ttft_target_ms),
              CLASS_CONFIG(TARGET("tpot"), VALUE_MS, tpot_target_ms)) },
    { "quire_class_queue_time_seconds", "histogram", "seconds", "`class`",
      "Time from the arrival of a request of a class to its admission.",
      SAMPLES(CLASS(NULL, VALUE_HISTOGRAM, queue)) },
    { "quire_class_time_to_first_token_seconds", "histogram", "seconds", "`class`",
      "Time from the arrival of a request of a class to its first token.",
      SAMPLES(CLASS(NULL, VALUE_HISTOGRAM, ttft)) },
    { "quire_class_time_per_output_token_seconds", "histogram", "seconds", "`class`",
      "Mean time between the tokens of a request of a class.",
      SAMPLES(CLASS(NULL, VALUE_HISTOGRAM, tpot)) },
};

/* In the order of QUIRE_EVENT_KIND_MAP. */
#define KIND(symbol, value, name)                                                                  \
    ENGINE("kind=\"" name "\"", VALUE_U64, memory.events_total[value]),

/* One sample per size, in the order of quire_shadow_opts. */
#define SHADOW(field)                                                                              \
    SAMPLES(ENGINE("size=\"0.5\"", VALUE_U64, memory.shadow.sizes[0].field),                       \
            ENGINE("size=\"1\"", VALUE_U64, memory.shadow.sizes[1].field),                         \
            ENGINE("size=\"2\"", VALUE_U64, memory.shadow.sizes[2].field))
#define SIZES "`size`: `0.5`, `1`, `2`"
_Static_assert(QUIRE_SHADOW_SIZES == 3, "a size without its label");

static const quire_metric_family memory[] = {
    /* the pinned region */
    { "quire_pinned_bytes", GAUGE, "bytes", "`state`: `cached`, `pins`",
      "Memory of the pinned region that eviction can free (cached), and memory that pins hold "
      "(pins).",
      SAMPLES(ENGINE(STATE("cached"), VALUE_U64, memory.pinned_cached_bytes),
              ENGINE(STATE("pins"), VALUE_U64, memory.pinned_pin_bytes)) },
    { "quire_pinned_need_bytes", GAUGE, "bytes", NULL,
      "KV memory that requests of the pinned classes hold or have used within the last 5 minutes.",
      ONE(VALUE_U64, memory.pinned_need_bytes) },
    { "quire_pinned_need_p99_bytes", GAUGE, "bytes", NULL,
      "99th percentile of quire_pinned_need_bytes over a sliding window. The size of the pinned "
      "region follows this figure.",
      ONE(VALUE_U64, memory.pinned_need_p99_bytes) },
    { "quire_pinned_resizes_total", COUNTER, "changes", "`direction`: `grown`, `shrunk`",
      "Changes of the pinned region's size.",
      SAMPLES(ENGINE(DIRECTION("grown"), VALUE_U64, memory.pinned_grown_total),
              ENGINE(DIRECTION("shrunk"), VALUE_U64, memory.pinned_shrunk_total)) },
    { "quire_spilled_bytes", GAUGE, "bytes", NULL,
      "KV memory that pinned classes hold in the dynamic region, because the pinned region was "
      "full.",
      ONE(VALUE_U64, memory.spilled_bytes) },
    { "quire_spilled_pages_total", COUNTER, "pages", NULL,
      "KV pages that pinned classes took in the dynamic region because the pinned region was "
      "full.",
      ONE(VALUE_U64, memory.spilled_pages_total) },
    /* pins */
    { "quire_pins", GAUGE, "pins", NULL,
      "Pins that exist now, including pins whose text is being computed.",
      ONE(VALUE_U32, memory.pins) },
    { "quire_pins_computing", GAUGE, "pins", NULL, "Pins whose text is being computed now.",
      ONE(VALUE_U32, memory.pins_computing) },
    { "quire_pin_bytes", GAUGE, "bytes", NULL, "KV memory that pins hold or have set aside.",
      ONE(VALUE_U64, memory.pin_bytes) },
    { "quire_pins_total", COUNTER, "pins",
      "`event`: `created`, `expired`, `dropped`, `refused`",
      "Pins that were accepted (created), reached the end of their time (expired), were ended by a "
      "request or by invalidation (dropped), or were refused for lack of memory (refused).",
      SAMPLES(ENGINE(EVENT("created"), VALUE_U64, memory.pins_created_total),
              ENGINE(EVENT("expired"), VALUE_U64, memory.pins_expired_total),
              ENGINE(EVENT("dropped"), VALUE_U64, memory.pins_dropped_total),
              ENGINE(EVENT("refused"), VALUE_U64, memory.pins_refused_total)) },
    { "quire_events_total", COUNTER, "events", "`kind`, as in `GET /v1/cache/events`",
      "Changes that the server made by itself.",
      SAMPLES(QUIRE_EVENT_KIND_MAP(KIND)) },
    /* pre-caching */
    { "quire_precache_active", GAUGE, "1 or 0", NULL,
      "Whether the server computes texts in idle time. 0 also while it pauses after much waste.",
      ONE(VALUE_BOOL, memory.precache.is_on) },
    { "quire_precache_runs_total", COUNTER, "runs", "`result`: `begun`, `aborted`",
      "Texts whose computation in idle time began, and those that were aborted because a request "
      "came.",
      SAMPLES(ENGINE(RESULT("begun"), VALUE_U64, memory.precache.runs_total),
              ENGINE(RESULT("aborted"), VALUE_U64, memory.precache.aborted_runs_total)) },
    { "quire_precache_tokens_total", COUNTER, "tokens", "`result`: `computed`, `gain`, `waste`",
      "Tokens computed in idle time; of these, tokens that a request used (gain), and tokens that "
      "were evicted, expired or not used for long (waste).",
      SAMPLES(ENGINE(RESULT("computed"), VALUE_U64, memory.precache.tokens_total),
              ENGINE(RESULT("gain"), VALUE_U64, memory.precache.gain_tokens_total),
              ENGINE(RESULT("waste"), VALUE_U64, memory.precache.waste_tokens_total)) },
    { "quire_precache_pauses_total", COUNTER, "pauses", NULL,
      "Pauses of the computation in idle time after too much waste.",
      ONE(VALUE_U64, memory.precache.pauses_total) },
    /* ghost caches */
    { "quire_ghost_blocks_total", COUNTER, "blocks", NULL,
      "Blocks of 64 prompt tokens that requests asked for, in the sample from which hit rates of "
      "other cache sizes are estimated. All sizes use one sample.",
      ONE(VALUE_U64, memory.shadow.blocks_total) },
    { "quire_ghost_hit_blocks_total", COUNTER, "blocks", SIZES,
      "Sampled blocks that an LRU cache of half, the same and twice the size would have held. Few "
      "blocks say little: `/v1/cache/what-if` gives no rates before there are enough.",
      SHADOW(hit_blocks_total) },
    { "quire_ghost_expected_blocks_total", COUNTER, "blocks", NULL,
      "Blocks that the sample should have had by its sampling rate. The difference to "
      "quire_ghost_blocks_total is added to the hits: the hit rate is (hits + expected - blocks) / "
      "expected.",
      ONE(VALUE_U64, memory.shadow.expected_blocks_total) },
    { "quire_ghost_capacity_blocks", GAUGE, "blocks", SIZES,
      "Capacity of the LRU cache whose hits are estimated.",
      SHADOW(capacity_blocks) },
    { "quire_ghost_seconds_total", COUNTER, "seconds", NULL,
      "Time that the estimates of other cache sizes took.",
      ONE(VALUE_F64, memory.shadow.seconds_total) },
};
/* clang-format on */

const quire_metric_table quire_metrics_classes = TABLE(classes);
const quire_metric_table quire_metrics_memory = TABLE(memory);
