/* archs_rows.h - for the tables of architectures only: parts that many rows share, and the tables.
 * A row is in one of them and has no name in the other.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_ARCHS_ROWS_H
#define QUIRE_MODEL_ARCHS_ROWS_H

#include "model/archs.h"

/* Parts that nearly all rows share. */
#define PRE_NORMS      (QUIRE_PART_ATTN_NORM | QUIRE_PART_FFN_NORM)
#define POST_NORMS     (QUIRE_PART_ATTN_POST_NORM | QUIRE_PART_FFN_POST_NORM)
#define ATTENTION      (QUIRE_PART_BASE | QUIRE_PART_LAST_NORM | QUIRE_PART_QKV)
#define GATED          (QUIRE_PART_FFN_GATE | QUIRE_PART_FFN_UP | QUIRE_PART_FFN_DOWN)
#define LATENT         (QUIRE_PART_BASE | QUIRE_PART_LAST_NORM | QUIRE_PART_LATENT)
#define EXPERTS_SHARED (QUIRE_PART_EXPERTS | QUIRE_PART_EXPERTS_SHARED)
#define DELTA_NETS                                                                                 \
    (ATTENTION | QUIRE_PART_ATTN_NORM | QUIRE_PART_FFN_NORM_LATE | QUIRE_PART_QK_NORM |            \
     QUIRE_PART_DELTA_NET)
#define QKV_MAY (QUIRE_PART_QKV_FUSED | QUIRE_PART_QKV_BIAS | QUIRE_PART_QKV_BIAS_FUSED)
#define LLAMA_MAY                                                                                  \
    (QKV_MAY | QUIRE_PART_OUTPUT | QUIRE_PART_ROPE_FREQS | QUIRE_PART_O_BIAS |                     \
     QUIRE_PART_FFN_BIAS | QUIRE_PART_FFN_GATE_BIAS)

/* Models whose layers have attention of one kind. */
extern const quire_arch_row quire_archs_plain[QUIRE_ARCH_COUNT];

/* Models with recurrent layers, latent attention, or layers of different kinds. */
extern const quire_arch_row quire_archs_mixed[QUIRE_ARCH_COUNT];

#endif /* QUIRE_MODEL_ARCHS_ROWS_H */
