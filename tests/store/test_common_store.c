/* test_common_store.c - one store for several owners: ways of transfers, drops, news of other
 * machines, the end; two threads on one directory.
 *
 * SPDX-License-Identifier: MIT */
#include "store_support.h"

#include "file_kit.h"
#include "store/chain_store.h"
#include "store/common_store.h"
#include "store/host_store.h"

#include <pthread.h>
#include <string.h>

#define OWNERS 2u

typedef struct kit {
    quire_store *below; /* outlives the handles */
    quire_store *owners[OWNERS];
    uint32_t n_wakes[OWNERS];
    test_text text;
} kit;

static void wake(void *ctx)
{
    (*(uint32_t *)ctx)++;
}

static void open_over(kit *k, quire_store *below, uint32_t close_ms)
{
    *k = (kit){ .below = below };
    test_text_make(&k->text, 4, 1, "a");
    assert_int_equal(quire_common_store_create(&k->owners[0], below, close_ms), QUIRE_OK);
    assert_int_equal(quire_common_store_share(&k->owners[1], k->owners[0]), QUIRE_OK);
    for (uint32_t i = 0; i < OWNERS; i++) {
        quire_store_waker_set(k->owners[i], (quire_store_waker){ wake, &k->n_wakes[i] });
    }
}

static void open_kit(kit *k, quire_memory_store_opts opts)
{
    opts.outlives = true;
    open_over(k, test_store_new(&opts), 1);
}

static void close_kit(kit *k)
{
    for (uint32_t i = 0; i < OWNERS; i++) {
        assert_int_equal(test_store_close(k->owners[i]), 0);
    }
    quire_memory_store_destroy(k->below);
}

/* Begin to put a page for an owner, or to get it. */
static quire_transfer *begin(kit *k, uint32_t owner, uint32_t page, bool is_put)
{
    quire_store *store = k->owners[owner];
    quire_transfer *t =
        is_put ? test_put_new(&k->text.pages[page], 0) : test_get_new(&k->text.pages[page]);

    (is_put ? store->ops->put : store->ops->get)(store, &t, 1);
    return t;
}

/* The owner gets exactly this transfer back. */
static void expect_back(kit *k, uint32_t owner, quire_transfer *t, quire_store_result result)
{
    quire_store *store = k->owners[owner];
    quire_transfer *back[2] = { NULL, NULL };

    assert_int_equal(store->ops->poll(store, back, 2), 1);
    assert_ptr_equal(back[0], t);
    assert_int_equal(t->result, result);
    quire_transfer_free(t);
}

static quire_store_stats stats_of(const quire_store *store)
{
    quire_store_stats stats;

    store->ops->stats(store, &stats);
    return stats;
}

/* ---- records and transfers in a common store ---- */

static void test_records(void **state)
{
    test_text other; /* of another root: as another identity has */
    kit k;

    (void)state;
    open_kit(&k, (quire_memory_store_opts){ 0 });
    test_text_make(&other, 1, 1, "b");
    assert_int_equal(test_put(k.owners[0], &k.text.pages[0], 0, false), QUIRE_STORE_OK);
    assert_true(test_has(k.owners[1], &k.text.pages[0]));
    assert_false(test_has(k.owners[1], &other.pages[0]));
    assert_int_equal(test_put(k.owners[1], &other.pages[0], 0, false), QUIRE_STORE_OK);
    assert_true(test_has(k.owners[0], &other.pages[0]));
    for (uint32_t i = 0; i < OWNERS; i++) {
        assert_string_equal(k.owners[i]->name, k.below->name);
        assert_int_equal(stats_of(k.owners[i]).records, 2);
        assert_int_equal(stats_of(k.owners[i]).puts_total, 2);
        assert_int_equal(stats_of(k.owners[i]).is_common, i > 0);
    }
    close_kit(&k);
}

/* A transfer comes back to the owner that gave it, also when another owner polls first. No other
 * owner is woken. */
