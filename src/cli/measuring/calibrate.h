/* calibrate.h - measure the cost of formats: one side of one layer at a time.
 *
 * A meter keeps the logits of a text computed with f16 formats. It measures the KL divergence of
 * any other choice of formats from them, over the same tokens.
 *
 * Models with weights in few bits also round the inputs of their products. Such a model reacts to
 * any change, even f32 for f16, with a divergence that hardly depends on the change
 * (docs/calibrate.md has figures). This base divergence occurs once, not once per side. So a side
 * is measured with all other sides in q8, and the divergence of pure q8 is subtracted row by row.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_CALIBRATE_H
#define QUIRE_CLI_CALIBRATE_H

#include "cli/measuring/evaluate.h"
#include "model/calibration.h"

#define QUIRE_METER_BYTES_MAX ((uint64_t)1 << 30) /* of logits kept */

typedef struct quire_meter_opts {
    const quire_opened *session;     /* with the model open; its runtime is not used */
    const quire_common_args *common; /* of the runtimes; its formats are not used */
    const int32_t *tokens;           /* [n_chunks][n_ctx] */
    uint32_t n_ctx;
    uint32_t n_chunks;
} quire_meter_opts;

typedef struct quire_meter {
    quire_meter_opts opts;
    quire_kv_pair *pairs; /* [n_stored] of the current run */
    float *base_logits;
    uint64_t base_bytes; /* bytes of the kept logits; counted against the session's memory limit */
    uint32_t n_runs;     /* done */
    uint32_t n_runs_all; /* announced; for the progress line */
    double start_s;
} quire_meter;

/* Compute and keep the logits of f16. opts is copied; its pointers are borrowed. Errors:
 * QUIRE_LIMIT (more than QUIRE_METER_BYTES_MAX), QUIRE_RANGE (logits that are not finite), as
 * quire_opened_open_runtime() and quire_evaluate(). Memory: quire_meter_close(), also after a
 * failure. */
int quire_meter_open(quire_meter *meter, const quire_meter_opts *opts, quire_error *err);
/* Zeros are fine. */
void quire_meter_close(quire_meter *meter);

/* Divergence of a choice from f16. Memory: quire_evaluation_fini(out), also after a failure.
 * Errors: QUIRE_RANGE (logits that are not finite), as quire_opened_open_runtime() and
 * quire_evaluate(). */
int quire_meter_run(quire_meter *meter, const quire_kv_pair *pairs, quire_evaluation *out,
                    quire_error *err);

/* Fill in calibration->costs from 1 + 2 * n_stored * formats runs; formats: a set of bits (1 <<
 * format) among q6 q5 q4 q3. calibration->measured is set to these and q8. Errors: as
 * quire_meter_run(); after QUIRE_CANCELED the costs of sides that were not measured are NAN. */
int quire_calibrate(quire_calibration *calibration, quire_meter *meter, uint32_t formats,
                    quire_error *err);

#endif /* QUIRE_CLI_CALIBRATE_H */
