/* cuda_kernels.h - facts about the kernels that the host's code needs, too.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_CUDA_KERNELS_H
#define QUIRE_DEVICE_CUDA_KERNELS_H

#define QUIRE_CUDA_THREADS 64u /* of a block */

/* Floats of a block's memory, beside quire_card_dispatch.shared_floats. */
#define QUIRE_CUDA_ATTN_FLOATS   192u
#define QUIRE_CUDA_MERGE_FLOATS  129u
#define QUIRE_CUDA_APPEND_FLOATS 96u
#define QUIRE_CUDA_SEAL_FLOATS   544u

/* attn is compiled for 1, 2, 4, 8 and 16 lanes: cuda_attn_1 and so on. A lane is a head of a row.
 */
#define QUIRE_CUDA_LANES_MAX 16u

#endif /* QUIRE_DEVICE_CUDA_KERNELS_H */
