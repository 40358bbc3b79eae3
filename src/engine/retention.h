/* retention.h - a runtime whose text keeps a share of its tokens, chosen by lane
 * (retain/kept_lanes.h).
 *
 * The text is computed in chunks. Before the tokens held in full become more than a chunk, all
 * tokens so far are condensed to the policy's share. So the KV of a text of N tokens takes the kept
 * share of N and one chunk at most, while it is read and while it is continued.
 *
 *   plan       the options of the runtime: kv_elsewhere_bytes
 *   open       lanes, as the runtime's device
 *   step       condenses first when the chunk is full, then computes
 *
 * One sequence. No token is computed twice.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_RETENTION_H
#define QUIRE_ENGINE_RETENTION_H

#include "model/runtime.h"
#include "retain/kept_lanes.h"

typedef struct quire_retention quire_retention;

typedef struct quire_retention_opts {
    quire_retain_spec spec;
    uint32_t chunk;                 /* tokens held in full, at most; at least a step */
    quire_lanes_parallel *parallel; /* NULL = condense on one thread */
} quire_retention_opts;

/* Set kv_elsewhere_bytes of a runtime's options, whose other fields are set, and limit n_batch to
 * the chunk. Errors: quire_lanes_check(). */
int quire_retention_plan(const quire_model_desc *desc, const quire_retention_opts *opts,
                         quire_runtime_opts *runtime, quire_error *err);

/* Put lanes before a runtime that was created with such options. Errors: quire_lanes_create().
 * Memory: quire_retention_close(), after the runtime was destroyed. */
int quire_retention_open(quire_retention **out, quire_runtime *runtime,
                         const quire_model_desc *desc, const quire_retention_opts *opts,
                         quire_error *err);
void quire_retention_close(quire_retention *retention);

/* quire_runtime_step() for one slice, of at most a chunk. A step that begins at position 0 begins
 * the text anew. Errors: also quire_lanes_condense(), QUIRE_INVAL (more slices), QUIRE_UNSUPP (the
 * sequence was cut inside its condensed part). */
int quire_retention_step(quire_retention *retention, quire_runtime *runtime,
                         const quire_slice *slices, uint32_t n_slices, const float **logits);

const quire_retain_spec *quire_retention_spec(const quire_retention *retention);
quire_lanes *quire_retention_lanes(const quire_retention *retention);

#endif /* QUIRE_ENGINE_RETENTION_H */