static void test_ways(void **state)
{
    kit k;
    quire_transfer *puts[OWNERS], *back;
    uint32_t n_before;

    (void)state;
    open_kit(&k, (quire_memory_store_opts){ .delay_ticks = 1 });
    puts[1] = begin(&k, 1, 1, true);
    n_before = k.n_wakes[1];
    quire_memory_store_tick(k.below);
    assert_int_equal(k.n_wakes[0], 0);
    assert_true(k.n_wakes[1] > n_before);
    puts[0] = begin(&k, 0, 0, true);
    assert_int_equal(k.owners[0]->ops->poll(k.owners[0], &back, 1), 0);
    quire_memory_store_tick(k.below); /* before its owner asks, owner 1 waits still */
    assert_true(k.n_wakes[0] > 0);
    expect_back(&k, 1, puts[1], QUIRE_STORE_OK);
    expect_back(&k, 0, puts[0], QUIRE_STORE_OK);
    close_kit(&k);
}

/* A record that was found for one owner, and dropped by another before it was given back. */
static void test_drop(void **state)
{
    const quire_store_drop all = { .what = QUIRE_STORE_DROP_ALL };
    quire_transfer *get, *put, *back;
    kit k;

    (void)state;
    open_kit(&k, (quire_memory_store_opts){ 0 });
    assert_int_equal(test_put(k.owners[0], &k.text.pages[0], 0, false), QUIRE_STORE_OK);
    get = begin(&k, 1, 0, false);
    assert_int_equal(k.owners[0]->ops->poll(k.owners[0], &back, 1), 0); /* it is found by now */
    assert_int_equal(k.owners[0]->ops->drop(k.owners[0], &all), QUIRE_OK);
    put = begin(&k, 0, 1, true);
    assert_int_equal(k.owners[1]->ops->poll(k.owners[1], &back, 1), 1);
    assert_ptr_equal(back, get);
    assert_int_equal(get->result, QUIRE_STORE_ABSENT);
    quire_transfer_free(get);
    expect_back(&k, 0, put, QUIRE_STORE_OK);
    close_kit(&k);
}

/* ---- drops of other machines ---- */

static uint32_t n_news;

static bool hear(quire_store *store, quire_store_drop *out)
{
    static char salt[2];

    (void)store;
    if (n_news == 0) {
        return false;
    }
    salt[0] = (char)('a' + --n_news);
    *out = (quire_store_drop){ .what = QUIRE_STORE_DROP_SALT, .salt = salt, .salt_bytes = 1 };
    return true;
}

static void expect_heard(quire_store *store, char salt)
{
    quire_store_drop drop;

    assert_true(store->ops->heard(store, &drop));
    assert_int_equal(drop.what, QUIRE_STORE_DROP_SALT);
    assert_int_equal(drop.salt_bytes, 1);
    assert_int_equal(*(const char *)drop.salt, salt);
}

/* Each owner hears of each drop once, in order; all are woken for them. */
static void test_heard(void **state)
{
    const quire_memory_store_opts opts = { .outlives = true };
    quire_store *below = test_store_new(&opts);
    const quire_store_ops *own = below->ops;
    quire_store_ops hearing = *own;
    quire_store_drop drop;
    kit k;

    (void)state;
    open_kit(&k, (quire_memory_store_opts){ 0 });
    assert_null(k.owners[0]->ops->heard);
    close_kit(&k);

    hearing.heard = hear;
    below->ops = &hearing;
    open_over(&k, below, 1);
    n_news = 2;
    below->waker.wake(below->waker.ctx);
    assert_int_equal(k.n_wakes[0], 1);
    assert_int_equal(k.n_wakes[1], 1);
    expect_heard(k.owners[1], 'b');
    expect_heard(k.owners[0], 'b');
    expect_heard(k.owners[0], 'a');
    assert_false(k.owners[0]->ops->heard(k.owners[0], &drop));
    expect_heard(k.owners[1], 'a');
    assert_false(k.owners[1]->ops->heard(k.owners[1], &drop));
    n_news = 1; /* nobody asks owner 0 again */
    expect_heard(k.owners[1], 'a');
    below->ops = own;
    close_kit(&k);
}

