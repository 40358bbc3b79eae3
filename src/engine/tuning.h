/* tuning.h - the engine looks at its own last hour, and says or does what follows from it.
 *
 * Requests that end are remembered as hashes (trace/online/recent.h). quire_engine_tune() measures
 * them (trace/online/tune.h) on its caller's thread, for seconds perhaps, while the engine goes on;
 * then the changes that follow are applied between two steps, if that was asked for, or else just
 * said. Each is an event, whichever way. What is only said is said once, not again each time.
 *
 * The pinned share is left to the controller of the pinned region (pinned.h) where that has a
 * ceiling.
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
    bool is_applied;        /* what can be; else everything is a suggestion */
    bool compares_policies; /* simulates all of them: much slower */
} quire_engine_tune_opts;

typedef struct quire_engine_tuning {
    uint64_t time_us; /* since the engine's creation; 0 = never */
    quire_tune_facts facts;
    quire_tune_settings settings; /* before the changes */
    quire_tune_change changes[QUIRE_TUNE_KNOB_COUNT];
    bool is_applied[QUIRE_TUNE_KNOB_COUNT]; /* of changes[i] */
    uint32_t n_changes;
} quire_engine_tuning;

/* Measure, decide, apply. out may be NULL. Errors: QUIRE_AGAIN (somebody else does it just now, the
 * engine has ended, or it remembers no requests: opts.recent_bytes), QUIRE_NOMEM. */
int quire_engine_tune(quire_engine *engine, const quire_engine_tune_opts *opts,
                      quire_engine_tuning *out);

/* What the last one found. */
void quire_engine_tuning_get(quire_engine *engine, quire_engine_tuning *out);

#endif /* QUIRE_ENGINE_TUNING_H */
