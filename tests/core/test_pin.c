/* test_pin.c - pins: holding, refusal, survival and loss.
 *
 * SPDX-License-Identifier: MIT */
#include "prefix_support.h"
#include "quire/pin.h"
#include "seed.h"

#include <stdlib.h>
#include <string.h>

#define P PAGE_TOKENS

typedef struct pinned {
    test_prefix p;
    quire_pins *pins;
    quire_region_id high;
} pinned;

static void begin_as(pinned *x, uint32_t n_pages, uint32_t n_pinned,
                     const quire_prefix_opts *prefix)
{
    test_prefix_create(&x->p, n_pages, prefix);
    x->high = test_region_open(x->p.cache, n_pinned * PAGE_BYTES, true);
    x->pins = test_pins_create(&x->p, 4);
}

static void begin(pinned *x, uint32_t n_pages, uint32_t n_pinned)
{
    begin_as(x, n_pages, n_pinned, NULL);
}

static void end(pinned *x)
{
    quire_region_stats stats;

    quire_pins_validate(x->pins);
    quire_pins_destroy(x->pins);
    stats = test_region_stats(x->p.cache, x->high);
    assert_int_equal(stats.pinned_bytes, 0);
    assert_int_equal(stats.reserved_bytes, 0);
    quire_prefix_validate(x->p.tree);
    quire_cache_validate(x->p.cache);
    assert_int_equal(quire_region_close(x->p.cache, x->high), QUIRE_OK);
    test_prefix_destroy(&x->p);
}

static quire_pin_spec spec_of(const pinned *x, const char *name, const int32_t *tokens, uint32_t n)
{
    return (quire_pin_spec){ .name = name,
                             .key = test_key(),
                             .tokens = tokens,
                             .n_tokens = n,
                             .region = x->high,
                             .rank = 3 };
}

static quire_region_stats stats_of(const pinned *x, quire_region_id region)
{
    return test_region_stats(x->p.cache, region);
}

static quire_pin_info info_of(const pinned *x, quire_pin_id id)
{
    quire_pin_info info;

    assert_int_equal(quire_pins_get(x->pins, id, &info), QUIRE_OK);
    return info;
}

/* Reserve and hold in one call; on error the pin does not exist. */
static int pin_add(quire_pins *pins, const quire_pin_spec *spec, uint64_t now_us, quire_pin_id *id,
                   uint64_t *missing)
{
    int rc = quire_pins_reserve(pins, spec, now_us, id, missing);

    if (rc == QUIRE_OK && (rc = quire_pins_hold(pins, *id, now_us, missing)) < 0) {
        (void)quire_pins_drop(pins, *id, now_us);
    }
    return rc;
}

static int one_more(void *ctx, const quire_pin_info *info)
{
    (void)info;
    ++*(uint32_t *)ctx;
    return 0;
}

static uint32_t pin_count(const quire_pins *pins)
{
    uint32_t n = 0;

    assert_int_equal(quire_pins_visit(pins, one_more, &n), 0);
    return n;
}

/* A pin of a text that a sequence of the dynamic region computes first. */
static quire_pin_id pin_text(pinned *x, const char *name, const int32_t *tokens, uint32_t n)
{
    quire_pin_spec spec = spec_of(x, name, tokens, n);
    quire_pin_id id;

    (void)test_run_whole(&x->p, tokens, n);
    assert_int_equal(pin_add(x->pins, &spec, x->p.now_us, &id, NULL), QUIRE_OK);
    assert_int_equal(info_of(x, id).state, QUIRE_PIN_HELD);
    return id;
}

/* ---- reserve and hold ---- */

/* When open pages are not shared, a pin holds full pages only. */
static void test_full_pages_are_held(void **state)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    pinned x;
    int32_t a[2 * P + P / 2];
    quire_pin_spec spec;
    quire_pin_id id;

    (void)state;
    opts.is_page_exact = true;
    begin_as(&x, 20, 6, &opts);
    test_text(a, 2 * P + P / 2, 1000);
    id = pin_text(&x, "a", a, 2 * P + P / 2);
    assert_int_equal(info_of(&x, id).n_held_tokens, 2 * P);
    assert_int_equal(info_of(&x, id).bytes, 2 * PAGE_BYTES);
    spec = spec_of(&x, "b", a, P - 1); /* nothing to hold */
    assert_int_equal(pin_add(x.pins, &spec, 5, &id, NULL), QUIRE_AGAIN);
    end(&x);
}

