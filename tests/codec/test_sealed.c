/* test_sealed.c - sealed formats: sizes, where codes lie, and the same bytes on every ISA.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "codec/half.h"
#include "codec/sealed_support.h"
#include "seed.h"

#define TILE QUIRE_TILE_TOKENS

static quire_rng rng;

/* ---- sizes and levels ---- */

static void test_bits_per_value(void **state)
{
    /* K and V of q6 q5 q4 q3. Beside the codes: 16 bits per row, and 16 per dimension and 64 tokens
     * of K (at d = 48 the mean is padded to 64 dimensions, and so is a K plane of one bit). */
    static const struct {
        uint32_t d;
        double bits[4][2];
    } expected[] = {
        { 48,
          { { 20.0 / 3, 19.0 / 3 }, { 6.0, 16.0 / 3 }, { 14.0 / 3, 13.0 / 3 }, { 4, 10.0 / 3 } } },
        { 64, { { 6.5, 6.25 }, { 5.5, 5.25 }, { 4.5, 4.25 }, { 3.5, 3.25 } } },
        { 128, { { 6.375, 6.125 }, { 5.375, 5.125 }, { 4.375, 4.125 }, { 3.375, 3.125 } } },
    };

    (void)state;
    for (size_t n = 0; n < sizeof(expected) / sizeof(expected[0]); n++) {
        for (unsigned f = 0; f < 4; f++) {
            for (unsigned side = 0; side < 2; side++) {
                double bits = quire_format_bits((quire_format)(QUIRE_FORMAT_Q6 + f),
                                                (quire_side)side, expected[n].d);

                assert_true(fabs(bits - expected[n].bits[f][side]) < 1e-9);
            }
        }
    }
}

static void check_levels(quire_format format, quire_side side)
{
    const int8_t *levels = quire_sealed_levels(format, side);
    uint32_t n = quire_sealed_n_levels(format);

    assert_int_equal((uintptr_t)levels % 64, 0);
    for (uint32_t i = 0; i < QUIRE_SEALED_LEVELS_MAX; i++) {
        assert_int_equal(levels[i], levels[i % n]);
        assert_true(i % n == 0 || levels[i] > levels[i - 1]);
        assert_int_equal(levels[i], -levels[n - 1 - i % n]);
    }
    assert_int_equal(levels[n - 1], 127);
}

static void test_levels(void **state)
{
    (void)state;
    sealed_for_each(check_levels);
}

/* ---- layout ---- */

static void check_layout(quire_format format, quire_side side)
{
    static const uint32_t dims[] = { 8, 40, 48, 64, 72, 128, 1024 };

    for (size_t n = 0; n < sizeof(dims) / sizeof(dims[0]); n++) {
        sealed_fixture f = sealed_take(format, side, dims[n], dims[n]);

        sealed_fill(&f, &rng, 0);
        sealed_round_trip(&f);
        for (uint32_t t = 0; t < TILE; t++) {
            for (uint32_t i = 0; i < dims[n]; i++) {
                float expected = (float)sealed_scale(&f, t) * (float)sealed_level(&f, i, t);

                expected += (float)sealed_mean(&f, i);
                assert_true(sealed_decoded(&f, t)[i] == expected);
            }
        }
        sealed_release(&f);
    }
}

static void test_layout(void **state)
{
    (void)state;
    sealed_for_each(check_layout);
}

/* Bits of a K tile that belong to no dimension are zero, so that equal rows are equal bytes. */
static void check_padding(quire_format format, quire_side side)
{
    sealed_fixture f = sealed_take(format, side, 40, 40);
    const unsigned char *mean = f.tile + QUIRE_SEALED_SCALES_BYTES;
    uint32_t high = quire_sealed_high_bits(format);
    size_t high_offset = quire_sealed_high_offset(format, side, 40);

    sealed_fill(&f, &rng, 0);
    sealed_tile_encode(quire_codec_get(), &f);
    for (size_t i = 80; i < quire_sealed_mean_bytes(format, side, 40); i++) {
        assert_int_equal(mean[i], 0);
    }
    for (uint32_t i = 40;
         side == QUIRE_SIDE_K && high != 0 && i < (40 * high + 31) / 32 * 32 / high; i++) {
        for (uint32_t t = 0; t < TILE; t++) {
            assert_int_equal(
                sealed_plane_bits(&f, f.tile + high_offset, high, (const uint32_t[]){ i, t }), 0);
        }
    }
    sealed_release(&f);
}

