/* test_chain_store.c - a near store over a far one: ways of transfers, copies, failures, the end.
 *
 * SPDX-License-Identifier: MIT */
#include "store_support.h"

#include "store/chain_store.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "../rounds.h"
#include "../seed.h"

#define N_PAGES 8u

typedef struct kit {
    quire_store *near; /* they outlive the chain */
    quire_store *far;
    quire_store *chain;
    test_text text;
    uint32_t n_wakes;
} kit;

static void wake(void *ctx)
{
    (*(uint32_t *)ctx)++;
}

static quire_store *part_new(quire_memory_store_opts opts)
{
    opts.outlives = true;
    return test_store_new(&opts);
}

static void open_with(kit *k, quire_chain_store_opts opts)
{
    *k = (kit){ .near = opts.near, .far = opts.far };
    test_text_make(&k->text, N_PAGES, 1, "a");
    assert_int_equal(quire_chain_store_create(&k->chain, &opts), QUIRE_OK);
    quire_store_waker_set(k->chain, (quire_store_waker){ wake, &k->n_wakes });
}

static void open_bounded(kit *k, quire_memory_store_opts near, quire_memory_store_opts far,
                         size_t copy_bytes)
{
    open_with(k, (quire_chain_store_opts){
                     .near = part_new(near), .far = part_new(far), .copy_bytes = copy_bytes });
}

/* The near store loses its records with the process; one copy may be made at a time. */
static void open_volatile(kit *k, quire_memory_store_opts far)
{
    open_with(k, (quire_chain_store_opts){ .near = part_new((quire_memory_store_opts){ 0 }),
                                           .far = part_new(far),
                                           .copy_bytes = 1,
                                           .is_near_volatile = true });
}

static void open_chain(kit *k, quire_memory_store_opts near, quire_memory_store_opts far)
{
    open_bounded(k, near, far, 0);
}

/* End the chain; returns how many transfers it gave back. */
static uint32_t close_chain(kit *k)
{
    return test_store_close(k->chain);
}

static void destroy(kit *k)
{
    quire_memory_store_destroy(k->near);
    quire_memory_store_destroy(k->far);
}

static void set(quire_store *store, quire_memory_store_opts opts)
{
    opts.outlives = true;
    quire_memory_store_set(store, &opts);
}

/* The one transfer that is over by now; NULL: none is. */
static quire_transfer *over(kit *k)
{
    quire_transfer *done[2];
    const uint32_t n = k->chain->ops->poll(k->chain, done, 2);

    assert_true(n <= 1);
    return n == 1 ? done[0] : NULL;
}

static void assert_over(kit *k, const quire_transfer *t, quire_store_result result)
{
    quire_transfer *done = over(k);

    assert_ptr_equal(done, t);
    assert_int_equal(done->result, result);
    quire_transfer_free(done);
}

static quire_transfer *put_begin(kit *k, uint32_t page)
{
    quire_transfer *t = test_put_new(&k->text.pages[page], 0);

    k->chain->ops->put(k->chain, &t, 1);
    return t;
}

static quire_transfer *get_begin(kit *k, uint32_t page)
{
    quire_transfer *t = test_get_new(&k->text.pages[page]);

    k->chain->ops->get(k->chain, &t, 1);
    return t;
}

static quire_store_stats stats_of(const kit *k)
{
    quire_store_stats stats;

    k->chain->ops->stats(k->chain, &stats);
    return stats;
}

static void parts_of(const kit *k, quire_store_part *parts)
{
    assert_int_equal(quire_store_parts(k->chain, parts), 2);
}

/* ---- ways ---- */

static void test_put_reaches_both(void **state)
{
    kit k;
    quire_store_part parts[QUIRE_STORE_PARTS_MAX];

    (void)state;
    open_chain(&k, (quire_memory_store_opts){ 0 }, (quire_memory_store_opts){ 0 });
    assert_string_equal(k.chain->name, "memory+memory");
    assert_null(k.chain->ops->heard); /* as of the far store */
    assert_int_equal(test_put(k.chain, &k.text.pages[0], 0, false), QUIRE_STORE_OK);
    assert_true(test_has(k.near, &k.text.pages[0]));
    assert_true(test_has(k.far, &k.text.pages[0]));
    parts_of(&k, parts);
    assert_int_equal(parts[0].stats.records, 1);
    assert_int_equal(parts[1].stats.records, 1);
    assert_int_equal(parts[1].stats.passed_total, 1);
    assert_int_equal(stats_of(&k).records, 2);
    assert_int_equal(stats_of(&k).puts_now, 0);
    assert_int_equal(quire_store_parts(k.near, parts), 1);
    assert_string_equal(parts[0].name, "memory");
    assert_int_equal(close_chain(&k), 0);
    destroy(&k);
}

