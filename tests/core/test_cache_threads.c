/* test_cache_threads.c - other threads read statistics while the owner works. The thread sanitizer
 * finds races; without it the test still checks that the figures are plausible.
 *
 * SPDX-License-Identifier: MIT */
#include "core_support.h"
#include "rounds.h"

#include <pthread.h>
#include <stdatomic.h>

#define READERS 2
#define ROUNDS  TEST_ROUNDS(3000u, 600u)
#define PAGES   100u

typedef struct shared {
    const quire_cache *cache;
    atomic_bool is_done;
} shared;

typedef struct reader {
    shared *with;
    uint64_t n_reads;
    uint64_t n_odd; /* snapshots that cannot be */
} reader;

static void *read_figures(void *arg)
{
    reader *r = arg;
    uint64_t last_allocs = 0;

    do {
        quire_cache_stats s;

        quire_cache_stats_get(r->with->cache, &s);
        r->n_reads++;
        r->n_odd += s.budget_bytes != PAGES * PAGE_BYTES;
        r->n_odd += s.live_bytes > s.budget_bytes || s.charged_bytes > s.budget_bytes;
        r->n_odd += s.live_bytes % PAGE_BYTES != 0;
        r->n_odd += s.external_fragmentation < 0.0 || s.external_fragmentation > 1.0;
        r->n_odd += s.allocs_total < last_allocs;
        last_allocs = s.allocs_total;
    } while (!atomic_load(&r->with->is_done));
    return NULL;
}

static void work(quire_cache *cache)
{
    for (uint32_t i = 0; i < ROUNDS; i++) {
        quire_seq_id a = test_open(cache);
        quire_seq_id b;

        test_append(cache, a, PAGE_TOKENS * (i % 20) + 1);
        b = test_fork(cache, a);
        test_append(cache, b, PAGE_TOKENS);
        assert_int_equal(quire_seq_close(cache, a), QUIRE_OK);
        (void)quire_cache_coalesce(cache, 4);
        quire_cache_maintain(cache);
        assert_int_equal(quire_seq_close(cache, b), QUIRE_OK);
        if (i % 16 == 0) {
            (void)quire_cache_trim(cache, 0);
        }
    }
}

static void test_stats_from_other_threads(void **state)
{
    quire_cache_opts opts = test_opts(PAGES);
    pthread_t threads[READERS];
    reader readers[READERS];
    shared with;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    with.cache = t.cache;
    atomic_init(&with.is_done, false);
    for (int i = 0; i < READERS; i++) {
        readers[i] = (reader){ &with, 0, 0 };
        assert_int_equal(pthread_create(&threads[i], NULL, read_figures, &readers[i]), 0);
    }
    work(t.cache);
    atomic_store(&with.is_done, true);
    for (int i = 0; i < READERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(readers[i].n_reads > 0);
        assert_int_equal(readers[i].n_odd, 0);
    }
    test_cache_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stats_from_other_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
