/* test_host_store.c - the store in the host's memory, alone and as the first of three.
 *
 * SPDX-License-Identifier: MIT */
#include "store_support.h"

#include "base/rng.h"
#include "store/chain_store.h"
#include "store/host_store.h"

#include <pthread.h>
#include <string.h>

static quire_store *host_new(uint64_t capacity_bytes)
{
    quire_store *store;

    assert_int_equal(quire_host_store_create(
                         &store, &(quire_host_store_opts){ .capacity_bytes = capacity_bytes }),
                     QUIRE_OK);
    return store;
}

static quire_store_stats stats_of(const quire_store *store)
{
    quire_store_stats stats;

    store->ops->stats(store, &stats);
    return stats;
}

static void test_get_put(void **state)
{
    quire_store *store = host_new(1 << 20);
    test_text text;
    bool is_right;

    (void)state;
    test_text_make(&text, 3, 1, "a");
    assert_false(test_has(store, &text.pages[0]));
    assert_int_equal(test_put(store, &text.pages[0], 0, false), QUIRE_STORE_OK);
    assert_true(test_has(store, &text.pages[0]));
    assert_int_equal(test_put(store, &text.pages[0], 1, false), QUIRE_STORE_OK);
    assert_true(test_has(store, &text.pages[0])); /* the first version */
    assert_int_equal(stats_of(store).known_total, 1);
    assert_int_equal(test_put(store, &text.pages[0], 1, true), QUIRE_STORE_OK);
    assert_int_equal(test_get(store, &text.pages[0], 1, &is_right), QUIRE_STORE_OK);
    assert_true(is_right);
    assert_int_equal(stats_of(store).records, 1);
    assert_int_equal(stats_of(store).results_total[QUIRE_STORE_ABSENT], 1);
    assert_int_equal(test_store_close(store), 0);
}

/* close() gives back transfers that no one has polled. */
static void test_close(void **state)
{
    static const quire_host_store_opts bad[] = {
        { .capacity_bytes = 0 },
        { .capacity_bytes = 1 << 20, .policy = QUIRE_EVICT_POLICY_COUNT },
    };
    quire_store *store = host_new(1 << 20);
    quire_transfer *transfers[2];
    test_text text;

    (void)state;
    test_text_make(&text, 2, 1, "a");
    transfers[0] = test_put_new(&text.pages[0], 0);
    transfers[1] = test_get_new(&text.pages[0]);
    store->ops->put(store, transfers, 1);
    store->ops->get(store, &transfers[1], 1);
    assert_int_equal(test_store_close(store), 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(quire_host_store_create(&store, &bad[i]), QUIRE_INVAL);
        assert_null(store);
    }
}