/* A record of the far store alone is found, and is in the near store from then on. */
static void test_get_promotes(void **state)
{
    kit k;
    quire_store_part parts[QUIRE_STORE_PARTS_MAX];
    bool is_right;

    (void)state;
    open_chain(&k, (quire_memory_store_opts){ 0 }, (quire_memory_store_opts){ 0 });
    assert_int_equal(test_get(k.chain, &k.text.pages[1], 0, &is_right), QUIRE_STORE_ABSENT);
    assert_int_equal(test_put(k.far, &k.text.pages[1], 0, false), QUIRE_STORE_OK);
    assert_false(test_has(k.near, &k.text.pages[1]));
    assert_int_equal(test_get(k.chain, &k.text.pages[1], 0, &is_right), QUIRE_STORE_OK);
    assert_true(is_right);
    assert_true(test_has(k.near, &k.text.pages[1]));
    assert_null(over(&k)); /* copies are no transfers of the caller */
    parts_of(&k, parts);
    assert_int_equal(parts[0].stats.passed_total, 1);
    assert_int_equal(stats_of(&k).results_total[QUIRE_STORE_OK], 1);
    assert_int_equal(stats_of(&k).results_total[QUIRE_STORE_ABSENT], 1);
    (void)close_chain(&k);
    destroy(&k);
}

/* A damaged record of the near store is answered by the far one, and replaced. */
static void test_get_mends(void **state)
{
    const quire_memory_store_opts flips = { .flip = 1.0 };
    kit k;

    (void)state;
    open_chain(&k, (quire_memory_store_opts){ 0 }, (quire_memory_store_opts){ 0 });
    assert_int_equal(test_put(k.near, &k.text.pages[0], 1, false), QUIRE_STORE_OK);
    assert_int_equal(test_put(k.far, &k.text.pages[0], 0, false), QUIRE_STORE_OK);
    set(k.near, flips);
    assert_true(test_has(k.chain, &k.text.pages[0]));
    set(k.near, (quire_memory_store_opts){ 0 });
    assert_true(test_has(k.near, &k.text.pages[0])); /* version 0 is the far store's */
    (void)close_chain(&k);
    destroy(&k);
}

/* Misses come from the far store in the order of the gets. */
static void test_order(void **state)
{
    kit k;
    quire_transfer *gets[N_PAGES];
    quire_transfer *done[N_PAGES];

    (void)state;
    open_chain(&k, (quire_memory_store_opts){ 0 }, (quire_memory_store_opts){ .delay_ticks = 1 });
    for (uint32_t i = 0; i < N_PAGES; i++) {
        gets[i] = test_get_new(&k.text.pages[i]);
    }
    k.chain->ops->get(k.chain, gets, N_PAGES);
    assert_int_equal(k.chain->ops->poll(k.chain, done, N_PAGES), 0);
    assert_int_equal(stats_of(&k).gets_now, N_PAGES);
    k.n_wakes = 0;
    quire_memory_store_tick(k.far);
    assert_true(k.n_wakes > 0);
    assert_int_equal(k.chain->ops->poll(k.chain, done, 3), 3);
    assert_int_equal(k.chain->ops->poll(k.chain, done + 3, N_PAGES), N_PAGES - 3);
    for (uint32_t i = 0; i < N_PAGES; i++) {
        assert_ptr_equal(done[i], gets[i]);
        assert_int_equal(done[i]->result, QUIRE_STORE_ABSENT);
        quire_transfer_free(done[i]);
    }
    (void)close_chain(&k);
    destroy(&k);
}