static void test_life(void **state)
{
    pinned x;
    int32_t a[2 * P + 3];
    quire_pin_spec spec;
    quire_pin_info info;
    quire_pin_id id;
    quire_pin_id again;
    uint64_t missing = 7;

    (void)state;
    begin(&x, 20, 6);
    test_text(a, 2 * P + 1, 1000);
    spec = spec_of(&x, "a", a, 2 * P + 1);
    assert_int_equal(pin_add(x.pins, &spec, 5, &id, &missing), QUIRE_AGAIN);
    assert_int_equal(pin_count(x.pins), 0);
    assert_int_equal(stats_of(&x, x.high).reserved_bytes, 0);
    assert_int_equal(quire_pins_reserve(x.pins, &spec, 5, &id, &missing), QUIRE_OK);
    assert_int_equal(missing, 0);
    assert_int_equal(quire_pins_reserve(x.pins, &spec, 5, &again, &missing), QUIRE_AGAIN);
    info = info_of(&x, id);
    assert_int_equal(info.state, QUIRE_PIN_RESERVED);
    assert_int_equal(info.bytes, 3 * PAGE_BYTES);
    assert_int_equal(quire_pins_reserved_bytes(x.pins, x.high), 3 * PAGE_BYTES);
    assert_int_equal(quire_pins_hold(x.pins, id, 6, &missing), QUIRE_AGAIN); /* not computed */
    (void)test_run_whole(&x.p, a, 2 * P + 1);
    assert_int_equal(stats_of(&x, x.high).charged_bytes, 0);
    assert_int_equal(quire_pins_hold(x.pins, id, 6, &missing), QUIRE_OK);
    assert_int_equal(quire_pins_hold(x.pins, id, 6, &missing), QUIRE_AGAIN); /* held already */
    info = info_of(&x, id);
    assert_int_equal(info.state, QUIRE_PIN_HELD);
    assert_int_equal(info.n_held_tokens, 2 * P + 1);
    assert_int_equal(info.bytes, 3 * PAGE_BYTES);
    assert_int_equal(info.created_us, 5);
    assert_int_equal(stats_of(&x, x.high).reserved_bytes, 0);
    assert_int_equal(stats_of(&x, x.high).pinned_bytes, 3 * PAGE_BYTES);
    assert_int_equal(stats_of(&x, x.high).cached_bytes, 0);
    assert_int_equal(stats_of(&x, 0).charged_bytes, 0);
    assert_int_equal(quire_pins_drop(x.pins, id, 9), QUIRE_OK);
    assert_int_equal(quire_pins_drop(x.pins, id, 9), QUIRE_NOTFOUND);
    assert_int_equal(stats_of(&x, x.high).cached_bytes, 3 * PAGE_BYTES); /* cached from now on */
    end(&x);
}

/* A refusal reports the missing bytes exactly, before anything is computed. */
static void test_refused(void **state)
{
    pinned x;
    int32_t a[9 * P];
    quire_pin_spec spec;
    quire_pin_id first;
    quire_pin_id id;
    uint64_t missing;

    (void)state;
    begin(&x, 20, 5);
    test_text(a, 9 * P, 1000);
    spec = spec_of(&x, "nine", a, 9 * P);
    assert_int_equal(quire_pins_check(x.pins, &spec, &missing), QUIRE_NOPAGES);
    assert_int_equal(missing, 4 * PAGE_BYTES);
    first = pin_text(&x, "three", a, 3 * P);
    assert_int_equal(quire_pins_check(x.pins, &spec, &missing), QUIRE_NOPAGES);
    assert_int_equal(missing, 4 * PAGE_BYTES); /* the three shared pages count once */
    a[0]++;                                    /* another text shares no page */
    spec.n_tokens = 3 * P;
    assert_int_equal(quire_pins_reserve(x.pins, &spec, 0, &id, &missing), QUIRE_NOPAGES);
    assert_int_equal(missing, PAGE_BYTES);
    assert_int_equal(id, QUIRE_PIN_NULL);
    spec.n_tokens = 2 * P;
    assert_int_equal(quire_pins_reserve(x.pins, &spec, 0, &id, &missing), QUIRE_OK);
    /* Reserved room is not given away. */
    assert_int_equal(quire_region_transfer(x.p.cache, x.high, 0, 1), QUIRE_NOPAGES);
    assert_int_equal(quire_region_budget_set(x.p.cache, x.high, 4 * PAGE_BYTES), QUIRE_INVAL);
    assert_int_equal(quire_region_close(x.p.cache, x.high), QUIRE_AGAIN);
    assert_int_equal(quire_pins_drop(x.pins, first, 0), QUIRE_OK);
    assert_int_equal(quire_region_transfer(x.p.cache, x.high, 0, 3 * PAGE_BYTES), QUIRE_OK);
    end(&x);
}

