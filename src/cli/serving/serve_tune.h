/* serve_tune.h - a thread that periodically tunes the engine by the last hour's requests, or only
 * suggests changes (engine/tuning.h).
 *
 * Thread: the main thread only, beside its own.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_TUNE_H
#define QUIRE_CLI_SERVE_TUNE_H

#include "engine/tuning.h"

typedef struct quire_serve_tuner quire_serve_tuner;

/* engine: borrowed until stop. Errors: QUIRE_NOMEM, QUIRE_IO (no thread). */
int quire_serve_tuner_start(quire_serve_tuner **out, quire_engine *engine,
                            const quire_engine_tune_opts *opts, uint64_t interval_us,
                            quire_error *err);
/* Waits for a measurement in progress. NULL is allowed. */
void quire_serve_tuner_stop(quire_serve_tuner *tuner);

#endif /* QUIRE_CLI_SERVE_TUNE_H */
