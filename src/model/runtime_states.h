/* runtime_states.h - the end of a sequence's state.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_RUNTIME_STATES_H
#define QUIRE_MODEL_RUNTIME_STATES_H

#include "model/runtime.h"

/* The sequence computes no step any more, and its state may be saved: memory for the state behind
 * the next step is given up. Without recurrent layers nothing happens. Thread: the runtime's. */
void quire_runtime_state_end(quire_runtime *rt, quire_seq_id seq);

#endif /* QUIRE_MODEL_RUNTIME_STATES_H */