static quire_store_result query(kit *k, uint32_t page)
{
    quire_transfer *t = quire_transfer_new(0, 0);
    quire_store_result result;

    t->is_query = true;
    t->text = k->text.pages[page];
    t->text.n_tokens = 0;
    k->chain->ops->get(k->chain, &t, 1);
    assert_ptr_equal(over(k), t);
    result = t->result;
    quire_transfer_free(t);
    return result;
}

static void test_queries(void **state)
{
    kit k;

    (void)state;
    open_chain(&k, (quire_memory_store_opts){ 0 }, (quire_memory_store_opts){ 0 });
    assert_int_equal(test_put(k.near, &k.text.pages[0], 0, false), QUIRE_STORE_OK);
    assert_int_equal(test_put(k.far, &k.text.pages[1], 0, false), QUIRE_STORE_OK);
    assert_int_equal(query(&k, 0), QUIRE_STORE_OK);
    assert_int_equal(query(&k, 1), QUIRE_STORE_OK);
    assert_int_equal(query(&k, 2), QUIRE_STORE_ABSENT);
    assert_false(test_has(k.near, &k.text.pages[1])); /* a question moves nothing */
    (void)close_chain(&k);
    destroy(&k);
}

/* ---- puts, when a store is slow or refuses ---- */

static void test_put_waits_for_near_only(void **state)
{
    kit k;
    quire_transfer *t;

    (void)state;
    open_chain(&k, (quire_memory_store_opts){ .delay_ticks = 1 },
               (quire_memory_store_opts){ .delay_ticks = 3 });
    t = put_begin(&k, 0);
    assert_null(over(&k));
    quire_memory_store_tick(k.near);
    assert_over(&k, t, QUIRE_STORE_OK);
    assert_int_equal(stats_of(&k).records, 1);
    for (uint32_t i = 0; i < 3; i++) {
        quire_memory_store_tick(k.far);
    }
    assert_null(over(&k));
    set(k.far, (quire_memory_store_opts){ 0 });
    assert_true(test_has(k.far, &k.text.pages[0]));
    (void)close_chain(&k);
    destroy(&k);
}

/* The near store refuses: the far one decides, whether it answers before or after. */
static void test_put_near_refuses(void **state)
{
    const quire_memory_store_opts fails = { .failure = 1.0, .delay_ticks = 2 };
    kit k;
    quire_transfer *t;

    (void)state;
    for (uint32_t far_ticks = 1; far_ticks <= 3; far_ticks += 2) {
        open_chain(&k, fails, (quire_memory_store_opts){ .delay_ticks = far_ticks });
        t = put_begin(&k, 0);
        for (uint32_t i = 1; i < (far_ticks > 2 ? far_ticks : 2); i++) {
            quire_memory_store_tick(k.near);
            quire_memory_store_tick(k.far);
            assert_null(over(&k));
        }
        quire_memory_store_tick(k.near);
        quire_memory_store_tick(k.far);
        assert_over(&k, t, QUIRE_STORE_OK);
        assert_int_equal(stats_of(&k).refused_total, 0);
        set(k.far, (quire_memory_store_opts){ 0 });
        assert_true(test_has(k.far, &k.text.pages[0]));
        (void)close_chain(&k);
        destroy(&k);
    }
    open_chain(&k, fails, (quire_memory_store_opts){ .is_degraded = true });
    t = put_begin(&k, 0);
    quire_memory_store_tick(k.near);
    quire_memory_store_tick(k.near);
    assert_over(&k, t, QUIRE_STORE_CLOSED);
    assert_int_equal(stats_of(&k).refused_total, 1);
    (void)close_chain(&k);
    destroy(&k);
}

/* The pool of copies is bounded by bytes and by number; the near store gets its records anyway. */
static void test_copies_bounded(void **state)
{
    const size_t bytes[] = { 1, 30000, 0 };
    const uint32_t copies[] = { 1, 3, QUIRE_CHAIN_COPIES_MAX };

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t n = copies[i] + 2;
        quire_store_part parts[QUIRE_STORE_PARTS_MAX];
        kit k;

        open_bounded(&k, (quire_memory_store_opts){ 0 },
                     (quire_memory_store_opts){ .delay_ticks = 1 }, bytes[i]);
        for (uint32_t j = 0; j < n; j++) {
            quire_transfer *t = put_begin(&k, j % N_PAGES);

            assert_over(&k, t, QUIRE_STORE_OK);
        }
        parts_of(&k, parts);
        assert_int_equal(parts[1].stats.unpassed_total, n - copies[i]);
        assert_int_equal(parts[1].stats.puts_now, copies[i]);
        quire_memory_store_tick(k.far);
        assert_null(over(&k));
        assert_over(&k, put_begin(&k, 0), QUIRE_STORE_OK); /* there is room again */
        parts_of(&k, parts);
        assert_int_equal(parts[1].stats.passed_total, copies[i]);
        assert_int_equal(parts[1].stats.unpassed_total, n - copies[i]);
        (void)close_chain(&k);
        destroy(&k);
    }
}