static void test_drops(void **state)
{
    static const char *const salts[] = { "ab", "abc", "b" };

    (void)state;
    for (uint32_t what = 0; what < 5; what++) {
        quire_store *store = host_new(1 << 20);
        const bool is_text = what == QUIRE_STORE_DROP_TEXT || what == QUIRE_STORE_DROP_BEHIND;
        quire_store_drop drop;
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

/* A long text with branches goes as a whole, and nothing else. */
static void test_drop_branches(void **state)
{
    quire_store *store = host_new(64 << 20);
    test_text trunk, branches[4];
    quire_store_drop drop = { .what = QUIRE_STORE_DROP_BEHIND };

    (void)state;
    test_text_make(&trunk, 32, 1, "a");
    for (uint32_t k = 0; k < 32; k++) {
        assert_int_equal(test_put(store, &trunk.pages[k], 0, false), QUIRE_STORE_OK);
    }
    for (uint32_t i = 0; i < 4; i++) { /* texts of their own that continue page 5 + i */
        test_text_make(&branches[i], 2, 10 + i, "a");
        branches[i].pages[0].parent = trunk.pages[5 + i].key;
        for (uint32_t k = 0; k < 2; k++) {
            branches[i].pages[k].first_token = (6 + i + k) * TEST_PAGE_TOKENS;
            assert_int_equal(test_put(store, &branches[i].pages[k], 0, false), QUIRE_STORE_OK);
        }
    }
    drop.key = trunk.pages[6].key;
    assert_int_equal(store->ops->drop(store, &drop), QUIRE_OK);
    for (uint32_t k = 0; k < 32; k++) {
        assert_int_equal(test_has(store, &trunk.pages[k]), k <= 6);
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(test_has(store, &branches[i].pages[1]), i == 0);
    }
    assert_int_equal(stats_of(store).records, 7 + 2);
    assert_int_equal(stats_of(store).dropped_total, 25 + 6);
    (void)test_store_close(store);
}

/* Pages behind a gap may continue the dropped text, or another one of the root: they go. */
static void test_drop_gaps(void **state)
{
    quire_store_drop drop = { .what = QUIRE_STORE_DROP_BEHIND };
    test_text dropped, whole, torn, other;

    (void)state;
    test_text_make(&dropped, 4, 1, "a");
    test_text_make(&whole, 4, 2, "a");
    test_text_make(&torn, 4, 3, "a");
    test_text_make(&other, 4, 4, "b");
    for (uint32_t knows_root = 0; knows_root < 2; knows_root++) {
        quire_store *store = host_new(1 << 20);

        for (uint32_t k = 0; k < 4; k++) {
            assert_int_equal(test_put(store, &whole.pages[k], 0, false), QUIRE_STORE_OK);
            if (k != 1) {
                assert_int_equal(test_put(store, &dropped.pages[k], 0, false), QUIRE_STORE_OK);
                assert_int_equal(test_put(store, &torn.pages[k], 0, false), QUIRE_STORE_OK);
                assert_int_equal(test_put(store, &other.pages[k], 0, false), QUIRE_STORE_OK);
            }
        }
        drop.key = dropped.pages[0].key;
        drop.root = knows_root != 0 ? dropped.pages[0].root : (quire_page_key){ { 0 } };
        assert_int_equal(store->ops->drop(store, &drop), QUIRE_OK);
        for (uint32_t k = 0; k < 4; k++) {
            assert_int_equal(test_has(store, &dropped.pages[k]), k == 0);
            assert_true(test_has(store, &whole.pages[k]));
            assert_int_equal(test_has(store, &torn.pages[k]), k == 0);
            assert_int_equal(test_has(store, &other.pages[k]),
                             k == 0 || (k > 1 && knows_root != 0));
        }
        (void)test_store_close(store);
    }
}

/* With lru the record that was used longest ago makes room. */
static void test_room(void **state)
{
    quire_host_store_opts opts = { .capacity_bytes = 1 << 20, .policy = QUIRE_EVICT_LRU };
    quire_store *store = host_new(1 << 20);
    quire_store_stats stats;
    test_text texts[4];

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        test_text_make(&texts[i], 1, 1 + i, "a");
    }
    assert_int_equal(test_put(store, &texts[0].pages[0], 0, false), QUIRE_STORE_OK);
    opts.capacity_bytes = 3 * stats_of(store).record_bytes + 100;
    (void)test_store_close(store);

    assert_int_equal(quire_host_store_create(&store, &opts), QUIRE_OK);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(test_put(store, &texts[i].pages[0], 0, false), QUIRE_STORE_OK);
    }
    stats = stats_of(store);
    assert_int_equal(stats.records, 3);
    assert_int_equal(stats.stored_bytes, stats.record_bytes);
    assert_int_equal(stats.capacity_bytes, opts.capacity_bytes);
    assert_true(test_has(store, &texts[0].pages[0])); /* a use: that of text 1 is the oldest now */
    assert_int_equal(test_put(store, &texts[3].pages[0], 0, false), QUIRE_STORE_OK);
    assert_true(test_has(store, &texts[0].pages[0]));
    assert_false(test_has(store, &texts[1].pages[0]));
    assert_true(test_has(store, &texts[3].pages[0]));
    assert_int_equal(stats_of(store).evicted_total, 1);
    assert_int_equal(stats_of(store).evictions, 1);
    (void)test_store_close(store);

    store = host_new(100); /* less than a record */
    assert_int_equal(test_put(store, &texts[0].pages[0], 0, false), QUIRE_STORE_FULL);
    assert_int_equal(stats_of(store).refused_total, 1);
    (void)test_store_close(store);
}

