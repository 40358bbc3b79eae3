/* ops.h - the operations of a model, forward and backward, each over all tokens of a batch.
 *
 * Arrays are row-major with one row per token. Weights lie as GGUF has them: [outputs][inputs].
 * "Forward" writes its results. "Back" takes the gradient of a result; gradients of weights are
 * added to, and gradients of inputs are added to where the contract says +=.
 *
 * Work is cut into parts by shapes alone (parts.h), so results do not depend on the number of
 * threads. Single precision trains; double precision is the same code, for finite differences.
 *
 * A compute belongs to one thread; its team works inside of the calls.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_OPS_H
#define QUIRE_TRAIN_OPS_H

#include "base/team.h"
#include "quire/error.h"
#include "train/row_kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Gradients of vectors (norm weights, gates) are summed in at most so many parts. */
#define QUIRE_TRAIN_SUM_PARTS 64u

/* Tokens that predict nothing have this target. */
#define QUIRE_TRAIN_NO_TARGET (-1)

#include "train/as_f32_body.h"
#include "train/ops_decl.h"

#include "train/as_f64_body.h"
#include "train/ops_decl.h"

#endif /* QUIRE_TRAIN_OPS_H */