/* A put that is no record is refused by both, and takes no copy. */
static void test_put_no_record(void **state)
{
    kit k;
    quire_transfer *t = test_get_new(&(quire_page_text){ .n_tokens = 0 });

    (void)state;
    open_chain(&k, (quire_memory_store_opts){ 0 }, (quire_memory_store_opts){ 0 });
    memset(t->record, 0, t->capacity);
    k.chain->ops->put(k.chain, &t, 1);
    assert_over(&k, t, QUIRE_STORE_FORMAT);
    (void)close_chain(&k);
    destroy(&k);
}

/* A volatile near store: a put ends with the far store's answer, and needs no copy. */
static void test_put_volatile(void **state)
{
    quire_store_part parts[QUIRE_STORE_PARTS_MAX];
    quire_transfer *puts[N_PAGES];
    kit k;

    (void)state;
    open_volatile(&k, (quire_memory_store_opts){ .delay_ticks = 1 });
    for (uint32_t i = 0; i < N_PAGES; i++) {
        puts[i] = put_begin(&k, i);
        assert_null(over(&k));
        assert_true(test_has(k.near, &k.text.pages[i]));
    }
    quire_memory_store_tick(k.far);
    for (uint32_t i = 0; i < N_PAGES; i++) {
        quire_transfer *done;

        assert_int_equal(k.chain->ops->poll(k.chain, &done, 1), 1);
        assert_ptr_equal(done, puts[i]);
        assert_int_equal(done->result, QUIRE_STORE_OK);
        quire_transfer_free(done);
    }
    parts_of(&k, parts);
    assert_int_equal(parts[1].stats.records, N_PAGES);
    assert_int_equal(parts[1].stats.passed_total, N_PAGES);
    set(k.far, (quire_memory_store_opts){ .failure = 1.0 });
    assert_over(&k, put_begin(&k, 0), QUIRE_STORE_IO);
    set(k.far, (quire_memory_store_opts){ .is_degraded = true });
    assert_over(&k, put_begin(&k, 0), QUIRE_STORE_OK); /* the far store takes none */
    set(k.near, (quire_memory_store_opts){ .is_degraded = true });
    assert_over(&k, put_begin(&k, 0), QUIRE_STORE_CLOSED);
    set(k.far, (quire_memory_store_opts){ 0 });
    assert_over(&k, put_begin(&k, 0), QUIRE_STORE_OK);
    parts_of(&k, parts);
    assert_int_equal(parts[1].stats.unpassed_total, 3);
    assert_int_equal(stats_of(&k).refused_total, 2);
    (void)close_chain(&k);
    destroy(&k);
}

/* A put that the near store had when its text was dropped does not reach the far one. */
static void test_put_volatile_dropped(void **state)
{
    kit k;
    quire_transfer *t;

    (void)state;
    open_volatile(&k, (quire_memory_store_opts){ 0 });
    set(k.near, (quire_memory_store_opts){ .delay_ticks = 1 });
    t = put_begin(&k, 0);
    assert_int_equal(
        k.chain->ops->drop(k.chain, &(quire_store_drop){ .what = QUIRE_STORE_DROP_ALL }), QUIRE_OK);
    quire_memory_store_tick(k.near);
    assert_over(&k, t, QUIRE_STORE_CLOSED);
    assert_false(test_has(k.far, &k.text.pages[0]));
    (void)put_begin(&k, 1);
    assert_int_equal(close_chain(&k), 1);
    destroy(&k);
}

/* ---- drops ---- */

static int drop_all(kit *k)
{
    return k->chain->ops->drop(k->chain, &(quire_store_drop){ .what = QUIRE_STORE_DROP_ALL });
}