/* Live pages of the region's own sequences delay a pin; cached pages are evicted for it. */
static void test_hold_makes_room(void **state)
{
    pinned x;
    int32_t a[3 * P];
    int32_t b[3 * P];
    quire_pin_spec spec;
    quire_pin_id id;
    quire_seq_id seq;
    uint64_t missing;

    (void)state;
    begin(&x, 20, 4);
    test_text(a, 3 * P, 1000);
    test_text(b, 3 * P, 2000);
    (void)test_run_whole(&x.p, a, 3 * P);
    seq = test_open_in(x.p.cache, x.high);
    test_append(x.p.cache, seq, 2 * P);
    spec = spec_of(&x, "a", a, 3 * P);
    assert_int_equal(quire_pins_reserve(x.pins, &spec, 0, &id, &missing), QUIRE_OK);
    assert_int_equal(quire_pins_hold(x.pins, id, 0, &missing), QUIRE_NOPAGES);
    assert_int_equal(missing, PAGE_BYTES);
    assert_int_equal(info_of(&x, id).state, QUIRE_PIN_RESERVED);
    assert_int_equal(quire_seq_close(x.p.cache, seq), QUIRE_OK);
    assert_int_equal(quire_pins_hold(x.pins, id, 0, &missing), QUIRE_OK);
    assert_int_equal(stats_of(&x, x.high).pinned_bytes, 3 * PAGE_BYTES);
    end(&x);
}

static void test_spec_errors(void **state)
{
    pinned x;
    int32_t a[P] = { 0 };
    char name[QUIRE_PIN_NAME_MAX + 2];
    quire_pin_spec spec;
    quire_pin_id id;
    quire_pins *other;
    quire_pins_opts opts = QUIRE_PINS_OPTS_INIT;

    (void)state;
    begin(&x, 20, 6);
    spec = spec_of(&x, "", a, P);
    assert_int_equal(quire_pins_check(x.pins, &spec, NULL), QUIRE_INVAL);
    memset(name, 'n', sizeof name);
    name[QUIRE_PIN_NAME_MAX + 1] = '\0';
    spec.name = name;
    assert_int_equal(quire_pins_check(x.pins, &spec, NULL), QUIRE_INVAL);
    name[QUIRE_PIN_NAME_MAX] = '\0';
    assert_int_equal(quire_pins_check(x.pins, &spec, NULL), QUIRE_OK);
    spec.n_tokens = 0;
    assert_int_equal(quire_pins_check(x.pins, &spec, NULL), QUIRE_INVAL);
    spec = spec_of(&x, "a", a, P);
    spec.rank = QUIRE_RANKS_MAX;
    assert_int_equal(quire_pins_check(x.pins, &spec, NULL), QUIRE_INVAL);
    spec = spec_of(&x, "a", a, P);
    spec.account = QUIRE_ACCOUNTS_MAX;
    assert_int_equal(quire_pins_check(x.pins, &spec, NULL), QUIRE_INVAL);
    spec = spec_of(&x, "a", a, P);
    spec.region = 5;
    assert_int_equal(quire_pins_check(x.pins, &spec, NULL), QUIRE_NOTFOUND);
    spec.region = QUIRE_REGIONS_MAX;
    assert_int_equal(quire_pins_check(x.pins, &spec, NULL), QUIRE_NOTFOUND);
    spec = spec_of(&x, "a", a, P);
    for (char c = 'a'; c < 'e'; c++) {
        spec.name = (char[]){ c, 0 };
        assert_int_equal(quire_pins_reserve(x.pins, &spec, 0, &id, NULL), QUIRE_OK);
        assert_int_equal(quire_pins_find(x.pins, "tenant", 6, spec.name), id);
        assert_int_equal(quire_pins_find(x.pins, "tenan", 5, spec.name), QUIRE_PIN_NULL);
    }
    spec.name = "e";
    assert_int_equal(quire_pins_reserve(x.pins, &spec, 0, &id, NULL), QUIRE_LIMIT);
    assert_int_equal(quire_pins_hold(x.pins, 12345, 0, NULL), QUIRE_NOTFOUND);
    assert_int_equal(quire_pins_renew(x.pins, 12345, 0), QUIRE_NOTFOUND);
    assert_int_equal(quire_pins_create(&other, &opts), QUIRE_INVAL); /* no tree */
    opts.tree = x.p.tree;
    opts.pins_max = 0;
    assert_int_equal(quire_pins_create(&other, &opts), QUIRE_INVAL);
    end(&x);
}

