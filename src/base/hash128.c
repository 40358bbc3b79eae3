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

void quire_hash128_parts(const void *a, size_t a_bytes, const void *b, size_t b_bytes,
                         unsigned char out[QUIRE_HASH128_BYTES])
{
    XXH128_canonical_t canonical;
    XXH3_state_t state;

    (void)XXH3_128bits_reset(&state);
    (void)XXH3_128bits_update(&state, a, a_bytes);
    (void)XXH3_128bits_update(&state, b, b_bytes);
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
    memcpy(out, canonical.digest, QUIRE_HASH128_BYTES);
}
