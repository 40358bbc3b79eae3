/* num.h - the small arithmetic that C leaves out.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_NUM_H
#define QUIRE_BASE_NUM_H

#include <stdint.h>

static inline uint32_t quire_min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t quire_max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static inline uint64_t quire_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t quire_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif /* QUIRE_BASE_NUM_H */