/* ---- promises of a reservation ---- */

/* Pages that another pin holds are not set aside again. They stay when the other pin goes, and the
 * reserved bytes still suffice. */
static void test_reserved_outlives_other(void **state)
{
    pinned x;
    int32_t a[3 * P];
    int32_t b[4 * P];
    int32_t c[2 * P];
    quire_pin_spec spec;
    quire_pin_id first;
    quire_pin_id second;
    quire_pin_id third;
    uint64_t missing;

    (void)state;
    begin(&x, 20, 5);
    test_text(a, 3 * P, 1000);
    test_text(b, 4 * P, 1000);
    test_text(c, 2 * P, 5000);
    first = pin_text(&x, "a", a, 3 * P);
    spec = spec_of(&x, "b", b, 4 * P);
    assert_int_equal(quire_pins_reserve(x.pins, &spec, 0, &second, &missing), QUIRE_OK);
    assert_int_equal(info_of(&x, second).bytes, PAGE_BYTES);
    assert_int_equal(quire_pins_drop(x.pins, first, 0), QUIRE_OK);
    assert_int_equal(stats_of(&x, x.high).pinned_bytes, 3 * PAGE_BYTES);
    spec = spec_of(&x, "c", c, 2 * P);
    assert_int_equal(quire_pins_reserve(x.pins, &spec, 0, &third, &missing), QUIRE_NOPAGES);
    assert_int_equal(missing, PAGE_BYTES);
    assert_int_equal(quire_prefix_evict(x.p.tree, x.high, UINT64_MAX), 0);
    (void)test_run_whole(&x.p, b, 4 * P);
    assert_int_equal(quire_pins_hold(x.pins, second, 0, &missing), QUIRE_OK);
    assert_int_equal(stats_of(&x, x.high).pinned_bytes, 4 * PAGE_BYTES);
    assert_int_equal(quire_pins_drop(x.pins, second, 0), QUIRE_OK);
    assert_int_equal(test_prefix_stats(&x.p).refs, 0);
    end(&x);
}

/* A pinned page whose tokens match a text only in part does not count for the text. */
static void test_reserved_beside_other(void **state)
{
    pinned x;
    int32_t a[2 * P];
    int32_t b[2 * P];
    quire_pin_spec spec;
    quire_pin_id id;

    (void)state;
    begin(&x, 20, 5);
    test_text(a, 2 * P, 1000);
    test_text(b, 2 * P, 1000);
    b[P + P / 2] = 7;
    (void)pin_text(&x, "a", a, 2 * P);
    spec = spec_of(&x, "b", b, 2 * P);
    assert_int_equal(quire_pins_reserve(x.pins, &spec, 0, &id, NULL), QUIRE_OK);
    assert_int_equal(info_of(&x, id).bytes, PAGE_BYTES);
    spec = spec_of(&x, "c", b, P + P / 2); /* it ends before that */
    assert_int_equal(quire_pins_reserve(x.pins, &spec, 0, &id, NULL), QUIRE_OK);
    assert_int_equal(info_of(&x, id).bytes, 0);
    end(&x);
}