/* A text that is longer than the memory keeps its beginning; other texts make room first, from
 * their ends. */
static void test_long_text(void **state)
{
    quire_store *store = host_new(1 << 20);
    uint64_t n_bytes;
    test_text text, other;

    (void)state;
    test_text_make(&text, 8, 1, "a");
    test_text_make(&other, 2, 2, "a");
    assert_int_equal(test_put(store, &text.pages[0], 0, false), QUIRE_STORE_OK);
    n_bytes = stats_of(store).record_bytes;
    (void)test_store_close(store);

    store = host_new(4 * n_bytes);
    for (uint32_t k = 0; k < 2; k++) {
        assert_int_equal(test_put(store, &other.pages[k], 0, false), QUIRE_STORE_OK);
    }
    for (uint32_t k = 0; k < 8; k++) {
        assert_int_equal(test_put(store, &text.pages[k], 0, false), QUIRE_STORE_OK);
        assert_int_equal(test_has(store, &other.pages[0]), k < 3);
        assert_int_equal(test_has(store, &other.pages[1]), k < 2);
    }
    for (uint32_t k = 0; k < 8; k++) {
        assert_int_equal(test_has(store, &text.pages[k]), k < 4);
    }
    assert_int_equal(stats_of(store).evicted_total, 2 + 4);
    (void)test_store_close(store);
}

/* Which pages of a text a drop of its root leaves: those before the first gap. */
static void forget_behind_gap(bool has[32])
{
    for (uint32_t k = 1; k < 32; k++) {
        has[k] = has[k] && has[k - 1];
    }
}

/* Random puts, gets and drops: records that a get finds are right, and the record of the last put
 * is found. */
static void test_random(void **state)
{
    quire_store *store = host_new((uint64_t)1 << 30);
    static test_text texts[80]; /* 2,560 pages: tables grow */
    static bool has[80][32];
    quire_rng rng = { 3 };

    (void)state;
    for (uint32_t i = 0; i < 80; i++) {
        test_text_make(&texts[i], 32, 100 + i, i % 2 == 0 ? "a" : "b");
    }
    for (uint32_t round = 0; round < 6000; round++) {
        const uint32_t i = quire_rng_below(&rng, 80), k = quire_rng_below(&rng, 32);

        if (quire_rng_below(&rng, 50) == 0) {
            quire_store_drop drop = { .what = QUIRE_STORE_DROP_TEXT,
                                      .key = texts[i].pages[k].key,
                                      .root = texts[i].pages[k].root };

            assert_int_equal(store->ops->drop(store, &drop), QUIRE_OK);
            for (uint32_t other = i % 2; other < 80; other += 2) { /* those of the root */
                forget_behind_gap(has[other]);
            }
            memset(&has[i][k], 0, sizeof has[i] - k * sizeof has[i][0]);
        } else if (quire_rng_below(&rng, 3) > 0) {
            assert_int_equal(test_put(store, &texts[i].pages[k], 0, false), QUIRE_STORE_OK);
            has[i][k] = true;
        } else {
            assert_int_equal(test_has(store, &texts[i].pages[k]), has[i][k]);
        }
    }
    (void)test_store_close(store);
}