static void test_drop(void **state)
{
    kit k;
    quire_transfer *t;
    quire_store_stats stats;

    (void)state;
    open_chain(&k, (quire_memory_store_opts){ .delay_ticks = 1 },
               (quire_memory_store_opts){ .delay_ticks = 1 });
    t = put_begin(&k, 0);
    assert_int_equal(drop_all(&k), QUIRE_OK);
    assert_over(&k, t, QUIRE_STORE_OK);
    assert_int_equal(stats_of(&k).records, 0);

    /* A record that the far store found before a drop does not come back in the near one. */
    set(k.near, (quire_memory_store_opts){ 0 });
    set(k.far, (quire_memory_store_opts){ 0 });
    assert_int_equal(test_put(k.far, &k.text.pages[1], 0, false), QUIRE_STORE_OK);
    set(k.far, (quire_memory_store_opts){ .delay_ticks = 1 });
    t = get_begin(&k, 1);
    quire_memory_store_tick(k.far); /* found, and not polled yet */
    assert_int_equal(drop_all(&k), QUIRE_OK);
    t = over(&k);
    assert_non_null(t);
    quire_transfer_free(t);
    k.near->ops->stats(k.near, &stats);
    assert_int_equal(stats.records, 0);
    (void)close_chain(&k);
    destroy(&k);
}

static int drop_fails(quire_store *store, const quire_store_drop *drop)
{
    (void)store;
    (void)drop;
    return QUIRE_IO;
}

static void test_drop_errors(void **state)
{
    kit k;

    (void)state;
    open_chain(&k, (quire_memory_store_opts){ 0 }, (quire_memory_store_opts){ 0 });
    for (uint32_t i = 0; i < 2; i++) {
        quire_store *failing = i == 0 ? k.near : k.far;
        const quire_store_ops *const saved = failing->ops;
        quire_store_ops ops = *saved;
        quire_store *other = i == 0 ? k.far : k.near;

        assert_int_equal(test_put(k.chain, &k.text.pages[0], 0, false), QUIRE_STORE_OK);
        ops.drop = drop_fails;
        failing->ops = &ops;
        assert_int_equal(drop_all(&k), QUIRE_IO);
        failing->ops = saved;
        assert_false(test_has(other, &k.text.pages[0]));
    }
    (void)close_chain(&k);
    destroy(&k);
}

/* ---- failures ---- */

static void test_degraded(void **state)
{
    const quire_memory_store_opts degraded = { .is_degraded = true };
    kit k;

    (void)state;
    open_chain(&k, (quire_memory_store_opts){ 0 }, degraded);
    assert_int_equal(stats_of(&k).state, QUIRE_STORE_READY);
    assert_string_equal(stats_of(&k).trouble, "memory: a test says so");
    assert_int_equal(test_put(k.chain, &k.text.pages[0], 0, false), QUIRE_STORE_OK);
    assert_true(test_has(k.chain, &k.text.pages[0]));
    set(k.near, degraded);
    assert_int_equal(stats_of(&k).state, QUIRE_STORE_DEGRADED);
    assert_int_equal(test_put(k.chain, &k.text.pages[1], 0, false), QUIRE_STORE_CLOSED);
    set(k.far, (quire_memory_store_opts){ 0 });
    assert_int_equal(stats_of(&k).state, QUIRE_STORE_READY);
    assert_int_equal(test_put(k.chain, &k.text.pages[1], 0, false), QUIRE_STORE_OK);
    assert_true(test_has(k.far, &k.text.pages[1]));
    set(k.near, (quire_memory_store_opts){ 0 });
    assert_string_equal(stats_of(&k).trouble, "");
    (void)close_chain(&k);
    destroy(&k);
}

/* ---- the end ---- */

static void test_close_gives_back(void **state)
{
    kit k;

    (void)state;
    open_chain(&k, (quire_memory_store_opts){ .delay_ticks = 9 },
               (quire_memory_store_opts){ .delay_ticks = 9 });
    (void)put_begin(&k, 0); /* both have it */
    (void)get_begin(&k, 1); /* the near store has it */
    set(k.near, (quire_memory_store_opts){ .is_degraded = true });
    (void)put_begin(&k, 2); /* behind the first; it will be refused, and the far one has it */
    assert_int_equal(close_chain(&k), 3);
    set(k.near, (quire_memory_store_opts){ 0 });
    set(k.far, (quire_memory_store_opts){ 0 });
    assert_true(test_has(k.far, &k.text.pages[0]));
    assert_true(test_has(k.far, &k.text.pages[2]));
    destroy(&k);
}

