/* test_file_store.c - the file store as its caller sees it, with both engines of reads.
 *
 * SPDX-License-Identifier: MIT */
#include "file_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static quire_reads_kind kind_of(void **state)
{
    return *(const quire_reads_kind *)*state;
}

static quire_store_stats stats_of(const quire_store *store)
{
    quire_store_stats stats;

    store->ops->stats(store, &stats);
    return stats;
}

static void test_round_trip(void **state)
{
    char dir[256];
    quire_file_store_opts opts;
    quire_store *store;
    quire_store_stats stats;

    kit_dir_make(dir);
    opts = kit_opts(dir, kind_of(state));
    store = kit_open(&opts);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(kit_get(store, 1, i), QUIRE_STORE_ABSENT);
        assert_int_equal(kit_put(store, 1, i), QUIRE_STORE_OK);
        assert_int_equal(kit_query(store, 1, i), QUIRE_STORE_OK);
        assert_int_equal(kit_get(store, 1, i), QUIRE_STORE_OK);
        assert_int_equal(kit_get(store, 2, i), QUIRE_STORE_ABSENT);
    }
    assert_int_equal(kit_put(store, 1, 7), QUIRE_STORE_OK);
    stats = stats_of(store);
    assert_int_equal(stats.known_total, 1);
    assert_int_equal(stats.puts_total, 40);
    assert_int_equal(stats.records, 40);
    assert_int_equal(stats.record_bytes, 40 * KIT_RECORD);
    assert_int_equal(stats.results_total[QUIRE_STORE_OK], 40);
    assert_int_equal(stats.results_total[QUIRE_STORE_ABSENT], 80);
    assert_int_equal(stats.gets_now, 0);
    assert_int_equal(stats.puts_now, 0);
    kit_close(store);

    store = kit_open(&opts);
    assert_int_equal(stats_of(store).records, 40);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(kit_get(store, 1, i), QUIRE_STORE_OK);
    }
    kit_close(store);
    kit_dir_remove(dir);
}

#define N_BOUND 900u /* records: more than twice the directory's room */

static void test_bound(void **state)
{
    char dir[256];
    quire_file_store_opts opts;
    quire_store *store;
    quire_store_stats stats;
    uint32_t n_found = 0;

    kit_dir_make(dir);
    opts = kit_opts(dir, kind_of(state));
    store = kit_open(&opts);
    for (uint32_t i = 0; i < N_BOUND; i++) {
        assert_int_equal(kit_put(store, 1, i), QUIRE_STORE_OK);
        assert_true(kit_dir_bytes(dir) <= KIT_CAPACITY);
        assert_true(stats_of(store).stored_bytes <= KIT_CAPACITY);
        /* A text that is used all the time stays. */
        assert_int_equal(kit_get(store, 1, 0), QUIRE_STORE_OK);
    }
    stats = stats_of(store);
    assert_true(stats.evicted_total > 0 && stats.evictions > 0 && stats.copied_total > 0);
    assert_true(stats.records + stats.evicted_total == stats.puts_total);
    for (uint32_t i = 0; i < N_BOUND; i++) {
        n_found += kit_get(store, 1, i) == QUIRE_STORE_OK;
    }
    assert_int_equal(n_found, stats.records);
    kit_close(store);
    store = kit_open(&opts);
    assert_int_equal(stats_of(store).records, n_found);
    assert_true(kit_dir_bytes(dir) <= KIT_CAPACITY);
    kit_close(store);
    kit_dir_remove(dir);
}

/* Records that are large beside a segment: records carried forward leave room for the record that
 * began the segment. */
static void test_carry_leaves_room(void **state)
{
    char dir[256];
    quire_file_store_opts opts;
    quire_store *store;

    kit_dir_make(dir);
    opts = kit_opts(dir, kind_of(state));
    opts.segment_bytes = QUIRE_FILE_SEGMENT_BYTES_MIN;
    opts.capacity_bytes = 8 * opts.segment_bytes;
    store = kit_open(&opts);
    for (uint32_t i = 0; i < 200; i++) {
        assert_int_equal(kit_put(store, 1, i), QUIRE_STORE_OK);
        assert_int_equal(kit_get(store, 1, i), QUIRE_STORE_OK); /* each is used once */
        assert_int_equal(stats_of(store).state, QUIRE_STORE_READY);
        assert_true(kit_dir_bytes(dir) <= opts.capacity_bytes);
    }
    assert_true(stats_of(store).copied_total > 0);
    kit_close(store);
    kit_dir_remove(dir);
}