/* A failed hold leaves owner and rank of the nodes unchanged. */
static void test_not_held(void **state)
{
    pinned x;
    int32_t a[3 * P];
    quire_pin_spec spec;
    quire_pin_id id;
    quire_seq_id seq;

    (void)state;
    begin(&x, 20, 4);
    test_text(a, 3 * P, 1000);
    x.p.owner = 9;
    (void)test_run_whole(&x.p, a, 3 * P);
    seq = test_open_in(x.p.cache, x.high);
    test_append(x.p.cache, seq, 2 * P);
    spec = spec_of(&x, "a", a, 3 * P);
    assert_int_equal(quire_pins_reserve(x.pins, &spec, 0, &id, NULL), QUIRE_OK);
    assert_int_equal(quire_pins_hold(x.pins, id, 0, NULL), QUIRE_NOPAGES);
    assert_int_equal(test_prefix_stats(&x.p).refs, 0);
    assert_int_equal(quire_prefix_drop_owner(x.p.tree, 9, 0).nodes, 3);
    assert_int_equal(quire_seq_close(x.p.cache, seq), QUIRE_OK);
    end(&x);
}

/* A taken name is reported as such, also when there is no room for another pin. */
static void test_name_taken(void **state)
{
    pinned x;
    int32_t a[4 * P];
    quire_pin_spec spec;
    quire_pin_id id;
    uint64_t missing;

    (void)state;
    begin(&x, 20, 4);
    test_text(a, 4 * P, 1000);
    spec = spec_of(&x, "a", a, 4 * P);
    assert_int_equal(quire_pins_reserve(x.pins, &spec, 0, &id, &missing), QUIRE_OK);
    assert_int_equal(quire_pins_reserve(x.pins, &spec, 0, &id, &missing), QUIRE_AGAIN);
    spec.name = "b";
    assert_int_equal(quire_pins_reserve(x.pins, &spec, 0, &id, &missing), QUIRE_NOPAGES);
    assert_int_equal(missing, 4 * PAGE_BYTES);
    end(&x);
}

/* ---- survival ---- */

static void test_survives_pressure(void **state)
{
    pinned x;
    int32_t a[3 * P];
    int32_t low[8 * P];
    quire_pin_id id;

    (void)state;
    begin(&x, 12, 4);
    test_text(a, 3 * P, 1000);
    id = pin_text(&x, "a", a, 3 * P);
    for (int32_t i = 0; i < 10; i++) {
        test_text(low, 8 * P, 10000 * (i + 1));
        (void)test_run_whole(&x.p, low, 8 * P);
        assert_int_equal(quire_prefix_evict(x.p.tree, x.high, UINT64_MAX), 0);
    }
    assert_int_equal(info_of(&x, id).bytes, 3 * PAGE_BYTES);
    assert_int_equal(stats_of(&x, x.high).pinned_bytes, 3 * PAGE_BYTES);
    assert_int_equal(quire_region_transfer(x.p.cache, x.high, 0, PAGE_BYTES), QUIRE_OK);
    assert_int_equal(quire_region_transfer(x.p.cache, x.high, 0, PAGE_BYTES), QUIRE_NOPAGES);
    assert_int_equal(quire_region_transfer(x.p.cache, 0, x.high, 5 * PAGE_BYTES), QUIRE_OK);
    assert_int_equal(test_lookup(&x.p, a, 3 * P).n_tokens, 3 * P);
    assert_int_equal(quire_prefix_expire(x.p.tree, UINT64_MAX / 2, UINT32_MAX), 0);
    end(&x);
}

/* A sequence of the dynamic region continues a pinned text that ends inside a page. Its longer page
 * replaces the pinned page; the region must not grow and the pin must not shrink. */