static void close_and_keep(quire_store *store, void (*give_back)(void *ctx, quire_transfer *t),
                           void *ctx)
{
    (void)store;
    (void)give_back;
    (void)ctx;
}

/* A far store that leaves its transfers behind (a network that hangs): the caller gets his own. */
static void test_close_far_hangs(void **state)
{
    kit k;
    quire_store_ops ops;
    const quire_store_ops *saved;
    quire_transfer *left[4];
    uint32_t n;

    (void)state;
    open_chain(&k, (quire_memory_store_opts){ .is_degraded = true },
               (quire_memory_store_opts){ .delay_ticks = 1 });
    (void)put_begin(&k, 0); /* awaits the far store's answer */
    saved = k.far->ops;
    ops = *saved;
    ops.close = close_and_keep;
    k.far->ops = &ops;
    assert_int_equal(close_chain(&k), 1);
    k.far->ops = saved;
    quire_store_waker_set(k.far, (quire_store_waker){ 0 });
    quire_memory_store_tick(k.far);
    n = k.far->ops->poll(k.far, left, 4);
    assert_int_equal(n, 1); /* the copy was not freed under the store's hands */
    assert_int_equal(left[0]->result, QUIRE_STORE_OK);
    quire_transfer_free(left[0]);
    destroy(&k);
}

/* ---- wakes ---- */

typedef struct slow_wake {
    atomic_bool has_begun;
    atomic_bool may_end;
    atomic_bool has_ended;
} slow_wake;

static void wake_slowly(void *ctx)
{
    slow_wake *w = ctx;

    atomic_store(&w->has_begun, true);
    while (!atomic_load(&w->may_end)) {
        (void)sched_yield();
    }
    for (uint32_t i = 0; i < 1000; i++) {
        (void)sched_yield();
    }
    atomic_store(&w->has_ended, true);
}

static void *tick_main(void *ctx)
{
    quire_memory_store_tick(ctx);
    return NULL;
}

/* The far store's thread wakes the owner while that takes its waker away: then its memory may go.
 */
static void test_waker_taken_away(void **state)
{
    slow_wake slow;
    pthread_t thread;
    kit k;

    (void)state;
    atomic_init(&slow.has_begun, false);
    atomic_init(&slow.may_end, false);
    atomic_init(&slow.has_ended, false);
    open_chain(&k, (quire_memory_store_opts){ 0 }, (quire_memory_store_opts){ 0 });
    quire_store_waker_set(k.chain, (quire_store_waker){ wake_slowly, &slow });
    assert_int_equal(pthread_create(&thread, NULL, tick_main, k.far), 0);
    while (!atomic_load(&slow.has_begun)) {
        (void)sched_yield();
    }
    atomic_store(&slow.may_end, true);
    quire_store_waker_set(k.chain, (quire_store_waker){ 0 });
    assert_true(atomic_load(&slow.has_ended));
    assert_int_equal(pthread_join(thread, NULL), 0);
    (void)close_chain(&k);
    destroy(&k);
}

/* ---- anything at any time ---- */

