/* rope_frequencies.h - the angles by which ggml's rope turns the rows of a model, for rows that are
 * turned again after they were computed (attn/rotation.h).
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_ROPE_FREQUENCIES_H
#define QUIRE_MODEL_ROPE_FREQUENCIES_H

#include "attn/rotation.h"
#include "model/model.h"

/* frequencies, [d_k / 2]: radians a position, with the model's scaling and factors. The model has
 * its weights. Sources: RoPE (arXiv 2104.09864), YaRN (arXiv 2309.00071). */
void quire_model_rope_frequencies(const quire_model *model, float *frequencies);

/* Whether all layers turn whole heads alike, by frequencies that do not depend on the context, and
 * nothing comes after the turn. Then Q can be turned to another position as K is. */
bool quire_model_rope_is_plain(const quire_model_desc *desc);

/* Whether K of each layer is either not turned, or its first numbers are turned by frequencies that
 * all these layers have in common and that do not depend on the context, and nothing comes after
 * the turn. Then K can move to another position. */
bool quire_model_rope_is_movable(const quire_model_desc *desc);

/* Of whole heads, of a model whose rope is plain. Memory: frequencies are borrowed. */
quire_rotation quire_model_rotation(const quire_model_desc *desc, const float *frequencies);
/* Of the turned part of a head, of a model whose rope is movable. Memory: the same. */
quire_rotation quire_model_rotation_of_moves(const quire_model_desc *desc,
                                             const float *frequencies);

#endif /* QUIRE_MODEL_ROPE_FREQUENCIES_H */
