/* attn_merge.c - results over two parts of the tokens, joined by log-sum-exp: the definition in
 * double precision, and the f32 code of steps.
 *
 *   sum = l1 exp(m1 - m) + l2 exp(m2 - m), m the larger of m1 and m2
 *   out = out1 l1 exp(m1 - m) / sum + out2 l2 exp(m2 - m) / sum
 *
 * Rotations and gates of V are linear, so results can be added behind them.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_math.h"
#include "quire/attn.h"

void quire_attn_ref_merge(size_t n, uint32_t d_v, double *out, double *sums, const double *part_out,
                          const double *part_sums)
{
    for (size_t i = 0; i < n; i++, sums += 2, part_sums += 2, out += d_v, part_out += d_v) {
        const double m = sums[0] > part_sums[0] ? sums[0] : part_sums[0];
        const double a = sums[1] == 0.0 ? 0.0 : sums[1] * exp(sums[0] - m);
        const double b = part_sums[1] == 0.0 ? 0.0 : part_sums[1] * exp(part_sums[0] - m);

        for (uint32_t d = 0; b != 0.0 && d < d_v; d++) {
            out[d] = a != 0.0 ? out[d] * (a / (a + b)) + part_out[d] * (b / (a + b)) : part_out[d];
        }
        sums[0] = m;
        sums[1] = a + b;
    }
}

/* One row and head. A NaN in m is in l as well. */
static void merge_head(uint32_t d_v, float *out, float *sums, const float *part_out,
                       const float *part_sums)
{
    const float m = sums[0] > part_sums[0] ? sums[0] : part_sums[0];
    const float a = sums[1] == 0.0f ? 0.0f : sums[1] * quire_attn_exp(sums[0] - m);
    const float b = part_sums[1] == 0.0f ? 0.0f : part_sums[1] * quire_attn_exp(part_sums[0] - m);
    const float inverse = 1.0f / (a + b);

    if (part_sums[1] == 0.0f) {
        return;
    }
    if (sums[1] == 0.0f) {
        memcpy(out, part_out, d_v * sizeof(float));
    } else {
        quire_attn_fold_floats(d_v, a * inverse, b * inverse, out, part_out);
    }
    sums[0] = m;
    sums[1] = a + b;
}

void quire_attn_merge(const quire_attn_batch *batch, const quire_attn_layer *layer,
                      const quire_attn_layer *part)
{
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        const quire_attn_seq *seq = &batch->seqs[s];

        for (size_t row = seq->first_row; row < (size_t)seq->first_row + seq->n_rows; row++) {
            for (uint32_t h = 0; h < layer->n_head; h++) {
                const size_t at = 2 * (row * layer->n_head + h);
                const size_t d = (size_t)h * layer->d_v;

                merge_head(layer->d_v, layer->out + row * layer->out_stride + d, layer->sums + at,
                           part->out + row * part->out_stride + d, part->sums + at);
            }
        }
    }
}
