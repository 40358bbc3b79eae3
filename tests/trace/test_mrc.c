/* test_mrc.c - the curve of all capacities against a cache that is run for each; the sample against
 * the curve.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/offline/mrc.h"
#include "trace/offline/shards.h"

#include "quire/status.h"
#include "seed.h"
#include "trace/workload.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Blocks served by a cache that evicts, after each request, the least recently used block; among
 * the blocks of one request the deepest. Looks at all blocks each time. */
static uint64_t run_lru(const quire_trace *trace, uint64_t capacity)
{
    uint64_t *used = test_calloc(trace->n_ids, sizeof(*used)); /* 0 = not cached */
    uint64_t now = 0;
    uint64_t n_cached = 0;
    uint64_t hits = 0;

    for (uint32_t r = 0; r < trace->n_requests; r++) {
        const uint32_t *ids = quire_trace_blocks(trace, &trace->requests[r]);
        const uint32_t n = trace->requests[r].n_blocks;

        for (uint32_t i = 0; i < n && used[ids[i]] != 0; i++) {
            hits++;
        }
        for (uint32_t i = n; i > 0; i--) {
            n_cached += used[ids[i - 1]] == 0;
            used[ids[i - 1]] = ++now;
        }
        while (n_cached > capacity) {
            uint32_t oldest = UINT32_MAX;

            for (uint32_t i = 0; i < trace->n_ids; i++) {
                if (used[i] != 0 && (oldest == UINT32_MAX || used[i] < used[oldest])) {
                    oldest = i;
                }
            }
            used[oldest] = 0;
            n_cached--;
        }
    }
    test_free(used);
    return hits;
}

static void test_by_hand(void **state)
{
    quire_trace trace;
    quire_mrc mrc;

    (void)state;
    workload_begin(&trace, 64);
    workload_add(&trace, 0, "abc");
    workload_add(&trace, 1, "abd");
    workload_add(&trace, 2, "abc");
    quire_trace_finish(&trace);
    assert_int_equal(quire_mrc_init(&mrc, &trace, NULL), QUIRE_OK);
    assert_int_equal(quire_mrc_hits(&mrc, 0), 0);
    assert_int_equal(quire_mrc_hits(&mrc, 1), 2); /* a, twice */
    assert_int_equal(quire_mrc_hits(&mrc, 2), 4); /* and b */
    assert_int_equal(quire_mrc_hits(&mrc, 3), 4); /* a b d: c has gone */
    assert_int_equal(quire_mrc_hits(&mrc, 4), 5);
    assert_int_equal(quire_mrc_hits(&mrc, UINT64_MAX), 5);
    assert_float_equal(quire_mrc_hit_rate(&mrc, 2), 4.0F / 9.0F, 1e-6F);
    assert_int_equal(quire_mrc_capacity_for(&mrc, 1.0), 4);
    assert_int_equal(quire_mrc_capacity_for(&mrc, 0.8), 2);
    assert_int_equal(quire_mrc_capacity_for(&mrc, 0.0), 0);
    assert_int_equal(quire_mrc_knee(&mrc), 2);
    quire_mrc_fini(&mrc);
    quire_trace_fini(&trace);
}

static void test_nothing(void **state)
{
    quire_trace trace;
    quire_mrc mrc;

    (void)state;
    workload_begin(&trace, 64);
    assert_int_equal(quire_mrc_init(&mrc, &trace, NULL), QUIRE_OK);
    assert_float_equal(quire_mrc_hit_rate(&mrc, 10), 0.0, 0.0);
    assert_int_equal(quire_mrc_knee(&mrc), 0);
    quire_mrc_fini(&mrc);
    quire_trace_fini(&trace);
}

static void test_against_caches(void **state)
{
    quire_rng rng = test_rng(21);

    (void)state;
    for (uint32_t round = 0; round < 12; round++) {
        const workload_opts opts = { .n_requests = 60 + quire_rng_below(&rng, 120),
                                     .n_conversations = 1 + quire_rng_below(&rng, 12),
                                     .shared_blocks = quire_rng_below(&rng, 4),
                                     .turn_blocks_max = 1 + quire_rng_below(&rng, 6),
                                     .p_end = 0.2 * quire_rng_unit(&rng) };
        quire_trace trace;
        quire_mrc mrc;

        workload_begin(&trace, 64);
        workload_conversations(&trace, &opts, &rng);
        assert_int_equal(quire_mrc_init(&mrc, &trace, NULL), QUIRE_OK);
        for (uint64_t c = 0; c < trace.n_ids + 10u; c += 1 + c / 4) {
            assert_int_equal(quire_mrc_hits(&mrc, c), run_lru(&trace, c));
        }
        quire_mrc_fini(&mrc);
        quire_trace_fini(&trace);
    }
}