static void test_tail_is_taken_over(void **state)
{
    pinned x;
    int32_t a[P + 1];
    int32_t longer[3 * P];
    quire_pin_id id;
    quire_region_stats stats;

    (void)state;
    begin(&x, 12, 2);
    test_text(a, P + 1, 1000);
    test_text(longer, 3 * P, 1000);
    id = pin_text(&x, "a", a, P + 1);
    assert_int_equal(test_run_whole(&x.p, longer, 3 * P).n_tokens, P + 1);
    stats = stats_of(&x, x.high);
    assert_int_equal(stats.charged_bytes, 2 * PAGE_BYTES);
    assert_int_equal(stats.pinned_bytes, 2 * PAGE_BYTES);
    assert_int_equal(info_of(&x, id).state, QUIRE_PIN_HELD);
    assert_int_equal(info_of(&x, id).n_held_tokens, P + 1);
    assert_int_equal(quire_prefix_evict(x.p.tree, 0, UINT64_MAX), PAGE_BYTES);
    assert_int_equal(test_lookup(&x.p, longer, 3 * P).n_tokens, 2 * P);
    end(&x);
}

/* Two pins share a prefix: the prefix stays until both are dropped. */
static void test_shared(void **state)
{
    pinned x;
    int32_t a[4 * P];
    int32_t b[4 * P];
    quire_pin_id first;
    quire_pin_id second;

    (void)state;
    begin(&x, 20, 6);
    test_text(a, 4 * P, 1000);
    test_text(b, 4 * P, 1000);
    test_text(b + 2 * P, 2 * P, 5000);
    first = pin_text(&x, "a", a, 4 * P);
    second = pin_text(&x, "b", b, 4 * P);
    assert_int_equal(stats_of(&x, x.high).pinned_bytes, 6 * PAGE_BYTES);
    assert_int_equal(quire_pins_drop(x.pins, first, 0), QUIRE_OK);
    assert_int_equal(stats_of(&x, x.high).pinned_bytes, 4 * PAGE_BYTES);
    assert_int_equal(quire_prefix_evict(x.p.tree, x.high, UINT64_MAX), 2 * PAGE_BYTES);
    assert_int_equal(test_lookup(&x.p, b, 4 * P).n_tokens, 4 * P);
    assert_int_equal(quire_pins_drop(x.pins, second, 0), QUIRE_OK);
    assert_int_equal(quire_prefix_evict(x.p.tree, x.high, UINT64_MAX), 4 * PAGE_BYTES);
    end(&x);
}

/* ---- ends of pins ---- */

static void count_gone(void *ctx, const quire_pin_info *pin)
{
    assert_string_equal(pin->name, "a");
    assert_int_equal(pin->state, QUIRE_PIN_HELD);
    (*(uint32_t *)ctx)++;
}

static void test_expires(void **state)
{
    pinned x;
    int32_t a[2 * P];
    int32_t b[2 * P];
    quire_pin_id first;
    quire_pin_id second;
    uint32_t n_gone = 0;

    (void)state;
    begin(&x, 20, 6);
    test_text(a, 2 * P, 1000);
    test_text(b, 2 * P, 5000);
    first = pin_text(&x, "a", a, 2 * P);
    second = pin_text(&x, "b", b, 2 * P);
    assert_int_equal(quire_pins_expire(x.pins, UINT64_MAX, NULL, NULL), 0); /* never */
    assert_int_equal(quire_pins_renew(x.pins, first, 5000), QUIRE_OK);
    assert_int_equal(quire_pins_renew(x.pins, second, 9000), QUIRE_OK);
    assert_int_equal(quire_pins_expire(x.pins, 4999, count_gone, &n_gone), 0);
    assert_int_equal(quire_pins_renew(x.pins, first, 6000), QUIRE_OK);
    assert_int_equal(quire_pins_expire(x.pins, 5000, count_gone, &n_gone), 0);
    assert_int_equal(quire_pins_expire(x.pins, 6000, count_gone, &n_gone), 1);
    assert_int_equal(n_gone, 1);
    assert_int_equal(quire_pins_find(x.pins, "tenant", 6, "a"), QUIRE_PIN_NULL);
    assert_int_equal(quire_pins_find(x.pins, "tenant", 6, "b"), second);
    assert_int_equal(stats_of(&x, x.high).pinned_bytes, 2 * PAGE_BYTES);
    end(&x);
}

