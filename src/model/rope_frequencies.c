/* rope_frequencies.c - see rope_frequencies.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/rope_frequencies.h"

#include "model/archs.h"
#include "model/model_internal.h"

#include <math.h>

#define TWO_PI 6.283185307179586

/* The pair whose wave turns `turns` times within the original context. */
static double pair_of_turns(const quire_rope *rope, double turns)
{
    return rope->n_dims * log(rope->ctx_orig / (turns * TWO_PI)) /
           (2.0 * log((double)rope->freq_base));
}

/* YaRN: 1 for pairs that keep their frequency, 0 for those that are slowed down in full. */
static double kept_part(const quire_rope *rope, uint32_t pair)
{
    const double first = fmax(0.0, floor(pair_of_turns(rope, (double)rope->beta_fast)));
    const double last =
        fmin(rope->n_dims - 1.0, ceil(pair_of_turns(rope, (double)rope->beta_slow)));
    const double y = (pair - first) / fmax(0.001, last - first);

    return (1.0 - fmin(1.0, fmax(0.0, y))) * (double)rope->ext_factor;
}

void quire_model_rope_frequencies(const quire_model *model, float *frequencies)
{
    const quire_rope *rope = &model->desc.rope;
    const struct ggml_tensor *tensor = model->weights->rope_freqs;
    const float *factors = tensor != NULL ? tensor->data : NULL;

    for (uint32_t i = 0; i < rope->n_dims / 2; i++) {
        const double whole = pow((double)rope->freq_base, -2.0 * i / rope->n_dims) /
                             (factors != NULL ? (double)factors[i] : 1.0);
        const double slowed = whole * (double)rope->freq_scale;
        const double kept = rope->ext_factor != 0.0f ? kept_part(rope, i) : 0.0;

        frequencies[i] = (float)(slowed * (1.0 - kept) + whole * kept);
    }
}

bool quire_model_rope_is_plain(const quire_model_desc *desc)
{
    const bool is_normed_after = quire_arch_row_get(desc->arch)->qk_norm == QUIRE_QK_NORM_ROPED;

    for (uint32_t il = 0; il < desc->n_layer; il++) {
        if (desc->layer_rope[il] != QUIRE_LAYER_ROPE_MAIN) {
            return false;
        }
    }
    return desc->rope.n_dims == desc->d_k && (desc->parts & QUIRE_PART_ROPE_FACTORS) == 0 &&
           !is_normed_after;
}

bool quire_model_rope_is_movable(const quire_model_desc *desc)
{
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        if (desc->layer_rope[il] == QUIRE_LAYER_ROPE_WINDOW) {
            return false;
        }
    }
    return !desc->latent.is_there && (desc->parts & QUIRE_PART_ROPE_FACTORS) == 0 &&
           quire_arch_row_get(desc->arch)->qk_norm != QUIRE_QK_NORM_ROPED;
}

quire_rotation quire_model_rotation(const quire_model_desc *desc, const float *frequencies)
{
    return (quire_rotation){ .d = desc->d_k,
                             .has_halves = desc->rope.type == QUIRE_ROPE_NEOX,
                             .frequencies = frequencies };
}

quire_rotation quire_model_rotation_of_moves(const quire_model_desc *desc, const float *frequencies)
{
    quire_rotation rotation = quire_model_rotation(desc, frequencies);

    rotation.d = desc->rope.n_dims;
    return rotation;
}