static void test_drops(void **state)
{
    static const quire_store_drop_what whats[] = { QUIRE_STORE_DROP_ALL, QUIRE_STORE_DROP_SALT,
                                                   QUIRE_STORE_DROP_SALTS, QUIRE_STORE_DROP_TEXT,
                                                   QUIRE_STORE_DROP_BEHIND };

    for (size_t w = 0; w < sizeof whats / sizeof whats[0]; w++) {
        char dir[256];
        quire_file_store_opts opts;
        quire_store *store;

        kit_dir_make(dir);
        opts = kit_opts(dir, kind_of(state));
        store = kit_open(&opts);
        for (uint32_t i = 0; i < 2 * KIT_CHAIN; i++) {
            assert_int_equal(kit_put(store, 1, i), QUIRE_STORE_OK);
            assert_int_equal(kit_put(store, 10, i), QUIRE_STORE_OK);
            assert_int_equal(kit_put(store, 2, i), QUIRE_STORE_OK);
        }
        kit_drop(store, whats[w], 1, 3);
        assert_int_equal(kit_put(store, 1, 5), QUIRE_STORE_OK);
        for (int round = 0; round < 2; round++) {
            for (uint32_t i = 0; i < 2 * KIT_CHAIN; i++) {
                const bool is_all = whats[w] == QUIRE_STORE_DROP_ALL;
                const bool is_text = whats[w] >= QUIRE_STORE_DROP_TEXT;
                const uint32_t first = whats[w] == QUIRE_STORE_DROP_TEXT ? 3 : 4;
                const bool is_gone = i != 5 && (!is_text || (i >= first && i < KIT_CHAIN));
                const bool is_gone_10 = is_all || whats[w] == QUIRE_STORE_DROP_SALTS;

                assert_int_equal(kit_get(store, 1, i),
                                 is_gone ? QUIRE_STORE_ABSENT : QUIRE_STORE_OK);
                assert_int_equal(kit_get(store, 10, i),
                                 is_gone_10 ? QUIRE_STORE_ABSENT : QUIRE_STORE_OK);
                assert_int_equal(kit_get(store, 2, i),
                                 is_all ? QUIRE_STORE_ABSENT : QUIRE_STORE_OK);
            }
            kit_close(store);
            store = kit_open(&opts);
        }
        kit_close(store);
        kit_dir_remove(dir);
    }
}

static void test_second_process(void **state)
{
    char dir[256];
    quire_file_store_opts opts;
    quire_store *store, *second;
    quire_error err = QUIRE_ERROR_INIT;

    kit_dir_make(dir);
    opts = kit_opts(dir, kind_of(state));
    store = kit_open(&opts);
    assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_OK);
    assert_int_equal(quire_file_store_create(&second, &opts, &err), QUIRE_LIMIT);
    assert_null(second);
    assert_non_null(strstr(err.message, "--cache-dir-readonly"));
    opts.is_readonly = true;
    second = kit_open(&opts);
    assert_int_equal(stats_of(second).state, QUIRE_STORE_READONLY);
    assert_int_equal(kit_get(second, 1, 1), QUIRE_STORE_OK);
    assert_int_equal(kit_put(second, 1, 2), QUIRE_STORE_CLOSED);
    kit_close(second);
    kit_close(store);
    kit_dir_remove(dir);
}

/* A put that replaces: later gets see the new record, also after a start. An open page is asked for
 * without tokens. */
static void test_replace(void **state)
{
    char dir[256];
    quire_file_store_opts opts;
    quire_store *store;
    quire_transfer *t;

    kit_dir_make(dir);
    opts = kit_opts(dir, kind_of(state));
    store = kit_open(&opts);
    assert_int_equal(kit_put(store, 1, 1), QUIRE_STORE_OK);
    t = kit_put_new(1, 1);
    t->is_replacing = true;
    t->record[KIT_RECORD - 1] = 0;
    store->ops->put(store, &t, 1);
    t = kit_wait(store);
    assert_int_equal(t->result, QUIRE_STORE_OK);
    quire_transfer_free(t);
    assert_int_equal(stats_of(store).puts_total, 2);
    assert_int_equal(stats_of(store).records, 1);
    for (int round = 0; round < 2; round++) {
        t = kit_get_new(1, 1);
        t->text.n_tokens = 0;
        t->is_query = round == 0;
        store->ops->get(store, &t, 1);
        t = kit_wait(store);
        assert_int_equal(t->result, QUIRE_STORE_OK);
        assert_int_equal(t->found.sequence, 2);
        quire_transfer_free(t);
        kit_close(store);
        store = kit_open(&opts);
        assert_int_equal(stats_of(store).records, 1);
    }
    kit_close(store);
    kit_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_carry_leaves_room), cmocka_unit_test(test_drops),
        cmocka_unit_test(test_replace),           cmocka_unit_test(test_second_process),
    };

    return kit_run(tests, sizeof tests / sizeof tests[0]);
}