/* Every transfer comes back exactly once, and found records are right. */
static void test_random(void **state)
{
    quire_rng rng = test_rng(11);
    const uint64_t seed = rng.state;

    (void)state;
    for (uint32_t round = 0; round < TEST_ROUNDS(30u, 5u); round++) {
        const quire_memory_store_opts faults = { .seed = seed + round,
                                                 .delay_ticks = quire_rng_below(&rng, 4),
                                                 .transfers_max = 1 + quire_rng_below(&rng, 20),
                                                 .capacity_bytes = 60000,
                                                 .failure = 0.1,
                                                 .loss = 0.1,
                                                 .flip = 0.1,
                                                 .swap = 0.1 };
        uint32_t n_away = 0;
        quire_transfer *done[4];
        kit k;

        open_bounded(&k, faults, faults, 50000);
        for (uint32_t i = 0; i < 400; i++) {
            const uint32_t what = quire_rng_below(&rng, 10);
            const uint32_t page = quire_rng_below(&rng, N_PAGES);

            if (what < 6) {
                (void)(what < 3 ? put_begin(&k, page) : get_begin(&k, page));
                n_away++;
            } else if (what == 6 && page == 0) {
                assert_int_equal(drop_all(&k), QUIRE_OK);
            } else {
                quire_memory_store_tick(what < 8 ? k.near : k.far);
            }
            for (uint32_t n = k.chain->ops->poll(k.chain, done, 4); n-- > 0; n_away--) {
                assert_true(done[n]->is_put || done[n]->result != QUIRE_STORE_OK ||
                            test_is_payload(&done[n]->found, 0));
                quire_transfer_free(done[n]);
            }
            assert_true(stats_of(&k).gets_now + stats_of(&k).puts_now <= n_away);
        }
        assert_int_equal(close_chain(&k), n_away);
        destroy(&k);
    }
}

/* A chain has the pages of both stores, whichever has which, up to the first that neither has. */
static void test_pages_there(void **state)
{
    quire_page_key keys[N_PAGES];
    kit k;

    (void)state;
    open_chain(&k, (quire_memory_store_opts){ 0 }, (quire_memory_store_opts){ 0 });
    for (uint32_t i = 0; i < N_PAGES; i++) {
        keys[i] = k.text.pages[i].key;
    }
    assert_int_equal(quire_store_has(k.chain, keys, N_PAGES), 0);
    for (uint32_t i = 0; i < N_PAGES; i++) { /* far, near, far, near, none, near, far, near */
        if (i != 4) {
            assert_int_equal(test_put(i % 2 == 0 ? k.far : k.near, &k.text.pages[i], 0, false),
                             QUIRE_STORE_OK);
        }
    }
    assert_int_equal(quire_store_has(k.near, keys, N_PAGES), 0);
    assert_int_equal(quire_store_has(k.chain, keys, N_PAGES), 4);
    assert_int_equal(quire_store_has(k.chain, keys, 3), 3);
    assert_int_equal(quire_store_has(k.chain, keys + 5, N_PAGES - 5), N_PAGES - 5);
    assert_int_equal(quire_store_has(k.chain, keys + 4, 2), 0);
    (void)close_chain(&k);
    destroy(&k);
}

static const quire_store_ops *memory_ops;

static void readonly_stats(const quire_store *store, quire_store_stats *out)
{
    memory_ops->stats(store, out);
    out->state = QUIRE_STORE_READONLY;
}

/* Over a store that takes nothing, all that is put ends with the near one's memory. */
static void test_volatile(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        quire_store *far = part_new((quire_memory_store_opts){ 0 });
        quire_store_ops ops = *far->ops;
        kit k;

        memory_ops = far->ops;
        ops.stats = readonly_stats;
        far->ops = i % 2 == 0 ? far->ops : &ops;
        open_with(&k, (quire_chain_store_opts){ .near = part_new((quire_memory_store_opts){ 0 }),
                                                .far = far,
                                                .is_near_volatile = i >= 2 });
        assert_int_equal(k.chain->is_volatile, i == 3);
        (void)close_chain(&k);
        destroy(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_reaches_both), cmocka_unit_test(test_get_promotes),
        cmocka_unit_test(test_get_mends),        cmocka_unit_test(test_order),
        cmocka_unit_test(test_queries),          cmocka_unit_test(test_put_waits_for_near_only),
        cmocka_unit_test(test_put_near_refuses), cmocka_unit_test(test_copies_bounded),
        cmocka_unit_test(test_put_no_record),    cmocka_unit_test(test_drop),
        cmocka_unit_test(test_drop_errors),      cmocka_unit_test(test_degraded),
        cmocka_unit_test(test_close_gives_back), cmocka_unit_test(test_close_far_hangs),
        cmocka_unit_test(test_put_volatile),     cmocka_unit_test(test_put_volatile_dropped),
        cmocka_unit_test(test_pages_there),      cmocka_unit_test(test_volatile),
        cmocka_unit_test(test_waker_taken_away), cmocka_unit_test(test_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