static void test_padding(void **state)
{
    (void)state;
    sealed_for_each(check_padding);
}

/* Whole tiles by hash: bytes go to disk and must not change silently. */
static void test_golden_tiles(void **state)
{
    static const uint64_t expected[][2] = {
        { 0xac229ec9d28c94ddu, 0x0c0ef63452e72f8au }, /* q6: K, V */
        { 0x9fc1025d59b3dfadu, 0xd72e169aa233e8dbu },
        { 0x360be03332736e45u, 0x508625ef4a12b53du },
        { 0xec3b0e01b141653eu, 0xa04077c595c0b054u },
    };
    bool is_same = true;

    (void)state;
    for (unsigned n = 0; n < 8; n++) {
        sealed_fixture f =
            sealed_take((quire_format)(QUIRE_FORMAT_Q6 + n / 2), (quire_side)(n % 2), 72, 80);
        uint64_t hash;

        for (uint32_t t = 0; t < TILE; t++) {
            for (uint32_t i = 0; i < 72; i++) {
                sealed_row(&f, t)[i] = (float)((int)((t * 37u + i * 101u + t * i) % 2003u) - 901) *
                                       0x1.8p-9f * (1.0f + (float)t * 0.25f);
            }
        }
        sealed_tile_encode(quire_codec_get(), &f);
        hash = codec_hash(f.tile, f.tile_bytes);
        if (hash != expected[n / 2][n % 2]) {
            print_message("%s %c: 0x%016llx\n", quire_format_name(f.format), "KV"[n % 2],
                          (unsigned long long)hash);
            is_same = false;
        }
        sealed_release(&f);
    }
    assert_true(is_same);
}

/* ---- all ISAs ---- */

static void check_same(const quire_codec *codec, sealed_fixture *f)
{
    const quire_codec *ref = quire_codec_find("ref");
    size_t floats = TILE * f->rows.stride;
    unsigned char *expected = codec_take(f->tile_bytes);
    float *z = codec_take(floats * sizeof(float));
    quire_tile_rows whole = f->rows;

    sealed_tile_encode(ref, f);
    memcpy(expected, f->tile, f->tile_bytes);
    sealed_tile_encode(codec, f);
    assert_memory_equal(f->tile, expected, f->tile_bytes);

    f->rows.first_slot = quire_rng_below(&rng, TILE);
    f->rows.n_tokens = quire_rng_below(&rng, TILE - f->rows.first_slot + 1);
    memset(f->y, 0x5a, floats * sizeof(float));
    sealed_tile_decode(ref, f);
    memcpy(z, f->y, floats * sizeof(float));
    memset(f->y, 0x5a, floats * sizeof(float));
    sealed_tile_decode(codec, f);
    assert_memory_equal(f->y, z, floats * sizeof(float));
    f->rows = whole;
    free(z);
    free(expected);
}

static void test_same_bytes_on_every_isa(void **state)
{
    const quire_codec *codecs[CODEC_LIST_MAX];
    uint32_t n_codecs = codec_list(codecs);

    (void)state;
    for (uint32_t n = 0; n < 400; n++) {
        uint32_t d = 8 * (1 + quire_rng_below(&rng, n % 40 == 0 ? 128 : 20));
        sealed_fixture f = sealed_take((quire_format)(QUIRE_FORMAT_Q6 + n % 4),
                                       (quire_side)(n / 4 % 2), d, d + quire_rng_below(&rng, 20));

        sealed_fill(&f, &rng, quire_rng_below(&rng, 4));
        if (n % 5 == 0) { /* most rows, but not all, whole in a tile of any bits */
            for (uint32_t t = 0; t < TILE - 8; t++) {
                for (uint32_t i = 0; i < d; i++) {
                    sealed_row(&f, t)[i] = codec_random_value(&rng, n % 3);
                }
            }
        }
        for (uint32_t c = 0; c < n_codecs; c++) {
            check_same(codecs[c], &f);
        }
        sealed_release(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_per_value), cmocka_unit_test(test_levels),
        cmocka_unit_test(test_layout),         cmocka_unit_test(test_padding),
        cmocka_unit_test(test_golden_tiles),   cmocka_unit_test(test_same_bytes_on_every_isa),
    };

    rng = test_rng(20260301u);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