/* Two stores with the same records, each with its own transfers; the second outlives the first. */
static void test_share(void **state)
{
    const quire_memory_store_opts opts = { 0 };
    quire_store *first = host_new(1 << 20);
    quire_store *other = test_store_new(&opts);
    quire_store *second, *none;
    quire_transfer *put, *done;
    test_text text;

    (void)state;
    assert_int_equal(quire_host_store_share(&second, first), QUIRE_OK);
    assert_int_equal(quire_host_store_share(&none, other), QUIRE_INVAL);
    assert_null(none);
    (void)test_store_close(other);
    test_text_make(&text, 2, 1, "a");
    put = test_put_new(&text.pages[0], 0);
    first->ops->put(first, &put, 1);
    assert_true(test_has(second, &text.pages[0]));
    assert_int_equal(second->ops->poll(second, &done, 1), 0);
    assert_int_equal(first->ops->poll(first, &done, 1), 1);
    assert_ptr_equal(done, put);
    quire_transfer_free(done);
    assert_int_equal(stats_of(second).records, 1);
    assert_int_equal(test_store_close(first), 0);
    assert_true(test_has(second, &text.pages[0]));
    assert_int_equal(second->ops->drop(second, &(quire_store_drop){ .what = QUIRE_STORE_DROP_ALL }),
                     QUIRE_OK);
    assert_false(test_has(second, &text.pages[0]));
    assert_int_equal(test_store_close(second), 0);
}

typedef struct worker {
    quire_store *store;
    const test_text *texts; /* [4] */
    uint64_t seed;
    uint32_t n_wrong;
    uint32_t n_found;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    quire_rng rng = { w->seed };

    for (uint32_t i = 0; i < 3000; i++) {
        const test_text *text = &w->texts[quire_rng_below(&rng, 4)];
        const quire_page_text *page = &text->pages[quire_rng_below(&rng, text->n_pages)];
        const uint32_t what = quire_rng_below(&rng, 100);
        quire_transfer *t;

        if (what == 0) {
            (void)w->store->ops->drop(w->store, &(quire_store_drop){ .what = QUIRE_STORE_DROP_TEXT,
                                                                     .key = page->key,
                                                                     .root = page->root });
            continue;
        }
        t = what < 60 ? test_put_new(page, 0) : test_get_new(page);
        t->is_replacing = what < 30;
        if (what < 60) {
            w->store->ops->put(w->store, &t, 1);
        } else {
            w->store->ops->get(w->store, &t, 1);
        }
        w->n_wrong += w->store->ops->poll(w->store, &t, 1) != 1;
        if (!t->is_put && t->result == QUIRE_STORE_OK) {
            w->n_found++;
            w->n_wrong += !test_is_payload(&t->found, 0);
        } else {
            w->n_wrong += t->result != QUIRE_STORE_OK && t->result != QUIRE_STORE_ABSENT &&
                          t->result != QUIRE_STORE_FULL;
        }
        quire_transfer_free(t);
    }
    return NULL;
}

/* Two threads with the same records, which are replaced, make room and are dropped under their
 * readers. */
static void test_threads(void **state)
{
    static test_text texts[4];
    worker workers[2];
    pthread_t threads[2];
    quire_store_stats stats;

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        test_text_make(&texts[i], 8, 40 + i, "a");
    }
    workers[0] = (worker){ .store = host_new(150000), .texts = texts, .seed = 1 };
    workers[1] = (worker){ .texts = texts, .seed = 2 };
    assert_int_equal(quire_host_store_share(&workers[1].store, workers[0].store), QUIRE_OK);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(workers[i].n_wrong, 0);
    }
    stats = stats_of(workers[0].store);
    assert_int_equal(stats.results_total[QUIRE_STORE_OK], workers[0].n_found + workers[1].n_found);
    assert_int_equal(stats.reads_total, stats.results_total[QUIRE_STORE_OK]);
    assert_true(stats.evicted_total > 0 && stats.read_us_total > 0);
    (void)test_store_close(workers[0].store);
    (void)test_store_close(workers[1].store);
}

/* Memory over a directory over a shared store. */
static quire_store *three_new(quire_store *host, quire_store *middle, quire_store *far)
{
    const quire_chain_store_opts inner = { .near = middle, .far = far };
    quire_chain_store_opts outer = { .near = host, .is_near_volatile = true };
    quire_store *store;

    assert_int_equal(quire_chain_store_create(&outer.far, &inner), QUIRE_OK);
    assert_int_equal(quire_chain_store_create(&store, &outer), QUIRE_OK);
    return store;
}

