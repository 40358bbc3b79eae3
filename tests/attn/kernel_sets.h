/* kernel_sets.h - code that the tests of single kernels share.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_KERNEL_SETS_H
#define QUIRE_TESTS_KERNEL_SETS_H

#include "attn/kernels.h"

#define KERNEL_SETS_MAX 8u

/* Every set that this CPU runs, with and without the extra instructions of some. Returns their
 * number. */
uint32_t kernel_sets_all(const quire_attn_kernels **sets);

/* Memory aligned as the kernels want it; behind it are NaN, as far as they may read. Fails the
 * running test when there is none. Release with free(). */
void *kernel_sets_take(size_t bytes);

#endif /* QUIRE_TESTS_KERNEL_SETS_H */