/* ---- the end ---- */

typedef struct closing {
    quire_store *store;
    uint32_t n_back;
} closing;

static void *close_main(void *ctx)
{
    closing *c = ctx;

    c->n_back = test_store_close(c->store);
    return NULL;
}

/* Transfers that the store has when the last owner leaves are given back to their owners, in
 * whichever order these leave. */
static void test_close(void **state)
{
    const quire_memory_store_opts opts = { .delay_ticks = 1000, .outlives = true };
    closing first = { .n_back = 0 };
    pthread_t thread;
    kit k;

    (void)state;
    open_over(&k, test_store_new(&opts), 0);
    (void)begin(&k, 0, 0, false);
    (void)begin(&k, 1, 1, false);
    (void)begin(&k, 1, 2, true);
    first.store = k.owners[0];
    assert_int_equal(pthread_create(&thread, NULL, close_main, &first), 0);
    assert_int_equal(test_store_close(k.owners[1]), 2);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(first.n_back, 1);
    quire_memory_store_destroy(k.below);
}

/* The transfers of an owner that leaves stay in a store that does not answer. */
static void test_close_stuck(void **state)
{
    quire_transfer *get, *back;
    kit k;

    (void)state;
    open_kit(&k, (quire_memory_store_opts){ .delay_ticks = 1 });
    get = begin(&k, 0, 0, false);
    assert_int_equal(test_store_close(k.owners[0]), 0);
    quire_memory_store_tick(k.below);
    assert_int_equal(k.owners[1]->ops->poll(k.owners[1], &back, 1), 0);
    quire_transfer_free(get);
    assert_int_equal(test_store_close(k.owners[1]), 0);
    quire_memory_store_destroy(k.below);
}

static void test_refusals(void **state)
{
    const quire_memory_store_opts opts = { 0 };
    const quire_chain_store_opts parts = { .near = test_store_new(&opts),
                                           .far = test_store_new(&opts) };
    quire_store *chain, *out;

    (void)state;
    assert_int_equal(quire_chain_store_create(&chain, &parts), QUIRE_OK);
    assert_int_equal(quire_common_store_create(&out, chain, 0), QUIRE_INVAL);
    assert_null(out);
    assert_int_equal(quire_common_store_share(&out, chain), QUIRE_INVAL);
    assert_null(out);
    assert_int_equal(test_store_close(chain), 0);
}

/* ---- a directory ---- */

#define N_TEXTS 64u

typedef struct worker {
    quire_store *store;
    uint32_t tenant;
    uint32_t n_wrong;
} worker;

/* Give a transfer to the store and wait for it. */
static quire_store_result work(const worker *w, quire_transfer *t, bool is_put, bool *is_own)
{
    quire_store_result result;

    (is_put ? w->store->ops->put : w->store->ops->get)(w->store, &t, 1);
    *is_own = kit_wait(w->store) == t;
    result = t->result;
    return result;
}

/* An owner writes and reads its own texts, and between them reads the other owner's texts, whether
 * they are stored yet or not. The first owner to end leaves while the other one is at work. */
static void *worker_main(void *ctx)
{
    worker *w = ctx;

    for (uint32_t i = 0; i < N_TEXTS; i++) {
        quire_transfer *put = kit_put_new(w->tenant, i);
        quire_transfer *get = kit_get_new(w->tenant, i);
        quire_transfer *other = kit_get_new(1 - w->tenant, i);
        bool is_own[3];

        w->n_wrong += work(w, put, true, &is_own[0]) != QUIRE_STORE_OK;
        w->n_wrong += work(w, get, false, &is_own[1]) != QUIRE_STORE_OK;
        w->n_wrong += !kit_is_right(get, w->tenant, i);
        w->n_wrong += work(w, other, false, &is_own[2]) > QUIRE_STORE_ABSENT;
        w->n_wrong += !is_own[0] + !is_own[1] + !is_own[2];
        quire_transfer_free(put);
        quire_transfer_free(get);
        quire_transfer_free(other);
    }
    kit_close(w->store);
    return NULL;
}

