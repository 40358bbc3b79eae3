/* test_memory_store.c - the store in memory, and the faults that it makes.
 *
 * SPDX-License-Identifier: MIT */
#include "store_support.h"

static void test_get_put(void **state)
{
    const quire_memory_store_opts opts = { 0 };
    quire_store *store = test_store_new(&opts);
    test_text text;
    bool is_right;

    (void)state;
    test_text_make(&text, 3, 1, "a");
    assert_false(test_has(store, &text.pages[0]));
    assert_int_equal(test_put(store, &text.pages[0], 0, false), QUIRE_STORE_OK);
    assert_true(test_has(store, &text.pages[0]));
    assert_int_equal(test_put(store, &text.pages[0], 1, false), QUIRE_STORE_OK);
    assert_true(test_has(store, &text.pages[0]));
    assert_int_equal(test_put(store, &text.pages[0], 1, true), QUIRE_STORE_OK);
    assert_int_equal(test_get(store, &text.pages[0], 1, &is_right), QUIRE_STORE_OK);
    assert_true(is_right);
    assert_int_equal(test_store_close(store), 0);
}

static void test_drops(void **state)
{
    const quire_memory_store_opts opts = { 0 };
    static const char *const salts[] = { "ab", "abc", "b" };
    quire_store_drop drop = { .what = QUIRE_STORE_DROP_TEXT };

    (void)state;
    for (uint32_t what = 0; what < 5; what++) {
        quire_store *store = test_store_new(&opts);
        const bool is_text = what == QUIRE_STORE_DROP_TEXT || what == QUIRE_STORE_DROP_BEHIND;
        test_text texts[3];

        for (uint32_t i = 0; i < 3; i++) {
            test_text_make(&texts[i], 3, i, salts[i]);
            for (uint32_t k = 0; k < 3; k++) {
                assert_int_equal(test_put(store, &texts[i].pages[k], 0, false), QUIRE_STORE_OK);
            }
        }
        drop = (quire_store_drop){ .what = (quire_store_drop_what)what,
                                   .key = texts[0].pages[1].key,
                                   .salt = "ab",
                                   .salt_bytes = 2 };
        assert_int_equal(store->ops->drop(store, &drop), QUIRE_OK);
        assert_int_equal(test_has(store, &texts[0].pages[0]), is_text);
        assert_int_equal(test_has(store, &texts[0].pages[1]), what == QUIRE_STORE_DROP_BEHIND);
        assert_false(test_has(store, &texts[0].pages[2]));
        assert_int_equal(test_has(store, &texts[1].pages[2]),
                         is_text || what == QUIRE_STORE_DROP_SALT);
        assert_int_equal(test_has(store, &texts[2].pages[0]), what != QUIRE_STORE_DROP_ALL);
        (void)test_store_close(store);
    }
}

/* Damage never comes back as OK. */
static void test_faults(void **state)
{
    const quire_memory_store_opts faults = { .seed = 5, .failure = 0.2, .flip = 0.3, .swap = 0.3 };
    const quire_memory_store_opts none = { 0 };
    quire_store *store = test_store_new(&none);
    quire_store_stats stats;
    test_text text;
    uint32_t n_ok = 0;

    (void)state;
    test_text_make(&text, 8, 1, "a");
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(test_put(store, &text.pages[i], 0, false), QUIRE_STORE_OK);
    }
    quire_memory_store_set(store, &faults);
    for (uint32_t i = 0; i < 400; i++) {
        bool is_right;

        if (test_get(store, &text.pages[i % 8], 0, &is_right) == QUIRE_STORE_OK) {
            assert_true(is_right);
            n_ok++;
        }
    }
    store->ops->stats(store, &stats);
    assert_int_equal(stats.results_total[QUIRE_STORE_OK], n_ok);
    assert_true(n_ok > 50 && n_ok < 350);
    assert_true(stats.results_total[QUIRE_STORE_IO] > 0);
    assert_true(stats.results_total[QUIRE_STORE_CHECKSUM] > 0);
    assert_true(stats.results_total[QUIRE_STORE_TOKENS] > 0);
    (void)test_store_close(store);
}

static void test_delay_and_room(void **state)
{
    quire_memory_store_opts opts = { .delay_ticks = 2, .transfers_max = 1 };
    quire_store *store = test_store_new(&opts);
    quire_transfer *transfers[2];
    quire_transfer *done[2];
    quire_store_stats stats;
    test_text text;

    (void)state;
    test_text_make(&text, 4, 1, "a");
    transfers[0] = test_put_new(&text.pages[0], 0);
    transfers[1] = test_put_new(&text.pages[1], 0);
    store->ops->put(store, transfers, 2);
    assert_int_equal(store->ops->poll(store, done, 2), 1);
    assert_ptr_equal(done[0], transfers[1]);
    assert_int_equal(done[0]->result, QUIRE_STORE_FULL);
    quire_transfer_free(done[0]);
    quire_memory_store_tick(store);
    assert_int_equal(store->ops->poll(store, done, 2), 0);
    quire_memory_store_tick(store);
    assert_int_equal(store->ops->poll(store, done, 2), 1);
    assert_int_equal(done[0]->result, QUIRE_STORE_OK);
    quire_transfer_free(done[0]);

    /* A drop also ends puts that began before the drop and are under way. */
    transfers[0] = test_put_new(&text.pages[1], 0);
    store->ops->put(store, transfers, 1);
    assert_int_equal(store->ops->drop(store, &(quire_store_drop){ .what = QUIRE_STORE_DROP_ALL }),
                     QUIRE_OK);
    store->ops->stats(store, &stats);
    assert_int_equal(stats.records, 0);
    assert_int_equal(store->ops->poll(store, done, 2), 1);
    quire_transfer_free(done[0]);

    /* close() gives back transfers that are under way. */
    transfers[0] = test_get_new(&text.pages[0]);
    store->ops->get(store, transfers, 1);
    assert_int_equal(test_store_close(store), 1);

    opts = (quire_memory_store_opts){ .capacity_bytes = 20000 };
    store = test_store_new(&opts);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(test_put(store, &text.pages[i], 0, false), QUIRE_STORE_OK);
    }
    store->ops->stats(store, &stats);
    assert_true(stats.record_bytes <= 20000);
    assert_true(stats.evicted_total > 0);
    assert_false(test_has(store, &text.pages[0]));
    assert_true(test_has(store, &text.pages[3]));
    (void)test_store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get_put),
        cmocka_unit_test(test_drops),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_delay_and_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
