/* codec_support.c - code that the tests of the tile formats share.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/codec_support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "codec/half.h"
#include "quire/alloc.h"

void *codec_take(size_t bytes)
{
    const quire_allocator *allocator = quire_allocator_default();
    void *p = allocator->alloc(allocator->ctx, bytes);

    assert_non_null(p);
    return p;
}

uint64_t codec_hash(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < n; i++) {
        h = (h ^ p[i]) * 0x100000001b3u;
    }
    return h;
}

float codec_random_value(quire_rng *rng, uint32_t kind)
{
    double x = quire_rng_normal(rng);

    switch (kind) {
    case 0:
        return (float)x;
    case 1: /* outliers */
        return (float)(quire_rng_below(rng, 16) == 0 ? x * 100.0 : x);
    case 2: /* any exponent */
        return (float)ldexp(x, (int)quire_rng_below(rng, 60) - 30);
    default: /* any bits, NaN and Inf among them */
        return quire_f32_from_bits((uint32_t)(quire_rng_next(rng) >> 32));
    }
}

uint32_t codec_list(const quire_codec **codecs)
{
    static const char *const names[] = { "ref", "avx2", "avx512", "neon" };
    uint32_t n = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const quire_codec *codec = quire_codec_find(names[i]);

        if (codec != NULL && (n == 0 || codecs[n - 1] != codec)) {
            codecs[n++] = codec;
        }
    }
    return n;
}
