/* test_attn_fold.c - loops over floats: merging partial results, the same bits from every kernel
 * set, each operation rounded; the softcap.
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

#include "attn/attn_fixture.h"
#include "attn/kernels.h"
#include "seed.h"

#define FLOATS_MAX 1024u
#define ISAS_MAX   6u

static void fill(quire_rng *rng, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)quire_rng_below(rng, 1u << 24) * 0x1p-20f - 8.0f;
    }
}

static void test_fold(void **state)
{
    quire_rng rng = test_rng(7);
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);

    (void)state;
    assert_true(n_isas >= 1);
    for (size_t n = 16; n <= FLOATS_MAX; n += 16) {
        _Alignas(64) float dst[FLOATS_MAX];
        _Alignas(64) float src[FLOATS_MAX];
        float expected[FLOATS_MAX];
        float factor[2];

        fill(&rng, dst, FLOATS_MAX);
        fill(&rng, src, FLOATS_MAX);
        fill(&rng, factor, 2);
        for (size_t i = 0; i < n; i++) {
            volatile float kept = dst[i] * factor[0];
            volatile float added = src[i] * factor[1];

            expected[i] = kept + added;
        }
        memcpy(expected + n, dst + n, (FLOATS_MAX - n) * sizeof(float)); /* the rest stays */
        for (uint32_t k = 0; k < n_isas; k++) {
            const quire_attn_kernels *set = quire_attn_kernels_find(isas[k]);
            _Alignas(64) float got[FLOATS_MAX];

            memcpy(got, dst, sizeof(got));
            set->fold(n, factor[0], factor[1], got, src);
            assert_memory_equal(got, expected, sizeof(got));
        }
    }
}

/* Within 4 units in the last place of the cap times tanh, from tiny logits to infinite ones. */
static void test_cap(void **state)
{
    quire_rng rng = test_rng(8);
    const char *isas[ISAS_MAX];
    uint32_t n_isas = fixture_isas(isas, ISAS_MAX);

    (void)state;
    for (uint32_t i = 0; i < 400; i++) {
        const float cap =
            ldexpf(1.0f + (float)quire_rng_below(&rng, 100) * 0.01f, (int)(i % 20) - 8);
        _Alignas(64) float s[64];

        for (uint32_t t = 0; t < 64; t++) {
            s[t] = cap * ldexpf((float)quire_rng_below(&rng, 1u << 24) * 0x1p-23f - 1.0f,
                                (int)quire_rng_below(&rng, 20) - 14);
        }
        s[3] = INFINITY;
        s[20] = -INFINITY;
        s[40] = NAN;
        s[41] = 0.0f;
        for (uint32_t k = 0; k < n_isas; k++) {
            _Alignas(64) float got[64];

            memcpy(got, s, sizeof(got));
            quire_attn_kernels_find(isas[k])->cap(64, cap, got);
            for (uint32_t t = 0; t < 64; t++) {
                const double exact = (double)cap * tanh((double)s[t] / (double)cap);

                assert_true(t == 40 ? isnan(got[t])
                                    : fabs((double)got[t] - exact) <= 4 * 0x1p-23 * fabs(exact));
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_fold), cmocka_unit_test(test_cap) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