/* Invalidation wins. */
static void test_invalidated(void **state)
{
    pinned x;
    int32_t a[3 * P];
    quire_prefix_key key = test_key();
    quire_pin_id id;

    (void)state;
    begin(&x, 20, 6);
    test_text(a, 3 * P, 1000);
    id = pin_text(&x, "a", a, 2 * P + 1);
    assert_int_equal(quire_prefix_drop_owner(x.p.tree, 7, 0).nodes, 0);
    /* Invalidation of a longer text: the pin's last page goes, the pages before stay. */
    (void)test_run_whole(&x.p, a, 3 * P);
    assert_int_equal(quire_prefix_drop_prefix(x.p.tree, &key, a, 3 * P, 0).nodes, 1);
    assert_int_equal(info_of(&x, id).state, QUIRE_PIN_LOST);
    assert_int_equal(info_of(&x, id).n_held_tokens, 2 * P);
    assert_int_equal(stats_of(&x, x.high).pinned_bytes, 2 * PAGE_BYTES);
    /* The pin can be held again after the text is computed again. */
    assert_int_equal(quire_pins_hold(x.pins, id, 0, NULL), QUIRE_AGAIN);
    (void)test_run_whole(&x.p, a, 2 * P + 1);
    assert_int_equal(quire_pins_hold(x.pins, id, 0, NULL), QUIRE_OK);
    assert_int_equal(stats_of(&x, x.high).pinned_bytes, 3 * PAGE_BYTES);
    (void)quire_prefix_drop_all(x.p.tree, 0);
    assert_int_equal(info_of(&x, id).state, QUIRE_PIN_LOST);
    assert_int_equal(info_of(&x, id).bytes, 0);
    assert_int_equal(stats_of(&x, x.high).pinned_bytes, 0);
    assert_int_equal(quire_pins_drop(x.pins, id, 0), QUIRE_OK);
    end(&x);
}

static int stop_at_second(void *ctx, const quire_pin_info *pin)
{
    (void)pin;
    return ++*(int *)ctx == 2 ? 17 : 0;
}

static void test_visit(void **state)
{
    pinned x;
    int32_t a[P];
    quire_pin_spec spec;
    quire_pin_id id;
    int n = 0;

    (void)state;
    begin(&x, 20, 6);
    test_text(a, P, 1000);
    spec = spec_of(&x, "a", a, P);
    assert_int_equal(quire_pins_visit(x.pins, stop_at_second, &n), 0);
    for (char c = 'a'; c < 'd'; c++) {
        spec.name = (char[]){ c, 0 };
        assert_int_equal(quire_pins_reserve(x.pins, &spec, 0, &id, NULL), QUIRE_OK);
    }
    assert_int_equal(quire_pins_visit(x.pins, stop_at_second, &n), 17);
    end(&x);
}

/* ---- memory ---- */

static void test_memory_fails(void **state)
{
    (void)state;
    for (uint64_t fail_at = 0;; fail_at++) {
        pinned x;
        int32_t a[2 * P];
        quire_pin_spec spec;
        quire_pin_id id;
        int rc;

        begin(&x, 20, 6);
        test_text(a, 2 * P, 1000);
        (void)test_run_whole(&x.p, a, 2 * P);
        spec = spec_of(&x, "a", a, 2 * P);
        x.p.t.memory.n_calls = 0;
        x.p.t.memory.fail_at = fail_at;
        rc = pin_add(x.pins, &spec, 0, &id, NULL);
        assert_int_equal(rc, x.p.t.memory.has_failed ? QUIRE_NOMEM : QUIRE_OK);
        assert_int_equal(pin_count(x.pins), rc == QUIRE_OK);
        x.p.t.memory.fail_at = NEVER;
        end(&x);
        if (rc == QUIRE_OK) {
            assert_true(fail_at > 0);
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_hold_makes_room),
        cmocka_unit_test(test_reserved_outlives_other),
        cmocka_unit_test(test_reserved_beside_other),
        cmocka_unit_test(test_not_held),
        cmocka_unit_test(test_name_taken),
        cmocka_unit_test(test_spec_errors),
        cmocka_unit_test(test_survives_pressure),
        cmocka_unit_test(test_tail_is_taken_over),
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_expires),
        cmocka_unit_test(test_invalidated),
        cmocka_unit_test(test_visit),
        cmocka_unit_test(test_full_pages_are_held),
        cmocka_unit_test(test_memory_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
