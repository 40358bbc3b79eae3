/* test_slot_copy.c - rows that move between slots keep their bits, and leave the others alone.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "codec/codec_internal.h"
#include "codec/slot_copy.h"
#include "codec_support.h"
#include "seed.h"

#define TILE QUIRE_TILE_TOKENS

static quire_rng rng;

static void decode(const quire_tile_kind *kind, const void *tile, float *x)
{
    const quire_tile_rows rows = { .d = kind->d, .n_tokens = TILE, .stride = kind->d };
    const quire_codec *codec = quire_codec_ref();

    (kind->side == QUIRE_SIDE_K ? codec->decode_k : codec->decode_v)(kind->format, &rows, tile, x);
}

static void *random_tile(const quire_tile_kind *kind)
{
    const quire_tile_rows rows = { .d = kind->d, .n_tokens = TILE, .stride = kind->d };
    const quire_codec *codec = quire_codec_ref();
    void *tile = codec_take(quire_tile_bytes(kind->format, kind->side, kind->d));
    float *x = codec_take(TILE * kind->d * sizeof(float));

    for (size_t i = 0; i < (size_t)TILE * kind->d; i++) {
        x[i] = codec_random_value(&rng, 1);
    }
    (kind->side == QUIRE_SIDE_K ? codec->encode_k : codec->encode_v)(kind->format, &rows, x, tile);
    free(x);
    return tile;
}

static void check_copies(const quire_tile_kind *kind)
{
    const size_t row_bytes = kind->d * sizeof(float);
    void *a = random_tile(kind);
    void *b = random_tile(kind);
    float *from = codec_take(TILE * row_bytes);
    float *want = codec_take(TILE * row_bytes);
    float *got = codec_take(TILE * row_bytes);

    decode(kind, a, from);
    decode(kind, b, want);
    for (uint32_t i = 0; i < 100; i++) {
        const uint32_t s = quire_rng_below(&rng, TILE);
        const uint32_t t = quire_rng_below(&rng, TILE);

        quire_tile_slot_copy(kind, a, s, b, t);
        memcpy(want + (size_t)t * kind->d, from + (size_t)s * kind->d, row_bytes);
        decode(kind, b, got);
        assert_memory_equal(got, want, TILE * row_bytes);
    }
    free(got);
    free(want);
    free(from);
    free(b);
    free(a);
}

static void test_between_tiles(void **state)
{
    static const uint32_t dims[] = { 8, 24, 64, 128 };

    (void)state;
    for (quire_format format = 0; format < QUIRE_FORMATS_DIRECT; format++) {
        for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
            check_copies(&(quire_tile_kind){ format, QUIRE_SIDE_K, dims[i] });
            check_copies(&(quire_tile_kind){ format, QUIRE_SIDE_V, dims[i] });
        }
    }
}

/* Tokens that are dropped in place: the rest moves up, first to last. */
static void test_in_place(void **state)
{
    (void)state;
    for (quire_format format = 0; format < QUIRE_FORMATS_DIRECT; format++) {
        for (int side = 0; side < 2; side++) {
            const quire_tile_kind kind = { format, side == 0 ? QUIRE_SIDE_K : QUIRE_SIDE_V, 32 };
            float *before = codec_take(TILE * 32 * sizeof(float));
            float *after = codec_take(TILE * 32 * sizeof(float));
            void *tile = random_tile(&kind);
            uint32_t n = 0;

            decode(&kind, tile, before);
            for (uint32_t t = 0; t < TILE; t += 1 + t % 3) {
                memcpy(before + (size_t)n * 32, before + (size_t)t * 32, 32 * sizeof(float));
                quire_tile_slot_copy(&kind, tile, t, tile, n++);
            }
            decode(&kind, tile, after);
            assert_memory_equal(after, before, TILE * 32 * sizeof(float));
            free(tile);
            free(after);
            free(before);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_between_tiles),
        cmocka_unit_test(test_in_place),
    };

    rng = test_rng(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