static void make_large(quire_trace *trace, quire_rng *rng)
{
    const workload_opts opts = { .n_requests = 6000,
                                 .n_conversations = 400,
                                 .shared_blocks = 3,
                                 .turn_blocks_max = 12,
                                 .p_end = 0.1 };

    workload_begin(trace, 64);
    workload_conversations(trace, &opts, rng);
}

/* The greatest and the mean error over capacities of all sizes. */
static void sample_error(const quire_trace *trace, const quire_mrc *mrc, uint32_t sample_max,
                         double *greatest, double *mean)
{
    const quire_shards_opts opts = { .sample_max = sample_max, .seed = 5 };
    quire_shards *shards;
    quire_shards_stats stats;
    uint32_t n = 0;

    assert_int_equal(quire_shards_create(&shards, &opts), QUIRE_OK);
    assert_float_equal(quire_shards_hit_rate(shards, 100), 0.0, 0.0);
    assert_int_equal(quire_shards_add_trace(shards, trace), QUIRE_OK);
    quire_shards_stats_get(shards, &stats);
    assert_int_equal(stats.blocks, trace->n_blocks);
    assert_true(stats.samples <= sample_max);
    *greatest = *mean = 0.0;
    for (uint64_t c = 100; c < trace->n_ids; c += c / 8, n++) {
        const double off = fabs(quire_shards_hit_rate(shards, c) - quire_mrc_hit_rate(mrc, c));

        *greatest = off > *greatest ? off : *greatest;
        *mean += off;
    }
    *mean /= n;
    quire_shards_destroy(shards);
}

static void test_sample_errors(void **state)
{
    quire_rng rng = test_rng(22);
    quire_trace trace;
    quire_mrc mrc;
    double greatest;
    double mean;

    (void)state;
    make_large(&trace, &rng);
    assert_int_equal(quire_mrc_init(&mrc, &trace, NULL), QUIRE_OK);
    sample_error(&trace, &mrc, 1u << 20, &greatest, &mean); /* all of them: buckets alone */
    assert_true(greatest < 0.02);
    assert_true(mean < 0.005);
    sample_error(&trace, &mrc, 8192, &greatest, &mean);
    assert_true(greatest < 0.05);
    assert_true(mean < 0.02);
    sample_error(&trace, &mrc, 1024, &greatest, &mean);
    assert_true(greatest < 0.12);
    assert_true(mean < 0.05);
    quire_mrc_fini(&mrc);
    quire_trace_fini(&trace);
}

static void test_sample_bounds(void **state)
{
    quire_shards_opts opts = { .sample_max = 15 };
    quire_shards_stats stats;
    quire_shards *shards;
    uint64_t names[300];

    (void)state;
    assert_int_equal(quire_shards_create(&shards, &opts), QUIRE_INVAL);
    opts.sample_max = QUIRE_SHARDS_SAMPLES_MAX + 1;
    assert_int_equal(quire_shards_create(&shards, &opts), QUIRE_INVAL);
    opts.sample_max = 16;
    assert_int_equal(quire_shards_create(&shards, &opts), QUIRE_OK);
    for (uint64_t round = 0; round < 50; round++) {
        for (uint64_t i = 0; i < 300; i++) {
            names[i] = round % 10 * 300 + i;
        }
        assert_int_equal(quire_shards_add(shards, names, 300), QUIRE_OK);
    }
    quire_shards_stats_get(shards, &stats);
    assert_int_equal(stats.blocks, 50 * 300);
    assert_int_equal(stats.samples, 16);
    /* 3,000 blocks, all asked for five times in the same order: with room for all of them four of
     * five are hits, with room for fewer none is. 16 samples are off by 1 / 4 at most. */
    assert_float_equal(quire_shards_hit_rate(shards, 1u << 20), 0.8, 0.05);
    assert_float_equal(quire_shards_hit_rate(shards, 3000), 0.8, 0.05);
    assert_true(quire_shards_hit_rate(shards, 1500) < 0.25);
    quire_shards_destroy(shards);
    quire_shards_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_against_caches), cmocka_unit_test(test_sample_errors),
        cmocka_unit_test(test_sample_bounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
