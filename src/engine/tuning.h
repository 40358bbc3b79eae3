/* tuning.h - tune the engine's settings by the requests of its last hour.
 *
 * Finished requests are recorded as hashes (trace/online/recent.h). quire_engine_tune() analyses
 * the record (trace/online/tune.h) on the caller's thread, possibly for seconds, while the engine
 * continues. The resulting changes are applied between two steps if is_applied asks for them, else
 * only suggested. Each change is an event; a suggestion is reported once, not on each call.
 *
 * Of several devices the first one that is not lost is measured, by its own requests, and its
 * changes are applied to all.
 *
 * If the pinned region has a ceiling, its controller (pinned.h) sizes it, not tuning.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_TUNING_H
#define QUIRE_ENGINE_TUNING_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "trace/online/tune.h"

typedef struct quire_engine_tune_opts {
    quire_tune_bounds bounds;
    bool is_applied;        /* apply changes where possible; else suggest all */
    bool compares_policies; /* simulate all eviction policies: much slower */
} quire_engine_tune_opts;

typedef struct quire_engine_tuning {
    uint64_t time_us; /* since the engine's creation; 0 = never */
    quire_tune_facts facts;
    quire_tune_settings settings; /* before the changes */
    quire_tune_change changes[QUIRE_TUNE_KNOB_COUNT];
    bool is_applied[QUIRE_TUNE_KNOB_COUNT]; /* whether changes[i] was applied */
    uint32_t n_changes;
} quire_engine_tuning;

/* Measure, decide, apply. out may be NULL. Errors: QUIRE_AGAIN (another call is in progress, the
 * engine has ended, or it records no requests: opts.recent_bytes), QUIRE_NOMEM. */
int quire_engine_tune(quire_engine *engine, const quire_engine_tune_opts *opts,
                      quire_engine_tuning *out);

/* The result of the last quire_engine_tune(). */
void quire_engine_tuning_get(quire_engine *engine, quire_engine_tuning *out);

#endif /* QUIRE_ENGINE_TUNING_H */
