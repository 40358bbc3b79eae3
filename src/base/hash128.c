/* hash128.c - see hash128.h.
 *
 * SPDX-License-Identifier: MIT */
#include "base/hash128.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

void quire_hash128(const void *bytes, size_t n_bytes, unsigned char out[QUIRE_HASH128_BYTES])
{
    XXH128_canonical_t canonical;

    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, n_bytes));
    memcpy(out, canonical.digest, QUIRE_HASH128_BYTES);
}
