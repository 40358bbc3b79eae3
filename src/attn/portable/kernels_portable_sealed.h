/* kernels_portable_sealed.h - functions of the portable kernel set for tiles of sealed formats.
 *
 * Contracts: those of the functions of the same name in kernels.h; pv leaves o * rescale to its
 * caller, qk adds to s.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_PORTABLE_SEALED_H
#define QUIRE_ATTN_KERNELS_PORTABLE_SEALED_H

#include "attn/kernels.h"

size_t quire_portable_q_bytes_sealed(uint32_t d);
void quire_portable_q_pack_sealed(uint32_t d, float scale, const float *q, void *packed);
void quire_portable_qk_sealed(const quire_attn_qk *args);
void quire_portable_pv_sealed(const quire_attn_pv *args);

#endif /* QUIRE_ATTN_KERNELS_PORTABLE_SEALED_H */
