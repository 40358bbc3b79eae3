/* product_bf16.h - matrix products of numbers that are rounded to bf16 first.
 *
 * Each element of a and b is rounded to the nearest bf16 number, and of two as near to the even
 * one; numbers below 2^-126 count as 0. The product of two such numbers is exact in f32. Terms are
 * added in f32, in pairs: terms 1, 0, 3, 2 and so on, in blocks of QUIRE_PRODUCT_K. That is the
 * order of VDPBF16PS, so all kernels give the same bits, with one exception: VDPBF16PS makes a sum
 * below 2^-126 a 0, and the others keep it.
 *
 * Source: Micikevicius et al., "Mixed precision training", ICLR 2018; Kalamkar et al., "A study of
 * BFLOAT16 for deep learning training", arXiv 1905.12322.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_PRODUCT_BF16_H
#define QUIRE_TRAIN_PRODUCT_BF16_H

#include "train/product.h"

/* On any CPU: rounded copies of blocks, and the products in f32 of the best set on them. Slower
 * than these products alone. */
quire_f32_product_fn quire_bf16_product_by_f32;

/* With AVX-512 BF16 and VBMI. */
quire_f32_product_fn quire_bf16_product_avx512;

/* The fastest that this CPU has; QUIRE_ISA=portable or avx2 in the environment narrows it. */
quire_f32_product_fn *quire_bf16_product_best(void);

#endif /* QUIRE_TRAIN_PRODUCT_BF16_H */
