/* device_tolerance.h - how far a device's result may be from quire_attn_ref() over the same pages.
 *
 *   device   products                                         table
 *   cpu      of the kernel set; q and P of 8 bits where        tests/attn/tolerance.h
 *            the tile has 8 bits or fewer
 *   vulkan   f32 for every format: codes are converted         below
 *            exactly, q and P stay f32. exp() of Vulkan may
 *            be off by 3 + 2|x| units in the last place
 *   cuda     as vulkan. exp() is off by 2 units              below
 *
 * Both figures are relative to the norm of the output: of a whole call, and of its worst row.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_DEVICE_TOLERANCE_H
#define QUIRE_TESTS_DEVICE_TOLERANCE_H

#include "attn/tolerance.h"

/* A sum of two parts: the error of exp() for weights that count (|x| <= 8), 2e-6, and the rounding
 * of the sums. */
static const attn_tolerance device_tolerance_f32 = { 1e-5, 1e-4 };

/* The tolerance of a device with this info.isa. */
static inline attn_tolerance device_tolerance_of(const char *isa, quire_format k_format,
                                                 quire_format v_format)
{
    return strcmp(isa, "vulkan") == 0 || strcmp(isa, "cuda") == 0
               ? device_tolerance_f32
               : attn_tolerance_of(isa, k_format, v_format);
}

#endif /* QUIRE_TESTS_DEVICE_TOLERANCE_H */