/* A record comes from wherever it is, and is kept in front. */
static void test_three(void **state)
{
    const quire_memory_store_opts opts = { 0 };
    quire_store *far = test_store_new(&opts);
    quire_store *store, *four;
    quire_store_part parts[QUIRE_STORE_PARTS_MAX];
    test_text text;

    (void)state;
    test_text_make(&text, 1, 1, "a");
    assert_int_equal(test_put(far, &text.pages[0], 0, false), QUIRE_STORE_OK);
    store = three_new(host_new(1 << 20), test_store_new(&opts), far);
    assert_int_equal(
        quire_chain_store_create(&four, &(quire_chain_store_opts){ .near = far, .far = store }),
        QUIRE_INVAL);
    assert_string_equal(store->name, "host+memory+memory");
    assert_true(test_has(store, &text.pages[0]));
    assert_int_equal(quire_store_parts(store, parts), 3);
    assert_string_equal(parts[0].name, "host");
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(parts[i].stats.records, 1);
    }
    assert_int_equal(parts[0].stats.passed_total, 1);
    assert_int_equal(parts[1].stats.passed_total, 1);
    assert_int_equal(stats_of(store).records, 3);
    (void)test_store_close(store);
}

static quire_store_result query(quire_store *store, const quire_page_text *page)
{
    quire_transfer *t = quire_transfer_new(0, 0), *done;
    quire_store_result result;

    t->is_query = true;
    t->text = *page;
    t->text.n_tokens = 0;
    store->ops->get(store, &t, 1);
    assert_int_equal(store->ops->poll(store, &done, 1), 1);
    result = done->result;
    quire_transfer_free(done);
    return result;
}

/* Each chain keeps notes of its own about a transfer: which store has a record, whether the record
 * in front is a wrong one, and whether a drop has ended the record on its way. */
static void test_three_notes(void **state)
{
    const quire_memory_store_opts opts = { .outlives = true };
    quire_store *host = host_new(1 << 20);
    quire_store *far = test_store_new(&opts);
    quire_store *store = three_new(host, test_store_new(&(quire_memory_store_opts){ 0 }), far);
    const quire_store_drop all = { .what = QUIRE_STORE_DROP_ALL };
    quire_transfer *t, *done;
    quire_page_text wrong;
    test_text text, other;

    (void)state;
    test_text_make(&text, 3, 1, "a");
    test_text_make(&other, 1, 2, "a");
    assert_int_equal(test_put(host, &text.pages[0], 0, false), QUIRE_STORE_OK);
    assert_int_equal(query(store, &text.pages[0]), QUIRE_STORE_OK);

    wrong = text.pages[1];
    wrong.tokens = other.pages[0].tokens;
    assert_int_equal(test_put(host, &wrong, 0, false), QUIRE_STORE_OK);
    assert_int_equal(test_put(far, &text.pages[1], 0, false), QUIRE_STORE_OK);
    assert_true(test_has(store, &text.pages[1]));
    assert_true(test_has(host, &text.pages[1]));

    assert_int_equal(test_put(far, &text.pages[2], 0, false), QUIRE_STORE_OK);
    quire_memory_store_set(far, &(quire_memory_store_opts){ .delay_ticks = 1, .outlives = true });
    t = test_get_new(&text.pages[2]);
    store->ops->get(store, &t, 1);
    quire_memory_store_tick(far); /* found, and not polled yet */
    assert_int_equal(store->ops->drop(store, &all), QUIRE_OK);
    assert_int_equal(store->ops->poll(store, &done, 1), 1);
    quire_transfer_free(done);
    assert_false(test_has(host, &text.pages[2]));
    assert_int_equal(stats_of(store).records, 0);
    (void)test_store_close(store);
    quire_memory_store_destroy(far);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get_put),   cmocka_unit_test(test_close),
        cmocka_unit_test(test_drops),     cmocka_unit_test(test_drop_branches),
        cmocka_unit_test(test_drop_gaps), cmocka_unit_test(test_room),
        cmocka_unit_test(test_long_text), cmocka_unit_test(test_random),
        cmocka_unit_test(test_three),     cmocka_unit_test(test_three_notes),
        cmocka_unit_test(test_share),     cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