static void test_directory(void **state)
{
    quire_file_store_opts opts;
    worker workers[OWNERS] = { { .n_wrong = 0 } };
    pthread_t threads[OWNERS];
    quire_store *again;
    char dir[256];

    (void)state;
    kit_dir_make(dir);
    opts = kit_opts(dir, QUIRE_READS_AUTO);
    assert_int_equal(quire_common_store_create(&workers[0].store, kit_open(&opts), 0), QUIRE_OK);
    assert_int_equal(quire_common_store_share(&workers[1].store, workers[0].store), QUIRE_OK);
    for (uint32_t i = 0; i < OWNERS * N_TEXTS; i++) { /* the kit makes a text once */
        quire_transfer_free(kit_get_new(i % OWNERS, i / OWNERS));
    }
    for (uint32_t i = 0; i < OWNERS; i++) {
        workers[i].tenant = i;
        assert_int_equal(pthread_create(&threads[i], NULL, worker_main, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < OWNERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(workers[i].n_wrong, 0);
    }
    again = kit_open(&opts); /* the lock is free, and all is there */
    for (uint32_t i = 0; i < OWNERS * N_TEXTS; i++) {
        assert_int_equal(kit_get(again, i % OWNERS, i / OWNERS), QUIRE_STORE_OK);
    }
    kit_close(again);
    kit_dir_remove(dir);
}

/* Pages that are there, of stores in memory, in the host's memory and in a directory, for all
 * owners of each; a dropped one is not there at once. */
static void check_there(quire_store *below)
{
    const quire_store_drop all = { .what = QUIRE_STORE_DROP_ALL };
    quire_page_key keys[4];
    quire_store_stats stats;
    quire_transfer *t, *back;
    kit k;

    open_over(&k, below, 0);
    for (uint32_t i = 0; i < 4; i++) {
        keys[i] = k.text.pages[i].key;
    }
    assert_int_equal(quire_store_has(k.owners[1], keys, 4), 0);
    for (uint32_t i = 0; i < 3; i++) {
        t = begin(&k, 0, i == 2 ? 3 : i, true);
        while (k.owners[0]->ops->poll(k.owners[0], &back, 1) == 0) {
        }
        assert_ptr_equal(back, t);
        assert_int_equal(t->result, QUIRE_STORE_OK);
        quire_transfer_free(t);
    }
    k.owners[0]->ops->stats(k.owners[0], &stats);
    assert_int_equal(stats.records, 3);
    for (uint32_t i = 0; i < OWNERS; i++) {
        assert_int_equal(quire_store_has(k.owners[i], keys, 4), 2);
        assert_int_equal(quire_store_has(k.owners[i], keys + 3, 1), 1);
    }
    assert_int_equal(k.owners[0]->ops->drop(k.owners[0], &all), QUIRE_OK);
    assert_int_equal(quire_store_has(k.owners[1], keys, 4), 0);
    for (uint32_t i = 0; i < OWNERS; i++) {
        (void)test_store_close(k.owners[i]);
    }
}

static void test_there(void **state)
{
    const quire_memory_store_opts memory = { 0 };
    quire_file_store_opts file;
    quire_store *host;
    char dir[256];

    (void)state;
    check_there(test_store_new(&memory));
    assert_int_equal(
        quire_host_store_create(&host, &(quire_host_store_opts){ .capacity_bytes = 1u << 20 }),
        QUIRE_OK);
    check_there(host);
    kit_dir_make(dir);
    file = kit_opts(dir, QUIRE_READS_AUTO);
    check_there(kit_open(&file));
    kit_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records),  cmocka_unit_test(test_ways),
        cmocka_unit_test(test_drop),     cmocka_unit_test(test_heard),
        cmocka_unit_test(test_close),    cmocka_unit_test(test_close_stuck),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_directory),
        cmocka_unit_test(test_there),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
